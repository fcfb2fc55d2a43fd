"""Volumes of other pods that compete for a node, and are evaluated jointly with one more pod.

Data flow: a node's demand (derived, oldest first) and offers → the volumes that fit there together (`competitors.py`), demand before
offers, older before younger → `Competitors`, which are packed jointly with the pod's own volumes. Demand that does not fit together with
older demand is *hopeless* (a stuck pod, a removed disk): it is left out, or it would block every pod. An offer that does not fit cannot be
used either: Longhorn's disks changed since it was made. Volumes that may go to any node count last (`competitors_anywhere.py`).

Nothing is computed twice: a node is evaluated again when its demand, its offers or its disks change,
and nodes with equal competitors and equal disks share one result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from scheduler_core.evaluation.competitors import (
    CompetingVolumes,
    CompetitorGroups,
    Competitors,
    OfferedVolumes,
    Requester,
    Volumes,
    by_certainty,
    fitting_volumes,
    identity,
    without_matched_claims,
)
from scheduler_core.evaluation.competitors_anywhere import (
    JointCompetitors,
    OwnCompetitors,
    RoamingVolumes,
    Version,
    VolumesAnywhere,
    fits_on_node,
    older_version,
    volumes_fit,
    volumes_roaming_from,
    volumes_with_open_disk,
)
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.offers.ledger import Ledger
from scheduler_core.offers.outstanding_offer import Offer
from scheduler_core.packing.budget import Budget, give_way
from scheduler_core.volumes.demand import Demand, UnplacedVolumes, replica_count
from scheduler_core.volumes.demand_index import DemandIndex
from scheduler_core.volumes.resolve import PodVolume, current_volume

_RETRY_FACTOR: Final = 2
# Autoscalers add and remove nodes; entries of removed nodes are dropped once they are as many as those of existing nodes.
_ENTRIES_PER_NODE: Final = 2
_MIN_ENTRIES: Final = 64


class ContentionQuery(Struct, frozen=True):
    """Everything that the competitors of a requester depend on."""

    state: ClusterState
    demand: DemandIndex
    ledger: Ledger
    requester: Requester
    budget: Budget

    @property
    def version(self) -> Version:
        return self.state.profiles.changelog, self.demand.changelog


class _Entry(Struct, frozen=True):
    demands: tuple[Demand, ...]
    offers: tuple[Offer, ...]
    free_space: object
    identities: frozenset[str]  # of every demanded and offered volume, fitting or not
    uids: frozenset[str]  # of the pods that have the offers
    priority: float  # the lowest one of a hold, infinite without holds
    competitors: Competitors
    given_up_at: int | None = None  # steps of the budget that did not suffice to find out; None if the result is exact

    def is_current(
        self, demands: tuple[Demand, ...], offers: tuple[Offer, ...], free_space: object, budget: Budget
    ) -> bool:
        # Views share unchanged values, so identity tells.
        if self.demands is not demands or self.free_space is not free_space or self.offers != offers:
            return False
        # Without this, one node that is too hard would use up the budget of every request.
        return self.given_up_at is None or budget.left <= _RETRY_FACTOR * self.given_up_at

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
        self._joint = JointCompetitors(self._groups)
        self._roaming = RoamingVolumes()
        self._offered_unplaced: tuple[UnplacedVolumes, tuple[str, ...], dict[str, PodVolume]] | None = None

    def follow(self, other: Contention) -> None:
        """Lets volumes that may go to any node count as long as they do there, where they were seen first."""
        self._roaming.follow(other._roaming)

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
                others = self._without_requester(query, name, demands, offers)
                on_node = self._fitting_competitors(query, name, others)
            else:
                shared.add(name)
            if on_node.volumes or on_node.left_out:
                competitors[name] = on_node
        if len(self._entries) > _ENTRIES_PER_NODE * len(free_space) + _MIN_ENTRIES:
            self._entries = {name: entry for name, entry in self._entries.items() if name in free_space}
        own = OwnCompetitors(names, competitors, shared)
        return self._joint.competitors(own, anywhere, query.state.profiles, query.budget)

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
        roaming = self._roaming.volumes_on_every_node(query.ledger, query.state.view.cluster.now)
        own = query.requester
        return tuple(volume for volume in roaming if identity(volume) not in own.volumes) if roaming else ()

    def _current_entry(
        self, query: ContentionQuery, name: str, demands: tuple[Demand, ...], offers: tuple[Offer, ...]
    ) -> _Entry:
        entry = self._entries.get(name)
        space = query.state.view.indexes.free_space[name]
        if entry is None or not entry.is_current(demands, offers, space, query.budget):
            entry = self._evaluate_node(query, name, demands, offers)
            self._entries[name] = entry
            self._roaming.version = older_version(self._roaming.version, query.version)
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
        offered = [volume for key, volume in self._offered_volumes(query).items() if key not in own]
        own_volumes = [entry.volume for entry in map(unplaced.by_key.get, own) if entry is not None]
        replicas = unplaced.replicas + sum(map(replica_count, offered)) - sum(map(replica_count, own_volumes))
        if not replicas:
            return ()
        volumes = (entry.volume for entry in unplaced.by_size if entry.key not in own)
        nodes = max(1, len(query.state.view.indexes.free_space))
        return tuple(islice(merge(volumes, offered, key=_largest_first), -(-replicas // nodes)))

    def _offered_volumes(self, query: ContentionQuery) -> dict[str, PodVolume]:
        unplaced = query.demand.unplaced
        uids = query.ledger.uids_with_unplaced_volumes
        cached = self._offered_unplaced
        if cached is not None and cached[0] is unplaced and cached[1] is uids:
            return cached[2]
        # The ledger does not know what it stores: an offer's volumes are PodVolumes. Its claim may have been bound since.
        stored: list[Any] = [
            volume for offer in query.ledger.with_unplaced_volumes for volume in offer.unplaced_volumes
        ]
        volumes = [current_volume(volume, query.state.view) for volume in stored]
        by_identity = {identity(volume): volume for volume in volumes if not volume.volume.has_shards}
        offered = sorted(
            (volume for key, volume in by_identity.items() if unplaced.by_key.get(key) is None), key=_largest_first
        )
        result = {identity(volume): volume for volume in offered}
        self._offered_unplaced = (unplaced, uids, result)
        return result

    def _evaluate_node(
        self, query: ContentionQuery, name: str, demands: tuple[Demand, ...], offers: tuple[Offer, ...]
    ) -> _Entry:
        view = query.state.view
        steps = query.budget.left
        gave_up = query.budget.gave_up
        joint = self._offered.joint(offers, view)
        if (
            not demands
            and joint.volumes is not None
            and fits_on_node(query.state.profiles, query.budget, name, joint.required)
        ):
            competitors = joint.competitors(self._groups)
            self._roaming.put(name, ())
        else:
            volumes_by_offer = self._offered.on_node(offers, name, view)
            counted = without_matched_claims(demands, offers, name)
            competitors = self._fitting_competitors(query, name, by_certainty(counted, volumes_by_offer))
            self._roaming.put(name, volumes_roaming_from(view, name, demands, volumes_by_offer, competitors))
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

    def _without_requester(
        self, query: ContentionQuery, name: str, demands: Sequence[Demand], offers: Sequence[Offer]
    ) -> CompetingVolumes:
        # Its own volumes do not, in other pods' demand and offers neither, and holds of a lower priority do not.
        requester = query.requester
        counting = [
            offer for offer in offers if offer.uid != requester.uid and offer.counts_against(requester.priority)
        ]
        volumes_by_offer = self._offered.on_node(counting, name, query.state.view)
        return by_certainty(without_matched_claims(demands, offers, name), volumes_by_offer).without(requester.volumes)

    def _fitting_competitors(self, query: ContentionQuery, name: str, competing: CompetingVolumes) -> Competitors:
        profiles = query.state.profiles
        fitting = fitting_volumes(competing, partial(volumes_fit, profiles, query.budget, name))
        placeable = volumes_with_open_disk(profiles, name, fitting.left_out)
        offered = tuple(volume for key, volume in fitting.volumes.items() if key not in fitting.demanded)
        return self._groups.competitors(tuple(fitting.demanded.values()), offered, placeable)


def _largest_first(volume: PodVolume) -> tuple[int, str]:
    return -volume.volume.size, identity(volume)
