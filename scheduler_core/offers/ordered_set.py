"""A queue whose members may leave from the middle, as an immutable value."""

from __future__ import annotations

from dataclasses import dataclass, field

from rpds import HashTrieMap


@dataclass(frozen=True, slots=True)
class Line:
    """Names in the order they joined, as a ring of (before, after) closed by "": each leaves in O(log)."""

    links: HashTrieMap[str, tuple[str, str]] = field(default_factory=lambda: HashTrieMap({"": ("", "")}))

    @property
    def first(self) -> str:
        """Who joined first, "" if nobody is there."""
        return self.links[""][1]

    def joined(self, uid: str) -> Line:
        """With one more at the end."""
        last = self.links[""][0]
        return Line(_tied(_tied(self.links.insert(uid, ("", "")), last, uid), uid, ""))

    def left(self, uid: str) -> Line:
        """Without one; whoever is not there may leave, too."""
        place = self.links.get(uid)
        return self if place is None else Line(_tied(self.links, *place).remove(uid))


def _tied(links: HashTrieMap[str, tuple[str, str]], before: str, after: str) -> HashTrieMap[str, tuple[str, str]]:
    links = links.insert(before, (links[before][0], after))
    return links.insert(after, (before, links[after][1]))
