"""A keyed work queue: one worker handles a key at a time. A key that changed meanwhile is handled once more. Keys that
may not have changed (a sweep over all objects at the start) are handled when no changed key is due.

A key whose handling has to be repeated without an event waits for longer each time: shortly after a conflict, longer
when something is refused, longest after a failure. One run without such a result resets its back-off. A problem with
one key never stops the others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from enum import StrEnum
from typing import ClassVar, Generic, Protocol, TypeVar

import structlog

from app.kube.client import ApiError
from scheduler_core.backoff import Backoff
from scheduler_core.errors import CoreError

log = structlog.get_logger("controllers")

_Key = TypeVar("_Key", bound=Hashable)


class Requeue(StrEnum):
    """Why a key is handled again although it may not change."""

    CONFLICT = "conflict"
    """Another writer was faster, or the object is gone: the decision is out of date."""

    WAITING = "waiting"
    """Something is refused, and no watch may bring the change that helps."""

    FAILED = "failed"
    """The API server refused or did not answer, or the program is at fault."""


BACKOFFS: Mapping[Requeue, Backoff] = {
    Requeue.CONFLICT: Backoff(0.02, 2.0),
    # Longhorn looks at a volume that cannot be scheduled every 30 s.
    Requeue.WAITING: Backoff(0.5, 30.0),
    Requeue.FAILED: Backoff(0.2, 60.0),
}


class QueueObserver(Protocol):
    """Counts what a queue does."""

    def depth(self, controller: str, keys: int, /) -> None:
        """The number of keys that are due or in work has changed."""

    def note_retry(self, controller: str, why: Requeue, /) -> None:
        """A key will be handled again after a pause."""

    def note_reconciliation(self, controller: str, seconds: float, /) -> None:
        """A key was handled."""


class WorkQueue(Generic[_Key]):
    """Keys to handle, and the workers that handle them. A subclass may set `backoffs` and `events_end_delays`, and
    override `choose`.
    """

    backoffs: ClassVar[Mapping[Requeue, Backoff]] = BACKOFFS  # the pauses after each result that asks for a repetition
    # Whether `add` cancels the delayed handling of its key; otherwise the key is handled after the delay, too.
    events_end_delays: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        handle: Callable[[_Key], Awaitable[Requeue | None]],
        observer: QueueObserver,
        *,
        workers: int,
        random: Callable[[], float],
    ) -> None:
        """Takes what the queue works with; nothing is handled before `run`.

        Args:
            name: the controller's name, for logs and metrics
            handle: handles a key; None: no repetition until something happens
            observer: counts what the queue does
            workers: how many keys are in work at the same time, at most
            random: a number in [0, 1)
        """
        self.name = name
        self._handle = handle
        self._observer = observer
        self._workers = workers
        self._random = random
        # A dictionary keeps the order in which keys were added.
        self.due: dict[_Key, None] = {}
        self._sweep: dict[_Key, None] = {}
        self._busy: set[_Key] = set()
        self._dirty: set[_Key] = set()
        self._delayed: dict[_Key, asyncio.TimerHandle] = {}
        self._attempts: dict[_Key, int] = {}
        self._problems: dict[_Key, str] = {}
        self._not_empty = asyncio.Event()

    def __len__(self) -> int:
        return len(self.due) + len(self._sweep) + len(self._busy)

    def add(self, key: _Key) -> None:
        """Handles a key as soon as a worker is free, and once more afterwards if it is in work."""
        if self.events_end_delays:
            timer = self._delayed.pop(key, None)
            if timer is not None:
                timer.cancel()
        if key in self._busy:
            self._dirty.add(key)
        elif key not in self.due:
            self._sweep.pop(key, None)
            self.due[key] = None
            self._not_empty.set()
            self._observer.depth(self.name, len(self))

    def add_sweep(self, keys: Iterable[_Key]) -> None:
        """Handles keys that may not have changed, in their order, whenever no other key is due."""
        for key in keys:
            if key not in self.due and key not in self._busy:
                self._sweep[key] = None
        self._not_empty.set()
        self._observer.depth(self.name, len(self))

    def add_later(self, key: _Key, seconds: float) -> None:
        """Handles a key after some seconds, unless an earlier delay is pending."""
        loop = asyncio.get_running_loop()
        timer = self._delayed.get(key)
        if timer is not None and timer.when() <= loop.time() + seconds:
            return
        if timer is not None:
            timer.cancel()

        def end_delay() -> None:
            del self._delayed[key]
            self.add(key)

        self._delayed[key] = loop.call_later(seconds, end_delay)

    def choose(self, due: Collection[_Key]) -> _Key:
        """Returns the next of these keys to handle: the one that was added first."""
        return next(iter(due))

    async def run(self) -> None:
        """Runs until cancelled, and then forgets all keys; before the next run every key has to be added again."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"{self.name}-{number}")
        finally:
            for timer in self._delayed.values():
                timer.cancel()
            for keys in (self.due, self._sweep, self._busy, self._dirty, self._delayed, self._attempts, self._problems):
                keys.clear()
            self._observer.depth(self.name, 0)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self.due and not self._sweep:
                self._not_empty.clear()
                await self._not_empty.wait()
            if not self.due:
                # A key of the sweep often needs no call: the events of the meantime come first.
                await asyncio.sleep(0)
            waiting = self.due or self._sweep
            if not waiting:
                continue
            key = self.choose(waiting)
            del waiting[key]
            self._busy.add(key)
            began = loop.time()
            why = await self._handle_key(key)
            self._busy.discard(key)
            self._observer.note_reconciliation(self.name, loop.time() - began)
            self._schedule_next(key, why)
            self._observer.depth(self.name, len(self))

    async def _handle_key(self, key: _Key) -> Requeue | None:
        try:
            why = await self._handle(key)
        except ApiError as error:
            if error.conflict or error.not_found:
                return Requeue.CONFLICT
            self._log_problem(key, str(error))
            return Requeue.FAILED
        except CoreError as error:
            self._log_problem(key, str(error))
            return Requeue.FAILED
        except Exception:  # a fault in handling one key must not stop the others
            log.exception("a reconciliation failed", controller=self.name, key=key)
            return Requeue.FAILED
        self._problems.pop(key, None)
        return why

    def _log_problem(self, key: _Key, problem: str) -> None:
        """Logs a problem once for as long as it persists."""
        if self._problems.get(key) != problem:
            log.warning("cannot reconcile now", controller=self.name, key=key, problem=problem)
        self._problems[key] = problem

    def _schedule_next(self, key: _Key, why: Requeue | None) -> None:
        if why is None:
            self._attempts.pop(key, None)
        else:
            self._observer.note_retry(self.name, why)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)
        elif why is not None:
            attempt = self._attempts.get(key, 0)
            self._attempts[key] = attempt + 1
            self.add_later(key, jitter(self.backoffs[why].delay(attempt), self._random()))


def jitter(seconds: float, chance: float) -> float:
    """Returns a pause in the upper half of `seconds`, different for writers that collided.

    Args:
        seconds: the longest pause
        chance: in [0, 1)
    """
    return seconds * (0.5 + chance / 2)
