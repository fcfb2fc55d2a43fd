"""A keyed work queue: a key is looked at by one worker at a time, and again if something happened meanwhile.

A key that has to be looked at again without an event waits for longer each time: shortly after a conflict, longer when something is
refused, longest after a failure. One quiet run resets its pace. Whatever goes wrong with one key stops no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import structlog

from app.kube.client import ApiError
from scheduler_core.errors import CoreError

log = structlog.get_logger("controllers")

_MOST_DOUBLINGS: Final = 20


class Again(StrEnum):
    """Why a key is looked at again although nothing may happen to it."""

    CONFLICT = "conflict"
    """Somebody was faster, or the object is gone: what was decided is out of date."""

    WAITING = "waiting"
    """Something is refused, and no watch may bring the change that helps."""

    FAILED = "failed"
    """The API server refused or did not answer, or the program is at fault."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to wait: `shortest` seconds, twice as long each time, at most `longest`."""

    shortest: float
    longest: float

    def seconds(self, attempt: int, chance: float) -> float:
        """The pause before an attempt (0 is the first repetition); `chance` in [0, 1) spreads it over its upper half."""
        most = min(self.longest, self.shortest * 2.0 ** min(attempt, _MOST_DOUBLINGS))
        return most * (0.5 + chance / 2)


PACES: Final = {
    Again.CONFLICT: Pace(0.02, 2.0),
    # Longhorn looks at a volume that cannot be scheduled every 30 s.
    Again.WAITING: Pace(0.5, 30.0),
    Again.FAILED: Pace(0.2, 60.0),
}


class Watcher(Protocol):
    """Who counts what a queue does."""

    def depth(self, controller: str, keys: int, /) -> None:
        """So many keys are due or in work."""

    def retried(self, controller: str, why: Again, /) -> None:
        """A key is to be looked at again after a pause."""

    def reconciled(self, controller: str, seconds: float, /) -> None:
        """A key was looked at."""


class WorkQueue:
    """Keys to look at, and the workers that do.

    Args:
        name: the controller's, for logs and metrics
        handle: looks at a key; None: all is well until something happens
        workers: keys in work at the same time, at most
        random: a number in [0, 1)
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[str], Awaitable[Again | None]],
        watcher: Watcher,
        *,
        workers: int,
        random: Callable[[], float],
    ) -> None:
        self.name = name
        self._handle = handle
        self._watcher = watcher
        self._workers = workers
        self._random = random
        # A dictionary keeps the order in which keys came.
        self._due: dict[str, None] = {}
        self._busy: set[str] = set()
        self._dirty: set[str] = set()
        self._later: dict[str, asyncio.TimerHandle] = {}
        self._attempts: dict[str, int] = {}
        self._problems: dict[str, str] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        """Keys due or in work."""
        return len(self._due) + len(self._busy)

    def add(self, key: str) -> None:
        """Looks at a key as soon as a worker is free; one in work is looked at once more."""
        timer = self._later.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._busy:
            self._dirty.add(key)
        elif key not in self._due:
            self._due[key] = None
            self._some.set()
            self._watcher.depth(self.name, len(self))

    def add_later(self, key: str, seconds: float) -> None:
        """Looks at a key after some seconds, unless it is looked at sooner."""
        loop = asyncio.get_running_loop()
        known = self._later.get(key)
        if known is not None and known.when() <= loop.time() + seconds:
            return
        if known is not None:
            known.cancel()
        self._later[key] = loop.call_later(seconds, self.add, key)

    async def run(self) -> None:
        """Works until cancelled; then everything is forgotten, because who begins again looks at everything."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"{self.name}-{number}")
        finally:
            self._forget()

    def _forget(self) -> None:
        for timer in self._later.values():
            timer.cancel()
        for kept in (self._due, self._busy, self._dirty, self._later, self._attempts, self._problems):
            kept.clear()
        self._watcher.depth(self.name, 0)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._due:
                self._some.clear()
                await self._some.wait()
            key = next(iter(self._due))
            del self._due[key]
            self._busy.add(key)
            began = loop.time()
            why = await self._handled(key)
            self._busy.discard(key)
            self._watcher.reconciled(self.name, loop.time() - began)
            self._next(key, why)
            self._watcher.depth(self.name, len(self))

    async def _handled(self, key: str) -> Again | None:
        try:
            why = await self._handle(key)
        except ApiError as error:
            if error.conflict or error.not_found:
                return Again.CONFLICT
            self._trouble(key, str(error))
            return Again.FAILED
        except CoreError as error:
            self._trouble(key, str(error))
            return Again.FAILED
        except Exception:  # one key's fault must not stop the others
            log.exception("a reconciliation failed", controller=self.name, key=key)
            return Again.FAILED
        self._problems.pop(key, None)
        return why

    def _trouble(self, key: str, problem: str) -> None:
        """Tells once what goes on being wrong."""
        if self._problems.get(key) != problem:
            log.warning("cannot reconcile now", controller=self.name, key=key, problem=problem)
        self._problems[key] = problem

    def _next(self, key: str, why: Again | None) -> None:
        if why is None:
            self._attempts.pop(key, None)
        else:
            self._watcher.retried(self.name, why)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)
        elif why is not None:
            attempt = self._attempts.get(key, 0)
            self._attempts[key] = attempt + 1
            self.add_later(key, PACES[why].seconds(attempt, self._random()))
