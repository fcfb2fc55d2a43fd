"""The volumes of outstanding offers, as one view has them: on each node, and together.

An offer holds its volumes as they were when it was made. In a burst many nodes have the very same offers, so what is equal on all of them is
computed once for a view: the volumes, and the competitors where all of them fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from scheduler_core.cluster.view import View
from scheduler_core.demand.derive import Demand
from scheduler_core.demand.unplaced import claim_identity
from scheduler_core.evaluation.competitors import CompetitorGroups, Competitors, identity
from scheduler_core.offers.outstanding_offer import Offer
from scheduler_core.volumes.existing_replicas import nodes_with_replica
from scheduler_core.volumes.requirements import Requirements, requirements
from scheduler_core.volumes.resolve import PodVolume, current_volume, is_local

VolumesByOffer = Sequence[tuple[Offer, Sequence[PodVolume]]]


class JointOffers:
    """All offers of a node together."""

    def __init__(self, offers: Sequence[Offer], volumes: Sequence[Sequence[PodVolume]], *, uniform: bool) -> None:
        # The offers with their volumes, None if the volumes that need space differ between nodes.
        self.volumes = tuple(zip(offers, volumes, strict=True)) if uniform else None
        # Identities of all volumes, whether they need space on the node or not.
        self.identities = frozenset(map(identity, chain.from_iterable(volumes)))
        self.uids = frozenset(offer.uid for offer in offers)  # of the pods that have the offers
        # The lowest one of a hold, infinite without holds.
        self.priority = min((offer.priority for offer in offers if offer.priority is not None), default=math.inf)
        self._competitors: Competitors | None = None

    @cached_property
    def required(self) -> Requirements:
        volumes = self._distinct_volumes()
        return requirements(volumes, volumes)

    def competitors(self, groups: CompetitorGroups) -> Competitors:
        """Returns all volumes as competitors, where they fit together."""
        if self._competitors is None:
            certain = by_certainty((), self.volumes or ())
            demanded_parts = (certain.demanded, *certain.held)
            decided = {identity(volume) for part in demanded_parts for volume in part}
            volumes = self._distinct_volumes()
            demanded = tuple(volume for volume in volumes if identity(volume) in decided)
            offered = tuple(volume for volume in volumes if identity(volume) not in decided)
            self._competitors = groups.competitors(demanded, offered)
        return self._competitors

    def _distinct_volumes(self) -> list[PodVolume]:
        return list({identity(volume): volume for _, part in self.volumes or () for volume in part}.values())


class OfferedVolumes:
    """Caches the volumes of offers for the latest view."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._current: dict[tuple[str, int], tuple[PodVolume, ...]] = {}
        self._joint: dict[tuple[int, ...], tuple[Sequence[Offer], JointOffers]] = {}

    def on_node(self, offers: Iterable[Offer], name: str, view: View) -> VolumesByOffer:
        return [(offer, _needing_space(self._volumes_of(offer, view), name, view)) for offer in offers]

    def joint(self, offers: Sequence[Offer], view: View) -> JointOffers:
        """Returns all offers of a node together."""
        self._reset_for(view)
        # An offer stays the same object, and is kept here, so that no other object gets its number.
        key = tuple(map(id, offers))
        entry = self._joint.get(key)
        if entry is None:
            volumes = [self._volumes_of(offer, view) for offer in offers]
            uniform = all(map(_is_uniform, chain.from_iterable(volumes)))
            entry = (offers, JointOffers(offers, volumes, uniform=uniform))
            self._joint[key] = entry
        return entry[1]

    def _volumes_of(self, offer: Offer, view: View) -> tuple[PodVolume, ...]:
        self._reset_for(view)
        key = (offer.uid, offer.number)
        volumes = self._current.get(key)
        if volumes is None:
            # The ledger does not know what it stores: an offer's volumes are PodVolumes.
            stored: tuple[Any, ...] = offer.volumes
            volumes = tuple(current_volume(volume, view) for volume in stored)
            self._current[key] = volumes
        return volumes

    def _reset_for(self, view: View) -> None:
        if self._view is not view:
            self._view = view
            self._current = {}
            self._joint = {}


def _is_uniform(volume: PodVolume) -> bool:
    return not volume.replicas and volume.nodes is None and not volume.persistent_volume


def _needing_space(volumes: Iterable[PodVolume], name: str, view: View) -> list[PodVolume]:
    volumes = [volume for volume in volumes if volume.nodes is None or name in volume.nodes]
    needing = [
        volume for volume in volumes if not volume.replicas or name not in nodes_with_replica(volume, view.cluster)
    ]
    if not any(volume.persistent_volume for volume in needing):
        return needing
    # A claim becomes one of the volumes that it was matched with; the largest stands for all of them.
    by_claim: dict[str, PodVolume] = {}
    for volume in sorted(needing, key=lambda volume: volume.volume.size):
        if is_local(volume.volume):
            by_claim[volume.claim] = volume
    return list(by_claim.values())


def without_matched_claims(demands: Sequence[Demand], offers: Iterable[Offer], name: str) -> Sequence[Demand]:
    """Returns the demands without claims that were matched with a PersistentVolume.

    Until the PersistentVolume shows the claim, demand is derived for a new volume. The offer has the volume that it
    really is.
    """
    if not demands:
        return demands
    stored: Iterable[Any] = chain.from_iterable(offer.volumes for offer in offers)
    matched = {
        claim_identity(volume.claim)
        for volume in stored
        if volume.persistent_volume and (volume.nodes is None or name in volume.nodes)
    }
    return [demand for demand in demands if identity(demand.volume) not in matched] if matched else demands


class CompetingVolumes(NamedTuple):
    """The volumes that compete for a node."""

    demanded: Sequence[PodVolume]  # will be placed there
    offered: Sequence[Sequence[PodVolume]]  # may be placed there, by offer
    held: Sequence[Sequence[PodVolume]]  # preemption makes room for them there, by hold

    def without(self, identities: frozenset[str]) -> CompetingVolumes:
        """Returns the volumes without some of them."""

        def others(volumes: Sequence[PodVolume]) -> list[PodVolume]:
            return [volume for volume in volumes if identity(volume) not in identities]

        return CompetingVolumes(
            others(self.demanded), [others(part) for part in self.offered], [others(part) for part in self.held]
        )


def by_certainty(demands: Iterable[Demand], volumes_by_offer: VolumesByOffer) -> CompetingVolumes:
    """Returns the volumes of demand and offers by how certain they are. A narrowed offer is a decision, so its volumes
    are demanded: no request waits until it ends.
    """
    demanded = [demand.volume for demand in demands]
    offered: list[Sequence[PodVolume]] = []
    held: list[Sequence[PodVolume]] = []
    for offer, volumes in volumes_by_offer:
        if offer.priority is not None:
            held.append(volumes)
        elif offer.narrowed:
            demanded += volumes
        else:
            offered.append(volumes)
    return CompetingVolumes(demanded, offered, held)


def offer_parts(offers: Iterable[Sequence[PodVolume]]) -> Iterator[Sequence[PodVolume]]:
    """Yields the parts of offers that count as a whole."""
    for volumes in offers:
        yield [volume for volume in volumes if volume.local]
        # A volume that only prefers the pod's node may go to another node alone.
        yield from ([volume] for volume in volumes if not volume.local)
