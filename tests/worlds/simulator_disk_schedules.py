"""The DiskSchedule controllers and a simulated cluster: real decisions, written to the API server in memory.

Each method lets one controller reconcile everything once, so that a test controls their progress.
"""

from collections.abc import Awaitable, Iterable
from typing import Any

import msgspec

from app.kube import resources
from scheduler_core.convert import disk_schedule as convert
from scheduler_core.disk_schedule import backing_images, volumes
from scheduler_core.disk_schedule.disk_space import DiskSpaces
from scheduler_core.disk_schedule.occupancy import NO_OCCUPANTS, DiskOccupancy, occupancy_by_disk
from scheduler_core.disk_schedule.reconcile import Create, new_schedule, reconcile, sync_disks
from scheduler_core.disk_schedule.writes import (
    DISK_ALLOCATION,
    AssignReplica,
    ChangeCopies,
    RemoveFinalizer,
    SetReplicaSize,
    SetRequirement,
    SetVolumeCondition,
    Write,
    release_replica,
)
from scheduler_core.model.disk_schedule import DiskSchedule, Fault, RequestKind
from simulator.objects import KubeObject
from tests.builders import NOW
from tests.worlds.disk_schedules import disk_spaces
from tests.worlds.simulator import World

Json = dict[str, Any]
TIME = "2026-01-01T00:00:00Z"
OBJECTS = {
    RequestKind.REPLICA: resources.LONGHORN_REPLICAS,
    RequestKind.BACKING_IMAGE: resources.LONGHORN_BACKING_IMAGES,
}
REQUESTS = {RequestKind.REPLICA: "replicas", RequestKind.BACKING_IMAGE: "backingImages"}


class DiskScheduling:
    """The DiskSchedule controllers of a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def schedules(self) -> dict[str, DiskSchedule]:
        decoded = {
            name: convert.read_disk_schedule(_raw(obj)) for name, obj in self.world.store.disk_schedules.objects.items()
        }
        return {name: value for name, value in decoded.items() if not isinstance(value, Fault)}

    def of(self, node: str) -> DiskSchedule:
        return self.schedules[self.world.disk(node).uuid]

    async def sync(self) -> None:
        """Node sync creates a DiskSchedule for every disk."""
        nodes = self.world.store.longhorn_nodes.models.values()
        for change in sync_disks(nodes, self.schedules).changes:
            assert isinstance(change, Create)
            body = convert.new_disk_schedule(resources.LONGHORN_NAMESPACE, new_schedule(change, NO_OCCUPANTS))
            await self.world.create(resources.DISK_SCHEDULES, body)

    @property
    def occupancy(self) -> dict[str, DiskOccupancy]:
        """What is on each disk, by UUID."""
        store = self.world.store
        images = [convert.backing_image_copies(_raw(image)) for image in store.backing_images.objects.values()]
        readable = [image for image in images if not isinstance(image, Fault)]
        return occupancy_by_disk(store.replicas.models.values(), store.volumes.models, readable)

    @property
    def space(self) -> DiskSpaces:
        """What is left on each disk, by UUID."""
        return disk_spaces(self.schedules, dict(self.world.store.longhorn_nodes.models), self.occupancy)

    async def ask(self) -> None:
        """The volume and backing image controllers write places and requests."""
        store = self.world.store
        for name in list(store.volumes.objects):
            obj = store.volumes.objects[name]
            snapshot = volumes.VolumeSnapshot(
                store.cluster(NOW),
                obj.model,
                tuple(replica.model for replica in store.replicas_by_volume.get(name)),
                self.schedules,
                self.space,
                convert.volume_condition(_raw(obj), DISK_ALLOCATION),
            )
            await self._write_all(volumes.decide_volume(snapshot, TIME).writes, volume=name)
        for image in list(store.backing_images.objects.values()):
            copies = convert.backing_image_copies(_raw(image))
            assert not isinstance(copies, Fault)
            using = {name for name, each in store.volumes.models.items() if each.backing_image == image.name}
            needed = {each.disk_id for each in store.replicas.models.values() if each.volume in using and each.disk_id}
            seen = backing_images.ImageSnapshot(
                copies,
                self.schedules,
                dict(store.longhorn_nodes.models),
                frozenset(needed),
                sorted(self.schedules),
                self.space,
            )
            await self._write_all(backing_images.decide_image(seen).writes)

    async def answer(self, *nodes: str) -> None:
        """The DiskSchedule controller decides every request, or those for some nodes' disks."""
        for name, schedule in self.schedules.items():
            if nodes and schedule.spec.node not in nodes:
                continue
            node = self.world.store.longhorn_nodes.models.get(schedule.spec.node)
            status = reconcile(schedule, node, TIME, self.occupancy.get(name, NO_OCCUPANTS)).status
            if status is not None:
                raw = _raw(self.world.store.disk_schedules.objects[name])
                path = resources.DISK_SCHEDULES.path(resources.LONGHORN_NAMESPACE, name, "status")
                await self.world.api.replace(path, convert.with_status(raw, status))

    async def release(self) -> None:
        """The replica controller releases the space of deleted replicas."""
        for replica in list(self.world.store.replicas.models.values()):
            await self._write_all(release_replica(replica, self.schedules))

    async def settle(self, *actions: Awaitable[object]) -> None:
        """Takes the actions one after the other, then runs all controllers and the simulator until a round writes nothing."""
        for action in actions:
            await action
        while True:
            before = self.world.api.writes
            for reconcile_all in (self.world.settle, self.sync, self.ask, self.answer, self.release):
                await reconcile_all()
            if self.world.api.writes == before:
                return

    async def _write_all(self, writes: Iterable[Write], volume: str = "") -> None:
        patch = self.world.patch
        for write in writes:
            if isinstance(write, SetRequirement):
                body: Json = {REQUESTS[write.kind]: {write.name: write.size or None}}
                await patch(resources.DISK_SCHEDULES, write.disk, spec=body)
            elif isinstance(write, AssignReplica):
                place = {"nodeID": write.node, "diskID": write.disk, "diskPath": write.path}
                await patch(resources.LONGHORN_REPLICAS, write.replica, spec=place)
            elif isinstance(write, SetReplicaSize):
                await patch(resources.LONGHORN_REPLICAS, write.replica, spec={"volumeSize": str(write.size)})
            elif isinstance(write, SetVolumeCondition):
                raw = _raw(self.world.store.volumes.objects[volume])
                body = convert.with_volume_condition(raw, write.condition)
                await patch(resources.LONGHORN_VOLUMES, volume, status=body["status"])
            elif isinstance(write, ChangeCopies):
                files: Json = {uuid: {"evictionRequested": False} for uuid in write.added}
                files |= dict.fromkeys(write.removed)
                await patch(resources.LONGHORN_BACKING_IMAGES, write.image, spec={"diskFileSpecMap": files})
            elif isinstance(write, RemoveFinalizer):
                obj = self.world.store.replicas.objects[write.name]
                if "longhorn.io" in obj.finalizers:
                    finalizers = [entry for entry in obj.finalizers if entry != "longhorn.io"]
                    await patch(OBJECTS[write.kind], write.name, metadata={"finalizers": finalizers or None})


def _raw(obj: KubeObject[Any]) -> bytes:
    return msgspec.json.encode(obj.raw)
