"""What a DiskSchedule adds to what the extender counts on a disk anyway.

A replica is seen up to three times: as a Replica that says it is there, in the node's `scheduledReplica`, in the DiskSchedule. It
counts once, by name, with the largest of the sizes, because a growth that is granted or pending is in the DiskSchedule first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scheduler_core.disk_schedule.allocation import claims
from scheduler_core.model.disk_schedule import Allocations, DiskSchedule, Requests, State
from scheduler_core.model.longhorn import Disk, Replica


@dataclass(frozen=True, slots=True)
class Counted:
    """What counts on a disk beside its `storageScheduled`.

    Attributes:
        uncounted: bytes to add to storageScheduled for Longhorn's own two rules
        free: bytes the DiskSchedule would still grant: its own limit, in addition to those rules; may be negative
    """

    uncounted: int
    free: int


def counted(disk: Disk, schedule: DiskSchedule, late: Iterable[Replica]) -> Counted:
    """What counts on a disk that has a DiskSchedule. `late` are the replicas placed there that its status does not list.

    A newcomer the DiskSchedule rejected counts 0 there, and its Replica, which is about to leave, does too; if Longhorn's
    status lists it, it still counts for Longhorn's rules. A replica the DiskSchedule does not know will be asked for, so it counts for both.
    """
    placed = {replica.name: replica.size for replica in late}
    replicas = _Sides.of(disk.scheduled_replicas, placed, schedule.spec.replicas, schedule.status.replicas)
    images = _Sides.of(disk.scheduled_backing_images, {}, schedule.spec.backing_images, schedule.status.backing_images)
    return Counted(
        uncounted=replicas.uncounted + images.uncounted,
        free=disk.storage_available - replicas.total - images.total,
    )


@dataclass(frozen=True, slots=True)
class _Sides:
    """One kind of things on a disk: bytes Longhorn's status lacks, and bytes in all by the DiskSchedule's measure."""

    uncounted: int
    total: int

    @classmethod
    def of(
        cls, listed: Mapping[str, int], placed: Mapping[str, int], requests: Requests, answers: Allocations
    ) -> _Sides:
        claimed = claims(requests, answers)
        rejected = {name for name, entry in answers.items() if entry.state is State.REJECTED and entry.size == 0}
        uncounted = total = 0
        for name in listed.keys() | placed.keys() | claimed.keys():
            there = 0 if name in rejected else max(placed.get(name, 0), claimed.get(name, 0))
            uncounted += max(0, there - listed.get(name, 0))
            total += claimed[name] if name in claimed else max(placed.get(name, 0), listed.get(name, 0))
        return cls(uncounted, total)
