"""Whole decisions, compared with a second implementation written from the rules' text.

It has no profiles, caches, masks or bounds: it tries every assignment of replicas to disks. Replicas are in every state.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from random import Random

import pytest
from hypothesis import given, strategies as st

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.explain import Explanation
from scheduler_core.evaluation import placement_across_nodes
from scheduler_core.evaluation.single_node import evaluate_node
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import Budget
from tests.builders import Object, bound, disk, explained, fitting, longhorn_node, pod, reasons, replica, setting, view


@dataclass
class Disk:
    """A disk, in Gi."""

    size: int
    scheduled: int
    reserved: int
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
    zone: str = ""
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
        return bool(self.node) and not self.evicting and not self.deleting

    @property
    def usable(self) -> bool:
        return self.stays and self.healthy and not self.failed


@dataclass
class Volume:
    """A bound volume, in Gi."""

    size: int
    actual: int
    locality: str
    tags: tuple[str, ...]
    replicas: list[Replica]
    count: int = 1
    faulted: bool = False
    deleting: bool = False
    restoring: bool = False
    clone: str = ""


@dataclass
class Cluster:
    """Nodes by name, volumes in the order of their claims ``v0``, ``v1``, ..., and the settings about a volume's replicas."""

    nodes: dict[str, Node]
    volumes: list[Volume]
    degraded: bool = True
    soft_node: bool = False
    soft_zone: bool = True
    soft_disk: bool = True

    @property
    def local(self) -> list[Volume]:
        """The volumes that need space on the pod's node."""
        return [volume for volume in self.volumes if volume.locality != "disabled"]


def random_cluster(random: Random) -> Cluster:
    """A small cluster in which a few things are wrong."""
    nodes = {f"n{index}": _random_node(random) for index in range(random.randint(1, 4))}
    return Cluster(nodes, [_random_volume(random, nodes) for _ in range(random.randint(1, 3))])


def random_spread(random: Random) -> Cluster:
    """A small cluster in which replicas of several volumes need places, under every setting about their spread."""
    nodes = {f"n{index}": _random_node(random) for index in range(random.randint(2, 4))}
    volumes = [_random_volume(random, nodes) for _ in range(random.randint(1, 3))]
    for node in nodes.values():
        node.zone = random.choice(["", "east", "west"])
        if random.random() < 0.7:
            _open(node)
    for volume in volumes:
        volume.locality = random.choice(["best-effort", "disabled", "disabled"])
        volume.count = random.choice([1, 2, 2, 3])
        if random.random() < 0.7:
            volume.replicas = []
        volume.faulted, volume.deleting, volume.restoring = (random.random() < odds for odds in (0.05, 0.01, 0.01))
        volume.clone = random.choice([""] * 60 + ["completed", "initiated"])
    soft_node, soft_zone, soft_disk = (random.random() < odds for odds in (0.3, 0.7, 0.7))
    return Cluster(nodes, volumes, random.random() < 0.3, soft_node, soft_zone, soft_disk)


def _open(node: Node) -> None:
    """Lets Longhorn place replicas on a node and on its disks."""
    node.allow, node.evict, node.ready, node.schedulable = True, False, True, True
    for entry in node.disks.values():
        entry.allow = entry.ready = True


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
            reserved=random.choice([0, 0, 10]),
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
    settings = {
        "allow-volume-creation-with-degraded-availability": cluster.degraded,
        "replica-soft-anti-affinity": cluster.soft_node,
        "replica-zone-soft-anti-affinity": cluster.soft_zone,
        "replica-disk-soft-anti-affinity": cluster.soft_disk,
    }
    raw_objects = [setting(name, str(value).lower()) for name, value in settings.items()]
    for name, node in cluster.nodes.items():
        disks = {key: disk(**vars(entry)) for key, entry in node.disks.items()}
        raw_objects.append(longhorn_node(name, **{**vars(node), "disks": disks}))
    for index, volume in enumerate(cluster.volumes):
        *claim, raw_volume = bound(
            f"v{index}",
            volume.size,
            locality=volume.locality,
            actual=volume.actual,
            diskSelector=list(volume.tags),
            numberOfReplicas=volume.count,
            dataSource="vol://source" if volume.clone else "",
        )
        raw_volume["status"] |= {
            "robustness": "faulted" if volume.faulted else "unknown",
            "restoreRequired": volume.restoring,
            "cloneStatus": {"state": volume.clone},
        }
        if volume.deleting:
            raw_volume["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        raw_objects += [*claim, raw_volume]
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
    if not (cluster.soft_node and cluster.soft_zone) and any(
        entry.node == name and blocks_its_node(entry) for volume in volumes_to_place for entry in volume.replicas
    ):
        return False
    for picks in product(node.disks, repeat=len(volumes_to_place)):
        added: Counter[str] = Counter()
        for volume, pick in zip(volumes_to_place, picks, strict=True):
            added[pick] += volume.size
        if all(
            disk_accepts(node.disks[pick], volume) and not blocks_its_disk(cluster, volume, name, pick)
            for volume, pick in zip(volumes_to_place, picks, strict=True)
        ) and all(size <= free(cluster, name, pick) for pick, size in added.items()):
            return True
    return False


def blocks_its_disk(cluster: Cluster, volume: Volume, name: str, pick: str) -> bool:
    """Whether a replica of the volume keeps others off a disk: any but a failed one that Longhorn would not use again."""
    return not cluster.soft_disk and any(
        (entry.node, entry.disk) == (name, pick) and (not entry.failed or (entry.retries < 5 and not entry.evicting))
        for entry in volume.replicas
    )


def takes_replicas(node: Node) -> bool:
    """Whether Longhorn places new replicas on a node, its disks aside."""
    return node.ready and node.allow and node.schedulable


def replicas_to_place(cluster: Cluster, volume: Volume) -> int:
    """How many replicas must have a place before Longhorn attaches the volume, as far as they have none."""
    pending = sum(not entry.node for entry in volume.replicas)
    if pending < len(volume.replicas):
        return 0 if cluster.degraded else pending
    return 1 if cluster.degraded else max(volume.count, pending)


Place = tuple[str, str]


def keeps_apart(cluster: Cluster, first: Place, second: Place) -> bool:
    """Whether two new replicas of one volume may be in these places."""
    if not cluster.soft_zone:
        return cluster.nodes[first[0]].zone != cluster.nodes[second[0]].zone
    if not cluster.soft_node:
        return first[0] != second[0]
    return cluster.soft_disk or first != second


def leaves_place(cluster: Cluster, volume: Volume, place: Place) -> bool:
    """Whether the volume's placed replicas leave a place to another one."""
    counting = [
        entry
        for entry in volume.replicas
        if entry.node in cluster.nodes
        and takes_replicas(cluster.nodes[entry.node])
        and not entry.deleting
        and (not entry.failed or (entry.retries < 5 and not entry.evicting))
    ]
    if blocks_its_disk(cluster, volume, *place):
        return False
    on_node = [entry for entry in counting if entry.node == place[0]]
    if cluster.soft_zone:
        return cluster.soft_node or all(entry.evicting for entry in on_node)
    zone = cluster.nodes[place[0]].zone
    in_zone = [entry for entry in counting if cluster.nodes[entry.node].zone == zone]
    return not in_zone or (bool(on_node) and all(entry.evicting for entry in in_zone))


def whole_pod_fits(cluster: Cluster, name: str) -> bool:
    """Whether all replicas that need a place have one together, if the pod runs on the node."""
    places = [(node_name, pick) for node_name, node in cluster.nodes.items() for pick in node.disks]
    jobs: list[tuple[Volume, list[Place]]] = []
    for volume in cluster.volumes:
        on_node = volume.locality != "disabled" and not any(
            entry.node == name and replica_state(cluster, volume, entry) for entry in volume.replicas
        )
        if on_node:
            own = [
                (name, pick) for pick in cluster.nodes[name].disks if not blocks_its_disk(cluster, volume, name, pick)
            ]
            jobs.append((volume, own))
        elsewhere = [place for place in places if leaves_place(cluster, volume, place)]
        jobs += [(volume, elsewhere)] * (replicas_to_place(cluster, volume) - on_node)
    room = {place: free(cluster, *place) for place in places}
    return place_all(cluster, jobs, room, [])


def place_all(
    cluster: Cluster, jobs: list[tuple[Volume, list[Place]]], room: dict[Place, int], done: list[Place]
) -> bool:
    """Whether the jobs after those that are done find places."""
    if len(done) == len(jobs):
        return True
    volume, places = jobs[len(done)]
    mates = [place for job, place in zip(jobs, done, strict=False) if job[0] is volume]
    for place in places:
        node = cluster.nodes[place[0]]
        if not takes_replicas(node) or node.evict or not disk_accepts(node.disks[place[1]], volume):
            continue
        if volume.size > room[place] or not all(keeps_apart(cluster, place, mate) for mate in mates):
            continue
        if place_all(cluster, jobs, {**room, place: room[place] - volume.size}, [*done, place]):
            return True
    return False


def is_attachable(cluster: Cluster, volume: Volume) -> bool:
    """Whether Longhorn attaches the volume for a workload at all."""
    data = [entry for entry in volume.replicas if entry.node and entry.healthy and not entry.deleting]
    known = [entry for entry in data if entry.node in cluster.nodes]
    ready = (entry for entry in known if cluster.nodes[entry.node].ready)
    lost = not any(disk.ready for entry in ready for disk in disks_of(cluster, entry))
    faulted = (volume.faulted and lost) or (bool(data) and not known)
    return not (volume.deleting or faulted or volume.restoring or volume.clone == "initiated")


def disks_of(cluster: Cluster, entry: Replica) -> Iterator[Disk]:
    disk = cluster.nodes[entry.node].disks.get(entry.disk)
    if disk is not None:
        yield disk


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
    return node_disk.size - node_disk.reserved - node_disk.scheduled - replica_sizes


def expected(cluster: Cluster) -> set[str]:
    """The nodes that fit, by the text of the rules."""
    if not all(is_attachable(cluster, volume) for volume in cluster.volumes):
        return set()
    candidates = set(cluster.nodes)
    for volume in cluster.local:
        replica_nodes = {entry.node for entry in volume.replicas if entry.node}
        if volume.locality == "strict-local" and replica_nodes:
            candidates &= replica_nodes
    nodes = homes(cluster, candidates) or {name for name in candidates if fits_on(cluster, name)}
    return {name for name in nodes if whole_pod_fits(cluster, name)}


def explanation_of(cluster: Cluster) -> Explanation:
    """The whole decision about a pod with every volume."""
    requesting_pod = pod(*(f"v{index}" for index in range(len(cluster.volumes))))
    return explained(requesting_pod, objects(cluster), options=FilterOptions(packing=Packing.EXACT))


@pytest.mark.parametrize("draw", [random_cluster, random_spread])
@given(st.randoms(use_true_random=False))
def test_a_node_fits_exactly_if_the_rules_allow_it(draw: Callable[[Random], Cluster], random: Random) -> None:
    """All rules together: replicas in every state, closed nodes and disks, packing; or several replicas of several volumes, on any nodes,
    apart from each other as the settings say.
    """
    cluster = draw(random)
    assert set(fitting(explanation_of(cluster))) == expected(cluster)


@given(st.randoms(use_true_random=False))
def test_counting_instead_of_placing_refuses_no_node_that_fits(random: Random) -> None:
    """As in clusters with too many disks to search."""
    cluster = random_spread(random)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement_across_nodes, "MAX_DISKS", 0)
        nodes = set(fitting(explanation_of(cluster)))
    assert nodes >= expected(cluster)


@given(st.randoms(use_true_random=False))
def test_a_node_without_replicas_gets_the_same_reason_from_its_profile_and_alone(random: Random) -> None:
    """The evaluation of thousands of nodes agrees with that of a single one."""
    cluster = random_cluster(random)
    holding = {entry.node for volume in cluster.volumes for entry in volume.replicas}
    decision = explanation_of(cluster).decision
    current = view(objects(cluster))
    cluster_reasons = (
        Reason.HOME,
        Reason.HOME_ELSEWHERE,
        Reason.STRICT_LOCAL_ELSEWHERE,
        Reason.NO_ROOM_IN_CLUSTER,
        Reason.NOT_TOGETHER_IN_CLUSTER,
        Reason.TOO_FEW_NODES,
        Reason.VOLUME_FAULTED,
    )
    for name, reason in zip(decision.candidates, decision.reasons, strict=True):
        if name not in holding and reason not in cluster_reasons and cluster.local:
            assert evaluate_node(current, decision.resolution, name).reason(Budget()) is reason


@given(st.randoms(use_true_random=False))
def test_where_nodes_are_too_few_larger_disks_change_nothing(random: Random) -> None:
    """So the reason never names what space could mend."""
    cluster = random_spread(random)
    too_few = {name for name, reason in reasons(explanation_of(cluster)).items() if reason == Reason.TOO_FEW_NODES.name}
    for node in cluster.nodes.values():
        for entry in node.disks.values():
            entry.size, entry.available, entry.scheduled = 2**20, 2**20, 0
    assert too_few.isdisjoint(fitting(explanation_of(cluster)))
