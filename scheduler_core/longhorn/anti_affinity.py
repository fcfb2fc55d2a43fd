"""Anti-affinity: the nodes and zones that a volume's replicas use, and the tiers in which the nodes are tried."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum

from scheduler_core.longhorn import space, stages
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.replica_request import ReplicaRequest, balances_best_effort, effective_soft_anti_affinity
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.longhorn import Node, Replica, Volume
from scheduler_core.structs import Struct


class SoftAntiAffinity(Struct, frozen=True):
    """Whether replicas of a volume may share nodes, zones and disks."""

    node: bool
    zone: bool
    disk: bool

    @classmethod
    def of(cls, volume: Volume, settings: Settings) -> "SoftAntiAffinity":
        """What counts for a volume: its fields over the settings."""
        names = ("replica_soft_anti_affinity", "replica_zone_soft_anti_affinity", "replica_disk_soft_anti_affinity")
        return cls(*(effective_soft_anti_affinity(getattr(volume, name), getattr(settings, name)) for name in names))


class Occupancy(Struct, frozen=True):
    """Nodes and zones that replicas of a volume use, by name."""

    nodes: frozenset[str]
    zones: frozenset[str]
    evicting_nodes: frozenset[str]  # the nodes that only evicting replicas use
    evicting_zones: frozenset[str]  # the zones that only evicting replicas use


def occupancy(
    replicas: Iterable[Replica], candidates: Mapping[str, Node], *, ignore_failed: bool, replenishing: bool
) -> Occupancy:
    """The places that replicas on node candidates use (getCurrentNodesAndZones): a cordoned node frees its zone."""
    counting = [
        replica
        for replica in replicas
        if replica.node_id in candidates
        and not replica.deleting
        and (not replica.failed_at or (not (ignore_failed or replenishing) and replica.potentially_reusable))
    ]
    staying = [replica for replica in counting if not replica.eviction_requested]
    nodes, zones = _places(counting, candidates)
    staying_nodes, staying_zones = _places(staying, candidates)
    return Occupancy(nodes, zones, nodes - staying_nodes, zones - staying_zones)


def _places(replicas: Iterable[Replica], nodes: Mapping[str, Node]) -> tuple[frozenset[str], frozenset[str]]:
    names = frozenset(replica.node_id for replica in replicas)
    return names, frozenset(nodes[name].zone for name in names)


class Tier(Enum):
    """A set of nodes that are tried together. A later tier is tried only if no disk of the earlier ones fits."""

    UNUSED_ZONE = "unused node in an unused zone"
    EVICTING_ZONE = "node whose zone only holds evicting replicas"
    UNUSED_NODE = "unused node in a used zone"
    EVICTING_NODE = "node that only holds evicting replicas"
    USED_NODE = "used node"


TIER_ORDER: Mapping[tuple[bool, bool], tuple[Tier, ...]] = {
    (False, False): (Tier.UNUSED_ZONE, Tier.EVICTING_ZONE),
    (False, True): (Tier.UNUSED_ZONE, Tier.EVICTING_ZONE),
    (True, False): (Tier.UNUSED_ZONE, Tier.UNUSED_NODE, Tier.EVICTING_NODE),
    (True, True): (Tier.UNUSED_ZONE, Tier.UNUSED_NODE, Tier.USED_NODE),
}
"""By (zone soft, node soft). Replicas that must not share a zone cannot share a node, so node soft is then ignored."""


def tiers(
    cluster: Cluster, request: ReplicaRequest, candidates: Mapping[str, Node], used: Occupancy
) -> Iterator[tuple[Tier, Sequence[Node]]]:
    """Tiers with their nodes, in the order of getDiskCandidates. The nodes of a tier are ordered by name. Every tier
    but the last, USED_NODE, only holds nodes whose tags fit.
    """
    soft = SoftAntiAffinity.of(request.volume, cluster.settings)
    # Most volumes go to nodes with any tags.
    selective = request.volume.node_selector or request.volume.backing_image
    any_tags = not selective and cluster.settings.allow_empty_node_selector_volume
    nodes = candidates.values()
    tagged = [node for node in nodes if any_tags or stages.node_tag_refusal(cluster, request, node) is None]
    best_effort = balances_best_effort(request.volume, cluster.settings)
    members: Mapping[Tier, Callable[[], Sequence[Node]]] = {
        Tier.UNUSED_ZONE: lambda: [node for node in tagged if node.zone not in used.zones],
        Tier.EVICTING_ZONE: lambda: [
            node
            for node in tagged
            if node.name in used.evicting_nodes and (best_effort or node.zone in used.evicting_zones)
        ],
        Tier.UNUSED_NODE: lambda: [
            node
            for node in tagged
            if node.name not in used.nodes or (best_effort and has_disk_pressure(node, cluster.settings))
        ],
        Tier.EVICTING_NODE: lambda: [node for node in tagged if node.name in used.evicting_nodes],
        Tier.USED_NODE: lambda: [node for node in candidates.values() if node.name in used.nodes],
    }
    # ScheduleShard looks for an unused node, whatever its zone.
    order = TIER_ORDER[soft.zone, soft.node] if request.volume.data_layout is None else (Tier.UNUSED_NODE,)
    # Most placements end with the first tier.
    return ((tier, members[tier]()) for tier in order)


def has_disk_pressure(node: Node, settings: Settings) -> bool:
    # Best-effort auto-balance may then use the node again, for another disk.
    percentage = settings.replica_auto_balance_disk_pressure_percentage
    return percentage > 0 and any(space.under_pressure(disk, percentage) for disk in node.disks if disk.in_status)


def used_disks(replicas: Iterable[Replica], *, ignore_failed: bool) -> set[str]:
    """UUIDs of the disks with a replica of the volume (filterDisksWithMatchingReplicas). Deleting and evicting replicas
    count here, and failed ones while they may be reused, also during replenishment.
    """
    return {
        replica.disk_id
        for replica in replicas
        if not replica.failed_at or (not ignore_failed and replica.potentially_reusable)
    }
