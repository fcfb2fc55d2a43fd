"""`explain_nodes`: the decision of `filter_nodes` with plans and numbers for people to read.

Where a node fits, the explanation shows a plan. Where it does not, it shows what is missing. The decision itself is not questioned here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.cluster.view import View
from scheduler_core.cooperative import Cooperative
from scheduler_core.evaluation.competitors import Volumes
from scheduler_core.evaluation.fit import allowed_masks, missing_bytes_alone
from scheduler_core.evaluation.node_rules import refusal_on_every_node
from scheduler_core.evaluation.refused_disks import closed_disks, nearest_disk, refusal_detail
from scheduler_core.evaluation.single_node import NodeEvaluation, evaluate_node
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import NO_CONTENDERS, Contenders, Decision, FilterOptions
from scheduler_core.extender.filter import filter_nodes
from scheduler_core.model.kube import Pod
from scheduler_core.model.quantity import format_bytes
from scheduler_core.model.verdict import Reason, Verdict
from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.packing.feasible import fits
from scheduler_core.volumes.existing_replicas import ReplicaUse, replica_uses
from scheduler_core.volumes.resolve import Resolution
from scheduler_core.volumes.skipped_claims import SkippedClaim, skipped_claims

# Plans and missing bytes take longer than the decision, and kube-scheduler does not wait for them.
EXPLAIN_STEPS_FACTOR: Final = 4
_STEPS_PER_TRY: Final = 10


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision with one verdict per candidate.

    Verdicts are in the order of the request.

    Attributes:
        skipped: the pod's claims that are no Longhorn volumes
    """

    decision: Decision
    verdicts: Sequence[Verdict]
    skipped: Sequence[SkippedClaim] = ()


@dataclass(frozen=True, slots=True)
class _Node:
    """A node of a decision, as its explanation needs it.

    Attributes:
        competitors: the volumes of other pods that were counted
    """

    view: View
    resolution: Resolution
    name: str
    reason: Reason
    competitors: Volumes
    budget: Budget


def explain_nodes(
    pod: Pod,
    candidates: Sequence[str],
    state: ClusterState,
    options: FilterOptions,
    contenders: Contenders = NO_CONTENDERS,
) -> Cooperative[Explanation]:
    """Decides as `filter_nodes` does, with a verdict per candidate.

    A verdict has a plan, or what is missing.

    Raises:
        ResolutionError: an object the pod names does not exist or contradicts it
    """
    decision = yield from filter_nodes(pod, candidates, state, options, contenders)
    verdicts = []
    details_without_room: dict[tuple[str, ...], str] = {}
    shares = Budget(EXPLAIN_STEPS_FACTOR * options.steps).shares(len(candidates))
    for name, reason, share in zip(candidates, decision.reasons, shares, strict=True):
        competitors = decision.competitors.get(name)
        volumes = competitors.volumes if competitors else ()
        resolution = decision.resolution_on(name)
        if reason is Reason.NO_ROOM_IN_CLUSTER:
            # The sentence is the same for all nodes with these volumes, and it takes a look at every disk of the cluster.
            key = tuple(volume.name for volume in resolution.unplaced)
            if key not in details_without_room:
                details_without_room[key] = yield from _no_room_in_cluster(state.view, resolution)
            verdicts.append(Verdict(reason, details_without_room[key]))
            continue
        node = _Node(state.view, resolution, name, reason, volumes, share)
        if reason is Reason.UNCERTAIN_VOLUME or reason is Reason.HOME_ELSEWHERE:
            # What these reasons mean shows only from all volumes that the pod may have.
            node = replace(node, resolution=decision.resolution)
        verdicts.append(_explain_node(node))
        yield
    return Explanation(decision, verdicts, skipped_claims(pod, state.view, decision.resolution))


def _explain_node(node: _Node) -> Verdict:
    reason = node.reason
    if reason is Reason.NO_VOLUMES:
        return Verdict(reason, order_safe=True)
    if reason is Reason.HOME:
        return Verdict(reason, _kept_replicas(node), order_safe=True)
    if reason is Reason.CLAIM_IN_USE:
        return Verdict(reason, _claims_in_use(node.resolution))
    if reason in (Reason.HOME_ELSEWHERE, Reason.STRICT_LOCAL_ELSEWHERE):
        return Verdict(reason, _replicas_elsewhere(node.resolution))
    if reason is Reason.UNCERTAIN_VOLUME:
        return Verdict(reason, _uncertain_volumes(node))
    refused = refusal_on_every_node(node.view, node.resolution)
    if refused is not None and refused.reason is reason:
        return Verdict(reason, refused.detail)
    evaluation = evaluate_node(node.view, node.resolution, node.name, node.competitors)
    if evaluation.refused is not None:
        return Verdict(reason, refusal_detail(node.view, evaluation.required, node.name) or evaluation.refused.detail)
    if reason.fits or reason is Reason.ORDER_UNSAFE:
        return _explain_fitting(node, evaluation)
    missing, detail = _missing_space(node, evaluation)
    own = [volume for volume in evaluation.required.volumes if volume.claim not in evaluation.competing_claims]
    closed = closed_disks(node.view, own, node.name)
    return Verdict(reason, f"{detail}; {closed}" if closed else detail, missing=missing)


def _explain_fitting(node: _Node, evaluation: NodeEvaluation) -> Verdict:
    """Explains a node where a packing exists.

    The verdict has the plan, and whether every placement order succeeds.
    """
    plan = evaluation.plan(node.budget)
    safety = evaluation.order_safety(node.budget)
    labels = _labels(node, evaluation)
    volumes = evaluation.required.volumes
    placed = [(volumes[volume].name, disk) for volume, disk in safety.counter_example]
    parts = [_kept_replicas(node), _failing_order(placed, labels)]
    if plan is None:
        parts.append("a packing exists, but the budget did not suffice to write it out")
    if safety.answer is PackingAnswer.UNDECIDED:
        parts.append("not proven to fit in every order")
    return Verdict(
        node.reason,
        "; ".join(part for part in parts if part),
        plan or {},
        order_safe=safety.answer is PackingAnswer.YES,
        counter_example=tuple((volume, "" if disk is None else evaluation.disks[disk].uuid) for volume, disk in placed),
    )


def _failing_order(placed: Sequence[tuple[str, int | None]], labels: Sequence[str]) -> str:
    if not placed:
        return ""
    steps = ", ".join(f"{volume} on disk {labels[disk]}" for volume, disk in placed if disk is not None)
    return f"unlucky order: {steps}, then no disk is left for {placed[-1][0]}"


def _kept_replicas(node: _Node) -> str:
    """Says which volumes keep a replica on the node.

    These volumes need no new space there.
    """
    uses = ((volume, replica_uses(volume, node.view.cluster).get(node.name)) for volume in node.resolution.local)
    return "; ".join(
        f"{volume.name} keeps its {use.value} replica" for volume, use in uses if use not in (None, ReplicaUse.NONE)
    )


def _claims_in_use(resolution: Resolution) -> str:
    return "; ".join(
        f"claim {volume.claim} is in use on {', '.join(sorted(volume.in_use_on))}"
        for volume in resolution.volumes
        if volume.in_use_on
    )


def _replicas_elsewhere(resolution: Resolution) -> str:
    placed = (
        (volume.name, sorted({replica.node_id for replica in volume.replicas if replica.node_id}))
        for volume in resolution.local
    )
    return "; ".join(f"{name} has replicas on {', '.join(nodes)}" for name, nodes in placed if nodes)


def _uncertain_volumes(node: _Node) -> str:
    """Says which PersistentVolumes a claim may be bound to on the node."""
    choices: dict[str, list[str]] = {}
    for volume in node.resolution.volumes:
        if volume.persistent_volume and (volume.nodes is None or node.name in volume.nodes):
            choices.setdefault(volume.claim, []).append(volume.persistent_volume)
    parts = [f"claim {claim} may be bound to {' or '.join(volumes)}" for claim, volumes in choices.items()]
    return "; ".join([*parts, "spec.volumeName of the claim can name one"])


def _no_room_in_cluster(view: View, resolution: Resolution) -> Cooperative[str]:
    """Names the volumes that no disk takes, each with the nearest disk and its rule."""
    parts: list[str] = []
    for volume in resolution.unplaced:
        nearest = yield from nearest_disk(view, volume)
        if nearest:
            parts.append(f"no disk can take {volume.name} ({format_bytes(volume.volume.size)}); nearest: {nearest}")
    if parts:
        return "; ".join(parts)
    volumes = (f"{volume.name} ({format_bytes(volume.volume.size)})" for volume in resolution.unplaced)
    return "no disk can take " + ", or no disk ".join(volumes)


def _missing_space(node: _Node, evaluation: NodeEvaluation) -> tuple[int, str]:
    """Returns the missing bytes on one disk, and a sentence.

    The bytes are the least that, freed on one disk, would let everything fit. 0 if the amount is unknown.
    """
    required = evaluation.required
    labels = _labels(node, evaluation)
    if node.reason is Reason.LOW_AVAILABLE:
        return 0, _too_full(evaluation, labels)
    disks = "; ".join(
        f"disk {label} has {format_bytes(disk.free)} left to schedule"
        for disk, label in zip(evaluation.disks, labels, strict=True)
    )
    if node.reason is Reason.INSUFFICIENT_STORAGE:
        missing, index = max(
            (missing_bytes_alone(required, evaluation.profile, index, mask), -index)
            for index, mask in enumerate(_allowed_masks(evaluation))
        )
        volume = required.volumes[-index]
        return missing, f"{volume.name} needs {format_bytes(volume.volume.size)}; {disks}"
    needed = f"{len(required.sizes)} volumes need {format_bytes(required.items.total)} together; {disks}"
    return _least_missing(evaluation, node.budget), needed


def _labels(node: _Node, evaluation: NodeEvaluation) -> list[str]:
    """Returns the names of the open disks, in order."""
    names = {disk.uuid: disk.name for disk in node.view.snapshot.longhorn_nodes[node.name].disks}
    return [names[disk.uuid] for disk in evaluation.disks]


def _allowed_masks(evaluation: NodeEvaluation) -> tuple[int, ...]:
    return allowed_masks(evaluation.required, evaluation.profile, evaluation.allowed)


def _too_full(evaluation: NodeEvaluation, labels: list[str]) -> str:
    required = evaluation.required
    parts = []
    for index, mask in enumerate(_allowed_masks(evaluation)):
        if not mask:
            spare = ", ".join(
                f"disk {label} {format_bytes(disk.headroom)}"
                for disk, label in zip(evaluation.disks, labels, strict=True)
            )
            data = format_bytes(required.written[index])
            parts.append(f"{required.volumes[index].name} has {data} of data; to spare: {spare}")
    return "; ".join(parts)


def _least_missing(evaluation: NodeEvaluation, budget: Budget) -> int:
    """Returns the fewest additional bytes on one disk that help.

    With them the volumes pack. 0 if no amount helps, or the budget ends first.
    """
    least = 0
    for disk in range(len(evaluation.disks)):
        missing = _least_missing_on(evaluation, disk, least or evaluation.required.items.total, budget)
        if missing is None:
            return 0
        least = missing or least
    return least


def _least_missing_on(evaluation: NodeEvaluation, disk: int, limit: int, budget: Budget) -> int | None:
    """Returns the fewest additional bytes on this disk that help.

    With them the volumes pack. The bytes are found by bisection up to `limit`. 0 if `limit` bytes do not help, None if undecided.
    """
    masks = _allowed_masks(evaluation)
    low = 0
    high = limit
    middle = limit
    while True:
        free = tuple(size + middle * (index == disk) for index, size in enumerate(evaluation.profile.free))
        if not budget.spend(_STEPS_PER_TRY):
            return None
        answer = fits(evaluation.required.items, free, masks, budget)
        if answer is PackingAnswer.UNDECIDED:
            return None
        if answer is PackingAnswer.NO and middle == limit:
            return 0
        if answer is PackingAnswer.YES:
            high = middle
        else:
            low = middle
        if high - low <= 1:
            return high
        middle = (low + high) // 2
