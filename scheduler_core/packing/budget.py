"""The search budget of a request, in counted steps, divided fairly among searches. A search has three answers.

Steps are counted so that the same input always gets the same answer: a clock would make answers depend on the
machine's load. A step is one element operation of a search (about 1 µs of CPython 3.11 on the reference machine).

A computation calls `give_way` every few milliseconds, where what it has stored in caches is whole. The program that runs it decides what
happens there (`app/runtime/decision_thread.py`); by default nothing does. No result depends on it.
"""

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import NamedTuple, TypeVar

_act: ContextVar[Callable[[], None]] = ContextVar("give_way", default=lambda: None)


def give_way() -> None:
    _act.get()()


@contextmanager
def giving_way(act: Callable[[], None]) -> Iterator[None]:
    """What the block computes calls `act` wherever it gives way."""
    token = _act.set(act)
    try:
        yield
    finally:
        _act.reset(token)


# Keeps a request's searching below the 300 ms that all of its evaluation may take.
STEPS_PER_REQUEST = 150_000

# A search with fewer times the steps that did not suffice would mostly repeat what was tried.
_WORTHWHILE = 4
_GROWTH = 16

_Instance = TypeVar("_Instance")


class PackingAnswer(Enum):
    """Result of a bounded search. UNDECIDED means that the budget ended first; no answer is a guess."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


class OutOfStepsError(Exception):
    """A search ran out of steps, or its table would get too large. Callers of the package get UNDECIDED instead."""


class Budget:
    """Steps left, and the number of searches that gave up. One request's budget is divided with `shares` among the disk
    profiles that need a search: the steps for one profile must not depend on the profiles searched before it.
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
        if not self.spend(steps):
            raise OutOfStepsError

    def portion(self, steps: int) -> "Budget":
        """Cuts off at most `steps`, to be returned with `take_back`."""
        portion = Budget(min(steps, self.left))
        self.left -= portion.left
        return portion

    def shares(self, parts: int) -> "list[Budget]":
        """Divides all steps equally, to be returned with `take_back`."""
        steps = self.left // max(1, parts)
        self.left -= steps * parts
        return [Budget(steps) for _ in range(parts)]

    def take_back(self, shares: "Iterable[Budget]") -> None:
        """Takes back the unused steps and adds up `gave_up`."""
        for share in shares:
            self.left += share.left
            self.gave_up += share.gave_up
            share.left = 0
            share.gave_up = 0


class Portions(NamedTuple):
    """How many steps an instance gets at first, and how many at most."""

    first: int
    most: int


def share_fairly(
    instances: Sequence[_Instance],
    solve: Callable[[_Instance, Budget], PackingAnswer],
    portions: Portions,
    budget: Budget,
    tried: MutableMapping[_Instance, int] | None = None,
) -> dict[_Instance, PackingAnswer]:
    """Solves all instances, dividing the budget fairly among them.

    Each instance first gets the first portion, in order; the undecided ones then get equal shares of what is left. The
    first portion decides most of them, and they leave most of it unused. The instances most likely to be answered YES
    come first, because the budget may not last for all first portions.

    `tried` has the steps that did not suffice for an instance, and is updated. A search starts over each time, so an
    instance is searched again only with many times these steps. If equal shares are too small for that, as many
    instances as possible get enough, those tried with the fewest steps first. So a caller that keeps `tried` goes on with
    each call where it ended, and every instance gets its turn.

    The caller orders the instances by their content, never by node, so that no answer depends on the order of the
    nodes. Gives way after each search.
    """
    tried = {} if tried is None else tried

    def attempt(instance: _Instance, steps: int) -> PackingAnswer:
        portion = budget.portion(steps)
        steps = portion.left
        answer = solve(instance, portion)
        budget.take_back([portion])
        if answer is PackingAnswer.UNDECIDED:
            tried[instance] = steps
        else:
            tried.pop(instance, None)
        give_way()
        return answer

    answers = dict.fromkeys(instances, PackingAnswer.UNDECIDED)
    gave_up = budget.gave_up
    for instance in answers:
        if instance not in tried and budget.left:
            answers[instance] = attempt(instance, portions.first)
    undecided = [
        instance
        for instance, answer in answers.items()
        if answer is PackingAnswer.UNDECIDED and tried.get(instance, 0) < portions.most
    ]
    undecided.sort(key=lambda instance: tried.get(instance, 0))
    share = budget.left // max(1, len(undecided))
    for position, instance in enumerate(undecided):
        before = tried.get(instance, 0)
        steps = share if share >= _WORTHWHILE * before else max(portions.first, _GROWTH * before)
        steps = min(steps, portions.most, budget.left)
        # The first instance goes on however few steps are left: otherwise a request with a small budget decides nothing.
        worthwhile = min(_WORTHWHILE * before, portions.most) if position else 0
        if steps >= max(worthwhile, before + 1):
            answers[instance] = attempt(instance, steps)
    # An instance that both searches left undecided counts once.
    budget.gave_up = gave_up + list(answers.values()).count(PackingAnswer.UNDECIDED)
    return answers
