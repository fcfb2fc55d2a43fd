"""Where a replica may ask for room: Longhorn's own choice, among the disks whose DiskSchedule would grant it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from scheduler_core.disk_schedule.allocation import claimed, would_grant
from scheduler_core.disk_schedule.reconcile import limit_of
from scheduler_core.longhorn.balance import Candidate
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.new_volume import waits_for_attachment
from scheduler_core.longhorn.placement import schedule_replica
from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.model.longhorn import STRICT_LOCAL, Node, Replica, Volume


def place_for(
    cluster: Cluster,
    schedules: Mapping[str, DiskSchedule],
    volume: Volume,
    replica: Replica,
    replicas: Iterable[Replica],
) -> Candidate | None:
    """The disk to ask for a replica's room, None if there is none now.

    The replica's present place is disregarded and not chosen again: there it was refused. Of the disks Longhorn might pick, the one
    with the most bytes neither held nor pending is asked, ties by node and disk name. `replicas` are all of the volume.
    """
    if waits_for_attachment(volume):
        return None
    affinity = volume.node_id if volume.data_locality == STRICT_LOCAL else replica.hard_node_affinity
    loose = replace(replica, node_id="", disk_id="", hard_node_affinity=affinity)
    others = [loose if other.name == replica.name else other for other in replicas]
    refused = frozenset({replica.disk_id})
    asked = cluster.with_nodes(
        _closed(node, schedules, replica.size or volume.size, refused) for node in cluster.nodes.values()
    )
    options = [choice.candidate for choice in schedule_replica(asked, volume, loose, others).choices]
    return min(options, key=lambda option: _rank(option, schedules), default=None)


def _closed(node: Node, schedules: Mapping[str, DiskSchedule], size: int, refused: frozenset[str]) -> Node:
    """The node with every disk closed that would not grant the size."""
    disks = tuple(
        disk
        if disk.uuid not in refused
        and (found := schedules.get(disk.uuid))
        and would_grant(found, limit_of(found, node), size)
        else replace(disk, allow_scheduling=False)
        for disk in node.disks
    )
    return node if disks == node.disks else replace(node, disks=disks)


def _rank(option: Candidate, schedules: Mapping[str, DiskSchedule]) -> tuple[int, str, str]:
    free = option.disk.storage_available - claimed(schedules[option.disk.uuid])
    return -free, option.node.name, option.disk.name
