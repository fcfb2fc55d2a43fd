"""Bytes that each disk of a node can still take, beyond what Longhorn's status says.

Longhorn's node controller adds up every replica of a disk, whatever its state, but its status lags behind. So replicas that are placed
and not listed yet are subtracted here. Where a disk has a DiskSchedule, what is granted or pending there counts too, and its limit holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from scheduler_core.disk_schedule.disk_space import account
from scheduler_core.disk_schedule.reconcile import limit_of
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import DiskSpace, disk_space, scheduling_limit
from scheduler_core.model import longhorn
from scheduler_core.model.disk_schedule import DiskSchedule

Replicas = tuple[longhorn.Replica, ...]
# If one of these fields cannot be read, the bytes held or pending on the disk are unknown.
_ACCOUNTED_FIELDS: Final = frozenset({"spec.replicas", "spec.backingImages", "status.replicas", "status.backingImages"})
_NO_GROWTH: Final[Mapping[str, int]] = MappingProxyType({})


class FreeSpace(dict[str, DiskSpace]):
    """The space left on a node's disks, by name."""

    __slots__ = ("free",)

    def __init__(self, disks: Mapping[str, DiskSpace]) -> None:
        super().__init__(disks)
        self.free = sum(max(0, disk.free) for disk in disks.values())  # bytes that all disks can still take in sum


def free_space_of(
    node: longhorn.Node,
    settings: Settings,
    unlisted: Mapping[str, Replicas],
    schedules: Mapping[str, DiskSchedule],
    growth: Mapping[str, int] = _NO_GROWTH,
) -> FreeSpace:
    """Returns the space left on a node's disks. `unlisted` has `unlisted_replicas` by disk UUID, `growth` the bytes
    that claims request in addition.
    """
    disks: dict[str, DiskSpace] = {}
    for disk in node.disks:
        replicas = unlisted.get(disk.uuid) or ()
        schedule = effective_schedule(disk, schedules)
        space = (
            disk_space(disk, settings, unlisted_bytes(disk, replicas))
            if schedule is None
            else _disk_schedule_space(node, disk, settings, replicas, schedule)
        )
        increase = growth.get(disk.uuid)
        disks[disk.name] = _less(space, increase) if increase else space
    return FreeSpace(disks)


def _less(space: DiskSpace, size: int) -> DiskSpace:
    grants = None if space.grants is None else space.grants - size
    return replace(space, free=space.free - size, grants=grants, uncounted=space.uncounted + size)


def effective_schedule(disk: longhorn.Disk, schedules: Mapping[str, DiskSchedule]) -> DiskSchedule | None:
    """Returns the DiskSchedule through which a disk's space is allocated, None without one."""
    # A DiskSchedule that only mirrors what Longhorn allocates by itself does not count.
    schedule = schedules.get(disk.uuid) if schedules and disk.uuid else None
    return None if schedule is None or schedule.mirrored else schedule


def _disk_schedule_space(
    node: longhorn.Node, disk: longhorn.Disk, settings: Settings, replicas: Replicas, schedule: DiskSchedule
) -> DiskSpace:
    accounting = account(disk, schedule, replicas)
    free = accounting.free
    if schedule.owned_by_longhorn:
        # longhorn-manager grants up to its over-provisioning limit, not up to the available bytes (GetDiskOverProvisionLimit).
        free += scheduling_limit(disk, settings) - disk.storage_available
    limit = limit_of(schedule, node if schedule.spec.node == node.name else None)
    # No bytes are free where its controller would refuse every request.
    refuses = limit.reason != "" or any(fault.field in _ACCOUNTED_FIELDS for fault in schedule.faults)
    grants = min(free, 0) if refuses else free
    return disk_space(disk, settings, accounting.uncounted, grants)


def unlisted_bytes(disk: longhorn.Disk, replicas: Replicas) -> int:
    """Bytes of the replicas beyond what the status lists."""
    # A replica that is listed with its size before it grew counts with the difference.
    return sum(replica.size - disk.scheduled_replicas.get(replica.name, 0) for replica in replicas)


def unlisted_replicas(disk: longhorn.Disk, replicas: Replicas) -> Replicas:
    """Returns the replicas that the disk's status does not list yet, or lists with their size before they grew."""
    if not disk.uuid:
        return ()
    listed = disk.scheduled_replicas
    return tuple(replica for replica in replicas if replica.node_id and _missing_in_status(replica, listed))


def _missing_in_status(replica: longhorn.Replica, listed: Mapping[str, int]) -> bool:
    return replica.name not in listed or replica.size > listed[replica.name]
