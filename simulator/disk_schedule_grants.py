"""What DiskSchedules have granted, where their controllers run: what may start, how far a volume has grown, what may be copied.

The simulator asks for nothing: replicas get their places, and DiskSchedules their requests, from those controllers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler_core.model.disk_schedule import DiskSchedule, Kind
from scheduler_core.model.longhorn import BackingImage, Replica, Volume

Schedules = Mapping[str, DiskSchedule]


def granted(schedules: Schedules, replica: Replica) -> bool:
    """Whether a replica's disk holds its size for it."""
    return bool(replica.disk_id) and _held(schedules, replica.disk_id, Kind.REPLICA, replica.name) >= max(
        1, replica.size
    )


def granted_size(schedules: Schedules, volume: Volume, replicas: Iterable[Replica]) -> int:
    """How large a volume is in fact, in bytes: what every replica has grown to and every disk has granted.

    The volume's own size is what its user wishes.
    """
    sizes = [
        min(replica.size, _held(schedules, replica.disk_id, Kind.REPLICA, replica.name))
        if replica.disk_id
        else replica.size
        for replica in replicas
        if not replica.deleting
    ]
    return min([volume.size, *sizes])


def copyable(schedules: Schedules, image: BackingImage) -> frozenset[str]:
    """The disks a backing image may be copied to; while its size is unknown one, because only a copy tells it."""
    if image.real_size <= 0:
        return frozenset(sorted(image.disks)[:1])
    return frozenset(
        disk for disk in image.disks if _held(schedules, disk, Kind.BACKING_IMAGE, image.name) >= image.real_size
    )


def _held(schedules: Schedules, disk: str, kind: Kind, name: str) -> int:
    schedule = schedules.get(disk)
    entry = schedule.status.of(kind).get(name) if schedule is not None else None
    return entry.size if entry is not None else 0
