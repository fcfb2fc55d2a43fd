"""Whether every volume can have a disk: an exact answer, or UNDECIDED when the budget ends first.

This is the package's front door. Questions that need no search are answered by `quick`; the rest go through `solve`,
which reduces them, tries greedy packings and proofs, and then searches. All sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final

from scheduler_core.cooperative import Steps
from scheduler_core.packing.answer import Answer
from scheduler_core.packing.budget import Budget, OutOfStepsError
from scheduler_core.packing.fairly import fairly
from scheduler_core.packing.fast_path import Quick, quick_answers, quick_restricted_answers
from scheduler_core.packing.items import Load
from scheduler_core.packing.solve import solve

__all__ = ["Answer", "Load", "assign", "fits", "fits_many"]

# No single question may take longer than this, even when the request has more: about 60 ms.
STEPS_PER_QUESTION: Final = 50_000
_FIRST_LOOK: Final = 1_000
_QUICK_PER_PAUSE: Final = 256

Question = tuple[tuple[int, ...], tuple[int, ...] | None]


def fits(load: Load, free: tuple[int, ...], allowed: tuple[int, ...] | None, budget: Budget) -> Answer:
    """Whether there is a disk for every volume so that no disk holds more than its free bytes.

    `allowed` has a bit mask of the disks each volume may use, None when every volume may use every disk. A disk that is
    filled to the last byte is fine; one with less than nothing free takes no volume, not even an empty one.
    """
    answer = _quick(load, allowed)(free)
    if answer is not Answer.UNDECIDED:
        return answer
    return _answer(load, (free, allowed), budget)


def fits_many(
    load: Load,
    profiles: Sequence[tuple[int, ...]],
    budget: Budget,
    restrictions: Sequence[tuple[int, ...] | None] | None = None,
) -> Steps[list[Answer]]:
    """`fits` for many nodes, one answer each, in order; `restrictions` has the `allowed` of each (None: all unrestricted).

    Equal profiles are searched once, and which gets how many steps does not depend on the order of the profiles. Pauses
    every now and then.
    """
    answers: list[Answer] = []
    for start in range(0, len(profiles), _QUICK_PER_PAUSE):
        some = profiles[start : start + _QUICK_PER_PAUSE]
        if restrictions is None:
            quick = quick_answers(load)
            answers += [quick(free) for free in some]
        else:
            answers += [
                _quick(load, allowed)(free)
                for free, allowed in zip(some, restrictions[start : start + _QUICK_PER_PAUSE], strict=True)
            ]
        yield
    hard: list[Question] = [
        (free if allowed else tuple(sorted(free)), allowed)
        for free, allowed, answer in zip(profiles, restrictions or repeat(None), answers, strict=False)
        if answer is Answer.UNDECIDED
    ]
    ordered = sorted(set(hard), key=lambda question: (-sum(question[0]), question[0], question[1] or ()))
    found = yield from fairly(ordered, lambda question, share: _answer(load, question, share), _FIRST_LOOK, budget)
    searched = iter(hard)
    return [found[next(searched)] if answer is Answer.UNDECIDED else answer for answer in answers]


def _quick(load: Load, allowed: tuple[int, ...] | None) -> Quick:
    return quick_answers(load) if allowed is None else quick_restricted_answers(load, allowed)


def _answer(load: Load, question: Question, budget: Budget) -> Answer:
    found = _solved(load, *question, budget)
    return found if isinstance(found, Answer) else Answer.YES


def assign(
    load: Load, free: tuple[int, ...], allowed: tuple[int, ...] | None, budget: Budget
) -> tuple[int, ...] | Answer:
    """A disk for every volume, by index and in the caller's order; NO or UNDECIDED where `fits` says so."""
    return _solved(load, free, allowed, budget)


def _solved(
    load: Load, free: tuple[int, ...], allowed: tuple[int, ...] | None, budget: Budget
) -> tuple[int, ...] | Answer:
    """The ladder of `solve`, within this question's part of the budget."""
    everywhere = (1 << len(free)) - 1
    masks = [everywhere] * len(load) if allowed is None else allowed
    portion = budget.portion(STEPS_PER_QUESTION)
    try:
        picked = solve(load.sizes, masks, free, portion)
    except OutOfStepsError:
        budget.gave_up += 1
        return Answer.UNDECIDED
    finally:
        budget.take_back([portion])
    return Answer.NO if picked is None else tuple(picked)
