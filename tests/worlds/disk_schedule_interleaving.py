"""An API server with optimistic concurrency, and controllers that can be interrupted before every call.

An actor is a generator that pauses before each call. A killed controller is an actor that is not continued.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, Self

import pytest

from scheduler_core.disk_schedule import backing_images
from scheduler_core.disk_schedule.disk_space import DiskSpaces
from scheduler_core.disk_schedule.occupancy import NO_OCCUPANTS, DiskOccupancy, occupancy_by_disk
from scheduler_core.disk_schedule.reconcile import Create, Delete, UpdateSpec, new_schedule, reconcile, sync_disks
from scheduler_core.disk_schedule.volumes import VolumeSnapshot, decide_volume
from scheduler_core.disk_schedule.writes import (
    AssignReplica,
    ChangeCopies,
    RemoveFinalizer,
    SetReplicaSize,
    SetRequirement,
    SetVolumeCondition,
    Write,
    release_replica,
    set_requirement,
)
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.disk_schedule import FINALIZER, DiskSchedule, DiskScheduleSpec, RequestKind
from scheduler_core.model.longhorn import FILESYSTEM, BackingImage, Disk, Node, Replica, Volume
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.structs import replace
from tests.worlds.disk_schedules import READY, disk_spaces

GI = 1024**3
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIME = "2026-01-01T00:00:00Z"
# Only storageAvailable decides.
SETTINGS = {"storage-minimal-available-percentage": "0"}
_PARSED_SETTINGS = Settings.parse(SETTINGS)
Actor = Generator[None, None, None]
Key = tuple[str, str]


class ConflictError(Exception):
    """HTTP 409: another writer was faster."""


@cache
def _disk(home: str, available: int, *, ready: bool) -> Disk:
    return Disk(
        home,
        uuid=f"{home}-uuid",
        allow_scheduling=True,
        spec_type=FILESYSTEM,
        status_type=FILESYSTEM,
        storage_maximum=10_000 * GI,
        storage_available=available,
        conditions=READY if ready else (),
    )


@dataclass
class World:
    """The API server: objects with versions."""

    available: dict[str, int]  # the bytes that each disk reports, by its original node
    # The nodes whose status lists the disk, by its original node; it is ready on the last one only, where it is now.
    listed: dict[str, tuple[str, ...]]
    objects: dict[Key, tuple[int, Any]] = field(default_factory=dict)
    version: int = 0

    def put(self, kind: str, name: str, value: object, seen: int | None = None) -> int:
        """Writes an object, if its version is `seen` (0: it does not exist) or `seen` is None."""
        if seen is not None and self.objects.get((kind, name), (0, None))[0] != seen:
            raise ConflictError
        self.version += 1
        self.objects[kind, name] = (self.version, value)
        return self.version

    def all(self, kind: str) -> dict[str, tuple[int, Any]]:
        return {
            name: self.objects[kind, name] for name in sorted([name for each, name in self.objects if each == kind])
        }

    def values(self, kind: str) -> dict[str, Any]:
        return values_of(self.all(kind))

    def change(self, kind: str, name: str, **fields: object) -> None:
        self.put(kind, name, replace(self.objects[kind, name][1], **fields))

    def request(self, uuid: str, **requests: dict[str, int]) -> None:
        """Replaces a disk's requests for replicas or backing images."""
        self.change("schedule", uuid, spec=replace(self.objects["schedule", uuid][1].spec, **requests))

    def get(self, kind: str, name: str) -> tuple[int, Any]:
        """An object and its version; 0 and None if there is none."""
        return self.objects.get((kind, name), (0, None))

    def remove(self, kind: str, name: str, seen: int) -> None:
        if self.get(kind, name)[0] != seen:
            raise ConflictError
        self.version += 1
        del self.objects[kind, name]

    def fork(self) -> Self:
        return type(self)(dict(self.available), dict(self.listed), dict(self.objects), self.version)

    def nodes(self) -> dict[str, Node]:
        """The nodes, each its own failure domain; a disk has the name of its original node."""
        return {
            name: Node(
                name,
                allow_scheduling=True,
                conditions=READY,
                disks=tuple(
                    _disk(home, self.available[home], ready=name == nodes[-1])
                    for home, nodes in sorted(self.listed.items())
                    if name in nodes
                ),
            )
            for name in self.available
        }

    def schedule(self, node: str) -> DiskSchedule:
        schedule = self.objects["schedule", f"{node}-uuid"][1]
        assert isinstance(schedule, DiskSchedule)
        return schedule


def world(available: dict[str, int], volumes: dict[str, int]) -> World:
    """Disks without requests, and volumes of one unplaced replica each."""
    api = World(available, {node: (node,) for node in available})
    for node in available:
        api.put(
            "schedule",
            f"{node}-uuid",
            DiskSchedule(f"{node}-uuid", DiskScheduleSpec(node, node), finalizers=(FINALIZER,)),
        )
    for name, size in volumes.items():
        add_volume(api, name, size)
    return api


def add_volume(api: World, name: str, size: int, replicas: int = 1, *, image: str = "", sized: bool = True) -> None:
    """Adds a volume and its unplaced replicas, which have no size unless `sized`."""
    api.put("volume", name, (Volume(name, size, replicas, backing_image=image), None))
    for number in range(replicas):
        api.put("replica", f"{name}-{number}", Replica(f"{name}-{number}", name, size if sized else 0))


def disk_controller(api: World, uuid: str) -> Actor:
    """Reads node and object, and writes the status; never allocates more than storageAvailable."""
    yield
    version, schedule = api.get("schedule", uuid)
    if schedule is None:
        return
    yield
    node = api.nodes()[schedule.spec.node]
    outcome = reconcile(schedule, node, TIME, occupancy_of(api).get(uuid, NO_OCCUPANTS))
    yield
    if outcome.status is not None:
        after = outcome.status
        before = schedule.status
        allocates_more = any(
            entry.size > (before.allocations(kind)[name].size if name in before.allocations(kind) else 0)
            for kind in RequestKind
            for name, entry in after.allocations(kind).items()
        )
        limit = next((disk.storage_available for disk in node.disks if disk.uuid == uuid and disk.ready), 0)
        assert not allocates_more or after.storage_scheduled <= limit
        assert after.storage_scheduled == sum(
            entry.size for kind in RequestKind for entry in after.allocations(kind).values()
        )
        version = api.put("schedule", uuid, replace(schedule, status=after), version)
    if outcome.remove_finalizer:
        yield
        api.remove("schedule", uuid, version)


def node_sync(api: World, _name: str) -> Actor:
    """Keeps one DiskSchedule for each disk that a node lists."""
    yield
    schedules = api.all("schedule")
    yield
    for change in sync_disks(api.nodes().values(), values_of(schedules)).changes:
        yield
        match change:
            case Create(uuid):
                api.put("schedule", uuid, new_schedule(change, occupancy_of(api).get(uuid, NO_OCCUPANTS)), 0)
            case UpdateSpec(schedule, disk, node):
                after = replace(schedule, spec=replace(schedule.spec, disk=disk, node=node), finalizers=(FINALIZER,))
                api.put("schedule", schedule.name, after, schedules[schedule.name][0])
            case Delete(schedule):
                api.put("schedule", schedule.name, replace(schedule, deleting=True), schedules[schedule.name][0])


def values_of(entries: dict[str, tuple[int, Any]]) -> dict[str, Any]:
    """Objects without their versions."""
    return {name: value for name, (_, value) in entries.items()}


def occupancy_of(api: World) -> dict[str, DiskOccupancy]:
    """What is on each disk, by UUID."""
    return occupancy_by_disk(
        api.values("replica").values(),
        {name: volume for name, (volume, _) in api.values("volume").items()},
        api.values("image").values(),
    )


def space_of(api: World, schedules: dict[str, tuple[int, Any]]) -> DiskSpaces:
    """What is left on each disk, by UUID."""
    return disk_spaces(values_of(schedules), api.nodes(), occupancy_of(api))


def cluster_of(api: World) -> Cluster:
    """The cluster as placement reads it."""
    snapshot = Snapshot(
        longhorn_nodes=api.nodes(),
        replicas=api.values("replica"),
        backing_images={
            name: BackingImage(name, disks=tuple(sorted(image.wanted_disks)), real_size=image.size)
            for name, image in api.values("image").items()
        },
        settings=SETTINGS,
    )
    return Cluster.of(snapshot, NOW, _PARSED_SETTINGS)


def volume_controller(api: World, name: str) -> Actor:
    """Reads schedules, then volume and replicas; writes the decision; starts ready replicas."""
    yield
    schedules = api.all("schedule")
    yield
    version, seen_volume = api.get("volume", name)
    if seen_volume is None:
        return
    volume, condition = seen_volume
    replicas = {key: entry for key, entry in api.all("replica").items() if entry[1].volume == name}
    snapshot = VolumeSnapshot(
        cluster_of(api),
        volume,
        tuple(values_of(replicas).values()),
        values_of(schedules),
        space_of(api, schedules),
        condition,
    )
    decision = decide_volume(snapshot, TIME)
    yield from perform(api, decision.writes, {"schedule": schedules, "replica": replicas}, (name, version))
    for key in sorted(decision.ready):
        seen, replica = replicas[key]
        if not replica.current_state:
            yield
            api.put("replica", key, replace(replica, current_state="running"), seen)


def starter(api: World, name: str) -> Actor:
    """Starts a replica, as another program does: it reads the Replica, then the answer, and writes against the version read."""
    yield
    version, replica = api.get("replica", name)
    if replica is None or replica.deleting or replica.current_state or not replica.size:
        return
    yield
    _, schedule = api.get("schedule", replica.disk_id)
    answer = schedule.status.replicas.get(name) if schedule else None
    if answer is not None and answer.size >= replica.size:
        yield
        api.put("replica", name, replace(replica, current_state="running"), version)


def copier(api: World, name: str) -> Actor:
    """Copies an image to the disks that hold its bytes, as `starter` starts a replica."""
    yield
    version, image = api.get("image", name)
    if image is None or image.deleting:
        return
    yield
    schedules = api.all("schedule")
    answers = {
        uuid: schedules[uuid][1].status.backing_images.get(name) for uuid in image.wanted_disks & schedules.keys()
    }
    copies = {uuid: "ready" for uuid, answer in sorted(answers.items()) if answer and answer.size >= image.size > 0}
    if copies.keys() - image.copy_states.keys():
        yield
        api.put("image", name, replace(image, copy_states={**copies, **image.copy_states}), version)


def replica_controller(api: World, name: str) -> Actor:
    """Releases the space of a deleted replica; withdraws the requests for one that is gone."""
    yield
    schedules = api.all("schedule")
    yield
    version, replica = api.get("replica", name)
    if replica is None:
        writes = orphan_withdrawals(RequestKind.REPLICA, name, schedules)
    else:
        writes = release_replica(replica, values_of(schedules))
    seen = {"schedule": schedules, "replica": {name: (version, replica)}}
    yield from perform(api, writes, seen, ("", 0))


def orphan_withdrawals(kind: RequestKind, name: str, schedules: dict[str, tuple[int, Any]]) -> tuple[Write, ...]:
    """Withdrawals of all requests for an object that does not exist."""
    return tuple(
        SetRequirement(uuid, kind, name, 0) for uuid, entry in schedules.items() if name in entry[1].spec.requests(kind)
    )


def image_controller(api: World, name: str) -> Actor:
    """Reads schedules, then the image; writes the decision; makes the granted copies. Withdraws the requests for an image that is gone."""
    yield
    schedules = api.all("schedule")
    yield
    version, image = api.get("image", name)
    if image is None:
        withdrawals = orphan_withdrawals(RequestKind.BACKING_IMAGE, name, schedules)
        yield from perform(api, withdrawals, {"schedule": schedules}, ("", 0))
        return
    cluster = cluster_of(api)
    volumes = [volume for volume, _ in api.values("volume").values()]
    space = space_of(api, schedules)
    snapshot = backing_images.ImageSnapshot(
        image,
        values_of(schedules),
        cluster.nodes,
        backing_images.disks_that_need_image(volumes, cluster.snapshot.replicas.values(), name),
        backing_images.candidate_disks(cluster, space, cluster.snapshot.backing_images[name]),
        space,
    )
    decision = backing_images.decide_image(snapshot)
    seen = {"schedule": schedules, "image": {name: (version, image)}}
    yield from perform(api, decision.writes, seen, ("", 0))
    version, image = seen["image"][name]
    copies = dict.fromkeys(sorted(decision.ready - image.copy_states.keys()), "ready")
    if copies:
        yield
        api.put("image", name, replace(image, copy_states={**image.copy_states, **copies}), version)


def perform(
    api: World, writes: tuple[Write, ...], seen: dict[str, dict[str, tuple[int, Any]]], volume: tuple[str, int]
) -> Actor:
    """Makes the writes one by one, each against the version read or written last. A request is changed in any newer
    version that has the same request and answer, and withdrawn only if the object, which is read after that version, is
    not on the disk. A change that changes nothing makes no version.
    """

    def put(kind: str, name: str, **changed: object) -> None:
        version, value = seen[kind][name]
        after = replace(value, **changed)
        seen[kind][name] = (api.put(kind, name, after, version), after)

    for write in writes:
        yield
        match write:
            case SetRequirement():
                yield from set_request(api, write, seen["schedule"])
            case AssignReplica(name, node, disk):
                put("replica", name, node_id=node, disk_id=disk)
            case SetReplicaSize(name, size):
                put("replica", name, size=size)
            case ChangeCopies(name, added, removed):
                put("image", name, wanted_disks=seen["image"][name][1].wanted_disks - set(removed) | set(added))
            case SetVolumeCondition(condition):
                name, version = volume
                current_volume, _ = api.get("volume", name)[1] or (None, None)
                volume = (name, api.put("volume", name, (current_volume, condition), version))
            case RemoveFinalizer(kind, name):
                key = "replica" if kind is RequestKind.REPLICA else "image"
                api.remove(key, name, seen[key][name][0])


def set_request(api: World, write: SetRequirement, seen: dict[str, tuple[int, Any]]) -> Actor:
    """Changes a request as `ScheduleWriter` does; after a conflict it goes on with the newer version."""
    decided_from = entry_of(seen[write.disk][1], write)
    while True:
        version, schedule = api.get("schedule", write.disk)
        if schedule is None or entry_of(schedule, write) != decided_from:
            if schedule is not None and schedule.spec.requests(write.kind).get(write.name, 0) == write.size:
                break
            raise ConflictError
        if not write.size:
            yield
            if is_there(api, write):
                break
            yield
        after = replace(schedule, spec=set_requirement(schedule.spec, write.kind, write.name, write.size))
        if after == schedule:
            break
        try:
            api.put("schedule", write.disk, after, version)
        except ConflictError:
            continue
        break
    seen[write.disk] = api.get("schedule", write.disk)


def entry_of(schedule: DiskSchedule, write: SetRequirement) -> tuple[object, ...]:
    requests = schedule.spec.requests(write.kind)
    return requests.get(write.name), schedule.status.allocations(write.kind).get(write.name), schedule.deleting


def is_there(api: World, write: SetRequirement) -> bool:
    """Reads an object again; returns whether it is on a disk."""
    _, value = api.get("replica" if write.kind is RequestKind.REPLICA else "image", write.name)
    if value is None or value.deleting:
        return False
    return (
        value.disk_id == write.disk
        if write.kind is RequestKind.REPLICA
        else write.disk in value.wanted_disks or write.disk in value.copy_states
    )


def advance(actor: Actor) -> bool:
    """Lets an actor make its next call; returns False once it has ended."""
    try:
        next(actor)
    except (StopIteration, ConflictError):
        return False
    return True


def finish(actor: Actor) -> None:
    """Lets an actor run to its end without interruption."""
    while advance(actor):
        pass


def check(api: World) -> None:
    """Asserts that every running replica and every copy requests its bytes on its disk, and holds them."""
    for name, replica in api.values("replica").items():
        if replica.current_state == "running" and not replica.deleting:
            schedule = api.objects["schedule", replica.disk_id][1]
            answer = schedule.status.replicas.get(name)
            assert name in schedule.spec.replicas, f"{name} runs and requests nothing"
            assert answer is not None, f"{name} runs and holds nothing"
            assert answer.size >= replica.size, f"{name} runs with {replica.size} and holds {answer.size}"
    for name, image in api.values("image").items():
        for uuid in () if image.deleting else image.copy_states:
            schedule = api.objects["schedule", uuid][1]
            answer = schedule.status.backing_images.get(name)
            assert name in schedule.spec.backing_images, f"{name} is copied and requests nothing"
            assert answer is not None, f"{name} is copied and holds nothing"
            assert answer.size >= image.size, f"{name} is copied with {image.size} and holds {answer.size}"


def names(api: World, kind: str) -> list[str]:
    """Names of a kind that a controller reconciles; for replicas and images also requested ones."""
    if kind == "nodes":
        return ["all"]
    if kind in {"starter", "copier"}:
        return list(api.all("replica" if kind == "starter" else "image"))
    all_names = set(api.all(kind))
    if kind in {"replica", "image"}:
        request_kind = RequestKind.REPLICA if kind == "replica" else RequestKind.BACKING_IMAGE
        all_names |= {
            name for schedule in api.values("schedule").values() for name in schedule.spec.requests(request_kind)
        }
    return sorted(all_names)


CONTROLLERS: dict[str, Callable[[World, str], Actor]] = {
    "nodes": node_sync,
    "schedule": disk_controller,
    "volume": volume_controller,
    "replica": replica_controller,
    "image": image_controller,
    "starter": starter,
    "copier": copier,
}


def settle(api: World) -> None:
    """Runs every controller in turn, without interruption, until a round writes nothing."""
    for _ in range(60):
        before = api.version, len(api.objects)
        for kind, controller in CONTROLLERS.items():
            for name in names(api, kind):
                finish(controller(api, name))
                check(api)
        if (api.version, len(api.objects)) == before:
            return
    pytest.fail("the controllers never come to rest")


def scheduled_bytes(api: World) -> int:
    """The bytes that all DiskSchedules count as allocated."""
    total: int = sum(schedule.status.storage_scheduled for schedule in api.values("schedule").values())
    return total


def stored_bytes(api: World) -> int:
    """The bytes of all placed replicas, and of the copies of backing images that are granted."""
    replicas: int = sum(replica.size for replica in api.values("replica").values() if replica.disk_id)
    copies: int = sum(
        answer.size
        for schedule in api.values("schedule").values()
        for answer in schedule.status.backing_images.values()
    )
    return replicas + copies


def check_at_rest(api: World) -> None:
    """Asserts that exactly the placed replicas and wanted copies are requested. Replicas of a volume have one size, and
    all have their bytes allocated. A copy may be refused, and stays requested.
    """
    check(api)
    placed = {name: replica for name, replica in api.values("replica").items() if replica.disk_id}
    sizes = {(replica.volume, replica.size) for replica in placed.values()}
    assert len(sizes) == len({volume for volume, _ in sizes})
    images = api.values("image")
    for uuid, schedule in api.values("schedule").items():
        here = {name: replica.size for name, replica in placed.items() if replica.disk_id == uuid}
        copies = {
            name: image.size for name, image in images.items() if uuid in image.wanted_disks | image.copy_states.keys()
        }
        assert schedule.spec.replicas == here
        assert {name: entry.size for name, entry in schedule.status.replicas.items()} == here
        assert schedule.spec.backing_images == copies
        held = {name: entry.size for name, entry in schedule.status.backing_images.items() if entry.size}
        assert held.items() <= copies.items()
        assert schedule.status.backing_images.keys() == copies.keys()
        assert schedule.status.storage_scheduled == sum(here.values()) + sum(held.values())
