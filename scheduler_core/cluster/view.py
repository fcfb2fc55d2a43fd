"""One immutable, versioned view of the cluster: a snapshot with the indexes that a decision needs.

`View.of` builds one from a whole snapshot; `update.py` makes the next one from what changed. The indexes that grow with the
cluster are persistent maps. So the next view shares every unchanged entry with the previous view, which running
requests go on reading.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeVar

from rpds import HashTrieMap

from scheduler_core.cluster.free_space import (
    FreeSpace,
    Replicas,
    count_growth,
    effective_schedule,
    free_space_of,
    requested_size,
    unlisted_bytes,
    unlisted_replicas,
)
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import scheduling_limit
from scheduler_core.model import kube, longhorn
from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.model.snapshot import NamespacedName, Snapshot
from scheduler_core.structs import Struct

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def group_by_key(
    pairs: Iterable[tuple[_Key, _Value]], order: Callable[[_Value], Any]
) -> dict[_Key, tuple[_Value, ...]]:
    groups: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return {key: tuple(sorted(values, key=order) if len(values) > 1 else values) for key, values in groups.items()}


def add_member(
    groups: "HashTrieMap[_Key, tuple[_Value, ...]]", key: _Key, member: _Value, order: Callable[[_Value], Any]
) -> "HashTrieMap[_Key, tuple[_Value, ...]]":
    """Returns the groups with one more member, sorted by `order`."""
    return groups.insert(key, tuple(sorted((*(groups.get(key) or ()), member), key=order)))


def discard_member(
    groups: "HashTrieMap[_Key, tuple[_Value, ...]]", key: _Key, member: _Value
) -> "HashTrieMap[_Key, tuple[_Value, ...]]":
    return put(groups, key, tuple(entry for entry in groups.get(key) or () if entry != member) or None)


def put(entries: "HashTrieMap[_Key, _Value]", key: _Key, value: _Value | None) -> "HashTrieMap[_Key, _Value]":
    """Returns the map with this value, or without the key if the value is None."""
    return entries.discard(key) if value is None else entries.insert(key, value)


class Grouping(Struct, frozen=True):
    """Groups the objects of one kind by key; `update.py` keeps the groups up to date, object by object."""

    kind: str  # the field of `Snapshot` that has the objects
    keys: Callable[[Any], Iterable[Any]]  # the groups that an object belongs to
    order: Callable[[Any], Any]  # sorts the members of a group
    member: Callable[[Any], Any] = lambda entry: entry  # what a group holds of an object

    def of(self, snapshot: Snapshot) -> dict[Any, Any]:
        objects = getattr(snapshot, self.kind).values()
        pairs = ((key, self.member(entry)) for entry in objects for key in self.keys(entry))
        return group_by_key(pairs, self.order)

    def replace(
        self, groups: "HashTrieMap[Any, Any]", old: object | None, new: object | None
    ) -> "HashTrieMap[Any, Any]":
        """Returns the groups after one object has changed; None where it did not exist, or exists no longer."""
        for key in self.keys(old) if old is not None else ():
            groups = discard_member(groups, key, self.member(old))
        for key in self.keys(new) if new is not None else ():
            groups = add_member(groups, key, self.member(new), self.order)
        return groups


def by_capacity(volume: kube.PersistentVolume) -> tuple[int, str]:
    return volume.available.capacity if volume.available else 0, volume.name


def claims_of(pod: kube.Pod) -> set[NamespacedName]:
    return {(pod.namespace, volume.claim) for volume in pod.volumes}


_BY_NAME = attrgetter("name")
GROUPINGS = {
    "volumes_by_claim_ref": Grouping(
        "persistent_volumes", lambda volume: filter(None, [volume.claim]), str, member=_BY_NAME
    ),
    "volumes_by_handle": Grouping(
        "persistent_volumes", lambda volume: filter(None, [volume.handle]), str, member=_BY_NAME
    ),
    "available_volumes": Grouping(
        "persistent_volumes", lambda volume: [volume.available.storage_class] if volume.available else [], by_capacity
    ),
    "pods_by_claim": Grouping("pods", claims_of, attrgetter("name", "uid")),
    "replicas_by_disk": Grouping("replicas", lambda replica: filter(None, [replica.disk_id]), _BY_NAME),
    "attachments": Grouping("volume_attachments", lambda entry: [entry.persistent_volume], _BY_NAME),
}
"""The groups among the `Indexes`, by field."""
CLUSTER_GROUPINGS = {
    "replicas_by_volume": Grouping("replicas", lambda replica: [replica.volume], _BY_NAME),
    "instance_managers": Grouping("instance_managers", lambda entry: [(entry.node, entry.data_engine)], _BY_NAME),
    "engine_images": Grouping("engine_images", lambda entry: [entry.image], _BY_NAME),
}
"""The same of `Cluster`, which makes them itself."""


class Indexes(Struct):
    """Look-ups over a snapshot, all derived from it. Those of a view never change: `update.py` changes a copy."""

    # By disk UUID, the placed replicas that the node's status does not list yet, or lists smaller.
    unlisted_replicas: "HashTrieMap[str, Replicas]"
    free_space: Mapping[str, FreeSpace]  # by Longhorn node, the bytes that each disk can still take
    # By the claim that a PersistentVolume's claimRef names, the names of such volumes, sorted.
    volumes_by_claim_ref: "HashTrieMap[tuple[str, str, str], tuple[str, ...]]"
    # By storage class, the free PersistentVolumes that a claim may be bound to, smallest first.
    available_volumes: "HashTrieMap[str, tuple[kube.PersistentVolume, ...]]"
    pods_by_claim: "HashTrieMap[NamespacedName, tuple[kube.Pod, ...]]"  # the pods that mount a claim, sorted by name
    pods_to_schedule: int  # how many pods with claims kube-scheduler has neither decided about nor refused yet
    # By disk UUID, the replicas whose spec names that disk, sorted by name.
    replicas_by_disk: "HashTrieMap[str, Replicas]"
    node_of_disk: "HashTrieMap[str, str]"  # by disk UUID, the Longhorn node that lists the disk
    # By Longhorn volume, the names of its PersistentVolumes, sorted.
    volumes_by_handle: "HashTrieMap[str, tuple[str, ...]]"
    # By PersistentVolume, its VolumeAttachments, sorted by name.
    attachments: "HashTrieMap[str, tuple[kube.VolumeAttachment, ...]]"
    requested_sizes: "HashTrieMap[str, int]"  # by Longhorn volume, the size that its claim requests beyond what it has
    # By name, the volumes whose growth counts, with their new size.
    growing_volumes: "HashTrieMap[str, longhorn.Volume]"
    growth: "HashTrieMap[str, int]"  # by disk UUID, the bytes that they grow by

    @classmethod
    def of(cls, cluster: Cluster) -> "Indexes":
        """Builds all indexes."""
        snapshot = cluster.snapshot
        nodes = cluster.nodes.values()
        groups = {name: grouping.of(snapshot) for name, grouping in GROUPINGS.items()}
        by_disk = groups["replicas_by_disk"]
        by_handle = groups["volumes_by_handle"]
        unlisted: dict[str, Replicas] = {}
        for node in nodes:
            for disk in node.disks:
                missing = unlisted_replicas(disk, by_disk.get(disk.uuid, ()))
                if missing:
                    unlisted[disk.uuid] = missing
        sizes: dict[str, int] = {}
        for handle in {*by_handle, *cluster.replicas_by_volume}:
            names = by_handle.get(handle, ())
            size = requested_size(handle, names, cluster.replicas_by_volume.get(handle, ()), snapshot)
            if size:
                sizes[handle] = size
        node_of_disk = {disk.uuid: node.name for node in nodes for disk in node.disks if disk.uuid}
        growing_volumes, growth = count_growth(sizes, cluster, unlisted, node_of_disk)
        free_space = {
            node.name: free_space_of(node, cluster.settings, unlisted, snapshot.disk_schedules, growth)
            for node in nodes
        }
        return cls(
            **{name: HashTrieMap(members) for name, members in groups.items()},
            unlisted_replicas=HashTrieMap(unlisted),
            free_space=free_space,
            pods_to_schedule=count_to_schedule(snapshot.pods, snapshot),
            node_of_disk=HashTrieMap(node_of_disk),
            requested_sizes=HashTrieMap(sizes),
            growing_volumes=HashTrieMap(growing_volumes),
            growth=HashTrieMap(dict(growth)),
        )


class View(Struct, frozen=True):
    """A snapshot prepared for deciding. Everything that a request reads comes from one view, so the request never sees
    the cluster change.
    """

    version: int  # grows with every change; 0 for a snapshot file
    snapshot: Snapshot
    cluster: Cluster  # the same snapshot as Longhorn's placement rules read it
    default_storage_class: kube.StorageClass | None
    indexes: Indexes

    @classmethod
    def of(cls, snapshot: Snapshot, now: datetime, version: int = 0, settings: Settings | None = None) -> "View":
        """Builds the view of a snapshot taken at `now`; `settings` replaces those of the snapshot.

        Raises:
            SettingError: a Longhorn setting of the snapshot cannot be read
        """
        cluster = Cluster.of(snapshot, now, settings)
        return cls(version, snapshot, cluster, default_class(snapshot), Indexes.of(cluster))

    @property
    def settings(self) -> Settings:
        return self.cluster.settings

    def free_space(self, node: str) -> FreeSpace:
        return self.indexes.free_space[node]

    def volume(self, name: str) -> longhorn.Volume | None:
        """Returns a Longhorn volume, with the size that it grows to."""
        return self.indexes.growing_volumes.get(name) or self.snapshot.volumes.get(name)

    def persistent_volumes_of(self, handle: str) -> list[kube.PersistentVolume]:
        """Returns a Longhorn volume's PersistentVolumes, sorted by name."""
        return [self.snapshot.persistent_volumes[name] for name in self.indexes.volumes_by_handle.get(handle) or ()]

    def unlisted_replicas_on(self, disk: longhorn.Disk) -> Replicas:
        """Returns the replicas that Longhorn's status does not list on a disk, or lists with an outdated size."""
        return self.indexes.unlisted_replicas.get(disk.uuid) or ()

    def uncounted_bytes(self, node: str, disk: longhorn.Disk) -> int:
        # Without a DiskSchedule these are the bytes of unlisted replicas and of requested growth. With one they are the
        # difference between what Longhorn's scheduling limit leaves free and what `free_space` does.
        if self.schedule_of(disk) is None:
            growth = self.indexes.growth.get(disk.uuid) or 0
            return unlisted_bytes(disk, self.unlisted_replicas_on(disk)) + growth
        return scheduling_limit(disk, self.settings) - disk.storage_scheduled - self.free_space(node)[disk.name].free

    def schedule_of(self, disk: longhorn.Disk) -> DiskSchedule | None:
        return effective_schedule(disk, self.snapshot.disk_schedules)

    def pre_bound_volume(self, claim: kube.Claim) -> str:
        """Returns the PersistentVolume whose claimRef names an unbound claim, "" for none."""
        # Kubernetes will bind the claim to it.
        volumes = self.indexes.volumes_by_claim_ref
        names = volumes.get((claim.namespace, claim.name, claim.uid)) or volumes.get((claim.namespace, claim.name, ""))
        return names[0] if names else ""

    def replicas_of(self, volume: str) -> Replicas:
        return self.cluster.replicas_by_volume.get(volume, ())

    def selected_node(self, pod: kube.Pod) -> str:
        """Returns the node that kube-scheduler selected for the pod's claims, "" for none. In a burst seconds lie
        between the binding of the last claim and that of the pod, so a bound claim counts if it was provisioned for
        this pod. A claim older than the pod only says where an earlier pod was first scheduled.
        """
        provisioned = ""
        for mount in pod.volumes:
            claim = self.snapshot.claims.get((pod.namespace, mount.claim))
            if claim is None or not claim.selected_node:
                continue
            # An unbound claim has the latest choice, in case an earlier node could not be provisioned.
            if not claim.spec.volume_name:
                return claim.selected_node
            if not provisioned and self._counts_for(pod, claim):
                provisioned = claim.selected_node
        return provisioned

    def _counts_for(self, pod: kube.Pod, claim: kube.Claim) -> bool:
        volume = self.snapshot.persistent_volumes.get(claim.spec.volume_name)
        # A volume that no watch has delivered yet must be new.
        if volume is None:
            return not claim.lost
        if volume.claim is None or volume.claim[:2] != (claim.namespace, claim.name):
            return False
        return bool(pod.created) and volume.created >= pod.created

    def pods_of(self, namespace: str, claim: str) -> tuple[kube.Pod, ...]:
        return self.indexes.pods_by_claim.get((namespace, claim)) or ()


def default_class(snapshot: Snapshot) -> kube.StorageClass | None:
    """Returns the StorageClass of claims that name none: the newest default class (Kubernetes' GetDefaultClass)."""
    defaults = [entry for entry in snapshot.storage_classes.values() if entry.is_default]
    newest = max((entry.created for entry in defaults), default="")
    return min((entry for entry in defaults if entry.created == newest), key=lambda entry: entry.name, default=None)


def count_to_schedule(keys: Iterable[NamespacedName], snapshot: Snapshot) -> int:
    """Returns how many of these pods kube-scheduler has neither decided about nor refused yet."""
    pods = (snapshot.pods.get(key) for key in keys)
    return sum(_is_to_schedule(pod, snapshot) for pod in pods if pod is not None)


def _is_to_schedule(pod: kube.Pod, snapshot: Snapshot) -> bool:
    # The selected node of an unbound claim is a decision: before Kubernetes 1.35 no nomination shows it while the claim
    # is provisioned.
    if not (pod.volumes and pod.live) or pod.node_name or pod.nominated_node or pod.unschedulable:
        return False
    claims = (snapshot.claims.get(name) for name in claims_of(pod))
    return not any(claim is not None and claim.selected_node and not claim.spec.volume_name for claim in claims)
