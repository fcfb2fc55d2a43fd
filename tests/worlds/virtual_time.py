"""An event loop whose clock jumps to the next thing to do, so that seconds of waiting take none."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class _Jumping(selectors.SelectSelector):
    """Sleeps by moving a clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Called by the loop when nothing is ready, for as long as nothing will be."""
        if timeout is None:
            raise RuntimeError("everybody waits for something that nobody will do")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `time()` begins at 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds that nobody had to wait for."""
        return self._jumping.now

    def left(self) -> list[str]:
        """The names of tasks that are not done."""
        return sorted(task.get_name() for task in asyncio.all_tasks(self))


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
