"""Where decisions run in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from app.runtime.decision_thread import OnCallersThread, Urgency
from tests.worlds.virtual_time import virtual_loop


class LaterRunner(OnCallersThread):
    """Runs work in the next turn of the loop."""

    async def run(self, work: Callable[[], Any], urgency: Urgency = Urgency.DECISION, rest: float = 0.0) -> Any:
        await asyncio.sleep(0)
        return await super().run(work, urgency, rest)


class RestingRunner(OnCallersThread):
    """Rests after some work, in a virtual loop."""

    async def run(self, work: Callable[[], Any], urgency: Urgency = Urgency.DECISION, rest: float = 0.0) -> Any:
        began = virtual_loop().time()
        result = await super().run(work, urgency, rest)
        await asyncio.sleep(rest * (virtual_loop().time() - began))
        return result
