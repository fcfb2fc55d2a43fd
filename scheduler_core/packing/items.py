"""What can be known about a set of volume sizes before any disk is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MOST_SUBSET_SUMS: Final = 1 << 12


class Load:
    """The sizes in bytes (zero or more each) of the volumes that need room together, prepared once per request.

    Thousands of disk profiles are asked about the same load; everything that depends on the sizes alone lives here.
    Two loads are equal when their sizes are, in the caller's order.
    """

    __slots__ = ("_sums", "_sums_known", "descending", "largest", "order", "sizes", "total")

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes: tuple[int, ...] = tuple(sizes)
        if any(size < 0 for size in self.sizes):
            raise ValueError("a volume's size cannot be negative")
        self.order: tuple[int, ...] = tuple(sorted(range(len(self.sizes)), key=lambda i: -self.sizes[i]))
        self.descending: tuple[int, ...] = tuple(self.sizes[i] for i in self.order)
        self.total: int = sum(self.sizes)
        self.largest: int = self.descending[0] if self.descending else 0
        self._sums: list[int] = []
        self._sums_known = False

    def __len__(self) -> int:
        return len(self.sizes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Load) and self.sizes == other.sizes

    def __hash__(self) -> int:
        return hash(self.sizes)

    def __repr__(self) -> str:
        return f"Load({self.sizes!r})"

    @property
    def subset_sums(self) -> list[int]:
        """Every sum some of the volumes can have, ascending; empty when there are more than `MOST_SUBSET_SUMS`.

        Equal sums count once, so sixty volumes of a few common sizes still have a short list.
        """
        if not self._sums_known:
            self._sums = reachable_sums(self.descending)
            self._sums_known = True
        return self._sums


def reachable_sums(sizes: Sequence[int]) -> list[int]:
    """The sums of all subsets, ascending, each once; empty when there are more than `MOST_SUBSET_SUMS`."""
    sums = {0}
    for size in sizes:
        sums |= {known + size for known in sums}
        if len(sums) > MOST_SUBSET_SUMS:
            return []
    return sorted(sums)
