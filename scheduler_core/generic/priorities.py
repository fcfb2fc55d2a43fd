"""The classic priorities: how good a node is for a pod, as a whole number from 0 to 10.

A priority scores all feasible nodes at once, in the order given. Fractions are cut off. Sources: Kubernetes 1.1,
plugin/pkg/scheduler/algorithm/priorities/; the function is named in each docstring.

Longhorn's priorities exist so that one policy can mix both kinds. Their scores are exact integer arithmetic, computed from
`LonghornFacts`; each is 0 on a node where the pod's volumes do not fit or that was not evaluated.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from scheduler_core.generic.cluster_state import NodeInfo
from scheduler_core.generic.cycle_state import Argument, CycleState

Priority = Callable[[CycleState, Argument, Sequence[NodeInfo]], list[int]]

MAX_SCORE = 10


def least_requested(cycle_state: CycleState, _: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """Scores the free CPU and memory (LeastRequestedPriority). The score is the mean of the two shares, in tenths, that
    are free once the pod runs there. A container without a request counts as 100m and 200Mi.
    """
    cpu = cycle_state.pod.scheduling.nonzero_cpu
    memory = cycle_state.pod.scheduling.nonzero_memory
    return [
        (
            free_tenths(node_info.nonzero_requested_cpu + cpu, node_info.node.cpu)
            + free_tenths(node_info.nonzero_requested_memory + memory, node_info.node.memory)
        )
        // 2
        for node_info in node_infos
    ]


def free_tenths(requested: int, capacity: int) -> int:
    """The free share of a capacity in tenths (calculateScore)."""
    # 0 without capacity, or if more than the capacity is requested.
    return (capacity - requested) * MAX_SCORE // capacity if 0 < capacity >= requested else 0


def balanced_resource_allocation(cycle_state: CycleState, _: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """Scores how evenly CPU and memory are used (BalancedResourceAllocation). 10 less the difference of the used shares
    in tenths; 0 where one of them is used up. The arithmetic is floating point in exactly this order of steps: exact
    arithmetic would give other scores than Kubernetes.
    """
    cpu = cycle_state.pod.scheduling.nonzero_cpu
    memory = cycle_state.pod.scheduling.nonzero_memory
    return [
        balance(
            used_share(node_info.nonzero_requested_cpu + cpu, node_info.node.cpu),
            used_share(node_info.nonzero_requested_memory + memory, node_info.node.memory),
        )
        for node_info in node_infos
    ]


def used_share(requested: int, capacity: int) -> float:
    return requested / capacity if capacity else 1.0


def balance(cpu: float, memory: float) -> int:
    return 0 if cpu >= 1 or memory >= 1 else int(MAX_SCORE - abs(cpu - memory) * MAX_SCORE)


def service_spreading(cycle_state: CycleState, _: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """Prefers nodes with few pods of any of the pod's services (CalculateSpreadPriority)."""
    # The score compares a node with the one that has most of them. Nodes that were filtered out, are not available or
    # do not exist count for that maximum. 10 without any service pods.
    return _spread(cycle_state.service_pods_by_node, node_infos)


def selector_spread(cycle_state: CycleState, _: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """Prefers nodes with few pods of the pod's services and controllers (CalculateSpreadPriority)."""
    # As `service_spreading`, with the ReplicationControllers, ReplicaSets and StatefulSets that select the pod as well.
    # Kubernetes 1.1 reads ReplicationControllers; the other two were added when the kinds came.
    return _spread(cycle_state.owned_pods_by_node, node_infos)


def _spread(counts: Counter[str], node_infos: Sequence[NodeInfo]) -> list[int]:
    max_count = max(counts.values(), default=0)
    if not max_count:
        return [MAX_SCORE] * len(node_infos)
    score = {name: MAX_SCORE * (max_count - count) // max_count for name, count in counts.items()}
    return [score.get(node_info.node.name, MAX_SCORE) for node_info in node_infos]


def service_anti_affinity(cycle_state: CycleState, argument: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """Spreads a service over a label's values (CalculateAntiAffinityPriority). The score is the share, in tenths, of
    the first service's pods that are not on feasible nodes with the same value. Nodes without the label: 0. Without any
    pod of that service: 10.
    """
    label = argument.labels[0]
    values = [node_info.node.labels.get(label) for node_info in node_infos]
    counts = cycle_state.first_service_pods_by_node
    total = len(cycle_state.first_service_pods)
    count_by_value: Counter[str | None] = Counter()
    if counts:
        for node_info, value in zip(node_infos, values, strict=True):
            count_by_value[value] += counts.get(node_info.node.name, 0)
    score: dict[str | None, int] = {
        value: MAX_SCORE * (total - count) // total for value, count in count_by_value.items()
    }
    score[None] = 0
    return [score.get(value, MAX_SCORE) for value in values]


def label_preference(_: CycleState, argument: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """Prefers nodes with, or without, a label (CalculateNodeLabelPriority)."""
    # 10 where the label is present (`presence` true) or absent (false), otherwise 0.
    label = argument.labels[0]
    presence = argument.presence
    return [MAX_SCORE if (label in node_info.node.labels) == presence else 0 for node_info in node_infos]


def equal(_: CycleState, __: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """Scores every node 1 (EqualPriority)."""
    return [1] * len(node_infos)


def data_locality(cycle_state: CycleState, _: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """Scores the bytes of the pod's Longhorn volumes with a kept replica on the node, in tenths of those that have a
    replica anywhere; 0 if none has, 10 for a pod without volumes.
    """
    total = cycle_state.longhorn_facts.total_bytes
    if not total:
        return [MAX_SCORE] * len(node_infos)
    # Of two nodes with as much of the data, the one comes first where fewer bytes must be rebuilt.
    return cycle_state.score_facts(node_infos, lambda facts: min(facts.replica_bytes, total) * MAX_SCORE // total)


def order_safe(cycle_state: CycleState, _: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """10 where every order of placement succeeds or Longhorn places no volume, otherwise 0."""
    return cycle_state.score_facts(node_infos, lambda facts: MAX_SCORE if facts.order_safe else 0)


def stale_safe(cycle_state: CycleState, _: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """10 where placement succeeds even on outdated status or Longhorn places no volume, otherwise 0."""
    return cycle_state.score_facts(node_infos, lambda facts: MAX_SCORE if facts.stale_safe else 0)


def balanced_disks(cycle_state: CycleState, _: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """10 less the difference between the fullest and the emptiest disk after the plan, in tenths of their limits."""
    # 10 where nothing would be placed, or there is only one disk.
    return cycle_state.score_facts(node_infos, lambda facts: facts.balance)


def least_fragmentation(cycle_state: CycleState, _: Argument, node_infos: Sequence[NodeInfo]) -> list[int]:
    """The share of the node's free bytes that is on one disk, in tenths, after the plan."""
    # The larger it is, the larger a volume that still fits. 10 where nothing would be placed, or nothing is free.
    return cycle_state.score_facts(node_infos, lambda facts: facts.largest_share)
