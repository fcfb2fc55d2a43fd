"""The tables of `longhorn-extender explain --volume`."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.schemas.volume import RuleAnswer, VolumeDiskAnswer, VolumeExplainAnswer
from scheduler_core.model.quantity import format_bytes


def print_volume(answer: VolumeExplainAnswer, console: Console) -> None:
    """Prints the replicas, the candidates, and every node and disk with the rule that decided and its numbers."""
    console.print(Text(f"volume {answer.volume}", style="bold"))
    for line in _headlines(answer):
        console.print(Text(f"  {line}"))
    console.print()
    console.print(_table(answer))
    count = len(answer.candidates)
    console.print(Text(f"\n{count} candidate {'disk' if count == 1 else 'disks'}", style="bold"))
    for candidate in answer.candidates:
        why = f": {candidate.chosen}" if candidate.chosen else ", but Longhorn would choose another"
        console.print(Text(f"  {candidate.node} {candidate.disk}{why}"))
    if not answer.candidates:
        reported = "; ".join(answer.reasons) or "nothing: the rules above are silent in Longhorn"
        console.print(Text(f"  Longhorn itself reports {reported}"))


def _headlines(answer: VolumeExplainAnswer) -> Iterable[str]:
    size, actual = format_bytes(answer.size), format_bytes(answer.actual_size)
    yield f"{size}, {actual} written, replicas wanted: {answer.number_of_replicas}, data locality {answer.data_locality}"
    for replica in answer.replicas:
        state = "failed" if replica.failed else "healthy" if replica.healthy else "not healthy yet"
        yield f"replica {replica.name}: " + (f"{replica.node}, {state}" if replica.node else "no node yet")
    asked = f"replica {answer.next_replica}" if answer.next_replica else "one more replica"
    yield f"asked about: {asked}"
    if answer.waits_for_attachment:
        yield "Longhorn places it only once the volume is attached, on that node first"


def _table(answer: VolumeExplainAnswer) -> Table:
    table = Table("NODE", "DISK", "CANDIDATE", "RULE", "NUMBERS", box=None, pad_edge=False)
    for name, node in answer.nodes.items():
        refused = _failed(node.rules)
        if refused is not None:
            table.add_row(name, "", Text("no", style="red"), refused.rule, Text(refused.detail))
        elif not node.disks:
            table.add_row(name, "", Text("no", style="red"), "node has no disks", "")
        for disk_name, disk in node.disks.items() if refused is None else ():
            verdict = Text("yes", style="green") if disk.candidate else Text("no", style="red")
            table.add_row(name, disk_name, verdict, *_rule_and_numbers(disk, node.tier))
    return table


def _rule_and_numbers(disk: VolumeDiskAnswer, tier: str) -> tuple[str, Text]:
    refused = _failed(disk.rules)
    if refused is not None:
        return refused.rule, Text(refused.detail)
    return tier, Text("; ".join(rule.detail for rule in disk.rules if rule.detail))


def _failed(rules: Iterable[RuleAnswer]) -> RuleAnswer | None:
    return next((rule for rule in rules if not rule.passed), None)
