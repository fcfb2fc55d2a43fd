"""The order in which the ideas of this package are tried on one question: what is cheap and often enough goes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scheduler_core.packing.bounds import some_class_overflows, with_usable_rooms
from scheduler_core.packing.budget import Budget, OutOfStepsError, TooManyFillsError
from scheduler_core.packing.exact_search import search
from scheduler_core.packing.greedy import attempts
from scheduler_core.packing.minimum_bin_slack import refill
from scheduler_core.packing.patterns import Limits
from scheduler_core.packing.presolve import Case, DoesNotFitError, components, opened, put_back, set_aside_small
from scheduler_core.packing.subproblem import Part

# What each stage costs per volume; measured.
_STEPS_TO_REDUCE: Final = 1
_STEPS_TO_TRY: Final = 1
_STEPS_TO_PROVE: Final = 4
# A few thousand fills are the search's best size, tens of thousands its last resort: each step then costs ten times as
# much and more of them are needed.
_FEW_FILLS: Final = Limits(looked_at=30_000, kept=6_000)
_MANY_FILLS: Final = Limits(looked_at=200_000, kept=40_000)


def solve(sizes: Sequence[int], masks: Sequence[int], free: Sequence[int], budget: Budget) -> list[int] | None:
    """A disk for every volume, or None when no packing exists.

    Raises:
        OutOfStepsError: the budget ended before either was known
    """
    budget.charge(len(sizes) * _STEPS_TO_REDUCE)
    try:
        case = opened(sizes, masks, free)
    except DoesNotFitError:
        return None
    aside = set_aside_small(case)
    undecided = False
    for members in components(case):
        try:
            if not _solve_component(case, members, budget):
                return None
        except OutOfStepsError:
            # Another component may still prove that nothing fits.
            undecided = True
    if undecided:
        raise OutOfStepsError
    put_back(case, aside)
    return case.picked


def _solve_component(case: Case, members: list[int], budget: Budget) -> bool:
    """Place the members of one component; False when they do not fit."""
    area = 0
    for volume in members:
        area |= case.masks[volume]
    disks = [disk for disk in range(len(case.rooms)) if area >> disk & 1]
    found = _pack(Part(case.sizes, case.masks, case.rooms).narrowed(members, disks), budget)
    if found is None:
        return False
    for volume, at in zip(members, found, strict=True):
        case.picked[volume] = disks[at]
        case.rooms[disks[at]] -= case.sizes[volume]
    return True


def _pack(part: Part, budget: Budget) -> list[int] | None:
    """The ladder for volumes that have to be searched together."""
    if part.slack < 0:
        return None
    budget.charge(len(part.sizes) * _STEPS_TO_TRY)
    for found in attempts(part):
        if found is not None:
            return found
    budget.charge(len(part.sizes) * _STEPS_TO_PROVE)
    tight = with_usable_rooms(part)
    return None if some_class_overflows(tight) else _searched(tight, budget)


def _searched(part: Part, budget: Budget) -> list[int] | None:
    """Exact search where it is small; else try to shrink it by filling disks first; else search at any size.

    The larger search would only repeat a small one that ran out of steps, so it follows only where that never began.
    """
    portion = budget.portion(budget.left * 4 // 5)
    try:
        return search(part, _FEW_FILLS, portion)
    except TooManyFillsError:
        larger = _MANY_FILLS
    except OutOfStepsError:
        larger = None
    finally:
        budget.take_back([portion])
    portion = budget.portion(budget.left if larger is None else budget.left // 2)
    found = refill(part, portion)
    budget.take_back([portion])
    if found is not None:
        return found
    if larger is None:
        raise OutOfStepsError
    return search(part, larger, budget)
