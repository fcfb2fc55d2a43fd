"""Where decisions run in tests, and how much a computation does before it gives way, counted in calls of functions."""

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from app.runtime.decision_thread import OnCallersThread, Urgency
from scheduler_core.packing.budget import giving_way


class LaterRunner(OnCallersThread):
    """Runs work in the next turn of the loop."""

    async def run(self, work: Callable[[], Any], urgency: Urgency = Urgency.DECISION, rest: float = 0.0) -> Any:
        await asyncio.sleep(0)
        return await super().run(work, urgency, rest)


_Result = TypeVar("_Result")


def run_with(act: Callable[[], object], work: Callable[[], _Result], after: int = 0) -> _Result:
    """Runs some work; acts once, where the work has given way so many times."""
    times = 0

    def act_once() -> None:
        nonlocal times
        times += 1
        if times == after + 1:
            act()

    with giving_way(act_once):
        result = work()
    assert times > after, f"it gave way {times} times"
    return result


def run_counting(work: Callable[[], _Result]) -> tuple[_Result, int]:
    """Runs some work; returns its result, and the most calls between two of the places where it gives way."""
    calls = 0
    most = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def begin_anew() -> None:
        nonlocal calls, most
        most = max(most, calls)
        calls = 0

    profiler = sys.getprofile()
    sys.setprofile(count)
    try:
        with giving_way(begin_anew):
            result = work()
    finally:
        sys.setprofile(profiler)
    return result, max(most, calls)
