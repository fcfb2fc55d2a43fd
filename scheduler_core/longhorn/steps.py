"""Computations that pause, as `scheduler_core.cooperative` defines them: a large cluster takes long."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

_Result = TypeVar("_Result")
Steps = Generator[None, None, _Result]
"""A computation that yields None at each pause, and returns its result."""


def take_all(steps: Steps[_Result]) -> _Result:
    """Takes all steps at once and returns the result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: _Result = done.value
            return result
