"""Caches what local rules say about each node, for pods that these rules treat alike.

A *local rule* reads nothing but one node with its pods, and the pod itself without its name, UID and labels. So its result holds for
every pod that is equal apart from these, until the node changes. A burst of equal pods then costs a look-up per node, and one
evaluation of each node that a pod was bound to. Correctness does not depend on the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, TypeVar

from scheduler_core.generic.node_info import NodeInfo
from scheduler_core.lru import LruMap
from scheduler_core.model.generic import Pod

LOCAL_RULES: Final = frozenset(
    {
        "PodFitsPorts",
        "PodFitsResources",
        "NoDiskConflict",
        "MatchNodeSelector",
        "HostName",
        "labelsPresence",
        "LeastRequestedPriority",
        "BalancedResourceAllocation",
        "EqualPriority",
        "labelPreference",
    }
)
# Results of nodes over all kinds of pods; 150 bytes each.
MAX_RESULTS: Final = 100_000
_IDENTITY: Final = frozenset({"namespace", "name", "uid", "labels"})
_fields_read = attrgetter(*(entry.name for entry in fields(Pod) if entry.name not in _IDENTITY))

_Result = TypeVar("_Result")


class NodeResults:
    """Results by rules, pod and node; shared by all states of one cluster."""

    def __init__(self) -> None:
        self._results: LruMap[Hashable, dict[str, tuple[NodeInfo, Any]]] = LruMap(MAX_RESULTS, len)

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
            evaluate: returns the results of nodes that are not cached, in order
        """
        key = (rules, _key(pod))
        cached = self._results.get(key) or {}
        names = [node_info.node.name for node_info in node_infos]
        entries = list(map(cached.get, names))
        missing = [
            node_info
            for node_info, entry in zip(node_infos, entries, strict=True)
            if entry is None or entry[0] is not node_info
        ]
        if missing:
            results = zip(missing, evaluate(missing), strict=True)
            cached.update((node_info.node.name, (node_info, result)) for node_info, result in results)
            self._results.put(key, cached)
            entries = list(map(cached.get, names))
        return [entry[1] for entry in entries if entry is not None]


def _key(pod: Pod) -> Hashable:
    """Returns what local rules read of a pod."""
    return tuple(frozenset(value.items()) if isinstance(value, Mapping) else value for value in _fields_read(pod))
