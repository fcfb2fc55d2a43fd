"""Runs long computations in slices, between which the event loop serves others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final, TypeVar

from scheduler_core.cooperative import Cooperative

# Longer than most decisions take as a whole, and too short for a caller to notice.
SLICE_SECONDS: Final = 0.005
# A request that arrives during such a slice waits this long.
_SHORT_SLICE_SECONDS: Final = 0.001
# Seconds of pause for each second of work in the background. With what the pauses cost it takes a tenth of the time.
PAUSE_PER_SECOND: Final = 10.0
_Result = TypeVar("_Result")


class Slicer:
    """Gives the event loop a turn whenever a slice is over."""

    def __init__(self, clock: Callable[[], float] = perf_counter, seconds: float = SLICE_SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self._slice_ends_at = clock() + seconds

    async def pause_if_due(self) -> None:
        if self._clock() >= self._slice_ends_at:
            await asyncio.sleep(0)
            self._slice_ends_at = self._clock() + self._seconds


async def run_in_slices(
    computation: Cooperative[_Result], clock: Callable[[], float] = perf_counter, idle: asyncio.Event | None = None
) -> _Result:
    """Runs a computation to its end and returns its result. With `idle` it goes on only while that event is set, and in
    shorter slices, so that more urgent computations come first.
    """
    slicer = Slicer(clock, SLICE_SECONDS if idle is None else _SHORT_SLICE_SECONDS)
    while True:
        if idle is not None:
            await idle.wait()
        try:
            next(computation)
        except StopIteration as done:
            result: _Result = done.value
            # What the caller does with the result belongs to the next turn.
            await slicer.pause_if_due()
            return result
        await slicer.pause_if_due()


async def run_in_background(
    computation: Cooperative[_Result],
    clock: Callable[[], float],
    idle: Callable[[], Awaitable[object]],
    pause_per_second: float = PAUSE_PER_SECOND,
) -> _Result:
    """Runs a computation in a tenth of the time, or in what `pause_per_second` leaves, each slice after `idle` has returned."""
    while True:
        await idle()
        began = clock()
        try:
            while clock() < began + _SHORT_SLICE_SECONDS:
                next(computation)
        except StopIteration as done:
            result: _Result = done.value
            return result
        await asyncio.sleep(pause_per_second * (clock() - began))


def work_in_background(
    computation: Cooperative[_Result], clock: Callable[[], float], result: list[_Result]
) -> Cooperative[float]:
    """Runs a computation for a short slice; adds its result if that is its end. Returns how long it took, without the pauses."""
    seconds = 0.0
    while seconds < _SHORT_SLICE_SECONDS:
        began = clock()
        try:
            next(computation)
        except StopIteration as done:
            result.append(done.value)
            return seconds
        seconds += clock() - began
        yield
    return seconds
