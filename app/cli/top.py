"""`longhorn-extender top`: the cluster in a few numbers, and nodes or disks with their space, worst first. Data flow: a
cluster or a snapshot file → the state of decisions → the rows of the status page (`scheduler_core.monitor`) → a
table or JSON. No extender needs to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec import Struct

from app.cli.options import BestEffortOption, now
from app.cli.query import Query
from app.cli.render import Cell, ListOutput, Refreshing, Table, document, show
from app.settings import BestEffort
from scheduler_core.cluster.view import View
from scheduler_core.errors import CoreError
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.model.quantity import format_bytes, format_count
from scheduler_core.monitor import node_rows
from scheduler_core.monitor.capacity_report import DiskUsage
from scheduler_core.monitor.report import StatusReport, placement_problems, status_report
from scheduler_core.values import replace

if TYPE_CHECKING:
    from rich import table as rich_table

    from app.cli.console import EscapingConsole

_SIZES: Final = ("WRITTEN", "SCHEDULED", "PROMISED", "FREE", "RESERVED", "SIZE")
_CONDITION_STYLES: Final = {"open": "green", "partly closed": "yellow", "no disks": "dim"}
# Of a bar, each with its letter.
_PARTS: Final = ("scheduled", "promised", "free", "reserved")
_LETTERS: Final = "█▓░-"
_ASCII_LETTERS: Final = "#+.-"
_MIN_BAR: Final = 10
# On a terminal longer states are folded, which leaves room for bars.
_NARROW_STATE: Final = 24
# On a narrower terminal states have no reasons.
_REASON_WIDTH: Final = 130
_MAX_BAR: Final = 60
_UNLIMITED_WIDTH: Final = 2**12


class Subject(StrEnum):
    """What each row is about."""

    NODES = "nodes"
    DISKS = "disks"


class Group(StrEnum):
    """What rows are grouped by."""

    ZONE = "zone"


class Summary(Struct, frozen=True):
    """The cluster in a few numbers; the fields are keys of the JSON."""

    nodes: int
    disks: int
    not_ready: int  # nodes that Longhorn does not reach
    over_limit: int  # ready nodes with a disk over Longhorn's limit
    closed: int  # other nodes whose disks all take no new replica
    waiting: int  # pods with claims and without a node
    bound_without_volumes: int  # bound pods of which a volume is not on their node; also for a moment after binding
    misplaced: int  # new volumes that Longhorn placed on another node than their pod's
    largest_volumes: Mapping[str, int]  # by StorageClass, bytes of the largest new volume that fits now


class UsageList(Struct, frozen=True):
    """Nodes or disks in an order."""

    subject: Subject
    summary: Summary
    zones: Sequence[node_rows.ZoneRows]  # by name; nodes without a zone come last
    count: int  # of all selected nodes or disks, before --limit
    items: Sequence[node_rows.NodeRow] | Sequence[node_rows.DiskRow]

    def data(self) -> dict[str, Any]:
        """Returns what JSON has."""
        zones = [
            {"zone": entry.zone, "nodes": len(entry.rows), "space": _space_data(entry.space)} for entry in self.zones
        ]
        items = [_node_data(row) if isinstance(row, node_rows.NodeRow) else _disk_data(row) for row in self.items]
        kind = "NodeUsageList" if self.subject is Subject.NODES else "DiskUsageList"
        return document(kind, {"summary": self.summary, "zones": zones, "count": self.count, "items": items})


def _node_data(row: node_rows.NodeRow) -> dict[str, Any]:
    return {
        "node": row.name,
        "zone": row.zone,
        "condition": row.condition,
        "closedBy": row.closed,
        "demand": row.demand,
        "disks": len(row.disks),
        "space": _space_data(row.space),
    }


def _disk_data(row: node_rows.DiskRow) -> dict[str, Any]:
    usage = row.usage
    closed = _closed_by(usage)
    return {"node": usage.node, "disk": usage.disk, "zone": row.zone, "closedBy": closed, "space": _space_data(usage)}


def _closed_by(usage: DiskUsage) -> str:
    return usage.closed_by.detail if usage.closed_by is not None else ""


def _space_data(space: node_rows.SpaceTotal | DiskUsage) -> dict[str, int]:
    return {key: getattr(space, key) for key in ("maximum", "reserved", "scheduled", "promised", "free", "written")}


def top(
    *,
    subject: Annotated[Subject, typer.Argument(help="What each row is about.")] = Subject.NODES,
    sort: Annotated[
        node_rows.RowOrder,
        typer.Option(
            "--sort", help="What comes first: the worst, the least free bytes, or the most of another number."
        ),
    ] = node_rows.RowOrder.WORST,
    zone: Annotated[
        str | None, typer.Option("--zone", metavar="NAME", help="Only nodes of this zone; '' for those without one.")
    ] = None,
    group_by: Annotated[
        Group | None, typer.Option("--group-by", help="Rows of one zone together, with its sum.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="The most rows; default: all.")
    ] = None,
    refreshing: Refreshing,
    output: Annotated[
        ListOutput, typer.Option("--output", "-o", help="How to print; name prints the nodes.")
    ] = ListOutput.TABLE,
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    query: Query,
) -> None:
    """Show how full nodes or disks are, the worst first.

    Sizes are those that decisions read: written, scheduled, promised (not in Longhorn's status yet), free by the rules,
    and reserved. The first lines say how many pods wait, and the largest volume that fits. Nothing is asked of a running
    extender.

    Exit code 0: printed. 2: bad input, or no cluster.
    """
    query.check_standard_input(repeats=refreshing.watch)
    grouped = group_by is not None

    def read() -> UsageList:
        state = ClusterState.of(View.of(query.read().snapshot, now()))
        report = status_report(state)
        rows = node_rows.select_rows(report.rows, zone=zone)
        if zone is not None and not rows:
            raise CoreError(f"--zone '{zone}': no Longhorn node is in it")
        zones = node_rows.group_by_zone(rows)
        items = _sort([entry.rows for entry in zones] if grouped else [rows], subject, sort)
        return UsageList(subject, _summary(report, state, best_effort), zones, len(items), items[:limit])

    def table(answer: UsageList) -> Table:
        return lambda console: print_usage(answer, console, grouped=grouped)

    if refreshing.watch:
        refreshing.run(lambda: table(read()), output)
        return
    answer = read()
    names = (f"node/{row.name if isinstance(row, node_rows.NodeRow) else row.usage.node}" for row in answer.items)
    show(answer.data(), output, table(answer), names)


def _summary(report: StatusReport, state: ClusterState, best_effort: BestEffort) -> Summary:
    placements = placement_problems(state, require_best_effort=best_effort is BestEffort.REQUIRE)
    return Summary(
        nodes=len(report.rows),
        disks=report.disks,
        not_ready=report.count(node_rows.NodeCondition.NOT_READY),
        over_limit=report.count(node_rows.NodeCondition.OVER_LIMIT),
        closed=report.count(node_rows.NodeCondition.CLOSED),
        waiting=len(report.waiting),
        bound_without_volumes=len(placements.stuck),
        misplaced=len(placements.misplaced),
        largest_volumes=dict(sorted(report.largest_volumes.items())),
    )


def _sort(
    groups: Iterable[Sequence[node_rows.NodeRow]], subject: Subject, order: node_rows.RowOrder
) -> Sequence[node_rows.NodeRow] | Sequence[node_rows.DiskRow]:
    if subject is Subject.DISKS:
        return [disk for group in groups for disk in node_rows.sort_disks(group, order)]
    return [row for group in groups for row in node_rows.sort_nodes(group, order)]


class _Layout(Struct, frozen=True):
    """What a table shows, as the terminal leaves room."""

    reasons: bool  # whether a state has its reason
    state_width: int | None  # where states are folded; None: nowhere
    letters: str  # of a bar's parts
    grouped: bool  # whether zones have lines of their own
    bar: int = 0  # width of the bars; 0 for none

    @classmethod
    def of(cls, answer: UsageList, console: EscapingConsole, *, grouped: bool) -> _Layout:
        """Returns the layout for a console; bars are as wide as the other columns leave."""
        if not console.is_terminal:
            return cls(reasons=True, state_width=None, letters=_LETTERS, grouped=grouped)
        letters = _ASCII_LETTERS if console.options.ascii_only else _LETTERS
        without_bar = cls(console.width >= _REASON_WIDTH, _NARROW_STATE, letters, grouped)
        width = console.width - _full_width(_usage_table(answer, without_bar, console), console) - 2
        return replace(without_bar, bar=min(width, _MAX_BAR) if width >= _MIN_BAR else 0)


def print_usage(answer: UsageList, console: EscapingConsole, *, grouped: bool) -> None:
    """Prints the cluster's numbers, then one row per node or disk. On a terminal a bar fills the width that is left.
    Grouped rows have a line with the sum of their zone.
    """
    for line in _summary_lines(answer.summary):
        console.write(line, "bold")
    console.print()
    if not answer.items:
        console.write("there is no Longhorn node" if answer.subject is Subject.NODES else "there is no disk")
        return
    layout = _Layout.of(answer, console, grouped=grouped)
    table = _usage_table(answer, layout, console)
    # Where the terminal is narrower, it breaks the lines: narrower columns of words cannot be read.
    console.width = max(console.width, _full_width(table, console)) if console.is_terminal else console.width
    console.print(table)
    console.print()
    if layout.bar:
        letters = zip(layout.letters, _PARTS, strict=True)
        console.write("  ".join(f"{letter} {name}" for letter, name in letters), "dim")
    if len(answer.items) < answer.count:
        console.write(f"{answer.count - len(answer.items)} more; see --limit")


def _full_width(table: rich_table.Table, console: EscapingConsole) -> int:
    return console.measure(table, options=console.options.update(max_width=_UNLIMITED_WIDTH)).maximum


def _summary_lines(summary: Summary) -> list[str]:
    pods = [_count(summary.waiting, "pod waits", "pods wait")]
    if summary.bound_without_volumes:
        pods.append(
            _count(
                summary.bound_without_volumes,
                "pod is bound without its volumes",
                "pods are bound without their volumes",
            )
        )
    if summary.misplaced:
        pods.append(_count(summary.misplaced, "volume is misplaced", "volumes are misplaced"))
    nodes = [f"{_count(summary.nodes, 'node', 'nodes')} with {_count(summary.disks, 'disk', 'disks')}"]
    counts = {"not ready": summary.not_ready, "over the limit": summary.over_limit, "closed": summary.closed}
    nodes += [f"{count} {text}" for text, count in counts.items() if count]
    return ["; ".join(nodes), "; ".join(pods), _largest_volumes(summary.largest_volumes)]


def _largest_volumes(sizes: Mapping[str, int]) -> str:
    if not sizes:
        return "there is no StorageClass of Longhorn"
    classes: dict[int, list[str]] = {}
    for name, size in sizes.items():
        classes.setdefault(size, []).append(name)
    parts = [f"{format_bytes(size)} of {', '.join(classes[size])}" for size in sorted(classes, reverse=True)]
    return f"largest volume that fits: {'; '.join(parts)}"


def _count(number: int, singular: str, plural: str) -> str:
    return format_count(number, singular, plural) if number else f"no {plural}"


def _zone_of(row: node_rows.NodeRow | node_rows.DiskRow) -> str:
    return row.zone


def _usage_table(answer: UsageList, layout: _Layout, console: EscapingConsole) -> rich_table.Table:
    table = _empty_table(answer, layout, console)
    zones = {entry.zone: entry for entry in answer.zones}
    items: Sequence[node_rows.NodeRow | node_rows.DiskRow] = answer.items
    for zone, members in groupby(items, key=_zone_of if layout.grouped else lambda _: ""):
        if layout.grouped:
            names = (f"zone {zone or '-'}", "", _count(len(zones[zone].rows), "node", "nodes"), "")
            console.add_row(table, [*names, *_space_cells(zones[zone].space, layout)], style="bold")
        for row in members:
            cells = _node_cells(row, layout) if isinstance(row, node_rows.NodeRow) else _disk_cells(row, layout)
            space = row.space if isinstance(row, node_rows.NodeRow) else row.usage
            console.add_row(table, [*cells, *_space_cells(space, layout)])
    return table


def _empty_table(answer: UsageList, layout: _Layout, console: EscapingConsole) -> rich_table.Table:
    nodes = answer.subject is Subject.NODES
    names = ("NODE", "ZONE", "STATE", "DEMAND") if nodes else ("NODE", "DISK", "ZONE", "STATE")
    table = console.table_of(names)
    table.columns[names.index("STATE")].max_width = layout.state_width
    for size in _SIZES:
        table.add_column(size, justify="right", no_wrap=True)
    if layout.bar:
        table.add_column("USAGE", no_wrap=True)
    return table


def _node_cells(row: node_rows.NodeRow, layout: _Layout) -> list[Cell]:
    reason = row.closed if layout.reasons and row.condition is not node_rows.NodeCondition.NOT_READY else ""
    condition = row.condition.text
    state = f"{condition}: {reason}" if reason else condition
    demand = format_bytes(row.demand) if row.demand else "-"
    return [row.name, row.zone or "-", (state, _CONDITION_STYLES.get(condition, "red")), demand]


def _disk_cells(row: node_rows.DiskRow, layout: _Layout) -> list[Cell]:
    closed = _closed_by(row.usage)
    state = (closed, "red") if closed and layout.reasons else ("closed", "red") if closed else ("open", "green")
    return [row.usage.node, row.usage.disk, row.zone or "-", state]


def _space_cells(space: node_rows.SpaceTotal | DiskUsage, layout: _Layout) -> list[Cell]:
    sizes = (space.written, space.scheduled, space.promised, space.free, space.reserved, space.maximum)
    cells: list[Cell] = [(format_bytes(size), "red" if size < 0 else "") for size in sizes]
    return [*cells, _bar(space, layout)] if layout.bar else cells


def _bar(space: node_rows.SpaceTotal | DiskUsage, layout: _Layout) -> Cell:
    """Returns a bar of a disk, whose whole width is the disk's size, or what it holds and takes if that is more."""
    sizes = [max(0, size) for size in (space.scheduled, space.promised, space.free, space.reserved)]
    total = max(space.maximum, sum(sizes), 1)
    bar = ""
    end = 0
    for letter, size in zip(layout.letters, sizes, strict=True):
        end += size
        # Rounding ends, not parts, lets the parts add up.
        bar += letter * (round(end * layout.bar / total) - len(bar))
    return bar, "red" if space.free < 0 else ""
