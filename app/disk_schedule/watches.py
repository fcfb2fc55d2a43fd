"""Everything that the controllers watch, why it cannot be used now, and an index of what each disk holds and what is left there.

Data flow: an event of a Replica, Volume, BackingImage, DiskSchedule or Longhorn node marks the disks that it concerns;
`space` and `occupancy` compute the marked disks again. So a decision costs what has changed since the last one, not
what exists.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

from app.disk_schedule.informer import ImageObject, Informer, Version, VolumeObject, read_image, read_volume
from app.kube import resources
from app.kube.client import KubeClient
from app.kube.reflector import Timing
from app.kube.store import Store, Watch
from scheduler_core import errors
from scheduler_core.convert import disk_schedule, kube, snapshot_kinds as kinds
from scheduler_core.disk_schedule.disk_space import DiskSpaces, disk_space
from scheduler_core.disk_schedule.occupancy import DiskOccupancy, Occupant, image_occupants, replica_occupant
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.disk_schedule import DiskSchedule, DiskScheduleSpec, Fault, RequestKind
from scheduler_core.model.longhorn import Node, Replica, Volume
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.structs import replace

_Value = TypeVar("_Value")
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

        self.schedules = watch(resources.DISK_SCHEDULES, Informer(disk_schedule.read_disk_schedule, keep=True))
        self.nodes = watch(resources.LONGHORN_NODES, Informer(kinds.LONGHORN_NODE.decode))
        self.volumes = watch(resources.LONGHORN_VOLUMES, Informer(read_volume, keep=True))
        self.replicas = watch(resources.LONGHORN_REPLICAS, Informer(kinds.REPLICA.decode, keep=True))
        self.images = watch(resources.LONGHORN_BACKING_IMAGES, Informer(read_image))
        self._settings = watch(resources.LONGHORN_SETTINGS, Informer(kinds.SETTING.decode))
        self._engine_images = watch(resources.LONGHORN_ENGINE_IMAGES, Informer(kinds.ENGINE_IMAGE.decode))
        self._instance_managers = watch(resources.LONGHORN_INSTANCE_MANAGERS, Informer(kinds.INSTANCE_MANAGER.decode))
        self._kube_nodes = watch(resources.NODES, Informer(kube.NODE.decode))
        self.disks = DiskIndex(self.schedules, self.nodes, self.volumes, self.replicas, self.images)
        self._now = now
        self._clock = timing.clock
        self._cluster: tuple[tuple[int, ...], float, Cluster] | None = None

    def count_unreadable(self) -> Counter[str]:
        """Returns how many objects cannot be read, by kind."""
        kinds = self.kinds.items()
        counts = Counter({label: sum(isinstance(each.value, Fault) for each in kind.values()) for label, kind in kinds})
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

    def __init__(
        self,
        schedules: Informer[DiskSchedule],
        nodes: Informer[Node],
        volumes: Informer[VolumeObject],
        replicas: Informer[Replica],
        images: Informer[ImageObject],
    ) -> None:
        self._schedules = schedules
        self._nodes = nodes
        self._replicas = replicas
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
        replicas.subscribe(self._on_replica_change)
        volumes.subscribe(self._on_volume_change)
        images.subscribe(self._on_image_change)
        schedules.subscribe(self._on_schedule_change)
        nodes.subscribe(self._on_node_change)

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
            schedule = self._schedules.readable.get(uuid)
            node = self._nodes.value(schedule.spec.node) if schedule else None
            self._space.set(uuid, disk_space(schedule, node, self.occupancy(uuid)) if schedule else None)
        self._changed.clear()
        return self._space

    def assume(self, replica: str, uuid: str) -> None:
        """Counts a replica on the disk that it will be placed on, until `refresh` or its next event."""
        value = self._replicas.readable.get(replica)
        if value is not None:
            volume = self.volumes.get(value.volume)
            size = value.size or (volume.size if volume else 0)
            newcomer = Occupant(size, has_data=False, backing_image=_image_of(volume))
            self._occupy(RequestKind.REPLICA, replica, {uuid: newcomer})

    def refresh(self, replica: str) -> None:
        """Counts a replica where the cache says it is."""
        value = self._replicas.value(replica)
        if not isinstance(value, Fault):
            occupant = None if value is None else replica_occupant(value, self.volumes.get(value.volume))
            self._occupy(RequestKind.REPLICA, replica, {value.disk_id: occupant} if value and occupant else {})

    def _on_replica_change(self, name: str, _before: object, after: Version[Replica]) -> None:
        volume = ""
        if isinstance(after, Replica):
            volume = after.volume
        elif (cached := self._replicas.get(name)) is not None:
            # The label still says which volume an unreadable replica belongs to.
            with suppress(errors.ObjectError):
                volume = disk_schedule.VOLUME_OF_REPLICA.decode(cached.raw)
        old = self.volume_of_replica.pop(name, "")
        self.replicas_of.move(name, old, volume)
        if volume:
            self.volume_of_replica[name] = volume
        for each in {old, volume} - {""}:
            readable = self._replicas.readable
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
