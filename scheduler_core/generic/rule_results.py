"""Caches what local rules say about each node, for pods that these rules treat alike.

A *local rule* reads nothing but one node with its pods, and the pod itself without its name, UID and labels. So its result holds for
every pod that is equal apart from these, until the node changes. A burst of equal pods then costs a look-up per node, and one
evaluation of each node that a pod was bound to. Correctness does not depend on the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, TypeVar

from scheduler_core.caches import NodeResults
from scheduler_core.generic.node_info import NodeInfo
from scheduler_core.model.constraints import PodScheduling
from scheduler_core.model.kube import Pod

LOCAL_RULES: Final = frozenset(
    {
        "PodFitsPorts",
        "PodFitsHostPorts",
        "PodFitsResources",
        "NoDiskConflict",
        "MatchNodeSelector",
        "HostName",
        "labelsPresence",
        "LeastRequestedPriority",
        "BalancedResourceAllocation",
        "EqualPriority",
        "labelPreference",
        "CheckNodeUnschedulable",
        "NodeAffinity",
        "NodePorts",
        "NodeResourcesFit",
        "PodToleratesNodeTaints",
    }
)
_NOT_READ: Final = frozenset({"labels", "ready"})
_name = attrgetter("node.name")
_fields_read = attrgetter(*(entry.name for entry in fields(PodScheduling) if entry.name not in _NOT_READ))

_Result = TypeVar("_Result")


class RuleResults:
    """Results by rules, pod and node; shared by all states of one cluster."""

    def __init__(self) -> None:
        self._results: NodeResults[tuple[NodeInfo, Any]] = NodeResults()

    def get(
        self,
        rules: Hashable,
        pod: Pod,
        node_infos: Sequence[NodeInfo],
        evaluate: Callable[[Sequence[NodeInfo]], Iterable[_Result]],
    ) -> list[_Result]:
        """Returns the result of each node, in order.

        Args:
            rules: identifies the rules and their arguments
            pod: the pod that the rules are evaluated for
            node_infos: the nodes
            evaluate: returns the results of nodes that are not cached, in order
        """
        key = (rules, _key(pod))
        cached = self._results.at(key)
        names = list(map(_name, node_infos))
        entries = map(cached.get, names)
        missing = [
            node_info
            for node_info, entry in zip(node_infos, entries, strict=True)
            if entry is None or entry[0] is not node_info
        ]
        if missing:
            cached |= zip(map(_name, missing), zip(missing, evaluate(missing), strict=True), strict=True)
            self._results.store(key, cached)
        return [cached[name][1] for name in names]


def _key(pod: Pod) -> Hashable:
    return pod.node_name, _fields_read(pod.scheduling)
