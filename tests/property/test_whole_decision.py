"""Whole decisions, compared with a second implementation written from the rules' text.

It has no profiles, caches, masks or searches: it tries every assignment of volumes to disks. Replicas are in every state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from random import Random

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
    """A replica; `node` is empty while it has no place, and may name a deleted node."""

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
    def usable(self) -> bool:
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
        """The volumes that need space on the pod's node."""
        return [volume for volume in self.volumes if volume.locality != "disabled"]


def random_cluster(random: Random) -> Cluster:
    """A small cluster in which a few things are wrong."""
    nodes = {f"n{index}": _random_node(random) for index in range(random.randint(1, 4))}
    return Cluster(nodes, [_random_volume(random, nodes) for _ in range(random.randint(1, 3))])


def _random_node(random: Random) -> Node:
    node = Node(
        allow=random.random() < 0.85,
        evict=random.random() < 0.08,
        ready=random.random() < 0.9,
        schedulable=random.random() < 0.9,
    )
    for index in range(random.randint(0, 3)):
        size = random.choice([40, 60, 100])
        node.disks[f"d{index}"] = Disk(
            size=size,
            scheduled=random.choice([0, 0, 10, 30, size]),
            available=random.choice([size, size / 4, size / 4 + 20]),
            allow=random.random() < 0.85,
            ready=random.random() < 0.9,
            tags=random.choice([(), ("ssd",)]),
        )
    return node


def _random_volume(random: Random, nodes: dict[str, Node]) -> Volume:
    size = random.choice([10, 20, 30, 50])
    replicas = []
    for _ in range(random.choice([0, 0, 1, 1, 2, 3])):
        node = random.choice([*nodes, "gone", ""])
        disks = list(nodes[node].disks) if node in nodes else []
        healthy, failed, evicting, deleting = (random.random() < odds for odds in (0.7, 0.3, 0.12, 0.12))
        node_disk = random.choice(disks or ["d0"])
        replicas.append(Replica(node, node_disk, healthy, failed, evicting, deleting, random.choice([0, 0, 5])))
    locality = random.choice(["best-effort"] * 4 + ["strict-local", "disabled"])
    return Volume(size, min(size, random.choice([0, 0, 5, 15])), locality, random.choice([(), (), ("ssd",)]), replicas)


def objects(cluster: Cluster) -> list[Object]:
    """The cluster as Kubernetes objects."""
    raw_objects = []
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
        raw_objects.append(
            longhorn_node(
                name, disks, allow=node.allow, evict=node.evict, ready=node.ready, schedulable=node.schedulable
            )
        )
    for index, volume in enumerate(cluster.volumes):
        raw_objects += bound(
            f"v{index}", volume.size, locality=volume.locality, actual=volume.actual, diskSelector=list(volume.tags)
        )
        raw_objects += [
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
    return raw_objects


def replica_state(cluster: Cluster, volume: Volume, entry: Replica) -> str:
    """The state of a replica that is of use on its node, otherwise ""."""
    node = cluster.nodes.get(entry.node)
    node_disk = node.disks.get(entry.disk) if node else None
    if node is None or node_disk is None or not entry.stays or not node.ready or not node_disk.ready:
        return ""
    if not entry.failed:
        return "healthy" if entry.healthy else "new"
    if not any(sibling.usable for sibling in volume.replicas):
        return "failed" if entry.retries < 5 or entry.healthy else ""
    is_open = node.allow and node.schedulable and node_disk.allow and set(volume.tags) <= set(node_disk.tags)
    return "failed" if is_open and entry.retries < 5 else ""


def homes(cluster: Cluster, candidates: set[str]) -> set[str]:
    """The candidates that are a home of every local volume."""
    shared: set[str] | None = None
    for volume in cluster.local:
        nodes_by_state: dict[str, set[str]] = {"healthy": set(), "new": set(), "failed": set(), "": set()}
        for entry in volume.replicas:
            if entry.node in candidates:
                nodes_by_state[replica_state(cluster, volume, entry)].add(entry.node)
        salvage = not any(sibling.usable for sibling in volume.replicas)
        homes_of_volume = nodes_by_state["healthy"] or (
            nodes_by_state["new"] | nodes_by_state["failed"] if salvage else nodes_by_state["new"]
        )
        shared = homes_of_volume if shared is None else shared & homes_of_volume
    return shared or set()


def fits_on(cluster: Cluster, name: str) -> bool:
    """Whether some assignment of the volumes that need space on the node keeps every rule."""
    node = cluster.nodes[name]
    volumes_to_place = [
        volume
        for volume in cluster.local
        if not any(entry.node == name and replica_state(cluster, volume, entry) for entry in volume.replicas)
    ]
    if not node.ready:
        return False
    if volumes_to_place and (node.evict or not node.allow or not node.schedulable):
        return False
    if any(entry.node == name and blocks_its_node(entry) for volume in volumes_to_place for entry in volume.replicas):
        return False
    for picks in product(node.disks, repeat=len(volumes_to_place)):
        added: Counter[str] = Counter()
        for volume, pick in zip(volumes_to_place, picks, strict=True):
            added[pick] += volume.size
        if all(
            disk_accepts(node.disks[pick], volume) for volume, pick in zip(volumes_to_place, picks, strict=True)
        ) and all(size <= free(cluster, name, pick) for pick, size in added.items()):
            return True
    return False


def blocks_its_node(entry: Replica) -> bool:
    """Whether a replica keeps others of its volume off its node."""
    return not entry.deleting and not entry.evicting and (not entry.failed or entry.retries < 5)


def disk_accepts(node_disk: Disk, volume: Volume) -> bool:
    """Whether a disk may take a volume: its tags, its switches, and Longhorn's actual-space rule."""
    return (
        node_disk.allow
        and node_disk.ready
        and set(volume.tags) <= set(node_disk.tags)
        and node_disk.available - volume.actual > node_disk.size * 25 / 100
    )


def free(cluster: Cluster, name: str, pick: str) -> int:
    """The Gi left to schedule; no status lists the placed replicas yet."""
    node_disk = cluster.nodes[name].disks[pick]
    replica_sizes = sum(
        volume.size
        for volume in cluster.volumes
        for entry in volume.replicas
        if (entry.node, entry.disk) == (name, pick)
    )
    return node_disk.size - node_disk.scheduled - replica_sizes


def expected(cluster: Cluster) -> set[str]:
    """The nodes that fit, by the text of the rules."""
    candidates = set(cluster.nodes)
    for volume in cluster.local:
        replica_nodes = {entry.node for entry in volume.replicas if entry.node}
        if volume.locality == "strict-local" and replica_nodes:
            candidates &= replica_nodes
    for volume in cluster.volumes:
        if volume.locality == "disabled" and not any(entry.node for entry in volume.replicas):
            fits_somewhere = any(
                node.ready and node.allow and node.schedulable and not node.evict
                and disk_accepts(node_disk, volume) and volume.size <= free(cluster, name, pick)
                for name, node in cluster.nodes.items() for pick, node_disk in node.disks.items()
            )  # fmt: skip
            if not fits_somewhere:
                return set()
    return homes(cluster, candidates) or {name for name in candidates if fits_on(cluster, name)}


def requesting_pod(cluster: Cluster) -> Object:
    """A pod that mounts all the volumes."""
    return pod(*(f"v{index}" for index in range(len(cluster.volumes))))


@given(st.randoms(use_true_random=False))
def test_a_node_fits_exactly_if_the_rules_allow_it(random: Random) -> None:
    """All rules together: replicas in every state, closed nodes and disks, packing."""
    cluster = random_cluster(random)
    assert set(fitting(explained(requesting_pod(cluster), objects(cluster), options=EXACT))) == expected(cluster)


@given(st.randoms(use_true_random=False))
def test_a_node_without_replicas_gets_the_same_reason_from_its_profile_and_alone(random: Random) -> None:
    """The evaluation of thousands of nodes agrees with that of a single one."""
    cluster = random_cluster(random)
    holding = {entry.node for volume in cluster.volumes for entry in volume.replicas}
    explanation = explained(requesting_pod(cluster), objects(cluster), options=EXACT)
    current = view(objects(cluster))
    cluster_reasons = (Reason.HOME, Reason.HOME_ELSEWHERE, Reason.STRICT_LOCAL_ELSEWHERE, Reason.NO_ROOM_IN_CLUSTER)
    for name, reason in zip(explanation.decision.candidates, explanation.decision.reasons, strict=True):
        if name not in holding and reason not in cluster_reasons and cluster.local:
            assert evaluate_node(current, explanation.decision.resolution, name).reason(Budget()) is reason
