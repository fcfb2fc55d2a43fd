"""Withdraws requests whose Replica or BackingImage does not exist.

Such a request was written by hand, or by a controller that was about to write it when the object was deleted. In the proposal the
ReplicaController does nothing but release deleted replicas, so this is a controller of its own.

An object whose deletion was observed is gone. An object that was never observed may be about to be created; then it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import structlog

from app.disk_schedule.controller import Controller, ControllerContext
from app.disk_schedule.informer import Informer
from app.disk_schedule.writer import ReadObjects
from app.runtime.work_queue import Requeue
from scheduler_core.disk_schedule.writes import SetRequirement
from scheduler_core.model.disk_schedule import DiskSchedule, Fault, RequestKind

log = structlog.get_logger("controllers")


class OrphanRequests:
    """Remembers by name since when objects are missing, and recent deletions.

    Args:
        after: seconds after which a request for a missing object is withdrawn
        clock: monotonic seconds
    """

    def __init__(self, after: float, clock: Callable[[], float]) -> None:
        self._after = after
        self._clock = clock
        self._missing_since: dict[str, float] = {}
        # In the order of the deletions.
        self._deleted_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._missing_since.keys() | self._deleted_at.keys())

    def mark_deleted(self, name: str) -> None:
        """Records that the object's deletion was observed."""
        # A controller that was about to write a request for the object may still do so.
        self._deleted_at.pop(name, None)
        self._deleted_at[name] = self._clock()
        self._forget_old_deletions()

    def stop_waiting(self, name: str) -> None:
        """Ends the wait: the object exists, or has no requests."""
        self._missing_since.pop(name, None)

    def remaining_wait(self, name: str) -> float:
        """Returns the seconds to wait for a missing object; 0: it is gone."""
        self._forget_old_deletions()
        now = self._clock()
        if name in self._deleted_at:
            # This holds for longer than the deletion is remembered, because the request may be hard to withdraw.
            self._missing_since[name] = now - self._after
        return max(0.0, self._missing_since.setdefault(name, now) + self._after - now)

    def _forget_old_deletions(self) -> None:
        until = self._clock() - self._after
        while self._deleted_at and self._deleted_at[oldest := next(iter(self._deleted_at))] <= until:
            del self._deleted_at[oldest]


class OrphanController(Controller):
    """Reconciles the requests of one object, by `KIND/NAME`, if the object does not exist."""

    name = "orphan"

    def __init__(self, context: ControllerContext) -> None:
        self._orphans = OrphanRequests(context.orphans_after, context.clock)
        self._objects: Mapping[RequestKind, Informer[Any]] = {
            RequestKind.REPLICA: context.cache.replicas,
            RequestKind.BACKING_IMAGE: context.cache.images,
        }
        super().__init__(context)

    def subscribe(self) -> None:
        for kind, informer in self._objects.items():
            informer.subscribe(partial(self._on_object_change, kind))
        self.cache.schedules.subscribe(self._on_schedule_change)

    def all_keys(self) -> Iterable[str]:
        return sorted(key for each in self.cache.schedules.readable().values() for key in self._orphan_keys(each))

    def _on_object_change(self, kind: RequestKind, name: str, _before: object, after: object) -> None:
        if after is None and self._running:
            self._orphans.mark_deleted(_key(kind, name))
            self.enqueue(_key(kind, name))

    def _on_schedule_change(
        self, _name: str, before: DiskSchedule | Fault | None, after: DiskSchedule | Fault | None
    ) -> None:
        if isinstance(after, DiskSchedule):
            old_keys = self._orphan_keys(before) if isinstance(before, DiskSchedule) else set[str]()
            for key in sorted(self._orphan_keys(after) - old_keys):
                self.enqueue(key)

    def _orphan_keys(self, schedule: DiskSchedule) -> set[str]:
        return {
            _key(kind, name)
            for kind, informer in self._objects.items()
            for name in schedule.spec.requests(kind)
            if informer.get(name) is None
        }

    async def reconcile(self, key: str) -> Requeue | None:
        """Withdraws the requests of an object that does not exist, or waits for the object."""
        value, name = key.split("/")
        kind = RequestKind(value)
        schedules = self.cache.schedules.all()
        disks = sorted(
            uuid
            for uuid, each in schedules.items()
            if isinstance(each.value, DiskSchedule)
            and name in each.value.spec.requests(kind)
            and not each.value.keeps_requests
        )
        if self._objects[kind].get(name) is None and disks:
            if (wait := self._orphans.remaining_wait(key)) > 0:
                self.queue.add_later(key, wait)
                return None
            log.info("a request is withdrawn: there is no such object", kind=kind.value, name=name)
            withdrawals = [SetRequirement(uuid, kind, name, 0) for uuid in disks]
            await self.writer.write_all(withdrawals, ReadObjects(schedules))
        self._orphans.stop_waiting(key)
        return None


def _key(kind: RequestKind, name: str) -> str:
    return f"{kind.value}/{name}"
