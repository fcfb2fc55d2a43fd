"""Whole decisions, replicas in every state included, against a second implementation written from the rules' text.

The second one knows nothing of profiles, memories, masks or searches: it tries every assignment of volumes to disks.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.evaluation.single_node import evaluate_node
from scheduler_core.extender.decision import FilterOptions, Packing
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import Budget
from tests.builders import Object, bound, disk, explained, fitting, longhorn_node, pod, replica, view

EXACT = FilterOptions(packing=Packing.EXACT)


@dataclass
class Disk:
    """A disk, in Gi."""

    size: int
    scheduled: int
    available: float
    allow: bool
    ready: bool
    tags: tuple[str, ...]


@dataclass
class Node:
    """A Longhorn node."""

    allow: bool
    evict: bool
    ready: bool
    schedulable: bool
    disks: dict[str, Disk] = field(default_factory=dict)


@dataclass
class Replica:
    """A replica; `node` is empty while it has no place, and may name a node that is gone."""

    node: str
    disk: str
    healthy: bool
    failed: bool
    evicting: bool
    deleting: bool
    retries: int

    @property
    def stays(self) -> bool:
        """Whether it has a place and keeps it."""
        return bool(self.node) and not self.evicting and not self.deleting

    @property
    def good(self) -> bool:
        """Whether it is healthy and stays."""
        return self.stays and self.healthy and not self.failed


@dataclass
class Volume:
    """A bound volume, in Gi."""

    size: int
    actual: int
    locality: str
    tags: tuple[str, ...]
    replicas: list[Replica]


@dataclass
class Cluster:
    """Nodes by name, volumes in the order of their claims ``v0``, ``v1``, ..."""

    nodes: dict[str, Node]
    volumes: list[Volume]

    @property
    def local(self) -> list[Volume]:
        """The volumes that need room on the pod's node."""
        return [volume for volume in self.volumes if volume.locality != "disabled"]


def draw(chance: random.Random) -> Cluster:
    """A small cluster with something wrong here and there."""
    nodes = {f"n{index}": _node(chance) for index in range(chance.randint(1, 4))}
    return Cluster(nodes, [_volume(chance, nodes) for _ in range(chance.randint(1, 3))])


def _node(chance: random.Random) -> Node:
    allow, evict, ready, schedulable = (chance.random() < odds for odds in (0.85, 0.08, 0.9, 0.9))
    node = Node(allow, evict, ready, schedulable)
    for index in range(chance.randint(0, 3)):
        size = chance.choice([40, 60, 100])
        node.disks[f"d{index}"] = Disk(
            size=size,
            scheduled=chance.choice([0, 0, 10, 30, size]),
            available=chance.choice([size, size / 4, size / 4 + 20]),
            allow=chance.random() < 0.85,
            ready=chance.random() < 0.9,
            tags=chance.choice([(), ("ssd",)]),
        )
    return node


def _volume(chance: random.Random, nodes: dict[str, Node]) -> Volume:
    size = chance.choice([10, 20, 30, 50])
    replicas = []
    for _ in range(chance.choice([0, 0, 1, 1, 2, 3])):
        node = chance.choice([*nodes, "gone", ""])
        disks = list(nodes[node].disks) if node in nodes else []
        healthy, failed, evicting, deleting = (chance.random() < odds for odds in (0.7, 0.3, 0.12, 0.12))
        place = chance.choice(disks or ["d0"])
        replicas.append(Replica(node, place, healthy, failed, evicting, deleting, chance.choice([0, 0, 5])))
    locality = chance.choice(["best-effort"] * 4 + ["strict-local", "disabled"])
    return Volume(size, min(size, chance.choice([0, 0, 5, 15])), locality, chance.choice([(), (), ("ssd",)]), replicas)


def objects(cluster: Cluster) -> list[Object]:
    """The cluster as Kubernetes objects."""
    made = []
    for name, node in cluster.nodes.items():
        disks = {
            key: disk(
                entry.size,
                scheduled=entry.scheduled,
                available=entry.available,
                allow=entry.allow,
                ready=entry.ready,
                tags=entry.tags,
            )
            for key, entry in node.disks.items()
        }
        made.append(
            longhorn_node(
                name, disks, allow=node.allow, evict=node.evict, ready=node.ready, schedulable=node.schedulable
            )
        )
    for index, volume in enumerate(cluster.volumes):
        made += bound(
            f"v{index}", volume.size, locality=volume.locality, actual=volume.actual, diskSelector=list(volume.tags)
        )
        made += [
            replica(
                f"r{index}-{number}",
                f"vol-v{index}",
                entry.node,
                disk=entry.disk,
                size=volume.size,
                healthy=entry.healthy,
                failed=entry.failed,
                deleting=entry.deleting,
                evictionRequested=entry.evicting,
                rebuildRetryCount=entry.retries,
            )
            for number, entry in enumerate(volume.replicas)
        ]
    return made


def worth(cluster: Cluster, volume: Volume, entry: Replica) -> str:
    """What a replica means on its node: healthy, new, failed, or nothing."""
    node = cluster.nodes.get(entry.node)
    place = node.disks.get(entry.disk) if node else None
    if node is None or place is None or not entry.stays or not node.ready or not place.ready:
        return ""
    if not entry.failed:
        return "healthy" if entry.healthy else "new"
    if not any(other.good for other in volume.replicas):
        return "failed" if entry.retries < 5 or entry.healthy else ""
    usable = node.allow and node.schedulable and place.allow and set(volume.tags) <= set(place.tags)
    return "failed" if usable and entry.retries < 5 else ""


def homes(cluster: Cluster, candidates: set[str]) -> set[str]:
    """The candidates that are a home of every local volume."""
    shared: set[str] | None = None
    for volume in cluster.local:
        found: dict[str, set[str]] = {"healthy": set(), "new": set(), "failed": set(), "": set()}
        for entry in volume.replicas:
            if entry.node in candidates:
                found[worth(cluster, volume, entry)].add(entry.node)
        salvage = not any(other.good for other in volume.replicas)
        own = found["healthy"] or (found["new"] | found["failed"] if salvage else found["new"])
        shared = own if shared is None else shared & own
    return shared or set()


def fits_on(cluster: Cluster, name: str) -> bool:
    """Whether some assignment of the volumes that need space on a node keeps every rule."""
    node = cluster.nodes[name]
    needing = [
        volume
        for volume in cluster.local
        if not any(entry.node == name and worth(cluster, volume, entry) for entry in volume.replicas)
    ]
    if not node.ready:
        return False
    if needing and (node.evict or not node.allow or not node.schedulable):
        return False
    if any(entry.node == name and occupies(entry) for volume in needing for entry in volume.replicas):
        return False
    for picks in product(node.disks, repeat=len(needing)):
        added: Counter[str] = Counter()
        for volume, pick in zip(needing, picks, strict=True):
            added[pick] += volume.size
        if all(opens(node.disks[pick], volume) for volume, pick in zip(needing, picks, strict=True)) and all(
            size <= free(cluster, name, pick) for pick, size in added.items()
        ):
            return True
    return False


def occupies(entry: Replica) -> bool:
    """Whether a replica keeps others of its volume off its node, even where it is of no use (a disk that is not ready)."""
    return not entry.deleting and not entry.evicting and (not entry.failed or entry.retries < 5)


def opens(place: Disk, volume: Volume) -> bool:
    """Whether a disk may take a volume at all: tags, switches, and Longhorn's actual-space rule."""
    return (
        place.allow
        and place.ready
        and set(volume.tags) <= set(place.tags)
        and place.available - volume.actual > place.size * 25 / 100
    )


def free(cluster: Cluster, name: str, pick: str) -> int:
    """Gi left to schedule: every replica placed there counts, whatever its state, for no status lists it yet."""
    place = cluster.nodes[name].disks[pick]
    placed = sum(
        volume.size
        for volume in cluster.volumes
        for entry in volume.replicas
        if (entry.node, entry.disk) == (name, pick)
    )
    return place.size - place.scheduled - placed


def expected(cluster: Cluster) -> set[str]:
    """The nodes that fit, from the text of the rules."""
    candidates = set(cluster.nodes)
    for volume in cluster.local:
        placed = {entry.node for entry in volume.replicas if entry.node}
        if volume.locality == "strict-local" and placed:
            candidates &= placed
    for volume in cluster.volumes:
        if volume.locality == "disabled" and not any(entry.node for entry in volume.replicas):
            somewhere = any(
                node.ready and node.allow and node.schedulable and not node.evict
                and opens(place, volume) and volume.size <= free(cluster, name, pick)
                for name, node in cluster.nodes.items() for pick, place in node.disks.items()
            )  # fmt: skip
            if not somewhere:
                return set()
    return homes(cluster, candidates) or {name for name in candidates if fits_on(cluster, name)}


def asked(cluster: Cluster) -> Object:
    """A pod with all the volumes."""
    return pod(*(f"v{index}" for index in range(len(cluster.volumes))))


@given(st.randoms(use_true_random=False))
def test_a_node_fits_exactly_when_the_rules_say_so(chance: random.Random) -> None:
    """Restart, ties, remote volumes, kept and leaving replicas, closed nodes and disks, both space rules, packing."""
    cluster = draw(chance)
    assert set(fitting(explained(asked(cluster), objects(cluster), options=EXACT))) == expected(cluster)


@given(st.randoms(use_true_random=False))
def test_a_node_without_replicas_is_judged_alike_by_its_profile_and_on_its_own(chance: random.Random) -> None:
    """The quick way for thousands of nodes and the careful one for a single node never differ."""
    cluster = draw(chance)
    holding = {entry.node for volume in cluster.volumes for entry in volume.replicas}
    explanation = explained(asked(cluster), objects(cluster), options=EXACT)
    current = view(objects(cluster))
    ours = (Reason.HOME, Reason.HOME_ELSEWHERE, Reason.STRICT_LOCAL_ELSEWHERE, Reason.NO_ROOM_IN_CLUSTER)
    for name, reason in zip(explanation.decision.candidates, explanation.decision.reasons, strict=True):
        if name not in holding and reason not in ours and cluster.local:
            assert evaluate_node(current, explanation.decision.resolution, name).reason(Budget()) is reason
