"""One immutable, versioned view of the cluster: a snapshot with the indexes a decision needs.

`View.of` builds one from a whole snapshot; `advance.py` makes the next one from what changed. The indexes that grow with the
cluster are persistent maps, so that the next view shares all but the changed entries with the one before, which requests
that are being decided go on reading.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Final, TypeVar

from rpds import HashTrieMap

from scheduler_core.disk_schedule.accounting import counted
from scheduler_core.disk_schedule.reconcile import limit_of
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import Room, room, scheduling_limit
from scheduler_core.model import kube, longhorn
from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.model.snapshot import NamespacedName, Snapshot

Replicas = tuple[longhorn.Replica, ...]
ClaimRef = tuple[str, str, str]
# Where one of these cannot be read, nobody knows how much is held or pending.
_COUNTED: Final = frozenset({"spec.replicas", "spec.backingImages", "status.replicas", "status.backingImages"})
_Value = TypeVar("_Value")
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Indexes:
    """Look-ups over a snapshot, all derived from it.

    Attributes:
        uncounted: by disk UUID, the replicas placed there that the node's status does not list yet, or smaller
        rooms: by Longhorn node and disk name, the bytes the disk can still take
        reserved: by the claim a PersistentVolume names in its claimRef, the names of those that do, in order
        pods_by_claim: the pods that mount a claim, ordered by name
        replicas_by_disk: by disk UUID, the replicas that say they are there, ordered by name
        node_of_disk: the Longhorn node that lists a disk UUID
    """

    uncounted: HashTrieMap[str, Replicas]
    rooms: HashTrieMap[str, Rooms]
    reserved: HashTrieMap[ClaimRef, tuple[str, ...]]
    pods_by_claim: HashTrieMap[NamespacedName, tuple[kube.Pod, ...]]
    replicas_by_disk: HashTrieMap[str, Replicas]
    node_of_disk: HashTrieMap[str, str]

    @classmethod
    def of(cls, cluster: Cluster) -> Indexes:
        """Builds all of them."""
        snapshot = cluster.snapshot
        by_disk = grouped(((replica.disk_id, replica) for replica in snapshot.replicas.values()), attrgetter("name"))
        uncounted: dict[str, Replicas] = {}
        for node in cluster.nodes.values():
            for disk in node.disks:
                late = late_replicas(disk, by_disk.get(disk.uuid, ()))
                if late:
                    uncounted[disk.uuid] = late
        return cls(
            uncounted=HashTrieMap(uncounted),
            rooms=HashTrieMap(
                {
                    node.name: rooms_of(node, cluster.settings, uncounted, snapshot.disk_schedules)
                    for node in cluster.nodes.values()
                }
            ),
            reserved=HashTrieMap(
                grouped(
                    ((entry.claim, entry.name) for entry in snapshot.persistent_volumes.values() if entry.claim), str
                )
            ),
            pods_by_claim=HashTrieMap(
                grouped(
                    ((claim, pod) for pod in snapshot.pods.values() for claim in claims_of(pod)),
                    attrgetter("name", "uid"),
                )
            ),
            replicas_by_disk=HashTrieMap(by_disk),
            node_of_disk=HashTrieMap(
                {disk.uuid: node.name for node in cluster.nodes.values() for disk in node.disks if disk.uuid}
            ),
        )


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot prepared for deciding. Everything a request reads comes from one View, so it never sees a change.

    Attributes:
        version: grows with every change; 0 for a snapshot file
        cluster: the same snapshot as Longhorn's policy engine reads it
    """

    version: int
    snapshot: Snapshot
    cluster: Cluster
    default_storage_class: kube.StorageClass | None
    indexes: Indexes

    @classmethod
    def of(cls, snapshot: Snapshot, now: datetime, version: int = 0, settings: Settings | None = None) -> View:
        """Builds the indexes of a snapshot taken at `now`; `settings` replaces those of the snapshot.

        Raises:
            SettingError: a Longhorn setting of the snapshot cannot be read
        """
        cluster = Cluster.of(snapshot, now, settings)
        return cls(version, snapshot, cluster, default_class(snapshot), Indexes.of(cluster))

    @property
    def settings(self) -> Settings:
        """Longhorn's settings, parsed."""
        return self.cluster.settings

    def rooms(self, node: str) -> Mapping[str, Room]:
        """By disk name, the bytes each can still take; a replica placed there counts before Longhorn's status lists it.

        Where a disk has a DiskSchedule, what is held or pending there counts too, and its limit holds.
        """
        return self.indexes.rooms[node]

    def late_on(self, disk: longhorn.Disk) -> Replicas:
        """The replicas placed on a disk that Longhorn's status does not list yet, or not in their full size."""
        return self.indexes.uncounted.get(disk.uuid) or ()

    def uncounted_on(self, node: str, disk: longhorn.Disk) -> int:
        """The bytes by which a node's disk can take less than Longhorn's status says: what that does not list yet, or what a DiskSchedule refuses."""
        if self.schedule_of(disk) is None:
            return late_bytes(disk, self.late_on(disk))
        return scheduling_limit(disk, self.settings) - disk.storage_scheduled - self.rooms(node)[disk.name].free

    def schedule_of(self, disk: longhorn.Disk) -> DiskSchedule | None:
        """The DiskSchedule that a disk's room is allocated through, None if it has none."""
        return counting_schedule(disk, self.snapshot.disk_schedules)

    def reserved_for(self, claim: kube.Claim) -> str:
        """The PersistentVolume that names an unbound claim in its claimRef, "" for none; it will be bound to that."""
        reserved = self.indexes.reserved
        names = reserved.get((claim.namespace, claim.name, claim.uid)) or reserved.get(
            (claim.namespace, claim.name, "")
        )
        return names[0] if names else ""

    def replicas_of(self, volume: str) -> Replicas:
        """The replicas of a Longhorn volume, ordered by name."""
        return self.cluster.replicas_by_volume.get(volume, ())

    def selected_node(self, pod: kube.Pod) -> str:
        """The node kube-scheduler has selected for one of the pod's claims; "" for none.

        Between the binding of the last claim and that of the pod lie seconds in a burst, so a claim that was provisioned for this pod
        still says it when it is bound; one that is older than the pod says where its predecessor was first scheduled.
        """
        provisioned = ""
        for mount in pod.volumes:
            claim = self.snapshot.claims.get((pod.namespace, mount.claim))
            if claim is None or not claim.selected_node:
                continue
            if not claim.spec.volume_name:  # the latest choice, if an earlier one could not be provisioned
                return claim.selected_node
            if not provisioned and self._provisioned_for(pod, claim):
                provisioned = claim.selected_node
        return provisioned

    def _provisioned_for(self, pod: kube.Pod, claim: kube.Claim) -> bool:
        volume = self.snapshot.persistent_volumes.get(claim.spec.volume_name)
        if volume is None:  # not heard of yet, so it is new
            return not claim.lost
        if volume.claim is None or volume.claim[:2] != (claim.namespace, claim.name):
            return False
        return bool(pod.created) and volume.created >= pod.created

    def pods_of(self, namespace: str, claim: str) -> tuple[kube.Pod, ...]:
        """The pods that mount a claim, ordered by name."""
        return self.indexes.pods_by_claim.get((namespace, claim)) or ()


class Rooms(dict[str, Room]):
    """By disk name, the bytes each of a node's disks can still take; `free` is what they can in all."""

    __slots__ = ("free",)

    def __init__(self, rooms: Mapping[str, Room]) -> None:
        super().__init__(rooms)
        self.free = sum(max(0, one.free) for one in rooms.values())


def rooms_of(
    node: longhorn.Node,
    settings: Settings,
    uncounted: Mapping[str, Replicas],
    schedules: Mapping[str, DiskSchedule],
) -> Rooms:
    """What a node's disks can still take."""
    found: dict[str, Room] = {}
    for disk in node.disks:
        late = uncounted.get(disk.uuid) or ()
        schedule = counting_schedule(disk, schedules)
        found[disk.name] = (
            room(disk, settings, late_bytes(disk, late))
            if schedule is None
            else _scheduled_room(node, disk, settings, late, schedule)
        )
    return Rooms(found)


def counting_schedule(disk: longhorn.Disk, schedules: Mapping[str, DiskSchedule]) -> DiskSchedule | None:
    """The DiskSchedule that a disk's room is allocated through; one that mirrors what Longhorn does by itself counts nothing."""
    schedule = schedules.get(disk.uuid) if schedules and disk.uuid else None
    return None if schedule is None or schedule.mirrored else schedule


def _scheduled_room(
    node: longhorn.Node, disk: longhorn.Disk, settings: Settings, late: Replicas, schedule: DiskSchedule
) -> Room:
    """The room of a disk with a DiskSchedule: none where its controller would refuse every request."""
    found = counted(disk, schedule, late)
    limit = limit_of(schedule, node if schedule.spec.node == node.name else None)
    refuses = limit.reason != "" or any(fault.field in _COUNTED for fault in schedule.faults)
    return room(disk, settings, found.uncounted, min(found.free, 0) if refuses else found.free)


def late_bytes(disk: longhorn.Disk, replicas: Replicas) -> int:
    """What some of a disk's replicas occupy beyond what its status lists for them; of one that grows that is the difference."""
    return sum(replica.size - disk.scheduled_replicas.get(replica.name, 0) for replica in replicas)


def late_replicas(disk: longhorn.Disk, replicas: Replicas) -> Replicas:
    """Those of a disk's replicas that its status does not list yet, or lists with the size they had before they grew.

    Longhorn's node controller adds up every replica of a disk, whatever its state; its status lags behind.
    """
    if not disk.uuid:
        return ()
    listed = disk.scheduled_replicas
    return tuple(replica for replica in replicas if replica.node_id and _is_late(replica, listed))


def _is_late(replica: longhorn.Replica, listed: Mapping[str, int]) -> bool:
    return replica.name not in listed or replica.size > listed[replica.name]


def default_class(snapshot: Snapshot) -> kube.StorageClass | None:
    """The StorageClass of claims that name none: the newest that says it is the default (Kubernetes' GetDefaultClass)."""
    defaults = [entry for entry in snapshot.storage_classes.values() if entry.is_default]
    newest = max((entry.created for entry in defaults), default="")
    return min((entry for entry in defaults if entry.created == newest), key=lambda entry: entry.name, default=None)


def claims_of(pod: kube.Pod) -> set[NamespacedName]:
    """The claims a pod mounts."""
    return {(pod.namespace, volume.claim) for volume in pod.volumes}


def grouped(pairs: Iterable[tuple[_Key, _Value]], order: Callable[[_Value], object]) -> dict[_Key, tuple[_Value, ...]]:
    """The values of each key, in order."""
    found: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return {key: tuple(sorted(values, key=order)) for key, values in found.items()}  # type: ignore[arg-type]
