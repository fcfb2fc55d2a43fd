"""Bars of disks: bytes scheduled of the limit, written of the size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.api.page.rendering import short_bytes
from scheduler_core.extender.capacity_report import DiskUsage
from scheduler_core.extender.status.node_rows import SpaceTotal, scheduling_limit_of
from scheduler_core.model.listing import natural_key

# Nodes of one page show so many disks in all, and each shows two at least.
_DISKS_PER_PAGE: Final = 120
_MIN_DISKS: Final = 2


@dataclass(frozen=True, slots=True)
class UseBar:
    """Two tracks, in per cent of their length."""

    scheduled: float  # of the scheduling limit
    promised: float  # of the scheduling limit
    written: float  # of the size; the reserve is at the end
    reserved: float  # of the size; the reserve is at the end
    over: bool  # whether more is scheduled than the limit
    label: str  # all numbers as a sentence


@dataclass(frozen=True, slots=True)
class DiskLine:
    """A disk of a row with its bar."""

    usage: DiskUsage
    bar: UseBar

    @property
    def free(self) -> int:
        """Bytes that replicas may take now; 0 while the disk is closed."""
        return max(0, self.usage.free) if self.usage.closed_by is None else 0


def disk_line(usage: DiskUsage) -> DiskLine:
    limit = scheduling_limit_of(usage)
    return DiskLine(usage, _bar(SpaceTotal.of([usage]), limit, over=usage.free < 0))


def total_bar(space: SpaceTotal) -> UseBar:
    return _bar(space, space.limit, over=False)


def lines_of(disks: Sequence[DiskUsage], limit: int) -> list[DiskLine]:
    """Returns the first disks, those with the least free space first."""
    worst = sorted(disks, key=lambda usage: (usage.closed_by is None, _free_share(usage), natural_key(usage.disk)))
    return [disk_line(usage) for usage in worst[:limit]]


def disks_per_row(rows: int) -> int:
    """Returns how many disks each row of a page may show."""
    return max(_MIN_DISKS, _DISKS_PER_PAGE // max(1, rows))


def _free_share(usage: DiskUsage) -> float:
    limit = scheduling_limit_of(usage)
    return usage.free / limit if limit else 0.0


def _bar(space: SpaceTotal, limit: int, *, over: bool) -> UseBar:
    scheduled = _share(space.scheduled, limit)
    written = _share(space.written, space.maximum)
    return UseBar(
        scheduled=scheduled,
        promised=min(_share(space.promised, limit), round(100 - scheduled, 1)),
        written=written,
        reserved=min(_share(space.reserved, space.maximum), 100.0),
        over=over,
        label=(
            f"{short_bytes(space.scheduled)} scheduled and {short_bytes(space.promised)} promised of {short_bytes(limit)}, "
            f"{short_bytes(space.free)} free; {short_bytes(space.written)} written and {short_bytes(space.reserved)} "
            f"reserved of {short_bytes(space.maximum)}"
        ),
    )


def _share(part: int, whole: int) -> float:
    """Returns a part in per cent, from 0 to 100."""
    if whole <= 0:
        return 100.0 if part > 0 else 0.0
    return round(min(max(100 * part / whole, 0.0), 100.0), 1)
