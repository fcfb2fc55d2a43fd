"""API calls that scheduling does not wait for.

A few are made at a time, urgent ones first, and only the latest of each key. The client limits how many calls are made
per second. A call that fails stops no other. A call without an answer, or with an answer that may change later, is
repeated after a pause that doubles, while other calls go on. Answers count: after `MAX_REFUSALS` that say "not now" the
call is given up, because some never change (a webhook that fails). Without any answer the call is repeated until there
is one.
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

MAX_CALLS_IN_FLIGHT: Final = 10
MAX_REFUSALS: Final = 5
# Up to half a minute: a call without an answer takes ten seconds.
_BACKOFF: Final = Backoff(1.0, 32.0)

_Key = TypeVar("_Key", bound=Hashable)
_Call = TypeVar("_Call")


@dataclass(slots=True)
class _QueuedCall(Generic[_Call]):
    """A call that is not written yet."""

    call: _Call  # what is to be written
    urgent: bool  # whether it goes before calls that are not
    stamp: int = 0  # identifies the valid entry of the heaps among all entries of the key
    attempts: int = 0  # how often it was tried
    refusals: int = 0  # how many of the attempts the API server answered


class ApiDispatcher(Generic[_Key, _Call]):
    """Owner of the calls that are not written yet. At most `MAX_CALLS_IN_FLIGHT` are in flight, and one of each key.

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
        self._in_flight: set[_Key] = set()
        # Entries are (not urgent, stamp, key) and (due, stamp, key).
        self._ready: list[tuple[bool, int, _Key]] = []
        self._delayed: list[tuple[float, int, _Key]] = []
        self._stamp = 0
        self._failing = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._calls)

    def put(self, key: _Key, call: _Call, *, urgent: bool = False) -> None:
        """Queues a call in place of an earlier call of the key. The new call is made when the earlier one would have
        been.
        """
        queued = self._calls.get(key)
        if queued is not None:
            queued.call = call
            return
        self._calls[key] = _QueuedCall(call, urgent)
        self._idle.clear()
        # The end of the call in flight enqueues this one.
        if key not in self._in_flight:
            self._enqueue(key)

    def discard(self, key: _Key) -> None:
        self._calls.pop(key, None)
        self._set_idle()

    def clear(self) -> None:
        """Removes all calls; those in flight go on."""
        self._calls.clear()
        self._set_idle()

    async def run(self) -> None:
        """Writes until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                due = self._end_delays(loop.time())
                while len(self._in_flight) < MAX_CALLS_IN_FLIGHT and (key := self._pop_ready()) is not None:
                    self._in_flight.add(key)
                    tasks.create_task(self._execute(key, self._calls.pop(key)), name=f"write {self._kind}")
                try:
                    async with asyncio.timeout_at(due):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    async def wait_until_idle(self) -> None:
        """Returns once every call has been written, given up or removed."""
        await self._idle.wait()

    def _enqueue(self, key: _Key, delay: float = 0.0) -> None:
        queued = self._calls[key]
        self._stamp += 1
        queued.stamp = self._stamp
        if delay:
            heapq.heappush(self._delayed, (asyncio.get_running_loop().time() + delay, queued.stamp, key))
        else:
            heapq.heappush(self._ready, (not queued.urgent, queued.stamp, key))
        self._wake.set()

    def _end_delays(self, now: float) -> float | None:
        """Makes calls ready whose delay is over; returns when the next one is due."""
        while self._delayed:
            due, stamp, key = self._delayed[0]
            valid = self._is_valid(key, stamp)
            if valid and due > now:
                return due
            heapq.heappop(self._delayed)
            if valid:
                self._enqueue(key)
        return None

    def _pop_ready(self) -> _Key | None:
        while self._ready:
            _, stamp, key = heapq.heappop(self._ready)
            if self._is_valid(key, stamp):
                return key
        return None

    def _is_valid(self, key: _Key, stamp: int) -> bool:
        """Whether an entry of a heap is the latest of its key."""
        queued = self._calls.get(key)
        return queued is not None and queued.stamp == stamp

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
        finally:
            self._in_flight.discard(key)
            self._wake.set()
        if key in self._calls:
            self._enqueue(key, _BACKOFF.delay(queued.attempts - 1) if self._calls[key] is queued else 0.0)
        self._set_idle()

    def _retry_later(self, key: _Key, queued: _QueuedCall[_Call], problem: str) -> None:
        if queued.attempts == 1 and not self._failing:
            log.warning("cannot be written now, trying again", what=self._kind, problem=problem)
        self._failing = True
        # A newer call of the key, queued during the attempt, replaces this one.
        self._calls.setdefault(key, queued)

    def _set_idle(self) -> None:
        if not self._calls and not self._in_flight:
            self._idle.set()


def _may_succeed_later(queued: _QueuedCall[_Call], error: CoreError) -> bool:
    """Counts an answer, and returns whether the call is to be repeated."""
    if not isinstance(error, ApiError) or not error.unreachable:
        return False
    if error.status:
        queued.refusals += 1
    return queued.refusals < MAX_REFUSALS
