"""Answers that need no search, which are nearly all of them: each takes about a microsecond. A request checks thousands
of disk profiles against the same items, so whatever depends on the items alone is computed once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from heapq import heapify, heapreplace
from operator import or_
from typing import Final

from scheduler_core.packing.budget import PackingAnswer
from scheduler_core.packing.items import Items

FastCheck = Callable[[tuple[int, ...]], PackingAnswer]
# The subset sums take as long as a dozen greedy attempts, and with competing pods nearly every node has items of its
# own.
_CHECKS_BEFORE_SUMS: Final = 16


@lru_cache(maxsize=64)
def fast_check(items: Items, *, with_sums: bool = True) -> FastCheck:
    """Returns a check for volumes that may use any disk. The check maps the free bytes of a node's disks to an answer.
    UNDECIDED means that a search is needed.
    """
    # A closure, because it runs for every node of the cluster and attribute look-ups were a third of its time.
    largest = items.largest
    total = items.total
    descending = items.descending
    sums: list[int] | None = None
    units: list[tuple[int, int]] = []
    checks = 0
    yes = PackingAnswer.YES
    no = PackingAnswer.NO
    undecided = PackingAnswer.UNDECIDED

    def check(free: tuple[int, ...]) -> PackingAnswer:
        nonlocal sums, units, checks
        most_free = max(free, default=-1)
        if most_free < largest:
            return yes if not descending else no
        if most_free >= total:
            return yes
        # With two disks, an overbooked one only lowers a sum that is too small already.
        usable = free if len(free) == 2 else [capacity for capacity in free if capacity > 0]
        if sum(usable) < total:
            return no
        if sums is None:
            checks += 1
            if checks <= _CHECKS_BEFORE_SUMS and _best_fit_succeeds(descending, free):
                return yes
            sums = items.subset_sums if with_sums else []
            units = [(unit, sum([size // unit for size in descending])) for unit in set(descending) if unit]
        if sums:
            # Two disks: the best packing fills the first with the largest sum it holds.
            if len(free) == 2:
                return yes if total - sums[bisect_right(sums, free[0]) - 1] <= free[1] else no
            # A disk holds at most its largest reachable sum.
            if sum([sums[bisect_right(sums, capacity) - 1] for capacity in usable]) < total:
                return no
        if _best_fit_succeeds(descending, free) or _worst_fit_succeeds(descending, free):
            return yes
        # Counted in units, each disk loses what volumes of about that size cannot use: with a unit above half a disk it counts "one per
        # disk".
        for unit, count in units:
            if sum([capacity // unit for capacity in usable]) < count:
                return no
        return undecided

    return check


def _best_fit_succeeds(descending: Sequence[int], free: Sequence[int]) -> bool:
    capacities = sorted(free)
    for size in descending:
        index = bisect_left(capacities, size)
        if index == len(capacities):
            return False
        insort(capacities, capacities.pop(index) - size)
    return True


def _worst_fit_succeeds(descending: Sequence[int], free: Sequence[int]) -> bool:
    # heapq is a min-heap: negated, the emptiest disk is on top.
    emptiest_first = [-capacity for capacity in free]
    heapify(emptiest_first)
    for size in descending:
        left = -emptiest_first[0] - size
        if left < 0:
            return False
        heapreplace(emptiest_first, -left)
    return True


@lru_cache(maxsize=256)
def fast_restricted_check(items: Items, allowed: tuple[int, ...]) -> FastCheck:
    """`fast_check` for volumes that may use only some disks; `allowed` has a mask of disks for each."""
    # What only one disk can take is subtracted from that disk at once. The answer for the rest is as exact as without
    # restrictions if no masks overlap. That is nearly always so: disks have one tag or two, and a pod's volumes come
    # from few StorageClasses.
    forced: dict[int, int] = {}
    movable: list[tuple[int, int]] = []
    for size, mask in zip(items.sizes, allowed, strict=True):
        if mask.bit_count() == 1:
            disk = mask.bit_length() - 1
            forced[disk] = forced.get(disk, 0) + size
        else:
            movable.append((size, mask))
    masks = {mask for _, mask in movable}
    overlapping = sum(masks) != reduce(or_, masks, 0)
    sizes = [size for size, _ in movable]
    movable_masks = [mask for _, mask in movable]
    # For each mask, the volumes that may use no other disks. The sums for several masks take longer than a search.
    confined = [
        (mask, fast_check(Items([size for size, other in movable if not other & ~mask]), with_sums=len(masks) == 1))
        for mask in masks
    ]

    def check(free: tuple[int, ...]) -> PackingAnswer:
        capacities = list(free)
        for disk, size in forced.items():
            capacities[disk] -= size
            if capacities[disk] < 0:
                return PackingAnswer.NO
        if overlapping and place_greedily(sizes, movable_masks, capacities, choose=min) is not None:
            return PackingAnswer.YES
        answer = PackingAnswer.UNDECIDED if overlapping else PackingAnswer.YES
        for mask, check_confined in confined:
            fits_there = check_confined(
                tuple([room if mask >> disk & 1 else -1 for disk, room in enumerate(capacities)])
            )
            if fits_there is PackingAnswer.NO:
                return fits_there
            if fits_there is PackingAnswer.UNDECIDED:
                answer = fits_there
        return answer

    return check


def place_greedily(
    sizes: Sequence[int],
    masks: Sequence[int],
    free: Sequence[int],
    choose: Callable[[list[tuple[int, int]]], tuple[int, int]],
) -> list[int] | None:
    """A disk per volume, or None, which proves nothing: the most restricted volume, then the largest, goes first."""
    # `choose` takes one of (bytes free, disk) in the order of the disks: `min` is best fit, the first one first fit.
    left = list(free)
    assignment = [-1] * len(sizes)
    for volume in sorted(range(len(sizes)), key=lambda volume: (masks[volume].bit_count(), -sizes[volume])):
        size = sizes[volume]
        mask = masks[volume]
        eligible = [(room, disk) for disk, room in enumerate(left) if room >= size and mask >> disk & 1]
        if not eligible:
            return None
        assignment[volume] = disk = choose(eligible)[1]
        left[disk] -= size
    return assignment
