"""Persistent ordered set: a doubly linked list in a persistent map."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rpds import HashTrieMap


@dataclass(frozen=True, slots=True)
class PersistentOrderedSet:
    """Immutable set of non-empty strings in insertion order; any operation is O(log n)."""

    # Each member's neighbours (before, after); "" stands before the first and after the last one.
    links: HashTrieMap[str, tuple[str, str]] = field(default_factory=lambda: HashTrieMap({"": ("", "")}))

    @classmethod
    def of(cls, members: Iterable[str]) -> PersistentOrderedSet:
        ordered = cls()
        for member in members:
            ordered = ordered.add(member)
        return ordered

    @property
    def first(self) -> str:
        """The oldest member, "" in an empty set."""
        return self.links[""][1]

    def add(self, member: str) -> PersistentOrderedSet:
        """Returns the set with `member`, which must not be in it yet, at the end."""
        last = self.links[""][0]
        links = _link(self.links.insert(member, ("", "")), last, member)
        return PersistentOrderedSet(_link(links, member, ""))

    def discard(self, member: str) -> PersistentOrderedSet:
        """Returns the set without `member`; a missing one is ignored."""
        neighbours = self.links.get(member)
        if neighbours is None:
            return self
        before, after = neighbours
        return PersistentOrderedSet(_link(self.links, before, after).remove(member))


def _link(links: HashTrieMap[str, tuple[str, str]], before: str, after: str) -> HashTrieMap[str, tuple[str, str]]:
    links = links.insert(before, (links[before][0], after))
    return links.insert(after, (before, links[after][1]))
