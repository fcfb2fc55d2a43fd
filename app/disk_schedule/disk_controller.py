"""Controllers of DiskSchedules: `Allocator` grants requests, `Mirror` only describes what Longhorn allocated."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from app.disk_schedule.controller import Controller, ControllerContext
from app.disk_schedule.informer import ImageObject, InformerObject
from app.kube.resources import DISK_SCHEDULES
from app.runtime.work_queue import Requeue
from scheduler_core.convert.disk_schedule import set_mirror_label, with_spec, with_status, without_finalizer
from scheduler_core.disk_schedule.reconcile import (
    NodeLookup,
    Reconciliation,
    allocation_events,
    mirror_spec,
    mirror_status,
    reconcile,
)
from scheduler_core.disk_schedule.writes import (
    BEING_DELETED,
    DISK_MISSING,
    DISK_REPLACED,
    NODE_MISSING,
    SCHEDULABLE,
)
from scheduler_core.model.disk_schedule import (
    FINALIZER,
    DiskSchedule,
    DiskScheduleSpec,
    DiskScheduleStatus,
    Fault,
    RequestKind,
)
from scheduler_core.model.kube import condition
from scheduler_core.model.longhorn import Node, Replica

log = structlog.get_logger("controllers")

_NO_LIMIT: Final = frozenset({BEING_DELETED, DISK_MISSING, DISK_REPLACED, NODE_MISSING})
"""Reasons with which storageAvailable is 0 whatever the disk has."""

_MAX_DEFERRED: Final = 600.0
"""Seconds for which a small change of storageAvailable may be missing in the status."""


def over_allocated(schedule: DiskSchedule) -> bool:
    """Whether a disk's status holds more than is available."""
    status = schedule.status
    if status.storage_available is None or condition(status.conditions, SCHEDULABLE).reason in _NO_LIMIT:
        return False
    # The condition Schedulable is not enough: a disk that is too full is soon under pressure too, and the condition may name that.
    return status.storage_scheduled > max(0, status.storage_available)


class DiskController(Controller):
    """Reconciles a DiskSchedule when it or its node changes."""

    def subscribe(self) -> None:
        """Subscribes to DiskSchedules, and to nodes for the limits."""
        self.cache.schedules.subscribe(self._on_schedule_change)
        self.cache.nodes.subscribe(self._on_node_change)

    def all_keys(self) -> Iterable[str]:
        return self.cache.schedules.all()

    async def run(self) -> None:
        """Runs until cancelled; logs every disk that is over-allocated at start."""
        for schedule in self.cache.schedules.readable().values():
            self._log_over_allocation(schedule, before=False)
        await super().run()

    def _on_schedule_change(
        self, name: str, before: DiskSchedule | Fault | None, after: DiskSchedule | Fault | None
    ) -> None:
        if isinstance(after, DiskSchedule) and self._running:
            self._log_over_allocation(after, before=isinstance(before, DiskSchedule) and over_allocated(before))
            self.enqueue(name)

    def _log_over_allocation(self, schedule: DiskSchedule, *, before: bool) -> None:
        if over_allocated(schedule) == before:
            return
        status = schedule.status
        disk_log = log.bind(uuid=schedule.name, node=schedule.spec.node, disk=schedule.spec.disk)
        if before:
            disk_log.info("a disk is not over-allocated any more")
        else:
            disk_log.warning(
                "a disk is over-allocated", scheduled=status.storage_scheduled, available=status.storage_available
            )

    def _on_node_change(self, name: str, before: Node | Fault | None, after: Node | Fault | None) -> None:
        del before, after
        for uuid in sorted(self.cache.disks.disks_of(name)):
            self.enqueue(uuid)

    async def reconcile(self, key: str) -> Requeue | None:
        """Reconciles one DiskSchedule; one that cannot be read is left alone."""
        cached = self.cache.schedules.get(key)
        if cached is None or isinstance(cached.value, Fault):
            return None
        await self.reconcile_schedule(cached, cached.value, self.cache.nodes.value(cached.value.spec.node))
        return None

    @abstractmethod
    async def reconcile_schedule(
        self, cached: InformerObject[DiskSchedule], schedule: DiskSchedule, node: NodeLookup
    ) -> None:
        """Writes what a DiskSchedule needs. `schedule` is the value of `cached`, `node` the Longhorn node that it
        names.

        Raises:
            ApiError: a write failed; `conflict` if the object changed meanwhile
        """


class Allocator(DiskController):
    """Grants and rejects requests."""

    name = "disk-schedule"

    def __init__(self, context: ControllerContext) -> None:
        # Since when a small change of storageAvailable has not been written, by UUID.
        self._deferred_since: dict[str, float] = {}
        super().__init__(context)

    def subscribe(self) -> None:
        """Subscribes to what is on the disks, too: objects with data are served first."""
        super().subscribe()
        self.cache.disks.subscribe(self._on_occupancy_change)

    def _on_occupancy_change(self, uuid: str) -> None:
        if self.cache.schedules.get(uuid) is not None:
            self.enqueue(uuid)

    async def reconcile_schedule(
        self, cached: InformerObject[DiskSchedule], schedule: DiskSchedule, node: NodeLookup
    ) -> None:
        """Writes the next status, then removes the finalizer if nothing is left."""
        if schedule.mirrored:
            # Left by a mirror: from now on it allocates. This write enqueues the DiskSchedule again.
            body = set_mirror_label(with_spec(cached.raw, schedule.spec), mirrored=False)
            await self.writer.put_schedule(schedule.name, body)
            return
        del node
        decided: list[tuple[DiskSchedule, DiskScheduleStatus]] = []

        def decide(cached: InformerObject[DiskSchedule], schedule: DiskSchedule) -> Mapping[str, Any] | None:
            status = self._decide_status(schedule)
            decided[:] = [(schedule, status)] if status is not None else []
            return None if status is None else with_status(cached.raw, status)

        await self.writer.schedules.write_status(schedule.name, decide)
        for before, status in decided:
            for event in allocation_events(before, status):
                self.context.events.record("DiskSchedule", cached.raw, event.reason, event.message, normal=event.normal)
        newest = self.cache.schedules.get(schedule.name)
        if newest is None or isinstance(newest.value, Fault) or not newest.value.deleting:
            return
        if self._reconcile(newest.value).remove_finalizer:
            await self.writer.put_without_finalizer(DISK_SCHEDULES, schedule.name, without_finalizer(newest.raw))

    def _decide_status(self, schedule: DiskSchedule) -> DiskScheduleStatus | None:
        """Returns the status to write now."""
        # A change by which nothing is decided is written after some minutes, or together with the next one.
        outcome = self._reconcile(schedule)
        if outcome.status is None or not outcome.deferrable:
            self._deferred_since.pop(schedule.name, None)
        else:
            now = self.context.clock()
            wait = self._deferred_since.setdefault(schedule.name, now) + _MAX_DEFERRED - now
            if wait > 0:
                self.queue.add_later(schedule.name, wait)
                return None
            del self._deferred_since[schedule.name]
        return outcome.status

    def _reconcile(self, schedule: DiskSchedule) -> Reconciliation:
        node = self.cache.nodes.value(schedule.spec.node)
        return reconcile(schedule, node, self.context.timestamp, self.cache.disks.occupancy(schedule.name))


class Mirror(DiskController):
    """Describes the disks of a Longhorn that allocates by itself; decides nothing."""

    name = "mirror"

    def __init__(self, context: ControllerContext) -> None:
        self._replicas_on_disk: defaultdict[str, set[str]] = defaultdict(set)
        super().__init__(context)

    def subscribe(self) -> None:
        super().subscribe()
        self.cache.replicas.subscribe(self._on_replica_change)
        self.cache.images.subscribe(self._on_image_change)

    def _on_replica_change(self, name: str, before: Replica | Fault | None, after: Replica | Fault | None) -> None:
        self._enqueue_disks_of_unreadable(RequestKind.REPLICA, name, before)
        if isinstance(before, Replica):
            self._replicas_on_disk[before.disk_id].discard(name)
            self.enqueue(before.disk_id)
        if isinstance(after, Replica):
            self._replicas_on_disk[after.disk_id].add(name)
            self.enqueue(after.disk_id)

    def _on_image_change(
        self, name: str, before: ImageObject | Fault | None, after: ImageObject | Fault | None
    ) -> None:
        self._enqueue_disks_of_unreadable(RequestKind.BACKING_IMAGE, name, before)
        for version in (before, after):
            if isinstance(version, ImageObject):
                for uuid in version.image.disks:
                    self.enqueue(uuid)

    def _enqueue_disks_of_unreadable(self, kind: RequestKind, name: str, before: object) -> None:
        """Enqueues the disks of an object that could not be read before."""
        if isinstance(before, Fault):
            # Its own disks were not known; the DiskSchedules that name it are.
            for uuid, schedule in self.cache.schedules.readable().items():
                if name in schedule.spec.requests(kind):
                    self.enqueue(uuid)

    async def reconcile_schedule(
        self, cached: InformerObject[DiskSchedule], schedule: DiskSchedule, node: NodeLookup
    ) -> None:
        """Writes spec and status that describe the disk."""
        if schedule.deleting:
            # A mirrored DiskSchedule promises nothing, so its deletion need not wait.
            if FINALIZER in schedule.finalizers:
                await self.writer.put_without_finalizer(DISK_SCHEDULES, schedule.name, without_finalizer(cached.raw))
            return
        images = [each.image for each in self.cache.images.readable().values()]
        objects = [self.cache.replicas.value(name) for name in self._replicas_on_disk.get(schedule.name, ())]
        replicas = [each for each in objects if isinstance(each, Replica)]
        spec = self._keep_unreadable(schedule, mirror_spec(schedule, replicas, images))
        if spec != schedule.spec or not schedule.mirrored:
            body = set_mirror_label(with_spec(cached.raw, spec), mirrored=True)
            cached = await self.writer.put_schedule(schedule.name, body)
        written = schedule if isinstance(cached.value, Fault) else cached.value
        status = mirror_status(written, node, self.context.timestamp)
        if status is not None:
            await self.writer.put_schedule(schedule.name, with_status(cached.raw, status), "status")

    def _keep_unreadable(self, schedule: DiskSchedule, spec: DiskScheduleSpec) -> DiskScheduleSpec:
        """Returns the spec with the old requests of unreadable objects."""
        # These are assumed to keep their places and sizes.
        replicas = {
            name: size for name, size in schedule.spec.replicas.items() if name in self.cache.replicas.unreadable()
        }
        images = {
            name: size for name, size in schedule.spec.backing_images.items() if name in self.cache.images.unreadable()
        }
        return replace(spec, replicas={**replicas, **spec.replicas}, backing_images={**images, **spec.backing_images})
