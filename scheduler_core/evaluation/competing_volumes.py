"""The volumes of other pods on one node: those of its demand, those of offers, and which of them fit there together.

The Longhorn volume identifies a volume, or the claim while there is none. So a claim that two pods share counts once,
as does a pod's own demand.

An offer holds its volumes as they were when it was made. In a burst many nodes have the very same offers, so what is equal on all of them is
computed once for a view: the volumes, and the competitors where all of them fit.

Demand counts before offers, and older before younger. Demand that does not fit together with older demand is *hopeless*: it is left out, or
it would block every pod.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain, count
from typing import NamedTuple

from scheduler_core import caches
from scheduler_core.cluster.view import View
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.offers.ledger import Ledger
from scheduler_core.offers.outstanding_offer import Offer
from scheduler_core.packing.budget import Budget
from scheduler_core.structs import Struct
from scheduler_core.volumes.demand_index import DemandIndex
from scheduler_core.volumes.existing_replicas import nodes_with_replica
from scheduler_core.volumes.outstanding_demand import Demand, UnplacedVolumes, claim_identity
from scheduler_core.volumes.resolve import PodVolume, current_volume, is_local
from scheduler_core.volumes.volume_requirements import Requirements, requirements, volume_class

# A cluster has a handful of sizes and classes in many combinations; beyond this they get new numbers, never numbers in use.
_MAX_GROUPS = 100_000

Volumes = tuple[PodVolume, ...]


def identity(volume: PodVolume) -> str:
    return volume.volume.name if volume.bound else claim_identity(volume.claim)


def volumes_key(volumes: Volumes) -> object:
    return tuple((volume_class(volume.volume), volume.volume.size, volume.volume.actual_size) for volume in volumes)


def largest_first(volume: PodVolume) -> tuple[int, str]:
    return -volume.volume.size, identity(volume)


class Requester(Struct, frozen=True):
    """The pod that is evaluated; its own volumes and offer do not count as competitors."""

    uid: str
    volumes: frozenset[str]  # identities of its volumes, also those that they had as unbound claims
    priority: int = 0  # holds of a lower priority do not count against it

    @classmethod
    def of(cls, uid: str, volumes: Iterable[PodVolume], priority: int = 0) -> "Requester":
        volumes = list(volumes)
        claims = (claim_identity(volume.claim) for volume in volumes if volume.claim)
        return cls(uid, frozenset(identity(volume) for volume in volumes).union(claims), priority)


NO_REQUESTER = Requester("", frozenset())


class ContentionQuery(Struct, frozen=True):
    """Everything that the competitors of a requester depend on."""

    state: ClusterState
    demand: DemandIndex
    ledger: Ledger
    requester: Requester
    budget: Budget

    @property
    def version(self) -> tuple[caches.ChangeLog, caches.ChangeLog]:
        return self.state.profiles.changelog, self.demand.changelog


class Competitors(Struct, frozen=True):
    """Other pods' volumes that fit on one node together."""

    demanded: Volumes  # volumes that will be placed there, and roaming ones, which will be placed on some node
    offered: Volumes  # volumes that may be placed there
    group: int  # equal for nodes with equal competitors
    demand_group: int  # the same without what is only offered
    total: int = 0  # bytes of all volumes
    offered_total: int = 0  # bytes of the volumes that may be placed there
    # Volumes of the node's demand and offers that do not fit there together with these, each with an open disk;
    # outdated status may still lead one of them to a disk.
    left_out: Volumes = ()
    bytes_by_class: tuple[tuple[ReplicaRequest, int], ...] = ()  # bytes of all volumes by their class

    @property
    def volumes(self) -> Volumes:
        return self.demanded + self.offered


class CompetitorGroups:
    """Numbers sets of volumes; equal sets share a number."""

    def __init__(self) -> None:
        self._numbers = count()
        self._class_numbers: dict[ReplicaRequest, int] = {}
        self._numbers_by_key: dict[object, int] = {}

    def competitors(self, demanded: Volumes, offered: Volumes, left_out: Volumes = ()) -> Competitors:
        """Returns these volumes with their group numbers and sums."""
        volumes = demanded + offered
        classes = [volume_class(volume.volume) for volume in volumes]
        sizes = [volume.volume.size for volume in volumes]
        # By identity, because hashing every class takes longer.
        bytes_by_class: dict[int, tuple[ReplicaRequest, int]] = {}
        for entry, size in zip(classes, sizes, strict=True):
            bytes_by_class[id(entry)] = (entry, size + bytes_by_class.get(id(entry), (entry, 0))[1])
        return Competitors(
            demanded=demanded,
            offered=offered,
            left_out=left_out,
            group=self._group(volumes, classes, left_out),
            demand_group=self._group(demanded, classes[: len(demanded)]),
            total=sum(sizes),
            offered_total=sum(sizes[len(demanded) :]),
            bytes_by_class=tuple(bytes_by_class.values()),
        )

    def _group(self, volumes: Volumes, classes: Sequence[ReplicaRequest], left_out: Volumes = ()) -> int:
        if len(self._numbers_by_key) >= _MAX_GROUPS:
            self._numbers_by_key.clear()
            # Every linked clone is a class of its own.
            self._class_numbers.clear()
        left_out_classes = [volume_class(volume.volume) for volume in left_out]
        key = (self._sizes_and_classes(volumes, classes), self._sizes_and_classes(left_out, left_out_classes))
        return self._numbers_by_key.setdefault(key, next(self._numbers))

    def _sizes_and_classes(self, volumes: Volumes, classes: Sequence[ReplicaRequest]) -> object:
        numbers = self._class_numbers
        return tuple(
            sorted(
                (volume.volume.size, volume.volume.actual_size, numbers.setdefault(entry, len(numbers)))
                for volume, entry in zip(volumes, classes, strict=True)
            )
        )


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
    def _all(self) -> "FittingVolumes":
        return all_volumes(by_certainty((), self.volumes or ()))

    @cached_property
    def required(self) -> Requirements:
        volumes = self._all.volumes.values()
        return requirements(volumes, volumes)

    def competitors(self, groups: CompetitorGroups) -> Competitors:
        """Returns all volumes as competitors, where they fit together."""
        if self._competitors is None:
            demanded = self._all.demanded
            offered = tuple(volume for key, volume in self._all.volumes.items() if key not in demanded)
            self._competitors = groups.competitors(tuple(demanded.values()), offered)
        return self._competitors


class OfferedVolumes:
    """Caches the volumes of offers for the latest view."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._current: dict[tuple[str, int], tuple[PodVolume, ...]] = {}
        self._joint: dict[tuple[int, ...], tuple[Sequence[Offer], JointOffers]] = {}
        self._unplaced: tuple[UnplacedVolumes, tuple[str, ...], dict[str, PodVolume]] | None = None

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
            uniform = not any(
                volume.replicas or volume.nodes is not None or volume.persistent_volume
                for volume in chain.from_iterable(volumes)
            )
            entry = (offers, JointOffers(offers, volumes, uniform=uniform))
            self._joint[key] = entry
        return entry[1]

    def unplaced(self, ledger: Ledger, unplaced: UnplacedVolumes, view: View) -> dict[str, PodVolume]:
        """Returns the volumes of offers that may go to any node and are no demand yet, the largest first."""
        cached = self._unplaced
        if cached is not None and cached[0] is unplaced and cached[1] is ledger.uids_with_unplaced_volumes:
            return cached[2]
        stored = (volume for offer in ledger.with_unplaced_volumes for volume in offer.unplaced_volumes)
        # Its claim may have been bound since.
        volumes = [current_volume(volume, view) for volume in stored]
        offered = {identity(volume): volume for volume in volumes if not volume.volume.has_shards}
        not_demanded = (volume for key, volume in offered.items() if unplaced.by_key.get(key) is None)
        result = {identity(volume): volume for volume in sorted(not_demanded, key=largest_first)}
        self._unplaced = (unplaced, ledger.uids_with_unplaced_volumes, result)
        return result

    def _volumes_of(self, offer: Offer, view: View) -> tuple[PodVolume, ...]:
        self._reset_for(view)
        key = (offer.uid, offer.number)
        volumes = self._current.get(key)
        if volumes is None:
            volumes = tuple(current_volume(volume, view) for volume in offer.volumes)
            self._current[key] = volumes
        return volumes

    def _reset_for(self, view: View) -> None:
        if self._view is not view:
            self._view = view
            self._current = {}
            self._joint = {}


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
    """Returns the demands without claims that were matched with a PersistentVolume. Until the PersistentVolume shows
    the claim, demand is derived for a new volume. The offer has the volume that it really is.
    """
    if not demands:
        return demands
    matched = {
        claim_identity(volume.claim)
        for volume in chain.from_iterable(offer.volumes for offer in offers)
        if volume.persistent_volume and (volume.nodes is None or name in volume.nodes)
    }
    return [demand for demand in demands if identity(demand.volume) not in matched] if matched else demands


class CompetingVolumes(NamedTuple):
    """The volumes that compete for a node."""

    demanded: Sequence[PodVolume]  # will be placed there
    offered: Sequence[Sequence[PodVolume]]  # may be placed there, by offer
    held: Sequence[Sequence[PodVolume]]  # preemption makes room for them there, by hold

    def without(self, identities: frozenset[str]) -> "CompetingVolumes":
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


VolumesFit = Callable[[Sequence[PodVolume]], bool]
"""Whether volumes fit on the node together."""


class FittingVolumes(NamedTuple):
    """Competing volumes that fit together, by identity."""

    demanded: dict[str, PodVolume]  # the volumes that will be placed there, those of holds included
    volumes: dict[str, PodVolume]  # in addition those that may be placed there
    left_out: Sequence[PodVolume] = ()  # all others, the hopeless ones included


def all_volumes(competing: CompetingVolumes) -> FittingVolumes:
    demanded = _by_identity(competing.demanded)
    held = _by_identity(*competing.held)
    return FittingVolumes(demanded | held, demanded | _by_identity(*competing.offered) | held)


def fitting_volumes(competing: CompetingVolumes, volumes_fit: VolumesFit) -> FittingVolumes:
    """Returns the competing volumes that fit on a node together. If not all of them fit, demand comes before offers,
    older before younger, and holds come last: a pod of higher priority was offered what is held for another one.
    """
    candidates = all_volumes(competing)
    if volumes_fit(list(candidates.volumes.values())):
        return candidates
    demanded = _by_identity(competing.demanded)
    fitting = demanded
    if not volumes_fit(list(demanded.values())):
        fitting = {}
        for key, volume in demanded.items():
            if volumes_fit([*fitting.values(), volume]):
                fitting[key] = volume
    volumes = dict(fitting)
    for offered in (*competing.offered, *competing.held):
        # What counts as a whole: a volume that only prefers the pod's node may go to another node alone.
        local = [volume for volume in offered if volume.local]
        for part in (local, *([volume] for volume in offered if not volume.local)):
            trial = volumes | _by_identity(part)
            if volumes_fit(list(trial.values())):
                volumes = trial
    left_out = [volume for key, volume in candidates.volumes.items() if key not in volumes]
    held = _by_identity(*competing.held)
    fitting = fitting | {key: volume for key, volume in volumes.items() if key in held}
    return FittingVolumes(fitting, volumes, left_out)


def _by_identity(*parts: Sequence[PodVolume]) -> dict[str, PodVolume]:
    return {identity(volume): volume for part in parts for volume in part}
