"""Why a replica may or may not go where: every node and disk with the first rule that refuses it, and the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_core.longhorn.anti_affinity import Tier
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.disk_choice import Choice, choices
from scheduler_core.longhorn.disk_stage import disk_and_space_refusal
from scheduler_core.longhorn.node_stage import node_refusal
from scheduler_core.longhorn.placement import (
    Candidates,
    cluster_refusal,
    find_candidates,
    node_candidates,
    preferred,
    tiers_of,
    uncounted,
)
from scheduler_core.longhorn.replica_request import Ask
from scheduler_core.longhorn.rules import Refusal, Rule
from scheduler_core.longhorn.space import Room, room
from scheduler_core.model.longhorn import Disk, Node, Replica, Volume


@dataclass(frozen=True, slots=True)
class DiskExplanation:
    """A disk: its room in bytes, and the rule that refuses it, None if the replica may go there."""

    disk: Disk
    room: Room
    refusal: Refusal | None


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """A node: the rule that refuses it whatever its disks, or None, the tier it is in, and its disks by name."""

    node: Node
    refusal: Refusal | None
    tier: Tier | None
    disks: tuple[DiskExplanation, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The candidates, what stops the decision before any node is looked at, and every node by name."""

    candidates: Candidates
    refusal: Refusal | None
    nodes: tuple[NodeExplanation, ...]


@dataclass(frozen=True, slots=True)
class NextReplica:
    """What would become of a volume's next replica.

    Attributes:
        replica: the unplaced one that is asked about, None for one more
        choices: the candidates Longhorn may choose, and why; the others it would not
    """

    replica: Replica | None
    explanation: Explanation
    choices: tuple[Choice, ...]


def explain_next_replica(cluster: Cluster, volume: Volume) -> NextReplica:
    """The decision about the first replica of a volume that has no place, or about one more."""
    replicas = cluster.replicas_of(volume.name)
    waiting = next((replica for replica in replicas if not replica.node_id and not replica.failed_at), None)
    ask = Ask.of(volume, waiting) if waiting else Ask.fresh(volume)
    found = explain(cluster, ask, replicas)
    disks = found.candidates.disks
    possible = choices(preferred(volume, disks, replicas), ask.replica_size) if disks else ()
    return NextReplica(waiting, found, possible)


def explain(cluster: Cluster, ask: Ask, replicas: Sequence[Replica]) -> Explanation:
    """Why `find_candidates` answers what it does. `replicas` are all of this volume."""
    candidates = find_candidates(cluster, ask, replicas)
    stop = cluster_refusal(cluster, ask)
    open_nodes, _ = node_candidates(cluster, ask)
    tiers = {} if stop else _tier_by_node(tiers_of(cluster, ask, open_nodes, replicas), candidates.tier)
    chosen = {(candidate.node.name, candidate.disk.name) for candidate in candidates.disks}
    nodes = [_node(cluster, ask, node, replicas, tiers.get(node.name), chosen) for node in cluster.nodes.values()]
    return Explanation(candidates, stop, tuple(nodes))


def _tier_by_node(tiers: Sequence[tuple[Tier, tuple[Node, ...]]], winner: Tier | None) -> Mapping[str, Tier]:
    """The tier each node was tried in; once a tier has won only its nodes were."""
    tried = [entry for entry in tiers if winner is None or entry[0] is winner]
    return {node.name: tier for tier, nodes in reversed(tried) for node in nodes}


def _node(  # noqa: PLR0913, PLR0917 # everything the explanation of one node needs
    cluster: Cluster,
    ask: Ask,
    node: Node,
    replicas: Sequence[Replica],
    tier: Tier | None,
    chosen: set[tuple[str, str]],
) -> NodeExplanation:
    refusal = None if tier is not None else node_refusal(cluster, ask, node) or _anti_affinity(node, replicas)
    disks: list[DiskExplanation] = []
    for disk in node.disks:
        pending = uncounted(node, disk, replicas)
        refused = disk_and_space_refusal(cluster, ask, node, disk, pending)
        if refused is None and refusal is None and (node.name, disk.name) not in chosen:
            refused = Refusal(Rule.DISK_ANTI_AFFINITY, f"disk {disk.name} has a replica of volume {ask.volume.name}")
        disks.append(DiskExplanation(disk, room(disk, cluster.settings, pending), refused))
    return NodeExplanation(node, refusal, tier, tuple(disks))


def _anti_affinity(node: Node, replicas: Sequence[Replica]) -> Refusal:
    """A node in no tier that was tried: it holds a replica itself, or its zone does."""
    own = sorted(replica.name for replica in replicas if replica.node_id == node.name)
    if own:
        return Refusal(Rule.NODE_ANTI_AFFINITY, f"node {node.name} has replica {', '.join(own)} of the volume")
    return Refusal(Rule.ZONE_ANTI_AFFINITY, f"zone {node.zone!r} of node {node.name} has a replica of the volume")
