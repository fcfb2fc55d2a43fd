"""One immutable, versioned view of the cluster: a snapshot with the indexes a decision needs, built once per change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import Room, room
from scheduler_core.model import kube, longhorn
from scheduler_core.model.snapshot import NamespacedName, Snapshot


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot prepared for deciding. Everything a request reads comes from one View, so it never sees a change.

    Attributes:
        version: grows with every change; 0 for a snapshot file
        cluster: the same snapshot as Longhorn's policy engine reads it
        uncounted: by disk UUID, the replicas placed there that the node's status does not list yet
    """

    version: int
    snapshot: Snapshot
    cluster: Cluster
    default_storage_class: kube.StorageClass | None
    uncounted: Mapping[str, tuple[longhorn.Replica, ...]]
    _rooms: Mapping[str, Mapping[str, Room]]
    _reserved: Mapping[tuple[str, str, str], str]
    _pods_by_claim: Mapping[NamespacedName, tuple[kube.Pod, ...]]

    @classmethod
    def of(cls, snapshot: Snapshot, now: datetime, version: int = 0) -> View:
        """Builds the indexes of a snapshot taken at `now`.

        Raises:
            SettingError: a Longhorn setting cannot be read
        """
        cluster = Cluster.of(snapshot, now)
        uncounted = _uncounted(snapshot)
        return cls(
            version=version,
            snapshot=snapshot,
            cluster=cluster,
            default_storage_class=_default_storage_class(snapshot),
            uncounted=uncounted,
            _rooms={node.name: _rooms(node, cluster.settings, uncounted) for node in cluster.nodes.values()},
            _reserved=_reserved(snapshot),
            _pods_by_claim=_pods_by_claim(snapshot),
        )

    @property
    def settings(self) -> Settings:
        """Longhorn's settings, parsed."""
        return self.cluster.settings

    def rooms(self, node: str) -> Mapping[str, Room]:
        """By disk name, the bytes each can still take; a replica placed there counts before Longhorn's status lists it."""
        return self._rooms[node]

    def uncounted_on(self, disk: longhorn.Disk) -> int:
        """Bytes of the replicas placed on a disk that Longhorn's status does not list yet."""
        return _bytes_of(self.uncounted.get(disk.uuid, ()))

    def reserved_for(self, claim: kube.Claim) -> str:
        """The PersistentVolume that names an unbound claim in its claimRef, "" for none; it will be bound to that."""
        key = (claim.namespace, claim.name)
        return self._reserved.get((*key, claim.uid)) or self._reserved.get((*key, "")) or ""

    def replicas_of(self, volume: str) -> tuple[longhorn.Replica, ...]:
        """The replicas of a Longhorn volume, ordered by name."""
        return self.cluster.replicas_by_volume.get(volume, ())

    def pods_of(self, namespace: str, claim: str) -> tuple[kube.Pod, ...]:
        """The pods that mount a claim, ordered by name."""
        return self._pods_by_claim.get((namespace, claim), ())


def _rooms(
    node: longhorn.Node, settings: Settings, uncounted: Mapping[str, tuple[longhorn.Replica, ...]]
) -> dict[str, Room]:
    return {disk.name: room(disk, settings, _bytes_of(uncounted.get(disk.uuid, ()))) for disk in node.disks}


def _bytes_of(replicas: tuple[longhorn.Replica, ...]) -> int:
    return sum(replica.size for replica in replicas)


def _reserved(snapshot: Snapshot) -> dict[tuple[str, str, str], str]:
    found: dict[tuple[str, str, str], str] = {}
    for volume in snapshot.persistent_volumes.values():
        if volume.claim is not None:
            found[volume.claim] = min(volume.name, found.get(volume.claim, volume.name))
    return found


def _default_storage_class(snapshot: Snapshot) -> kube.StorageClass | None:
    defaults = [entry for entry in snapshot.storage_classes.values() if entry.is_default]
    newest = max((entry.created for entry in defaults), default="")
    return min((entry for entry in defaults if entry.created == newest), key=lambda entry: entry.name, default=None)


def _uncounted(snapshot: Snapshot) -> dict[str, tuple[longhorn.Replica, ...]]:
    """Longhorn's node controller adds up every replica of a disk, whatever its state; its status lags behind."""
    listed = {
        disk.uuid: disk.scheduled_replicas
        for node in snapshot.longhorn_nodes.values()
        for disk in node.disks
        if disk.uuid
    }
    found: dict[str, list[longhorn.Replica]] = {}
    for replica in snapshot.replicas.values():
        known = listed.get(replica.disk_id) if replica.node_id else None
        if known is not None and replica.name not in known:
            found.setdefault(replica.disk_id, []).append(replica)
    return {uuid: tuple(sorted(late, key=lambda entry: entry.name)) for uuid, late in found.items()}


def _pods_by_claim(snapshot: Snapshot) -> dict[NamespacedName, tuple[kube.Pod, ...]]:
    found: dict[NamespacedName, list[kube.Pod]] = {}
    for pod in snapshot.pods.values():
        for claim in {volume.claim for volume in pod.volumes}:
            found.setdefault((pod.namespace, claim), []).append(pod)
    return {claim: tuple(sorted(pods, key=lambda pod: (pod.name, pod.uid))) for claim, pods in found.items()}
