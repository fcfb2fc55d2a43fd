"""Controllers of DiskSchedules: `NodeController` keeps one for each disk that a Longhorn node reports (node sync), `Allocator` grants
requests, `Mirror` only describes what Longhorn allocated, and `OrphanController` withdraws requests whose Replica or BackingImage does
not exist.

Data flow of a creation: the caches show a disk without a DiskSchedule → all Replicas and BackingImages are listed once for all
such disks, which is newer than the loss of a DiskSchedule → `reconcile.new_schedule` adds the requests of everything that is on
the disk, and what the last version of an earlier DiskSchedule had granted → one POST. So at no time a DiskSchedule exists
without the requests of what runs on its disk.

An orphaned request was written by hand, or by a controller that was about to write it when the object was deleted. In the proposal the
ReplicaController does nothing but release deleted replicas, so a controller of its own withdraws it. An object whose deletion was
observed is gone. An object that was never observed may be about to be created; then it is waited for.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import structlog

from app.disk_schedule.controller_base import Controller, ControllerContext, over_allocated
from app.disk_schedule.controller_cache import ImageObject, Informer, InformerObject, Version
from app.disk_schedule.writer import ReadObjects
from app.kube.client import ApiError
from app.kube.resources import DISK_SCHEDULES, LONGHORN_BACKING_IMAGES, LONGHORN_REPLICAS
from app.runtime.work_queue import Requeue
from scheduler_core.convert import disk_schedule as convert
from scheduler_core.convert.leadership import version_precondition
from scheduler_core.disk_schedule import reconcile as decisions, writes as disk_writes
from scheduler_core.disk_schedule.occupancy import NO_OCCUPANTS, DiskOccupancy, occupancy_by_disk
from scheduler_core.model.disk_schedule import FINALIZER, DiskSchedule, DiskScheduleStatus, Fault, RequestKind
from scheduler_core.model.longhorn import Node, Replica
from scheduler_core.structs import replace

log = structlog.get_logger("controllers")

# For which a small change of storageAvailable may be missing in the status.
_MAX_DEFERRED = 600.0


class DiskController(Controller):
    """Reconciles a DiskSchedule when it or its node changes."""

    def subscribe(self) -> None:
        self.cache.schedules.subscribe(self._on_schedule_change)
        self.cache.nodes.subscribe(self._on_node_change)

    def all_keys(self) -> Iterable[str]:
        return self.cache.schedules.readable

    async def run(self) -> None:
        """Runs until cancelled; logs every disk that is over-allocated at start."""
        for schedule in self.cache.schedules.readable.values():
            self._log_over_allocation(schedule, before=False)
        await super().run()

    def _on_schedule_change(self, name: str, before: Version[DiskSchedule], after: Version[DiskSchedule]) -> None:
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

    def _on_node_change(self, name: str, _before: object, _after: object) -> None:
        for uuid in sorted(self.cache.disks.disks_of[name]):
            self.enqueue(uuid)

    async def reconcile(self, key: str) -> Requeue | None:
        """Reconciles one DiskSchedule; one that cannot be read is left alone."""
        cached = self.cache.schedules.get(key)
        if cached is not None and not isinstance(cached.value, Fault):
            await self.reconcile_schedule(cached, cached.value)
        return None

    @abstractmethod
    async def reconcile_schedule(self, cached: InformerObject[DiskSchedule], schedule: DiskSchedule) -> None:
        """Writes what a DiskSchedule, the value of `cached`, needs."""


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
        self.cache.disks.subscribe(lambda uuid: self.enqueue(uuid if self.cache.schedules.get(uuid) else ""))

    async def reconcile_schedule(self, cached: InformerObject[DiskSchedule], schedule: DiskSchedule) -> None:
        """Writes the next status, then removes the finalizer if nothing is left."""
        if schedule.mirrored:
            # Left by a mirror: from now on it allocates. This write enqueues the DiskSchedule again.
            body = convert.set_mirror_label(convert.with_spec(cached.raw, schedule.spec), mirrored=False)
            await self.writer.put_schedule(schedule.name, body)
            return
        decided: list[tuple[DiskSchedule, DiskScheduleStatus]] = []

        async def decide(cached: InformerObject[DiskSchedule], schedule: DiskSchedule) -> Mapping[str, Any] | None:
            status = self._decide_status(schedule)
            decided[:] = [(schedule, status)] if status is not None else []
            return None if status is None else convert.with_status(cached.raw, status)

        await self.writer.schedules.write_status(schedule.name, decide)
        for before, status in decided:
            for event in decisions.allocation_events(before, status):
                self.context.record_event("DiskSchedule", cached.raw, event.reason, event.message, normal=event.normal)
        newest = self.cache.schedules.get(schedule.name)
        if newest is None or isinstance(newest.value, Fault) or not newest.value.deleting:
            return
        if self._reconcile(newest.value).remove_finalizer:
            await self.writer.remove_finalizer(DISK_SCHEDULES, newest.raw)

    def _decide_status(self, schedule: DiskSchedule) -> DiskScheduleStatus | None:
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

    def _reconcile(self, schedule: DiskSchedule) -> decisions.Reconciliation:
        node = self.cache.nodes.value(schedule.spec.node)
        return decisions.reconcile(schedule, node, self.context.timestamp, self.cache.disks.occupancy(schedule.name))


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

    def _on_replica_change(self, name: str, before: Version[Replica], after: Version[Replica]) -> None:
        self._enqueue_disks_of_unreadable(RequestKind.REPLICA, name, before)
        if isinstance(before, Replica):
            self._replicas_on_disk[before.disk_id].discard(name)
            self.enqueue(before.disk_id)
        if isinstance(after, Replica):
            self._replicas_on_disk[after.disk_id].add(name)
            self.enqueue(after.disk_id)

    def _on_image_change(self, name: str, before: Version[ImageObject], after: Version[ImageObject]) -> None:
        self._enqueue_disks_of_unreadable(RequestKind.BACKING_IMAGE, name, before)
        for version in (before, after):
            if isinstance(version, ImageObject):
                for uuid in version.image.disks:
                    self.enqueue(uuid)

    def _enqueue_disks_of_unreadable(self, kind: RequestKind, name: str, before: object) -> None:
        if isinstance(before, Fault):
            # Its own disks were not known; the DiskSchedules that name it are.
            for uuid, schedule in self.cache.schedules.readable.items():
                if name in schedule.spec.requests(kind):
                    self.enqueue(uuid)

    async def reconcile_schedule(self, cached: InformerObject[DiskSchedule], schedule: DiskSchedule) -> None:
        """Writes spec and status that describe the disk."""
        if schedule.deleting:
            # A mirrored DiskSchedule promises nothing, so its deletion need not wait.
            if FINALIZER in schedule.finalizers:
                await self.writer.remove_finalizer(DISK_SCHEDULES, cached.raw)
            return
        images = [each.image for each in self.cache.images.readable.values()]
        on_disk = self._replicas_on_disk.get(schedule.name, ())
        replicas = [self.cache.replicas.readable[name] for name in on_disk if name in self.cache.replicas.readable]
        spec = decisions.mirror_spec(schedule, replicas, images)
        # Unreadable objects are assumed to keep their places and sizes.
        unreadable = {
            RequestKind.REPLICA: self.cache.replicas.unreadable,
            RequestKind.BACKING_IMAGE: self.cache.images.unreadable,
        }
        kept = {kind: unreadable[kind].keys() & schedule.spec.requests(kind).keys() for kind in RequestKind}
        spec = spec.with_requests(
            lambda kind: {**{name: schedule.spec.requests(kind)[name] for name in kept[kind]}, **spec.requests(kind)}
        )
        if spec != schedule.spec or not schedule.mirrored:
            body = convert.set_mirror_label(convert.with_spec(cached.raw, spec), mirrored=True)
            cached = await self.writer.put_schedule(schedule.name, body)
        written = schedule if isinstance(cached.value, Fault) else cached.value
        status = decisions.mirror_status(written, self.cache.nodes.value(schedule.spec.node), self.context.timestamp)
        if status is not None:
            await self.writer.put_schedule(schedule.name, convert.with_status(cached.raw, status), "status")


# One UUID may be on several nodes, so there is one decision about all disks, and one key.
_ALL_DISKS = "all disks"


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

    def _on_node_change(self, _name: str, before: Version[Node], after: Version[Node]) -> None:
        if _disks(before) != _disks(after):
            self.enqueue(_ALL_DISKS)

    def _on_schedule_change(self, name: str, before: Version[DiskSchedule], after: Version[DiskSchedule]) -> None:
        if after is None and isinstance(before, DiskSchedule) and not before.empty:
            self._predecessors[name] = before
        if _relevant_fields(before) != _relevant_fields(after):
            self.enqueue(_ALL_DISKS)

    async def reconcile(self, key: str) -> Requeue | None:
        """Carries out the changes; after a conflict, the key is requeued."""
        del key
        schedules, nodes = self.cache.schedules, self.cache.nodes
        outcome = decisions.sync_disks(nodes.readable.values(), schedules.readable, nodes.unreadable)
        decided_from = {each.name: each.raw for each in schedules.values()}
        for problem in outcome.problems:
            if problem not in self._logged_problems:
                log.warning("a disk cannot have a DiskSchedule of its own", problem=problem)
        self._logged_problems = outcome.problems
        # An object that cannot be read exists, too.
        changes = [
            each for each in outcome.changes if not isinstance(each, decisions.Create) or each.uuid not in decided_from
        ]
        creations = {each.uuid for each in changes if isinstance(each, decisions.Create)}
        for uuid in self._predecessors.keys() - creations:
            schedule = schedules.readable.get(uuid)
            if schedule is None or not schedule.deleting:
                # Its disk is gone, or another process has created the successor.
                del self._predecessors[uuid]
        occupancy: Mapping[str, DiskOccupancy] = {}
        if creations:
            read_replica = self.cache.replicas.object_of
            replicas = [read_replica(raw).value for raw in await self.writer.list_all(LONGHORN_REPLICAS)]
            images = [convert.backing_image_copies(raw) for raw in await self.writer.list_all(LONGHORN_BACKING_IMAGES)]
            occupancy = occupancy_by_disk(
                [each for each in replicas if not isinstance(each, Fault)],
                {name: each.volume for name, each in self.cache.volumes.readable.items()},
                [each for each in images if not isinstance(each, Fault)],
            )
        conflict = False
        for change in changes:
            try:
                if isinstance(change, decisions.Create):
                    await self._create(change, occupancy.get(change.uuid, NO_OCCUPANTS))
                else:
                    await self._write(change, decided_from[change.schedule.name])
            except ApiError as error:
                if not error.conflict and not error.not_found:
                    raise
                conflict = True
        return Requeue.CONFLICT if conflict else None

    async def _create(self, create: decisions.Create, occupancy: DiskOccupancy) -> None:
        schedule = decisions.new_schedule(create, occupancy, self._predecessors.get(create.uuid))
        raw = await self.writer.create(DISK_SCHEDULES, convert.new_disk_schedule(self.context.namespace, schedule))
        requests = len(schedule.spec.replicas) + len(schedule.spec.backing_images)
        if not schedule.empty:
            message = f"created with {requests} requests of what is on disk {create.disk} of node {create.node} already"
            self.context.record_event("DiskSchedule", raw, "Created", message)
        log.info("DiskSchedule created", disk=create.disk, node=create.node, uuid=create.uuid, requests=requests)

    async def _write(self, change: decisions.UpdateSpec | decisions.Delete | decisions.Recreate, raw: bytes) -> None:
        match change:
            case decisions.UpdateSpec(schedule, disk, node):
                spec = replace(schedule.spec, disk=disk, node=node)
                body = convert.set_finalizer(convert.with_spec(raw, spec), present=True)
                await self.writer.put_schedule(schedule.name, body)
            case decisions.Delete(schedule):
                await self.writer.delete(DISK_SCHEDULES, schedule.name, version_precondition(raw))
                log.info("DiskSchedule deleted: its disk is gone", disk=schedule.spec.disk, uuid=schedule.name)
            case decisions.Recreate(schedule):
                self._predecessors[schedule.name] = schedule
                await self.writer.remove_finalizer(DISK_SCHEDULES, raw)
                log.info(
                    "DiskSchedule is created again: its disk is there", disk=schedule.spec.disk, uuid=schedule.name
                )


def _disks(node: Version[Node]) -> object:
    return [(disk.name, disk.uuid, disk.in_status) for disk in node.disks] if isinstance(node, Node) else node


def _relevant_fields(schedule: Version[DiskSchedule]) -> object:
    if not isinstance(schedule, DiskSchedule):
        return schedule
    place = (schedule.spec.node, schedule.spec.disk)
    return (*place, schedule.finalizers, schedule.deleting, schedule.empty, bool(schedule.faults))


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
        return sorted(key for each in self.cache.schedules.readable.values() for key in self._orphan_keys(each))

    def _on_object_change(self, kind: RequestKind, name: str, _before: object, after: object) -> None:
        if after is None and self._running:
            self._orphans.mark_deleted(_key(kind, name))
            self.enqueue(_key(kind, name))

    def _on_schedule_change(self, _name: str, before: Version[DiskSchedule], after: Version[DiskSchedule]) -> None:
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
        schedules = dict(self.cache.schedules.readable)
        disks = sorted(
            uuid for uuid, each in schedules.items() if name in each.spec.requests(kind) and not each.keeps_requests
        )
        if self._objects[kind].get(name) is None and disks:
            if (wait := self._orphans.remaining_wait(key)) > 0:
                self.queue.add_later(key, wait)
                return None
            log.info("a request is withdrawn: there is no such object", kind=kind.value, name=name)
            withdrawals = [disk_writes.SetRequirement(uuid, kind, name, 0) for uuid in disks]
            await self.writer.write_all(withdrawals, ReadObjects(schedules))
        self._orphans.stop_waiting(key)
        return None


def _key(kind: RequestKind, name: str) -> str:
    return f"{kind.value}/{name}"
