"""Cooperative multitasking: long computations are generators that pause.

A function that returns `Cooperative[T]` yields None whenever it has worked for a while, and returns its result at the
end. A caller with an event loop can run other tasks at each pause. The core never decides how long a pause is:
`run_to_end` runs straight through, and `app/runtime/time_slices.py` gives the event loop a turn at a pause.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from typing import ParamSpec, TypeVar

_Result = TypeVar("_Result")
_Parameters = ParamSpec("_Parameters")
Cooperative = Generator[None, None, _Result]


def run_to_end(computation: Cooperative[_Result]) -> _Result:
    """Runs the computation without pauses; returns its result."""
    while True:
        try:
            next(computation)
        except StopIteration as stop:
            result: _Result = stop.value
            return result


def without_pauses(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, Cooperative[_Result]]:
    """Makes a `Cooperative` of a computation that never pauses."""

    @wraps(function)
    def run(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> Cooperative[_Result]:
        return function(*args, **kwargs)
        yield

    return run
