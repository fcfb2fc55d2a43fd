"""Which replicas need a place before a pod can start, and which disks one more replica may use.

Longhorn attaches a volume once one replica has a place, or only once all have one, if `allow-volume-creation-with-degraded-availability` is
false (volume_controller.go: reconcileVolumeCondition). Replicas that are added to an attached volume later do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from scheduler_core.cluster.view import View
from scheduler_core.evaluation.disk_profile import OpenDisk, Profile, profile_node
from scheduler_core.evaluation.reasons import Refused
from scheduler_core.longhorn.anti_affinity import SoftAntiAffinity, has_disk_pressure
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.placement import node_candidates, tiers_of
from scheduler_core.longhorn.replica_request import ReplicaRequest, balances_best_effort
from scheduler_core.model import longhorn
from scheduler_core.packing.spread import SHARED
from scheduler_core.volumes.requirements import Requirements, requirements, volume_class
from scheduler_core.volumes.resolve import PodVolume, Resolution


@dataclass(frozen=True)
class ReplicaNeed:
    """The replicas of one volume that need a place."""

    volume: PodVolume
    count: int  # how many, one on the pod's node included if the volume needs space there
    soft: SoftAntiAffinity  # whether they may share nodes, zones and disks

    @cached_property
    def required(self) -> Requirements:
        return requirements([self.volume], ())

    @property
    def placed(self) -> bool:
        return any(replica.node_id for replica in self.volume.replicas)

    @property
    def elsewhere(self) -> int:
        """How many replicas may need a place that is not fixed to the pod's node."""
        return self.count if self.placed or not self.volume.local else max(0, self.count - 1)

    @property
    def key(self) -> object:
        """Equal for needs that every cluster answers alike."""
        volume = self.volume.volume
        replicas = self.volume.replicas
        bytes_and_class = (volume.size, volume.actual_size, volume_class(volume))
        spread = (self.count, self.volume.local, self.soft, volume.replica_auto_balance)
        # Where replicas exist, they may be anywhere and in any state.
        return bytes_and_class, spread, replicas, volume.robustness if replicas else ""


def replica_needs(resolution: Resolution, view: View) -> tuple[ReplicaNeed, ...]:
    """Returns the needs of the volumes with replicas that need a place, the largest first. Empty if all these replicas
    have theirs on the pod's node.
    """
    settings = view.settings
    degraded = settings.allow_volume_creation_with_degraded_availability
    if degraded and not resolution.unplaced:
        return ()
    needs = [
        ReplicaNeed(volume, _replicas_to_place(volume, degraded=degraded), SoftAntiAffinity.of(volume.volume, settings))
        for volume in resolution.volumes
    ]
    if not any(need.elsewhere for need in needs):
        return ()
    needs = [need for need in needs if need.count]
    return tuple(sorted(needs, key=lambda need: (-need.volume.volume.size, -need.count, need.volume.claim)))


def _replicas_to_place(volume: PodVolume, *, degraded: bool) -> int:
    if volume.volume.has_shards:
        return 0
    pending = sum(not replica.node_id for replica in volume.replicas)
    if pending < len(volume.replicas):
        # Longhorn waits for the others only while it does not run the volume.
        return 0 if degraded or volume.volume.node_id else pending
    if degraded and volume.volume.data_layout is None:
        return 1
    # A sharded volume is attached once all its shards run (shard_group_controller.go: syncProcess).
    return max(1, pending, volume.volume.number_of_replicas)


def one_of_each_kind(needs: Iterable[ReplicaNeed]) -> tuple[ReplicaNeed, ...]:
    by_key: dict[object, ReplicaNeed] = {}
    for need in needs:
        by_key.setdefault(need.key, need)
    return tuple(by_key.values())


def has_disk_for(profile: Profile, size: int, written: int) -> bool:
    """Whether a node has a disk for a replica of a size. Some bytes of the replica are written already."""
    if profile.reason is not None or profile.free[0] < size:
        return False
    pairs = zip(profile.free, profile.headroom, strict=True)
    return not written or any(free >= size and written < headroom for free, headroom in pairs)


def open_disks(view: View, need: ReplicaNeed, name: str) -> Iterator[OpenDisk]:
    """Yields the disks of a node that can take one more replica. The replica is looked at as if it were the only
    volume.
    """
    disks = profile_node(view, need.required.classes, name)
    if isinstance(disks, Refused):
        return
    volume = need.volume.volume
    for disk in disks:
        size = volume.size + sum(size for _, size in disk.copies)
        if size <= disk.free and (not volume.actual_size or volume.actual_size < disk.headroom):
            yield disk


def used_disks(need: ReplicaNeed) -> frozenset[str]:
    """UUIDs of the disks that the placed replicas keep from others (filterDisksWithMatchingReplicas)."""
    if need.soft.disk:
        return frozenset()
    replicas = need.volume.replicas
    return frozenset(entry.disk_id for entry in replicas if not entry.failed_at or entry.potentially_reusable)


def nodes_in_tiers(cluster: Cluster, need: ReplicaNeed) -> frozenset[str] | None:
    """Names of the nodes that the placed replicas leave to others; None for every node, if no replica is placed.
    Longhorn tries a tier only if the earlier ones have no disk; any may be reached.
    """
    if not need.placed:
        return None
    request = ReplicaRequest.for_volume(need.volume.volume)
    nodes, _ = node_candidates(cluster, request)
    tiers = tiers_of(cluster, request, nodes, need.volume.replicas)
    return frozenset(node.name for _, members in tiers for node in members)


def domain_of(cluster: Cluster, need: ReplicaNeed, node: longhorn.Node, uuid: str) -> object:
    """Returns what at most one of the replicas may use: a zone, a node or a disk; SHARED if any number may use the
    disk.

    Anti-affinity of zones decides before that of nodes (`longhorn/anti_affinity.py`: TIER_ORDER).
    """
    soft = need.soft
    if not soft.zone:
        return ("zone", node.zone)
    reopened = balances_best_effort(need.volume.volume, cluster.settings) and has_disk_pressure(node, cluster.settings)
    if not soft.node and not reopened:
        return ("node", node.name)
    return SHARED if soft.disk else ("disk", uuid)


def copy_sizes(view: View, image: str, uuids: Iterable[str]) -> tuple[int, ...]:
    """Returns the bytes of a backing image by disk, 0 where it is already."""
    entry = view.snapshot.backing_images.get(image)
    return () if entry is None else tuple(0 if uuid in entry.disks else entry.real_size for uuid in uuids)
