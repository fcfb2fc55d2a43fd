"""Keeps one DiskSchedule for each disk that a Longhorn node reports (node sync)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import structlog

from app.disk_schedule.controller import Controller, ControllerContext
from app.disk_schedule.informer import InformerObject
from app.kube.client import ApiError
from app.kube.resources import DISK_SCHEDULES
from app.runtime.work_queue import Requeue
from scheduler_core.convert.discovery import version_precondition
from scheduler_core.convert.disk_schedule import new_disk_schedule, with_finalizer, with_spec
from scheduler_core.disk_schedule.node_sync import Change, Create, Delete, UpdateSpec, sync_disks
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
        super().__init__(context, workers=1)

    def subscribe(self) -> None:
        """Subscribes to nodes and DiskSchedules."""
        self.cache.nodes.subscribe(self._on_node_change)
        self.cache.schedules.subscribe(self._on_schedule_change)

    def all_keys(self) -> Iterable[str]:
        """Returns the only key."""
        return (_ALL_DISKS,)

    def _on_node_change(self, _name: str, before: Node | Fault | None, after: Node | Fault | None) -> None:
        if _disks(before) != _disks(after):
            self.enqueue(_ALL_DISKS)

    def _on_schedule_change(
        self, _name: str, before: DiskSchedule | Fault | None, after: DiskSchedule | Fault | None
    ) -> None:
        if _relevant_fields(before) != _relevant_fields(after):
            self.enqueue(_ALL_DISKS)

    async def reconcile(self, key: str) -> Requeue | None:
        """Carries out the changes; after a conflict, the key is requeued."""
        del key
        cached = self.cache.schedules.all()
        schedules = {name: each.value for name, each in cached.items() if not isinstance(each.value, Fault)}
        outcome = sync_disks(self.cache.nodes.readable().values(), schedules, self.cache.nodes.unreadable().keys())
        self._log_problems(outcome.problems)
        conflict = False
        for change in outcome.changes:
            try:
                await self._write(change, cached)
            except ApiError as error:
                if not error.conflict and not error.not_found:
                    raise
                conflict = True
        return Requeue.CONFLICT if conflict else None

    async def _write(self, change: Change, cached: dict[str, InformerObject[DiskSchedule]]) -> None:
        match change:
            case Create(uuid, disk, node):
                body = new_disk_schedule(self.context.namespace, uuid, disk, node)
                await self.writer.create(DISK_SCHEDULES, body)
                log.info("DiskSchedule created", disk=disk, node=node, uuid=uuid)
            case UpdateSpec(schedule, disk, node):
                spec = replace(schedule.spec, disk=disk, node=node)
                body = with_finalizer(with_spec(cached[schedule.name].raw, spec))
                await self.writer.put_schedule(schedule.name, body)
            case Delete(schedule):
                options = version_precondition(cached[schedule.name].raw)
                await self.writer.delete(DISK_SCHEDULES, schedule.name, options)
                log.info("DiskSchedule deleted: its disk is gone", disk=schedule.spec.disk, uuid=schedule.name)

    def _log_problems(self, problems: tuple[str, ...]) -> None:
        """Logs the problems that are new since the last reconciliation."""
        for problem in problems:
            if problem not in self._logged_problems:
                log.warning("a disk cannot have a DiskSchedule of its own", problem=problem)
        self._logged_problems = problems


def _disks(node: Node | Fault | None) -> object:
    """Returns what node sync reads of a node."""
    if not isinstance(node, Node):
        return node
    return tuple((disk.name, disk.uuid, disk.in_status) for disk in node.disks)


def _relevant_fields(schedule: DiskSchedule | Fault | None) -> object:
    """Returns what node sync reads of a DiskSchedule."""
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
