"""What DiskSchedules have granted to replicas and images.

Grants say which replicas may start, how far a volume has grown, and where an image may be copied.

The simulator requests nothing. The DiskSchedule controllers place the replicas and write the requests.
"""

from collections.abc import Iterable, Mapping

from scheduler_core.model.disk_schedule import DiskSchedule, RequestKind
from scheduler_core.model.longhorn import BackingImage, Replica, Volume

Schedules = Mapping[str, DiskSchedule]


def has_grant(schedules: Schedules, replica: Replica) -> bool:
    return bool(replica.disk_id) and _granted_bytes(
        schedules, replica.disk_id, RequestKind.REPLICA, replica.name
    ) >= max(1, replica.size)


def granted_size(schedules: Schedules, volume: Volume, replicas: Iterable[Replica]) -> int:
    """The volume's size in bytes that every disk has granted. All of its replicas have grown to it. The size in the volume's spec
    is only what its user wishes.
    """
    sizes = [
        min(replica.size, _granted_bytes(schedules, replica.disk_id, RequestKind.REPLICA, replica.name))
        if replica.disk_id
        else replica.size
        for replica in replicas
        if not replica.deleting
    ]
    return min([volume.size, *sizes])


def copyable_disks(schedules: Schedules, image: BackingImage) -> frozenset[str]:
    """Disks to which a backing image may be copied. While the image's size is unknown, one disk: the size is only known from a copy."""
    if image.real_size <= 0:
        return frozenset(sorted(image.disks)[:1])
    return frozenset(
        disk
        for disk in image.disks
        if _granted_bytes(schedules, disk, RequestKind.BACKING_IMAGE, image.name) >= image.real_size
    )


def _granted_bytes(schedules: Schedules, disk: str, kind: RequestKind, name: str) -> int:
    schedule = schedules.get(disk)
    entry = schedule.status.allocations(kind).get(name) if schedule is not None else None
    return entry.size if entry is not None else 0
