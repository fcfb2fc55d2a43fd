"""A keyed work queue, like client-go's: a key is handled by one worker at a time, and never twice for one change.

Which of the waiting keys is next is drawn at random, as it is in Longhorn, where several managers and Go's maps decide.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

import structlog

from app.kube.client import ApiError

log = structlog.get_logger("simulator.controller_queue")

_SHORTEST: Final = 0.05
_LONGEST: Final = 30.0
_CONFLICT: Final = (0.02, 0.08)

_Key = TypeVar("_Key", bound=Hashable)


class Queue(Generic[_Key]):
    """Keys to look at now or later. `handle` answers after how many seconds to look again, None: when something changes."""

    def __init__(
        self, name: str, handle: Callable[[_Key], Awaitable[float | None]], rng: random.Random, *, workers: int
    ) -> None:
        self.name = name
        self.failures = 0
        self._handle = handle
        self._rng = rng
        self._workers = workers
        self._due: list[_Key] = []
        self._dirty: set[_Key] = set()
        self._busy: set[_Key] = set()
        self._later: dict[_Key, asyncio.TimerHandle] = {}
        self._attempts: dict[_Key, int] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due) + len(self._busy)

    def add(self, key: _Key, seconds: float = 0.0) -> None:
        """Looks at a key, after some seconds at the latest."""
        if seconds > 0:
            self._add_later(key, seconds)
            return
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._busy:
            self._due.append(key)
            self._some.set()

    def _add_later(self, key: _Key, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        known = self._later.get(key)
        if known is not None and not known.cancelled():
            if known.when() <= loop.time() + seconds:
                return
            known.cancel()
        self._later[key] = loop.call_later(seconds, self._now, key)

    def _now(self, key: _Key) -> None:
        self._later.pop(key, None)
        self.add(key)

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self.name}-{number}")

    async def _work(self) -> None:
        while True:
            while not self._due:
                self._some.clear()
                await self._some.wait()
            key = self._draw()
            again = await self._attempt(key)
            self._busy.discard(key)
            if key in self._dirty:
                self._due.append(key)
                self._some.set()
            if again is not None:
                self._add_later(key, max(again, 0.001))

    def _draw(self) -> _Key:
        index = self._rng.randrange(len(self._due))
        self._due[index], self._due[-1] = self._due[-1], self._due[index]
        key = self._due.pop()
        self._dirty.discard(key)
        self._busy.add(key)
        return key

    async def _attempt(self, key: _Key) -> float | None:
        try:
            again = await self._handle(key)
        except ApiError as error:
            if error.conflict:  # somebody was quicker: the watch brings what they wrote
                return self._rng.uniform(*_CONFLICT)
            log.warning("the API server refused", queue=self.name, key=key, error=str(error))
        except Exception:  # one object's trouble must not stop the others; it is counted and shown
            self.failures += 1
            log.exception("could not be handled", queue=self.name, key=key)
        else:
            self._attempts.pop(key, None)
            return again
        attempts = self._attempts[key] = self._attempts.get(key, 0) + 1
        return min(_LONGEST, _SHORTEST * 2.0 ** min(attempts, 20))
