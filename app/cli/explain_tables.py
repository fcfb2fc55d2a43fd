"""The tables of `longhorn-extender explain`, for a pod and for a volume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.schemas.explain import ExplainAnswer, NodeAnswer, VolumeAnswer
from app.schemas.volume import RuleAnswer, VolumeDiskAnswer, VolumeExplainAnswer
from scheduler_core.model.quantity import format_bytes

_MAX_COMPETING_VOLUMES: Final = 4


def print_pod(answer: ExplainAnswer, disks: Mapping[str, str], console: Console) -> None:
    """Prints the pod's volumes and one line per node.

    `disks` has the name of each disk by UUID.
    """
    console.print(Text(f"pod {answer.pod}", style="bold"))
    for volume in answer.volumes:
        console.print(Text(f"  {_volume_line(volume)}"))
    if not answer.volumes:
        console.print("  no Longhorn volumes")
    for skipped in answer.skipped_claims:
        console.print(Text(f"  claim {skipped.claim.partition('/')[2]} is skipped: {skipped.cause}"))
    table = Table("NODE", "FITS", "REASON", "MISSING", "PLAN AND DETAIL", box=None, pad_edge=False)
    for name, entry in answer.nodes.items():
        table.add_row(
            name,
            Text("yes", style="green") if entry.fits else Text("no", style="red"),
            entry.reason,
            format_bytes(entry.missing) if entry.missing else "",
            Text(_plan_and_detail(entry, disks)),
        )
    console.print()
    console.print(table)
    fitting = sum(entry.fits for entry in answer.nodes.values())
    console.print(Text(f"\n{fitting} of {len(answer.nodes)} nodes fit", style="bold"))


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


def _plan_and_detail(entry: NodeAnswer, disks: Mapping[str, str]) -> str:
    plan = ", ".join(f"{volume} on {disks.get(uuid, uuid)}" for volume, uuid in entry.plan.items())
    return "; ".join(part for part in (plan, entry.detail, _competing_volumes(entry)) if part)


def _competing_volumes(entry: NodeAnswer) -> str:
    """Names the volumes of other pods that take space on the node."""
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
    """Prints the replicas, every node and disk, and the candidates.

    Nodes and disks are shown with the rule that decided and its numbers.
    """
    console.print(Text(f"volume {answer.volume}", style="bold"))
    for line in _headlines(answer):
        console.print(Text(f"  {line}"))
    console.print()
    console.print(_volume_table(answer))
    count = len(answer.candidates)
    console.print(Text(f"\n{count} candidate {'disk' if count == 1 else 'disks'}", style="bold"))
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
    table = Table("NODE", "DISK", "CANDIDATE", "RULE", "NUMBERS", box=None, pad_edge=False)
    for name, node in answer.nodes.items():
        refusal = _failure(node.rules)
        if refusal is not None:
            table.add_row(name, "", Text("no", style="red"), refusal.rule, Text(refusal.detail))
        elif not node.disks:
            table.add_row(name, "", Text("no", style="red"), "node has no disks", "")
        for disk_name, disk in node.disks.items() if refusal is None else ():
            verdict = Text("yes", style="green") if disk.candidate else Text("no", style="red")
            table.add_row(name, disk_name, verdict, *_rule_and_numbers(disk, node.tier))
    return table


def _rule_and_numbers(disk: VolumeDiskAnswer, tier: str) -> tuple[str, Text]:
    refusal = _failure(disk.rules)
    if refusal is not None:
        return refusal.rule, Text(refusal.detail)
    return tier, Text("; ".join(rule.detail for rule in disk.rules if rule.detail))


def _failure(rules: Iterable[RuleAnswer]) -> RuleAnswer | None:
    return next((rule for rule in rules if not rule.passed), None)
