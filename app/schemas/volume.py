"""Why a volume's next replica can or cannot be placed, as plain data: the stable JSON of `explain --volume`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pydantic import Field

from app.schemas.explain import Answer, ReplicaAnswer, replica_answer
from scheduler_core.cluster.view import View
from scheduler_core.errors import CoreError
from scheduler_core.longhorn.anti_affinity import Tier
from scheduler_core.longhorn.explain import (
    DiskExplanation,
    NextReplica,
    NodeExplanation,
    PlacementExplanation,
    explain_next_replica,
)
from scheduler_core.longhorn.new_volume_placement import waits_for_attachment
from scheduler_core.longhorn.refusal_rules import DISK_RULES, NODE_RULES, Rule
from scheduler_core.longhorn.space import space_detail
from scheduler_core.model.longhorn import Volume

_SPACE_RULES = (Rule.ACTUAL_SPACE, Rule.SCHEDULING_SPACE)


class RuleAnswer(Answer):
    """One rule of Longhorn, applied to a node or disk.

    The rules are in Longhorn's order. Those after the first that failed are not reached.
    """

    rule: str
    passed: bool
    detail: str = Field(description="the numbers; empty where a passed rule has none")


class VolumeDiskAnswer(Answer):
    """A disk, in bytes."""

    uuid: str
    candidate: bool
    free: int = Field(description="what may still be scheduled: size <= free")
    headroom: int = Field(description="what may still be written: actual size < headroom")
    rules: list[RuleAnswer]


class VolumeNodeAnswer(Answer):
    """A Longhorn node and its disks by name."""

    tier: str = Field(description="the anti-affinity tier it was tried in; empty if it was not")
    rules: list[RuleAnswer]
    disks: dict[str, VolumeDiskAnswer]


class CandidateAnswer(Answer):
    """A disk the replica may go to."""

    node: str
    disk: str
    uuid: str
    chosen: str = Field(description="why Longhorn may choose it; empty if it would not")


class VolumeExplainAnswer(Answer):
    """Why the next replica of a volume can or cannot be placed."""

    volume: str
    size: int
    actual_size: int = Field(serialization_alias="actualSize")
    number_of_replicas: int = Field(serialization_alias="numberOfReplicas")
    data_locality: str = Field(serialization_alias="dataLocality")
    replicas: list[ReplicaAnswer]
    next_replica: str = Field(
        serialization_alias="nextReplica", description="the unplaced replica that is asked about; empty: one more"
    )
    waits_for_attachment: bool = Field(
        serialization_alias="waitsForAttachment", description="Longhorn places local data only once it is attached"
    )
    candidates: list[CandidateAnswer]
    reasons: list[str] = Field(description="what Longhorn itself would report without a candidate; often nothing")
    nodes: dict[str, VolumeNodeAnswer]


def explain_volume(view: View, name: str, nodes: Collection[str] | None = None) -> VolumeExplainAnswer:
    """Explains where a volume's next replica may go: an unplaced one, or else one more. `nodes` limits the answer to
    these nodes, not the decision.

    Raises:
        CoreError: there is no such volume, or it has no replicas
    """
    volume = view.snapshot.volumes.get(name)
    if volume is None:
        examples = ", ".join(sorted(view.snapshot.volumes)[:5]) or "none"
        raise CoreError(f"there is no volumes.longhorn.io {name} in the snapshot; there are {examples}, ...")
    if volume.has_shards:
        raise CoreError(f"volume {name} is sharded: it has shards (kubectl get shards.longhorn.io) and no replicas")
    next_replica = explain_next_replica(view.cluster, volume)
    explanation = next_replica.explanation
    return VolumeExplainAnswer(
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


def _candidates(next_replica: NextReplica) -> list[CandidateAnswer]:
    reasons = {choice.candidate.disk_uuid: choice.reason.text for choice in next_replica.choices}
    return [
        CandidateAnswer(
            node=entry.node.name, disk=entry.disk.name, uuid=entry.disk_uuid, chosen=reasons.get(entry.disk_uuid, "")
        )
        for entry in next_replica.explanation.candidates.disks
    ]


def _node(view: View, volume: Volume, entry: NodeExplanation, explanation: PlacementExplanation) -> VolumeNodeAnswer:
    refusal = entry.refusal or explanation.refusal
    rules = _rules(NODE_RULES, refusal.rule if refusal else None, refusal.detail if refusal else "")
    return VolumeNodeAnswer(
        tier=entry.tier.value if isinstance(entry.tier, Tier) else "",
        rules=rules,
        disks={disk.disk.name: _disk(view, volume, entry, disk) for disk in entry.disks},
    )


def _disk(view: View, volume: Volume, node: NodeExplanation, entry: DiskExplanation) -> VolumeDiskAnswer:
    failed = entry.refusal.rule if entry.refusal else None
    numbers = {rule: space_detail(rule, entry.disk, view.settings, entry.space, volume) for rule in _SPACE_RULES}
    return VolumeDiskAnswer(
        uuid=entry.disk.uuid,
        candidate=failed is None and node.refusal is None,
        free=entry.space.free,
        headroom=entry.space.headroom,
        rules=_rules(DISK_RULES, failed, entry.refusal.detail if entry.refusal else "", numbers),
    )


def _rules(
    order: Sequence[Rule], failed: Rule | None, detail: str, numbers: dict[Rule, str] | None = None
) -> list[RuleAnswer]:
    """Returns the rules up to the one that failed; one that is not in `order` was checked before all of them."""
    reached = order[: order.index(failed)] if failed in order else order if failed is None else []
    rules = [RuleAnswer(rule=rule.text, passed=True, detail=(numbers or {}).get(rule, "")) for rule in reached]
    return rules if failed is None else [*rules, RuleAnswer(rule=failed.text, passed=False, detail=detail)]
