"""The guard never writes a place that Longhorn's own scheduler would not consider.

Longhorn's rules are asked about a cluster whose status counts every replica; it is put together here from the objects alone, and has
no other node than the one that Longhorn chose.
"""

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from scheduler_core.guard.placement_guard import GuardDecision, GuardOutcome
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.placement import find_candidates
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import scheduling_limit
from scheduler_core.model.longhorn import Placement
from scheduler_core.structs import replace
from tests import builders as make
from tests.builders import GI, NOW, Object
from tests.worlds.engines import engines
from tests.worlds.placements import NODE, decide, path_of, placement, state_of, waiting_volume

PLACEMENTS = 1000
IMAGE_SIZE = 3
DISK_TAGS = ((), ("ssd",), ("ssd", "fast"))
SELECTORS = ((), (), (), (), ("ssd",), ("ssd", "fast"))
BOOLEANS = (
    "replica-soft-anti-affinity",
    "replica-zone-soft-anti-affinity",
    "replica-disk-soft-anti-affinity",
    "allow-empty-disk-selector-volume",
)


@dataclass
class RandomCluster:
    """Two nodes, and volumes whose pods run on one of them."""

    random: Random
    objects: list[Object] = field(default_factory=list[Object])  # all objects but the Longhorn nodes and the replicas
    # The Longhorn nodes, with what their status counts apart from replicas.
    nodes: list[Object] = field(default_factory=list[Object])
    replicas: list[Object] = field(default_factory=list[Object])  # as they are in the API server
    listed: set[str] = field(default_factory=set[str])  # the names of replicas that Longhorn's status counts
    # Names and sizes of the volumes that are to be placed.
    waiting: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    allowed: list[Placement] = field(default_factory=list[Placement])  # the guard's decisions, in order
    image_disks: list[str] = field(default_factory=list[str])  # UUIDs of the disks with the backing image

    def fill(self) -> None:
        """Draws all objects."""
        for name in (NODE, "m"):
            self._add_node(name)
        self.objects += [make.storage_class("longhorn"), *engines([NODE, "m"]), self._image()]
        self.objects += [make.setting(name, self.random.choice(("true", "true", "false"))) for name in BOOLEANS]
        self.objects.append(make.setting("storage-over-provisioning-percentage", self.random.choice(("100", "150"))))
        self.objects.append(make.setting("storage-minimal-available-percentage", self.random.choice(("0", "25"))))
        for number in range(self.random.randint(2, 6)):
            self._add_volume(f"v{number}")
        placed = [raw["metadata"]["name"] for raw in self.replicas if raw["spec"]["nodeID"]]
        self.listed = {name for name in placed if self.random.random() < 0.7}

    def _add_node(self, name: str) -> None:
        disks = {f"d{number}": self._disk(f"d{number}") for number in range(self.random.randint(2, 4))}
        self.image_disks += [f"{name}-{disk}" for disk in disks if self.random.random() < 0.5]
        self.nodes.append(make.longhorn_node(name, disks, zone=self.random.choice(("z", name))))

    def _disk(self, name: str) -> Object:
        size = self.random.randint(12, 30)
        closed = self.random.random() < 0.05
        evict = self.random.random() < 0.05
        raw = make.disk(
            size,
            scheduled=self.random.choice((0, 0, 3)),
            available=self.random.choice((size, size, size, size / 2, size / 8)),
            reserved=self.random.choice((0, 0, 5)),
            tags=self.random.choice(DISK_TAGS),
            allow=not evict and not closed,
            evict=evict,
            schedulable=self.random.random() < 0.95,
            kind=self.random.choice(("filesystem",) * 19 + ("block",)),
        )
        raw["spec"]["path"] = path_of(name)
        return raw

    def _image(self) -> Object:
        return {
            "apiVersion": make.LONGHORN,
            "kind": "BackingImage",
            "metadata": {"name": "image", "namespace": "longhorn-system"},
            "spec": {
                "dataEngine": "v1",
                "diskSelector": list(self.random.choice(SELECTORS)),
                "diskFileSpecMap": {uuid: {} for uuid in self.image_disks},
            },
            "status": {"realSize": IMAGE_SIZE * GI},
        }

    def _add_volume(self, name: str) -> None:
        size = self.random.randint(2, 12)
        spec: dict[str, Any] = {
            "diskSelector": list(self.random.choice(SELECTORS)),
            "replicaDiskSoftAntiAffinity": self.random.choice(("", "", "disabled", "enabled")),
            "numberOfReplicas": self.random.randint(1, 2),
            "backingImage": self.random.choice(("", "", "", "image")),
            "nodeID": self.random.choice(("", NODE)),
            "actual": self.random.choice((0, 0, 0, 2)),
        }
        locality = self.random.choice(("strict-local",) * 4 + ("best-effort",) * 4 + ("disabled",))
        node = self.random.choice((NODE,) * 7 + ("m",))
        *objects, replica = waiting_volume(name, size, len(self.waiting), locality=locality, node=node, **spec)
        self.objects += objects
        self.replicas.append(replica)
        self.waiting.append((name, size))
        for number in range(self.random.choice((0, 0, 0, 1, 2))):
            self.replicas.append(self._placed_replica(f"r{number}-{name}", f"vol-{name}", size))

    def _placed_replica(self, name: str, volume: str, size: int) -> Object:
        node = self.random.choice(self.nodes)
        disk = self.random.choice(list(node["spec"]["disks"]))
        states: list[dict[str, Any]] = [
            {"evictionRequested": True},
            {"deleting": True},
            {"failed": True, "rebuildRetryCount": 5},
            {},
        ]
        fields = self.random.choice(states)
        return make.replica(name, volume, node["metadata"]["name"], size=size, disk=disk, **fields)

    def longhorn_nodes(self, listed: set[str] | None) -> list[Object]:
        """The Longhorn nodes; their status counts these replicas, None for all."""
        nodes = deepcopy(self.nodes)
        for raw in nodes:
            for disk in raw["status"]["diskStatus"].values():
                replicas = {
                    entry["metadata"]["name"]: int(entry["spec"]["volumeSize"])
                    for entry in self.replicas
                    if entry["spec"]["diskID"] == disk["diskUUID"]
                    and (listed is None or entry["metadata"]["name"] in listed)
                }
                images = IMAGE_SIZE * GI if disk["diskUUID"] in self.image_disks else 0
                disk["scheduledReplica"] = replicas
                disk["storageScheduled"] += sum(replicas.values()) + images
        return nodes

    def candidates(self, wanted: Placement, *, listed: set[str] | None, names: Sequence[str]) -> set[str]:
        """UUIDs of the disks on some nodes that Longhorn's scheduler would consider."""
        nodes = [raw for raw in self.longhorn_nodes(listed) if raw["metadata"]["name"] in names]
        snapshot = make.snapshot(self.objects, nodes, self.replicas)
        cluster = Cluster.of(snapshot, NOW, Settings.read(snapshot.settings))
        request = ReplicaRequest.for_replica(snapshot.volumes[wanted.volume], snapshot.replicas[wanted.replica])
        found = find_candidates(cluster, request, cluster.replicas_of(wanted.volume))
        return {candidate.disk.uuid for candidate in found.disks}

    def choose(self, name: str, size: int) -> Placement:
        """What Longhorn may write, by the status that it reads; any disk of the node if that leaves none there."""
        wanted = placement(name, size, "d0")
        disks = self.candidates(wanted, listed=self.listed, names=(NODE, "m"))
        on_node = sorted(uuid for uuid in disks if uuid.startswith(f"{NODE}-"))
        if self.random.random() < 0.5:
            # Many volumes on one disk, as on outdated status.
            on_node = on_node[:1]
        uuid = self.random.choice(on_node or [f"{NODE}-{disk}" for disk in self.nodes[0]["spec"]["disks"]])
        return replace(wanted, disk=uuid, disk_path=path_of(uuid.removeprefix(f"{NODE}-")))

    def decide(self, wanted: Placement) -> GuardDecision:
        """The guard's decision; the watches have shown some of the placements."""
        shown = {place.replica for place in self.allowed if self.random.random() < 0.5}
        replicas = [
            raw for raw in self.replicas if raw["metadata"]["name"] not in {place.replica for place in self.allowed}
        ]
        for place in self.allowed:
            raw = next(entry for entry in self.replicas if entry["metadata"]["name"] == place.replica)
            unplaced = {**raw, "spec": {**raw["spec"], "nodeID": "", "diskID": ""}}
            replicas.append(raw if place.replica in shown else unplaced)
        state = state_of(self.objects, self.longhorn_nodes(self.listed), replicas)
        return decide(state, wanted, self.allowed, other_nodes=self.random.random() < 0.5)

    def write(self, decision: GuardDecision) -> None:
        place = decision.allowance
        raw = next(entry for entry in self.replicas if entry["metadata"]["name"] == place.replica)
        raw["spec"] |= {"nodeID": place.node, "diskID": place.disk, "diskPath": place.disk_path}
        self.allowed.append(place)

    def limit(self, uuid: str) -> tuple[int, int]:
        """The bytes that a disk holds, and Longhorn's limit."""
        snapshot = make.snapshot(self.objects, self.longhorn_nodes(None))
        disks = [disk for node in snapshot.longhorn_nodes.values() for disk in node.disks]
        disk = next(disk for disk in disks if disk.uuid == uuid)
        return disk.storage_scheduled, scheduling_limit(disk, Settings.read(snapshot.settings))


def _check(cluster: RandomCluster, wanted: Placement, decision: GuardDecision) -> None:
    written = decision.allowance
    if decision.outcome is not GuardOutcome.CHANGED:
        assert written == wanted
        return
    assert written.disk != wanted.disk
    node, _, disk = written.disk.partition("-")
    assert written == replace(wanted, node=node, disk=written.disk, disk_path=path_of(disk))
    assert written.disk in cluster.candidates(written, listed=None, names=(node,))
    if decision.pod:
        pods = {raw["metadata"]["name"]: raw for raw in cluster.objects if raw["kind"] == "Pod"}
        assert pods[decision.pod.removeprefix("default/")]["spec"]["nodeName"] == NODE == node
    elif node != NODE:
        assert written.disk in cluster.candidates(wanted, listed=cluster.listed, names=(NODE, "m"))
    cluster.write(decision)
    booked, limit = cluster.limit(written.disk)
    assert booked <= limit


@pytest.mark.parametrize("seed", range(4))
def test_every_place_that_is_written_is_one_that_longhorn_allows(seed: int) -> None:
    """With tags, conditions, backing images, evictions, failed and deleting replicas, anti-affinity, reserved and minimal space."""
    random = Random(seed)  # noqa: S311 # for examples
    outcomes = Counter[GuardOutcome]()
    moved = Counter[str]()
    while outcomes.total() < PLACEMENTS // 4:
        cluster = RandomCluster(random)
        cluster.fill()
        for name, size in random.sample(cluster.waiting, len(cluster.waiting)):
            wanted = cluster.choose(name, size)
            decision = cluster.decide(wanted)
            outcomes[decision.outcome] += 1
            moved[decision.allowance.node] += decision.outcome is GuardOutcome.CHANGED
            _check(cluster, wanted, decision)
            if decision.outcome is not GuardOutcome.CHANGED:
                cluster.write(decision)
    decided = set(GuardOutcome) - {GuardOutcome.LATE, GuardOutcome.REFUSED_SHAPE}
    assert min(outcomes[outcome] for outcome in decided) >= 2
    assert moved["m"]
