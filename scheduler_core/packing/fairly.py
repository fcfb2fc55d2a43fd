"""Dividing one request's steps among the many nodes it asks about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from scheduler_core.cooperative import Steps
from scheduler_core.packing.answer import Answer
from scheduler_core.packing.budget import Budget

_Question = TypeVar("_Question")


def fairly(
    questions: Sequence[_Question], ask: Callable[[_Question, Budget], Answer], first_look: int, budget: Budget
) -> Steps[dict[_Question, Answer]]:
    """The answers to all questions: a look of `first_look` steps at each, in order, then equal shares of what is left.

    Most are settled by the first look and leave most of it unused; should the budget not even last for that, the first
    questions have been looked at, so they should be those most likely to be answered YES. The caller orders the
    questions by what they ask, never by who asks, so that no answer depends on the order of the nodes. Pauses after
    each search.
    """
    found = dict.fromkeys(questions, Answer.UNDECIDED)
    gave_up = budget.gave_up
    for question in found:
        portion = budget.portion(first_look)
        found[question] = ask(question, portion)
        budget.take_back([portion])
        yield
    waiting = [question for question, answer in found.items() if answer is Answer.UNDECIDED]
    shares = budget.shares(len(waiting))
    for question, share in zip(waiting, shares, strict=True):
        found[question] = ask(question, share)
        yield
    budget.take_back(shares)
    budget.gave_up = gave_up + list(found.values()).count(Answer.UNDECIDED)
    return found
