"""Whether many nodes fit a pod together with the volumes of other pods that compete for them.

Data flow of `evaluate_nodes`: the pod's requirements → the results that equal requirements had → without the nodes whose profile, demand or
offers changed since (`caches.py`) → the missing nodes are evaluated now → the next results. So a request costs one look-up per node, and
work for what changed. Where the pod's own offer or its volumes' demand counts, a node is evaluated for this pod alone and not cached.

Data flow of `Contention`: a node's demand (derived, oldest first) and offers → the volumes that fit there together (`competing_volumes.py`), demand
before offers, older before younger → `Competitors`. Demand that does not fit together with older demand is *hopeless* (a stuck pod, a removed
disk): it is left out, or it would block every pod. An offer that does not fit cannot be used either: Longhorn's disks changed since it was
made. Volumes that may go to any node count last (`volumes_anywhere.py`). A node is evaluated again when its demand, its offers or its
disks change, and nodes with equal competitors and equal disks share one result.

A node is evaluated first for the pod alone (`disk_profiles.py`), then jointly with its competitors.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice

from scheduler_core import caches
from scheduler_core.evaluation import cluster_state, fit, replicas_to_place, volumes_anywhere
from scheduler_core.evaluation.competing_volumes import (
    CompetingVolumes,
    CompetitorGroups,
    Competitors,
    ContentionQuery,
    OfferedVolumes,
    Requester,
    Volumes,
    by_certainty,
    fitting_volumes,
    identity,
    largest_first,
    volumes_key,
    without_matched_claims,
)
from scheduler_core.evaluation.volumes_anywhere import VolumesAnywhere
from scheduler_core.model.verdict import UNSAFE, Reason
from scheduler_core.offers.outstanding_offer import Offer
from scheduler_core.packing.budget import Budget, give_way
from scheduler_core.structs import Struct
from scheduler_core.volumes.outstanding_demand import Demand, replica_count
from scheduler_core.volumes.resolve import Resolution
from scheduler_core.volumes.volume_requirements import Requirements, requirements

# A search starts over each time: with hardly more steps it would end where it ended the last time.
_RETRY_FACTOR = 2
# Autoscalers add and remove nodes; entries of removed nodes are dropped once they are as many as those of existing nodes.
_ENTRIES_PER_NODE = 2
_MIN_ENTRIES = 64


class _Entry(Struct, frozen=True):
    demands: tuple[Demand, ...]
    offers: tuple[Offer, ...]
    free_space: object
    identities: frozenset[str]  # of every demanded and offered volume, fitting or not
    uids: frozenset[str]  # of the pods that have the offers
    priority: float  # the lowest one of a hold, infinite without holds
    competitors: Competitors
    given_up_at: int | None = None  # steps of the budget that did not suffice to find out; None if the result is exact

    def involves(self, requester: Requester) -> bool:
        # The entry has some of its volumes, its offer, or a hold that does not count against it.
        if requester.uid in self.uids or requester.priority > self.priority:
            return True
        return not requester.volumes.isdisjoint(self.identities)


class Contention:
    """Finds the competitors of nodes and caches them."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._groups = CompetitorGroups()
        self._offered = OfferedVolumes()
        self._joint = volumes_anywhere.JointCompetitors(self._groups)
        self._roaming = volumes_anywhere.RoamingVolumes()

    def follow(self, other: "Contention") -> None:
        """Lets volumes that may go to any node count as long as they do there, where they were seen first."""
        self._roaming.followed = other._roaming  # noqa: SLF001 # the same class

    def volumes_anywhere(self, query: ContentionQuery) -> VolumesAnywhere:
        self.update(query)
        return VolumesAnywhere(self.roaming_volumes(query), self.unplaced_share(query))

    def competitors(
        self, query: ContentionQuery, names: Iterable[str], anywhere: VolumesAnywhere | None = None
    ) -> Mapping[str, Competitors]:
        """Returns the competing volumes of other pods by node. Nodes without any are left out. `anywhere`: what
        `volumes_anywhere` returned for the query, if the caller has it.
        """
        anywhere = anywhere or self.volumes_anywhere(query)
        competitors: dict[str, Competitors] = {}
        # Nodes whose competitors are the same for every requester.
        shared: set[str] = set()
        free_space = query.state.view.indexes.free_space
        for name in names:
            give_way()
            demands = query.demand.by_node.get(name) or ()
            offers = query.ledger.offers_on(name)
            space = free_space.get(name)
            if space is None:
                continue
            if not demands and not offers:
                shared.add(name)
                continue
            entry = self._current_entry(query, name, demands, offers)
            on_node = entry.competitors
            if entry.involves(query.requester):
                # The requester's own volumes do not count, also where other pods demand or are offered space for them.
                # Offers that hold space for a lower priority do not count.
                requester = query.requester
                counting = [
                    offer for offer in offers if offer.uid != requester.uid and offer.counts_against(requester.priority)
                ]
                volumes_by_offer = self._offered.on_node(counting, name, query.state.view)
                competing = by_certainty(without_matched_claims(demands, offers, name), volumes_by_offer)
                on_node = self._fitting_competitors(query, name, competing.without(requester.volumes))
            else:
                shared.add(name)
            if on_node.volumes or on_node.left_out:
                competitors[name] = on_node
        if len(self._entries) > _ENTRIES_PER_NODE * len(free_space) + _MIN_ENTRIES:
            self._entries = {name: entry for name, entry in self._entries.items() if name in free_space}
        if not any(anywhere):
            return competitors
        return self._joint.competitors(query, names, competitors, shared, anywhere)

    def update(self, query: ContentionQuery) -> None:
        """Finds the volumes that do not fit on nodes that changed, asked about or not, because these volumes may roam."""
        free_space = query.state.view.indexes.free_space
        for name in self._roaming.nodes_to_update(query.version, free_space):
            give_way()
            demands = query.demand.by_node.get(name) or ()
            offers = query.ledger.offers_on(name)
            if (demands or offers) and name in free_space:
                self._current_entry(query, name, demands, offers)
            else:
                # Longhorn attaches no volume on a node that it does not know, and so places none of its replicas.
                self._roaming.put(name, ())
        self._roaming.version = query.version

    def roaming_volumes(self, query: ContentionQuery) -> Volumes:
        """Returns the volumes that count on every node where they fit, without the requester's."""
        roaming = self._roaming.volumes_on_every_node(query.ledger, query.state.view.cluster.now)
        own = query.requester.volumes
        return tuple(volume for volume in roaming if identity(volume) not in own)

    def _current_entry(
        self, query: ContentionQuery, name: str, demands: tuple[Demand, ...], offers: tuple[Offer, ...]
    ) -> _Entry:
        entry = self._entries.get(name)
        # Views share unchanged values, so identity tells. Without the limit one node that is too hard would use up the budget of every request.
        if (
            entry is not None
            and entry.demands is demands
            and entry.free_space is query.state.view.indexes.free_space[name]
            and entry.offers == offers
            and (entry.given_up_at is None or query.budget.left <= _RETRY_FACTOR * entry.given_up_at)
        ):
            return entry
        entry = self._evaluate_node(query, name, demands, offers)
        self._entries[name] = entry
        self._roaming.version = volumes_anywhere.older_version(self._roaming.version, query.version)
        return entry

    def nodes_involving(self, requester: Requester, names: Iterable[str]) -> frozenset[str]:
        # There they differ from those of equal pods.
        entries = ((name, self._entries.get(name)) for name in names)
        return frozenset(name for name, entry in entries if entry is not None and entry.involves(requester))

    def unplaced_share(self, query: ContentionQuery) -> Volumes:
        """Returns one node's share of the unplaced volumes, the largest first, without the requester's. n replicas over
        N nodes count as the n / N largest on each. Counting all of them on every node would block every pod: like
        offers, the more there are, the fewer nodes each counts on.
        """
        unplaced = query.demand.unplaced
        own = query.requester.volumes
        offered = []
        if query.ledger.uids_with_unplaced_volumes:
            volumes_by_key = self._offered.unplaced(query.ledger, unplaced, query.state.view)
            offered = [volume for key, volume in volumes_by_key.items() if key not in own]
        own_volumes = [entry.volume for entry in map(unplaced.by_key.get, own) if entry is not None]
        replicas = unplaced.replicas + sum(map(replica_count, offered)) - sum(map(replica_count, own_volumes))
        if not replicas:
            return ()
        volumes = (entry.volume for entry in unplaced.by_size if entry.key not in own)
        nodes = max(1, len(query.state.view.indexes.free_space))
        return tuple(islice(merge(volumes, offered, key=largest_first), -(-replicas // nodes)))

    def _evaluate_node(
        self, query: ContentionQuery, name: str, demands: tuple[Demand, ...], offers: tuple[Offer, ...]
    ) -> _Entry:
        view = query.state.view
        steps = query.budget.left
        gave_up = query.budget.gave_up
        joint = self._offered.joint(offers, view)
        if not demands and joint.volumes is not None and volumes_anywhere.fits_on_node(query, name, joint.required):
            competitors = joint.competitors(self._groups)
            self._roaming.put(name, ())
        else:
            volumes_by_offer = self._offered.on_node(offers, name, view)
            counted = without_matched_claims(demands, offers, name)
            competitors = self._fitting_competitors(query, name, by_certainty(counted, volumes_by_offer))
            self._roaming.put(
                name, volumes_anywhere.volumes_roaming_from(view, name, demands, volumes_by_offer, competitors)
            )
        return _Entry(
            demands=demands,
            offers=offers,
            free_space=view.indexes.free_space[name],
            identities=joint.identities.union(identity(demand.volume) for demand in demands),
            uids=joint.uids,
            priority=joint.priority,
            competitors=competitors,
            given_up_at=None if query.budget.gave_up == gave_up else steps,
        )

    def _fitting_competitors(self, query: ContentionQuery, name: str, competing: CompetingVolumes) -> Competitors:
        fitting = fitting_volumes(
            competing,
            lambda volumes: not volumes or volumes_anywhere.fits_on_node(query, name, requirements(volumes, volumes)),
        )
        # Those for which some disk of the node is open, whether it has room or not.
        table = query.state.profiles.table
        placeable = tuple(
            volume
            for volume in fitting.left_out
            if table(requirements([volume], ()).classes).of([name])[0].reason is None
        )
        offered = tuple(volume for key, volume in fitting.volumes.items() if key not in fitting.demanded)
        return self._groups.competitors(tuple(fitting.demanded.values()), offered, placeable)


EquivalenceCache = caches.NodeResults[tuple[Reason, Competitors | None]]
"""The results of `evaluate_nodes`, by what equivalent pods have in common: a node's reason, and the volumes of other pods that were
counted for it.
"""


class Competition(ContentionQuery, frozen=True):
    """The pods that compete with one for space, with caches; each cache comes with the same other one always."""

    contention: Contention
    results: EquivalenceCache


class PodQuery(Struct, frozen=True, kw_only=True):
    """A pod and what its fit on nodes depends on."""

    state: cluster_state.ClusterState
    resolution: Resolution
    required: Requirements  # what the pod's local volumes require
    optional: replicas_to_place.OptionalVolumes  # the pod's other volumes, as they matter to the safety of nodes
    examine_safety: bool  # whether order safety and stale safety matter
    budget: Budget
    competition: Competition | None  # None if no pod competes

    @property
    def contested(self) -> Competition | None:
        """The competition if the pod needs space on its node."""
        return self.competition if self.required.sizes else None

    def required_with(self, optional: replicas_to_place.Optional, others: Volumes = ()) -> Requirements:
        """Returns what the pod's local volumes require together with those of other pods."""
        if not optional and not others:
            return self.required
        return requirements((*self.resolution.local, *others), self.resolution.volumes, optional)


def evaluate_together(
    query: PodQuery, names: Sequence[str], others: Volumes = (), *, examine_safety: bool
) -> dict[str, Reason]:
    """Returns the reasons of nodes as if these volumes of other pods, and no others, competed with the pod's."""
    reasons: dict[str, Reason] = {}
    for optional, members in query.optional.split(names):
        reasons |= _search(query, query.required_with(optional, others), members, examine_safety=examine_safety)
    return reasons


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
    anywhere = competition.contention.volumes_anywhere(competition)
    roaming, share = anywhere
    # Where a roaming volume is offered it counts already, so it matters which volume it is.
    names_of_roaming = tuple(map(volumes_anywhere.roaming_key, roaming))
    required_key = (query.required.key, query.optional.key)
    key = (required_key, query.examine_safety, volumes_key(roaming + share), names_of_roaming)
    version = (*competition.version, competition.ledger.changelog)
    # Where the pod's own demand or offer counts, or that of a pod that shares a volume, or where a hold does not count because of
    # its priority.
    own_nodes = {competition.demand.node_of(volume) for volume in query.resolution.volumes} - {""}
    uids = {competition.requester.uid}
    for volume in query.resolution.volumes:
        namespace, _, name = volume.claim.partition("/")
        uids |= {pod.uid for pod in competition.state.view.pods_of(namespace, name)}
    offers = [offer for uid in uids if (offer := competition.ledger.offer_of(uid)) is not None]
    for offer in (*offers, *competition.ledger.holds_below(competition.requester.priority)):
        own_nodes |= offer.nodes
    shared = competition.results.at(key, version)
    missing = [name for name in dict.fromkeys(names) if name not in shared or name in own_nodes]
    results: dict[str, tuple[Reason, Competitors | None]] = {}
    if missing:
        competitors = competition.contention.competitors(competition, missing, anywhere)
        for optional, members in query.optional.split(missing):
            reasons = _evaluate_with(query, members, optional, competitors)
            results |= {name: (reason, competitors.get(name)) for name, reason in reasons.items()}
    if budget.gave_up == gave_up:
        # A pod that was offered nodes with a volume of this one may not have been delivered by a watch yet.
        own_nodes |= competition.contention.nodes_involving(competition.requester, missing)
        cached = {name: result for name, result in results.items() if name not in own_nodes}
        competition.results.store(key, shared | cached, version)
    shared |= results
    counted = {name: on_node for name in names if (on_node := shared[name][1]) is not None}
    return [shared[name][0] for name in names], counted


def _evaluate_with(
    query: PodQuery, names: Sequence[str], optional: replicas_to_place.Optional, competitors: Mapping[str, Competitors]
) -> dict[str, Reason]:
    safety = query.examine_safety
    reasons = _search(query, query.required_with(optional), names, examine_safety=safety)
    groups: dict[int, list[str]] = {}
    for name, reason in reasons.items():
        if name in competitors and (reason.fits or reason in UNSAFE):
            groups.setdefault(competitors[name].group, []).append(name)
    for members in groups.values():
        on_node = competitors[members[0]]
        searched = _search(query, query.required_with(optional, on_node.volumes), members, examine_safety=safety)
        reasons |= {name: attribute_to_competitors(reason) for name, reason in searched.items()}
        safe = [name for name in members if reasons[name] is Reason.ROOM]
        if safe and on_node.left_out and safety:
            # The left-out volumes have no space on these nodes, but outdated status may still show Longhorn some.
            required = query.required_with(optional, on_node.volumes + on_node.left_out)
            for name, profile in zip(safe, query.state.profiles.table(required.classes).of(safe), strict=True):
                if profile.reason is not None or not fit.stale_safe(required, profile):
                    reasons[name] = Reason.STALE_UNSAFE
    return reasons


def attribute_to_competitors(reason: Reason) -> Reason:
    """Returns SPOKEN_FOR in place of a refusal caused by competitors; the pod alone fits the node."""
    return reason if reason.fits or reason in UNSAFE or reason is Reason.UNDECIDED else Reason.SPOKEN_FOR
