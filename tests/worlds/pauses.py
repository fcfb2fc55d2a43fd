"""The work that a computation of the core does between two pauses, counted in calls of functions."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, TypeVar

from scheduler_core.cooperative import Cooperative

_Result = TypeVar("_Result")


def run_counting(computation: Cooperative[_Result]) -> tuple[_Result, int]:
    """Runs a computation to its end; returns its result, and the most calls between two of its pauses."""
    calls = 0
    most = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    profiler = sys.getprofile()
    sys.setprofile(count)
    try:
        while True:
            calls = 0
            try:
                next(computation)
            except StopIteration as done:
                result: _Result = done.value
                return result, max(most, calls)
            most = max(most, calls)
    finally:
        sys.setprofile(profiler)
