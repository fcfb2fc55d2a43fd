"""Turns of the event loop, between which it serves others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Final

# Too short for a caller to notice.
TURN_SECONDS: Final = 0.005


class Turns:
    """Ends a turn of the event loop when it has taken long enough."""

    def __init__(self, clock: Callable[[], float] = perf_counter, seconds: float = TURN_SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self._ends_at = clock() + seconds

    async def end_if_due(self) -> None:
        if self._clock() >= self._ends_at:
            await asyncio.sleep(0)
            self._ends_at = self._clock() + self._seconds
