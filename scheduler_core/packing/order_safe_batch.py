"""Order safety of many nodes at once: answers only, without the counter-examples."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Final

from scheduler_core.cooperative import Steps
from scheduler_core.packing.answer import Answer
from scheduler_core.packing.budget import Budget
from scheduler_core.packing.fairly import fairly
from scheduler_core.packing.items import Load
from scheduler_core.packing.order_safe import order_safe

# Seven volumes of different sizes beside the largest one; eight to ten when some sizes repeat.
_MOST_PAIRS: Final = 3_000
_FIRST_LOOK: Final = 100
_QUICK_PER_PAUSE: Final = 256
_TWO: Final = 2
# The table takes milliseconds, a search mostly a fraction of one; beside other pods nearly every node has a load of its own.
_WORTH_A_TABLE: Final = 16


def order_safe_many(load: Load, profiles: Sequence[tuple[int, ...]], budget: Budget) -> Steps[list[Answer]]:
    """`order_safe` for new volumes that may use any disk, one answer for each profile of free bytes, in order.

    Counting settles most nodes, two quick attempts to shut out the largest volume many of the others, and where there are many with
    two disks a table of the load those. Equal profiles are searched once, and which gets how many steps does not
    depend on the order of the profiles. Pauses every now and then.
    """
    answers: list[Answer] = []
    for start in range(0, len(profiles), _QUICK_PER_PAUSE):
        answers += _counted(load, profiles[start : start + _QUICK_PER_PAUSE])
        yield
    open_ = [free for free, answer in zip(profiles, answers, strict=True) if answer is Answer.UNDECIDED]
    settled = yield from _settled(load, {tuple(sorted(free)) for free in open_}, budget)
    searched = iter(open_)
    return [settled[tuple(sorted(next(searched)))] if answer is Answer.UNDECIDED else answer for answer in answers]


def _counted(load: Load, profiles: Sequence[tuple[int, ...]]) -> list[Answer]:
    """YES where counting says so, else UNDECIDED."""
    largest = load.largest
    enough = load.total - largest
    if not load.sizes:
        return [Answer.YES] * len(profiles)
    yes, undecided = Answer.YES, Answer.UNDECIDED
    answers = []
    for free in profiles:
        # counting_says_safe, written out: this runs for every node of the cluster.
        needed = 0
        for room in free:
            if room >= largest:
                needed += room - largest + 1
        answers.append(yes if needed > enough else undecided)
    return answers


def _settled(
    load: Load, profiles: AbstractSet[tuple[int, ...]], budget: Budget
) -> Steps[dict[tuple[int, ...], Answer]]:
    """What counting leaves open, by sorted profile: two attempts to shut the largest volume out, the table, then a search."""
    orders = (load.descending[1:], load.descending[:0:-1])
    found: dict[tuple[int, ...], Answer] = {}
    for count, free in enumerate(profiles, start=1):
        if any(_greedily_shut(others, load.largest, free) for others in orders):
            found[free] = Answer.NO
        if count % _QUICK_PER_PAUSE == 0:
            yield
    two = [free for free in profiles if len(free) == _TWO and free not in found]
    pairs = _pairs_of_sums(load) if len(two) >= _WORTH_A_TABLE else None
    if pairs is not None:
        found |= {free: Answer.NO if _can_shut_two(pairs, load.largest, free) else Answer.YES for free in two}
    ordered = sorted((free for free in profiles if free not in found), key=lambda free: (-sum(free), free))
    searched = yield from fairly(
        ordered, lambda free, share: order_safe(load, None, free, None, None, share).answer, _FIRST_LOOK, budget
    )
    return found | searched


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
