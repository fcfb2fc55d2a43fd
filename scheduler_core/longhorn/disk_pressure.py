"""Best-effort auto-balance moves replicas off disks under pressure, one per disk at a time, to a disk beside it."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.disk_stage import eligibility_refusal, prefilter_refusal
from scheduler_core.longhorn.replica_request import Ask
from scheduler_core.longhorn.space import fits_without_pressure, under_pressure
from scheduler_core.model.longhorn import Disk, Replica, Volume


def pressed_replicas(cluster: Cluster, volume: Volume, replicas: Iterable[Replica]) -> list[Replica]:
    """The volume's replicas whose turn it is to leave a pressed disk, and for which a disk of their node is free."""
    percentage = cluster.settings.replica_auto_balance_disk_pressure_percentage
    if percentage == 0:
        return []
    return [
        replica
        for replica in replicas
        if (node := cluster.nodes.get(replica.node_id)) is not None
        and any(
            disk.uuid == replica.disk_id
            and under_pressure(disk, percentage)
            and _first_in_turn(cluster, disk) == replica.name
            for disk in node.disks
            if disk.in_status
        )
        and any(_relieves(cluster, volume, disk) for disk in node.disks if disk.uuid != replica.disk_id)
    ]


def _first_in_turn(cluster: Cluster, disk: Disk) -> str | None:
    """The first replica by name on a disk whose volume is healthy."""
    for name in sorted(disk.scheduled_replicas):
        replica = cluster.snapshot.replicas.get(name)
        volume = None if replica is None else cluster.snapshot.volumes.get(replica.volume)
        if volume is not None and volume.robustness == "healthy":
            return name
    return None


def _relieves(cluster: Cluster, volume: Volume, disk: Disk) -> bool:
    """Whether a disk is eligible for the volume and stays below the pressure percentage with it."""
    ask = Ask.fresh(volume)
    return (
        prefilter_refusal(cluster, ask, disk) is None
        and eligibility_refusal(cluster, ask, disk) is None
        and fits_without_pressure(disk, cluster.settings, volume.size, volume.actual_size)
    )
