"""Node sync: one DiskSchedule for each disk that a Longhorn node reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import structlog

from app.disk_schedule.controller import Context, Controller
from app.disk_schedule.informer import Seen
from app.kube.client import ApiError
from app.kube.resources import DISK_SCHEDULES
from app.runtime.work_queue import Again
from scheduler_core.convert.discovery import this_version
from scheduler_core.convert.disk_schedule import changed_spec, new_disk_schedule, with_finalizer
from scheduler_core.disk_schedule.node_sync import Change, Create, Delete, Rename, synced
from scheduler_core.model.disk_schedule import DiskSchedule, Fault
from scheduler_core.model.longhorn import Node

log = structlog.get_logger("controllers")

# One UUID may be on several nodes, so there is one decision about all disks, and one key.
_ALL: Final = "all disks"


class NodeSync(Controller):
    """Creates, names and deletes DiskSchedules."""

    name = "node-sync"

    def __init__(self, context: Context) -> None:
        self._told: tuple[str, ...] = ()
        super().__init__(context, workers=1)

    def listen(self) -> None:
        """A node's list of disks, and the DiskSchedules themselves."""
        self.watches.nodes.listen(self._node_changed)
        self.watches.schedules.listen(self._schedule_changed)

    def everything(self) -> Iterable[str]:
        """The one key."""
        return (_ALL,)

    def _node_changed(self, _name: str, before: Node | Fault | None, after: Node | Fault | None) -> None:
        if _disks(before) != _disks(after):
            self.look(_ALL)

    def _schedule_changed(
        self, _name: str, before: DiskSchedule | Fault | None, after: DiskSchedule | Fault | None
    ) -> None:
        if _identity(before) != _identity(after):
            self.look(_ALL)

    async def reconcile(self, key: str) -> Again | None:
        """Carries out each change that is still possible; the others are decided anew."""
        del key
        seen = self.watches.schedules.all()
        schedules = {name: each.value for name, each in seen.items() if not isinstance(each.value, Fault)}
        outcome = synced(self.watches.nodes.readable().values(), schedules, self.watches.nodes.unreadable().keys())
        self._tell(outcome.problems)
        behind = False
        for change in outcome.changes:
            try:
                await self._change(change, seen)
            except ApiError as error:
                if not error.conflict and not error.not_found:
                    raise
                behind = True
        return Again.CONFLICT if behind else None

    async def _change(self, change: Change, seen: dict[str, Seen[DiskSchedule]]) -> None:
        match change:
            case Create(uuid, disk, node):
                body = new_disk_schedule(self.context.namespace, uuid, disk, node)
                await self.carrier.create(DISK_SCHEDULES, body)
                log.info("DiskSchedule created", disk=disk, node=node, uuid=uuid)
            case Rename(schedule, disk, node):
                spec = replace(schedule.spec, disk=disk, node=node)
                body = with_finalizer(changed_spec(seen[schedule.name].raw, spec))
                await self.carrier.put_schedule(schedule.name, body)
            case Delete(schedule):
                options = this_version(seen[schedule.name].raw)
                await self.carrier.delete(DISK_SCHEDULES, schedule.name, options)
                log.info("DiskSchedule deleted: its disk is gone", disk=schedule.spec.disk, uuid=schedule.name)

    def _tell(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self._told:
                log.warning("a disk cannot have a DiskSchedule of its own", problem=problem)
        self._told = problems


def _disks(node: Node | Fault | None) -> object:
    if not isinstance(node, Node):
        return node
    return tuple((disk.name, disk.uuid, disk.in_status) for disk in node.disks)


def _identity(schedule: DiskSchedule | Fault | None) -> object:
    """What node sync reads of a DiskSchedule."""
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
