"""Everything that the controllers watch, why it cannot be used now, and an index of what each disk holds and what is left there.

Data flow: an event of a Replica, Volume, BackingImage, DiskSchedule or Longhorn node marks the disks that it concerns;
`space` and `occupancy` compute the marked disks again. So a decision costs what has changed since the last one, not
what exists.

There is an `Informer` per kind. An object that cannot be read is kept as a `Fault`, so that its name and its problem are known.
DiskSchedules, Volumes and Replicas are kept together with the bytes they were read from, because every write is based on them.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Generic, TypeAlias, TypeVar

import msgspec

from app.kube import resources
from app.kube.client import KubeClient
from app.kube.reflector import Key, Timing
from app.kube.store import Objects, Store, Watch
from scheduler_core import errors
from scheduler_core.convert import disk_schedule as convert, kube, snapshot_kinds as kinds, wire_types
from scheduler_core.disk_schedule.disk_space import DiskSpaces, disk_space
from scheduler_core.disk_schedule.occupancy import DiskOccupancy, Occupant, image_occupants, replica_occupant
from scheduler_core.disk_schedule.writes import DISK_ALLOCATION
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.disk_schedule import BackingImageCopies, DiskSchedule, DiskScheduleSpec, Fault, RequestKind
from scheduler_core.model.kube import Condition
from scheduler_core.model.longhorn import BackingImage, Replica, Volume
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.structs import Struct, replace

_Value = TypeVar("_Value")


class InformerObject(Struct, Generic[_Value], frozen=True):
    """An object at one version."""

    name: str  # the object's name
    version: str  # its resourceVersion
    value: _Value | Fault  # what it says, or why it cannot be read
    # The bytes it was read from, without managedFields; empty for kinds that are not written from this cache.
    raw: bytes = b""


class VolumeObject(Struct, frozen=True):
    """A volume and its condition DiskAllocation."""

    volume: Volume
    condition: Condition | None


class ImageObject(Struct, frozen=True):
    """A backing image in two forms: for placement, and for its controller."""

    image: BackingImage
    copies: BackingImageCopies


Version: TypeAlias = _Value | Fault | None
"""The value of an object before or after a change; None if there is no object."""


class Informer(Objects[InformerObject[_Value]]):
    """The objects of one kind, at the newest version that this process knows. `revision` grows with every change. A
    handler gets a name, and the values before and after: they differ, or an object that cannot be read has another version.
    `readable` and `unreadable` are the values by name; they change while the caller awaits.

    Args:
        read: returns what an object says; may raise an ObjectError
        keep: whether the bytes are stored, too
    """

    def __init__(self, read: Callable[[bytes | msgspec.Raw], _Value | Fault], *, keep: bool = False) -> None:
        super().__init__()
        self.revision = 0
        self.readable: dict[str, _Value] = {}
        self.unreadable: dict[str, Fault] = {}
        self._read = read
        self._keep = keep
        self._waiting: dict[Key, asyncio.Event] = {}

    def value(self, name: str) -> Version[_Value]:
        cached = self.get(name)
        return None if cached is None else cached.value

    def decode(self, raw: bytes | msgspec.Raw) -> tuple[Key, InformerObject[_Value]]:
        """Reads an object that a watch delivers. It is the cached one if it has this version: mostly this process has
        written it. Raises an ObjectError if it has no name.
        """
        metadata = wire_types.header(raw)
        cached = self.get(metadata.name)
        if cached is not None and cached.version == metadata.version != "":
            return metadata.name, cached
        return metadata.name, self.object_of(raw)

    def object_of(self, raw: bytes | msgspec.Raw) -> InformerObject[_Value]:
        """Reads an object; one that cannot be read has a Fault. Raises an ObjectError if it has no name."""
        metadata = wire_types.header(raw)
        try:
            value = self._read(raw)
        except errors.ObjectError as error:
            value = Fault(error.field, error.problem)
        return InformerObject(metadata.name, metadata.version, value, _body(raw) if self._keep else b"")

    def change(self, key: Key, value: InformerObject[_Value] | None) -> None:
        """Replaces or removes one object; called by the reflector. An event that is older than the response to a write
        is ignored.
        """
        cached = self.get(key)
        if value is None or cached is None or not _is_newer(cached.version, value.version):
            super().change(key, value)

    def store(self, raw: bytes) -> InformerObject[_Value]:
        """Stores an object that was just read or written, before the watch delivers it. A newer version stays, and an
        object that was deleted meanwhile stays deleted.
        """
        written = self.object_of(raw)
        cached = self.get(written.name)
        if cached is not None and _is_newer(written.version, cached.version):
            self._set(written.name, written)
        return written

    async def wait_for_other_version(self, name: str, version: str, seconds: float) -> bool:
        """Waits at most `seconds` until the version of a cached object is not `version`; returns whether it came. A
        removal counts as a different version.

        After a conflict there is another version, and the watch is about to deliver it.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (cached := self.get(name)) is not None and cached.version == version:
                    await self._waiting.setdefault(name, asyncio.Event()).wait()
        cached = self.get(name)
        return cached is None or cached.version != version

    def _notify(self, key: Key, before: InformerObject[_Value] | None, after: InformerObject[_Value] | None) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.set()
        old_value = before.value if before else None
        new_value = after.value if after else None
        name = str(key)
        if isinstance(new_value, Fault):
            self.unreadable[name] = new_value
            self.readable.pop(name, None)
        elif new_value is not None:
            self.readable[name] = new_value
            self.unreadable.pop(name, None)
        else:
            self.readable.pop(name, None)
            self.unreadable.pop(name, None)
        # An object that cannot be read may have changed although its Fault is the same: it is being deleted, for example.
        hidden_change = isinstance(new_value, Fault) and before and after and before.version != after.version
        if old_value == new_value and not hidden_change:
            return
        self.revision += 1
        for handler in self._handlers:
            handler(key, old_value, new_value)


def _is_newer(version: str, other: str) -> bool:
    return version.isdigit() and other.isdigit() and int(version) > int(other)


def _body(raw: bytes | msgspec.Raw) -> bytes:
    # They are large and never written back.
    kept = bytes(raw)
    if b'"managedFields"' not in kept:
        return kept
    body = msgspec.json.decode(kept, type=dict[str, msgspec.Raw])
    metadata = msgspec.json.decode(body["metadata"], type=dict[str, msgspec.Raw])
    metadata.pop("managedFields", None)
    body["metadata"] = msgspec.Raw(msgspec.json.encode(metadata))
    return msgspec.json.encode(body)


def read_volume(raw: bytes | msgspec.Raw) -> VolumeObject:
    """Reads a volume with its condition. Raises an ObjectError if it cannot be read."""
    return VolumeObject(kinds.VOLUME.decode(raw), condition_of(raw))


def condition_of(raw: bytes | msgspec.Raw) -> Condition | None:
    return convert.volume_condition(raw, DISK_ALLOCATION)


def read_image(raw: bytes | msgspec.Raw) -> ImageObject | Fault:
    """Reads a backing image in both forms. Raises an ObjectError if it cannot be read."""
    image = kinds.BACKING_IMAGE.decode(raw)
    copies = convert.backing_image_copies(raw)
    return copies if isinstance(copies, Fault) else ImageObject(image, copies)


_MAX_AGE = 0.25
_OPTIONAL = frozenset({resources.LONGHORN_BACKING_IMAGES})
_HINTS: Mapping[resources.Resource, str] = {
    resources.DISK_SCHEDULES: "kubectl create -k manifests/crd",
    resources.LONGHORN_NODES: "is Longhorn installed?",
}


class ControllerCache(Store):
    """Owner of the informers; everything happens on the event loop that runs `run`."""

    def __init__(
        self, client: KubeClient, namespace: str, timing: Timing, now: Callable[[], datetime], stale_after: float
    ) -> None:
        super().__init__(client, timing, stale_after)

        def watch(resource: resources.Resource, informer: Informer[_Value]) -> Informer[_Value]:
            within = namespace if resource.group == kinds.LONGHORN_GROUP else ""
            required = resource not in _OPTIONAL
            hint = _HINTS.get(resource, "")
            spec = Watch(resource, informer.decode, informer, within, required=required, hint=hint)
            self.watch(resource.label, spec)
            return informer

        self.schedules = watch(resources.DISK_SCHEDULES, Informer(convert.read_disk_schedule, keep=True))
        self.nodes = watch(resources.LONGHORN_NODES, Informer(kinds.LONGHORN_NODE.decode))
        self.volumes = watch(resources.LONGHORN_VOLUMES, Informer(read_volume, keep=True))
        self.replicas = watch(resources.LONGHORN_REPLICAS, Informer(kinds.REPLICA.decode, keep=True))
        self.images = watch(resources.LONGHORN_BACKING_IMAGES, Informer(read_image))
        self._settings = watch(resources.LONGHORN_SETTINGS, Informer(kinds.SETTING.decode))
        self._engine_images = watch(resources.LONGHORN_ENGINE_IMAGES, Informer(kinds.ENGINE_IMAGE.decode))
        self._instance_managers = watch(resources.LONGHORN_INSTANCE_MANAGERS, Informer(kinds.INSTANCE_MANAGER.decode))
        self._kube_nodes = watch(resources.NODES, Informer(kube.NODE.decode))
        self.disks = DiskIndex(self)
        self._now = now
        self._clock = timing.clock
        self._cluster: tuple[tuple[int, ...], float, Cluster] | None = None

    def count_unreadable(self) -> Counter[str]:
        """Returns how many objects cannot be read, by kind."""
        counts = Counter(
            {
                label: sum(isinstance(each.value, Fault) for each in informer.values())
                for label, informer in self.kinds.items()
            }
        )
        # The mirror needs its disks only, which can be read. The controller of backing images refuses it.
        refused = sum(1 for image in self.images.readable.values() if image.copies.faults)
        counts[resources.LONGHORN_BACKING_IMAGES.label] += refused
        return counts

    def cluster(self) -> Cluster:
        """Returns what Longhorn's placement rules read. A setting that cannot be parsed is a fault there, not an error.

        Volumes and replicas are as the caches have them while the caller uses it: valid until it awaits. What concerns nodes is
        up to `_MAX_AGE` seconds old, because making it takes long in a large cluster. The DiskSchedule of a chosen disk is read
        separately, so an outdated choice is refused there.
        """
        informers = (
            self.nodes, self.images, self._settings, self._engine_images, self._instance_managers, self._kube_nodes
        )  # fmt: skip
        revisions = tuple(informer.revision for informer in informers)
        clock = self._clock()
        if self._cluster is not None:
            cached_revisions, made_at, cluster = self._cluster
            if cached_revisions == revisions or clock - made_at < _MAX_AGE:
                return replace(cluster, now=self._now())
        snapshot = Snapshot(
            nodes=dict(self._kube_nodes.readable),
            longhorn_nodes=dict(self.nodes.readable),
            backing_images={name: value.image for name, value in self.images.readable.items()},
            engine_images=dict(self._engine_images.readable),
            instance_managers=dict(self._instance_managers.readable),
            settings=dict(self._settings.readable),
        )
        cluster = Cluster.of(snapshot, self._now(), Settings.read(snapshot.settings))
        snapshot = replace(snapshot, replicas=self.replicas.readable, volumes=self.disks.volumes)
        cluster = replace(cluster, snapshot=snapshot, replicas_by_volume=self.disks.replicas_by_volume)
        self._cluster = (revisions, clock, cluster)
        return cluster


class Groups:
    """Names by group; a group without names does not exist."""

    def __init__(self) -> None:
        self._names: defaultdict[str, set[str]] = defaultdict(set)

    def __getitem__(self, group: str) -> frozenset[str]:
        return frozenset(self._names.get(group, ()))

    def move(self, name: str, old: str, new: str) -> None:
        """Moves a name from one group to another, "" for none."""
        if old in self._names:
            self._names[old].discard(name)
            if not self._names[old]:
                del self._names[old]
        if new:
            self._names[new].add(name)


class DiskIndex:
    """The occupancy and the space of every disk, by UUID, and which objects belong together. An object that cannot be
    read any more keeps its last place and size.
    """

    def __init__(self, cache: ControllerCache) -> None:
        self._cache = cache
        self.volumes: dict[str, Volume] = {}
        self.replicas_by_volume: dict[str, tuple[Replica, ...]] = {}  # those that can be read, ordered by name
        self.volume_of_replica: dict[str, str] = {}
        self.replicas_of = Groups()  # by volume
        self.volumes_of = Groups()  # by backing image
        self.disks_of = Groups()  # by node
        self.disks_requesting = Groups()  # by replica
        # By disk, and by kind and name, with the disks.
        self._occupants: dict[RequestKind, defaultdict[str, dict[str, Occupant]]] = {
            kind: defaultdict(dict) for kind in RequestKind
        }
        self._places: dict[tuple[RequestKind, str], Mapping[str, Occupant]] = {}
        self._space = DiskSpaces()
        self._changed: set[str] = set()
        self._handlers: list[Callable[[str], None]] = []
        cache.replicas.subscribe(self._on_replica_change)
        cache.volumes.subscribe(self._on_volume_change)
        cache.images.subscribe(self._on_image_change)
        cache.schedules.subscribe(self._on_schedule_change)
        cache.nodes.subscribe(self._on_node_change)

    def subscribe(self, handler: Callable[[str], None]) -> None:
        self._handlers.append(handler)

    def occupancy(self, uuid: str) -> DiskOccupancy:
        replicas, images = (
            dict(self._occupants[kind].get(uuid, {})) for kind in (RequestKind.REPLICA, RequestKind.BACKING_IMAGE)
        )
        return DiskOccupancy(replicas, images)

    def space(self) -> DiskSpaces:
        """What a newcomer can get on each disk now; valid until the caller awaits."""
        for uuid in self._changed:
            schedule = self._cache.schedules.readable.get(uuid)
            node = self._cache.nodes.value(schedule.spec.node) if schedule else None
            self._space.set(uuid, disk_space(schedule, node, self.occupancy(uuid)) if schedule else None)
        self._changed.clear()
        return self._space

    def assume(self, replica: str, uuid: str) -> None:
        """Counts a replica on the disk that it will be placed on, until `refresh` or its next event."""
        value = self._cache.replicas.readable.get(replica)
        if value is not None:
            volume = self.volumes.get(value.volume)
            size = value.size or (volume.size if volume else 0)
            newcomer = Occupant(size, has_data=False, backing_image=_image_of(volume))
            self._occupy(RequestKind.REPLICA, replica, {uuid: newcomer})

    def refresh(self, replica: str) -> None:
        """Counts a replica where the cache says it is."""
        value = self._cache.replicas.value(replica)
        if not isinstance(value, Fault):
            occupant = None if value is None else replica_occupant(value, self.volumes.get(value.volume))
            self._occupy(RequestKind.REPLICA, replica, {value.disk_id: occupant} if value and occupant else {})

    def _on_replica_change(self, name: str, _before: object, after: Version[Replica]) -> None:
        volume = ""
        if isinstance(after, Replica):
            volume = after.volume
        elif (cached := self._cache.replicas.get(name)) is not None:
            # The label still says which volume an unreadable replica belongs to.
            with suppress(errors.ObjectError):
                volume = convert.VOLUME_OF_REPLICA.decode(cached.raw)
        old = self.volume_of_replica.pop(name, "")
        self.replicas_of.move(name, old, volume)
        if volume:
            self.volume_of_replica[name] = volume
        for each in {old, volume} - {""}:
            readable = self._cache.replicas.readable
            replicas = tuple(readable[replica] for replica in sorted(self.replicas_of[each]) if replica in readable)
            if replicas:
                self.replicas_by_volume[each] = replicas
            else:
                self.replicas_by_volume.pop(each, None)
        self.refresh(name)

    def _on_volume_change(self, name: str, _before: object, after: Version[VolumeObject]) -> None:
        old = self.volumes.get(name)
        new = after.volume if isinstance(after, VolumeObject) else None
        if new is not None:
            self.volumes[name] = new
        else:
            self.volumes.pop(name, None)
        self.volumes_of.move(name, _image_of(old), _image_of(new))
        if new is not None and (old is None or (old.size, old.backing_image) != (new.size, new.backing_image)):
            for replica in self.replicas_of[name]:
                self.refresh(replica)

    def _on_image_change(self, name: str, _before: Version[ImageObject], after: Version[ImageObject]) -> None:
        if not isinstance(after, Fault):
            occupants = image_occupants(after.copies) if after is not None else {}
            self._occupy(RequestKind.BACKING_IMAGE, name, occupants)

    def _on_schedule_change(self, name: str, before: Version[DiskSchedule], after: Version[DiskSchedule]) -> None:
        self._changed.add(name)
        old = before.spec if isinstance(before, DiskSchedule) else DiskScheduleSpec()
        new = after.spec if isinstance(after, DiskSchedule) else DiskScheduleSpec()
        self.disks_of.move(name, old.node, new.node)
        for replica in old.replicas.keys() - new.replicas.keys():
            self.disks_requesting.move(name, replica, "")
        for replica in new.replicas.keys() - old.replicas.keys():
            self.disks_requesting.move(name, "", replica)

    def _on_node_change(self, name: str, _before: object, _after: object) -> None:
        self._changed |= self.disks_of[name]

    def _occupy(self, kind: RequestKind, name: str, occupants: Mapping[str, Occupant]) -> None:
        """Places an object on these disks, and on no others."""
        before = self._places.pop((kind, name), {})
        if occupants:
            self._places[kind, name] = occupants
        for uuid in sorted(before.keys() | occupants.keys()):
            if before.get(uuid) == occupants.get(uuid):
                continue
            on_disk = self._occupants[kind][uuid]
            if uuid in occupants:
                on_disk[name] = occupants[uuid]
            else:
                del on_disk[name]
            if not on_disk:
                del self._occupants[kind][uuid]
            self._changed.add(uuid)
            for handler in self._handlers:
                handler(uuid)


def _image_of(volume: Volume | None) -> str:
    return volume.backing_image if volume else ""
