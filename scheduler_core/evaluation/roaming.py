"""Best-effort volumes that their node cannot take: Longhorn places them on other nodes.

Data flow: a node's demand and offers that do not fit there (`contention.py`) → the best-effort volumes among them that have replicas to
place → while they are young, they *roam*: they count on every node where they fit. A strict-local volume never roams, because Longhorn
places it on its pod's node or not at all. A volume whose replicas all have a place does not roam either: they count on their disks.

Every node counts all of them, unlike volumes without data locality (`demand/unplaced.py`), of which a node counts its share: Longhorn
places what a lost disk leaves behind within the same moments and on status that lags behind, so mostly on one node. A volume roams for
`ROAMING_LIFETIME` after it was first seen to, because one that finds no place would otherwise block others without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from scheduler_core.cluster.changelog import ChangeLog, nodes_changed_since
from scheduler_core.cluster.view import View
from scheduler_core.demand.derive import Demand
from scheduler_core.demand.unplaced import UNPLACED_LIFETIME, replica_count
from scheduler_core.evaluation.competitors import Competitors, Volumes, identity
from scheduler_core.evaluation.node_rules import attach_refusal
from scheduler_core.evaluation.offered_volumes import VolumesByOffer
from scheduler_core.model.longhorn import BEST_EFFORT
from scheduler_core.offers.ledger import Ledger
from scheduler_core.offers.outstanding_offer import Offer
from scheduler_core.volumes.requirements import requirements
from scheduler_core.volumes.resolve import PodVolume

ROAMING_LIFETIME: Final = UNPLACED_LIFETIME
# Each costs a look-up per node and request. A node runs 110 pods at most, by the kubelet's default.
MAX_ROAMING: Final = 110
Version = tuple[ChangeLog, ChangeLog]
"""The change logs of disk profiles and of demand."""


@dataclass(frozen=True, slots=True)
class RoamingVolume:
    """A volume that does not fit on the node where it is demanded or offered."""

    volume: PodVolume
    offer: Offer | None = None  # the offer that it belongs to; None if it is demanded

    def counts_in(self, ledger: Ledger) -> bool:
        """Whether the ledger has the offer; true for demand."""
        current = None if self.offer is None else ledger.offer_of(self.offer.uid)
        return self.offer is None or (current is not None and current.number == self.offer.number)


def roaming_key(volume: PodVolume) -> str:
    """Returns a key that a volume keeps while it is provisioned."""
    return volume.claim or volume.name


def replicas_to_place(volume: PodVolume) -> int:
    placed = sum(1 for replica in volume.replicas if replica.node_id and not replica.deleting and not replica.failed_at)
    return max(0, replica_count(volume) - placed)


def can_roam(volume: PodVolume, node: str, view: View) -> bool:
    """Whether Longhorn places a volume elsewhere if this node cannot take it."""
    if volume.volume.data_locality != BEST_EFFORT or not replicas_to_place(volume):
        return False
    # Longhorn places a best-effort volume once it is being attached.
    return volume.volume.node_id != "" or attach_refusal(view, requirements((), (volume,)).classes, node) is None


def volumes_roaming_from(
    view: View,
    name: str,
    demands: Iterable[Demand],
    volumes_by_offer: VolumesByOffer,
    competitors: Competitors,
) -> Iterator[RoamingVolume]:
    """Yields the volumes of demand and offers that roam from a node."""
    fitting = frozenset(map(identity, competitors.volumes))
    volumes = [RoamingVolume(demand.volume) for demand in demands]
    # A hold is not placed yet: kube-scheduler has not decided for the node.
    volumes += [
        RoamingVolume(volume, offer) for offer, part in volumes_by_offer if offer.priority is None for volume in part
    ]
    return (entry for entry in volumes if identity(entry.volume) not in fitting and can_roam(entry.volume, name, view))


def older_version(first: Version | None, second: Version) -> Version | None:
    """Returns the older of two versions, None if it is not known which."""
    if first is None or nodes_changed_since(first, second) is not None:
        return first
    return second if nodes_changed_since(second, first) is not None else None


class RoamingVolumes:
    """The roaming volumes of all nodes, and since when they roam."""

    def __init__(self) -> None:
        self.version: Version | None = None  # the cluster that they were found in, None if that is not known
        self._by_node: dict[str, tuple[RoamingVolume, ...]] = {}
        self._since: dict[str, tuple[datetime, bool]] = {}

    def nodes_to_update(self, version: Version, longhorn_nodes: Iterable[str]) -> frozenset[str]:
        """Names of the nodes where other volumes may fit in `version`."""
        changed = None if self.version is None else nodes_changed_since(self.version, version)
        # An offer fits on its nodes when it is made, so a change of offers alone matters only where some volume did not fit.
        return frozenset(self._by_node).union(longhorn_nodes if changed is None else changed)

    def put(self, node: str, volumes: Iterable[RoamingVolume]) -> None:
        """Replaces the volumes that roam from a node."""
        roaming = tuple(volumes)
        if roaming:
            self._by_node[node] = roaming
        else:
            self._by_node.pop(node, None)

    def volumes_on_every_node(self, ledger: Ledger, now: datetime) -> Volumes:
        """Returns the volumes that count on every node. The largest come first, at most `MAX_ROAMING`."""
        if not self._by_node:
            self._since.clear()
            return ()
        roaming: dict[str, RoamingVolume] = {}
        for name in sorted(self._by_node):
            for entry in self._by_node[name]:
                if entry.counts_in(ledger):
                    roaming.setdefault(roaming_key(entry.volume), entry)
        self._since = {key: self._roaming_since(key, entry.volume, now) for key, entry in roaming.items()}
        young = [entry.volume for key, entry in roaming.items() if now - self._since[key][0] < ROAMING_LIFETIME]
        return tuple(sorted(young, key=lambda volume: (-volume.volume.size, identity(volume)))[:MAX_ROAMING])

    def _roaming_since(self, key: str, volume: PodVolume, now: datetime) -> tuple[datetime, bool]:
        """Returns since when a volume roams, and whether it existed then."""
        # A volume that is created while its claim counts continues it. One that is created later counts for a time of
        # its own.
        since, existed = self._since.get(key, (now, volume.bound))
        late = volume.bound and not existed and now - since >= ROAMING_LIFETIME
        return (now if late else since), volume.bound
