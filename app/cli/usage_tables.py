"""The tables of `longhorn-extender top` and `waiting`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.list_output import plain_table
from app.schemas.usage_answer import (
    DiskUsageAnswer,
    NodeUsageAnswer,
    SpaceAnswer,
    SummaryAnswer,
    UsageListAnswer,
    WaitingListAnswer,
    WaitingPodAnswer,
)
from scheduler_core.longhorn.timestamps import parse_time
from scheduler_core.model.quantity import format_age, format_bytes, format_count

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
_MAX_REASONS: Final = 2
_UNLIMITED_WIDTH: Final = 2**12


@dataclass(frozen=True, slots=True)
class _Layout:
    """What a table shows, as the terminal leaves room."""

    reasons: bool  # whether a state has its reason
    state_width: int | None  # where states are folded; None: nowhere
    letters: str  # of a bar's parts
    grouped: bool  # whether zones have lines of their own
    bar: int = 0  # width of the bars; 0 for none

    @classmethod
    def of(cls, answer: UsageListAnswer, console: Console, *, grouped: bool) -> _Layout:
        """Returns the layout for a console; bars are as wide as the other columns leave."""
        if not console.is_terminal:
            return cls(reasons=True, state_width=None, letters=_LETTERS, grouped=grouped)
        letters = _ASCII_LETTERS if console.options.ascii_only else _LETTERS
        without_bar = cls(console.width >= _REASON_WIDTH, _NARROW_STATE, letters, grouped)
        width = console.width - _full_width(_usage_table(answer, without_bar), console) - 2
        return replace(without_bar, bar=min(width, _MAX_BAR) if width >= _MIN_BAR else 0)


def print_usage(answer: UsageListAnswer, console: Console, *, grouped: bool) -> None:
    """Prints the cluster's numbers, then one row per node or disk. On a terminal a bar fills the width that is left.
    Grouped rows have a line with the sum of their zone.
    """
    for line in _summary_lines(answer.summary):
        console.print(Text(line, style="bold"))
    console.print()
    if not answer.items:
        console.print(Text("there is no Longhorn node" if answer.kind == "NodeUsageList" else "there is no disk"))
        return
    layout = _Layout.of(answer, console, grouped=grouped)
    table = _usage_table(answer, layout)
    # Where the terminal is narrower, it breaks the lines: narrower columns of words cannot be read.
    console.width = max(console.width, _full_width(table, console)) if console.is_terminal else console.width
    console.print(table)
    console.print()
    if layout.bar:
        letters = zip(layout.letters, _PARTS, strict=True)
        console.print(Text("  ".join(f"{letter} {name}" for letter, name in letters), style="dim"))
    if len(answer.items) < answer.count:
        console.print(Text(f"{answer.count - len(answer.items)} more; see --limit"))


def _full_width(table: Table, console: Console) -> int:
    return console.measure(table, options=console.options.update(max_width=_UNLIMITED_WIDTH)).maximum


def _summary_lines(summary: SummaryAnswer) -> list[str]:
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


def _zone_of(entry: NodeUsageAnswer | DiskUsageAnswer) -> str:
    return entry.zone


def _usage_table(answer: UsageListAnswer, layout: _Layout) -> Table:
    table = _empty_table(answer, layout)
    zones = {entry.zone: entry for entry in answer.zones}
    items: Sequence[NodeUsageAnswer | DiskUsageAnswer] = answer.items
    for zone, members in groupby(items, key=_zone_of if layout.grouped else lambda _: ""):
        if layout.grouped:
            names = (f"zone {zone or '-'}", "", _count(zones[zone].nodes, "node", "nodes"), "")
            table.add_row(*names, *_space_cells(zones[zone].space, layout), style="bold")
        for entry in members:
            cells = _node_cells(entry, layout) if isinstance(entry, NodeUsageAnswer) else _disk_cells(entry, layout)
            table.add_row(*cells, *_space_cells(entry.space, layout))
    return table


def _empty_table(answer: UsageListAnswer, layout: _Layout) -> Table:
    names = ("NODE", "ZONE", "STATE", "DEMAND") if answer.kind == "NodeUsageList" else ("NODE", "DISK", "ZONE", "STATE")
    table = plain_table(*names)
    table.columns[names.index("STATE")].max_width = layout.state_width
    for size in _SIZES:
        table.add_column(size, justify="right", no_wrap=True)
    if layout.bar:
        table.add_column("USAGE", no_wrap=True)
    return table


def _node_cells(entry: NodeUsageAnswer, layout: _Layout) -> list[str | Text]:
    reason = entry.closed_by if layout.reasons and entry.condition != "not ready" else ""
    return [
        entry.node,
        entry.zone or "-",
        Text(
            f"{entry.condition}: {reason}" if reason else entry.condition, _CONDITION_STYLES.get(entry.condition, "red")
        ),
        format_bytes(entry.demand) if entry.demand else "-",
    ]


def _disk_cells(entry: DiskUsageAnswer, layout: _Layout) -> list[str | Text]:
    state = (entry.closed_by if layout.reasons else "closed") if entry.closed_by else "open"
    return [
        entry.node,
        entry.disk,
        entry.zone or "-",
        Text(state, "red" if entry.closed_by else "green"),
    ]


def _space_cells(space: SpaceAnswer, layout: _Layout) -> list[Text]:
    sizes = (space.written, space.scheduled, space.promised, space.free, space.reserved, space.maximum)
    cells = [Text(format_bytes(size), "red" if size < 0 else "") for size in sizes]
    return [*cells, _bar(space, layout)] if layout.bar else cells


def _bar(space: SpaceAnswer, layout: _Layout) -> Text:
    """Returns a bar of a disk, whose whole width is the disk's size, or what it holds and takes if that is more."""
    sizes = [max(0, size) for size in (space.scheduled, space.promised, space.free, space.reserved)]
    total = max(space.maximum, sum(sizes), 1)
    bar = ""
    end = 0
    for letter, size in zip(layout.letters, sizes, strict=True):
        end += size
        # Rounding ends, not parts, lets the parts add up.
        bar += letter * (round(end * layout.bar / total) - len(bar))
    return Text(bar, "red" if space.free < 0 else "")


def print_waiting(answer: WaitingListAnswer, console: Console, now: datetime) -> None:
    """Prints one row per waiting pod; ages are those at `now`."""
    if not answer.items:
        console.print(Text("no pod with claims waits for a node"))
        return
    table = plain_table("POD", "SINCE", "AGE", "SIZE", "FITS", "WHY", "CLOSEST NODE", "REMEDY")
    for entry in answer.items:
        created = parse_time(entry.since)
        table.add_row(
            entry.pod,
            entry.since or "-",
            format_age((now - created).total_seconds()) if created is not None else "-",
            format_bytes(entry.size) if entry.size else "-",
            f"{entry.fits} of {entry.nodes}",
            _why(entry),
            _closest(entry),
            entry.remedy.text if entry.remedy is not None else "-",
        )
    console.print(table)
    if len(answer.items) < answer.count:
        console.print()
        console.print(Text(f"{answer.count - len(answer.items)} more; see --limit"))


def _why(entry: WaitingPodAnswer) -> str:
    if entry.error:
        return entry.error
    if entry.fits:
        return "fits now; kube-scheduler has not tried again"
    shown = list(entry.reasons.items())[:_MAX_REASONS]
    others = sum(entry.reasons.values()) - sum(count for _, count in shown)
    return "; ".join([*(f"{reason} ({count})" for reason, count in shown), *([f"others ({others})"] if others else [])])


def _closest(entry: WaitingPodAnswer) -> str:
    closest = entry.closest
    if closest is None:
        return "-"
    lack = f"lacks {format_bytes(closest.missing)}" if closest.missing else closest.reason
    return f"{closest.node}: {lack}"
