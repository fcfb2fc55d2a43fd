"""Where a replica may go: FindDiskCandidates and ScheduleReplica of scheduler/replica_scheduler.go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_core.longhorn import node_stage
from scheduler_core.longhorn.anti_affinity import SoftAntiAffinity, Tier, occupied, spread_over_disks, tiers
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.disk_choice import Candidate, Choice, choices
from scheduler_core.longhorn.disk_stage import eligibility_refusal, prefilter_refusal, space_stage_refusal
from scheduler_core.longhorn.linked_clone import source_missing
from scheduler_core.longhorn.replenish_wait import DEGRADED, being_replenished, wait_refusal
from scheduler_core.longhorn.replica_request import Ask
from scheduler_core.longhorn.rules import Refusal, Rule, ScheduleError
from scheduler_core.model.longhorn import BEST_EFFORT, Disk, Node, Replica, Volume

_READ_BEFORE_WAIT: Final = (
    "replica-soft-anti-affinity",
    "replica-zone-soft-anti-affinity",
    "replica-disk-soft-anti-affinity",
)
_READ_AFTER_WAIT: Final = (
    "allow-empty-node-selector-volume",
    "replica-auto-balance",
    "replica-auto-balance-disk-pressure-percentage",
)

Reasons = frozenset[ScheduleError]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The disks a replica may go to, ordered by node and disk name, all of one tier; without any, Longhorn's reasons.

    The reasons may be empty although there is no disk: node tags and anti-affinity refuse silently.
    """

    disks: tuple[Candidate, ...] = ()
    tier: Tier | None = None
    reasons: Reasons = frozenset()


@dataclass(frozen=True, slots=True)
class Schedule:
    """What may become of a replica: every possible choice, none if it cannot be scheduled, and then the reasons."""

    choices: tuple[Choice, ...] = ()
    reasons: Reasons = frozenset()


def find_candidates(cluster: Cluster, ask: Ask, replicas: Iterable[Replica]) -> Candidates:
    """The disks of the first tier that has any (FindDiskCandidates). `replicas` are all of this volume."""
    nodes, error = node_candidates(cluster, ask)
    if error is not None:
        return Candidates(reasons=frozenset({error}))
    disks = {node.name: prefiltered(cluster, ask, node) for node in nodes.values()}
    return disk_candidates(cluster, ask, nodes, disks, tuple(replicas))


def node_candidates(cluster: Cluster, ask: Ask) -> tuple[Mapping[str, Node], ScheduleError | None]:
    """The nodes that may take the replica, tags and anti-affinity apart, or the reason why there is none.

    Mirrors ListSchedulableNodes, the linked clone filter and getNodeCandidates: the filter that leaves nothing reports.
    """
    if source_missing(cluster, ask):
        return {}, ScheduleError.CLIENT_OPERATION_FAILED
    nodes = _passing(cluster, ask, cluster.nodes, node_stage.schedulable_refusal)
    if ask.linked_clone:
        nodes = _passing(cluster, ask, nodes, node_stage.linked_clone_refusal)
        if not nodes:
            return {}, ScheduleError.LINKED_CLONE
    nodes = _passing(cluster, ask, nodes, node_stage.hard_affinity_refusal)
    if not nodes and ask.hard_node_affinity:
        return {}, ScheduleError.HARD_AFFINITY
    nodes = _passing(cluster, ask, nodes, node_stage.topology_refusal)
    if not nodes:
        return {}, ScheduleError.TOPOLOGY if ask.volume.topology_requirement else ScheduleError.NODES_UNAVAILABLE
    nodes = _passing(cluster, ask, nodes, node_stage.engine_refusal)
    return nodes, None if nodes else ScheduleError.ENGINE_IMAGE_NOT_READY


def _passing(cluster: Cluster, ask: Ask, nodes: Mapping[str, Node], rule: node_stage.NodeRule) -> Mapping[str, Node]:
    return {name: node for name, node in nodes.items() if rule(cluster, ask, node) is None}


def prefiltered(cluster: Cluster, ask: Ask, node: Node) -> tuple[Disk, ...]:
    """The disks of a node FindDiskCandidates considers at all."""
    return tuple(disk for disk in node.disks if prefilter_refusal(cluster, ask, disk) is None)


def cluster_refusal(cluster: Cluster, ask: Ask) -> Refusal | None:
    """What stops getDiskCandidates before it looks at any node, in the order Longhorn reads it."""
    image = ask.volume.backing_image
    if image and cluster.backing_image(image) is None:
        return Refusal(Rule.BACKING_IMAGE_MISSING, f"backing image {image} does not exist")
    return (
        _setting_refusal(cluster, _READ_BEFORE_WAIT)
        or (wait_refusal(cluster, ask.volume) if ask.volume.robustness == DEGRADED else None)
        or _setting_refusal(cluster, _READ_AFTER_WAIT)
    )


def _setting_refusal(cluster: Cluster, names: Iterable[str]) -> Refusal | None:
    fault = cluster.settings.fault(names)
    return None if fault is None else Refusal(Rule.SETTING_FAULT, str(fault))


def disk_candidates(  # noqa: PLR0913 # the parameters of Longhorn's getDiskCandidates
    cluster: Cluster,
    ask: Ask,
    nodes: Mapping[str, Node],
    disks: Mapping[str, Sequence[Disk]],
    replicas: tuple[Replica, ...],
    *,
    reuse: bool = False,
) -> Candidates:
    """The eligible disks of the first tier that has any (getDiskCandidates).

    With `reuse`, failed replicas use neither node, zone nor disk, and space is not checked.
    """
    stop = cluster_refusal(cluster, ask)
    if stop is not None:
        return Candidates(reasons=_reported([stop]))
    soft = SoftAntiAffinity.of(ask.volume, cluster.settings)
    reasons: Reasons = frozenset()
    for tier, members in tiers_of(cluster, ask, nodes, replicas, reuse=reuse):
        eligible: list[Candidate] = []
        for node in members:
            found, refused = eligible_disks(cluster, ask, node, disks[node.name], None if reuse else replicas)
            eligible += found
            reasons |= refused
        left = spread_over_disks(eligible, replicas, soft=soft.disk, ignore_failed=reuse)
        if left:
            return Candidates(tuple(left), tier)
    return Candidates(reasons=reasons)


def tiers_of(
    cluster: Cluster, ask: Ask, nodes: Mapping[str, Node], replicas: Iterable[Replica], *, reuse: bool = False
) -> Sequence[tuple[Tier, tuple[Node, ...]]]:
    """The tiers of node candidates, in the order they are tried."""
    replenishing = being_replenished(cluster, ask.volume)
    used = occupied(replicas, nodes, ignore_failed=reuse, replenishing=replenishing)
    return tiers(cluster, ask, nodes, used)


def eligible_disks(
    cluster: Cluster, ask: Ask, node: Node, disks: Sequence[Disk], replicas: tuple[Replica, ...] | None
) -> tuple[list[Candidate], Reasons]:
    """The disks of a node that may take the replica, and the reasons for the others (filterNodeDisksForReplica).

    Without `replicas` space is not checked.
    """
    if not disks:
        return [], frozenset({ScheduleError.DISKS_UNAVAILABLE})
    found: list[Candidate] = []
    refusals: list[Refusal] = []
    for disk in disks:
        refusal = eligibility_refusal(cluster, ask, disk)
        if refusal is None and replicas is not None:
            refusal = space_stage_refusal(cluster, ask, disk, uncounted(node, disk, replicas))
        if refusal is None:
            found.append(Candidate(node, disk))
        else:
            refusals.append(refusal)
    return found, _reported(refusals)


def _reported(refusals: Iterable[Refusal]) -> Reasons:
    return frozenset(refusal.rule.reported for refusal in refusals if refusal.rule.reported is not None)


def uncounted(node: Node, disk: Disk, replicas: Iterable[Replica]) -> int:
    """Bytes of this volume's replicas on the disk that status.scheduledReplica does not list yet, failed ones included."""
    return sum(
        replica.size
        for replica in replicas
        if replica.node_id == node.name and replica.disk_id == disk.uuid and replica.name not in disk.scheduled_replicas
    )


def schedule_replica(cluster: Cluster, volume: Volume, replica: Replica, replicas: Iterable[Replica]) -> Schedule:
    """Everything that may become of a replica object (ScheduleReplica). `replicas` are all of this volume."""
    if replica.node_id:
        return Schedule(reasons=frozenset({ScheduleError.ALREADY_SCHEDULED}))
    if replica.failed_at and not replica.healthy_at:
        return Schedule(reasons=frozenset({ScheduleError.UNUSED_FAILED_REPLICA}))
    replicas = tuple(replicas)
    ask = Ask.of(volume, replica)
    found = find_candidates(cluster, ask, replicas)
    if not found.disks:
        return Schedule(reasons=found.reasons)
    return Schedule(choices(preferred(volume, found.disks, replicas), ask.replica_size))


def preferred(volume: Volume, candidates: Sequence[Candidate], replicas: Iterable[Replica]) -> Sequence[Candidate]:
    """The candidates on the node the volume is attached to, if data locality is best-effort and none is there yet.

    Mirrors scheduleReplicaToDiskOnLocalNode: it only chooses inside the winning tier; any replica on the node that did
    not fail, even a deleting one, ends the preference; spec.nodeID counts, not status.currentNodeID.
    """
    local = volume.node_id
    if volume.data_locality != BEST_EFFORT or not local:
        return candidates
    if any(replica.node_id == local and not replica.failed_at for replica in replicas):
        return candidates
    return [candidate for candidate in candidates if candidate.node.name == local] or candidates
