"""How many bytes each disk has left for newcomers, as placement reads it.

The value depends on one disk only: its DiskSchedule, its node and its occupancy. So a controller keeps it from one decision to
the next, and computes it again for the disks that changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler_core.disk_schedule.allocation import taken_bytes
from scheduler_core.disk_schedule.occupancy import NO_OCCUPANTS, DiskOccupancy
from scheduler_core.disk_schedule.reconcile import NodeLookup, limit_of
from scheduler_core.model.disk_schedule import DiskSchedule, Fault
from scheduler_core.model.quantity import format_bytes


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """What a newcomer can get on one disk.

    Attributes:
        node: the node's name
        disk: the disk's name on its node
        free: bytes that are available and not taken; may be negative; 0 if nothing is granted at all
        problem: why nothing is granted whatever its size, as a sentence; "" if what fits is granted
        undecided: whether that is not known, because the node cannot be read
    """

    node: str
    disk: str
    free: int
    problem: str = ""
    undecided: bool = False

    def grants(self, size: int) -> bool:
        """Whether a newcomer of `size` bytes would be granted."""
        return not self.problem and size <= self.free

    def __str__(self) -> str:
        """What is free there, for a message."""
        if self.problem:
            return self.problem
        return f"disk {self.disk} on node {self.node} has {format_bytes(max(0, self.free))} left"


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
) -> dict[str, DiskSpace]:
    """Returns what a newcomer can get on each disk, by UUID."""
    return {
        uuid: disk_space(schedule, nodes.get(schedule.spec.node), occupancy.get(uuid, NO_OCCUPANTS))
        for uuid, schedule in schedules.items()
    }
