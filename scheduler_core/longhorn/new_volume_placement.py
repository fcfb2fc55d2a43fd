"""A new volume: every possible placement of all its replicas in the volume controller's first sync, and every node and
disk with the numbers and the first rule that refuses it.
"""

from collections.abc import Sequence

from scheduler_core.longhorn import anti_affinity, placement, stages
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.refusal_rules import Refusal, Rule
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.space import DiskSpace, disk_space
from scheduler_core.model.longhorn import BEST_EFFORT, STRICT_LOCAL, Disk, Node, Replica, Volume
from scheduler_core.structs import Struct, replace

Place = tuple[str, str]

SCHEDULING_FAILURE = "ReplicaSchedulingFailure"
LOCAL_SCHEDULING_FAILURE = "LocalReplicaSchedulingFailure"
PRECHECK_FAILED = "precheck new replica failed: "
DEGRADED_ALLOWED = "Reset schedulable due to allow volume creation with degraded availability"


class ScheduledCondition(Struct, frozen=True):
    """The volume's Scheduled condition, True without a reason."""

    reason: str = ""
    message: str = ""

    @property
    def status(self) -> bool:
        return not self.reason


class VolumeOutcome(Struct, frozen=True):
    """A possible outcome of creating a volume."""

    placements: tuple[Place, ...]  # (node, disk) names, sorted
    replicas: int  # how many replica objects there are
    unscheduled: int  # how many of them have no place
    scheduled: ScheduledCondition


class _Progress(Struct, frozen=True):
    placed: tuple[Replica, ...] = ()
    places: tuple[Place, ...] = ()
    chance: bool = False  # whether a choice so far depended on chance
    reasons: placement.Reasons | None = None  # why the remaining replicas could not be placed, None if none has failed


def create_volume(cluster: Cluster, volume: Volume) -> dict[VolumeOutcome, bool]:
    """Every possible outcome of creating a volume, and whether it depends on chance. Mirrors
    controller/volume_controller.go: replenishReplicas (which prechecks each replica while none has a place yet, so that
    anti-affinity has no effect) and reconcileVolumeCondition (which then places them one after the other).
    """
    precheck = placement.find_candidates(cluster, ReplicaRequest.for_volume(volume), ())
    if not precheck.disks:
        message = PRECHECK_FAILED + (join_reasons(precheck.reasons) or "disks are unavailable")
        return {VolumeOutcome((), 0, 0, ScheduledCondition(SCHEDULING_FAILURE, message)): False}
    total = volume.number_of_replicas
    if waits_for_attachment(volume):
        return {VolumeOutcome((), total, total, ScheduledCondition()): False}
    ends: list[_Progress] = []  # every end that some sequence of choices reaches
    level: dict[tuple[Place, ...], _Progress] = {(): _Progress()}
    pending = Replica(
        name="",
        volume=volume.name,
        size=volume.size,
        data_engine=volume.data_engine,
        image=volume.image,
        hard_node_affinity=volume.node_id if volume.data_locality == STRICT_LOCAL else "",
    )
    for _ in range(volume.number_of_replicas):
        next_level: dict[tuple[Place, ...], _Progress] = {}
        for state in level.values():
            schedule = placement.schedule_replica(cluster, volume, pending, state.placed)
            if not schedule.choices:
                # Nothing changes for the remaining replicas, so they fail alike.
                ends.append(replace(state, reasons=schedule.reasons))
            for choice in schedule.choices:
                reached = _place_replica(volume, state, choice)
                same = next_level.get(reached.places)
                # The replicas are alike, so only the choices matter, not their order.
                next_level[reached.places] = replace(
                    reached, chance=reached.chance or (same is not None and same.chance)
                )
        level = next_level
    outcomes: dict[VolumeOutcome, bool] = {}
    for end in (*ends, *level.values()):
        outcome = VolumeOutcome(end.places, total, total - len(end.places), _condition(cluster, volume, end))
        outcomes[outcome] = outcomes.get(outcome, False) or end.chance
    return outcomes


def waits_for_attachment(volume: Volume) -> bool:
    """Whether replicas stay unscheduled until the volume is attached, because it needs local data and has no node yet."""
    return volume.data_locality in (BEST_EFFORT, STRICT_LOCAL) and not volume.node_id


def _place_replica(volume: Volume, state: _Progress, choice: placement.Choice) -> _Progress:
    node = choice.candidate.node
    disk = choice.candidate.disk
    replica = Replica(
        name=f"{volume.name}-{len(state.placed)}",
        volume=volume.name,
        size=volume.size,
        node_id=node.name,
        disk_id=disk.uuid,
        data_engine=volume.data_engine,
    )
    places = tuple(sorted((*state.places, (node.name, disk.name))))
    return _Progress((*state.placed, replica), places, state.chance or choice.reason.chance)


def _condition(cluster: Cluster, volume: Volume, end: _Progress) -> ScheduledCondition:
    """The Scheduled condition at the end of reconcileVolumeCondition."""
    if end.reasons is None:
        return ScheduledCondition()
    degraded_allowed = cluster.settings.allow_volume_creation_with_degraded_availability
    if degraded_allowed and end.places and not volume.current_node_id:
        return ScheduledCondition(message=DEGRADED_ALLOWED)
    reason = LOCAL_SCHEDULING_FAILURE if volume.data_locality == STRICT_LOCAL else SCHEDULING_FAILURE
    return ScheduledCondition(reason, join_reasons(end.reasons) or "replica scheduling failed")


def join_reasons(reasons: placement.Reasons) -> str:
    """Reasons as Longhorn joins them: sorted, with semicolons."""
    return "; ".join(sorted(reasons))


class DiskExplanation(Struct, frozen=True):
    """A disk and its space."""

    disk: Disk
    space: DiskSpace
    refusal: Refusal | None  # the rule that refuses the disk, None if the replica may go there


class NodeExplanation(Struct, frozen=True):
    """A node and its disks."""

    node: Node
    refusal: Refusal | None  # the rule that refuses the node whatever its disks, or None
    tier: anti_affinity.Tier | None  # the tier in which the node was tried, or None
    disks: tuple[DiskExplanation, ...]  # ordered by name


class PlacementExplanation(Struct, frozen=True):
    """Why each node and disk may or may not take a replica."""

    candidates: placement.DiskCandidates
    refusal: Refusal | None  # what stops the decision before any node is looked at, or None
    nodes: tuple[NodeExplanation, ...]  # every node, ordered by name


class NextReplica(Struct, frozen=True):
    """The decision about a volume's next replica."""

    replica: Replica | None  # the existing replica without a node, None if the decision is about one more
    explanation: PlacementExplanation
    choices: tuple[placement.Choice, ...]  # the candidates Longhorn may choose, and why; it would not choose the others


def explain_next_replica(cluster: Cluster, volume: Volume) -> NextReplica:
    """Explains the placement of a volume's next replica: the first that has no node and did not fail, or else one more."""
    replicas = cluster.replicas_of(volume.name)
    unplaced = next((replica for replica in replicas if not replica.node_id and not replica.failed_at), None)
    request = ReplicaRequest.for_replica(volume, unplaced) if unplaced else ReplicaRequest.for_volume(volume)
    explanation = explain(cluster, request, replicas)
    disks = explanation.candidates.disks
    choices = (
        placement.possible_choices(placement.preferred_disks(volume, disks, replicas), request.replica_size)
        if disks
        else ()
    )
    return NextReplica(unplaced, explanation, choices)


def explain(cluster: Cluster, request: ReplicaRequest, replicas: Sequence[Replica]) -> PlacementExplanation:
    """Explains the answer of `find_candidates`. `replicas` are all of this volume."""
    candidates = placement.find_candidates(cluster, request, replicas)
    refusal = placement.cluster_refusal(cluster, request)
    open_nodes, _ = placement.node_candidates(cluster, request)
    # The tier in which each node was tried; once a tier has won, only its nodes are listed.
    tried = [
        entry
        for entry in placement.tiers_of(cluster, request, open_nodes, replicas)
        if candidates.tier is None or entry[0] is candidates.tier
    ]
    tiers = {} if refusal else {node.name: tier for tier, nodes in reversed(tried) for node in nodes}
    candidate_disks = frozenset((candidate.node.name, candidate.disk.name) for candidate in candidates.disks)

    def explain_node(node: Node) -> NodeExplanation:
        tier = tiers.get(node.name)
        refusal = None
        if tier is None:
            refusal = stages.node_refusal(cluster, request, node) or _anti_affinity_refusal(node, replicas)
        disks: list[DiskExplanation] = []
        for disk in node.disks:
            uncounted = placement.uncounted_bytes(node, disk, replicas)
            disk_refusal = stages.disk_and_space_refusal(cluster, request, disk, uncounted)
            if disk_refusal is None and refusal is None and (node.name, disk.name) not in candidate_disks:
                text = f"disk {disk.name} has a replica of volume {request.volume.name}"
                disk_refusal = Refusal(Rule.DISK_ANTI_AFFINITY, text)
            disks.append(DiskExplanation(disk, disk_space(disk, cluster.settings, uncounted), disk_refusal))
        return NodeExplanation(node, refusal, tier, tuple(disks))

    return PlacementExplanation(candidates, refusal, tuple(map(explain_node, cluster.nodes.values())))


def _anti_affinity_refusal(node: Node, replicas: Sequence[Replica]) -> Refusal:
    """The refusal of a node that was in no tier, because it or its zone holds a replica."""
    own = sorted(replica.name for replica in replicas if replica.node_id == node.name)
    if own:
        return Refusal(Rule.NODE_ANTI_AFFINITY, f"node {node.name} has replica {', '.join(own)} of the volume")
    return Refusal(Rule.ZONE_ANTI_AFFINITY, f"zone {node.zone!r} of node {node.name} has a replica of the volume")
