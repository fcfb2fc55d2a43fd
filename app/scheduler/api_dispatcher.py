"""API calls that scheduling does not wait for.

They are made one at a time, at most `MAX_WRITES_PER_SECOND`, and only the latest of each key. A call that fails stops
no other. A call without an answer, or with an answer that may change later, is repeated after a pause that doubles,
while other calls go on. Answers count: after `MAX_REFUSALS` that say "not now" the call is given up, because some say
so for ever (a webhook that fails). Without any answer the call is repeated until there is one.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import structlog

from app.kube.client import ApiError
from scheduler_core.backoff import Backoff
from scheduler_core.errors import CoreError

log = structlog.get_logger("outbox")

MAX_WRITES_PER_SECOND: Final = 20
MAX_REFUSALS: Final = 5
# Up to half a minute: a call without an answer takes ten seconds, in which nothing else is written.
_BACKOFF: Final = Backoff(1.0, 32.0)

_Key = TypeVar("_Key", bound=Hashable)
_Call = TypeVar("_Call")


@dataclass(slots=True)
class _QueuedCall(Generic[_Call]):
    """A call that is not written yet.

    Attributes:
        call: what is to be written
        stamp: identifies the valid entry of the heap among all entries of the key
        attempts: how often it was tried
        refusals: how many of the attempts the API server answered
    """

    call: _Call
    stamp: int = 0
    attempts: int = 0
    refusals: int = 0


class ApiDispatcher(Generic[_Key, _Call]):
    """Owner of the calls that are not written yet.

    Args:
        kind: what the calls write, for logs and `on_failure`
        write: makes one call
        on_failure: called with `kind` after every call that was refused or not answered
        on_give_up: called with each call that will not be repeated
    """

    def __init__(
        self,
        kind: str,
        write: Callable[[_Key, _Call], Awaitable[None]],
        on_failure: Callable[[str], None],
        on_give_up: Callable[[_Key, _Call], None],
    ) -> None:
        self._kind = kind
        self._write = write
        self._on_failure = on_failure
        self._on_give_up = on_give_up
        self._calls: dict[_Key, _QueuedCall[_Call]] = {}
        self._heap: list[tuple[float, int, _Key]] = []
        self._stamp = 0
        self._failing = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        """The number of calls that are not written yet."""
        return len(self._calls)

    def put(self, key: _Key, call: _Call) -> None:
        """Queues a call in place of an earlier call of the key.

        The new call is made when the earlier one would have been.
        """
        queued = self._calls.get(key)
        if queued is None:
            self._enqueue(key, _QueuedCall(call), 0)
        else:
            queued.call = call

    def discard(self, key: _Key) -> None:
        """Removes the call of a key, if there is one."""
        self._calls.pop(key, None)
        self._wake.set()

    def clear(self) -> None:
        """Removes all calls."""
        self._calls.clear()
        self._wake.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            self._wake.clear()
            due = self._next_due()
            if due is not None and due <= now():
                _, _, key = heapq.heappop(self._heap)
                await self._execute(key, self._calls.pop(key))
                continue
            if due is None:
                self._idle.set()
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def wait_until_idle(self) -> None:
        """Returns once every call has been written, given up or removed."""
        await self._idle.wait()

    def _enqueue(self, key: _Key, queued: _QueuedCall[_Call], delay: float) -> None:
        self._stamp += 1
        queued.stamp = self._stamp
        self._calls[key] = queued
        heapq.heappush(self._heap, (asyncio.get_running_loop().time() + delay, queued.stamp, key))
        self._idle.clear()
        self._wake.set()

    def _next_due(self) -> float | None:
        """Returns when the next call is due, None without calls.

        That call is the first entry of the heap then, because outdated entries before it are dropped.
        """
        while self._heap:
            due, stamp, key = self._heap[0]
            queued = self._calls.get(key)
            if queued is not None and queued.stamp == stamp:
                return due
            heapq.heappop(self._heap)
        return None

    async def _execute(self, key: _Key, queued: _QueuedCall[_Call]) -> None:
        try:
            await self._write(key, queued.call)
        except CoreError as error:
            self._on_failure(self._kind)
            queued.attempts += 1
            if _may_succeed_later(queued, error):
                self._retry_later(key, queued, str(error))
            else:
                log.warning("a write was refused", what=self._kind, problem=str(error), tries=queued.attempts)
                self._on_give_up(key, queued.call)
        else:
            self._failing = False
        await asyncio.sleep(1 / MAX_WRITES_PER_SECOND)

    def _retry_later(self, key: _Key, queued: _QueuedCall[_Call], problem: str) -> None:
        if queued.attempts == 1 and not self._failing:
            log.warning("cannot be written now, trying again", what=self._kind, problem=problem)
        self._failing = True
        # A newer call of the key, queued during the attempt, replaces this one.
        if key not in self._calls:
            self._enqueue(key, queued, _BACKOFF.delay(queued.attempts - 1))


def _may_succeed_later(queued: _QueuedCall[_Call], error: CoreError) -> bool:
    """Counts an answer, and returns whether the call is to be repeated."""
    if not isinstance(error, ApiError) or not error.unreachable:
        return False
    if error.status:
        queued.refusals += 1
    return queued.refusals < MAX_REFUSALS
