"""What pods are told, as Events: one object per pod and reason, which counts, instead of one per attempt; `Conditions` say the same.

Data flow: `tell` → the latest word per pod and reason → an `Outbox`. The same text again within `QUIET_SECONDS` is only counted, and written
with the next one. What is refused, and what the API server cannot write for long, is logged and left: events are news, not records.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from app.kube.client import ApiError, KubeClient
from app.kube.resources import Resource
from app.scheduler.api_dispatcher import Outbox
from app.scheduler.pod_condition import Conditions
from scheduler_core.convert.binding import Happening, event_patch, new_event, short
from scheduler_core.model.generic import Pod

EVENT: Final = "event"
EVENTS: Final = Resource("", "v1", "events", "Event", namespaced=True)
QUIET_SECONDS: Final = 10.0
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
        self._count: Callable[[str], None] = lambda _: None
        self._outbox = Outbox(EVENT, self._write, self._failed, self._given_up)
        self._conditions = Conditions(client, now, self._failed)

    def count(self, count: Callable[[str], None]) -> None:
        """Sets who is told, by EVENT or CONDITION, of each write that was refused or not answered."""
        self._count = count

    def not_scheduled(self, pod: Pod, reason: str, message: str) -> None:
        """An attempt to schedule a pod has failed; `reason` is the condition's."""
        text = short(message)
        self.tell(pod, "FailedScheduling", text, normal=False)
        self._conditions.put(pod, reason, text)

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
            self._outbox.discard(self._known.popitem(last=False)[0])
        if not repeated:
            self._outbox.put(key, known)

    def retire(self) -> None:
        """Somebody else schedules from now on. Their attempts decide what conditions say; Events tell what has happened, and are written."""
        self._conditions.clear()

    async def run(self) -> None:
        """Writes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._outbox.run())
            tasks.create_task(self._conditions.run())

    async def written(self) -> None:
        """Returns once everything told has been written, or given up."""
        await self._outbox.written()
        await self._conditions.written()

    def _failed(self, what: str) -> None:
        self._count(what)

    async def _write(self, key: Key, known: _Known) -> None:
        del key
        await self._put(known)
        known.written_at = self._clock()

    def _given_up(self, key: Key, known: _Known) -> None:
        del key
        known.written_at = self._clock()

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
