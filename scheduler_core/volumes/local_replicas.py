"""Restart: on which nodes a pod's local volumes already live, and where a volume needs no new space.

What one replica means (Longhorn's proposal: Filter step 3), on a ready node and a ready disk:

| replica                                        | makes the node a home                    | needs new space there |
|------------------------------------------------|------------------------------------------|-----------------------|
| healthy, active, not evicting, not deleting    | yes                                      | no                    |
| placed, never healthy (first attach, rebuild)  | only if no candidate has a healthy one   | no                    |
| failed, but reusable or salvageable            | only if the volume has no healthy one    | no                    |
| evicting, deleting, not reusable               | no                                       | yes                   |

A cordon, `allowScheduling: false` or a full disk does not end a home: nothing new is written there. Without any healthy
replica a failed one is what the data is salvaged from; beside a healthy one it counts only if Longhorn would really
use it again (`longhorn.reuse`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.node_stage import schedulable_refusal
from scheduler_core.longhorn.replica_request import Ask
from scheduler_core.longhorn.replica_reuse import is_reusable
from scheduler_core.model import longhorn
from scheduler_core.model.disk_schedule import State
from scheduler_core.volumes.resolve import PodVolume


class Standing(Enum):
    """What a replica is worth to a pod that comes back to its node."""

    HEALTHY = "healthy"
    NEW = "new"
    FAILED = "failed"
    NONE = "none"


def is_healthy(replica: longhorn.Replica) -> bool:
    """Whether a replica holds the volume's data and stays, wherever it is."""
    return bool(_stays(replica) and replica.healthy_at and not replica.failed_at)


def standing(volume: PodVolume, replica: longhorn.Replica, cluster: Cluster, *, salvage: bool) -> Standing:
    """What the replica means on its node; `salvage` says that the volume has no healthy replica at all."""
    node = cluster.nodes.get(replica.node_id)
    if node is None or not node.ready or not _stays(replica) or not _disk_ready(node, replica.disk_id):
        return Standing.NONE
    if _rejected(replica, cluster):
        return Standing.NONE
    if not replica.failed_at:
        return Standing.HEALTHY if replica.healthy_at else Standing.NEW
    if salvage:
        useful = replica.potentially_reusable or replica.healthy_at != ""
    else:
        useful = _reused(volume.volume, replica, node, cluster)
    return Standing.FAILED if useful else Standing.NONE


def _rejected(replica: longhorn.Replica, cluster: Cluster) -> bool:
    """Whether the disk's DiskSchedule has refused the replica's room: it will go to another disk."""
    schedule = cluster.snapshot.disk_schedules.get(replica.disk_id)
    answer = schedule.status.replicas.get(replica.name) if schedule is not None else None
    return answer is not None and answer.state is State.REJECTED and answer.size == 0


def _reused(volume: longhorn.Volume, replica: longhorn.Replica, node: longhorn.Node, cluster: Cluster) -> bool:
    schedulable = schedulable_refusal(cluster, Ask.fresh(volume), node) is None
    return schedulable and is_reusable(cluster, volume, replica, {node.name: node})


def standings(volume: PodVolume, cluster: Cluster) -> dict[str, Standing]:
    """The best standing of the volume on each node that holds something of it."""
    salvage = not any(is_healthy(replica) for replica in volume.replicas)
    order = list(Standing)
    best: dict[str, Standing] = {}
    for replica in volume.replicas:
        if replica.node_id:
            found = standing(volume, replica, cluster, salvage=salvage)
            known = best.setdefault(replica.node_id, found)
            best[replica.node_id] = min(known, found, key=order.index)
    return best


def kept_on(volume: PodVolume, cluster: Cluster) -> frozenset[str]:
    """The nodes where the volume needs no new space because a replica there is kept."""
    return frozenset(name for name, found in standings(volume, cluster).items() if found is not Standing.NONE)


def homes(local: Iterable[PodVolume], candidates: Collection[str], cluster: Cluster) -> frozenset[str]:
    """The candidates that are a home of every local volume; none when there is no local volume.

    Volumes that need no local room cannot have a home and are left out.
    """
    shared: frozenset[str] | None = None
    for volume in local:
        found = _homes_of(volume, candidates, cluster)
        shared = found if shared is None else shared & found
        if not shared:
            return frozenset()
    return shared or frozenset()


def _homes_of(volume: PodVolume, candidates: Collection[str], cluster: Cluster) -> frozenset[str]:
    if not volume.replicas:
        return frozenset()
    by_standing: dict[Standing, set[str]] = {kind: set() for kind in Standing}
    for name, found in standings(volume, cluster).items():
        if name in candidates:
            by_standing[found].add(name)
    if by_standing[Standing.HEALTHY]:
        return frozenset(by_standing[Standing.HEALTHY])
    if any(is_healthy(replica) for replica in volume.replicas):
        return frozenset(by_standing[Standing.NEW])
    return frozenset(by_standing[Standing.NEW] | by_standing[Standing.FAILED])


def _stays(replica: longhorn.Replica) -> bool:
    return bool(
        replica.node_id
        and replica.disk_id
        and replica.active
        and not replica.eviction_requested
        and not replica.deleting
    )


def _disk_ready(node: longhorn.Node, uuid: str) -> bool:
    return any(disk.uuid == uuid and disk.ready for disk in node.disks)
