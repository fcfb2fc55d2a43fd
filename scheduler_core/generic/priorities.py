"""The classic priorities: how good is a node for the pod, from 0 to 10, in whole numbers cut off.

A priority scores all feasible nodes at once, in the order given. Sources: Kubernetes 1.1,
plugin/pkg/scheduler/algorithm/priorities/; the function is named in each docstring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from scheduler_core.generic.cycle_state import Argument, Question
from scheduler_core.generic.node_info import NodeState

Priority = Callable[[Question, Argument, Sequence[NodeState]], list[int]]

BEST: Final = 10


def least_requested(question: Question, _: Argument, states: Sequence[NodeState]) -> list[int]:
    """The mean of the free shares of CPU and memory once the pod is there, in tenths (LeastRequestedPriority).

    A container that does not say counts as 100m and 200Mi.
    """
    cpu, memory = question.pod.assumed_cpu, question.pod.assumed_memory
    return [
        (
            free_tenths(state.assumed_cpu + cpu, state.node.cpu)
            + free_tenths(state.assumed_memory + memory, state.node.memory)
        )
        // 2
        for state in states
    ]


def free_tenths(requested: int, capacity: int) -> int:
    """What is free in tenths of the capacity; 0 without capacity and beyond it (calculateScore)."""
    return (capacity - requested) * BEST // capacity if 0 < capacity >= requested else 0


def balanced_resource_allocation(question: Question, _: Argument, states: Sequence[NodeState]) -> list[int]:
    """10 less the difference of the used shares of CPU and memory in tenths; 0 where one is used up (BalancedResourceAllocation).

    Floating point, in just this order of steps: exact arithmetic would give other scores than Kubernetes.
    """
    cpu, memory = question.pod.assumed_cpu, question.pod.assumed_memory
    return [
        balance(
            used_share(state.assumed_cpu + cpu, state.node.cpu),
            used_share(state.assumed_memory + memory, state.node.memory),
        )
        for state in states
    ]


def used_share(requested: int, capacity: int) -> float:
    """The used part of the capacity; 1 without capacity (fractionOfCapacity)."""
    return requested / capacity if capacity else 1.0


def balance(cpu: float, memory: float) -> int:
    """The score of two used shares (calculateBalancedResourceAllocation)."""
    return 0 if cpu >= 1 or memory >= 1 else int(BEST - abs(cpu - memory) * BEST)


def service_spreading(question: Question, _: Argument, states: Sequence[NodeState]) -> list[int]:
    """How much fewer pods of the pod's services a node has than the node with most of them (CalculateSpreadPriority).

    Nodes that were filtered out, are not available or do not exist count for the maximum. Without such pods: 10.
    """
    counts = question.relatives_by_node
    most = max(counts.values(), default=0)
    if not most:
        return [BEST] * len(states)
    return [BEST * (most - counts[state.node.name]) // most for state in states]


def service_anti_affinity(question: Question, argument: Argument, states: Sequence[NodeState]) -> list[int]:
    """The share of the first service's pods that are not on feasible nodes with the same value of the label, in tenths.

    Nodes without the label: 0. Without such pods: 10 (CalculateAntiAffinityPriority).
    """
    label = argument.labels[0]
    counts, total = question.peers_by_node, len(question.peers)
    groups: Counter[str] = Counter()
    for state in states:
        if label in state.node.labels:
            groups[state.node.labels[label]] += counts[state.node.name]
    score = {value: BEST * (total - group) // total if total else BEST for value, group in groups.items()}
    return [score[state.node.labels[label]] if label in state.node.labels else 0 for state in states]


def label_preference(_: Question, argument: Argument, states: Sequence[NodeState]) -> list[int]:
    """10 where the label is there (presence true) or is not (false), otherwise 0 (CalculateNodeLabelPriority)."""
    label, presence = argument.labels[0], argument.presence
    return [BEST if (label in state.node.labels) == presence else 0 for state in states]


def equal(_: Question, __: Argument, states: Sequence[NodeState]) -> list[int]:
    """1 everywhere (EqualPriority)."""
    return [1] * len(states)
