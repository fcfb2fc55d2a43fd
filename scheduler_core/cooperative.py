"""Long computations as generators that pause, so that a caller with an event loop can serve others in between.

A function returning `Steps[T]` yields None whenever it has worked for a while and returns its result at the end. The core
never decides how long a pause is: `finish` runs straight through, `app` gives the event loop a turn at each pause.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

_Result = TypeVar("_Result")
Steps = Generator[None, None, _Result]


def finish(steps: Steps[_Result]) -> _Result:
    """Runs the computation to its end without pausing."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: _Result = done.value
            return result
