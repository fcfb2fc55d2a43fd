"""The volumes that were promised space on a node and have no replica there yet."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain

from scheduler_core.cluster.view import View
from scheduler_core.demand.derive import Demand
from scheduler_core.evaluation.competitors import (
    CompetingVolumes,
    OfferedVolumes,
    VolumesByOffer,
    all_volumes,
    by_certainty,
    without_matched_claims,
)
from scheduler_core.extender.allowed_placements import longhorn_names
from scheduler_core.offers.ledger import Ledger
from scheduler_core.volumes.resolve import PodVolume

Demands = Sequence[Demand]


@dataclass(frozen=True, slots=True)
class VolumesToCome:
    """The volumes of demand and offers that need space on a node."""

    demands: Demands
    offers: VolumesByOffer

    @classmethod
    def of(cls, view: View, demands: Demands, ledger: Ledger, node: str) -> VolumesToCome:
        """Returns all that need space there."""
        offers = ledger.offers_on(node)
        counted = without_matched_claims(demands, offers, node)
        shown = {demand.volume.volume.name for demand in counted if demand.volume.bound}

        # Each kind has a watch of its own, so a volume may be shown as attached before its claim is shown as bound; it
        # counts then.
        def counts(volume: PodVolume) -> bool:
            return volume.bound or longhorn_names(volume, view).isdisjoint(shown)

        by_offer = OfferedVolumes().on_node(offers, node, view)
        return cls(
            [demand for demand in counted if counts(demand.volume)],
            [(offer, [volume for volume in volumes if counts(volume)]) for offer, volumes in by_offer],
        )

    def need_of(self, name: str, view: View) -> tuple[PodVolume, str] | None:
        """Returns the volume with this name in Longhorn, and its pod as ``namespace/name``; None if no pod needs the
        volume.
        """
        for demand in self.demands:
            if name in longhorn_names(demand.volume, view):
                return demand.volume, demand.pod
        # Longhorn places a volume after its pod was bound, so an offer that has it was decided for, though no watch has
        # shown that yet.
        for offer, volumes in self.offers:
            for volume in volumes if offer.priority is None else ():
                if name in longhorn_names(volume, view):
                    return volume, f"{offer.pod.namespace}/{offer.pod.name}"
        return None

    def competing(self, placed: Collection[str], view: View) -> CompetingVolumes:
        """Returns the volumes by how certain they are; offers with one of the placed volumes are decided already."""
        decided = [
            volumes
            for offer, volumes in self.offers
            if offer.priority is None and any(not longhorn_names(volume, view).isdisjoint(placed) for volume in volumes)
        ]
        competing = by_certainty(self.demands, self.offers)
        return competing._replace(demanded=[*competing.demanded, *chain.from_iterable(decided)])


def placed_identities(competing: CompetingVolumes, allowed: Collection[str], view: View) -> frozenset[str]:
    """Returns the identities of the competing volumes that are placed already, by the allowed names in Longhorn or by
    the view.
    """
    placed: set[str] = set()
    for key, volume in all_volumes(competing).volumes.items():
        names = longhorn_names(volume, view)
        # The view may show a replica with a disk before it shows that the claim is bound.
        ahead = not volume.bound and any(replica.disk_id for name in names for replica in view.replicas_of(name))
        if ahead or not names.isdisjoint(allowed):
            placed.add(key)
    return frozenset(placed)
