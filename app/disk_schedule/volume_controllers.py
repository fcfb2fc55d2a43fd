"""Controllers of what is placed on disks. `VolumeController` reconciles places, requests and sizes of a volume's replicas, and the
volume's condition DiskAllocation; `ReplicaController` releases what a replica held, only when the replica is deleted; `ImageController`
reconciles where copies of a backing image are made, and requests for their space.
"""

from collections.abc import Iterable, Mapping

from app.disk_schedule import writer
from app.disk_schedule.controller_base import Controller
from app.disk_schedule.controller_cache import ImageObject, InformerObject, Version, VolumeObject, condition_of
from app.kube.resources import LONGHORN_BACKING_IMAGES, LONGHORN_REPLICAS, LONGHORN_VOLUMES
from app.runtime.work_queue import Requeue
from scheduler_core import errors
from scheduler_core.convert import disk_schedule as convert
from scheduler_core.convert.wire_types import header
from scheduler_core.disk_schedule import backing_images, writes as disk_writes
from scheduler_core.disk_schedule.volumes import VolumeDecision, VolumeSnapshot, condition_writes, decide_volume
from scheduler_core.model.disk_schedule import BackingImageCopies, DiskSchedule, Fault, RequestKind
from scheduler_core.model.kube import Condition
from scheduler_core.model.longhorn import Disk, Node, Replica
from scheduler_core.structs import replace

_EXPANSION_REASONS = frozenset(
    {disk_writes.EXPANSION_PENDING, disk_writes.EXPANSION_GRANTED, disk_writes.EXPANSION_REJECTED}
)


class VolumeController(Controller):
    """Reconciles a volume when it, a replica, or a replica's allocation changes."""

    name = "volume"

    def subscribe(self) -> None:
        """Subscribes to volumes, replicas, DiskSchedules and backing images.

        A volume depends on the node of a DiskSchedule, on whether its disk is there, and on the allocations of
        replicas, which follow from those of their images. It depends on whether the size of its backing image is known.
        """
        self.cache.volumes.subscribe(self._on_volume_change)
        self.cache.replicas.subscribe(self._on_replica_change)
        self.cache.schedules.subscribe(self._on_schedule_change)
        self.cache.images.subscribe(self._on_image_change)

    def all_keys(self) -> Iterable[str]:
        return (*self.cache.volumes.readable, *self.cache.volumes.unreadable)

    def _on_volume_change(self, name: str, _before: Version[VolumeObject], after: Version[VolumeObject]) -> None:
        if after is not None:
            self.enqueue(name)

    def _on_replica_change(self, name: str, before: Version[Replica], after: Version[Replica]) -> None:
        if isinstance(after, Fault):
            self.enqueue(self.cache.disks.volume_of_replica.get(name, ""))
        if isinstance(before, Replica):
            self.enqueue(before.volume)
        if isinstance(after, Replica):
            self.enqueue(after.volume)

    def _on_schedule_change(self, _name: str, before: Version[DiskSchedule], after: Version[DiskSchedule]) -> None:
        old_allocations = before.status.replicas if isinstance(before, DiskSchedule) else {}
        new_allocations = after.status.replicas if isinstance(after, DiskSchedule) else {}
        names = disk_writes.changed_names(old_allocations, new_allocations)
        places = {
            (each.spec.node, disk_writes.gone_disk(each)) for each in (before, after) if isinstance(each, DiskSchedule)
        }
        for name in sorted(names | new_allocations.keys() if len(places) > 1 else names):
            if name in self.cache.replicas.readable:
                self.enqueue(self.cache.replicas.readable[name].volume)

    def _on_image_change(self, name: str, before: Version[ImageObject], after: Version[ImageObject]) -> None:
        if _image_size(before) != _image_size(after):
            for volume in sorted(self.cache.disks.volumes_of[name]):
                self.enqueue(volume)

    async def reconcile(self, key: str) -> Requeue | None:
        """Decides from the caches, and writes.

        A decision without writes costs no call. The objects of a decision that needs to be sure are read from the API server
        before, after the DiskSchedules, and it is made again (see `_needs_reading`). So are the DiskSchedules of replicas that
        are to leave bytes they hold: their disk may be there again.
        """
        cached = self.cache.volumes.get(key)
        if cached is None:
            return None
        schedules = dict(self.cache.schedules.readable)
        known = (self.cache.replicas.get(name) for name in sorted(self.cache.disks.replicas_of[key]))
        replicas = [each for each in known if each is not None]
        decision, read_objects = self._decide(schedules, cached, replicas)
        disks_to_leave = _disks_to_leave(decision.writes, _places(replicas), schedules)
        if disks_to_leave or _needs_reading(decision.writes):
            for uuid in disks_to_leave:
                await self.writer.read_schedule(uuid)
            schedules = dict(self.cache.schedules.readable)
            raw = await self.writer.read(LONGHORN_VOLUMES, key)
            if raw is None:
                return None
            raw_replicas = await self.writer.list_replicas(key, self.cache.disks.replicas_of[key])
            replicas = [self.cache.replicas.object_of(raw_replica) for raw_replica in raw_replicas.values()]
            decision, read_objects = self._decide(schedules, self.cache.volumes.object_of(raw), replicas)
        assignments = [
            write for write in decision.writes if isinstance(write, disk_writes.AssignReplica) and write.disk
        ]
        for assignment in assignments:
            self.cache.disks.assume(assignment.replica, assignment.disk)
        try:
            await self.writer.write_all(decision.writes, read_objects)
        finally:
            for assignment in assignments:
                self.cache.disks.refresh(assignment.replica)
        self._record_events(cached.raw, condition_of(cached.raw), decision.writes, _places(replicas))
        return Requeue.WAITING if decision.requeue else None

    def _record_events(
        self, raw: bytes, before: Condition | None, writes: Iterable[disk_writes.Write], places: Mapping[str, str]
    ) -> None:
        """Records what a person must know of a decision that was carried out."""
        # `places` are the UUIDs of the replicas' disks before.
        earlier = before.reason if before else ""
        for write in writes:
            match write:
                case disk_writes.SetVolumeCondition(condition):
                    # A volume that is allocated at once gets no Event: its condition, and the Events of the disks, say so.
                    if condition.status == "True" and earlier not in {"", disk_writes.ALLOCATION_PENDING}:
                        self.context.record_event("Volume", raw, "Allocated", "every replica holds its bytes")
                    elif condition.status != "True" and condition.reason not in {
                        earlier,
                        disk_writes.ALLOCATION_PENDING,
                    }:
                        self.context.record_event("Volume", raw, condition.reason, condition.message, normal=False)
                case disk_writes.AssignReplica(replica, node, disk) if places.get(replica):
                    target = f"moves to disk {disk} on node {node}" if disk else "has no place now"
                    message = f"replica {replica} leaves disk {places[replica]} and {target}"
                    self.context.record_event("Volume", raw, "ReplicaMoved", message)
                case _:
                    pass

    def _decide(
        self,
        schedules: dict[str, DiskSchedule],
        volume_object: InformerObject[VolumeObject],
        replica_objects: Iterable[InformerObject[Replica]],
    ) -> tuple[VolumeDecision, writer.ReadObjects]:
        raw = volume_object.raw
        volume = volume_object.value
        replicas = {each.name: each.value for each in replica_objects}
        objects = {(RequestKind.REPLICA, each.name): each.raw for each in replica_objects}
        read_objects = writer.ReadObjects(dict(schedules), raw, objects)
        problem = _problem(volume, replicas)
        if isinstance(volume, Fault) or problem:
            wanted = disk_writes.unallocated_condition(disk_writes.UNREADABLE, problem)
            reported = condition_writes(condition_of(raw), wanted, self.context.timestamp)
            return VolumeDecision(reported), read_objects
        readable_replicas = tuple(each for each in replicas.values() if isinstance(each, Replica))
        disks_without_schedule = {each.disk_id for each in readable_replicas if each.disk_id} - schedules.keys()
        requested = {name: self.cache.disks.disks_requesting[name] & schedules.keys() for name in replicas}
        cluster = self.cache.cluster()
        if disks_without_schedule:
            # A replica's place is given up only if no node lists its disk. Whether a node that cannot be read does is not known, so it is
            # closed and lists them all.
            listed = tuple(Disk("", uuid=uuid) for uuid in sorted(disks_without_schedule))
            closed = (Node(name, disks=listed) for name in self.cache.nodes.unreadable)
            cluster = cluster.with_nodes((*self.cache.nodes.readable.values(), *closed))
        image = self.cache.images.value(volume.volume.backing_image)
        snapshot = VolumeSnapshot(
            cluster,
            volume.volume,
            readable_replicas,
            schedules,
            self.cache.disks.space(),
            volume.condition,
            str(image) if isinstance(image, Fault) else "",
            header(raw).created if volume.condition is None else "",
            requested,
        )
        return decide_volume(snapshot, self.context.timestamp), read_objects


def _places(replicas: Iterable[InformerObject[Replica]]) -> dict[str, str]:
    return {each.name: each.value.disk_id for each in replicas if isinstance(each.value, Replica)}


def _disks_to_leave(
    writes: Iterable[disk_writes.Write], places: Mapping[str, str], schedules: Mapping[str, DiskSchedule]
) -> set[str]:
    leaving = [
        each.replica for each in writes if isinstance(each, disk_writes.AssignReplica) and each.replica in places
    ]
    allocations = (
        (places[name], schedules[places[name]].status.replicas.get(name))
        for name in leaving
        if places[name] in schedules
    )
    return {uuid for uuid, allocation in allocations if allocation is not None and allocation.size}


def _needs_reading(writes: Iterable[disk_writes.Write]) -> bool:
    """Whether a decision from caches must be made again from newer objects, read after the cached DiskSchedules."""
    assigned: set[str] = set()
    for write in writes:
        match write:
            case disk_writes.AssignReplica(name):
                # Written against the version of the Replica, and its request follows from that.
                assigned.add(name)
            case disk_writes.SetVolumeCondition(condition):
                # Written against the version of the volume; the direction of an expansion follows from several objects together.
                if condition.reason in _EXPANSION_REASONS:
                    return True
            case disk_writes.SetRequirement():
                # A withdrawal reads its object; any other request follows from several objects together.
                if write.size and write.name not in assigned:
                    return True
            case _:
                return True
    return False


def _image_size(image: ImageObject | Fault | None) -> int | Fault | None:
    return image.copies.size if isinstance(image, ImageObject) else image


def _problem(volume: VolumeObject | Fault, replicas: Mapping[str, Replica | Fault]) -> str:
    if isinstance(volume, Fault):
        return f"the volume cannot be read: {volume}"
    # An unreadable replica may be anywhere and of any size.
    faults = [
        f"replica {name} cannot be read: {each}" for name, each in sorted(replicas.items()) if isinstance(each, Fault)
    ]
    return "; ".join(faults)


class ReplicaController(Controller):
    """Reconciles replicas that are being deleted."""

    name = "replica"

    def subscribe(self) -> None:
        self.cache.replicas.subscribe(self._on_replica_change)

    def all_keys(self) -> Iterable[str]:
        """Returns the names of replicas that are being deleted, or may be because they cannot be read."""
        replicas = self.cache.replicas
        return sorted({*replicas.unreadable, *(name for name, each in replicas.readable.items() if each.deleting)})

    def _on_replica_change(self, name: str, _before: Version[Replica], after: Version[Replica]) -> None:
        if isinstance(after, Fault) or (after is not None and after.deleting):
            self.enqueue(name)

    async def reconcile(self, key: str) -> Requeue | None:
        """Withdraws the requests for a replica that is being deleted, then removes its finalizer."""
        schedules = dict(self.cache.schedules.readable)
        raw = await self.writer.read(LONGHORN_REPLICAS, key)
        if raw is not None:
            replica = self.cache.replicas.object_of(raw).value
            if isinstance(replica, Fault):
                # It still shows whether it is being deleted.
                replica = replace(Replica(key, ""), deleting=header(raw).deleting)
            writes = disk_writes.release_replica(replica, schedules)
            await self.writer.write_all(
                writes, writer.ReadObjects(schedules, objects={(RequestKind.REPLICA, key): raw})
            )
        return None


class UnreadableError(errors.CoreError):
    """A backing image cannot be read; it has no condition that could say so, but the log and a metric do."""


class ImageController(Controller):
    """Reconciles an image when it, its allocations, or its users change."""

    name = "backing-image"

    def subscribe(self) -> None:
        """Subscribes to images, and to what may change the copies that they need."""
        self.cache.images.subscribe(self._on_image_change)
        self.cache.schedules.subscribe(self._on_schedule_change)
        # A replica needs a copy of its image on its disk. Only its volume says which image that is, and may be seen after it.
        self.cache.replicas.subscribe(self._on_replica_change)
        self.cache.volumes.subscribe(self._on_volume_change)

    def all_keys(self) -> Iterable[str]:
        return (*self.cache.images.readable, *self.cache.images.unreadable)

    def _on_image_change(self, name: str, _before: object, _after: object) -> None:
        self.enqueue(name)

    def _on_schedule_change(self, _name: str, before: Version[DiskSchedule], after: Version[DiskSchedule]) -> None:
        old = before if isinstance(before, DiskSchedule) else DiskSchedule("")
        new = after if isinstance(after, DiskSchedule) else DiskSchedule("")
        for name in sorted(disk_writes.changed_names(old.status.backing_images, new.status.backing_images)):
            self.enqueue(name)

    def _on_replica_change(self, _name: str, before: Version[Replica], after: Version[Replica]) -> None:
        disks = {each.disk_id if isinstance(each, Replica) else "" for each in (before, after)}
        replica = after if isinstance(after, Replica) else before
        if not isinstance(replica, Replica) or len(disks) == 1:
            return
        if replica.volume in self.cache.disks.volumes:
            self.enqueue(self.cache.disks.volumes[replica.volume].backing_image)

    def _on_volume_change(self, _name: str, before: Version[VolumeObject], after: Version[VolumeObject]) -> None:
        old, new = (each.volume.backing_image if isinstance(each, VolumeObject) else "" for each in (before, after))
        if old != new:
            self.enqueue(old)
            self.enqueue(new)

    async def reconcile(self, key: str) -> Requeue | None:
        """Reads the DiskSchedules, then the image, decides, and writes."""
        schedules = dict(self.cache.schedules.readable)
        raw = await self.writer.read(LONGHORN_BACKING_IMAGES, key)
        if raw is None:
            return None
        snapshot = self._snapshot(raw, key, schedules)
        decision = backing_images.decide_image(snapshot)
        read_objects = writer.ReadObjects(schedules, objects={(RequestKind.BACKING_IMAGE, key): raw})
        await self.writer.write_all(decision.writes, read_objects)
        if decision.shortage:
            self.context.record_event("BackingImage", raw, disk_writes.NO_DISK, decision.shortage, normal=False)
        # For an image without a size there is nothing to request once a copy is wanted; an event announces its size.
        waits_for_event = not snapshot.image.size and snapshot.image.wanted_disks
        return Requeue.WAITING if decision.requeue and not waits_for_event else None

    def _snapshot(self, raw: bytes, name: str, schedules: Mapping[str, DiskSchedule]) -> backing_images.ImageSnapshot:
        copies = convert.backing_image_copies(raw)
        if isinstance(copies, BackingImageCopies) and copies.deleting:
            return backing_images.ImageSnapshot(copies, schedules)
        # `object_of` makes a Fault of an ObjectError.
        image = self.cache.images.object_of(raw).value
        faults = (image,) if isinstance(image, Fault) else image.copies.faults
        if isinstance(image, Fault) or faults:
            raise UnreadableError(f"backing image {name} cannot be read: {'; '.join(map(str, faults))}")
        disks = self.cache.disks
        users = sorted(disks.volumes_of[name])
        volumes = [disks.volumes[user] for user in users if user in disks.volumes]
        replicas = [replica for user in users for replica in disks.replicas_by_volume.get(user, ())]
        space = disks.space()
        return backing_images.ImageSnapshot(
            image.copies,
            schedules,
            nodes={**self.cache.nodes.readable, **self.cache.nodes.unreadable},
            needed_disks=backing_images.disks_that_need_image(volumes, replicas, name),
            candidates=backing_images.candidate_disks(self.cache.cluster(), space, image.image),
            space=space,
        )
