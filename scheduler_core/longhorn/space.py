"""The space rules: how much a disk can take, and whether a replica fits (scheduler/replica_scheduler.go).

All sizes are bytes, all percentages whole numbers. Limits are computed as Longhorn computes them: in float64, truncated
toward zero, so that they round above 2^53 bytes exactly where Longhorn's do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scheduler_core.longhorn.rules import Rule
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.longhorn import Disk, Volume
from scheduler_core.model.quantity import format_bytes

_INT64: Final = 2**63


@dataclass(frozen=True, slots=True)
class Room:
    """What a disk can still take, in bytes.

    Attributes:
        free: scheduling limit - storageScheduled; a replica fits when its volume's size <= free
        headroom: storageAvailable - minimal-available limit; fits when the volume's actual size < headroom
        closed: the rule that shuts the disk whatever the size, or None
        grants: what the disk's DiskSchedule would still grant, which `free` never exceeds; None without a DiskSchedule
    """

    free: int
    headroom: int
    closed: Rule | None = None
    grants: int | None = None

    @property
    def open(self) -> bool:
        """Whether storageMaximum and storageAvailable are both positive."""
        return self.closed is None


def percent_of(size: int, percentage: int) -> int:
    """int64(float64(size) * float64(percentage) / 100), as Go computes it; past 2^63 that is -2^63 on amd64."""
    limit = int(float(size) * float(percentage) / 100)
    return limit if limit < _INT64 else -_INT64


def wrapped(value: int) -> int:
    """A value as Go's int64 arithmetic leaves it: past 2^63 it wraps around (percentages of disks past 92 PB do)."""
    return (value + _INT64) % (2 * _INT64) - _INT64


def quotient(dividend: int, divisor: int) -> int:
    """Go's integer division by a positive number: truncated toward zero."""
    return dividend // divisor if dividend >= 0 else -(-dividend // divisor)


def minimal_available(disk: Disk, settings: Settings) -> int:
    """Bytes that must stay available: a percentage of the maximum; the reserve plays no part."""
    return percent_of(disk.storage_maximum, settings.storage_minimal_available_percentage)


def scheduling_limit(disk: Disk, settings: Settings) -> int:
    """Bytes that may be promised to replicas in total: a percentage of what is left of the maximum after the reserve."""
    return percent_of(disk.storage_maximum - disk.storage_reserved, settings.storage_over_provisioning_percentage)


def room(disk: Disk, settings: Settings, uncounted: int = 0, grants: int | None = None) -> Room:
    """The room of a disk.

    `uncounted` bytes are promised already but not in storageScheduled yet; `grants` is a limit of its own, in addition to
    Longhorn's.
    """
    free = scheduling_limit(disk, settings) - disk.storage_scheduled - uncounted
    return Room(
        free=free if grants is None else min(free, grants),
        headroom=disk.storage_available - minimal_available(disk, settings),
        closed=_closed(disk),
        grants=grants,
    )


def _closed(disk: Disk) -> Rule | None:
    if disk.storage_maximum <= 0:
        return Rule.STORAGE_MAXIMUM
    if disk.storage_available <= 0:
        return Rule.STORAGE_AVAILABLE
    return None


def space_refusal(size: int, required: int, room: Room) -> Rule | None:
    """The first space rule that refuses a volume of `size` of which `required` is written (IsSchedulableToDisk).

    Equal fails for the actual space and passes for the scheduling space.
    """
    if room.closed is not None:
        return room.closed
    if required >= room.headroom:
        return Rule.ACTUAL_SPACE
    if size > room.free:
        return Rule.SCHEDULING_SPACE
    return None


def space_detail(rule: Rule, disk: Disk, settings: Settings, room: Room, volume: Volume) -> str:
    """The numbers behind a space refusal, as a sentence."""
    if rule is Rule.ACTUAL_SPACE:
        return (
            f"disk {disk.name}: {format_bytes(disk.storage_available)} available - {format_bytes(volume.actual_size)} "
            f"actual size must be more than {format_bytes(minimal_available(disk, settings))} "
            f"({settings.storage_minimal_available_percentage} % of {format_bytes(disk.storage_maximum)})"
        )
    if rule is Rule.SCHEDULING_SPACE and room.grants is not None and room.grants == room.free:
        granted = format_bytes(max(0, room.grants))
        return (
            f"disk {disk.name}: {format_bytes(volume.size)} must be at most the {granted} its DiskSchedule still grants"
        )
    if rule is Rule.SCHEDULING_SPACE:
        limit = scheduling_limit(disk, settings)
        return (
            f"disk {disk.name}: {format_bytes(volume.size)} + {format_bytes(limit - room.free)} scheduled must be at most "
            f"{format_bytes(limit)} ({settings.storage_over_provisioning_percentage} % of "
            f"{format_bytes(disk.storage_maximum)} - {format_bytes(disk.storage_reserved)} reserved)"
        )
    value = disk.storage_maximum if rule is Rule.STORAGE_MAXIMUM else disk.storage_available
    return f"disk {disk.name}: {rule.text} ({value})"


def under_pressure(disk: Disk, percentage: int) -> bool:
    """Whether so little is unused that best-effort auto-balance moves replicas away (IsDiskUnderPressure)."""
    unused = disk.storage_available - disk.storage_reserved
    share = quotient(wrapped(unused * 100), disk.storage_maximum) if unused > 0 and disk.storage_maximum > 0 else 0
    return share < 100 - percentage


def fits_without_pressure(disk: Disk, settings: Settings, size: int, required: int) -> bool:
    """Whether a replica fits and leaves the disk below the pressure percentage.

    Mirrors IsSchedulableToDiskConsiderDiskPressure: the use counts `required`, not `size`.
    """
    if disk.storage_maximum <= 0:
        return False
    used = required + disk.storage_scheduled + disk.storage_reserved
    used_percentage = quotient(wrapped(used * 100), disk.storage_maximum)
    pressure = settings.replica_auto_balance_disk_pressure_percentage
    return space_refusal(size, required, room(disk, settings)) is None and used_percentage < pressure
