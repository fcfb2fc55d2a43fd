"""The classic predicates: may the pod run on a node?

A predicate reads a question and gives a check of one node: "" where the pod fits, otherwise why not, in a fixed text without names
or numbers, so that equal ones can be counted. What is the same for all nodes is worked out before the first node is looked at.
Sources: Kubernetes 1.1, plugin/pkg/scheduler/algorithm/predicates/predicates.go; the function is named in each docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scheduler_core.generic.cycle_state import Argument, Question, UndecidableError
from scheduler_core.generic.node_info import NodeState
from scheduler_core.model.generic import Cloud, Node

Check = Callable[[NodeState], str]
Predicate = Callable[[Question, Argument], Check]

FITS: Final = ""
PORT_TAKEN: Final = "host port is in use"
TOO_MANY_PODS: Final = "too many pods"
NO_CPU: Final = "insufficient CPU"
NO_MEMORY: Final = "insufficient memory"
NO_CPU_NOR_MEMORY: Final = "insufficient CPU and memory"
DISK_IN_USE: Final = "cloud disk is in use"
SELECTOR: Final = "node selector does not match"
OTHER_HOST: Final = "pod names another node"
AFFINITY: Final = "service affinity does not match"
LABEL_MISSING: Final = "a required node label is missing"
LABEL_PRESENT: Final = "an unwanted node label is present"


def _always(_: NodeState) -> str:
    return FITS


def pod_fits_ports(question: Question, _: Argument) -> Check:
    """No host port of the pod is taken; protocol and host IP are not looked at (PodFitsHostPorts)."""
    ports = question.pod.ports
    if not ports:
        return _always
    return lambda state: FITS if ports.isdisjoint(state.ports) else PORT_TAKEN


def pod_fits_resources(question: Question, _: Argument) -> Check:
    """One pod more is allowed, and what is requested of CPU and memory is within the capacity (PodFitsResources).

    A pod that requests neither fits whatever is requested already; a pod that requests one is held to both. A capacity of 0 is no
    limit, but for the number of pods.
    """
    cpu, memory = question.pod.cpu, question.pod.memory

    def check(state: NodeState) -> str:
        node = state.node
        if state.count + 1 > node.pods:
            return TOO_MANY_PODS
        if not cpu and not memory:
            return FITS
        no_cpu = bool(node.cpu) and state.cpu + cpu > node.cpu
        if node.memory and state.memory + memory > node.memory:
            return NO_CPU_NOR_MEMORY if no_cpu else NO_MEMORY
        return NO_CPU if no_cpu else FITS

    return check


def no_disk_conflict(question: Question, _: Argument) -> Check:
    """No cloud disk of the pod is mounted on the node, unless it is Google's and all mount it read-only (NoDiskConflict)."""
    disks = question.pod.disks
    if not disks:
        return _always

    def check(state: NodeState) -> str:
        for disk in disks:
            shared = state.disks.get((disk.cloud, disk.name))
            if shared is not None and not (disk.cloud is Cloud.GCE and shared and disk.read_only):
                return DISK_IN_USE
        return FITS

    return check


def match_node_selector(question: Question, _: Argument) -> Check:
    """The node has every label of the pod's node selector, with just that value (PodMatchesNodeLabels)."""
    wanted = question.pod.node_selector.items()
    return (lambda state: FITS if wanted <= state.node.labels.items() else SELECTOR) if wanted else _always


def host_name(question: Question, _: Argument) -> Check:
    """The pod's spec.nodeName is empty or the node's name (PodFitsHost)."""
    name = question.pod.node_name
    return (lambda state: FITS if state.node.name == name else OTHER_HOST) if name else _always


def service_affinity(question: Question, argument: Argument) -> Check:
    """The node's values of these labels are those of the node of the first pod of the pod's first service.

    A label that the pod's node selector names has that value instead, also without any service; a label that the first pod's
    node does not have is free (CheckServiceAffinity).

    Raises:
        UndecidableError: that pod's node is not known, or cordoned, which Kubernetes 1.1 does not tell apart
    """
    selector = question.pod.node_selector
    wanted = {label: selector[label] for label in argument.labels if label in selector}
    if len(wanted) < len(set(argument.labels)) and question.peers:
        labels = _first_node(question).labels
        wanted = {label: labels[label] for label in argument.labels if label in labels} | wanted
    required = wanted.items()
    return (lambda state: FITS if required <= state.node.labels.items() else AFFINITY) if required else _always


def _first_node(question: Question) -> Node:
    first = question.peers[min(question.peers)]
    found = question.state.nodes.get(first.node_name)
    if found is None or found.node.unschedulable:
        raise UndecidableError(
            f"node {first.node_name!r} of pod {first.namespace}/{first.name}, which service affinity follows, is "
            + ("not known" if found is None else "cordoned")
        )
    return found.node


def labels_presence(_: Question, argument: Argument) -> Check:
    """All labels are there (presence true), or none is (false), whatever their values (CheckNodeLabelPresence)."""
    labels = frozenset(argument.labels)
    if argument.presence:
        return lambda state: FITS if labels <= state.node.labels.keys() else LABEL_MISSING
    return lambda state: FITS if labels.isdisjoint(state.node.labels) else LABEL_PRESENT
