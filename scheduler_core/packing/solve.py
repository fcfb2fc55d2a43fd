"""Runs the methods of this package on one packing problem, cheap and successful ones first: presolve, greedy packings,
bounds, exact search, minimum bin slack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scheduler_core.packing.bounds import some_class_overflows, with_reachable_capacities
from scheduler_core.packing.budget import Budget, OutOfStepsError, TooManyPatternsError
from scheduler_core.packing.exact_search import search
from scheduler_core.packing.greedy import greedy_packings
from scheduler_core.packing.minimum_bin_slack import minimum_bin_slack
from scheduler_core.packing.patterns import PatternLimits
from scheduler_core.packing.presolve import (
    DoesNotFitError,
    PartialAssignment,
    components,
    defer_small_items,
    place_deferred,
    place_forced,
)
from scheduler_core.packing.problem import PackingProblem

# What each stage costs per volume; measured.
_PRESOLVE_STEPS: Final = 1
_GREEDY_STEPS: Final = 1
_BOUND_STEPS: Final = 4
# Half of what an instance gets at first.
BRIEF_STEPS: Final = 500
# A few thousand patterns are the search's best size, tens of thousands its last resort: each step then costs ten times
# as much and more of them are needed.
_SMALL_TABLE: Final = PatternLimits(max_partial=30_000, max_complete=6_000)
_LARGE_TABLE: Final = PatternLimits(max_partial=200_000, max_complete=40_000)


def solve(sizes: Sequence[int], masks: Sequence[int], free: Sequence[int], budget: Budget) -> list[int] | None:
    """Returns a disk per volume, or None if infeasible.

    Raises:
        OutOfStepsError: the budget ended before the answer was certain
    """
    budget.charge(len(sizes) * _PRESOLVE_STEPS)
    try:
        partial = place_forced(sizes, masks, free)
    except DoesNotFitError:
        return None
    deferred = defer_small_items(partial)
    undecided = False
    for members in components(partial):
        try:
            if not _solve_component(partial, members, budget):
                return None
        except OutOfStepsError:
            # Another component may still prove that nothing fits.
            undecided = True
    if undecided:
        raise OutOfStepsError
    place_deferred(partial, deferred)
    return partial.assignment


def _solve_component(partial: PartialAssignment, members: list[int], budget: Budget) -> bool:
    mask = 0
    for volume in members:
        mask |= partial.masks[volume]
    disks = [disk for disk in range(len(partial.capacities)) if mask >> disk & 1]
    problem = PackingProblem(partial.sizes, partial.masks, partial.capacities).restrict(members, disks)
    packing = _pack(problem, budget)
    if packing is None:
        return False
    for volume, index in zip(members, packing, strict=True):
        partial.assignment[volume] = disks[index]
        partial.capacities[disks[index]] -= partial.sizes[volume]
    return True


def _pack(problem: PackingProblem, budget: Budget) -> list[int] | None:
    if problem.slack < 0:
        return None
    budget.charge(len(problem.sizes) * _GREEDY_STEPS)
    for packing in greedy_packings(problem):
        if packing is not None:
            return packing
    budget.charge(len(problem.sizes) * _BOUND_STEPS)
    tightened = with_reachable_capacities(problem)
    return None if some_class_overflows(tightened) else _search(tightened, budget)


def _search(problem: PackingProblem, budget: Budget) -> list[int] | None:
    """Searches exactly, as far as the table of patterns allows."""
    # First with a small table, then by filling disks, then with a large table. A brief attempt to fill disks comes
    # first, because it often succeeds before a table is complete. The large table follows only where the small one was
    # too small: it would repeat a search that ran out of steps.
    # A brief attempt to fill disks often succeeds before a table is complete.
    portion = budget.portion(min(BRIEF_STEPS, budget.left // 2))
    packing = minimum_bin_slack(problem, portion)
    budget.take_back([portion])
    if packing is not None:
        return packing
    portion = budget.portion(budget.left * 4 // 5)
    try:
        return search(problem, _SMALL_TABLE, portion)
    except TooManyPatternsError:
        larger_table = _LARGE_TABLE
    # A larger search would only repeat one that ran out of steps.
    except OutOfStepsError:
        larger_table = None
    finally:
        budget.take_back([portion])
    portion = budget.portion(budget.left if larger_table is None else budget.left // 2)
    packing = minimum_bin_slack(problem, portion)
    budget.take_back([portion])
    if packing is not None:
        return packing
    if larger_table is None:
        raise OutOfStepsError
    return search(problem, larger_table, budget)
