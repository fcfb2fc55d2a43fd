"""The search budget of a request: counted steps, divided fairly among searches, and the three answers of a search.

Steps are counted so that the same input always gets the same answer: a clock would make answers depend on the
machine's load. A step is one element operation of a search (about 1 µs of CPython 3.11 on the reference machine).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final, TypeVar

from scheduler_core.cooperative import Cooperative

# Keeps a request's searching below the 300 ms that all of its evaluation may take.
STEPS_PER_REQUEST: Final = 150_000

_Instance = TypeVar("_Instance")


class PackingAnswer(Enum):
    """Result of a bounded search.

    UNDECIDED means that the budget ended first; an answer is never a guess.
    """

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


class OutOfStepsError(Exception):
    """A search ran out of steps.

    Callers of the package get UNDECIDED instead.
    """


class TooManyPatternsError(OutOfStepsError):
    """A search needs too large a table of patterns and did not start."""


class Budget:
    """Steps left, and the number of searches that gave up.

    One request's budget is divided with `shares` among the disk profiles that need a search: the steps for one profile
    must not depend on the profiles searched before it.
    """

    __slots__ = ("gave_up", "left")

    def __init__(self, steps: int = STEPS_PER_REQUEST) -> None:
        self.left = max(0, steps)
        self.gave_up = 0

    def spend(self, steps: int) -> bool:
        """Takes steps off; False, with nothing left, if too few are left."""
        self.left -= steps
        if self.left >= 0:
            return True
        self.left = 0
        return False

    def charge(self, steps: int) -> None:
        """Takes steps off.

        Raises:
            OutOfStepsError: fewer steps than that were left; nothing is left now
        """
        if not self.spend(steps):
            raise OutOfStepsError

    def portion(self, steps: int) -> Budget:
        """Cuts off at most `steps`, to be returned with `take_back`."""
        portion = Budget(min(steps, self.left))
        self.left -= portion.left
        return portion

    def shares(self, parts: int) -> list[Budget]:
        """Divides all steps equally, to be returned with `take_back`."""
        steps = self.left // max(1, parts)
        self.left -= steps * parts
        return [Budget(steps) for _ in range(parts)]

    def take_back(self, shares: Iterable[Budget]) -> None:
        """Takes back the unused steps and adds up `gave_up`."""
        for share in shares:
            self.left += share.left
            self.gave_up += share.gave_up
            share.left = 0
            share.gave_up = 0


def share_fairly(
    instances: Sequence[_Instance],
    solve: Callable[[_Instance, Budget], PackingAnswer],
    first_portion: int,
    budget: Budget,
) -> Cooperative[dict[_Instance, PackingAnswer]]:
    """Solves all instances, dividing the budget fairly among them.

    Each instance first gets `first_portion` steps, in order; the undecided ones then get equal shares of what is left.
    Most are decided by the first portion and leave most of it unused. Should the budget not even last for all first
    portions, the first instances have had theirs, so the instances most likely to be answered YES should come first.
    The caller orders the instances by their content, never by node, so that no answer depends on the order of the
    nodes. Pauses after each search.
    """
    answers = dict.fromkeys(instances, PackingAnswer.UNDECIDED)
    gave_up = budget.gave_up
    for instance in answers:
        portion = budget.portion(first_portion)
        answers[instance] = solve(instance, portion)
        budget.take_back([portion])
        yield
    undecided = [instance for instance, answer in answers.items() if answer is PackingAnswer.UNDECIDED]
    shares = budget.shares(len(undecided))
    for instance, share in zip(undecided, shares, strict=True):
        answers[instance] = solve(instance, share)
        yield
    budget.take_back(shares)
    # An instance that both searches left undecided counts once.
    budget.gave_up = gave_up + list(answers.values()).count(PackingAnswer.UNDECIDED)
    return answers
