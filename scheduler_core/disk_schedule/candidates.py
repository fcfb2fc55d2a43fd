"""Chooses a disk where a replica may request space.

The choice is Longhorn's own, among the disks whose DiskSchedule would grant the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from scheduler_core.disk_schedule.allocation import claimed_bytes, would_grant
from scheduler_core.disk_schedule.reconcile import limit_of
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.disk_choice import DiskCandidate
from scheduler_core.longhorn.new_volume_placement import waits_for_attachment
from scheduler_core.longhorn.placement import schedule_replica
from scheduler_core.model.disk_schedule import DiskSchedule, RequestKind
from scheduler_core.model.longhorn import STRICT_LOCAL, Disk, Node, Replica, Volume


def choose_disk(
    cluster: Cluster,
    schedules: Mapping[str, DiskSchedule],
    volume: Volume,
    replica: Replica,
    replicas: Iterable[Replica],
) -> DiskCandidate | None:
    """Chooses the disk where a replica requests space, if any.

    The replica's present place is disregarded and not chosen again: it was refused there. Of the disks Longhorn might pick,
    the one with the most bytes neither held nor pending wins, ties by node and disk name. `replicas` are all of the volume.
    """
    if waits_for_attachment(volume):
        return None
    affinity = volume.node_id if volume.data_locality == STRICT_LOCAL else replica.hard_node_affinity
    unplaced = replace(replica, node_id="", disk_id="", hard_node_affinity=affinity)
    volume_replicas = [unplaced if each.name == replica.name else each for each in replicas]
    unrequested = unrequested_bytes(cluster, schedules, volume_replicas)
    size = replica.size or volume.size

    def close_unless_granting(node: Node, disk: Disk) -> Disk:
        able = disk.uuid != replica.disk_id and _would_grant(node, disk, schedules, size + unrequested[disk.uuid])
        return disk if able else replace(disk, allow_scheduling=False)

    granting_cluster = cluster.with_nodes(
        replace(node, disks=tuple(close_unless_granting(node, disk) for disk in node.disks))
        for node in cluster.nodes.values()
    )
    result = schedule_replica(granting_cluster, volume, unplaced, volume_replicas)
    options = [choice.candidate for choice in result.choices]
    return min(options, key=lambda option: _rank(option, schedules, unrequested), default=None)


def unrequested_bytes(
    cluster: Cluster, schedules: Mapping[str, DiskSchedule], newest: Iterable[Replica] = ()
) -> Counter[str]:
    """Returns the bytes on each disk that will yet be requested.

    Keys are disk UUIDs. The bytes were there before the DiskSchedules, or were just placed. A disk serves its requests by
    name, so a new replica on such a disk might leave nothing for a replica that runs. `newest` are replicas in a newer version
    than the cluster's.
    """
    unrequested = Counter[str]()
    replicas = {**cluster.snapshot.replicas, **{each.name: each for each in newest}}
    for replica in replicas.values():
        if not replica.deleting and _lacks_request(schedules.get(replica.disk_id), RequestKind.REPLICA, replica.name):
            unrequested[replica.disk_id] += replica.size
    for image in cluster.snapshot.backing_images.values():
        for uuid in image.disks:
            if _lacks_request(schedules.get(uuid), RequestKind.BACKING_IMAGE, image.name):
                unrequested[uuid] += image.real_size
    return unrequested


def _lacks_request(schedule: DiskSchedule | None, kind: RequestKind, name: str) -> bool:
    """Whether a DiskSchedule exists and does not mention a name."""
    if schedule is None:
        return False
    return name not in schedule.spec.requests(kind) and name not in schedule.status.allocations(kind)


def _would_grant(node: Node, disk: Disk, schedules: Mapping[str, DiskSchedule], size: int) -> bool:
    """Whether the DiskSchedule of this node's disk would grant a size.

    A UUID that is listed twice (its disk was moved) is a disk only where its DiskSchedule says: the other entry may look open
    while every request is refused, and the replica would choose it again for ever.
    """
    schedule = schedules.get(disk.uuid)
    if schedule is None or (schedule.spec.node, schedule.spec.disk) != (node.name, disk.name):
        return False
    return would_grant(schedule, limit_of(schedule, node), size)


def _rank(
    option: DiskCandidate, schedules: Mapping[str, DiskSchedule], unrequested: Mapping[str, int]
) -> tuple[int, str, str]:
    uuid = option.disk.uuid
    claimed = claimed_bytes(schedules[uuid]) + unrequested.get(uuid, 0)
    return claimed - option.disk.storage_available, option.node.name, option.disk.name
