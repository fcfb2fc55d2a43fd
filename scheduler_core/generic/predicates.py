"""The classic predicates, and Longhorn's: may the pod run on a node?

A predicate takes a `CycleState` and returns a check of one node. The check returns "" where the pod fits, otherwise a
fixed text without names or numbers, so that equal refusals can be counted. Values that are the same for all nodes are
computed before the first node is checked. Sources: Kubernetes 1.1,
plugin/pkg/scheduler/algorithm/predicates/predicates.go; the function is named in each docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scheduler_core.generic.cycle_state import Argument, CycleState, UndecidableError
from scheduler_core.generic.node_info import NodeInfo
from scheduler_core.model.constraints import Cloud
from scheduler_core.model.generic import Node

Check = Callable[[NodeInfo], str]
Predicate = Callable[[CycleState, Argument], Check]

FITS: Final = ""
PORT_TAKEN: Final = "host port is in use"
TOO_MANY_PODS: Final = "too many pods"
NO_CPU: Final = "insufficient CPU"
NO_MEMORY: Final = "insufficient memory"
NO_CPU_NOR_MEMORY: Final = "insufficient CPU and memory"
DISK_IN_USE: Final = "cloud disk is in use"
SELECTOR_MISMATCH: Final = "node selector does not match"
OTHER_HOST: Final = "pod names another node"
AFFINITY_MISMATCH: Final = "service affinity does not match"
LABEL_MISSING: Final = "a required node label is missing"
LABEL_PRESENT: Final = "an unwanted node label is present"
NOT_EVALUATED: Final = "node was not looked at for Longhorn volumes"


def always_fits(_: NodeInfo) -> str:
    return FITS


def pod_fits_ports(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the pod's host ports are free (PodFitsHostPorts); protocol and host IP are not compared."""
    ports = cycle_state.pod.scheduling.ports
    if not ports:
        return always_fits
    return lambda node_info: FITS if ports.isdisjoint(node_info.used_ports) else PORT_TAKEN


def pod_fits_resources(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the pod's requests fit (PodFitsResources). One more pod must be allowed. The sum of requests must be
    within the capacity. A pod that requests neither CPU nor memory fits whatever is requested already; for a pod that
    requests one of them both are checked. A capacity of 0 is no limit, except for the number of pods.
    """
    cpu = cycle_state.pod.scheduling.cpu
    memory = cycle_state.pod.scheduling.memory

    def check(node_info: NodeInfo) -> str:
        node = node_info.node
        if node_info.pod_count + 1 > node.pods:
            return TOO_MANY_PODS
        if not cpu and not memory:
            return FITS
        no_cpu = bool(node.cpu) and node_info.requested_cpu + cpu > node.cpu
        if node.memory and node_info.requested_memory + memory > node.memory:
            return NO_CPU_NOR_MEMORY if no_cpu else NO_MEMORY
        return NO_CPU if no_cpu else FITS

    return check


def no_disk_conflict(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the pod's cloud disks can be mounted (NoDiskConflict). A disk that is mounted on the node already cannot,
    unless it is Google's and all pods mount it read-only.
    """
    disks = cycle_state.pod.scheduling.disks
    if not disks:
        return always_fits

    def check(node_info: NodeInfo) -> str:
        for disk in disks:
            mounted_read_only = node_info.disks.get((disk.cloud, disk.name))
            if mounted_read_only is None:
                continue
            if not (disk.cloud is Cloud.GCE and mounted_read_only and disk.read_only):
                return DISK_IN_USE
        return FITS

    return check


def match_node_selector(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the node has every label of the pod's node selector, with the same value (PodMatchesNodeLabels)."""
    selector = cycle_state.pod.scheduling.node_selector
    if not selector:
        return always_fits
    return lambda node_info: FITS if selector <= node_info.node.labels.items() else SELECTOR_MISMATCH


def host_name(cycle_state: CycleState, _: Argument) -> Check:
    """Whether spec.nodeName is empty or the node's name (PodFitsHost)."""
    name = cycle_state.pod.node_name
    if not name:
        return always_fits
    return lambda node_info: FITS if node_info.node.name == name else OTHER_HOST


def service_affinity(cycle_state: CycleState, argument: Argument) -> Check:
    """Whether the node matches the pod's service affinity (CheckServiceAffinity). The required value of each label in
    the argument is the one in the pod's node selector, with or without a service; otherwise that of the node of the
    first pod of the pod's first service. A label that is in neither place is not required.

    Raises:
        UndecidableError: that node does not exist, or is cordoned; Kubernetes 1.1 does not distinguish these
    """
    selector = dict(cycle_state.pod.scheduling.node_selector)
    required_labels = {label: selector[label] for label in argument.labels if label in selector}
    if len(required_labels) < len(set(argument.labels)) and cycle_state.first_service_pods:
        labels = _first_service_node(cycle_state).labels
        required_labels = {label: labels[label] for label in argument.labels if label in labels} | required_labels
    if not required_labels:
        return always_fits
    if len(required_labels) == 1:
        # Comparing one value costs a third of comparing sets, and is the most frequent case.
        ((label, value),) = required_labels.items()
        return lambda node_info: FITS if node_info.node.labels.get(label) == value else AFFINITY_MISMATCH
    required = required_labels.items()
    return lambda node_info: FITS if required <= node_info.node.labels.items() else AFFINITY_MISMATCH


def _first_service_node(cycle_state: CycleState) -> Node:
    first_pod = cycle_state.first_service_pods[min(cycle_state.first_service_pods)]
    node_info = cycle_state.cluster.nodes.get(first_pod.node_name)
    if node_info is None or node_info.node.unschedulable:
        raise UndecidableError(
            f"node {first_pod.node_name!r} of pod {first_pod.namespace}/{first_pod.name}, which service affinity follows, is "
            + ("not known" if node_info is None else "cordoned")
        )
    return node_info.node


def labels_presence(_: CycleState, argument: Argument) -> Check:
    """Whether the node has all labels, or with `presence` false none of them (CheckNodeLabelPresence)."""
    # The labels' values do not matter.
    labels = frozenset(argument.labels)
    if argument.presence:
        return lambda node_info: FITS if labels <= node_info.node.labels.keys() else LABEL_MISSING
    return lambda node_info: FITS if labels.isdisjoint(node_info.node.labels) else LABEL_PRESENT


def volume_fit(cycle_state: CycleState, _: Argument) -> Check:
    """Whether /filter accepts the node for the pod's Longhorn volumes. All volumes fit on the node together, or need no
    space there; a refusal has /filter's reason.
    """
    facts_by_node = cycle_state.longhorn_facts.nodes

    def check(node_info: NodeInfo) -> str:
        facts = facts_by_node.get(node_info.node.name)
        if facts is None:
            return NOT_EVALUATED
        return FITS if facts.reason.fits else facts.reason.text

    return check
