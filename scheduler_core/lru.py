"""A least-recently-used map with a capacity in weights.

An entry's weight is measured whenever it is stored, so an entry that grew is stored again. cachetools does the same for its LRUCache,
but cannot be copied in order and refuses an entry heavier than the capacity; both are needed here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def _one(_value: object) -> int:
    return 1


class LruMap(Generic[_Key, _Value]):
    """Maps keys to values and evicts the least recently used ones beyond its capacity.

    Args:
        capacity: the greatest sum of weights; the entry stored last stays whatever its weight
        weight: the weight of a value; by default every value weighs 1
        on_evict: called with each key that is evicted
    """

    def __init__(
        self,
        capacity: int,
        weight: Callable[[_Value], int] = _one,
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
        """Removes a value and returns it, None if there is none."""
        value = self._entries.pop(key, None)
        self._total -= self._weights.pop(key, 0)
        return value

    def clear(self) -> None:
        """Removes everything."""
        self._entries.clear()
        self._weights.clear()
        self._total = 0

    def copy(self) -> LruMap[_Key, _Value]:
        """Returns an independent map with the same entries in the same order."""
        twin = LruMap(self._capacity, self._weight, self._on_evict)
        twin._entries = self._entries.copy()
        twin._weights = self._weights.copy()
        twin._total = self._total
        return twin

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._entries)
