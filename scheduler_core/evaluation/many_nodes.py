"""Results per node for equivalent pods: only nodes that changed since the last lookup are evaluated again.

Data flow: the pod's requirements → the results that equal requirements had → without the nodes whose profile, demand or offers changed
since (`caches.py`) → the missing nodes are evaluated now → the next results. So a request costs one look-up per node, and
work for what changed. Where the pod's own offer or its volumes' demand counts, a node is evaluated for this pod alone and not cached.

A node is evaluated first for the pod alone (`state.py`), then jointly with its competitors, which `contention.py` finds. Most nodes have
so much space that counting bytes proves every placement order safe and tells whether outdated status matters; nothing else needs to be
computed for them.

The pod's own volumes without data locality may be in the way of its local ones. Longhorn may place their replicas on the pod's node or
elsewhere, and usually does so first: a volume without data locality is placed when it is created, a local one only once it is attached
(volume_controller.go: reconcileVolumeCondition). So they block, and are never blocked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from scheduler_core.caches import ChangeLog, NodeResults
from scheduler_core.cluster.view import View
from scheduler_core.evaluation.competitors import Competitors, Volumes, volumes_key
from scheduler_core.evaluation.competitors_anywhere import VolumesAnywhere, roaming_key
from scheduler_core.evaluation.contention import Contention, ContentionQuery
from scheduler_core.evaluation.fit import new_volumes, stale_safe
from scheduler_core.evaluation.profile import Profile
from scheduler_core.evaluation.replicas import ReplicaNeed, domain_of, nodes_in_tiers, used_disks
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.longhorn.anti_affinity import SoftAntiAffinity
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.replica_request import balances_best_effort
from scheduler_core.longhorn.stages import stays
from scheduler_core.model import longhorn
from scheduler_core.model.verdict import UNSAFE, Reason
from scheduler_core.packing.budget import Budget
from scheduler_core.packing.items import Items
from scheduler_core.packing.order_safe import counting_proves_safe
from scheduler_core.packing.spread import SHARED
from scheduler_core.volumes.demand import replica_count
from scheduler_core.volumes.requirements import OptionalVolume, Requirements, requirements
from scheduler_core.volumes.resolve import PodVolume, Resolution

Optional = tuple[OptionalVolume, ...]


class OptionalVolumes(Struct, frozen=True):
    """A pod's volumes without data locality that have unplaced replicas."""

    default: Optional = ()  # what a node can get of them
    # The same for nodes that differ, because of placed replicas or disks under pressure.
    by_node: Mapping[str, Optional] = {}

    def on(self, name: str) -> Optional:
        return self.by_node.get(name, self.default)

    def split(self, names: Sequence[str]) -> list[tuple[Optional, Sequence[str]]]:
        """Returns the nodes by what they can get, in order."""
        if not self.by_node:
            return [(self.default, names)]
        # By identity: nodes share the tuples.
        parts: dict[int, tuple[Optional, list[str]]] = {}
        for name in names:
            on_node = self.on(name)
            parts.setdefault(id(on_node), (on_node, []))[1].append(name)
        return list(parts.values())

    @property
    def key(self) -> object:
        """Equal for volumes that every node treats alike."""
        return _key(self.default), tuple(sorted((name, _key(on_node)) for name, on_node in self.by_node.items()))

    @property
    def nodes_with_replica(self) -> frozenset[str]:
        volumes = {id(entry.volume): entry.volume for entry in self.default}
        return frozenset(replica.node_id for volume in volumes.values() for replica in volume.replicas)


NO_OPTIONAL_VOLUMES: Final = OptionalVolumes()
# Without disks, so none is under pressure.
_ANY_NODE: Final = longhorn.Node(name="")


def _key(on_node: Optional) -> tuple[object, ...]:
    return tuple((volumes_key((entry.volume,)), entry.count, entry.one_per_disk) for entry in on_node)


def optional_volumes(view: View, resolution: Resolution) -> OptionalVolumes:
    """Returns the pod's volumes without data locality that may be in the way of its local ones."""
    if not resolution.local:
        return NO_OPTIONAL_VOLUMES
    needs = [
        ReplicaNeed(volume, count, SoftAntiAffinity.of(volume.volume, view.settings))
        for volume in resolution.remote
        if (count := _unplaced_replicas(volume))
    ]
    if not needs:
        return NO_OPTIONAL_VOLUMES
    cluster = view.cluster
    default = tuple(_on_node(cluster, need, _ANY_NODE) for need in needs)
    pressure = cluster.settings.replica_auto_balance_disk_pressure_percentage > 0
    if not any(
        need.placed or (pressure and balances_best_effort(need.volume.volume, cluster.settings)) for need in needs
    ):
        return OptionalVolumes(default)
    return OptionalVolumes(default, dict(_differing_nodes(cluster, needs, default)))


def _unplaced_replicas(volume: PodVolume) -> int:
    placed = sum(replica.node_id != "" and stays(replica) for replica in volume.replicas)
    return max(replica_count(volume) - placed, sum(not replica.node_id for replica in volume.replicas))


def _on_node(cluster: Cluster, need: ReplicaNeed, node: longhorn.Node) -> OptionalVolume:
    kind = domain_of(cluster, need, node, "")
    of_disk = kind == ("disk", "")
    count = need.count if kind == SHARED or of_disk else 1
    return OptionalVolume(need.volume, count, one_per_disk=of_disk, used_disks=used_disks(need))


def _differing_nodes(
    cluster: Cluster, needs: Sequence[ReplicaNeed], default: Optional
) -> Iterator[tuple[str, Optional]]:
    tiers = [nodes_in_tiers(cluster, need) for need in needs]
    usual = tuple(entry.count for entry in default)
    shared: dict[tuple[int, ...], Optional] = {}
    for name, node in cluster.nodes.items():
        on_node = [
            _on_node(cluster, need, node) if names is None or name in names else None
            for need, names in zip(needs, tiers, strict=True)
        ]
        counts = tuple(0 if entry is None else entry.count for entry in on_node)
        if counts != usual:
            yield name, shared.setdefault(counts, tuple(entry for entry in on_node if entry is not None))


NodeResult = tuple[Reason, Competitors | None]
"""A node's reason, and the volumes of other pods that were counted for it."""
EquivalenceCache = NodeResults[NodeResult]
"""The results of `evaluate_nodes`, by what equivalent pods have in common."""

# One object for each, because most nodes have no competitors.
_WITHOUT_COMPETITORS: Final[Mapping[Reason, NodeResult]] = {reason: (reason, None) for reason in Reason}


class Competition(Struct, frozen=True):
    """The pods that compete with one for space, with caches; each cache comes with the same other one always."""

    query: ContentionQuery
    contention: Contention
    results: EquivalenceCache

    @property
    def version(self) -> tuple[ChangeLog, ChangeLog, ChangeLog]:
        query = self.query
        return query.state.profiles.changelog, query.demand.changelog, query.ledger.changelog

    def competitors(self, names: Sequence[str], anywhere: VolumesAnywhere | None = None) -> Mapping[str, Competitors]:
        return self.contention.competitors(self.query, names, anywhere)


class PodQuery(Struct, frozen=True, kw_only=True):
    """A pod and what its fit on nodes depends on."""

    state: ClusterState
    resolution: Resolution
    required: Requirements  # what the pod's local volumes require
    optional: OptionalVolumes  # the pod's other volumes, as they matter to the safety of nodes
    examine_safety: bool  # whether order safety and stale safety matter
    budget: Budget
    competition: Competition | None  # None if no pod competes

    @property
    def contested(self) -> Competition | None:
        """The competition if the pod needs space on its node."""
        return self.competition if self.required.sizes else None

    def required_with(self, optional: Optional, others: Volumes = ()) -> Requirements:
        """Returns what the pod's local volumes require together with those of other pods."""
        if not optional and not others:
            return self.required
        return requirements((*self.resolution.local, *others), self.resolution.volumes, optional)


def evaluate_alone(query: PodQuery, names: Sequence[str]) -> list[Reason]:
    """Returns each node's reason, in order, as if no other pod competed."""
    reasons: dict[str, Reason] = {}
    for optional, members in query.optional.split(names):
        reasons |= _search(query, query.required_with(optional), members, examine_safety=query.examine_safety)
    return [reasons[name] for name in names]


def _search(
    query: PodQuery, required: Requirements, names: Sequence[str], *, examine_safety: bool
) -> dict[str, Reason]:
    profiles = query.state.profiles
    of_nodes = profiles.table(required.classes).of(names)
    results = profiles.evaluate(required, of_nodes, query.budget, examine_safety=examine_safety)
    return {name: results[profile] for name, profile in zip(names, of_nodes, strict=True)}


def evaluate_nodes(
    query: PodQuery, competition: Competition, names: Sequence[str]
) -> tuple[list[Reason], Mapping[str, Competitors]]:
    """Returns each node's reason together with competitors, in order, and the competitors counted."""
    budget = query.budget
    gave_up = budget.gave_up
    anywhere = competition.contention.volumes_anywhere(competition.query)
    roaming, share = anywhere
    # Where a roaming volume is offered it counts already, so it matters which volume it is.
    names_of_roaming = tuple(map(roaming_key, roaming))
    required_key = (query.required.key, query.optional.key)
    key = (required_key, query.examine_safety, volumes_key(roaming + share), names_of_roaming)
    version = competition.version
    own_nodes = _own_nodes(query.resolution, competition.query)
    shared = competition.results.at(key, version)
    missing = [name for name in dict.fromkeys(names) if name not in shared or name in own_nodes]
    results = _evaluate_missing(query, missing, competition.competitors(missing, anywhere)) if missing else {}
    if budget.gave_up == gave_up:
        # A pod that was offered nodes with a volume of this one may not have been delivered by a watch yet.
        own_nodes |= competition.contention.nodes_involving(competition.query.requester, missing)
        cached = {name: result for name, result in results.items() if name not in own_nodes}
        competition.results.store(key, shared | cached, version)
    shared |= results
    competitors = {name: on_node for name in names if (on_node := shared[name][1]) is not None}
    return [shared[name][0] for name in names], competitors


def _own_nodes(resolution: Resolution, competition: ContentionQuery) -> frozenset[str]:
    # The pod's own demand or offer counts there, or that of a pod that shares a volume, or a hold does not count because of
    # its priority.
    names: set[str] = set()
    uids = {competition.requester.uid}
    for volume in resolution.volumes:
        names.add(competition.demand.node_of(volume))
        namespace, _, name = volume.claim.partition("/")
        uids |= {pod.uid for pod in competition.state.view.pods_of(namespace, name)}
    for uid in uids:
        offer = competition.ledger.offer_of(uid)
        names |= offer.nodes if offer is not None else frozenset()
    for offer in competition.ledger.holds_below(competition.requester.priority):
        names |= offer.nodes
    return frozenset(names - {""})


def _evaluate_missing(
    query: PodQuery, names: Sequence[str], competitors: Mapping[str, Competitors]
) -> dict[str, NodeResult]:
    results: dict[str, NodeResult] = {}
    for optional, members in query.optional.split(names):
        for name, reason in _evaluate_with(query, members, optional, competitors).items():
            on_node = competitors.get(name)
            results[name] = _WITHOUT_COMPETITORS[reason] if on_node is None else (reason, on_node)
    return results


def _evaluate_with(
    query: PodQuery, names: Sequence[str], optional: Optional, competitors: Mapping[str, Competitors]
) -> dict[str, Reason]:
    required = query.required_with(optional)
    table = query.state.profiles.table(required.classes)
    profiles = dict(zip(names, table.of(names), strict=True))
    reasons: dict[str, Reason] = {}
    for name, profile in profiles.items():
        reason = _decide_by_counting(query, required, profile, competitors.get(name))
        if reason is not None:
            reasons[name] = reason
    undecided = [name for name in profiles if name not in reasons]
    reasons |= _search(query, required, undecided, examine_safety=query.examine_safety)
    groups: dict[int, list[str]] = {}
    for name in undecided:
        if name in competitors and (reasons[name].fits or reasons[name] in UNSAFE):
            groups.setdefault(competitors[name].group, []).append(name)
    for members in groups.values():
        on_node = competitors[members[0]]
        joint = _evaluate_jointly(query, members, on_node.volumes, optional, examine_safety=query.examine_safety)
        if on_node.left_out and query.examine_safety:
            joint = _examine_left_out(query, joint, on_node, optional)
        reasons |= joint
    return reasons


def _decide_by_counting(
    query: PodQuery, required: Requirements, profile: Profile, competitors: Competitors | None
) -> Reason | None:
    """Returns the reason of a node where counting proves every order safe; None proves nothing."""
    if profile.reason is not None or not required.uniform or not required.sizes:
        return None
    items = required.items
    total = items.total + sum(required.optional_items.sizes)
    largest = items.largest
    others: tuple[Items, ...] = ()
    if competitors is not None:
        volume_class = required.classes.requests[0]
        if competitors.items is None:
            return None
        if competitors.volume_class is not volume_class and competitors.volume_class != volume_class:
            return None
        others = (competitors.items,)
        total += competitors.total
        largest = max(largest, competitors.largest)
    # The disk with least space comes last: if it takes everything, every disk does.
    if profile.free[-1] >= total:
        return Reason.ROOM
    if not counting_proves_safe(profile.free, total, largest):
        return None
    if not query.examine_safety or new_volumes(required, *others).stale_safe(profile.free, profile.reported):
        return Reason.ROOM
    return Reason.STALE_UNSAFE


def _examine_left_out(
    query: PodQuery, reasons: Mapping[str, Reason], competitors: Competitors, optional: Optional
) -> dict[str, Reason]:
    required = query.required_with(optional, competitors.volumes + competitors.left_out)
    table = query.state.profiles.table(required.classes)
    return {
        # The left-out volumes have no space on these nodes, but outdated status may still show Longhorn some.
        name: Reason.STALE_UNSAFE
        if reason is Reason.ROOM and (profile.reason is not None or not stale_safe(required, profile))
        else reason
        for (name, reason), profile in zip(reasons.items(), table.of(list(reasons)), strict=True)
    }


def evaluate_jointly(
    query: PodQuery, names: Sequence[str], volumes: Volumes, *, examine_safety: bool
) -> dict[str, Reason]:
    """Returns the reasons of nodes with equal competitors, each of which fits the pod alone."""
    reasons: dict[str, Reason] = {}
    for optional, members in query.optional.split(names):
        reasons |= _evaluate_jointly(query, members, volumes, optional, examine_safety=examine_safety)
    return reasons


def _evaluate_jointly(
    query: PodQuery, names: Sequence[str], volumes: Volumes, optional: Optional, *, examine_safety: bool
) -> dict[str, Reason]:
    reasons = _search(query, query.required_with(optional, volumes), names, examine_safety=examine_safety)
    return {name: attribute_to_competitors(reason) for name, reason in reasons.items()}


def attribute_to_competitors(reason: Reason) -> Reason:
    """Returns SPOKEN_FOR in place of a refusal caused by competitors; the pod alone fits the node."""
    return reason if reason.fits or reason in UNSAFE or reason is Reason.UNDECIDED else Reason.SPOKEN_FOR
