"""A plugin with one predicate and one priority: at most so many pods on a node, and preferably few.

In a policy: `{"name": "AtMostThree", "argument": {"maxPods": {"count": 3}}}` and `{"name": "FewestPods", "weight": 1}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_core.generic.cluster_state import NodeInfo
from scheduler_core.generic.cycle_state import CycleState
from scheduler_core.generic.plugin_rules import PredicatePlugin, PriorityPlugin
from scheduler_core.generic.predicates import FITS, Check

TOO_MANY = "as many pods as allowed"


@dataclass(frozen=True)
class MaxPods:
    """Argument of `maxPods`.

    Attributes:
        count: the most unfinished pods of the namespace on a node
    """

    count: int


def max_pods(cycle_state: CycleState, argument: MaxPods) -> Check:
    """Whether the pod's namespace has fewer pods on the node than allowed."""
    namespace = cycle_state.pod.namespace

    def check(node_info: NodeInfo) -> str:
        count = sum(pod.namespace == namespace and not pod.finished for pod in node_info.pods)
        return FITS if count < argument.count else TOO_MANY

    return check


def fewest_pods(_: CycleState, __: None, node_infos: Sequence[NodeInfo]) -> list[float]:
    """10 on a node without pods, less with every pod."""
    return [10 / (1 + node_info.pod_count) for node_info in node_infos]


PREDICATES = [PredicatePlugin("maxPods", max_pods, MaxPods, eviction_helps=True)]
PRIORITIES = [PriorityPlugin("FewestPods", fewest_pods)]
