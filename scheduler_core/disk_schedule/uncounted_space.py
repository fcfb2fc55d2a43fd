"""Bytes that a DiskSchedule adds to what the extender counts on a disk anyway.

A replica is visible in up to three places: as a Replica object with that place, in the node's `scheduledReplica`, and in the
DiskSchedule. It counts once, by name, with the largest of the sizes, because a growth that is granted or pending is in the
DiskSchedule first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scheduler_core.disk_schedule.allocation import claims
from scheduler_core.model.disk_schedule import Allocations, AllocationState, DiskSchedule, Requests
from scheduler_core.model.longhorn import Disk, Replica


@dataclass(frozen=True, slots=True)
class DiskAccounting:
    """What counts on a disk in addition to `storageScheduled`."""

    uncounted: int  # bytes to add to storageScheduled for Longhorn's own two rules
    free: int  # bytes the DiskSchedule would still grant: its own limit, in addition to those rules; may be negative


def account(disk: Disk, schedule: DiskSchedule, unlisted_replicas: Iterable[Replica]) -> DiskAccounting:
    """Returns what the DiskSchedule of a disk adds. A new request that the DiskSchedule rejected counts 0 there, and so
    does its Replica, which is about to leave; if Longhorn's status lists the replica, it still counts for Longhorn's
    rules. A replica that is not in the DiskSchedule will be requested, so it counts for both.

    Args:
        disk: the disk, as the node's status describes it
        schedule: the disk's DiskSchedule
        unlisted_replicas: replicas placed on the disk that the node's status does not list yet
    """
    placed = {replica.name: replica.size for replica in unlisted_replicas}
    replicas = _KindTotals.of(disk.scheduled_replicas, placed, schedule.spec.replicas, schedule.status.replicas)
    images = _KindTotals.of(
        disk.scheduled_backing_images, {}, schedule.spec.backing_images, schedule.status.backing_images
    )
    return DiskAccounting(
        uncounted=replicas.uncounted + images.uncounted,
        free=disk.storage_available - replicas.total - images.total,
    )


@dataclass(frozen=True, slots=True)
class _KindTotals:
    """Totals of one kind of object on a disk."""

    uncounted: int  # bytes that Longhorn's status lacks
    total: int  # bytes in all, by the DiskSchedule's measure

    @classmethod
    def of(
        cls, listed: Mapping[str, int], placed: Mapping[str, int], requests: Requests, allocations: Allocations
    ) -> _KindTotals:
        claimed = claims(requests, allocations)
        rejected = {
            name for name, entry in allocations.items() if entry.state is AllocationState.REJECTED and entry.size == 0
        }
        uncounted = 0
        total = 0
        for name in listed.keys() | placed.keys() | claimed.keys():
            size = 0 if name in rejected else max(placed.get(name, 0), claimed.get(name, 0))
            uncounted += max(0, size - listed.get(name, 0))
            total += claimed[name] if name in claimed else max(placed.get(name, 0), listed.get(name, 0))
        return cls(uncounted, total)
