"""Auto-balance off disks under pressure: which replicas move to another disk of their node. Best-effort auto-balance
moves one replica per disk at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.disk_stage import eligibility_refusal, prefilter_refusal
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.space import fits_without_pressure, under_pressure
from scheduler_core.model.longhorn import Disk, Replica, Volume


def replicas_under_disk_pressure(cluster: Cluster, volume: Volume, replicas: Iterable[Replica]) -> list[Replica]:
    """Replicas of the volume that move off disks under pressure. Its node must have the condition Schedulable
    (getReplicasUnderDiskPressure), whatever its allowScheduling says. It must be the replica's turn on its disk, and
    another disk of its node must be able to take it.
    """
    percentage = cluster.settings.replica_auto_balance_disk_pressure_percentage
    if percentage == 0:
        return []
    return [
        replica
        for replica in replicas
        if (node := cluster.nodes.get(replica.node_id)) is not None
        and node.schedulable
        and any(
            disk.uuid == replica.disk_id
            and under_pressure(disk, percentage)
            and _first_in_turn(cluster, disk) == replica.name
            for disk in node.disks
            if disk.in_status
        )
        and any(_can_relieve(cluster, volume, disk) for disk in node.disks if disk.uuid != replica.disk_id)
    ]


def _first_in_turn(cluster: Cluster, disk: Disk) -> str | None:
    """The first replica, by name, of a healthy volume."""
    for name in sorted(disk.scheduled_replicas):
        replica = cluster.snapshot.replicas.get(name)
        volume = None if replica is None else cluster.snapshot.volumes.get(replica.volume)
        if volume is not None and volume.robustness == "healthy":
            return name
    return None


def _can_relieve(cluster: Cluster, volume: Volume, disk: Disk) -> bool:
    """Whether an eligible disk can take the volume and stay below the pressure percentage."""
    request = ReplicaRequest.for_volume(volume)
    return (
        prefilter_refusal(cluster, request, disk) is None
        and eligibility_refusal(cluster, request, disk) is None
        and fits_without_pressure(disk, cluster.settings, volume.size, volume.actual_size)
    )
