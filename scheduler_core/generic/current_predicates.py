"""Predicates of later Kubernetes versions about one node: resources, ports, node affinity, taints. They decide as the
plugins of kube-scheduler 1.36 do (pkg/scheduler/framework/plugins; the plugin is named in each docstring). A policy
that names none of them decides as Kubernetes 1.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scheduler_core.generic.cycle_state import Argument, CycleState
from scheduler_core.generic.node_info import NodeInfo
from scheduler_core.generic.predicates import FITS, PORT_TAKEN, TOO_MANY_PODS, Check
from scheduler_core.model.constraints import Taint
from scheduler_core.model.generic import Node
from scheduler_core.model.kube import Pod

AFFINITY_MISMATCH: Final = "node selector or node affinity does not match"
UNTOLERATED_TAINT: Final = "node has a taint that the pod does not tolerate"
UNSCHEDULABLE: Final = "node is unschedulable"
_UNSCHEDULABLE_TAINT: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
# PreferNoSchedule is a preference.
_HARD_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
_CORE_RESOURCES: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_NATIVE_PREFIXES: Final = ("hugepages-", "attachable-volumes-")

NodeTest = Callable[[Node], bool]


def node_resources_fit(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the pod's requests fit, of every resource (plugin NodeResourcesFit). They are compared with what is
    allocatable. One more pod must be allowed. A resource that the pod does not request is not checked, and what the
    node does not have counts as 0.
    """
    requests = sorted(
        (name, amount)
        for name, amount in cycle_state.pod.scheduling.constraints.requests
        if amount and _kube_scheduler_counts(name)
    )

    def check(node_info: NodeInfo) -> str:
        allocatable = node_info.node.allocatable
        problems = [TOO_MANY_PODS] if node_info.pod_count + 1 > allocatable.get("pods", 0) else []
        problems += [
            f"insufficient {name}"
            for name, amount in requests
            if amount > allocatable.get(name, 0) - node_info.requested.get(name, 0)
        ]
        return " and ".join(problems)

    return check


def _kube_scheduler_counts(resource: str) -> bool:
    """Whether kube-scheduler counts a resource (IsScalarResourceName, and the core ones)."""
    return resource in _CORE_RESOURCES or "/" in resource or resource.startswith(_NATIVE_PREFIXES)


def node_ports(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the pod's host ports are free (plugin NodePorts). Protocols and host IPs are compared; a port on all
    addresses conflicts with the same port on any address.
    """
    wanted = cycle_state.pod.scheduling.constraints.host_ports

    def check(node_info: NodeInfo) -> str:
        conflict = any(port.conflicts(used) for port in wanted for used in node_info.host_ports)
        return PORT_TAKEN if conflict else FITS

    return check


def node_affinity(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the node matches node selector and required node affinity (plugin NodeAffinity)."""
    matches = affinity_test(cycle_state.pod)
    return lambda node_info: FITS if matches(node_info.node) else AFFINITY_MISMATCH


def affinity_test(pod: Pod) -> NodeTest:
    """Returns whether a node matches a pod's selector and required affinity (RequiredNodeAffinity.Match)."""
    selector = pod.scheduling.node_selector
    terms = pod.scheduling.constraints.node_affinity

    def matches(node: Node) -> bool:
        if not selector <= node.labels.items():
            return False
        return terms is None or any(term.matches(node.name, node.labels) for term in terms)

    return matches


def pod_tolerates_node_taints(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the pod tolerates the node's taints with the effects NoSchedule and NoExecute (plugin TaintToleration)."""
    tolerates = taint_test(cycle_state.pod)
    return lambda node_info: FITS if tolerates(node_info.node) else UNTOLERATED_TAINT


def taint_test(pod: Pod) -> NodeTest:
    """Returns whether a pod tolerates a node's taints (FindMatchingUntoleratedTaint)."""
    return lambda node: all(taint.effect not in _HARD_EFFECTS or _tolerates(pod, taint) for taint in node.taints)


def _tolerates(pod: Pod, taint: Taint) -> bool:
    return any(toleration.tolerates(taint) for toleration in pod.scheduling.constraints.tolerations)


def check_node_unschedulable(cycle_state: CycleState, _: Argument) -> Check:
    """Whether the node is not cordoned, or the pod tolerates that (plugin NodeUnschedulable)."""
    tolerated = _tolerates(cycle_state.pod, _UNSCHEDULABLE_TAINT)
    return lambda node_info: UNSCHEDULABLE if node_info.node.unschedulable and not tolerated else FITS
