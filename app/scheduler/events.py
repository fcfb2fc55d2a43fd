"""What pods are told, as Events: one object per pod and reason, which counts, instead of one per attempt.

Data flow: `tell` → the latest word per pod and reason → `run` writes them one after the other, at most `MOST_A_SECOND`. The same text again within
`QUIET_SECONDS` is only counted, and written with the next one. What cannot be written is logged and left: events are news, not records.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import structlog

from app.kube.client import ApiError, KubeClient
from app.kube.resources import Resource
from scheduler_core.convert.binding import Happening, event_patch, new_event
from scheduler_core.generic.model import Pod

log = structlog.get_logger("events")

EVENTS: Final = Resource("", "v1", "events", "Event", namespaced=True)
MOST_A_SECOND: Final = 20
QUIET_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 1.0
# Some hundred bytes each; a pod that is forgotten gets a new Event object.
_MOST_KNOWN: Final = 10_000
_LONGEST_NAME: Final = 230  # of the pod's part; an Event's name has 253 characters at most

Key = tuple[str, str]


@dataclass(slots=True)
class _Known:
    happening: Happening
    created: bool = False
    written_at: float = -float("inf")


class Recorder:
    """Writes Events in the name of one scheduler, `component`; `instance` tells its processes apart."""

    def __init__(
        self, client: KubeClient, component: str, instance: str, clock: Callable[[], float], now: Callable[[], datetime]
    ) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._clock = clock
        self._now = now
        self._known: OrderedDict[Key, _Known] = OrderedDict()
        self._pending: dict[Key, _Known] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def tell(self, pod: Pod, reason: str, message: str, *, normal: bool) -> None:
        """Something has happened to a pod."""
        key, now = (pod.uid or "/".join(pod.key), reason), self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        known = self._known.get(key)
        if known is None:
            digest = hashlib.sha256(f"{key}{self._instance}".encode()).hexdigest()[:16]
            name = f"{pod.name[:_LONGEST_NAME]}.{digest}"
            known = _Known(Happening(name, pod, reason, message, normal, self._component, now, now))
            repeated = False
        else:
            before = known.happening
            repeated = before.message == message and self._clock() < known.written_at + QUIET_SECONDS
            known.happening = replace(before, message=message, last=now, count=before.count + 1)
        self._known[key] = known
        self._known.move_to_end(key)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        if not repeated:
            self._pending[key] = known
            self._idle.clear()
            self._wake.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await self._wake.wait()
            while self._pending:
                key = next(iter(self._pending))
                await self._write(key, self._pending.pop(key))
            self._wake.clear()
            self._idle.set()

    async def written(self) -> None:
        """Returns once everything told has been written, or given up."""
        await self._idle.wait()

    async def _write(self, key: Key, known: _Known) -> None:
        try:
            await self._put(known)
        except ApiError as error:
            if error.unreachable:
                self._pending.setdefault(key, known)
                await asyncio.sleep(_AGAIN_SECONDS)
                return
            log.warning("an event was refused", pod="/".join(known.happening.pod.key), problem=str(error))
        known.written_at = self._clock()
        await asyncio.sleep(1 / MOST_A_SECOND)

    async def _put(self, known: _Known) -> None:
        happening = known.happening
        namespace = happening.pod.namespace
        if known.created:
            try:
                await self._client.patch(EVENTS.path(namespace, happening.name), event_patch(happening))
            except ApiError as error:
                if not error.not_found:  # it lives for an hour
                    raise
            else:
                return
        try:
            await self._client.create(EVENTS.path(namespace), new_event(happening))
        except ApiError as error:
            if not error.conflict:  # an earlier answer was lost
                raise
            await self._client.patch(EVENTS.path(namespace, happening.name), event_patch(happening))
        known.created = True
