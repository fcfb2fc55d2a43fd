"""`longhorn-extender top`: the cluster in a few numbers, and nodes or disks with their space, worst first. Data flow: a
cluster or a snapshot file → the state of decisions → the rows of the status page (`scheduler_core.monitor`) → a
table or JSON. No extender needs to run.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import cluster_source, options, render
from app.settings import BestEffort
from scheduler_core import errors
from scheduler_core.cluster.view import View
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.model.quantity import format_bytes, format_count
from scheduler_core.monitor import capacity_report, node_rows
from scheduler_core.monitor.report import StatusReport, placement_problems, status_report
from scheduler_core.structs import Struct, replace

if TYPE_CHECKING:
    from rich import table as rich_table


_SIZES = ("WRITTEN", "SCHEDULED", "PROMISED", "FREE", "RESERVED", "SIZE")
_CONDITION_STYLES = {"open": "green", "partly closed": "yellow", "no disks": "dim"}
# Of a bar, each with its letter.
_PARTS = ("scheduled", "promised", "free", "reserved")
_LETTERS = "█▓░-"
_ASCII_LETTERS = "#+.-"
_MIN_BAR = 10
# On a terminal longer states are folded, which leaves room for bars.
_NARROW_STATE = 24
# On a narrower terminal states have no reasons.
_REASON_WIDTH = 130
_MAX_BAR = 60
_UNLIMITED_WIDTH = 2**12


class Subject(StrEnum):
    """What each row is about."""

    NODES = "nodes"
    DISKS = "disks"


class Group(StrEnum):
    """What rows are grouped by."""

    ZONE = "zone"


def top(
    *,
    subject: Annotated[Subject, typer.Argument(help="What each row is about.")] = Subject.NODES,
    sort: Annotated[
        node_rows.RowOrder,
        typer.Option(help="What comes first: the worst, the least free bytes, or the most of another number."),
    ] = node_rows.RowOrder.WORST,
    zone: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only nodes of this zone; '' for those without one.")
    ] = None,
    group_by: Annotated[Group | None, typer.Option(help="Rows of one zone together, with its sum.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="The most rows; default: all.")] = None,
    refreshing: render.Refreshing,
    output: Annotated[
        render.ListOutput, typer.Option("--output", "-o", help="How to print; name prints the nodes.")
    ] = render.ListOutput.TABLE,
    best_effort: options.BestEffortOption = BestEffort.REQUIRE,
    query: cluster_source.Query,
) -> None:
    """Show how full nodes or disks are, the worst first.

    Sizes are those that decisions read: written, scheduled, promised (not in Longhorn's status yet), free by the rules,
    and reserved. The first lines say how many pods wait, and the largest volume that fits. Nothing is asked of a running
    extender.

    Exit code 0: printed. 2: bad input, or no cluster.
    """
    query.check_standard_input(repeats=refreshing.watch)
    grouped = group_by is not None

    def read() -> dict[str, Any]:
        state = ClusterState.of(View.of(query.read().snapshot, options.now()))
        report = status_report(state)
        rows = node_rows.select_rows(report.rows, zone=zone)
        if zone is not None and not rows:
            raise errors.CoreError(f"--zone '{zone}': no Longhorn node is in it")
        zones = node_rows.group_by_zone(rows)
        items = _items([entry.rows for entry in zones] if grouped else [rows], subject, sort)
        data = {
            "summary": _summary(report, state, best_effort),
            # By name; nodes without a zone come last.
            "zones": [{"zone": each.zone, "nodes": len(each.rows), "space": _space(each.space)} for each in zones],
            "count": len(items),
            "items": items[:limit],
        }
        return render.document("NodeUsageList" if subject is Subject.NODES else "DiskUsageList", data)

    refreshing.show(
        read,
        output,
        partial(print_usage, grouped=grouped),
        lambda answer: (f"node/{item['node']}" for item in answer["items"]),
    )


def _summary(report: StatusReport, state: ClusterState, best_effort: BestEffort) -> dict[str, Any]:
    placements = placement_problems(state, require_best_effort=best_effort is BestEffort.REQUIRE)
    return {
        "nodes": len(report.rows),
        "disks": report.disks,
        # Nodes that Longhorn does not reach, ready ones with a disk over its limit, and others whose disks all take no new replica.
        "notReady": report.count(node_rows.NodeCondition.NOT_READY),
        "overLimit": report.count(node_rows.NodeCondition.OVER_LIMIT),
        "closed": report.count(node_rows.NodeCondition.CLOSED),
        "waiting": len(report.waiting),
        # Also for a moment after binding.
        "boundWithoutVolumes": len(placements.stuck),
        "misplaced": len(placements.misplaced),
        # By StorageClass, bytes of the largest new volume that fits now.
        "largestVolumes": dict(sorted(report.largest_volumes.items())),
    }


def _items(
    groups: Iterable[Sequence[node_rows.NodeRow]], subject: Subject, order: node_rows.RowOrder
) -> list[dict[str, Any]]:
    """Returns what JSON has of nodes or disks in an order, group by group."""
    if subject is Subject.DISKS:
        return [
            {
                "node": row.usage.node,
                "disk": row.usage.disk,
                "zone": row.zone,
                "closedBy": row.usage.closed_by.detail if row.usage.closed_by is not None else "",
                "space": _space(row.usage),
            }
            for group in groups
            for row in node_rows.sort_disks(group, order)
        ]
    return [
        {
            "node": row.name,
            "zone": row.zone,
            "condition": row.condition.text,
            "closedBy": row.closed,
            "demand": row.demand,
            "disks": len(row.disks),
            "space": _space(row.space),
        }
        for group in groups
        for row in node_rows.sort_nodes(group, order)
    ]


def _space(space: node_rows.SpaceTotal | capacity_report.DiskUsage) -> dict[str, int]:
    return {key: getattr(space, key) for key in ("maximum", "reserved", "scheduled", "promised", "free", "written")}


class _Layout(Struct, frozen=True):
    """What a table shows, as the terminal leaves room."""

    reasons: bool  # whether a state has its reason
    state_width: int | None  # where states are folded; None: nowhere
    letters: str  # of a bar's parts
    grouped: bool  # whether zones have lines of their own
    bar: int = 0  # width of the bars; 0 for none

    @classmethod
    def of(cls, answer: dict[str, Any], console: render.Console, *, grouped: bool) -> "_Layout":
        """Returns the layout for a console; bars are as wide as the other columns leave."""
        if not console.is_terminal:
            return cls(reasons=True, state_width=None, letters=_LETTERS, grouped=grouped)
        letters = _ASCII_LETTERS if console.options.ascii_only else _LETTERS
        without_bar = cls(console.width >= _REASON_WIDTH, _NARROW_STATE, letters, grouped)
        width = console.width - _full_width(_usage_table(answer, without_bar, console), console) - 2
        return replace(without_bar, bar=min(width, _MAX_BAR) if width >= _MIN_BAR else 0)


def print_usage(answer: dict[str, Any], console: render.Console, *, grouped: bool) -> None:
    """Prints the cluster's numbers, then one row per node or disk. On a terminal a bar fills the width that is left.
    Grouped rows have a line with the sum of their zone.
    """
    summary = answer["summary"]
    nodes = [f"{_count(summary['nodes'], 'node', 'nodes')} with {_count(summary['disks'], 'disk', 'disks')}"]
    counts = {"not ready": summary["notReady"], "over the limit": summary["overLimit"], "closed": summary["closed"]}
    nodes += [f"{count} {text}" for text, count in counts.items() if count]
    stuck = summary["boundWithoutVolumes"]
    pods = [_count(summary["waiting"], "pod waits", "pods wait")]
    pods += [_count(stuck, "pod is bound without its volumes", "pods are bound without their volumes")] if stuck else []
    if summary["misplaced"]:
        pods.append(_count(summary["misplaced"], "volume is misplaced", "volumes are misplaced"))
    for line in ("; ".join(nodes), "; ".join(pods), _largest_volumes(summary["largestVolumes"])):
        console.write(line, "bold")
    console.print()
    if not answer["items"]:
        console.write("there is no Longhorn node" if answer["kind"] == "NodeUsageList" else "there is no disk")
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
    if len(answer["items"]) < answer["count"]:
        console.write(f"{answer['count'] - len(answer['items'])} more; see --limit")


def _full_width(table: "rich_table.Table", console: render.Console) -> int:
    return console.measure(table, options=console.options.update(max_width=_UNLIMITED_WIDTH)).maximum


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


def _usage_table(answer: dict[str, Any], layout: _Layout, console: render.Console) -> "rich_table.Table":
    of_nodes = answer["kind"] == "NodeUsageList"
    names = ("NODE", "ZONE", "STATE", "DEMAND") if of_nodes else ("NODE", "DISK", "ZONE", "STATE")
    table = console.table_of(names)
    table.columns[names.index("STATE")].max_width = layout.state_width
    for size in _SIZES:
        table.add_column(size, justify="right", no_wrap=True)
    if layout.bar:
        table.add_column("USAGE", no_wrap=True)
    zones = {entry["zone"]: entry for entry in answer["zones"]}
    for zone, members in groupby(answer["items"], key=lambda item: item["zone"] if layout.grouped else ""):
        if layout.grouped:
            head = (f"zone {zone or '-'}", "", _count(zones[zone]["nodes"], "node", "nodes"), "")
            console.add_row(table, [*head, *_space_cells(zones[zone]["space"], layout)], style="bold")
        for item in members:
            cells = _node_cells(item, layout) if of_nodes else _disk_cells(item, layout)
            console.add_row(table, [*cells, *_space_cells(item["space"], layout)])
    return table


def _node_cells(node: dict[str, Any], layout: _Layout) -> list[render.Cell]:
    condition = node["condition"]
    reason = node["closedBy"] if layout.reasons and condition != node_rows.NodeCondition.NOT_READY.text else ""
    state = f"{condition}: {reason}" if reason else condition
    demand = format_bytes(node["demand"]) if node["demand"] else "-"
    return [node["node"], node["zone"] or "-", (state, _CONDITION_STYLES.get(condition, "red")), demand]


def _disk_cells(disk: dict[str, Any], layout: _Layout) -> list[render.Cell]:
    closed = disk["closedBy"]
    state = (closed if layout.reasons else "closed", "red") if closed else ("open", "green")
    return [disk["node"], disk["disk"], disk["zone"] or "-", state]


def _space_cells(space: Mapping[str, int], layout: _Layout) -> list[render.Cell]:
    sizes = (space[key] for key in ("written", "scheduled", "promised", "free", "reserved", "maximum"))
    cells: list[render.Cell] = [(format_bytes(size), "red" if size < 0 else "") for size in sizes]
    return [*cells, _bar(space, layout)] if layout.bar else cells


def _bar(space: Mapping[str, int], layout: _Layout) -> render.Cell:
    """Returns a bar of a disk, whose whole width is the disk's size, or what it holds and takes if that is more."""
    sizes = [max(0, space[part]) for part in _PARTS]
    total = max(space["maximum"], sum(sizes), 1)
    bar = ""
    end = 0
    for letter, size in zip(layout.letters, sizes, strict=True):
        end += size
        # Rounding ends, not parts, lets the parts add up.
        bar += letter * (round(end * layout.bar / total) - len(bar))
    return bar, "red" if space["free"] < 0 else ""
