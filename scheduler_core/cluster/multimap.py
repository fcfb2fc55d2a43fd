"""Groups of values per key, in a persistent map: a group is a tuple in a fixed order, and a key without members is
absent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from rpds import HashTrieMap

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def group_by_key(
    pairs: Iterable[tuple[_Key, _Value]], order: Callable[[_Value], Any]
) -> dict[_Key, tuple[_Value, ...]]:
    groups: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return {key: tuple(sorted(values, key=order)) for key, values in groups.items()}


def add_member(
    groups: HashTrieMap[_Key, tuple[_Value, ...]], key: _Key, member: _Value, order: Callable[[_Value], Any]
) -> HashTrieMap[_Key, tuple[_Value, ...]]:
    """Returns the groups with one more member, sorted by `order`."""
    return groups.insert(key, tuple(sorted((*(groups.get(key) or ()), member), key=order)))


def discard_member(
    groups: HashTrieMap[_Key, tuple[_Value, ...]], key: _Key, member: _Value
) -> HashTrieMap[_Key, tuple[_Value, ...]]:
    """Returns the groups without the members equal to `member`; an unknown key is ignored."""
    return put(groups, key, tuple(entry for entry in groups.get(key) or () if entry != member) or None)


def put(entries: HashTrieMap[_Key, _Value], key: _Key, value: _Value | None) -> HashTrieMap[_Key, _Value]:
    """Returns the map with this value, or without the key if the value is None."""
    return entries.discard(key) if value is None else entries.insert(key, value)
