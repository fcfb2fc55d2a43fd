"""Answers that need no search, which are nearly all of them: each takes about a microsecond. A request checks thousands
of disk profiles against the same items, so whatever depends on the items alone is computed once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from scheduler_core.packing.budget import PackingAnswer
from scheduler_core.packing.greedy import best_fit_succeeds, worst_fit_succeeds
from scheduler_core.packing.items import Items

FastCheck = Callable[[tuple[int, ...]], PackingAnswer]
# The subset sums take as long as a dozen greedy attempts, and with competing pods nearly every node has items of its
# own.
_CHECKS_BEFORE_SUMS: Final = 16


@lru_cache(maxsize=64)
def fast_check(items: Items) -> FastCheck:
    """Returns a check for volumes that may use any disk. The check maps the free bytes of a node's disks to an answer.
    UNDECIDED means that a search is needed.
    """
    # A closure, because it runs for every node of the cluster and attribute look-ups were a third of its time.
    largest = items.largest
    total = items.total
    descending = items.descending
    sums: list[int] | None = None
    checks = 0
    yes = PackingAnswer.YES
    no = PackingAnswer.NO
    undecided = PackingAnswer.UNDECIDED

    def check(free: tuple[int, ...]) -> PackingAnswer:
        nonlocal sums, checks
        most_free = max(free, default=-1)
        if most_free < largest:
            return yes if not descending else no
        if most_free >= total:
            return yes
        if sums is None:
            checks += 1
            if checks <= _CHECKS_BEFORE_SUMS and best_fit_succeeds(descending, free):
                return yes
            sums = items.subset_sums
        if len(free) == 2:
            first, second = free
            if first + second < total or first < 0 or second < 0:
                return no
            # Two disks: the best packing fills the first with the largest sum it holds.
            if sums:
                return yes if total - sums[bisect_right(sums, first) - 1] <= second else no
        elif _reachable_bytes(free) < total:
            return no
        if best_fit_succeeds(descending, free) or worst_fit_succeeds(descending, free):
            return yes
        return undecided

    def _reachable_bytes(free: tuple[int, ...]) -> int:
        # A disk holds at most its largest reachable sum.
        if sums:
            return sum([sums[bisect_right(sums, capacity) - 1] for capacity in free if capacity > 0])
        return sum([capacity for capacity in free if capacity > 0])

    return check


@lru_cache(maxsize=256)
def fast_restricted_check(items: Items, allowed: tuple[int, ...]) -> FastCheck:
    """`fast_check` for volumes that may use only some disks.

    `allowed` has a mask of disks for each volume. What only one disk can take is subtracted from that disk at once.
    When the remaining volumes all share one mask, the other disks do not exist for them, and the unrestricted answer
    for what is left is exact. That is nearly always so: disks have one tag or two, and a pod's volumes come from few
    StorageClasses.
    """
    no = PackingAnswer.NO
    undecided = PackingAnswer.UNDECIDED
    bytes_by_disk: dict[int, int] = {}
    movable: list[int] = []
    masks: set[int] = set()
    for size, mask in zip(items.sizes, allowed, strict=True):
        if mask.bit_count() == 1:
            disk = mask.bit_length() - 1
            bytes_by_disk[disk] = bytes_by_disk.get(disk, 0) + size
        else:
            movable.append(size)
            masks.add(mask)
    common = masks.pop() if masks else 0
    check_movable = fast_check(Items(movable))
    forced = list(bytes_by_disk.items())

    def check(free: tuple[int, ...]) -> PackingAnswer:
        capacities = list(free)
        for disk, size in forced:
            capacities[disk] -= size
            if capacities[disk] < 0:
                return no
        if not movable:
            return PackingAnswer.YES
        return check_movable(
            tuple([capacity if common >> disk & 1 else -1 for disk, capacity in enumerate(capacities)])
        )

    def leave_undecided(_: tuple[int, ...]) -> PackingAnswer:
        return undecided

    return leave_undecided if masks else check
