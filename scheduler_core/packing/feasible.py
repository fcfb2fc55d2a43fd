"""Whether the volumes fit the disks together: exactly, or UNDECIDED when the budget ends first.

Callers of the package start here. `fast_path` answers what needs no search. Everything else is searched exactly over
a table of patterns, or, where that would be too large, by filling disks one by one. All sizes are bytes.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import repeat
from math import gcd
from operator import itemgetter, or_
from typing import Final

from scheduler_core.packing.budget import (
    Budget,
    OutOfStepsError,
    PackingAnswer,
    Portions,
    share_fairly,
)
from scheduler_core.packing.exact_search import PackingProblem, fullest_subset, minimum_bin_slack, search
from scheduler_core.packing.fast_path import FastCheck, fast_check, fast_restricted_check, place_greedily
from scheduler_core.packing.items import Items
from scheduler_core.packing.patterns import PatternLimits

__all__ = ["Items", "PackingAnswer", "assign", "fits", "fits_many"]

# Half of what an instance gets at first.
_BRIEF_STEPS: Final = 500
# So few volumes have few patterns: their table is complete sooner than any other attempt.
_FEW_VOLUMES: Final = 10
# So many large volumes still have a small table, however much space the others leave.
_LARGEST_VOLUMES: Final = 12
# Pairs of more masks would take longer than the search.
_MAX_MASKS: Final = 16
# Sums are bits of an integer; beyond this many bits a shift would cost more than the search it saves.
_MAX_UNITS: Final = 1 << 17
# A few thousand patterns are the search's best size, tens of thousands its last resort: each step then costs ten times
# as much and more of them are needed.
_SMALL_TABLE: Final = PatternLimits(max_partial=30_000, max_complete=6_000)
_LARGE_TABLE: Final = PatternLimits(max_partial=200_000, max_complete=40_000)
# No single instance may take longer than this, even when the request has more steps left: about 60 ms.
MAX_STEPS_PER_INSTANCE: Final = _BRIEF_STEPS + 50_000
_PORTIONS: Final = Portions(first=1_000, most=MAX_STEPS_PER_INSTANCE)

# Free bytes of each disk, and the mask of allowed disks for each volume.
Instance = tuple[tuple[int, ...], tuple[int, ...] | None]


def fits(items: Items, free: tuple[int, ...], allowed: tuple[int, ...] | None, budget: Budget) -> PackingAnswer:
    """Whether the volumes fit into the disks' free bytes."""
    # `allowed` has a bit mask of the disks each volume may use, None when every volume may use every disk. A disk that
    # is filled to the last byte is fine; one with less than nothing free takes no volume, not even an empty one.
    answer = _fast_check(items, allowed)(free)
    if answer is not PackingAnswer.UNDECIDED:
        return answer
    return _answer(items, (free, allowed), budget)


def fits_many(
    items: Items,
    profiles: Sequence[tuple[int, ...]],
    budget: Budget,
    restrictions: Sequence[tuple[int, ...] | None] | None = None,
    tried: MutableMapping[Instance, int] | None = None,
) -> list[PackingAnswer]:
    """`fits` for many nodes, one answer per disk profile, in order.

    `restrictions` has the `allowed` of each profile (None: all unrestricted), and `tried` the steps that earlier calls with these items
    spent without an answer (see `share_fairly`). Equal profiles are searched once, and the steps that one gets do not depend on the order
    of the profiles.
    """
    if restrictions is None:
        answers = list(map(fast_check(items), profiles))
    else:
        answers = [_fast_check(items, allowed)(free) for free, allowed in zip(profiles, restrictions, strict=True)]
    # Without restrictions disks are interchangeable, so sorting makes more profiles equal.
    undecided: list[Instance] = [
        (free if allowed else tuple(sorted(free)), allowed)
        for free, allowed, answer in zip(profiles, restrictions or repeat(None), answers, strict=False)
        if answer is PackingAnswer.UNDECIDED
    ]
    ordered = sorted(set(undecided), key=lambda instance: (-sum(instance[0]), instance[0], instance[1] or ()))
    searched = share_fairly(ordered, lambda instance, share: _answer(items, instance, share), _PORTIONS, budget, tried)
    instances = iter(undecided)
    return [searched[next(instances)] if answer is PackingAnswer.UNDECIDED else answer for answer in answers]


def _fast_check(items: Items, allowed: tuple[int, ...] | None) -> FastCheck:
    return fast_check(items) if allowed is None else fast_restricted_check(items, allowed)


def assign(
    items: Items, free: tuple[int, ...], allowed: tuple[int, ...] | None, budget: Budget
) -> tuple[int, ...] | PackingAnswer:
    """A disk index per volume, in the caller's order; NO or UNDECIDED where `fits` says so."""
    if _fast_check(items, allowed)(free) is PackingAnswer.NO:
        return PackingAnswer.NO
    assignment = place_greedily(items.sizes, _masks(items, free, allowed), free, choose=itemgetter(0))
    return _solve(items, free, allowed, budget) if assignment is None else tuple(assignment)


def _masks(items: Items, free: tuple[int, ...], allowed: tuple[int, ...] | None) -> Sequence[int]:
    return ((1 << len(free)) - 1,) * len(items) if allowed is None else allowed


def _answer(items: Items, instance: Instance, budget: Budget) -> PackingAnswer:
    result = _solve(items, *instance, budget)
    return result if isinstance(result, PackingAnswer) else PackingAnswer.YES


def _solve(
    items: Items, free: tuple[int, ...], allowed: tuple[int, ...] | None, budget: Budget
) -> tuple[int, ...] | PackingAnswer:
    portion = budget.portion(MAX_STEPS_PER_INSTANCE)
    try:
        portion.charge(len(items))
        assignment = pack(items.sizes, _masks(items, free, allowed), free, portion)
    except OutOfStepsError:
        budget.gave_up += 1
        return PackingAnswer.UNDECIDED
    finally:
        budget.take_back([portion])
    return PackingAnswer.NO if assignment is None else tuple(assignment)


def pack(sizes: Sequence[int], masks: Sequence[int], free: Sequence[int], budget: Budget) -> list[int] | None:
    """A disk per volume, or None if there is no packing. Searches even where the fast path decides.

    Raises:
        OutOfStepsError: the budget ended before the answer was certain
    """
    left = list(free)
    eligible = list(masks)
    assignment = [-1] * len(sizes)
    waiting = list(range(len(sizes)))
    waiting_before = -1
    while waiting_before != len(waiting):
        waiting_before = len(waiting)
        for volume in list(waiting):
            size = sizes[volume]
            disks = [disk for disk, room in enumerate(left) if eligible[volume] >> disk & 1 and room >= size]
            if not disks:
                return None
            eligible[volume] = sum([1 << disk for disk in disks])
            # A volume without bytes takes no space from the others, so any disk it may use will do.
            if len(disks) == 1 or not size:
                assignment[volume] = disks[0]
                left[disks[0]] -= size
                waiting.remove(volume)
    problem = PackingProblem(sizes, eligible, left)
    if _some_disks_overflow(problem.restrict(waiting, range(len(left)))):
        return None
    while waiting:
        # Volumes that share disks with no others, directly or through others, are a problem of their own.
        used = eligible[waiting[0]]
        while (grown := reduce(or_, [eligible[volume] for volume in waiting if eligible[volume] & used])) != used:
            used = grown
        members = [volume for volume in waiting if eligible[volume] & used]
        disks = [disk for disk in range(len(left)) if used >> disk & 1]
        packing = _search(problem.restrict(members, disks), budget)
        if packing is None:
            return None
        for volume, index in zip(members, packing, strict=True):
            assignment[volume] = disks[index]
            waiting.remove(volume)
    return assignment


def _some_disks_overflow(problem: PackingProblem) -> bool:
    # Volumes that may use no other disks than those of a mask, or of two masks, must fit there.
    masks = set(problem.masks)
    return len(masks) <= _MAX_MASKS and any(
        sum([size for size, mask in zip(problem.sizes, problem.masks, strict=True) if not mask & ~disks])
        > sum([room for disk, room in enumerate(problem.capacities) if disks >> disk & 1])
        for disks in {first | second for first in masks for second in masks}
    )


def _cut_to_reachable(problem: PackingProblem) -> PackingProblem:
    # Bytes above the largest sum that volumes reach on a disk stay free in every packing.
    unit = gcd(*problem.sizes)
    if max(problem.capacities) // unit > _MAX_UNITS:
        return problem
    capacities = []
    for disk, capacity in enumerate(problem.capacities):
        sizes = [problem.sizes[volume] for volume in problem.admissible(disk)]
        capacities.append(sum([sizes[position] for position in fullest_subset(sizes, capacity, unit)]))
    return replace(problem, capacities=capacities)


def _search(problem: PackingProblem, budget: Budget) -> list[int] | None:
    problem = _cut_to_reachable(problem)
    if problem.slack < 0:
        return None
    # Fills disks and searches exactly in turn, each at first with less effort. With many volumes, filling disks often
    # succeeds before a table is complete.
    brief = _BRIEF_STEPS if len(problem.sizes) > _FEW_VOLUMES else 0
    for table, steps, fifths in ((_SMALL_TABLE, brief, 4), (_LARGE_TABLE, budget.left, 5)):
        portion = budget.portion(min(steps, budget.left // 2))
        packing = minimum_bin_slack(problem, portion) if portion.left else None
        budget.take_back([portion])
        if packing is not None:
            return packing
        portion = budget.portion(budget.left * fifths // 5)
        try:
            return search(problem, table, portion)
        except OutOfStepsError:
            if table is _SMALL_TABLE and _largest_do_not_fit(problem, portion):
                return None
        finally:
            budget.take_back([portion])
    raise OutOfStepsError


def _largest_do_not_fit(problem: PackingProblem, budget: Budget) -> bool:
    largest = sorted(range(len(problem.sizes)), key=lambda volume: -problem.sizes[volume])[:_LARGEST_VOLUMES]
    try:
        return search(problem.restrict(largest, range(len(problem.capacities))), _SMALL_TABLE, budget) is None
    except OutOfStepsError:
        return False
