"""Explains a placement: every node and disk with the numbers, and the first rule that refuses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_core.longhorn.anti_affinity import Tier
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.disk_stage import disk_and_space_refusal
from scheduler_core.longhorn.node_stage import node_refusal
from scheduler_core.longhorn.placement import (
    Choice,
    DiskCandidates,
    cluster_refusal,
    find_candidates,
    node_candidates,
    possible_choices,
    preferred_disks,
    tiers_of,
    uncounted_bytes,
)
from scheduler_core.longhorn.refusal_rules import Refusal, Rule
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.space import DiskSpace, disk_space
from scheduler_core.model.longhorn import Disk, Node, Replica, Volume


@dataclass(frozen=True, slots=True)
class DiskExplanation:
    """A disk and its space."""

    disk: Disk
    space: DiskSpace
    refusal: Refusal | None  # the rule that refuses the disk, None if the replica may go there


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """A node and its disks."""

    node: Node
    refusal: Refusal | None  # the rule that refuses the node whatever its disks, or None
    tier: Tier | None  # the tier in which the node was tried, or None
    disks: tuple[DiskExplanation, ...]  # ordered by name


@dataclass(frozen=True, slots=True)
class PlacementExplanation:
    """Why each node and disk may or may not take a replica."""

    candidates: DiskCandidates
    refusal: Refusal | None  # what stops the decision before any node is looked at, or None
    nodes: tuple[NodeExplanation, ...]  # every node, ordered by name


@dataclass(frozen=True, slots=True)
class NextReplica:
    """The decision about a volume's next replica."""

    replica: Replica | None  # the existing replica without a node, None if the decision is about one more
    explanation: PlacementExplanation
    choices: tuple[Choice, ...]  # the candidates Longhorn may choose, and why; it would not choose the others


def explain_next_replica(cluster: Cluster, volume: Volume) -> NextReplica:
    """Explains the placement of a volume's next replica: the first that has no node and did not fail, or else one more."""
    replicas = cluster.replicas_of(volume.name)
    unplaced = next((replica for replica in replicas if not replica.node_id and not replica.failed_at), None)
    request = ReplicaRequest.for_replica(volume, unplaced) if unplaced else ReplicaRequest.for_volume(volume)
    explanation = explain(cluster, request, replicas)
    disks = explanation.candidates.disks
    choices = possible_choices(preferred_disks(volume, disks, replicas), request.replica_size) if disks else ()
    return NextReplica(unplaced, explanation, choices)


def explain(cluster: Cluster, request: ReplicaRequest, replicas: Sequence[Replica]) -> PlacementExplanation:
    """Explains the answer of `find_candidates`. `replicas` are all of this volume."""
    candidates = find_candidates(cluster, request, replicas)
    refusal = cluster_refusal(cluster, request)
    open_nodes, _ = node_candidates(cluster, request)
    tiers = {} if refusal else _tier_by_node(tiers_of(cluster, request, open_nodes, replicas), candidates.tier)
    candidate_disks = frozenset((candidate.node.name, candidate.disk.name) for candidate in candidates.disks)
    placement = _Placement(cluster, request, replicas, candidate_disks)
    nodes = [_explain_node(placement, node, tiers.get(node.name)) for node in cluster.nodes.values()]
    return PlacementExplanation(candidates, refusal, tuple(nodes))


@dataclass(frozen=True, slots=True)
class _Placement:
    """What the explanation of every node reads."""

    cluster: Cluster
    request: ReplicaRequest
    replicas: Sequence[Replica]  # all replicas of the volume
    candidate_disks: frozenset[tuple[str, str]]  # node and name of each disk that the replica may go to


def _tier_by_node(tiers: Sequence[tuple[Tier, tuple[Node, ...]]], winner: Tier | None) -> Mapping[str, Tier]:
    """The tier in which each node was tried; once a tier has won, only its nodes are listed."""
    tried = [entry for entry in tiers if winner is None or entry[0] is winner]
    return {node.name: tier for tier, nodes in reversed(tried) for node in nodes}


def _explain_node(placement: _Placement, node: Node, tier: Tier | None) -> NodeExplanation:
    cluster = placement.cluster
    request = placement.request
    replicas = placement.replicas
    refusal = (
        None if tier is not None else node_refusal(cluster, request, node) or _anti_affinity_refusal(node, replicas)
    )
    disks: list[DiskExplanation] = []
    for disk in node.disks:
        uncounted = uncounted_bytes(node, disk, replicas)
        disk_refusal = disk_and_space_refusal(cluster, request, node, disk, uncounted)
        is_candidate = (node.name, disk.name) in placement.candidate_disks
        if disk_refusal is None and refusal is None and not is_candidate:
            disk_refusal = Refusal(
                Rule.DISK_ANTI_AFFINITY, f"disk {disk.name} has a replica of volume {request.volume.name}"
            )
        disks.append(DiskExplanation(disk, disk_space(disk, cluster.settings, uncounted), disk_refusal))
    return NodeExplanation(node, refusal, tier, tuple(disks))


def _anti_affinity_refusal(node: Node, replicas: Sequence[Replica]) -> Refusal:
    """The refusal of a node that was in no tier, because it or its zone holds a replica."""
    own = sorted(replica.name for replica in replicas if replica.node_id == node.name)
    if own:
        return Refusal(Rule.NODE_ANTI_AFFINITY, f"node {node.name} has replica {', '.join(own)} of the volume")
    return Refusal(Rule.ZONE_ANTI_AFFINITY, f"zone {node.zone!r} of node {node.name} has a replica of the volume")
