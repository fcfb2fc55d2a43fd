"""Greedy packings: a success is a proof, a failure proves nothing."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heapreplace
from typing import Protocol

from scheduler_core.packing.problem import PackingProblem


class DiskSelector(Protocol):
    """Selects an eligible disk by its free bytes. `min` selects the disk with the least free bytes (best fit), `max`
    the one with the most (worst fit).
    """

    def __call__(self, eligible: list[int], /, *, key: Callable[[int], int]) -> int:
        """Returns the disk to use."""


def best_fit_succeeds(descending: Sequence[int], free: Sequence[int]) -> bool:
    """Whether best fit decreasing places all volumes. Each volume, largest first, goes to the fullest disk that still
    takes it.
    """
    capacities = sorted(free)
    for size in descending:
        index = bisect_left(capacities, size)
        if index == len(capacities):
            return False
        insort(capacities, capacities.pop(index) - size)
    return True


def worst_fit_succeeds(descending: Sequence[int], free: Sequence[int]) -> bool:
    """Whether worst fit decreasing places all volumes. Each volume, largest first, goes to the emptiest disk."""
    # heapq is a min-heap: negated, the emptiest disk is on top.
    emptiest_first = [-capacity for capacity in free]
    heapify(emptiest_first)
    for size in descending:
        left = -emptiest_first[0] - size
        if left < 0:
            return False
        heapreplace(emptiest_first, -left)
    return True


def place_in_order(problem: PackingProblem, order: Sequence[int], select: DiskSelector) -> list[int] | None:
    """Places volumes in `order`; None when one finds no disk."""
    capacities = list(problem.capacities)
    assignment = [-1] * len(problem.sizes)
    for volume in order:
        size = problem.sizes[volume]
        mask = problem.masks[volume]
        eligible = [disk for disk, capacity in enumerate(capacities) if capacity >= size and mask >> disk & 1]
        if not eligible:
            return None
        disk = select(eligible, key=capacities.__getitem__)
        capacities[disk] -= size
        assignment[volume] = disk
    return assignment


def greedy_packings(problem: PackingProblem) -> Iterator[list[int] | None]:
    """Results of best fit and worst fit in several orders. The orders are largest first and, where restrictions differ,
    most restricted first.
    """
    largest_first = sorted(range(len(problem.sizes)), key=lambda volume: -problem.sizes[volume])
    yield place_in_order(problem, largest_first, min)
    yield place_in_order(problem, largest_first, max)
    if problem.is_restricted:
        most_restricted_first = sorted(largest_first, key=lambda volume: problem.masks[volume].bit_count())
        yield place_in_order(problem, most_restricted_first, min)
        yield place_in_order(problem, most_restricted_first, max)
