"""Whether every volume can have a disk: an exact answer, or UNDECIDED when the budget ends first.

This is the package's front door. Questions that need no search are answered by `quick`; the rest go through `solve`,
which reduces them, tries greedy packings and proofs, and then searches. All sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final

from scheduler_core.packing.answer import Answer
from scheduler_core.packing.budget import Budget, OutOfStepsError
from scheduler_core.packing.load import Load
from scheduler_core.packing.quick import Quick, quick_answers, quick_restricted_answers
from scheduler_core.packing.solve import solve

__all__ = ["Answer", "Load", "assign", "fits", "fits_many"]

# No single question may take longer than this, even when the request has more: about 60 ms.
STEPS_PER_QUESTION: Final = 50_000
_STEPS_OF_A_FIRST_LOOK: Final = 1_000

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
) -> list[Answer]:
    """`fits` for many nodes, one answer each, in order; `restrictions` has the `allowed` of each (None: all unrestricted).

    Equal profiles are searched once, and which gets how many steps does not depend on the order of the profiles.
    """
    answers: list[Answer] = []
    hard: list[Question] = []
    quick: dict[tuple[int, ...] | None, Quick] = {}
    for free, allowed in zip(profiles, restrictions if restrictions is not None else repeat(None), strict=False):
        if allowed not in quick:
            quick[allowed] = _quick(load, allowed)
        answers.append(quick[allowed](free))
        if answers[-1] is Answer.UNDECIDED:
            hard.append((free if allowed else tuple(sorted(free)), allowed))
    found = _searched_fairly(load, hard, budget)
    searched = iter(hard)
    return [found[next(searched)] if answer is Answer.UNDECIDED else answer for answer in answers]


def _quick(load: Load, allowed: tuple[int, ...] | None) -> Quick:
    return quick_answers(load) if allowed is None else quick_restricted_answers(load, allowed)


def _searched_fairly(load: Load, questions: Sequence[Question], budget: Budget) -> dict[Question, Answer]:
    """The answers to all questions: first a short look at each, the roomiest profile first, then equal shares of the rest.

    Most are settled by the short look and leave most of it unused. Should the budget not even last for that, the nodes
    most likely to take the pod have been looked at.
    """
    found = dict.fromkeys(questions, Answer.UNDECIDED)
    waiting = sorted(found, key=lambda question: (-sum(question[0]), question[0], question[1] or ()))
    gave_up = budget.gave_up
    for question in waiting:
        portion = budget.portion(_STEPS_OF_A_FIRST_LOOK)
        found[question] = _answer(load, question, portion)
        budget.take_back([portion])
    waiting = [question for question in waiting if found[question] is Answer.UNDECIDED]
    shares = budget.shares(len(waiting))
    for question, share in zip(waiting, shares, strict=True):
        found[question] = _answer(load, question, share)
    budget.take_back(shares)
    budget.gave_up = gave_up + list(found.values()).count(Answer.UNDECIDED)
    return found


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
