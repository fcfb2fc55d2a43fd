"""Caches: a least-recently-used map, and results by node that hold until the node changes.

Every version of a value (views, demand, offers) holds a change log. A reader keeps the change logs of the version for which it computed
results; the logs of a later version name the nodes that changed since, whose results are dropped. No versions are compared.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, ItemsView, Sequence
from typing import Any, Generic, TypeVar

from scheduler_core.structs import Struct

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class LruMap(Generic[_Key, _Value]):
    """Maps keys to values and evicts the least recently used ones beyond its capacity.

    An entry's weight is measured whenever it is stored, so an entry that grew is stored again. cachetools does the same for
    its LRUCache, but refuses an entry heavier than the capacity.

    Args:
        capacity: the greatest sum of weights; the entry stored last stays whatever its weight
        weight: the weight of a value; by default every value weighs 1
        on_evict: called with each key that is evicted
    """

    def __init__(
        self,
        capacity: int,
        weight: Callable[[_Value], int] = lambda _: 1,
        on_evict: Callable[[_Key], Any] | None = None,
    ) -> None:
        self._capacity = capacity
        self._weight = weight
        self._on_evict = on_evict
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()
        self._weights: dict[_Key, int] = {}
        self._total = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: _Key) -> _Value | None:
        """Returns a value and marks it as used, None if there is none."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: _Key, value: _Value) -> None:
        """Stores a value as the most recently used one, with its weight of now."""
        self.pop(key)
        weight = self._weight(value)
        self._entries[key] = value
        self._weights[key] = weight
        self._total += weight
        while self._total > self._capacity and len(self._entries) > 1:
            oldest = next(iter(self._entries))
            self.pop(oldest)
            if self._on_evict is not None:
                self._on_evict(oldest)

    def pop(self, key: _Key) -> _Value | None:
        value = self._entries.pop(key, None)
        self._total -= self._weights.pop(key, 0)
        return value

    def clear(self) -> None:
        self._entries.clear()
        self._weights.clear()
        self._total = 0

    def items(self) -> ItemsView[_Key, _Value]:
        """Returns the entries, the least recently used first, and marks none as used."""
        return self._entries.items()


# A reader that is further behind evaluates every node again.
MAX_STEPS = 4096
# Results of nodes over all keys; 100 to 500 bytes each.
MAX_RESULTS = 100_000

_Result = TypeVar("_Result")


class ChangeLog(Struct, frozen=True, eq=False):
    """The latest change, linked to the changes before it."""

    names: frozenset[str] = frozenset()
    before: "ChangeLog | None" = None
    steps: int = 0

    def append(self, names: frozenset[str] | None) -> "ChangeLog":
        """Returns the log after these nodes changed; None for any node."""
        if names is None or self.steps >= MAX_STEPS:
            return ChangeLog()
        return ChangeLog(names, self, self.steps + 1) if names else self

    def since(self, mark: "ChangeLog") -> frozenset[str] | None:
        """Names of the nodes that changed since `mark`. None if that is not recorded."""
        step: ChangeLog | None = self
        changes: list[frozenset[str]] = []
        while step is not None and step is not mark:
            changes.append(step.names)
            step = step.before
        return None if step is None else frozenset().union(*changes)


def nodes_changed_since(marks: Sequence[ChangeLog], logs: Sequence[ChangeLog]) -> frozenset[str] | None:
    """Names of the nodes that changed in some log since its mark. None if that is not recorded."""
    changed: frozenset[str] = frozenset()
    for log, mark in zip(logs, marks, strict=True):
        names = log.since(mark)
        if names is None:
            return None
        changed |= names
    return changed


class _Versioned(Struct, Generic[_Result], frozen=True):
    version: Sequence[ChangeLog]
    by_node: dict[str, _Result]


class NodeResults(Generic[_Result]):
    """A cache of results by key and node. Answers are the same without it.

    Args:
        capacity: the greatest number of results over all keys, by default MAX_RESULTS; the least recently used keys go first
    """

    def __init__(self, capacity: int | None = None) -> None:
        self._by_key: LruMap[Hashable, _Versioned[_Result]] = LruMap(
            capacity or MAX_RESULTS, lambda cached: 1 + len(cached.by_node)
        )

    def at(self, key: Hashable, version: Sequence[ChangeLog] = ()) -> dict[str, _Result]:
        """Returns the key's results by node that hold at a version. Only `store` changes what the cache has."""
        cached = self._by_key.get(key)
        changed = None if cached is None else nodes_changed_since(cached.version, version)
        if cached is None or changed is None:
            return {}
        by_node = cached.by_node.copy()
        for name in changed:
            by_node.pop(name, None)
        return by_node

    def store(self, key: Hashable, by_node: dict[str, _Result], version: Sequence[ChangeLog] = ()) -> None:
        """Replaces the key's results by those that hold at a version."""
        if by_node:
            self._by_key.put(key, _Versioned(version, by_node))
        else:
            self._by_key.pop(key)
