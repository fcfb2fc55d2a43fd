"""Events about Volumes, BackingImages and DiskSchedules: what a person must know, in `kubectl describe`.

Data flow: `record` → the latest Event per object and reason → one task that writes them, one after the other. An object gets one
Event per reason, which counts, and is written at most every `QUIET_SECONDS`; so a burst of grants on a disk costs a few calls.
An Event that cannot be written is dropped: conditions and statuses say the same.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Protocol

import structlog

from app.kube.client import ApiError, KubeClient
from app.kube.resources import DISK_SCHEDULES, EVENTS
from scheduler_core.caches import LruMap
from scheduler_core.convert.event import ObjectEvent, ObjectReference, event_patch, new_event
from scheduler_core.convert.object_header import header

log = structlog.get_logger("controllers")

QUIET_SECONDS: Final = 10.0
_COMPONENT: Final = "longhorn-disk-schedule"
_MAX_EVENTS: Final = 10_000
# Of the object's part; an Event's name has 253 characters at most.
_MAX_NAME: Final = 200


class Recorder(Protocol):
    """Receives what a person must know about an object."""

    def record(self, kind: str, raw: bytes, reason: str, message: str, *, normal: bool = True) -> None:
        """Records an Event about the object of this kind that was read as `raw`."""


class NoEvents:
    """Records nothing: the mirror decides nothing."""

    def record(self, kind: str, raw: bytes, reason: str, message: str, *, normal: bool = True) -> None:
        """Drops the Event."""


@dataclass(slots=True)
class _RecordedEvent:
    """An Event as it should be written."""

    event: ObjectEvent
    created: bool = False  # whether the API server has it
    written_at: float = -float("inf")  # seconds of the clock
    waits: bool = False  # whether a newer message waits to be written


class ObjectEventRecorder:
    """Writes Events in one namespace.

    Args:
        allowed: whether this process may write now
        clock: monotonic seconds
        now: the time of day
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        allowed: Callable[[], bool],
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._allowed = allowed
        self._clock = clock
        self._now = now
        self._events: LruMap[str, _RecordedEvent] = LruMap(_MAX_EVENTS)
        self._waiting: dict[str, None] = {}
        self._not_empty = asyncio.Event()

    def record(self, kind: str, raw: bytes, reason: str, message: str, *, normal: bool = True) -> None:
        """Records an Event; within the quiet time only the latest message is kept."""
        metadata = header(raw)
        name = f"{metadata.name[:_MAX_NAME]}.{_digest(kind, metadata.name, metadata.uid, reason)}"
        time = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        recorded = self._events.get(name)
        if recorded is None:
            # All kinds of Longhorn have one apiVersion.
            about = ObjectReference(DISK_SCHEDULES.api_version, kind, self._namespace, metadata.name, metadata.uid)
            event = ObjectEvent(name, about, reason, message, normal, _COMPONENT, time, time)
            recorded = _RecordedEvent(event)
            self._events.put(name, recorded)
        else:
            before = recorded.event
            recorded.event = replace(before, message=message, last=time, count=before.count + 1)
        if not recorded.waits:
            recorded.waits = True
            self._wait(name, recorded.written_at + QUIET_SECONDS - self._clock())

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            while not self._waiting:
                self._not_empty.clear()
                await self._not_empty.wait()
            name = next(iter(self._waiting))
            del self._waiting[name]
            recorded = self._events.get(name)
            if recorded is not None and self._allowed():
                recorded.waits = False
                recorded.written_at = self._clock()
                await self._write(recorded)

    def _wait(self, name: str, seconds: float) -> None:
        if seconds > 0:
            asyncio.get_running_loop().call_later(seconds, self._wait, name, 0.0)
            return
        self._waiting[name] = None
        self._not_empty.set()

    async def _write(self, recorded: _RecordedEvent) -> None:
        event = recorded.event
        try:
            if not recorded.created:
                try:
                    await self._client.create(EVENTS.path(self._namespace), new_event(event))
                except ApiError as error:
                    # An earlier process has written it, or the answer was lost.
                    if not error.conflict:
                        raise
                    await self._patch(event)
                recorded.created = True
            else:
                await self._patch(event)
        except ApiError as error:
            # The API server deletes an Event after an hour.
            recorded.created = recorded.created and not error.not_found
            log.warning("an Event is dropped", event_name=event.name, problem=str(error))

    async def _patch(self, event: ObjectEvent) -> None:
        await self._client.patch(EVENTS.path(self._namespace, event.name), event_patch(event))


def _digest(*parts: str) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:16]
