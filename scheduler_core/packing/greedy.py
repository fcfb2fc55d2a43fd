"""Quick attempts at a packing: a success is a proof, a failure proves nothing."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heapreplace
from typing import Protocol

from scheduler_core.packing.subproblem import Part


class Rule(Protocol):
    """`min` takes the eligible disk with the least room left (best fit), `max` the one with the most (worst fit)."""

    def __call__(self, eligible: list[int], /, *, key: Callable[[int], int]) -> int:
        """The disk to use."""


def best_fit_succeeds(descending: Sequence[int], free: Sequence[int]) -> bool:
    """Whether giving each volume, largest first, the fullest disk that still takes it places them all."""
    rooms = sorted(free)
    for size in descending:
        at = bisect_left(rooms, size)
        if at == len(rooms):
            return False
        insort(rooms, rooms.pop(at) - size)
    return True


def worst_fit_succeeds(descending: Sequence[int], free: Sequence[int]) -> bool:
    """Whether giving each volume, largest first, the emptiest disk places them all."""
    emptiest_first = [-room for room in free]
    heapify(emptiest_first)
    for size in descending:
        left = -emptiest_first[0] - size
        if left < 0:
            return False
        heapreplace(emptiest_first, -left)
    return True


def place(part: Part, order: Sequence[int], rule: Rule) -> list[int] | None:
    """A disk for every volume, taken in `order`, the disk chosen by `rule`; None when a volume finds no disk."""
    left = list(part.rooms)
    picked = [-1] * len(part.sizes)
    for volume in order:
        size = part.sizes[volume]
        mask = part.masks[volume]
        eligible = [disk for disk, room in enumerate(left) if room >= size and mask >> disk & 1]
        if not eligible:
            return None
        disk = rule(eligible, key=left.__getitem__)
        left[disk] -= size
        picked[volume] = disk
    return picked


def attempts(part: Part) -> Iterator[list[int] | None]:
    """The packings found by best fit and by worst fit, in the orders that matter."""
    largest_first = sorted(range(len(part.sizes)), key=lambda volume: -part.sizes[volume])
    yield place(part, largest_first, min)
    yield place(part, largest_first, max)
    if part.restricted:
        pickiest_first = sorted(largest_first, key=lambda volume: part.masks[volume].bit_count())
        yield place(part, pickiest_first, min)
        yield place(part, pickiest_first, max)
