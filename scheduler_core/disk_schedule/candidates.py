"""Where a replica may ask for room: Longhorn's own choice, among the disks whose DiskSchedule would grant it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from scheduler_core.disk_schedule.allocation import claimed, would_grant
from scheduler_core.disk_schedule.reconcile import limit_of
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.disk_choice import Candidate
from scheduler_core.longhorn.new_volume import waits_for_attachment
from scheduler_core.longhorn.placement import schedule_replica
from scheduler_core.model.disk_schedule import DiskSchedule, Kind
from scheduler_core.model.longhorn import STRICT_LOCAL, Disk, Node, Replica, Volume


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
    unasked = unasked_on(cluster, schedules, others)
    size = replica.size or volume.size

    def opened(node: Node, disk: Disk) -> Disk:
        able = disk.uuid != replica.disk_id and _grants(node, disk, schedules, size + unasked[disk.uuid])
        return disk if able else replace(disk, allow_scheduling=False)

    asked = cluster.with_nodes(
        replace(node, disks=tuple(opened(node, disk) for disk in node.disks)) for node in cluster.nodes.values()
    )
    options = [choice.candidate for choice in schedule_replica(asked, volume, loose, others).choices]
    return min(options, key=lambda option: _rank(option, schedules, unasked), default=None)


def unasked_on(cluster: Cluster, schedules: Mapping[str, DiskSchedule], newest: Iterable[Replica] = ()) -> Counter[str]:
    """By disk UUID, the bytes of what is there and will yet be asked for: from before the DiskSchedules, or just placed.

    A disk serves its requests by name, so a newcomer sent there might leave nothing to a replica that runs. `newest` are replicas
    as they are known better than in the cluster.
    """
    found = Counter[str]()
    replicas = {**cluster.snapshot.replicas, **{each.name: each for each in newest}}
    for replica in replicas.values():
        if not replica.deleting and _unknown(schedules.get(replica.disk_id), Kind.REPLICA, replica.name):
            found[replica.disk_id] += replica.size
    for image in cluster.snapshot.backing_images.values():
        for uuid in image.disks:
            if _unknown(schedules.get(uuid), Kind.BACKING_IMAGE, image.name):
                found[uuid] += image.real_size
    return found


def _unknown(schedule: DiskSchedule | None, kind: Kind, name: str) -> bool:
    return schedule is not None and name not in schedule.spec.of(kind) and name not in schedule.status.of(kind)


def _grants(node: Node, disk: Disk, schedules: Mapping[str, DiskSchedule], size: int) -> bool:
    """Whether a disk's DiskSchedule would grant the size, judged by the place its controller judges by.

    A UUID that is listed twice (its disk was moved) is a disk only where its DiskSchedule says: the other entry may look open
    while every request is refused, which would send the replica there for ever.
    """
    schedule = schedules.get(disk.uuid)
    if schedule is None or (schedule.spec.node, schedule.spec.disk) != (node.name, disk.name):
        return False
    return would_grant(schedule, limit_of(schedule, node), size)


def _rank(option: Candidate, schedules: Mapping[str, DiskSchedule], unasked: Mapping[str, int]) -> tuple[int, str, str]:
    uuid = option.disk.uuid
    taken = claimed(schedules[uuid]) + unasked.get(uuid, 0)
    return taken - option.disk.storage_available, option.node.name, option.disk.name
