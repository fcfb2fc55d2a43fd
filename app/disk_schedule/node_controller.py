"""Keeps one DiskSchedule for each disk that a Longhorn node reports (node sync).

Data flow of a creation: the caches show a disk without a DiskSchedule → all Replicas and BackingImages are listed once for all
such disks, which is newer than the loss of a DiskSchedule → `node_sync.new_schedule` adds the requests of everything that is on
the disk, and what the last version of an earlier DiskSchedule had granted → one POST. So at no time a DiskSchedule exists
without the requests of what runs on its disk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

import structlog

from app.disk_schedule.controller import Controller, ControllerContext
from app.disk_schedule.informer import InformerObject
from app.kube.client import ApiError
from app.kube.resources import DISK_SCHEDULES, LONGHORN_BACKING_IMAGES, LONGHORN_REPLICAS
from app.runtime.work_queue import Requeue
from scheduler_core.convert.discovery import version_precondition
from scheduler_core.convert.disk_schedule import (
    backing_image_copies,
    new_disk_schedule,
    with_finalizer,
    with_spec,
    without_finalizer,
)
from scheduler_core.disk_schedule.node_sync import Create, Delete, Recreate, UpdateSpec, new_schedule, sync_disks
from scheduler_core.disk_schedule.occupancy import NO_OCCUPANTS, DiskOccupancy, occupancy_by_disk
from scheduler_core.model.disk_schedule import DiskSchedule, Fault
from scheduler_core.model.longhorn import Node

log = structlog.get_logger("controllers")

# One UUID may be on several nodes, so there is one decision about all disks, and one key.
_ALL_DISKS: Final = "all disks"


class NodeController(Controller):
    """Creates, updates and deletes DiskSchedules."""

    name = "node-sync"

    def __init__(self, context: ControllerContext) -> None:
        self._logged_problems: tuple[str, ...] = ()
        # The last versions of DiskSchedules that are gone, by UUID; a process that starts later knows only what has data.
        self._predecessors: dict[str, DiskSchedule] = {}
        super().__init__(context, workers=1)

    def subscribe(self) -> None:
        self.cache.nodes.subscribe(self._on_node_change)
        self.cache.schedules.subscribe(self._on_schedule_change)

    def all_keys(self) -> Iterable[str]:
        return (_ALL_DISKS,)

    def _on_node_change(self, _name: str, before: Node | Fault | None, after: Node | Fault | None) -> None:
        if _disks(before) != _disks(after):
            self.enqueue(_ALL_DISKS)

    def _on_schedule_change(
        self, name: str, before: DiskSchedule | Fault | None, after: DiskSchedule | Fault | None
    ) -> None:
        if after is None and isinstance(before, DiskSchedule) and not before.empty:
            self._predecessors[name] = before
        if _relevant_fields(before) != _relevant_fields(after):
            self.enqueue(_ALL_DISKS)

    async def reconcile(self, key: str) -> Requeue | None:
        """Carries out the changes; after a conflict, the key is requeued."""
        del key
        cached = self.cache.schedules.all()
        schedules = {name: each.value for name, each in cached.items() if not isinstance(each.value, Fault)}
        outcome = sync_disks(self.cache.nodes.readable().values(), schedules, self.cache.nodes.unreadable().keys())
        self._log_problems(outcome.problems)
        # An object that cannot be read exists, too.
        changes = [each for each in outcome.changes if not isinstance(each, Create) or each.uuid not in cached]
        creations = [each.uuid for each in changes if isinstance(each, Create)]
        self._forget_predecessors(creations)
        occupancy = await self._list_occupancy() if creations else {}
        conflict = False
        for change in changes:
            try:
                if isinstance(change, Create):
                    await self._create(change, occupancy.get(change.uuid, NO_OCCUPANTS))
                else:
                    await self._write(change, cached)
            except ApiError as error:
                if not error.conflict and not error.not_found:
                    raise
                conflict = True
        return Requeue.CONFLICT if conflict else None

    async def _list_occupancy(self) -> dict[str, DiskOccupancy]:
        replicas = [self.cache.replicas.object_of(raw).value for raw in await self.writer.list_all(LONGHORN_REPLICAS)]
        images = [backing_image_copies(raw) for raw in await self.writer.list_all(LONGHORN_BACKING_IMAGES)]
        return occupancy_by_disk(
            [each for each in replicas if not isinstance(each, Fault)],
            {name: each.volume for name, each in self.cache.volumes.readable().items()},
            [each for each in images if not isinstance(each, Fault)],
        )

    async def _create(self, create: Create, occupancy: DiskOccupancy) -> None:
        schedule = new_schedule(create, occupancy, self._predecessors.get(create.uuid))
        raw = await self.writer.create(DISK_SCHEDULES, new_disk_schedule(self.context.namespace, schedule))
        if not schedule.empty:
            requests = len(schedule.spec.replicas) + len(schedule.spec.backing_images)
            message = f"created with {requests} requests of what is on disk {create.disk} of node {create.node} already"
            self.context.events.record("DiskSchedule", raw, "Created", message)
        log.info(
            "DiskSchedule created",
            disk=create.disk,
            node=create.node,
            uuid=create.uuid,
            requests=len(schedule.spec.replicas) + len(schedule.spec.backing_images),
        )

    def _forget_predecessors(self, creations: Collection[str]) -> None:
        for uuid in self._predecessors.keys() - set(creations):
            cached = self.cache.schedules.value(uuid)
            if not (isinstance(cached, DiskSchedule) and cached.deleting):
                # Its disk is gone, or another process has created the successor.
                del self._predecessors[uuid]

    async def _write(
        self, change: UpdateSpec | Delete | Recreate, cached: dict[str, InformerObject[DiskSchedule]]
    ) -> None:
        raw = cached[change.schedule.name].raw
        match change:
            case UpdateSpec(schedule, disk, node):
                spec = replace(schedule.spec, disk=disk, node=node)
                await self.writer.put_schedule(schedule.name, with_finalizer(with_spec(raw, spec)))
            case Delete(schedule):
                await self.writer.delete(DISK_SCHEDULES, schedule.name, version_precondition(raw))
                log.info("DiskSchedule deleted: its disk is gone", disk=schedule.spec.disk, uuid=schedule.name)
            case Recreate(schedule):
                self._predecessors[schedule.name] = schedule
                await self.writer.put_without_finalizer(DISK_SCHEDULES, schedule.name, without_finalizer(raw))
                log.info(
                    "DiskSchedule is created again: its disk is there", disk=schedule.spec.disk, uuid=schedule.name
                )

    def _log_problems(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self._logged_problems:
                log.warning("a disk cannot have a DiskSchedule of its own", problem=problem)
        self._logged_problems = problems


def _disks(node: Node | Fault | None) -> object:
    if not isinstance(node, Node):
        return node
    return tuple((disk.name, disk.uuid, disk.in_status) for disk in node.disks)


def _relevant_fields(schedule: DiskSchedule | Fault | None) -> object:
    if not isinstance(schedule, DiskSchedule):
        return schedule
    return (
        schedule.spec.node,
        schedule.spec.disk,
        schedule.finalizers,
        schedule.deleting,
        schedule.empty,
        bool(schedule.faults),
    )
