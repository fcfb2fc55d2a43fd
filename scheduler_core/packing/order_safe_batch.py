"""Order safety of many nodes at once: answers only, without counter-examples."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Final

from scheduler_core.packing.budget import Budget, PackingAnswer, Portions, share_fairly
from scheduler_core.packing.items import Items
from scheduler_core.packing.order_safe import MAX_STEPS_PER_NODE, order_safe

# Seven volumes of different sizes in addition to the largest one; eight to ten when some sizes repeat.
_MAX_PAIRS: Final = 3_000
_PORTIONS: Final = Portions(first=100, most=MAX_STEPS_PER_NODE)
_TABLE_DISKS: Final = 2
# The table takes milliseconds, a search mostly a fraction of one; with competing pods nearly every node has items of
# its own.
_MIN_PROFILES_FOR_TABLE: Final = 16


def order_safe_many(
    items: Items,
    profiles: Sequence[tuple[int, ...]],
    budget: Budget,
    tried: MutableMapping[tuple[int, ...], int] | None = None,
) -> list[PackingAnswer]:
    """`order_safe` for many nodes and unrestricted new volumes, one answer for each profile of free bytes, in order.

    Counting decides most nodes. Two greedy attempts to block the largest volume, and a table of the items' sums where
    many nodes have two disks, decide many of the others. Equal profiles are searched once, and the steps that one gets
    do not depend on the order of the profiles. `tried` has the steps that earlier calls with these items spent without
    an answer (see `share_fairly`).
    """
    answers = _check_by_counting(items, profiles)
    undecided = [free for free, answer in zip(profiles, answers, strict=True) if answer is PackingAnswer.UNDECIDED]
    decided = _decide(items, {tuple(sorted(free)) for free in undecided}, budget, tried)
    searched = iter(undecided)
    return [
        decided[tuple(sorted(next(searched)))] if answer is PackingAnswer.UNDECIDED else answer for answer in answers
    ]


def _check_by_counting(items: Items, profiles: Sequence[tuple[int, ...]]) -> list[PackingAnswer]:
    """YES where counting proves safety, else UNDECIDED."""
    largest = items.largest
    enough = items.total - largest
    if not items.sizes:
        return [PackingAnswer.YES] * len(profiles)
    yes = PackingAnswer.YES
    undecided = PackingAnswer.UNDECIDED
    answers = []
    for free in profiles:
        # `order_safe.counting_proves_safe`, inlined for speed: this is the hot loop over thousands of profiles.
        needed = 0
        for capacity in free:
            if capacity >= largest:
                needed += capacity - largest + 1
        answers.append(yes if needed > enough else undecided)
    return answers


def _decide(
    items: Items,
    profiles: AbstractSet[tuple[int, ...]],
    budget: Budget,
    tried: MutableMapping[tuple[int, ...], int] | None,
) -> dict[tuple[int, ...], PackingAnswer]:
    """Answers for the sorted profiles that counting leaves undecided."""
    # Two greedy attempts to block the largest volume come first, then the table for two disks, then a search.
    orders = (items.descending[1:], items.descending[:0:-1])
    answers: dict[tuple[int, ...], PackingAnswer] = {}
    for free in profiles:
        if any(_blocks_greedily(others, items.largest, free) for others in orders):
            answers[free] = PackingAnswer.NO
    two_disks = [free for free in profiles if len(free) == _TABLE_DISKS and free not in answers]
    pairs = _sum_pairs(items) if len(two_disks) >= _MIN_PROFILES_FOR_TABLE else None
    if pairs is not None:
        answers |= {
            free: PackingAnswer.NO if _can_block_two(pairs, items.largest, free) else PackingAnswer.YES
            for free in two_disks
        }
    ordered = sorted((free for free in profiles if free not in answers), key=lambda free: (-sum(free), free))
    searched = share_fairly(
        ordered, lambda free, share: order_safe(items, None, free, None, None, share).answer, _PORTIONS, budget, tried
    )
    return answers | searched


def _blocks_greedily(others: Sequence[int], size: int, free: Sequence[int]) -> bool:
    """Whether greedy filling blocks a volume; False proves nothing."""
    # The others are taken in turn, disk by disk, until each disk has less than `size` bytes left.
    waiting = others
    for capacity in free:
        needed = capacity - size + 1
        if needed > 0:
            unused = []
            for other in waiting:
                # A disk that is still open has room for the largest volume, so for any other.
                if needed > 0:
                    needed -= other
                else:
                    unused.append(other)
            if needed > 0:
                return False
            waiting = unused
    return True


# Sums on the first disk, and for each of them the sums then possible on the second.
SumPairs = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


@lru_cache(maxsize=64)
def _sum_pairs(items: Items) -> SumPairs | None:
    """Pairs of sums that all volumes but the largest can have on two disks, ascending; None above `_MAX_PAIRS`."""
    # Only the largest volume has to be considered: what blocks a smaller one also blocks the largest (see `order_safe`).
    pairs = {(0, 0)}
    for size in items.descending[1:]:
        pairs |= {(first + size, second) for first, second in pairs} | {
            (first, second + size) for first, second in pairs
        }
        if len(pairs) > _MAX_PAIRS:
            return None
    seconds_by_first: dict[int, list[int]] = {}
    for first, second in sorted(pairs):
        seconds_by_first.setdefault(first, []).append(second)
    return tuple(seconds_by_first), tuple([tuple(seconds) for seconds in seconds_by_first.values()])


def _can_block_two(pairs: SumPairs, size: int, free: Sequence[int]) -> bool:
    """Whether two disks can be blocked for a volume."""
    # They are blocked when the others leave less than `size` bytes on each. A disk that is too small for the volume is
    # blocked already.
    firsts, seconds_by_index = pairs
    max_first = max(free[0], 0)
    min_second = max(free[1] - size + 1, 0)
    max_second = max(free[1], 0)
    index = bisect_left(firsts, max(free[0] - size + 1, 0))
    while index < len(firsts) and firsts[index] <= max_first:
        seconds = seconds_by_index[index]
        position = bisect_left(seconds, min_second)
        if position < len(seconds) and seconds[position] <= max_second:
            return True
        index += 1
    return False
