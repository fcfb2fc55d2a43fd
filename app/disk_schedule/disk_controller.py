"""The DiskSchedule controller, and its counterpart that only observes: both answer what is in the spec."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import structlog

from app.disk_schedule.controller import Context, Controller
from app.disk_schedule.informer import ImageSeen, Seen
from app.kube.resources import DISK_SCHEDULES
from app.runtime.work_queue import Again
from scheduler_core.convert.disk_schedule import as_mirror, changed_spec, changed_status, without_finalizer
from scheduler_core.disk_schedule.conditions import (
    BEING_DELETED,
    DISK_MISSING,
    DISK_REPLACED,
    NODE_MISSING,
    SCHEDULABLE,
)
from scheduler_core.disk_schedule.mirror import mirrored, observed
from scheduler_core.disk_schedule.reconcile import NodeRead, reconciled
from scheduler_core.model.disk_schedule import FINALIZER, DiskSchedule, Fault, Kind, Spec
from scheduler_core.model.kube import condition
from scheduler_core.model.longhorn import Node, Replica

log = structlog.get_logger("controllers")

_NO_LIMIT: Final = frozenset({BEING_DELETED, DISK_MISSING, DISK_REPLACED, NODE_MISSING})
"""Reasons with which storageAvailable is 0 whatever the disk has."""


def over_allocated(schedule: DiskSchedule) -> bool:
    """Whether more is held on a disk than is available there, by its status.

    Its condition may say something else that is wrong with the disk: one that is too full is soon under pressure, too.
    """
    status = schedule.status
    if status.storage_available is None or condition(status.conditions, SCHEDULABLE).reason in _NO_LIMIT:
        return False
    return status.storage_scheduled > status.storage_available


class DiskController(Controller):
    """Looks at DiskSchedules: when one changes, and when its node does."""

    def listen(self) -> None:
        """DiskSchedules, and the nodes their limits are read from."""
        self.watches.schedules.listen(self._schedule_changed)
        self.watches.nodes.listen(self._node_changed)

    def everything(self) -> Iterable[str]:
        """All DiskSchedules."""
        return self.watches.schedules.all()

    async def run(self) -> None:
        """Works until cancelled; who begins tells of every disk that is over-allocated already."""
        for schedule in self.watches.schedules.readable().values():
            self._tell(schedule, was=False)
        await super().run()

    def _schedule_changed(
        self, name: str, before: DiskSchedule | Fault | None, after: DiskSchedule | Fault | None
    ) -> None:
        if isinstance(after, DiskSchedule) and self._works:
            self._tell(after, was=isinstance(before, DiskSchedule) and over_allocated(before))
            self.look(name)

    def _tell(self, schedule: DiskSchedule, *, was: bool) -> None:
        if over_allocated(schedule) == was:
            return
        spec, status = schedule.spec, schedule.status
        bound = log.bind(uuid=schedule.name, node=spec.node, disk=spec.disk)
        if was:
            bound.info("a disk is not over-allocated any more")
        else:
            bound.warning(
                "a disk is over-allocated", scheduled=status.storage_scheduled, available=status.storage_available
            )

    def _node_changed(self, name: str, before: Node | Fault | None, after: Node | Fault | None) -> None:
        del before, after
        for uuid, schedule in self.watches.schedules.readable().items():
            if schedule.spec.node == name:
                self.look(uuid)

    async def reconcile(self, key: str) -> Again | None:
        """Answers one disk's requests."""
        seen = self.watches.schedules.get(key)
        if seen is None or isinstance(seen.value, Fault):
            return None
        await self.answer(seen, seen.value, self.watches.nodes.value(seen.value.spec.node))
        return None

    @abstractmethod
    async def answer(self, seen: Seen[DiskSchedule], schedule: DiskSchedule, node: NodeRead) -> None:
        """Writes what follows for one DiskSchedule.

        Raises:
            ApiError: a write failed; `conflict` if somebody was faster
        """


class Allocator(DiskController):
    """Grants and rejects."""

    name = "disk-schedule"

    async def answer(self, seen: Seen[DiskSchedule], schedule: DiskSchedule, node: NodeRead) -> None:
        """Writes the next status, and takes the finalizer off when it is over."""
        if schedule.mirrored:  # left by a mirror: from now on it allocates
            body = as_mirror(changed_spec(seen.raw, schedule.spec), mirrored=False)
            await self.carrier.put_schedule(schedule.name, body)
            return  # the change brings it here again
        outcome = reconciled(schedule, node, self.context.time)
        if outcome.status is not None:
            body = changed_status(seen.raw, outcome.status)
            seen = await self.carrier.put_schedule(schedule.name, body, "status")
        if outcome.drop_finalizer:
            await self.carrier.last_write(DISK_SCHEDULES, schedule.name, without_finalizer(seen.raw))


class Mirror(DiskController):
    """Writes down what is on each disk of a Longhorn that allocates by itself, and decides nothing."""

    name = "mirror"

    def __init__(self, context: Context) -> None:
        self._on: defaultdict[str, set[str]] = defaultdict(set)
        super().__init__(context)

    def listen(self) -> None:
        """Also what is on the disks."""
        super().listen()
        self.watches.replicas.listen(self._replica_changed)
        self.watches.images.listen(self._image_changed)

    def _replica_changed(self, name: str, before: Replica | Fault | None, after: Replica | Fault | None) -> None:
        self._was_unreadable(Kind.REPLICA, name, before)
        if isinstance(before, Replica):
            self._on[before.disk_id].discard(name)
            self.look(before.disk_id)
        if isinstance(after, Replica):
            self._on[after.disk_id].add(name)
            self.look(after.disk_id)

    def _image_changed(self, name: str, before: ImageSeen | Fault | None, after: ImageSeen | Fault | None) -> None:
        self._was_unreadable(Kind.BACKING_IMAGE, name, before)
        for seen in (before, after):
            if isinstance(seen, ImageSeen):
                for uuid in seen.image.disks:
                    self.look(uuid)

    def _was_unreadable(self, kind: Kind, name: str, before: object) -> None:
        """What could not be read did not say where it was; the DiskSchedules that name it do."""
        if isinstance(before, Fault):
            for uuid, schedule in self.watches.schedules.readable().items():
                if name in schedule.spec.of(kind):
                    self.look(uuid)

    async def answer(self, seen: Seen[DiskSchedule], schedule: DiskSchedule, node: NodeRead) -> None:
        """Writes spec and status as they are found. Nobody was promised anything, so a deletion is not held up."""
        if schedule.deleting:
            if FINALIZER in schedule.finalizers:
                await self.carrier.last_write(DISK_SCHEDULES, schedule.name, without_finalizer(seen.raw))
            return
        images = [each.image for each in self.watches.images.readable().values()]
        found = [self.watches.replicas.value(name) for name in self._on.get(schedule.name, ())]
        replicas = [each for each in found if isinstance(each, Replica)]
        spec = self._with_unreadable(schedule, mirrored(schedule, replicas, images))
        if spec != schedule.spec or not schedule.mirrored:
            body = as_mirror(changed_spec(seen.raw, spec), mirrored=True)
            seen = await self.carrier.put_schedule(schedule.name, body)
        written = schedule if isinstance(seen.value, Fault) else seen.value
        status = observed(written, node, self.context.time)
        if status is not None:
            await self.carrier.put_schedule(schedule.name, changed_status(seen.raw, status), "status")

    def _with_unreadable(self, schedule: DiskSchedule, spec: Spec) -> Spec:
        """What cannot be read now is where and as large as it was."""
        lost = {
            name: size for name, size in schedule.spec.replicas.items() if name in self.watches.replicas.unreadable()
        }
        files = {
            name: size
            for name, size in schedule.spec.backing_images.items()
            if name in self.watches.images.unreadable()
        }
        return replace(spec, replicas={**lost, **spec.replicas}, backing_images={**files, **spec.backing_images})
