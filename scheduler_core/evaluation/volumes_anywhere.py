"""Volumes of other pods that may go to any node, on each node that can take them.

Data flow: a node's own competitors (`contention.py`) → with the volumes that fit in addition: roaming ones first, then one node's
share of the unplaced ones (`volumes/outstanding_demand.py`). Nodes with equal competitors are evaluated together. What was added to a node holds for every
requester until the node's competitors, its disks or these volumes change.

A best-effort volume that its node cannot take *roams* while it is young: Longhorn places it on another node, so it counts on every node where
it fits. A strict-local volume never roams, because Longhorn places it on its pod's node or not at all. A volume whose replicas all have a
place does not roam either: they count on their disks.

Every node counts all of them, unlike volumes without data locality, of which a node counts its share: Longhorn
places what a lost disk leaves behind within the same moments and on status that lags behind, so mostly on one node. A volume roams for
`ROAMING_LIFETIME` after it was first seen to, because one that finds no place would otherwise block others without end.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from scheduler_core.caches import ChangeLog, NodeResults, nodes_changed_since
from scheduler_core.cluster.view import View
from scheduler_core.evaluation.competing_volumes import (
    CompetitorGroups,
    Competitors,
    ContentionQuery,
    Volumes,
    VolumesByOffer,
    identity,
    largest_first,
    volumes_key,
)
from scheduler_core.evaluation.disk_profiles import attach_refusal
from scheduler_core.model import longhorn, verdict
from scheduler_core.offers.ledger import Ledger
from scheduler_core.offers.outstanding_offer import Offer
from scheduler_core.packing.budget import give_way
from scheduler_core.volumes.outstanding_demand import UNPLACED_LIFETIME, Demand, replica_count
from scheduler_core.volumes.resolve import PodVolume
from scheduler_core.volumes.volume_requirements import Requirements, requirements

# Results of nodes over all sets of volumes that may go anywhere; the latest sets stay.
_MAX_JOINT = 20_000


class VolumesAnywhere(NamedTuple):
    """Volumes of other pods that may go to any node."""

    roaming: Volumes  # count on every node where they fit
    unplaced: Volumes  # one node's share of the others


class JointCompetitors:
    """Finds the competitors of nodes with the volumes that may go anywhere, and caches them."""

    def __init__(self, groups: CompetitorGroups) -> None:
        self._groups = groups
        self._none = groups.competitors((), ())
        # By node, its own competitors and all.
        self._results: NodeResults[tuple[Competitors | None, Competitors | None]] = NodeResults(_MAX_JOINT)

    def competitors(
        self,
        query: ContentionQuery,
        names: Iterable[str],
        own: Mapping[str, Competitors],
        shared: Collection[str],
        anywhere: VolumesAnywhere,
    ) -> Mapping[str, Competitors]:
        """Returns the competitors of nodes with the volumes that fit in addition to their `own`. Roaming volumes count
        like demand, because no decision of kube-scheduler would end them. `shared`: the nodes that have the same own
        ones for every requester.
        """
        version = (query.state.profiles.changelog,)
        cached = self._results.at(anywhere, version)
        keys = frozenset(map(roaming_key, anywhere.roaming))
        joint: dict[str, Competitors | None] = {}
        # By the competitors' group and the roaming volumes among these, which count already where they are offered.
        groups: dict[tuple[int, frozenset[str]], list[str]] = {}
        for name in names:
            entry = cached.get(name)
            if entry is not None and entry[0] is own.get(name):
                joint[name] = entry[1]
                continue
            on_node = own.get(name, self._none)
            counted = keys.intersection(map(roaming_key, on_node.volumes)) if keys else keys
            groups.setdefault((on_node.group, counted), []).append(name)
        for (_, counted), members in groups.items():
            gave_up = query.budget.gave_up
            base = own.get(members[0], self._none).volumes
            uncounted = tuple(volume for volume in anywhere.roaming if roaming_key(volume) not in counted)
            for fitting, part in split_by_room(query, members, base, uncounted + anywhere.unplaced).items():
                certain = tuple(volume for volume in fitting if roaming_key(volume) in keys)
                possible = tuple(volume for volume in fitting if roaming_key(volume) not in keys)
                alone = self._groups.competitors(certain, possible) if fitting else None
                for name in part:
                    give_way()
                    others = own.get(name)
                    joint[name] = others or alone
                    if others is not None and fitting:
                        demanded = others.demanded + certain
                        joint[name] = self._groups.competitors(demanded, others.offered + possible, others.left_out)
            if query.budget.gave_up == gave_up:
                cached |= {name: (own.get(name), joint[name]) for name in members if name in shared}
        self._results.store(anywhere, cached, version)
        return {name: on_node for name, on_node in joint.items() if on_node is not None}


# A search that gave up counts, or the space might be promised twice.
FITTING = frozenset({verdict.Reason.ROOM, verdict.Reason.UNDECIDED})


def fits_on_node(query: ContentionQuery, name: str, required: Requirements) -> bool:
    """Returns whether a node meets requirements."""
    profiles = query.state.profiles
    [profile] = profiles.table(required.classes).of([name])
    results = profiles.evaluate(required, [profile], query.budget, examine_safety=False)
    return results[profile] in FITTING


def split_by_room(
    query: ContentionQuery, names: list[str], base: Volumes, volumes: Volumes
) -> dict[Volumes, list[str]]:
    """Splits nodes by the volumes, tried in their order, that fit in addition to `base`."""
    all_fitting, remaining = _nodes_with_room(query, names, base + volumes)
    # With the nodes, the keys of volumes that did not fit: an equal one does not fit either, once there are more volumes.
    parts: dict[Volumes, tuple[list[str], frozenset[object]]] = {(): (remaining, frozenset())} if remaining else {}
    for volume in volumes:
        key = volumes_key((volume,))
        split: dict[Volumes, tuple[list[str], frozenset[object]]] = {}
        for fitting, (part, unfit) in parts.items():
            if key in unfit:
                split[fitting] = part, unfit
                continue
            tried = (*base, *fitting, volume)
            with_room, without_room = _nodes_with_room(query, part, tried)
            if with_room:
                split[*fitting, volume] = with_room, unfit
            if without_room:
                split[fitting] = without_room, unfit | {key}
        parts = split
    return {fitting: part for fitting, (part, _) in parts.items()} | {volumes: all_fitting}


def _nodes_with_room(query: ContentionQuery, names: list[str], volumes: Volumes) -> tuple[list[str], list[str]]:
    required = requirements(volumes, ())
    profiles = query.state.profiles
    node_profiles = profiles.table(required.classes).of(names)
    results = profiles.evaluate(required, node_profiles, query.budget, examine_safety=False)
    with_room: list[str] = []
    without_room: list[str] = []
    for name, profile in zip(names, node_profiles, strict=True):
        (with_room if results[profile] in FITTING else without_room).append(name)
    return with_room, without_room


ROAMING_LIFETIME = UNPLACED_LIFETIME
# Each costs a look-up per node and request. A node runs 110 pods at most, by the kubelet's default.
MAX_ROAMING = 110
Version = tuple[ChangeLog, ChangeLog]  # of disk profiles and of demand


class RoamingVolume(NamedTuple):
    """A volume that does not fit on the node where it is demanded or offered."""

    volume: PodVolume
    offer: Offer | None = None  # the offer that it belongs to; None if it is demanded


def roaming_key(volume: PodVolume) -> str:
    """Returns a key that a volume keeps while it is provisioned."""
    return volume.claim or volume.name


def volumes_roaming_from(
    view: View, name: str, demands: Iterable[Demand], volumes_by_offer: VolumesByOffer, competitors: Competitors
) -> Iterator[RoamingVolume]:
    """Returns the volumes of demand and offers that roam from a node."""
    fitting = frozenset(map(identity, competitors.volumes))
    volumes = [RoamingVolume(demand.volume) for demand in demands]
    # A hold is not placed yet: kube-scheduler has not decided for the node.
    volumes += [
        RoamingVolume(volume, offer) for offer, part in volumes_by_offer if offer.priority is None for volume in part
    ]
    return (entry for entry in volumes if identity(entry.volume) not in fitting and _can_roam(entry.volume, name, view))


def _can_roam(volume: PodVolume, node: str, view: View) -> bool:
    placed = sum(1 for replica in volume.replicas if replica.node_id and not replica.deleting and not replica.failed_at)
    if volume.volume.data_locality != longhorn.BEST_EFFORT or placed >= replica_count(volume):
        return False
    # Longhorn places a best-effort volume once it is being attached.
    return volume.volume.node_id != "" or attach_refusal(view, requirements((), (volume,)).classes, node) is None


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
        self.since: dict[str, tuple[datetime, bool]] = {}
        # Those since when volumes roam here, too, if they roam there.
        self.followed: RoamingVolumes | None = None

    def nodes_to_update(self, version: Version, longhorn_nodes: Iterable[str]) -> frozenset[str]:
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
        roaming: dict[str, PodVolume] = {}
        for _, volumes in sorted(self._by_node.items()):
            for volume, offer in volumes:
                current = None if offer is None else ledger.offer_of(offer.uid)
                if offer is None or (current is not None and current.number == offer.number):
                    roaming.setdefault(roaming_key(volume), volume)
        followed = {} if self.followed is None else self.followed.since
        starts: dict[str, tuple[datetime, bool]] = {}
        for key, volume in roaming.items():
            # A volume that is created while its claim counts continues it. One that is created later counts for a time of its own.
            since, existed = followed.get(key) or self.since.get(key) or (now, volume.bound)
            late = volume.bound and not existed and now - since >= ROAMING_LIFETIME
            starts[key] = (now if late else since, volume.bound)
        self.since = starts
        young = [volume for key, volume in roaming.items() if now - self.since[key][0] < ROAMING_LIFETIME]
        return tuple(sorted(young, key=largest_first)[:MAX_ROAMING])
