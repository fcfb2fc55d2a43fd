"""Events about Volumes, BackingImages and DiskSchedules: what a person must know, in `kubectl describe`.

Data flow: `record` → the latest Event per object and reason → one task that writes them, one after the other. An object gets one
Event per reason, which counts, and is written at most every `QUIET_SECONDS`; so a burst of grants on a disk costs a few calls.
An Event that cannot be written is dropped: conditions and statuses say the same.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import structlog

from app.kube.client import ApiError, KubeClient
from app.kube.resources import Resource
from scheduler_core.convert.object_header import header
from scheduler_core.lru import LruMap

log = structlog.get_logger("controllers")

EVENTS: Final = Resource("", "v1", "events", "Event", namespaced=True)
QUIET_SECONDS: Final = 10.0
_COMPONENT: Final = "longhorn-disk-schedule"
_MAX_EVENTS: Final = 10_000
# Of the object's part; an Event's name has 253 characters at most.
_MAX_NAME: Final = 200
# Kubernetes' limit for an Event's message.
_MAX_MESSAGE: Final = 1024
_API_VERSION: Final = "longhorn.io/v1beta2"


class Recorder(Protocol):
    """Receives what a person must know about an object."""

    def record(self, kind: str, raw: bytes, reason: str, message: str, *, normal: bool = True) -> None:
        """Records an Event about the object of this kind that was read as `raw`."""


class NoEvents:
    """Records nothing: the mirror decides nothing."""

    def record(self, kind: str, raw: bytes, reason: str, message: str, *, normal: bool = True) -> None:
        """Drops the Event."""


@dataclass(slots=True)
class _Event:
    """The Event of an object and a reason.

    Attributes:
        body: as it is created
        count: how often it was recorded
        created: whether the API server has it
        written_at: seconds of the clock
        waits: whether a newer message waits to be written
    """

    body: dict[str, Any]
    count: int = 0
    created: bool = False
    written_at: float = -float("inf")
    waits: bool = False


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
        self._events: LruMap[str, _Event] = LruMap(_MAX_EVENTS)
        self._waiting: dict[str, None] = {}
        self._not_empty = asyncio.Event()

    def record(self, kind: str, raw: bytes, reason: str, message: str, *, normal: bool = True) -> None:
        """Records an Event; within the quiet time only the latest message is kept."""
        metadata = header(raw)
        name = f"{metadata.name[:_MAX_NAME]}.{_digest(kind, metadata.name, metadata.uid, reason)}"
        event = self._events.get(name)
        time = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if event is None:
            event = _Event(
                {
                    "metadata": {"name": name, "namespace": self._namespace},
                    "involvedObject": {
                        "apiVersion": _API_VERSION,
                        "kind": kind,
                        "name": metadata.name,
                        "namespace": self._namespace,
                        "uid": metadata.uid,
                    },
                    "reason": reason,
                    "type": "Normal" if normal else "Warning",
                    "source": {"component": _COMPONENT},
                    "firstTimestamp": time,
                }
            )
            self._events.put(name, event)
        event.count += 1
        event.body.update(message=message[:_MAX_MESSAGE], lastTimestamp=time, count=event.count)
        if not event.waits:
            event.waits = True
            self._wait(name, event.written_at + QUIET_SECONDS - self._clock())

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            while not self._waiting:
                self._not_empty.clear()
                await self._not_empty.wait()
            name = next(iter(self._waiting))
            del self._waiting[name]
            event = self._events.get(name)
            if event is not None and self._allowed():
                event.waits = False
                event.written_at = self._clock()
                await self._write(name, event)

    def _wait(self, name: str, seconds: float) -> None:
        if seconds > 0:
            asyncio.get_running_loop().call_later(seconds, self._wait, name, 0.0)
            return
        self._waiting[name] = None
        self._not_empty.set()

    async def _write(self, name: str, event: _Event) -> None:
        body = dict(event.body)
        try:
            if not event.created:
                try:
                    await self._client.create(EVENTS.path(self._namespace), body)
                except ApiError as error:
                    # An earlier process has written it, or the answer was lost.
                    if not error.conflict:
                        raise
                    await self._patch(name, body)
                event.created = True
            else:
                await self._patch(name, body)
        except ApiError as error:
            # The API server deletes an Event after an hour.
            event.created = event.created and not error.not_found
            log.warning("an Event is dropped", event_name=name, problem=str(error))

    async def _patch(self, name: str, body: Mapping[str, Any]) -> None:
        changed = {key: body[key] for key in ("message", "lastTimestamp", "count")}
        await self._client.patch(EVENTS.path(self._namespace, name), changed)


def _digest(*parts: str) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:16]
