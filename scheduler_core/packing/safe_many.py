"""Order safety of many nodes at once: answers only, without the counter-examples."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from scheduler_core.packing.answer import Answer
from scheduler_core.packing.budget import Budget
from scheduler_core.packing.fairly import fairly
from scheduler_core.packing.load import Load
from scheduler_core.packing.order_safe import order_safe
from scheduler_core.steps import Steps

# Seven volumes of different sizes beside the largest one; eight to ten when some sizes repeat.
_MOST_PAIRS: Final = 3_000
_FIRST_LOOK: Final = 100
_QUICK_PER_PAUSE: Final = 256


def order_safe_many(load: Load, profiles: Sequence[tuple[int, ...]], budget: Budget) -> Steps[list[Answer]]:
    """`order_safe` for new volumes that may use any disk, one answer for each profile of free bytes, in order.

    Counting settles most nodes, a table of the load those with two disks, and two quick attempts to shut out the largest
    volume most of the others. Equal profiles are searched once, and which gets how many steps does not depend on
    the order of the profiles. Pauses every now and then.
    """
    quick = _quick(load)
    answers: list[Answer] = []
    for start in range(0, len(profiles), _QUICK_PER_PAUSE):
        answers += [quick(free) for free in profiles[start : start + _QUICK_PER_PAUSE]]
        yield
    hard = [tuple(sorted(free)) for free, answer in zip(profiles, answers, strict=True) if answer is Answer.UNDECIDED]
    ordered = sorted(set(hard), key=lambda free: (-sum(free), free))
    settled = yield from fairly(
        ordered, lambda free, share: order_safe(load, None, free, None, None, share).answer, _FIRST_LOOK, budget
    )
    searched = iter(hard)
    return [settled[next(searched)] if answer is Answer.UNDECIDED else answer for answer in answers]


def _quick(load: Load) -> Callable[[tuple[int, ...]], Answer]:
    """A function from free bytes to what needs no search; UNDECIDED means: search."""
    pairs = _pairs_of_sums(load)
    orders = (load.descending[1:], load.descending[:0:-1])
    largest = load.largest
    enough = load.total - largest
    yes, no, undecided = Answer.YES, Answer.NO, Answer.UNDECIDED

    def answer(free: tuple[int, ...]) -> Answer:
        # counting_says_safe, written out: this runs for every node of the cluster.
        needed = 0
        for room in free:
            if room >= largest:
                needed += room - largest + 1
        if needed > enough or not load.sizes:
            return yes
        if len(free) == 2 and pairs:
            return no if _can_shut_two(pairs, largest, free) else yes
        if any(_greedily_shut(others, largest, sorted(free)) for others in orders):
            return no
        return undecided

    return answer


def _greedily_shut(others: Sequence[int], size: int, free: Sequence[int]) -> bool:
    """Whether taking the others in turn, disk by disk, leaves each with less than `size` bytes; False proves nothing."""
    waiting = others
    for room in free:
        needed = room - size + 1
        if needed > 0:
            kept = []
            for other in waiting:
                # A disk that is still open has room for the largest volume, so for any other.
                if needed > 0:
                    needed -= other
                else:
                    kept.append(other)
            if needed > 0:
                return False
            waiting = kept
    return True


Pairs = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


@lru_cache(maxsize=64)
def _pairs_of_sums(load: Load) -> Pairs | None:
    """What all volumes but the largest can put on two disks: each sum on the one, with the sums then possible on the other.

    Both ascending; None when there are too many pairs. Only the largest volume has to be looked at, because whatever
    shuts out a smaller one also shuts out the largest (see `order_safe`).
    """
    pairs = {(0, 0)}
    for size in load.descending[1:]:
        pairs |= {(one + size, other) for one, other in pairs} | {(one, other + size) for one, other in pairs}
        if len(pairs) > _MOST_PAIRS:
            return None
    beside: dict[int, list[int]] = {}
    for one, other in sorted(pairs):
        beside.setdefault(one, []).append(other)
    return tuple(beside), tuple([tuple(others) for others in beside.values()])


def _can_shut_two(pairs: Pairs, size: int, free: Sequence[int]) -> bool:
    """Whether other volumes can leave each of two disks with less than `size` bytes.

    A disk that is too small for the volume in the first place needs nothing on it.
    """
    sums, beside = pairs
    most = max(free[0], 0)
    low, high = max(free[1] - size + 1, 0), max(free[1], 0)
    at = bisect_left(sums, max(free[0] - size + 1, 0))
    while at < len(sums) and sums[at] <= most:
        others = beside[at]
        place = bisect_left(others, low)
        if place < len(others) and others[place] <= high:
            return True
        at += 1
    return False
