"""The tables of `longhorn-extender explain`, for a pod and for a volume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from app.schemas.explain import NodeAnswer, VolumeAnswer
from app.schemas.pod_explanation import CandidateNodeAnswer, PodExplanation
from scheduler_core.model.quantity import format_bytes, format_count

if TYPE_CHECKING:  # a pod needs none of it
    from app.schemas.volume import RuleAnswer, VolumeDiskAnswer, VolumeExplainAnswer

_MAX_COMPETING_VOLUMES: Final = 4
_MIN_GROUPED_NODES: Final = 30
_MAX_NAMES: Final = 3
_MAX_NAMES_WIDTH: Final = 12
_MAX_REASONS: Final = 2
# Of all columns but the nodes' names.
_MIN_TEXT_WIDTH: Final = 56
# With it, the longest texts of kube-scheduler and Longhorn share a line.
_FULL_WIDTH: Final = 140
# It leaves room for "has room for all local volumes" on a terminal of 80 columns.
_NARROW_TEXT_WIDTH: Final = 24


def print_pod(answer: PodExplanation, console: Console, *, wide: bool) -> None:
    """Prints the pod's volumes and one line per node. From 30 nodes on, nodes that are refused alike share a line,
    unless `wide` is set, which adds plans and details.
    """
    console.print(Text(f"pod {answer.pod}", style="bold"))
    if answer.selection:
        _print_paragraph(answer.selection, console)
    if answer.error:
        _print_paragraph(f"fits nowhere: {answer.error}", console)
        return
    for volume in answer.volumes:
        _print_paragraph(_volume_line(volume), console)
    if not answer.volumes:
        _print_paragraph("no Longhorn volumes", console)
    for skipped in answer.skipped_claims:
        _print_paragraph(f"claim {skipped.claim.partition('/')[2]} is skipped: {skipped.cause}", console)
    console.print()
    table = _node_table(answer, wide=wide)
    # Where names are long, the terminal breaks the lines: narrower columns of text cannot be read.
    console.width = max(console.width, max(len(str(cell)) for cell in table.columns[0].cells) + _MIN_TEXT_WIDTH)
    if console.width < _FULL_WIDTH:
        table.columns[2].max_width = _NARROW_TEXT_WIDTH
    console.print(table)
    console.print()
    if not answer.resources_compared:
        console.print("requests of CPU and memory are not compared: no node says what is allocatable")
    fitting = sum(entry.fits for entry in answer.nodes.values())
    console.print(Text(f"{fitting} of {format_count(len(answer.nodes), 'node fits', 'nodes fit')}", style="bold"))
    for number, remedy in enumerate(answer.remedies, start=1):
        which = "cheapest" if number == 1 else "next"
        more = "; commands and others: longhorn-extender remedies" if number == len(answer.remedies) else ""
        _print_paragraph(f"{which} remedy: {remedy.text}{more}", console)


def _print_paragraph(text: str, console: Console) -> None:
    console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))


def _table(*headers: str) -> Table:
    """Returns a table without lines that shortens no word."""
    return Table(*(Column(header, overflow="fold") for header in headers), box=None, pad_edge=False)


def _node_table(answer: PodExplanation, *, wide: bool) -> Table:
    headers = ("NODE", "FITS", "KUBE-SCHEDULER", "LONGHORN", "MISSING")
    table = _table(*headers, "PLAN AND DETAIL") if wide else _table(*headers)
    table.columns[0].no_wrap = True
    grouped = len(answer.nodes) >= _MIN_GROUPED_NODES and not wide
    groups: dict[object, list[str]] = {}
    for name, entry in answer.nodes.items():
        alike = grouped and not entry.fits
        groups.setdefault((_kube_scheduler(entry), entry.longhorn) if alike else name, []).append(name)
    for names in groups.values():
        entry = answer.nodes[names[0]]
        cells: list[str | Text] = [
            _names(names),
            Text("yes", style="green") if entry.fits else Text("no", style="red"),
            _kube_scheduler(entry),
            entry.longhorn.reason,
            _missing([answer.nodes[name].missing for name in names]),
        ]
        table.add_row(*cells, *([_plan_and_detail(entry)] if wide else []))
    return table


def _names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    shown = max(1, sum(width <= _MAX_NAMES_WIDTH for width in accumulate(map(len, names[:_MAX_NAMES]))))
    return f"{len(names)} nodes: {', '.join(names[:shown])}" + (", ..." if len(names) > shown else "")


def _kube_scheduler(entry: CandidateNodeAnswer) -> str:
    if entry.kube_scheduler is None:
        return "-"
    return entry.kube_scheduler.reason or "ok"


def _missing(sizes: Sequence[int]) -> str:
    missing = [format_bytes(size) for size in sorted({min(sizes), max(sizes)}) if size]
    return "-".join(missing)


def print_pods(answers: Sequence[PodExplanation], console: Console, *, wide: bool) -> None:
    """Prints one line per pod; `wide` adds all reasons."""
    if not answers:
        console.print("no pod waits for a node")
        return
    table = _table("POD", "NODES", "REASONS")
    for answer in answers:
        fitting = sum(entry.fits for entry in answer.nodes.values())
        reasons = Counter(entry.reason for entry in answer.nodes.values() if not entry.fits)
        shown = reasons.most_common(None if wide else _MAX_REASONS)
        texts = [f"{reason} ({count})" for reason, count in shown]
        others = reasons.total() - sum(count for _, count in shown)
        texts += [f"other reasons ({others})"] if others else []
        table.add_row(
            answer.pod,
            Text(f"{fitting}/{len(answer.nodes)}", style="green" if fitting else "red"),
            answer.error or ", ".join(texts),
        )
    console.print(table)
    waiting = sum(not answer.schedulable for answer in answers)
    console.print()
    pods = format_count(len(answers), "waiting pod")
    console.print(Text(f"{pods}, {waiting} without a node that fits", style="bold"))


def _volume_line(volume: VolumeAnswer) -> str:
    claim = volume.claim.partition("/")[2]
    name = f"claim {claim}" + (f" ({volume.name})" if volume.bound else " (not bound yet)")
    if volume.persistent_volume:
        name = f"claim {claim} (not bound yet, matches PersistentVolume {volume.persistent_volume})"
    if volume.nodes is not None:
        name += f" on {', '.join(volume.nodes)}"
    where = "needs room on the pod's node" if volume.local else "may be anywhere"
    replicas = ", ".join(
        f"{replica.node or 'no node yet'}{' failed' if replica.failed else '' if replica.healthy else ' not healthy'}"
        for replica in volume.replicas
    )
    line = f"{name}: {format_bytes(volume.size)}, {volume.data_locality}, {where}"
    return f"{line}; replicas: {replicas}" if replicas else line


def _plan_and_detail(entry: CandidateNodeAnswer) -> str:
    plan = ", ".join(f"{volume} on {disk.name}" for volume, disk in entry.disks.items())
    return "; ".join(part for part in (plan, entry.detail, _competing_volumes(entry)) if part)


def _competing_volumes(entry: NodeAnswer) -> str:
    volumes = [
        f"{volume.volume} of pod {volume.pod} ({format_bytes(volume.size)})"
        if volume.pod
        else f"{volume.volume} ({format_bytes(volume.size)})"
        for volume in entry.competing
    ]
    if not volumes:
        return ""
    more = len(volumes) - _MAX_COMPETING_VOLUMES
    return "counted with " + ", ".join(volumes[:_MAX_COMPETING_VOLUMES]) + (f" and {more} more" if more > 0 else "")


def print_volume(answer: VolumeExplainAnswer, console: Console) -> None:
    """Prints the replicas, the candidates, and every node and disk with the rule that decided and its numbers."""
    console.print(Text(f"volume {answer.volume}", style="bold"))
    for line in _headlines(answer):
        _print_paragraph(line, console)
    console.print()
    console.print(_volume_table(answer))
    console.print()
    console.print(Text(format_count(len(answer.candidates), "candidate disk"), style="bold"))
    for candidate in answer.candidates:
        reason = f": {candidate.chosen}" if candidate.chosen else ", but Longhorn would choose another"
        console.print(Text(f"  {candidate.node} {candidate.disk}{reason}"))
    if not answer.candidates:
        reported = "; ".join(answer.reasons) or "nothing: the rules above are silent in Longhorn"
        console.print(Text(f"  Longhorn itself reports {reported}"))


def _headlines(answer: VolumeExplainAnswer) -> Iterable[str]:
    size = format_bytes(answer.size)
    actual = format_bytes(answer.actual_size)
    yield f"{size}, {actual} written, replicas wanted: {answer.number_of_replicas}, data locality {answer.data_locality}"
    for replica in answer.replicas:
        state = "failed" if replica.failed else "healthy" if replica.healthy else "not healthy yet"
        yield f"replica {replica.name}: " + (f"{replica.node}, {state}" if replica.node else "no node yet")
    subject = f"replica {answer.next_replica}" if answer.next_replica else "one more replica"
    yield f"asked about: {subject}"
    if answer.waits_for_attachment:
        yield "Longhorn places it only once the volume is attached, on that node first"


def _volume_table(answer: VolumeExplainAnswer) -> Table:
    table = _table("NODE", "DISK", "CANDIDATE", "RULE", "NUMBERS")
    for name, node in answer.nodes.items():
        refusal = _failure(node.rules)
        if refusal is not None:
            table.add_row(name, "", Text("no", style="red"), refusal.rule, refusal.detail)
        elif not node.disks:
            table.add_row(name, "", Text("no", style="red"), "node has no disks", "")
        for disk_name, disk in node.disks.items() if refusal is None else ():
            verdict = Text("yes", style="green") if disk.candidate else Text("no", style="red")
            table.add_row(name, disk_name, verdict, *_rule_and_numbers(disk, node.tier))
    return table


def _rule_and_numbers(disk: VolumeDiskAnswer, tier: str) -> tuple[str, str]:
    refusal = _failure(disk.rules)
    if refusal is not None:
        return refusal.rule, refusal.detail
    return tier, "; ".join(rule.detail for rule in disk.rules if rule.detail)


def _failure(rules: Iterable[RuleAnswer]) -> RuleAnswer | None:
    return next((rule for rule in rules if not rule.passed), None)
