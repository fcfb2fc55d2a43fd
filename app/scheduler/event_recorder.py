"""Records Events about pods, which count equal reports. `Conditions` report the same.

Data flow: `record` → `EventCorrelator` → the latest state of each Event → an `ApiDispatcher`, warnings first. A report that is equal to
one written less than `QUIET_SECONDS` ago, or one too many, is only counted, and written with the next one. An Event that is refused, or
that the API server cannot write for long, is logged and dropped.

Events have client limits of their own, as in kube-scheduler, so that they delay no Binding.

Which reports become one Event, and which Events are written, follows the rules of client-go's EventCorrelator:

- Equal reports are one Event, which counts them.
- From the tenth message on, reports about one pod with one reason are one Event, whose message is the latest. Ten minutes without
  a report of the kind end this.
- About one pod 25 Events may be written at once, and later one every five minutes. Reports beyond that are only counted; the next
  Event that is written has their number.

Source: k8s.io/client-go/tools/record/events_cache.go.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from app.kube.client import ApiError, KubeClient
from app.kube.resources import EVENTS, PODS
from app.scheduler.api_dispatcher import ApiDispatcher
from app.scheduler.pod_condition import Conditions
from scheduler_core.backoff import TokenBucket
from scheduler_core.caches import LruMap
from scheduler_core.convert.event import ObjectEvent, ObjectReference, event_patch, new_event, truncate_message
from scheduler_core.model.kube import Pod

EVENT: Final = "event"
QUIET_SECONDS: Final = 10.0
# Some hundred bytes each; a pod that is evicted here gets a new Event object.
_MAX_EVENTS: Final = 10_000
# Of the pod's part; an Event's name has 253 characters at most.
_MAX_NAME: Final = 230


@dataclass(slots=True)
class _RecordedEvent:
    """An Event as it should be written."""

    event: ObjectEvent
    created: bool = False  # whether the API server has the Event object
    written_at: float = -float("inf")  # seconds of the clock


class EventRecorder:
    """Writes Events about pods, and their conditions.

    Args:
        component: the scheduler's name
        instance: distinguishes the processes of a scheduler
        clock: seconds of a clock that never goes back
    """

    def __init__(
        self, client: KubeClient, component: str, instance: str, clock: Callable[[], float], now: Callable[[], datetime]
    ) -> None:
        self._client = client.with_own_limits()
        self._component = component
        self._instance = instance
        self._clock = clock
        self._now = now
        self._on_failure: Callable[[str], None] = lambda _: None
        self._correlator = EventCorrelator()
        self._dispatcher = ApiDispatcher(EVENT, self._write, self._count_failure, self._give_up)
        self._events: LruMap[EventKey, _RecordedEvent] = LruMap(_MAX_EVENTS, on_evict=self._dispatcher.discard)
        self._conditions = Conditions(client, now, self._count_failure)

    def subscribe(self, on_failure: Callable[[str], None]) -> None:
        """Sets what is called, with EVENT or CONDITION, after each failed write."""
        self._on_failure = on_failure

    def record_failure(self, pod: Pod, reason: str, message: str) -> None:
        text = truncate_message(message)
        self.record(pod, "FailedScheduling", text, normal=False)
        self._conditions.put(pod, reason, text)

    def record(self, pod: Pod, reason: str, message: str, *, normal: bool) -> None:
        """Records an Event about a pod."""
        clock = self._clock()
        key, message = self._correlator.aggregate(pod, reason, message, clock)
        now = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        recorded = self._events.get(key)
        if recorded is None:
            name = self._name(pod, key)
            event = ObjectEvent(name, _reference(pod), reason, message, normal, self._component, now, now)
            recorded = _RecordedEvent(event)
            repeated = False
        else:
            before = recorded.event
            repeated = before.message == message and clock < recorded.written_at + QUIET_SECONDS
            recorded.event = replace(before, message=message, last=now, count=before.count + 1)
        self._events.put(key, recorded)
        if not repeated and self._correlator.may_write(pod, clock):
            self._dispatcher.put(key, recorded, urgent=not normal)

    def clear_conditions(self) -> None:
        """Drops conditions that are not written yet."""
        # Attempts of a successor decide what conditions say. Events are still written: an Event reports what has happened.
        self._conditions.clear()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._dispatcher.run())
            tasks.create_task(self._conditions.run())

    async def wait_until_written(self) -> None:
        """Returns once everything recorded has been written or given up."""
        await self._dispatcher.wait_until_idle()
        await self._conditions.wait_until_written()

    def _name(self, pod: Pod, key: EventKey) -> str:
        digest = hashlib.sha256(f"{key}{self._instance}".encode()).hexdigest()[:16]
        return f"{pod.name[:_MAX_NAME]}.{digest}"

    def _count_failure(self, kind: str) -> None:
        self._on_failure(kind)

    async def _write(self, key: EventKey, recorded: _RecordedEvent) -> None:
        del key
        await self._create_or_patch(recorded)
        recorded.written_at = self._clock()

    def _give_up(self, key: EventKey, recorded: _RecordedEvent) -> None:
        del key
        recorded.written_at = self._clock()

    async def _create_or_patch(self, recorded: _RecordedEvent) -> None:
        event = recorded.event
        namespace = event.about.namespace
        if recorded.created:
            try:
                await self._client.patch(EVENTS.path(namespace, event.name), event_patch(event))
            except ApiError as error:
                # The API server deletes an Event after an hour.
                if not error.not_found:
                    raise
            else:
                return
        try:
            await self._client.create(EVENTS.path(namespace), new_event(event))
        except ApiError as error:
            # The answer to an earlier call was lost.
            if not error.conflict:
                raise
            await self._client.patch(EVENTS.path(namespace, event.name), event_patch(event))
        recorded.created = True


def _reference(pod: Pod) -> ObjectReference:
    return ObjectReference(PODS.api_version, PODS.kind, pod.namespace, pod.name, pod.uid)


MAX_SIMILAR_MESSAGES: Final = 10
SIMILAR_INTERVAL: Final = 600.0
SPAM_LIMIT: Final = TokenBucket(1 / 300, 25)
COMBINED: Final = "(combined from similar events): "
# client-go's maxLruCacheEntries.
_MAX_ENTRIES: Final = 4096

EventKey = tuple[str, str, str]
"""A pod's UID, a reason and a message; the message is "" where similar messages are combined."""


@dataclass(slots=True)
class _SimilarReports:
    """The messages of one pod and reason."""

    messages: set[str] = field(default_factory=set)
    last: float = -float("inf")  # seconds of the latest report


class EventCorrelator:
    """Owner of what was reported lately; times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._similar: LruMap[tuple[str, str], _SimilarReports] = LruMap(_MAX_ENTRIES)
        self._buckets: LruMap[str, TokenBucket] = LruMap(_MAX_ENTRIES)

    def aggregate(self, pod: Pod, reason: str, message: str, now: float) -> tuple[EventKey, str]:
        """Returns the Event that a report belongs to, and the Event's message (EventAggregate)."""
        uid = pod_identity(pod)
        similar = self._similar.get((uid, reason))
        if similar is None or now - similar.last > SIMILAR_INTERVAL:
            similar = _SimilarReports()
            self._similar.put((uid, reason), similar)
        similar.messages.add(message)
        similar.last = now
        if len(similar.messages) < MAX_SIMILAR_MESSAGES:
            return (uid, reason, message), message
        similar.messages.pop()
        return (uid, reason, ""), COMBINED + message

    def may_write(self, pod: Pod, now: float) -> bool:
        """Counts an Event about a pod; False if there are too many (EventSourceObjectSpamFilter)."""
        uid = pod_identity(pod)
        bucket = self._buckets.get(uid) or SPAM_LIMIT
        if bucket.ready_at > now:
            return False
        self._buckets.put(uid, bucket.after(now))
        return True


def pod_identity(pod: Pod) -> str:
    """Returns what distinguishes a pod from a later one of its name."""
    return pod.uid or pod.key
