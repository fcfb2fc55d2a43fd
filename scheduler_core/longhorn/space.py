"""The space rules: how much a disk can take, and whether a replica fits (scheduler/replica_scheduler.go).

All sizes are bytes, all percentages whole numbers. Limits are computed as Longhorn computes them: in float64, truncated
toward zero, so that they round above 2^53 bytes exactly where Longhorn's do.
"""

from scheduler_core.longhorn.refusal_rules import Rule
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import longhorn, quantity
from scheduler_core.structs import Struct

_INT64 = 2**63


class DiskSpace(Struct, frozen=True):
    """What a disk can still take, in bytes."""

    free: int  # scheduling limit - storageScheduled; a replica fits when its volume's size <= free
    headroom: int  # storageAvailable - minimal-available limit; a replica fits when its volume's actual size < headroom
    closed_by: Rule | None = None  # the rule that closes the disk to any size, or None
    # What the disk's DiskSchedule would still grant, which `free` never exceeds; None without a DiskSchedule.
    grants: int | None = None
    uncounted: int = 0  # bytes that are promised but not in storageScheduled yet; Longhorn takes them to be free

    @property
    def open(self) -> bool:
        return self.closed_by is None


def percent_of(size: int, percentage: int) -> int:
    """int64(float64(size) * float64(percentage) / 100), as Go computes it. Past 2^63 that is -2^63 on amd64."""
    limit = int(float(size) * float(percentage) / 100)
    return limit if limit < _INT64 else -_INT64


def wrap_int64(value: int) -> int:
    """A value after Go's int64 arithmetic, wrapped past 2^63. Percentages of disks past 92 PB wrap around."""
    return (value + _INT64) % (2 * _INT64) - _INT64


def quotient(dividend: int, divisor: int) -> int:
    """Go's integer division by a positive number: truncated toward zero."""
    return dividend // divisor if dividend >= 0 else -(-dividend // divisor)


def minimal_available(disk: longhorn.Disk, settings: Settings) -> int:
    """Bytes that must stay available: a percentage of the maximum. The reserve plays no part."""
    return percent_of(disk.storage_maximum, settings.storage_minimal_available_percentage)


def scheduling_limit(disk: longhorn.Disk, settings: Settings) -> int:
    """Bytes that may be promised to replicas in total. A percentage of what is left of the maximum after the reserve."""
    return percent_of(disk.storage_maximum - disk.storage_reserved, settings.storage_over_provisioning_percentage)


def disk_space(disk: longhorn.Disk, settings: Settings, uncounted: int = 0, grants: int | None = None) -> DiskSpace:
    """The space of a disk. `uncounted` bytes are promised already but not in storageScheduled yet. `grants` is a limit
    of its own, in addition to Longhorn's.
    """
    free = scheduling_limit(disk, settings) - disk.storage_scheduled - uncounted
    full = Rule.STORAGE_AVAILABLE if disk.storage_available <= 0 else None
    return DiskSpace(
        free=free if grants is None else min(free, grants),
        headroom=disk.storage_available - minimal_available(disk, settings),
        closed_by=Rule.STORAGE_MAXIMUM if disk.storage_maximum <= 0 else full,
        grants=grants,
        uncounted=uncounted,
    )


def space_refusal(size: int, required: int, space: DiskSpace) -> Rule | None:
    """The first space rule that refuses a volume, or None (IsSchedulableToDisk). `size` is the volume's size in bytes,
    `required` the bytes of it that are written. Equal fails for the actual space and passes for the scheduling space.
    """
    if space.closed_by is not None:
        return space.closed_by
    if required >= space.headroom:
        return Rule.ACTUAL_SPACE
    if size > space.free:
        return Rule.SCHEDULING_SPACE
    return None


def space_detail(rule: Rule, disk: longhorn.Disk, settings: Settings, space: DiskSpace, volume: longhorn.Volume) -> str:
    """The numbers behind a space refusal, as a sentence."""
    if rule is Rule.ACTUAL_SPACE:
        return (
            f"disk {disk.name}: {quantity.format_bytes(disk.storage_available)} available - {quantity.format_bytes(volume.actual_size)} "
            f"actual size must be more than {minimal_available_text(disk, settings)}"
        )
    if rule is Rule.SCHEDULING_SPACE and space.grants is not None and space.grants == space.free:
        granted = quantity.format_bytes(max(0, space.grants))
        return f"disk {disk.name}: {quantity.format_bytes(volume.size)} must be at most the {granted} its DiskSchedule still grants"
    if rule is Rule.SCHEDULING_SPACE:
        limit = scheduling_limit(disk, settings)
        return (
            f"disk {disk.name}: {quantity.format_bytes(volume.size)} + {quantity.format_bytes(limit - space.free)} scheduled must be "
            f"at most {scheduling_limit_text(disk, settings)}"
        )
    value = disk.storage_maximum if rule is Rule.STORAGE_MAXIMUM else disk.storage_available
    return f"disk {disk.name}: {rule.text} ({value})"


def pressure_detail(disk: longhorn.Disk, settings: Settings) -> str:
    """The two rules by which Longhorn closes a disk for pressure: those of `space_refusal`, with size and written bytes 0."""
    return (
        f"{quantity.format_bytes(disk.storage_available)} available must be more than {minimal_available_text(disk, settings)}, and "
        f"{quantity.format_bytes(disk.storage_scheduled)} scheduled must be at most {scheduling_limit_text(disk, settings)}"
    )


def minimal_available_text(disk: longhorn.Disk, settings: Settings) -> str:
    percentage = settings.storage_minimal_available_percentage
    minimal = quantity.format_bytes(minimal_available(disk, settings))
    return f"{minimal} ({percentage} % of {quantity.format_bytes(disk.storage_maximum)})"


def scheduling_limit_text(disk: longhorn.Disk, settings: Settings) -> str:
    percentage = settings.storage_over_provisioning_percentage
    limit = quantity.format_bytes(scheduling_limit(disk, settings))
    reserved = quantity.format_bytes(disk.storage_reserved)
    return f"{limit} ({percentage} % of {quantity.format_bytes(disk.storage_maximum)} - {reserved} reserved)"


def under_pressure(disk: longhorn.Disk, percentage: int) -> bool:
    """Whether best-effort auto-balance moves replicas off a disk (IsDiskUnderPressure)."""
    # It does when the unused bytes (available - reserved) are less than 100 - `percentage` per cent of the maximum.
    unused = disk.storage_available - disk.storage_reserved
    share = quotient(wrap_int64(unused * 100), disk.storage_maximum) if unused > 0 and disk.storage_maximum > 0 else 0
    return share < 100 - percentage


def fits_without_pressure(disk: longhorn.Disk, settings: Settings, size: int, required: int) -> bool:
    """Whether a replica fits without putting the disk under pressure. The use must stay below the pressure percentage.
    Mirrors IsSchedulableToDiskConsiderDiskPressure: the use counts `required`, not `size`.
    """
    if disk.storage_maximum <= 0:
        return False
    used = required + disk.storage_scheduled + disk.storage_reserved
    used_percentage = quotient(wrap_int64(used * 100), disk.storage_maximum)
    pressure = settings.replica_auto_balance_disk_pressure_percentage
    return space_refusal(size, required, disk_space(disk, settings)) is None and used_percentage < pressure
