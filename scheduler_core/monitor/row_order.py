"""Nodes and disks in the order that a reader asks for, and pages of equal length of many rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from scheduler_core.model.listing import natural_key
from scheduler_core.monitor.capacity_report import DiskUsage
from scheduler_core.monitor.node_rows import NodeRow, SpaceTotal, scheduling_limit_of

PAGE_SIZE: Final = 50
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class RowPage(Generic[_Row]):
    """One page of a table."""

    rows: Sequence[_Row]
    number: int  # counted from 1
    total: int  # how many rows all pages have
    size: int = PAGE_SIZE  # how many rows a full page has

    @property
    def pages(self) -> int:
        """How many pages there are; an empty table has one."""
        return max(1, -(-self.total // self.size))

    @property
    def first(self) -> int:
        """The number of the page's first row, counted from 1; 0 without rows."""
        return (self.number - 1) * self.size + 1 if self.rows else 0

    @property
    def last(self) -> int:
        """The number of the page's last row; 0 without rows."""
        return self.first + len(self.rows) - 1 if self.rows else 0


def page_of(rows: Sequence[_Row], number: int, size: int = PAGE_SIZE) -> RowPage[_Row]:
    """Returns a page of the rows; beyond the last page, the last one."""
    pages = max(1, -(-len(rows) // size))
    current = min(max(1, number), pages)
    return RowPage(rows[(current - 1) * size : current * size], current, len(rows), size)


class RowOrder(StrEnum):
    """What comes first.

    WORST: the most urgent. NAME: by name. FREE: the least free bytes. WRITTEN, SCHEDULED, PROMISED, RESERVED: the most bytes of these.
    """

    WORST = "worst"
    NAME = "name"
    WRITTEN = "written"
    SCHEDULED = "scheduled"
    PROMISED = "promised"
    FREE = "free"
    RESERVED = "reserved"


@dataclass(frozen=True, slots=True)
class DiskRow:
    """A disk of a Longhorn node."""

    zone: str  # of its node; "" for none
    usage: DiskUsage

    @property
    def badness(self) -> tuple[bool, bool, float, object, object]:
        """Sorts disks, worst first."""
        # First those over Longhorn's limit, then those that take no new replica, then by the least share of the limit
        # that is free.
        usage = self.usage
        limit = scheduling_limit_of(usage)
        share = usage.free / limit if limit else 1.0
        return usage.free >= 0, usage.closed_by is None, share, natural_key(usage.node), natural_key(usage.disk)


def disk_rows(rows: Iterable[NodeRow]) -> tuple[DiskRow, ...]:
    """Returns the disks of nodes, worst first."""
    disks = (DiskRow(row.zone, usage) for row in rows for usage in row.disks)
    return tuple(sorted(disks, key=lambda disk: disk.badness))


def sort_nodes(rows: Iterable[NodeRow], order: RowOrder) -> tuple[NodeRow, ...]:
    """Returns nodes in an order, ties by name."""
    if order is RowOrder.WORST:
        return tuple(sorted(rows, key=lambda row: row.badness))
    return tuple(sorted(rows, key=lambda row: (_bytes(row.space, order), natural_key(row.name))))


def sort_disks(disks: Iterable[DiskRow], order: RowOrder) -> tuple[DiskRow, ...]:
    """Returns disks in an order, ties by node and disk."""
    if order is RowOrder.WORST:
        return tuple(sorted(disks, key=lambda disk: disk.badness))
    return tuple(
        sorted(
            disks, key=lambda disk: (_bytes(disk.usage, order), *map(natural_key, (disk.usage.node, disk.usage.disk)))
        )
    )


def _bytes(space: SpaceTotal | DiskUsage, order: RowOrder) -> int:
    sizes = {
        RowOrder.WRITTEN: -space.written,
        RowOrder.SCHEDULED: -space.scheduled,
        RowOrder.PROMISED: -space.promised,
        RowOrder.RESERVED: -space.reserved,
        RowOrder.FREE: space.free,
    }
    return sizes.get(order, 0)
