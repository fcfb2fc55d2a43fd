"""Long computations in slices: when the event loop serves others."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from app.runtime.time_slices import SLICE_SECONDS, run_in_slices
from scheduler_core.cooperative import Cooperative

pytestmark = pytest.mark.anyio


def long_steps(number: int) -> Cooperative[str]:
    """A computation each step of which takes longer than a slice, by the clock of `run`."""
    for _ in range(number - 1):
        yield
    return "result"


@pytest.mark.parametrize("number", [1, 3])
async def test_others_are_served_after_each_slice_and_before_the_caller_goes_on(number: int) -> None:
    """What the caller does with the result may take long, too."""
    ticks = count()
    served: list[int] = []

    async def serve_others() -> None:
        while True:
            served.append(next(ticks))
            await asyncio.sleep(0)

    times = count(step=2 * SLICE_SECONDS)
    others = asyncio.create_task(serve_others())
    assert await run_in_slices(long_steps(number), lambda: next(times)) == "result"
    assert len(served) == number
    others.cancel()


async def test_a_short_computation_gives_no_turn_away() -> None:
    """The clock stands still."""
    served: list[int] = []
    asyncio.get_running_loop().call_soon(served.append, 1)
    assert await run_in_slices(long_steps(9), lambda: 0.0) == "result"
    assert served == []
