"""How much searching one request may do, counted in steps so that the same input always gets the same answer.

A clock would make answers depend on the machine's load; steps do not. A step is one element operation of a search
(about 1 µs of CPython 3.11 on the reference machine), so `STEPS_PER_REQUEST` keeps a request's searching
below the 300 ms that all of its evaluation may take.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

STEPS_PER_REQUEST: Final = 150_000


class OutOfStepsError(Exception):
    """A search had to give up; turned into UNDECIDED before it could leave the package."""


class TooManyFillsError(OutOfStepsError):
    """A search did not even start, because it would have had to list too much."""


class Budget:
    """The steps left, and how often a search had to give up because there were too few.

    One request's budget is divided among the disk profiles it has to search with `shares`: what one profile may use
    must not depend on which others were asked about before it.
    """

    __slots__ = ("gave_up", "left")

    def __init__(self, steps: int = STEPS_PER_REQUEST) -> None:
        self.left = max(0, steps)
        self.gave_up = 0

    def spend(self, steps: int) -> bool:
        """Take steps off; False, with nothing left, when there were fewer than that."""
        self.left -= steps
        if self.left >= 0:
            return True
        self.left = 0
        return False

    def charge(self, steps: int) -> None:
        """Take steps off.

        Raises:
            OutOfStepsError: there were fewer than that; nothing is left
        """
        if not self.spend(steps):
            raise OutOfStepsError

    def portion(self, steps: int) -> Budget:
        """A budget of at most so many of the steps left, cut from this one; hand it back with `take_back`."""
        portion = Budget(min(steps, self.left))
        self.left -= portion.left
        return portion

    def shares(self, parts: int) -> list[Budget]:
        """Equal budgets, one per part, all cut from what is left now; hand them back with `take_back`."""
        steps = self.left // max(1, parts)
        self.left -= steps * parts
        return [Budget(steps) for _ in range(parts)]

    def take_back(self, shares: Iterable[Budget]) -> None:
        """Return what the shares did not use and add up how often they gave up."""
        for share in shares:
            self.left += share.left
            self.gave_up += share.gave_up
            share.left = 0
            share.gave_up = 0
