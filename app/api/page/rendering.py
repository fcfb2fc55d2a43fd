"""Renders templates, with everything that they print escaped: the tiles of the first page, which are the cluster in a few numbers, and
what bars, nodes and drains say.

The headers of every answer allow nothing but the page's own files (`app/runtime/server.py`). The bars of disks are bytes scheduled of the
limit, and written of the size.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app.schemas.decision import NodeAnswer, disk_names
from scheduler_core.longhorn.cluster import parse_time
from scheduler_core.model.longhorn import Node
from scheduler_core.model.quantity import format_age, format_count, natural_key
from scheduler_core.monitor import capacity_report, node_rows
from scheduler_core.monitor.report import StatusReport
from scheduler_core.predict.node_loss import MAX_NODES, NodeLossOutcome
from scheduler_core.structs import Struct

if TYPE_CHECKING:  # what a command renders needs none of it
    from app.schemas.state import ServiceState
    from scheduler_core.predict.prediction import Prediction

_FOLDER = Path(__file__).parent
_BYTE_UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi")


def render(template: str, context: Mapping[str, object]) -> bytes:
    return environment().get_template(template).render(context).encode()


@cache
def assets() -> Mapping[str, bytes]:
    """Returns the files that pages use, by name."""
    return {path.name: path.read_bytes() for path in sorted((_FOLDER / "assets").iterdir())}


@cache
def _asset_link(name: str) -> str:
    return f"/assets/{name}?v={hashlib.sha256(assets()[name]).hexdigest()[:12]}"


def compile_templates() -> None:
    """Compiles all templates, so that the first page of a process takes no longer than others."""
    for name in environment().list_templates():
        environment().get_template(name)


@cache
def environment() -> Environment:
    """Returns the templates of pages and reports, which escape every value that they print."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "bytes": short_bytes,
        "age": _age,
        "duration": format_age,
        "count": format_count,
        "segment": lambda text: quote(text, safe=""),
        "utc": lambda time: time.strftime("%Y-%m-%d %H:%M:%S UTC"),
    }
    environment.globals["asset"] = _asset_link
    return environment


def short_bytes(size: int) -> str:
    """Returns a size in its largest binary unit, rounded down.

    >>> short_bytes(0), short_bytes(1536 * 1024**2), short_bytes(-(100 * 1024**4))
    ('0', '1.5Gi', '-100Ti')
    """
    sign = "-" if size < 0 else ""
    size = abs(size)
    power = min(max(0, (size.bit_length() - 1) // 10), len(_BYTE_UNITS) - 1)
    tenths = size * 10 >> 10 * power
    whole, tenth = divmod(tenths, 10)
    decimals = f".{tenth}" if tenth and whole < 100 and power else ""
    return f"{sign}{whole}{decimals}{_BYTE_UNITS[power]}"


def _age(created: str, now: datetime) -> str:
    """Returns how long ago something was created, "" if that is not known."""
    time = parse_time(created)
    return format_age((now - time).total_seconds()) if time is not None else ""


_ONLY_LEADER = "known to the leader of a live cluster"
UNKNOWN = "n/a"
_WORDS = {"warn": "look at this", "bad": "act on this"}


class Tile(Struct, frozen=True):
    """One number."""

    label: str
    number: str
    mood: str  # good, warn, bad, or "" where nothing can be said
    note: str  # what the number means
    link: str = ""  # where there is more, "" for nowhere

    @property
    def word(self) -> str:
        """The mood for readers that see no colours."""
        return _WORDS.get(self.mood, "")


def tiles(report: StatusReport, service: "ServiceState | None", losses: Mapping[str, NodeLossOutcome]) -> list[Tile]:
    """Returns the tiles of a report; what only a leader knows is unknown elsewhere."""
    return [
        _waiting_tile(report, service),
        *_placement_tiles(service),
        _largest_volume_tile(report),
        _losses_tile(report, service, losses),
        _free_space_tile(report),
    ]


def _waiting_tile(report: StatusReport, service: "ServiceState | None") -> Tile:
    number = len(report.waiting)
    longest = max((entry.seconds for entry in service.outstanding.waiting), default=0.0) if service else 0.0
    note = f"the longest for {format_age(longest)}" if longest else "pods with claims and without a node"
    return Tile("Waiting pods", f"{number:,}", "warn" if number else "good", note, "/pods")


def _placement_tiles(service: "ServiceState | None") -> list[Tile]:
    labels = ("Stuck pods", "Misplaced volumes")
    if service is None or not service.answering:
        return [Tile(label, UNKNOWN, "", _ONLY_LEADER) for label in labels]
    stuck = service.outstanding.report.stuck
    stuck_note = f"{stuck[0].pod} on {stuck[0].node}" if stuck else "bound pods that have lacked a volume for a minute"
    misplaced = service.outstanding.report.misplaced
    overbooked = service.outstanding.overbookings.overbooked
    note = (
        f"{misplaced[0].volume}, wanted on {misplaced[0].node}"
        if misplaced
        else "new volumes on another node than their pod's"
    )
    if overbooked:
        note += f"; {format_count(len(overbooked), 'overbooked disk')}"
    return [
        Tile(labels[0], f"{len(stuck):,}", "bad" if stuck else "good", stuck_note),
        Tile(labels[1], f"{len(misplaced):,}", "bad" if misplaced or overbooked else "good", note),
    ]


def _largest_volume_tile(report: StatusReport) -> Tile:
    largest = report.largest_volume
    if largest is None:
        return Tile("Largest volume that fits", UNKNOWN, "", "there is no StorageClass of Longhorn")
    best = [name for name, size in report.largest_volumes.items() if size == largest]
    note = f"a new one of StorageClass {best[0]}" + (f" or {len(best) - 1} more" if len(best) > 1 else "")
    return Tile("Largest volume that fits", short_bytes(largest), "good" if largest else "bad", note)


def _losses_tile(report: StatusReport, service: "ServiceState | None", losses: Mapping[str, NodeLossOutcome]) -> Tile:
    """Returns how many nodes can be lost, of those whose loss is predicted."""
    label = "Nodes that can be lost"
    nodes = len(report.rows)
    predicted = [losses[row.name] for row in report.rows if row.name in losses]
    if service is not None and not service.answering:
        return Tile(label, UNKNOWN, "", _ONLY_LEADER)
    if not predicted:
        note = f"not predicted for more than {MAX_NODES} nodes" if nodes > MAX_NODES else "not predicted yet"
        return Tile(label, UNKNOWN, "", note)
    safe = sum(loss.safe for loss in predicted)
    number = f"{safe:,} of {len(predicted):,}"
    mood = "good" if safe == len(predicted) else "warn"
    if len(predicted) < nodes:
        note = f"predicted for {len(predicted):,} of {format_count(nodes, 'node')} so far, the fullest first"
        return Tile(label, number, mood if safe < len(predicted) else "", note)
    return Tile(label, number, mood, "each on its own, without waiting pods or lost data")


def _free_space_tile(report: StatusReport) -> Tile:
    space = report.space
    share = space.free / space.limit if space.limit else 0.0
    mood = "bad" if share < 0.05 else "warn" if share < 0.15 else "good"
    note = f"on open disks; {share:.0%} of the {short_bytes(space.limit)} that Longhorn may schedule"
    return Tile("Free by the rules", short_bytes(space.free), mood if report.disks else "", note)


class UseBar(Struct, frozen=True):
    """Two tracks, in per cent of their length."""

    scheduled: float  # of the scheduling limit
    promised: float  # of the scheduling limit
    written: float  # of the size; the reserve is at the end
    reserved: float  # of the size; the reserve is at the end
    over: bool  # whether more is scheduled than the limit
    label: str  # all numbers as a sentence


class DiskLine(Struct, frozen=True):
    """A disk of a row with its bar."""

    usage: capacity_report.DiskUsage
    bar: UseBar

    @property
    def free(self) -> int:
        """Bytes that replicas may take now; 0 while the disk is closed."""
        return max(0, self.usage.free) if self.usage.closed_by is None else 0


def disk_line(usage: capacity_report.DiskUsage) -> DiskLine:
    limit = node_rows.scheduling_limit_of(usage)
    return DiskLine(usage, _bar(node_rows.SpaceTotal.of([usage]), limit, over=usage.free < 0))


def total_bar(space: node_rows.SpaceTotal) -> UseBar:
    return _bar(space, space.limit, over=False)


def lines_of(disks: Sequence[capacity_report.DiskUsage], limit: int) -> list[DiskLine]:
    """Returns the first disks, those with the least free space first."""

    def badness(usage: capacity_report.DiskUsage) -> tuple[Any, ...]:
        whole = node_rows.scheduling_limit_of(usage)
        return usage.closed_by is None, usage.free / whole if whole else 0.0, natural_key(usage.disk)

    return [disk_line(usage) for usage in sorted(disks, key=badness)[:limit]]


def _bar(space: node_rows.SpaceTotal, limit: int, *, over: bool) -> UseBar:
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
    if whole <= 0:
        return 100.0 if part > 0 else 0.0
    return round(min(max(100 * part / whole, 0.0), 100.0), 1)


def node_line(name: str, reason: str, longhorn: Mapping[str, Node], answer: NodeAnswer | None) -> dict[str, Any]:
    """Returns what is said about one node; `longhorn` says whether there is a page about it."""
    line = {"name": name, "longhorn": name in longhorn}
    if answer is None:
        return {**line, "fits": False, "reason": reason, "missing": 0, "detail": ""}
    names = disk_names(longhorn, name)
    plan = ", ".join(f"{volume} on {names.get(disk, disk)}" for volume, disk in answer.plan.items())
    details = [plan, answer.detail]
    if answer.competing:
        first, *others = answer.competing
        owner = f" of pod {first.pod}" if first.pod else ""
        more = f" and {len(others)} more" if others else ""
        details.append(f"counted with {first.volume}{owner}{more}")
    detail = "; ".join(filter(None, details))
    return {**line, "fits": answer.fits, "reason": answer.reason, "missing": answer.missing, "detail": detail}


def drain_problems(prediction: "Prediction") -> list[str]:
    """Returns what goes wrong in a drain, as sentences, without pods that waited before."""
    orders = prediction.orders
    problems = [
        f"The drain is held up in {_part(orders - drain.finished, orders)}: {blocker}."
        for drain in prediction.drains
        for blocker in drain.blockers
    ]
    problems += [
        f"Pod {pod.pod} {what} in {_part(count, orders)}."
        for pod in prediction.pods
        for what, count in (
            ("finds no node", orders - pod.placed - pod.not_running),
            ("is bound and does not run", pod.not_running),
        )
        if pod.left and count
    ]
    problems += [f"Pod {name} is gone: nothing creates it again." for name in prediction.gone_pods]
    problems += [
        f"Volume {volume.name} lacks a replica in the end: {volume.problem}."
        for volume in prediction.volumes
        if volume.incomplete
    ]
    return problems


def _part(number: int, orders: int) -> str:
    return f"{number} of {format_count(orders, 'order')}"
