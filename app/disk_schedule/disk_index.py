"""Index of what each disk holds and what is left there, which follows the caches.

Data flow: an event of a Replica, Volume, BackingImage, DiskSchedule or Longhorn node marks the disks that it concerns;
`space` and `occupancy` compute the marked disks again. So a decision costs what has changed since the last one, not
what exists.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from app.disk_schedule.informer import ImageObject, Informer, VolumeObject, volume_label
from scheduler_core.disk_schedule.disk_space import DiskSpaces, disk_space
from scheduler_core.disk_schedule.occupancy import DiskOccupancy, Occupant, image_occupants, replica_occupant
from scheduler_core.model.disk_schedule import DiskSchedule, DiskScheduleSpec, Fault
from scheduler_core.model.longhorn import Node, Replica, Volume

DiskHandler = Callable[[str], None]


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
        self._volumes = volumes
        self._replicas = replicas
        self._replica_occupants: defaultdict[str, dict[str, Occupant]] = defaultdict(dict)
        self._image_occupants: defaultdict[str, dict[str, Occupant]] = defaultdict(dict)
        self._disk_of_replica: dict[str, str] = {}
        self._disks_of_image: dict[str, frozenset[str]] = {}
        self._volume_of_replica: dict[str, str] = {}
        self._replicas_of_volume: defaultdict[str, set[str]] = defaultdict(set)
        self._volumes_of_image: defaultdict[str, set[str]] = defaultdict(set)
        self._disks_of_node: defaultdict[str, set[str]] = defaultdict(set)
        self._disks_of_request: defaultdict[str, set[str]] = defaultdict(set)
        self._space = DiskSpaces()
        self._changed: set[str] = set()
        self._handlers: list[DiskHandler] = []
        replicas.subscribe(self._on_replica_change)
        volumes.subscribe(self._on_volume_change)
        images.subscribe(self._on_image_change)
        schedules.subscribe(self._on_schedule_change)
        nodes.subscribe(self._on_node_change)

    def subscribe(self, handler: DiskHandler) -> None:
        self._handlers.append(handler)

    def occupancy(self, uuid: str) -> DiskOccupancy:
        return DiskOccupancy(
            dict(self._replica_occupants.get(uuid, {})),
            dict(self._image_occupants.get(uuid, {})),
        )

    def space(self) -> DiskSpaces:
        """What a newcomer can get on each disk now; valid until the caller awaits."""
        for uuid in self._changed:
            schedule = self._schedules.value(uuid)
            if isinstance(schedule, DiskSchedule):
                node = self._nodes.value(schedule.spec.node)
                self._space.set(uuid, disk_space(schedule, node, self.occupancy(uuid)))
            else:
                self._space.set(uuid, None)
        self._changed.clear()
        return self._space

    def replicas_of(self, volume: str) -> frozenset[str]:
        return frozenset(self._replicas_of_volume.get(volume, ()))

    def volume_of(self, replica: str) -> str:
        return self._volume_of_replica.get(replica, "")

    def volumes_of(self, image: str) -> frozenset[str]:
        return frozenset(self._volumes_of_image.get(image, ()))

    def disks_requesting(self, replica: str) -> frozenset[str]:
        return frozenset(self._disks_of_request.get(replica, ()))

    def disks_of(self, node: str) -> frozenset[str]:
        return frozenset(self._disks_of_node.get(node, ()))

    def assume(self, replica: str, uuid: str) -> None:
        """Counts a replica on the disk that it will be placed on, until `refresh` or its next event."""
        value = self._replicas.value(replica)
        if isinstance(value, Replica):
            volume = self._volume(value.volume)
            size = value.size or (volume.size if volume else 0)
            self._place_replica(replica, uuid, Occupant(size, has_data=False, backing_image=_image_of(volume)))

    def refresh(self, replica: str) -> None:
        """Counts a replica where the cache says it is."""
        value = self._replicas.value(replica)
        if value is None:
            self._place_replica(replica, "", None)
        elif isinstance(value, Replica):
            self._place_replica(replica, value.disk_id, replica_occupant(value, self._volume(value.volume)))

    def _volume(self, name: str) -> Volume | None:
        value = self._volumes.value(name)
        return value.volume if isinstance(value, VolumeObject) else None

    def _on_replica_change(self, name: str, before: Replica | Fault | None, after: Replica | Fault | None) -> None:
        del before
        if isinstance(after, Fault):
            cached = self._replicas.get(name)
            self._set_volume(name, volume_label(cached.raw) if cached else "")
            return
        self._set_volume(name, after.volume if after is not None else "")
        self.refresh(name)

    def _set_volume(self, replica: str, volume: str) -> None:
        old = self._volume_of_replica.pop(replica, "")
        if old:
            self._replicas_of_volume[old].discard(replica)
            if not self._replicas_of_volume[old]:
                del self._replicas_of_volume[old]
        if volume:
            self._volume_of_replica[replica] = volume
            self._replicas_of_volume[volume].add(replica)

    def _on_volume_change(
        self, name: str, before: VolumeObject | Fault | None, after: VolumeObject | Fault | None
    ) -> None:
        old = before.volume if isinstance(before, VolumeObject) else None
        new = after.volume if isinstance(after, VolumeObject) else None
        if _image_of(old) != _image_of(new):
            self._volumes_of_image[_image_of(old)].discard(name)
            self._volumes_of_image[_image_of(new)].add(name)
        if new is not None and (old is None or (old.size, old.backing_image) != (new.size, new.backing_image)):
            for replica in self.replicas_of(name):
                self.refresh(replica)

    def _on_image_change(
        self, name: str, _before: ImageObject | Fault | None, after: ImageObject | Fault | None
    ) -> None:
        if isinstance(after, Fault):
            return
        occupants = image_occupants(after.copies) if after is not None else {}
        for uuid in self._disks_of_image.get(name, frozenset()) - occupants.keys():
            self._set_occupant(self._image_occupants, uuid, name, None)
        for uuid, occupant in occupants.items():
            self._set_occupant(self._image_occupants, uuid, name, occupant)
        self._disks_of_image[name] = frozenset(occupants)
        if not occupants:
            del self._disks_of_image[name]

    def _on_schedule_change(
        self, name: str, before: DiskSchedule | Fault | None, after: DiskSchedule | Fault | None
    ) -> None:
        self._changed.add(name)
        old = before.spec if isinstance(before, DiskSchedule) else DiskScheduleSpec()
        new = after.spec if isinstance(after, DiskSchedule) else DiskScheduleSpec()
        self._disks_of_node[old.node].discard(name)
        if isinstance(after, DiskSchedule):
            self._disks_of_node[new.node].add(name)
        for replica in old.replicas.keys() - new.replicas.keys():
            self._disks_of_request[replica].discard(name)
            if not self._disks_of_request[replica]:
                del self._disks_of_request[replica]
        for replica in new.replicas.keys() - old.replicas.keys():
            self._disks_of_request[replica].add(name)

    def _on_node_change(self, name: str, _before: object, _after: object) -> None:
        self._changed |= self._disks_of_node.get(name, set())

    def _place_replica(self, name: str, uuid: str, occupant: Occupant | None) -> None:
        old = self._disk_of_replica.pop(name, "")
        if old and old != uuid:
            self._set_occupant(self._replica_occupants, old, name, None)
        if uuid:
            self._set_occupant(self._replica_occupants, uuid, name, occupant)
            if occupant is not None:
                self._disk_of_replica[name] = uuid

    def _set_occupant(
        self, occupants: defaultdict[str, dict[str, Occupant]], uuid: str, name: str, occupant: Occupant | None
    ) -> None:
        on_disk = occupants[uuid]
        if on_disk.get(name) == occupant:
            return
        if occupant is None:
            del on_disk[name]
        else:
            on_disk[name] = occupant
        if not on_disk:
            del occupants[uuid]
        self._changed.add(uuid)
        for handler in self._handlers:
            handler(uuid)


def _image_of(volume: Volume | None) -> str:
    return volume.backing_image if volume else ""
