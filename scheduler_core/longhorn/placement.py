"""Where a replica may go: FindDiskCandidates and ScheduleReplica of scheduler/replica_scheduler.go.

Among the candidates (getDiskWithMostBalanceScore) every disk that Longhorn may pick is returned. The score of a choice is (max - min) /
mean of the usable bytes afterwards. The mean is the same for every choice, so only the range decides. Often several ranges are equal:
then Go's map order decides.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import repeat
from math import inf
from typing import NamedTuple

from scheduler_core.longhorn import anti_affinity, stages
from scheduler_core.longhorn.cluster import DEGRADED, Cluster, is_replenishing, wait_refusal
from scheduler_core.longhorn.refusal_rules import Refusal, Rule, ScheduleError, missing_backing_image, setting_refusal
from scheduler_core.longhorn.replica_request import ReplicaRequest, source_missing
from scheduler_core.longhorn.space import DiskSpace, disk_space, space_refusal
from scheduler_core.model import kube
from scheduler_core.model.longhorn import BEST_EFFORT, Disk, Node, Replica, Volume
from scheduler_core.structs import Struct, replace


@dataclass(frozen=True, slots=True)
class DiskCandidate:
    """A disk that may take the replica."""

    node: Node
    disk: Disk
    usable_bytes: int = field(init=False, compare=False)  # available bytes, neither reserved nor promised, at least 0
    disk_uuid: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        disk = self.disk
        # Used bytes count twice: they are missing from storageAvailable and part of storageScheduled.
        usable = max(0, disk.storage_available - disk.storage_reserved - disk.storage_scheduled)
        object.__setattr__(self, "usable_bytes", usable)
        object.__setattr__(self, "disk_uuid", disk.uuid)


class ChoiceReason(Enum):
    """Why a choice is possible."""

    ONLY = ("the only candidate", False)
    BEST = ("the best balance score", False)
    TIE = ("ties with others for the best balance score", True)
    NO_NODE = ("no node has the usable space: a random candidate", True)
    NO_DISK = ("no disk of the best node has the usable space: a random candidate", True)
    FIRST_FOUND = ("a shard takes the first candidate that Longhorn comes upon", True)

    def __init__(self, text: str, chance: bool) -> None:  # noqa: FBT001 # members are written as tuples
        self.text = text  # the reason for people
        self.chance = chance  # whether other choices are possible, too


class Choice(NamedTuple):
    """A candidate that Longhorn may choose, and why."""

    candidate: DiskCandidate
    reason: ChoiceReason


def possible_choices(candidates: Sequence[DiskCandidate], size: int) -> tuple[Choice, ...]:
    """Choices Longhorn may make for a replica of `size` bytes, in the candidates' order."""
    if len(candidates) == 1:
        return (Choice(candidates[0], ChoiceReason.ONLY),)
    usable_of_node: dict[str, int] = {}
    for candidate in candidates:
        name = candidate.node.name
        usable_of_node[name] = usable_of_node.get(name, 0) + candidate.usable_bytes
    of_nodes = _balance_scores(usable_of_node.values(), size)
    best_score = min(of_nodes.values(), default=None)
    if best_score is None:
        return _choices(candidates, ChoiceReason.NO_NODE)
    best_nodes = {name for name, usable in usable_of_node.items() if of_nodes.get(usable) == best_score}
    # By UUID: nodes between which a disk was moved may both have it.
    usable = {candidate.disk_uuid: candidate.usable_bytes for candidate in candidates}
    of_disks = _balance_scores(usable.values(), size)
    on_best_nodes = [candidate for candidate in candidates if candidate.node.name in best_nodes]
    best_on_node: dict[str, float] = {}
    for candidate in on_best_nodes:
        name = candidate.node.name
        score = of_disks.get(usable[candidate.disk_uuid])
        if score is not None and score < best_on_node.get(name, inf):
            best_on_node[name] = score
    chosen = [
        candidate
        for candidate in on_best_nodes
        if of_disks.get(usable[candidate.disk_uuid], inf) == best_on_node.get(candidate.node.name)
    ]
    uuids = {candidate.disk_uuid for candidate in chosen}
    if len(best_on_node) == len(best_nodes):
        why = ChoiceReason.TIE if len(uuids) > 1 else ChoiceReason.BEST
        return _choices([candidate for candidate in candidates if candidate.disk_uuid in uuids], why)
    return tuple(
        Choice(candidate, ChoiceReason.TIE if candidate.disk_uuid in uuids else ChoiceReason.NO_DISK)
        for candidate in candidates
    )


def _choices(candidates: Sequence[DiskCandidate], reason: ChoiceReason) -> tuple[Choice, ...]:
    return tuple(map(Choice, candidates, repeat(reason)))


def _balance_scores(usable: Collection[int], size: int) -> dict[int, float]:
    """Balance scores of nodes or disks that a replica of `size` bytes goes to, by their usable bytes; only of those with
    the space, and of none if every one would be full afterwards.
    """
    values = sorted(usable)
    mean = float(sum(values) - size) / len(values)
    if mean <= 0:
        return {}
    if len(values) == 1:
        return dict.fromkeys(values, 0.0)
    least = values[0]
    most = values[-1]
    scores: dict[int, float] = {}
    for before in set(values):
        after = before - size
        if after >= 0:
            scores[before] = (most - (after if after < least else least)) / mean
    # Two extremes are enough: whichever node or disk is taken from, one of the two is unchanged.
    for before, bottom, top in ((least, values[1], most), (most, least, values[-2])):
        if before in scores:
            scores[before] = (max(before - size, top) - min(before - size, bottom)) / mean
    return scores


_READ_BEFORE_WAIT = ("replica-soft-anti-affinity", "replica-zone-soft-anti-affinity", "replica-disk-soft-anti-affinity")
_READ_AFTER_WAIT = (
    "allow-empty-node-selector-volume",
    "replica-auto-balance",
    "replica-auto-balance-disk-pressure-percentage",
)


# Keys are engine, selectors and image: a handful in a cluster.
_MAX_KNOWN = 64
Reasons = frozenset[ScheduleError]
DiskSplit = tuple[Sequence[DiskCandidate], Reasons]
"""The disks of a node that may take the replica, and Longhorn's reasons against the others."""


class DiskCandidates(Struct, frozen=True):
    """Disks that may take a replica, or why none may."""

    disks: tuple[DiskCandidate, ...] = ()  # ordered by node and disk name, all of one tier
    tier: anti_affinity.Tier | None = None
    # Longhorn's reasons if there is no disk; may be empty even then, because node tags and anti-affinity refuse
    # silently.
    reasons: Reasons = frozenset()


class PlacementResult(Struct, frozen=True):
    """Possible choices for a replica, or why there are none."""

    choices: tuple[Choice, ...] = ()  # every choice Longhorn may make, none if the replica cannot be scheduled
    reasons: Reasons = frozenset()  # Longhorn's reasons if there is no choice


def find_candidates(cluster: Cluster, request: ReplicaRequest, replicas: Iterable[Replica]) -> DiskCandidates:
    """The disks of the first tier that has any (FindDiskCandidates). `replicas` are all of this volume."""
    replicas = tuple(replicas)
    known = _known_nodes(cluster, request)
    nodes: Mapping[str, Node] = {name: entry.node for name, entry in known.items() if entry.candidate}
    if not nodes:
        nodes, error = node_candidates(cluster, request)
        if error is not None:
            return DiskCandidates(reasons=frozenset({error}))
    occupied = {replica.node_id for replica in replicas}

    def split(node: Node) -> DiskSplit:
        if node.name in occupied or node.name not in known:
            return split_disks(cluster, request, node, replicas)
        return known[node.name].split(request.volume)

    return disk_candidates(cluster, request, nodes, split, replicas)


class _KnownNode(Struct, frozen=True):
    node: Node
    kube_node: kube.Node | None
    candidate: bool = False  # whether the node passes `node_candidates`
    disks: tuple[DiskCandidate, ...] = ()  # the disks that are eligible but for their space
    spaces: tuple[DiskSpace, ...] = ()  # theirs, in the same order
    reasons: Reasons = frozenset()  # against the other disks
    free: int = -1  # every disk takes a volume of at most so many bytes
    headroom: int = -1  # of which fewer than these are written

    def split(self, volume: Volume) -> DiskSplit:
        """As `eligible_disks`, for a volume without a replica on the node."""
        if volume.size <= self.free and volume.actual_size < self.headroom:
            return self.disks, self.reasons
        rules = [space_refusal(volume.size, volume.actual_size, space) for space in self.spaces]
        eligible = [candidate for candidate, rule in zip(self.disks, rules, strict=True) if rule is None]
        return eligible, self.reasons | _reported_reasons(rule for rule in rules if rule is not None)


def _known_nodes(cluster: Cluster, request: ReplicaRequest) -> Mapping[str, _KnownNode]:
    """What is known of every node, renewed for those that have changed; empty where more decides than node and disks."""
    volume = request.volume
    if (
        request.linked_clone
        or volume.backing_image
        or volume.size >= stages.EXT_LIMIT
        or stages.space_setting_refusal(cluster)
    ):
        return {}
    # What is known holds as long as the first three of these are the cluster's, and for all nodes while the others are, too.
    objects = (
        *(cluster.settings, cluster.instance_managers, cluster.engine_images),
        *(cluster.nodes, cluster.kube_nodes),
    )
    key = (
        *(request.data_engine, request.image, request.hard_node_affinity),
        *(volume.data_engine, volume.node_selector, volume.disk_selector, volume.topology_requirement),
    )
    known_objects, before = cluster.known_nodes.get(key, ((), {}))
    same = [each is other for each, other in zip(known_objects, objects, strict=False)]
    # Status lags: several placements read the same nodes.
    if before and all(same):
        return before
    if not all(same[:3]):
        before = {}
    by_name: dict[str, _KnownNode] = {}
    for name, node in cluster.nodes.items():
        kube_node = cluster.kube_nodes.get(name)
        entry = before.get(name)
        if entry is None or entry.node is not node or entry.kube_node is not kube_node:
            entry = _examine_node(cluster, request, node, kube_node)
        by_name[name] = entry
    if key not in cluster.known_nodes and len(cluster.known_nodes) >= _MAX_KNOWN:
        cluster.known_nodes.clear()
    cluster.known_nodes[key] = (objects, by_name)
    return by_name


def _examine_node(cluster: Cluster, request: ReplicaRequest, node: Node, kube_node: kube.Node | None) -> _KnownNode:
    refused = stages.schedulable_refusal(cluster, request, node) or stages.candidate_refusal(cluster, request, node)
    if refused is not None:
        return _KnownNode(node, kube_node)
    eligible, reasons = split_disks(cluster, request, node, None)
    spaces = tuple(disk_space(candidate.disk, cluster.settings) for candidate in eligible)
    known = _KnownNode(node, kube_node, candidate=True, disks=tuple(eligible), spaces=spaces, reasons=reasons)
    if not spaces or any(space.closed_by is not None for space in spaces):
        return known
    return replace(known, free=min(space.free for space in spaces), headroom=min(space.headroom for space in spaces))


def node_candidates(cluster: Cluster, request: ReplicaRequest) -> tuple[Mapping[str, Node], ScheduleError | None]:
    """The nodes that may take the replica, or an error; tags and anti-affinity are not checked here."""
    # Mirrors ListSchedulableNodes, the linked clone filter and getNodeCandidates. The error is that of the filter that
    # leaves nothing.
    if source_missing(cluster, request):
        return {}, ScheduleError.CLIENT_OPERATION_FAILED
    nodes = _passing(cluster, request, cluster.nodes, stages.schedulable_refusal)
    if request.linked_clone:
        nodes = _passing(cluster, request, nodes, stages.linked_clone_refusal)
        if not nodes:
            return {}, ScheduleError.LINKED_CLONE
    nodes = _passing(cluster, request, nodes, stages.hard_affinity_refusal)
    if not nodes and request.hard_node_affinity:
        return {}, ScheduleError.HARD_AFFINITY
    nodes = _passing(cluster, request, nodes, stages.topology_refusal)
    if not nodes:
        return {}, ScheduleError.TOPOLOGY if request.volume.topology_requirement else ScheduleError.NODES_UNAVAILABLE
    nodes = _passing(cluster, request, nodes, stages.engine_refusal)
    return nodes, None if nodes else ScheduleError.ENGINE_IMAGE_NOT_READY


def _passing(
    cluster: Cluster, request: ReplicaRequest, nodes: Mapping[str, Node], rule: stages.NodeRule
) -> Mapping[str, Node]:
    return {name: node for name, node in nodes.items() if rule(cluster, request, node) is None}


def split_disks(
    cluster: Cluster, request: ReplicaRequest, node: Node, replicas: tuple[Replica, ...] | None
) -> DiskSplit:
    """`eligible_disks` among the disks of a node that FindDiskCandidates considers at all."""
    disks = tuple(disk for disk in node.disks if stages.prefilter_refusal(cluster, request, disk) is None)
    return eligible_disks(cluster, request, node, disks, replicas)


def cluster_refusal(cluster: Cluster, request: ReplicaRequest) -> Refusal | None:
    """What stops getDiskCandidates before it looks at any node. The checks are in Longhorn's order."""
    image = request.volume.backing_image
    if image and cluster.backing_image(image) is None:
        return missing_backing_image(image)
    return (
        setting_refusal(cluster.settings, _READ_BEFORE_WAIT)
        or (wait_refusal(cluster, request.volume) if request.volume.robustness == DEGRADED else None)
        or setting_refusal(cluster.settings, _READ_AFTER_WAIT)
    )


def disk_candidates(  # noqa: PLR0913 # the parameters of Longhorn's getDiskCandidates
    cluster: Cluster,
    request: ReplicaRequest,
    nodes: Mapping[str, Node],
    split: Callable[[Node], DiskSplit],
    replicas: tuple[Replica, ...],
    *,
    reuse: bool = False,
) -> DiskCandidates:
    """The eligible disks of the first tier that has any (getDiskCandidates). `split` splits a node's disks as
    `eligible_disks` does. With `reuse`, failed replicas use neither node, zone nor disk.
    """
    refusal = cluster_refusal(cluster, request)
    if refusal is not None:
        return DiskCandidates(reasons=_reported_reasons([refusal.rule]))
    soft = anti_affinity.SoftAntiAffinity.of(request.volume, cluster.settings)
    used = anti_affinity.used_disks(replicas, ignore_failed=reuse)
    reasons: Reasons = frozenset()
    for tier, members in tiers_of(cluster, request, nodes, replicas, reuse=reuse):
        eligible: list[DiskCandidate] = []
        for node in members:
            candidates, refused = split(node)
            eligible += candidates
            if refused:
                reasons |= refused
        empty = [candidate for candidate in eligible if candidate.disk_uuid not in used]
        # Where every disk has a replica, disk anti-affinity that is soft allows all of them.
        if empty or (soft.disk and eligible):
            return DiskCandidates(tuple(empty or eligible), tier)
    return DiskCandidates(reasons=reasons)


def tiers_of(
    cluster: Cluster,
    request: ReplicaRequest,
    nodes: Mapping[str, Node],
    replicas: Iterable[Replica],
    *,
    reuse: bool = False,
) -> Iterator[tuple[anti_affinity.Tier, Sequence[Node]]]:
    """The tiers of node candidates, in the order they are tried."""
    replenishing = is_replenishing(cluster, request.volume)
    used = anti_affinity.occupancy(replicas, nodes, ignore_failed=reuse, replenishing=replenishing)
    return anti_affinity.tiers(cluster, request, nodes, used)


def eligible_disks(
    cluster: Cluster, request: ReplicaRequest, node: Node, disks: Sequence[Disk], replicas: tuple[Replica, ...] | None
) -> DiskSplit:
    """Splits a node's disks into candidates and the reasons against the other disks (filterNodeDisksForReplica). If
    `replicas` is None, space is not checked.
    """
    if not disks:
        return [], frozenset({ScheduleError.DISKS_UNAVAILABLE})
    eligible: list[DiskCandidate] = []
    rules: list[Rule] = []
    for disk in disks:
        refusal = stages.eligibility_refusal(cluster, request, disk)
        rule = refusal.rule if refusal is not None else None
        if rule is None and replicas is not None:
            rule = stages.space_stage_rule(cluster, request, disk, uncounted_bytes(node, disk, replicas))
        if rule is None:
            eligible.append(DiskCandidate(node, disk))
        else:
            rules.append(rule)
    return eligible, _reported_reasons(rules)


def _reported_reasons(rules: Iterable[Rule]) -> Reasons:
    return frozenset(rule.reported for rule in rules if rule.reported is not None)


def uncounted_bytes(node: Node, disk: Disk, replicas: Iterable[Replica]) -> int:
    """Bytes of these replicas on the disk, failed ones included, that status.scheduledReplica does not list yet."""
    return sum(
        replica.size
        for replica in replicas
        if replica.node_id == node.name and replica.disk_id == disk.uuid and replica.name not in disk.scheduled_replicas
    )


def schedule_replica(
    cluster: Cluster, volume: Volume, replica: Replica, replicas: Iterable[Replica]
) -> PlacementResult:
    """Every possible outcome for a replica object (ScheduleReplica). `replicas` are all of this volume."""
    if replica.node_id:
        return PlacementResult(reasons=frozenset({ScheduleError.ALREADY_SCHEDULED}))
    if replica.failed_at and not replica.healthy_at:
        return PlacementResult(reasons=frozenset({ScheduleError.UNUSED_FAILED_REPLICA}))
    replicas = tuple(replicas)
    request = ReplicaRequest.for_replica(volume, replica)
    placed = any(replica.node_id or replica.disk_id for replica in replicas)
    if volume.data_locality == BEST_EFFORT and volume.node_id in cluster.nodes and not placed:
        # Without placed replicas every node is in the first tier. So if a disk of the local node is eligible, no other node matters.
        local = replace(cluster, nodes={volume.node_id: cluster.nodes[volume.node_id]})
        candidates = find_candidates(local, request, replicas)
        if candidates.disks:
            return PlacementResult(possible_choices(candidates.disks, request.replica_size))
    candidates = find_candidates(cluster, request, replicas)
    if not candidates.disks:
        return PlacementResult(reasons=candidates.reasons)
    if volume.data_layout is not None:
        return PlacementResult(tuple(Choice(candidate, ChoiceReason.FIRST_FOUND) for candidate in candidates.disks))
    preferred = preferred_disks(volume, candidates.disks, replicas)
    return PlacementResult(possible_choices(preferred, request.replica_size))


def preferred_disks(
    volume: Volume, candidates: Sequence[DiskCandidate], replicas: Iterable[Replica]
) -> Sequence[DiskCandidate]:
    """The candidates that data locality best-effort prefers, or all of them. Longhorn prefers disks of the node the
    volume is attached to, if no replica is there yet. Mirrors scheduleReplicaToDiskOnLocalNode: it only chooses inside
    the winning tier; any replica on the node that did not fail, even a deleting one, ends the preference; spec.nodeID
    counts, not status.currentNodeID.
    """
    local = volume.node_id
    if volume.data_locality != BEST_EFFORT or not local:
        return candidates
    if any(replica.node_id == local and not replica.failed_at for replica in replicas):
        return candidates
    return [candidate for candidate in candidates if candidate.node.name == local] or candidates
