"""How many bytes each disk has left for newcomers, as placement reads it; and what a DiskSchedule adds to the bytes that the
extender counts on the disk anyway.

What is left depends on one disk only: its DiskSchedule, its node and its occupancy. So a controller keeps it from one decision to
the next, and computes it again for the disks that changed.

A replica is visible in up to three places: as a Replica object with that place, in the node's `scheduledReplica`, and in the
DiskSchedule. It counts once, by name, with the largest of the sizes, because a growth that is granted or pending is in the
DiskSchedule first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from scheduler_core.disk_schedule.allocation import claims, taken_bytes
from scheduler_core.disk_schedule.occupancy import NO_OCCUPANTS, DiskOccupancy
from scheduler_core.disk_schedule.reconcile import NodeLookup, limit_of
from scheduler_core.model.disk_schedule import Allocations, AllocationState, DiskSchedule, Fault, Requests
from scheduler_core.model.longhorn import Disk, Replica
from scheduler_core.model.quantity import format_bytes


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """What a newcomer can get on one disk."""

    node: str  # the node's name
    disk: str  # the disk's name on its node
    free: int  # bytes that are available and not taken; may be negative; 0 if nothing is granted at all
    problem: str = ""  # why nothing is granted whatever its size, as a sentence; "" if what fits is granted
    undecided: bool = False  # whether that is not known, because the node cannot be read

    def grants(self, size: int) -> bool:
        return not self.problem and size <= self.free

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        return f"disk {self.disk} on node {self.node} has {format_bytes(max(0, self.free))} left"


class DiskSpaces(Mapping[str, DiskSpace]):
    """The space of every disk by UUID, in the order of the free bytes, so that the disks with the most space are found
    without looking at the others.
    """

    def __init__(self, spaces: Mapping[str, DiskSpace] | None = None) -> None:
        self._spaces = dict(spaces or {})
        self._ranking = sorted(_rank(uuid, space) for uuid, space in self._spaces.items())

    def __getitem__(self, uuid: str) -> DiskSpace:
        return self._spaces[uuid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spaces)

    def __len__(self) -> int:
        return len(self._spaces)

    def set(self, uuid: str, space: DiskSpace | None) -> None:
        """Replaces the space of a disk; None: there is no such disk."""
        old = self._spaces.pop(uuid, None)
        if old is not None:
            del self._ranking[bisect_left(self._ranking, _rank(uuid, old))]
        if space is not None:
            self._spaces[uuid] = space
            insort(self._ranking, _rank(uuid, space))

    def roomiest(self, size: int) -> Iterable[tuple[str, str]]:
        """Returns node and UUID of disks with at least `size` free bytes, most free bytes first, ties by node and UUID."""
        # The caller takes the first few of them.
        return (rank[1:] for rank in takewhile(lambda rank: -rank[0] >= size, self._ranking))


def _rank(uuid: str, space: DiskSpace) -> tuple[int, str, str]:
    return -space.free, space.node, uuid


def disk_space(schedule: DiskSchedule, node: NodeLookup, occupancy: DiskOccupancy = NO_OCCUPANTS) -> DiskSpace:
    """Returns what a newcomer can get on the disk of a DiskSchedule."""
    limit = limit_of(schedule, node)
    place = schedule.spec.node, schedule.spec.disk
    if limit.reason or limit.available is None:
        return DiskSpace(*place, 0, limit.message, undecided=isinstance(node, Fault))
    return DiskSpace(
        *place, limit.available - taken_bytes(schedule, occupancy.with_adoption(schedule.adoption, schedule.spec))
    )


def disk_spaces(
    schedules: Mapping[str, DiskSchedule], nodes: Mapping[str, NodeLookup], occupancy: Mapping[str, DiskOccupancy]
) -> DiskSpaces:
    """Returns what a newcomer can get on each disk, by UUID."""
    spaces = {
        uuid: disk_space(schedule, nodes.get(schedule.spec.node), occupancy.get(uuid, NO_OCCUPANTS))
        for uuid, schedule in schedules.items()
    }
    return DiskSpaces(spaces)


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
