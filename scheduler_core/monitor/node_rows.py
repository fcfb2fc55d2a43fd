"""One row per node: its disks, their space by the rules of decisions, and how urgently the node needs attention; rows in
the order that a reader asks for, and pages of equal length of many rows.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import Generic, TypeVar

from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.disk_profiles import Refused
from scheduler_core.model import longhorn
from scheduler_core.model.quantity import natural_key
from scheduler_core.monitor.capacity_report import DiskUsage, disk_usages
from scheduler_core.packing.budget import give_way
from scheduler_core.structs import Struct


class NodeCondition(IntEnum):
    """How urgently a node needs attention; a greater number is worse."""

    NO_DISKS = 0  # it has no Longhorn disk, as a node for computing alone
    OPEN = 1  # every disk takes new replicas
    PARTLY_CLOSED = 2  # a disk takes none
    CLOSED = 3  # no disk takes any
    OVER_LIMIT = 4  # a disk has more scheduled than Longhorn's limit
    NOT_READY = 5  # Longhorn does not reach the node

    @property
    def text(self) -> str:
        return self.name.lower().replace("_", " ")


class SpaceTotal(Struct, frozen=True):
    """The space of several disks, in bytes. The numbers are those of `DiskUsage`."""

    maximum: int = 0
    reserved: int = 0
    scheduled: int = 0
    promised: int = 0
    free: int = 0  # what open disks may still take by the rules, in sum
    largest_free: int = 0  # what a single open disk may still take
    written: int = 0
    limit: int = 0  # what may be scheduled at most (storage-over-provisioning-percentage), closed disks included

    @classmethod
    def of(cls, disks: Iterable[DiskUsage]) -> "SpaceTotal":
        """Adds up disks."""
        total = cls()
        for usage in disks:
            free = max(0, usage.free) if usage.closed_by is None else 0
            sizes = (usage.maximum, usage.reserved, usage.scheduled, usage.promised, free, free, usage.written)
            total += cls(*sizes, limit=scheduling_limit_of(usage))
        return total

    def __add__(self, other: "SpaceTotal") -> "SpaceTotal":
        return SpaceTotal(
            self.maximum + other.maximum,
            self.reserved + other.reserved,
            self.scheduled + other.scheduled,
            self.promised + other.promised,
            self.free + other.free,
            max(self.largest_free, other.largest_free),
            self.written + other.written,
            self.limit + other.limit,
        )


def scheduling_limit_of(usage: DiskUsage) -> int:
    """Returns how many bytes of a disk may be scheduled in all, by Longhorn's rule and the disk's DiskSchedule."""
    return max(0, usage.scheduled + usage.promised + usage.free)


class NodeRow(Struct, frozen=True, dict=True):
    """A Longhorn node with its disks."""

    name: str
    zone: str
    tags: tuple[str, ...]
    condition: NodeCondition
    closed: str  # why disks take no new replica; "" if all disks do
    disks: tuple[DiskUsage, ...]  # by name
    space: SpaceTotal
    demand: int = 0  # bytes of volumes that will take space there and have no replica there yet

    @cached_property
    def search_text(self) -> str:
        """What a text is sought in: names, zone, tags, and condition."""
        reasons = {usage.closed_by.detail for usage in self.disks if usage.closed_by is not None}
        names = (usage.disk for usage in self.disks)
        return "\n".join((self.name, self.zone, self.condition.text, *self.tags, *names, *sorted(reasons))).casefold()

    @property
    def badness(self) -> tuple[int, float, object]:
        """Sorts rows, worst first: by condition, then by the least share of the limit that is free, then by name."""
        share = self.space.free / self.space.limit if self.space.limit else 1.0
        return -self.condition, share, natural_key(self.name)


class ZoneRows(Struct, frozen=True):
    """The nodes of one zone, worst first. The zone is "" for nodes without one."""

    zone: str
    rows: tuple[NodeRow, ...]
    space: SpaceTotal


def node_rows(state: ClusterState) -> tuple[NodeRow, ...]:
    """Returns a row for each Longhorn node, worst first."""
    return tuple(
        sorted((_node_row(state, node) for node in state.view.cluster.nodes.values()), key=lambda row: row.badness)
    )


def _node_row(state: ClusterState, node: longhorn.Node) -> NodeRow:
    give_way()
    disks = disk_usages(state.view, node)
    closed = [usage.closed_by for usage in disks if usage.closed_by is not None]
    demands = state.demand.by_node.get(node.name) or ()
    return NodeRow(
        name=node.name,
        zone=node.zone,
        tags=node.tags,
        condition=_condition(node, disks, closed=len(closed)),
        closed=_closed_text(closed, len(disks)),
        disks=disks,
        space=SpaceTotal.of(disks),
        demand=sum(demand.volume.volume.size for demand in demands),
    )


def _closed_text(closed: Sequence[Refused], disks: int) -> str:
    reasons = {refused.reason for refused in closed}
    if len(closed) == disks and len(reasons) == 1:
        return reasons.pop().text
    more = f"; {len(closed) - 1} more" if len(closed) > 1 else ""
    return f"{len(closed)} of {disks} disks closed: {closed[0].detail}{more}" if closed else ""


def _condition(node: longhorn.Node, disks: Sequence[DiskUsage], closed: int) -> NodeCondition:
    if not node.ready:
        return NodeCondition.NOT_READY
    if not disks:
        return NodeCondition.NO_DISKS
    if any(usage.free < 0 for usage in disks):
        return NodeCondition.OVER_LIMIT
    if not closed:
        return NodeCondition.OPEN
    return NodeCondition.CLOSED if closed == len(disks) else NodeCondition.PARTLY_CLOSED


def select_rows(rows: Iterable[NodeRow], text: str = "", zone: str | None = None) -> tuple[NodeRow, ...]:
    """Returns a zone's rows ("": without zone, None: all) that contain every word of a text, in any letter case."""
    words = text.casefold().split()
    return tuple(
        row
        for row in rows
        if zone in (None, row.zone) and (not words or all(word in row.search_text for word in words))
    )


def group_by_zone(rows: Iterable[NodeRow]) -> tuple[ZoneRows, ...]:
    """Returns the zones by name, each with its rows in order; nodes without a zone come last."""
    zones: dict[str, list[NodeRow]] = {}
    for row in rows:
        zones.setdefault(row.zone, []).append(row)
    return tuple(
        ZoneRows(zone, tuple(members), sum((row.space for row in members), SpaceTotal()))
        for zone, members in sorted(zones.items(), key=lambda entry: (not entry[0], natural_key(entry[0])))
    )


PAGE_SIZE = 50
_Row = TypeVar("_Row")


class RowPage(Struct, Generic[_Row], frozen=True):
    """One page of a table."""

    rows: Sequence[_Row]
    number: int  # counted from 1
    total: int  # how many rows all pages have
    size: int = PAGE_SIZE  # how many rows a full page has

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.size))

    @property
    def first(self) -> int:
        return (self.number - 1) * self.size + 1 if self.rows else 0

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1 if self.rows else 0


def page_of(rows: Sequence[_Row], number: int, size: int = PAGE_SIZE) -> RowPage[_Row]:
    current = min(max(1, number), RowPage((), 1, len(rows), size).pages)
    return RowPage(rows[(current - 1) * size : current * size], current, len(rows), size)


class RowOrder(StrEnum):
    """What comes first: the most urgent, by name, the least free bytes, or the most bytes of another sort."""

    WORST = "worst"
    NAME = "name"
    WRITTEN = "written"
    SCHEDULED = "scheduled"
    PROMISED = "promised"
    FREE = "free"
    RESERVED = "reserved"


class DiskRow(Struct, frozen=True):
    """A disk of a Longhorn node."""

    zone: str  # of its node; "" for none
    usage: DiskUsage

    @property
    def badness(self) -> tuple[bool, bool, float, object, object]:
        # First those over Longhorn's limit, then those that take no new replica, then by the least share of the limit
        # that is free.
        usage = self.usage
        limit = scheduling_limit_of(usage)
        share = usage.free / limit if limit else 1.0
        return usage.free >= 0, usage.closed_by is None, share, natural_key(usage.node), natural_key(usage.disk)


def sort_nodes(rows: Iterable[NodeRow], order: RowOrder) -> tuple[NodeRow, ...]:
    if order is RowOrder.WORST:
        return tuple(sorted(rows, key=lambda row: row.badness))
    return tuple(sorted(rows, key=lambda row: (_bytes(row.space, order), natural_key(row.name))))


def sort_disks(rows: Iterable[NodeRow], order: RowOrder) -> tuple[DiskRow, ...]:
    """Returns the disks of nodes in an order, ties by node and disk."""

    def key(row: DiskRow) -> tuple[object, ...]:
        if order is RowOrder.WORST:
            return row.badness
        return _bytes(row.usage, order), natural_key(row.usage.node), natural_key(row.usage.disk)

    disks = (DiskRow(row.zone, usage) for row in rows for usage in row.disks)
    return tuple(sorted(disks, key=key))


def _bytes(space: SpaceTotal | DiskUsage, order: RowOrder) -> int:
    size: int = 0 if order is RowOrder.NAME else getattr(space, order)
    return size if order is RowOrder.FREE else -size
