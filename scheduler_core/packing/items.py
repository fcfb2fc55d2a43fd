"""Sizes of the volumes to pack, prepared once for thousands of nodes, and those of volumes that may be in their way."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from scheduler_core.structs import Struct

# Twelve volumes of unlike sizes have so many sums, and each further one doubles them.
MAX_SUBSET_SUMS = 1 << 12


class Items:
    """Sizes of volumes to be packed together. Sizes are bytes, zero or more each. Thousands of disk profiles are
    checked against the same items, so everything that depends on the sizes alone is computed here, once per request.
    Items are equal when their sizes are, in the caller's order.
    """

    __slots__ = ("_ascending", "_cumulated", "_sums", "descending", "largest", "sizes", "total")

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes: tuple[int, ...] = tuple(sizes)
        if any(size < 0 for size in self.sizes):
            raise ValueError("a volume's size cannot be negative")
        self.descending: tuple[int, ...] = tuple(sorted(self.sizes, reverse=True))
        self.total: int = sum(self.sizes)
        self.largest: int = self.descending[0] if self.descending else 0
        self._ascending: tuple[int, ...] = self.descending[::-1]
        self._cumulated: tuple[int, ...] = ()
        self._sums: list[int] | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Items) and self.sizes == other.sizes

    def __hash__(self) -> int:
        return hash(self.sizes)

    def bytes_up_to(self, limit: int) -> int:
        if not self._cumulated:
            self._cumulated = (0, *accumulate(self._ascending))
        return self._cumulated[bisect_right(self._ascending, limit)]

    @property
    def subset_sums(self) -> list[int]:
        """Sums of all subsets, ascending; empty above `MAX_SUBSET_SUMS`."""
        if self._sums is None:
            # Equal sums count once, so sixty volumes of a few common sizes still have a short list.
            self._sums = reachable_sums(self.descending)
        return self._sums


class OptionalItems(Struct, frozen=True):
    """Replicas that Longhorn may place on the disks or elsewhere: they can block an item, and are never blocked."""

    sizes: tuple[int, ...] = ()  # bytes of each
    written: tuple[int, ...] = ()  # bytes that the rebuild of each writes, 0 for a new replica
    spread: tuple[int, ...] = ()  # for each the number of its volume if no disk takes two replicas of it, otherwise -1
    # For each the bit mask of the disks that are open to it; None for every disk.
    allowed: tuple[int, ...] | None = None

    @property
    def on_one_disk(self) -> tuple[int, ...]:
        """The most of them that one disk may take, by index."""
        first = {volume: index for index, volume in reversed(list(enumerate(self.spread)))}
        return tuple(index for index, volume in enumerate(self.spread) if volume < 0 or first[volume] == index)


NO_OPTIONAL_ITEMS = OptionalItems()


def reachable_sums(sizes: Sequence[int]) -> list[int]:
    """Distinct sums of all subsets, ascending; empty above `MAX_SUBSET_SUMS`. Equal sizes count in groups of 1, 2, 4,
    ... and a remainder, which have the same sums as the sizes one by one.
    """
    sums = {0}
    for size, count in Counter(sizes).items():
        remaining = count
        group = 1
        while remaining:
            group = min(group, remaining)
            together = group * size
            sums |= {smaller + together for smaller in sums}
            if len(sums) > MAX_SUBSET_SUMS:
                return []
            remaining -= group
            group *= 2
    return sorted(sums)
