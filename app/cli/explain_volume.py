"""Why a volume's next replica can or cannot be placed: `longhorn-extender explain --volume`. The fields of an explanation are
the keys of its JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from app.cli.render import NO, YES, Cell, Console
from app.schemas.decision import ReplicaAnswer, replica_answer
from scheduler_core.cluster.view import View
from scheduler_core.errors import CoreError
from scheduler_core.longhorn.anti_affinity import Tier
from scheduler_core.longhorn.new_volume_placement import (
    DiskExplanation,
    NextReplica,
    NodeExplanation,
    PlacementExplanation,
    explain_next_replica,
    waits_for_attachment,
)
from scheduler_core.longhorn.refusal_rules import DISK_RULES, NODE_RULES, Rule
from scheduler_core.longhorn.space import space_detail
from scheduler_core.model.longhorn import Volume
from scheduler_core.model.quantity import format_bytes, format_count

_SPACE_RULES = (Rule.ACTUAL_SPACE, Rule.SCHEDULING_SPACE)


class RuleResult(Struct, frozen=True):
    """One rule of Longhorn, applied to a node or disk."""

    rule: str
    passed: bool
    detail: str  # the numbers; "" where a passed rule has none


class VolumeDisk(Struct, frozen=True):
    """A disk, in bytes."""

    uuid: str
    candidate: bool
    free: int  # what may still be scheduled: size <= free
    headroom: int  # what may still be written: actual size < headroom
    rules: Sequence[RuleResult]  # in Longhorn's order, up to the first that failed


class VolumeNode(Struct, frozen=True):
    """A Longhorn node and its disks by name."""

    tier: str  # the anti-affinity tier it was tried in; "" if it was not
    rules: Sequence[RuleResult]  # in Longhorn's order, up to the first that failed
    disks: Mapping[str, VolumeDisk]


class Candidate(Struct, frozen=True):
    """A disk the replica may go to."""

    node: str
    disk: str
    uuid: str
    chosen: str  # why Longhorn may choose it; "" if it would not


class VolumeExplanation(Struct, frozen=True):
    """Why the next replica of a volume can or cannot be placed."""

    volume: str
    size: int
    actual_size: int
    number_of_replicas: int
    data_locality: str
    replicas: Sequence[ReplicaAnswer]
    next_replica: str  # the unplaced replica that is asked about; "": one more
    waits_for_attachment: bool  # Longhorn places local data only once it is attached
    candidates: Sequence[Candidate]
    reasons: Sequence[str]  # what Longhorn itself would report without a candidate; often nothing
    nodes: Mapping[str, VolumeNode]


def explain_volume(view: View, name: str, nodes: Collection[str] | None = None) -> VolumeExplanation:
    """Explains where a volume's next replica may go: an unplaced one, or else one more. `nodes` limits the answer to
    these nodes, not the decision. Raises a CoreError if there is no such volume, or it has no replicas.
    """
    volume = view.snapshot.volumes.get(name)
    if volume is None:
        examples = ", ".join(sorted(view.snapshot.volumes)[:5]) or "none"
        raise CoreError(f"there is no volumes.longhorn.io {name} in the snapshot; there are {examples}, ...")
    if volume.has_shards:
        raise CoreError(f"volume {name} is sharded: it has shards (kubectl get shards.longhorn.io) and no replicas")
    next_replica = explain_next_replica(view.cluster, volume)
    explanation = next_replica.explanation
    return VolumeExplanation(
        volume=name,
        size=volume.size,
        actual_size=volume.actual_size,
        number_of_replicas=volume.number_of_replicas,
        data_locality=volume.data_locality,
        replicas=[replica_answer(replica, view.snapshot.longhorn_nodes) for replica in view.replicas_of(name)],
        next_replica=next_replica.replica.name if next_replica.replica else "",
        waits_for_attachment=waits_for_attachment(volume),
        candidates=_candidates(next_replica),
        reasons=sorted(str(reason) for reason in explanation.candidates.reasons),
        nodes={
            entry.node.name: _node(view, volume, entry, explanation)
            for entry in explanation.nodes
            if not nodes or entry.node.name in nodes
        },
    )


def _candidates(next_replica: NextReplica) -> list[Candidate]:
    reasons = {choice.candidate.disk_uuid: choice.reason.text for choice in next_replica.choices}
    return [
        Candidate(entry.node.name, entry.disk.name, entry.disk_uuid, chosen=reasons.get(entry.disk_uuid, ""))
        for entry in next_replica.explanation.candidates.disks
    ]


def _node(view: View, volume: Volume, entry: NodeExplanation, explanation: PlacementExplanation) -> VolumeNode:
    refusal = entry.refusal or explanation.refusal
    rules = _rules(NODE_RULES, refusal.rule if refusal else None, refusal.detail if refusal else "")
    return VolumeNode(
        tier=entry.tier.value if isinstance(entry.tier, Tier) else "",
        rules=rules,
        disks={disk.disk.name: _disk(view, volume, entry, disk) for disk in entry.disks},
    )


def _disk(view: View, volume: Volume, node: NodeExplanation, entry: DiskExplanation) -> VolumeDisk:
    failed = entry.refusal.rule if entry.refusal else None
    numbers = {rule: space_detail(rule, entry.disk, view.settings, entry.space, volume) for rule in _SPACE_RULES}
    return VolumeDisk(
        uuid=entry.disk.uuid,
        candidate=failed is None and node.refusal is None,
        free=entry.space.free,
        headroom=entry.space.headroom,
        rules=_rules(DISK_RULES, failed, entry.refusal.detail if entry.refusal else "", numbers),
    )


def _rules(
    order: Sequence[Rule], failed: Rule | None, detail: str, numbers: dict[Rule, str] | None = None
) -> list[RuleResult]:
    """Returns the rules up to the one that failed; one that is not in `order` was checked before all of them."""
    reached = order[: order.index(failed)] if failed in order else order if failed is None else []
    rules = [RuleResult(rule=rule.text, passed=True, detail=(numbers or {}).get(rule, "")) for rule in reached]
    return rules if failed is None else [*rules, RuleResult(rule=failed.text, passed=False, detail=detail)]


def print_volume(answer: VolumeExplanation, console: Console) -> None:
    """Prints the replicas, the candidates, and every node and disk with the rule that decided and its numbers."""
    console.write(f"volume {answer.volume}", "bold")
    for line in _headlines(answer):
        console.paragraph(line)
    console.print()
    console.print(console.table_of(("NODE", "DISK", "CANDIDATE", "RULE", "NUMBERS"), _rows(answer)))
    console.print()
    console.write(format_count(len(answer.candidates), "candidate disk"), "bold")
    for candidate in answer.candidates:
        reason = f": {candidate.chosen}" if candidate.chosen else ", but Longhorn would choose another"
        console.write(f"  {candidate.node} {candidate.disk}{reason}")
    if not answer.candidates:
        reported = "; ".join(answer.reasons) or "nothing: the rules above are silent in Longhorn"
        console.write(f"  Longhorn itself reports {reported}")


def _headlines(answer: VolumeExplanation) -> Iterable[str]:
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


def _rows(answer: VolumeExplanation) -> Iterator[Sequence[Cell]]:
    for name, node in answer.nodes.items():
        refusal = _failure(node.rules)
        if refusal is not None:
            yield name, "", NO, refusal.rule, refusal.detail
        elif not node.disks:
            yield name, "", NO, "node has no disks", ""
        for disk_name, disk in node.disks.items() if refusal is None else ():
            yield name, disk_name, YES if disk.candidate else NO, *_rule_and_numbers(disk, node.tier)


def _rule_and_numbers(disk: VolumeDisk, tier: str) -> tuple[str, str]:
    refusal = _failure(disk.rules)
    if refusal is not None:
        return refusal.rule, refusal.detail
    return tier, "; ".join(rule.detail for rule in disk.rules if rule.detail)


def _failure(rules: Iterable[RuleResult]) -> RuleResult | None:
    return next((rule for rule in rules if not rule.passed), None)
