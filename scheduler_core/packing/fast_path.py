"""The questions that need no search, and are nearly all of them: each takes about a microsecond.

A request asks about thousands of disk profiles and one load, so whatever depends on the load alone is worked out once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from scheduler_core.packing.answer import Answer
from scheduler_core.packing.greedy import best_fit_succeeds, worst_fit_succeeds
from scheduler_core.packing.items import Load

Quick = Callable[[tuple[int, ...]], Answer]
# The sums take as long as a dozen attempts; beside other pods nearly every node has a load of its own.
_LOOKS_BEFORE_SUMS: Final = 16


@lru_cache(maxsize=64)
def quick_answers(load: Load) -> Quick:
    """A function from free bytes to an answer, for volumes that may use any disk; UNDECIDED means: search.

    It is a closure because it runs for every node of the cluster and attribute look-ups were a third of its time.
    """
    largest, total, descending = load.largest, load.total, load.descending
    sums: list[int] | None = None
    looks = 0
    yes, no, undecided = Answer.YES, Answer.NO, Answer.UNDECIDED

    def answer(free: tuple[int, ...]) -> Answer:
        nonlocal sums, looks
        most = max(free, default=-1)
        if most < largest:
            return yes if not descending else no
        if most >= total:
            return yes
        if sums is None:
            looks += 1
            if looks <= _LOOKS_BEFORE_SUMS and best_fit_succeeds(descending, free):
                return yes
            sums = load.subset_sums
        if len(free) == 2:
            one, other = free
            if one + other < total or one < 0 or other < 0:
                return no
            if sums:
                return yes if total - sums[bisect_right(sums, one) - 1] <= other else no
        elif _reachable(free) < total:
            return no
        if best_fit_succeeds(descending, free) or worst_fit_succeeds(descending, free):
            return yes
        return undecided

    def _reachable(free: tuple[int, ...]) -> int:
        """An upper bound of the bytes that can be placed: on each disk the largest sum it holds."""
        if sums:
            return sum([sums[bisect_right(sums, room) - 1] for room in free if room > 0])
        return sum([room for room in free if room > 0])

    return answer


@lru_cache(maxsize=256)
def quick_restricted_answers(load: Load, allowed: tuple[int, ...]) -> Quick:
    """The same for volumes with a mask each of the disks they may use.

    What only one disk can take is taken off that disk at once. When the rest all share one mask, the other disks do not
    exist for them, and the unrestricted answer on what is left is exact. That is nearly always so: disks have one tag or
    two, and a pod's volumes come from few StorageClasses.
    """
    no, undecided = Answer.NO, Answer.UNDECIDED
    fixed: dict[int, int] = {}
    shared: list[int] = []
    masks: set[int] = set()
    for size, mask in zip(load.sizes, allowed, strict=True):
        if mask.bit_count() == 1:
            disk = mask.bit_length() - 1
            fixed[disk] = fixed.get(disk, 0) + size
        else:
            shared.append(size)
            masks.add(mask)
    common = masks.pop() if masks else 0
    rest = quick_answers(Load(shared))
    taken = list(fixed.items())

    def answer(free: tuple[int, ...]) -> Answer:
        rooms = list(free)
        for disk, size in taken:
            rooms[disk] -= size
            if rooms[disk] < 0:
                return no
        if not shared:
            return Answer.YES
        return rest(tuple([room if common >> disk & 1 else -1 for disk, room in enumerate(rooms)]))

    def unknown(_: tuple[int, ...]) -> Answer:
        return undecided

    return unknown if masks else answer
