"""Events about objects, and the dispatcher of calls that the work of a program does not wait for.

Data flow: `EventRecorder.record` → the latest state of each Event → an `ApiDispatcher`, warnings first.

There is one Event per object and reason, which counts. It has the latest message. Another message is written at most every
`QUIET_SECONDS`, so a burst of reports costs a few calls. A report that only repeats the message is counted, and written every
`REPEAT_SECONDS` at most. An Event that is refused, or that the API server cannot write for long, is logged and dropped.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping
from datetime import UTC, datetime
from typing import ClassVar, Generic, TypeVar

import structlog

from app.kube.client import ApiError, KubeClient
from app.kube.resources import EVENTS
from app.runtime.work_queue import Requeue, WorkQueue
from scheduler_core import caches, errors
from scheduler_core.backoff import Backoff
from scheduler_core.convert.kube import ObjectEvent, ObjectReference, event_patch, new_event
from scheduler_core.structs import Struct, replace

log = structlog.get_logger("outbox")

EVENT = "event"
QUIET_SECONDS = 10.0
REPEAT_SECONDS = 300.0
MAX_CALLS_IN_FLIGHT = 10
MAX_REFUSALS = 5
# Some hundred bytes each; the count of an object's Event that is evicted here begins again.
_MAX_EVENTS = 10_000
# Of the object's part; an Event's name has 253 characters at most.
_MAX_NAME = 230

_Key = TypeVar("_Key", bound=Hashable)
_Call = TypeVar("_Call")


class ApiDispatcher(WorkQueue[_Key], Generic[_Key, _Call]):
    """Owner of the calls that are not made yet, of which only the latest of each key counts. At most
    `MAX_CALLS_IN_FLIGHT` are in flight, urgent ones first, and one of each key. A call without an answer, or with one that may change
    later, is repeated after a pause that doubles, while other calls go on; `MAX_REFUSALS` such answers end that.

    Args:
        kind: what the calls write, for logs and `on_failure`
        write: makes one call
        on_failure: called with `kind` after every call that was refused or not answered
        on_give_up: called with each call that will not be repeated
    """

    # Up to half a minute: a call without an answer takes ten seconds.
    backoffs: ClassVar[Mapping[Requeue, Backoff]] = {Requeue.FAILED: Backoff(1.0, 32.0)}

    def __init__(
        self,
        kind: str,
        write: Callable[[_Key, _Call], Awaitable[None]],
        on_failure: Callable[[str], None],
        on_give_up: Callable[[_Key, _Call], None],
    ) -> None:
        super().__init__(kind, self._make_latest_call, self, workers=MAX_CALLS_IN_FLIGHT, random=lambda: 1.0)
        self._write = write
        self._on_failure = on_failure
        self._on_give_up = on_give_up
        self._calls: dict[_Key, _Call] = {}
        self._failures: Counter[_Key] = Counter()
        self._refusals: Counter[_Key] = Counter()  # how many of the failures are answers of the API server
        self._failing = False
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, key: _Key, call: _Call, *, urgent: bool = False) -> None:
        """Queues a call in place of an earlier call of the key, at whose time it is made."""
        queued = key in self._calls
        self._calls[key] = call
        self._idle.clear()
        if not queued and urgent:
            self.add(key)
        elif not queued:
            self.add_sweep([key])

    def discard(self, key: _Key) -> None:
        self._calls.pop(key, None)
        self.depth(self.name, len(self))

    def clear(self) -> None:
        """Removes all calls; those in flight go on."""
        self._calls.clear()
        self.depth(self.name, len(self))

    async def wait_until_idle(self) -> None:
        """Returns once every call has been made, given up or removed."""
        await self._idle.wait()

    def depth(self, _kind: str, keys: int) -> None:
        if not keys and not self._calls:
            self._idle.set()

    def note_retry(self, _kind: str, _why: Requeue) -> None:
        pass

    def note_reconciliation(self, _kind: str, _seconds: float) -> None:
        pass

    async def _make_latest_call(self, key: _Key) -> Requeue | None:
        call = self._calls.get(key)
        if call is None:
            return None
        try:
            await self._write(key, call)
            self._failing = False
        except errors.CoreError as error:
            self._on_failure(self.name)
            self._failures[key] += 1
            if isinstance(error, ApiError) and error.unreachable:
                # Some answers that say "not now" never change (a webhook that fails).
                self._refusals[key] += bool(error.status)
                if self._refusals[key] < MAX_REFUSALS:
                    if self._failures[key] == 1 and not self._failing:
                        log.warning("cannot be written now, trying again", what=self.name, problem=str(error))
                    self._failing = True
                    return Requeue.FAILED
            log.warning("a write was refused", what=self.name, problem=str(error), tries=self._failures[key])
            self._on_give_up(key, call)
        self._failures.pop(key, None)
        self._refusals.pop(key, None)
        if self._calls.get(key) is call:
            del self._calls[key]
        elif key in self._calls:
            # A newer call was queued meanwhile.
            self.add(key)
        return None


class _RecordedEvent(Struct):
    """An Event as it should be written."""

    event: ObjectEvent
    created: bool = False  # whether the API server has the Event object
    written: str = ""  # the message that was written last
    written_at: float = -float("inf")  # seconds of the clock


class EventRecorder:
    """Writes Events.

    Args:
        component: the program that reports
        clock: seconds of a clock that never goes back
        now: the time of day
        may_write: whether this process may write now; Events that it may not write are dropped
        on_failure: called with EVENT after every write that was refused or not answered
    """

    def __init__(  # noqa: PLR0913, PLR0917 # every one is a port
        self,
        client: KubeClient,
        component: str,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        may_write: Callable[[], bool] = lambda: True,
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._now = now
        self._may_write = may_write
        self._dispatcher = ApiDispatcher(EVENT, self._write, on_failure, self._note_written)
        self._events: caches.LruMap[str, _RecordedEvent] = caches.LruMap(_MAX_EVENTS, on_evict=self._dispatcher.discard)
        self._quiet: dict[str, asyncio.TimerHandle] = {}

    def record(self, about: ObjectReference, reason: str, message: str, *, normal: bool) -> None:
        """Records that something has happened to an object."""
        identity = "/".join((self._component, about.kind, about.name, about.uid, reason))
        name = f"{about.name[:_MAX_NAME]}.{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
        time = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        recorded = self._events.get(name)
        if recorded is None:
            event = ObjectEvent(name, about, reason, message, normal, self._component, time, time)
            recorded = _RecordedEvent(event)
            self._events.put(name, recorded)
        else:
            before = recorded.event
            recorded.event = replace(before, message=message, last=time, count=before.count + 1)
        since = self._clock() - recorded.written_at
        if message == recorded.written and since < REPEAT_SECONDS:
            return
        if since >= QUIET_SECONDS:
            self._dispatcher.put(name, recorded.event, urgent=not normal)
        elif name not in self._quiet:
            loop = asyncio.get_running_loop()
            self._quiet[name] = loop.call_later(QUIET_SECONDS - since, self._end_quiet_time, name)

    async def run(self) -> None:
        await self._dispatcher.run()

    async def wait_until_written(self) -> None:
        """Returns once everything recorded has been written or given up. No quiet time is waited for."""
        for name in tuple(self._quiet):
            self._end_quiet_time(name)
        await self._dispatcher.wait_until_idle()

    def _end_quiet_time(self, name: str) -> None:
        self._quiet.pop(name).cancel()
        recorded = self._events.get(name)
        if recorded is not None:
            self._dispatcher.put(name, recorded.event, urgent=not recorded.event.normal)

    async def _write(self, name: str, event: ObjectEvent) -> None:
        recorded = self._events.get(name)
        if recorded is None or not self._may_write():
            return
        await self._create_or_patch(recorded, event)
        recorded.created = True
        self._note_written(name, event)

    def _note_written(self, name: str, event: ObjectEvent) -> None:
        recorded = self._events.get(name)
        if recorded is not None:
            recorded.written = event.message
            recorded.written_at = self._clock()

    async def _create_or_patch(self, recorded: _RecordedEvent, event: ObjectEvent) -> None:
        path = EVENTS.path(event.about.namespace, event.name)
        if recorded.created:
            try:
                await self._client.patch(path, event_patch(event))
            except ApiError as error:
                # The API server deletes an Event after an hour.
                if not error.not_found:
                    raise
            else:
                return
        try:
            await self._client.create(EVENTS.path(event.about.namespace), new_event(event))
        except ApiError as error:
            # An earlier process has written it, or the answer to an earlier call was lost.
            if not error.conflict:
                raise
            await self._client.patch(path, event_patch(event))
