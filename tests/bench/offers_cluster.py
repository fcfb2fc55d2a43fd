"""A cluster in which many volumes have no replica yet: the live caches' cluster, with demands and offers outstanding."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rpds import HashTrieMap

from scheduler_core.cluster.update import rebuilt
from scheduler_core.cluster.view import View
from scheduler_core.convert.kube import Pod as WirePod
from scheduler_core.convert.kube import pod as read_pod
from scheduler_core.convert.meta import shape
from scheduler_core.convert.snapshot_kinds import KINDS, Key
from scheduler_core.demand.index import Demands
from scheduler_core.extender.offer import roomiest
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.offers.ledger import Ledger, Offered, PodSeen, step, width
from scheduler_core.volumes.resolve import resolve
from tests.bench import cluster
from tests.bench.live_cluster import Object, Objects, meta, uid

GI = cluster.GI
NOW = datetime(2026, 1, 2, tzinfo=UTC)
BY_FIELD = {kind.field: kind for kind in KINDS.values()}
# GiB of the volumes that have no replica yet: a few sizes in many combinations.
_SIZES = (2, 5, 10)
_NEW = 10_000_000
_FAR = 5 * _NEW


def read(field: str, raw: Object) -> tuple[Key, object]:
    """The key and the model of an object of some field of the snapshot."""
    return BY_FIELD[field].read(raw)


class Outstanding(Objects):
    """`Objects` whose own volumes are where their pods are, and others that have a node and no replica."""

    def nodes_named(self, index: int) -> str:
        """The node that holds both replicas of a volume."""
        return cluster.name_of(index // 4)

    def node_of(self, number: int) -> str:
        """The node a demand is for: they are spread evenly."""
        return cluster.name_of(number % self.nodes)

    def unbound(self, number: int, *, selected: bool = True, bound_pod: bool = False) -> Iterator[tuple[str, Object]]:
        """A pod and its claim, which kube-scheduler has chosen a node for."""
        name, namespace, index = f"new-{number}", f"team-{number % 50}", _NEW + number
        note = {"volume.kubernetes.io/selected-node": self.node_of(number)} if selected else {}
        yield (
            "claims",
            {"metadata": meta(name, namespace, index, annotations=note), "spec": _claim_spec(number), "status": {}},
        )
        yield "pods", self._pod(number, self.node_of(number) if bound_pod else "")

    def unplaced(self, number: int) -> Iterator[tuple[str, Object]]:
        """A pod on its node, with a bound claim whose volume has no replica."""
        name, namespace, index = f"new-{number}", f"team-{number % 50}", _NEW + number
        handle = f"pvc-{uid(index)}"
        spec = {**_claim_spec(number), "volumeName": handle}
        yield "claims", {"metadata": meta(name, namespace, index), "spec": spec, "status": {"phase": "Bound"}}
        reference = {"namespace": namespace, "name": name, "uid": uid(index)}
        csi = {"driver": "driver.longhorn.io", "volumeHandle": handle}
        yield "persistent_volumes", {"metadata": meta(handle, index=index), "spec": {"csi": csi, "claimRef": reference}}
        volume = self.volume(index)
        tags = ["ssd"] if _kind(number) else []
        volume["spec"] |= {
            "size": str(_size(number)),
            "numberOfReplicas": 1,
            "diskSelector": tags,
            "nodeID": "",
        }
        volume["status"] = {"state": "detached"}
        yield "volumes", volume
        yield "pods", self._pod(number, self.node_of(number))

    def placed(self, number: int) -> Object:
        """The replica that ends the demand of an unplaced volume; the node's second disk may have either tag."""
        index = _NEW + number
        node = number % self.nodes
        disk = next(disk for disk in (1, 0) if not _kind(number) or (node + disk) % 2)
        replica = self.replica(0, uid(2 * node + disk))
        replica["metadata"] = meta(f"pvc-{uid(index)}-r-new", "longhorn-system", index)
        replica["spec"] |= {
            "volumeName": f"pvc-{uid(index)}",
            "volumeSize": str(_size(number)),
            "nodeID": self.node_of(number),
        }
        return replica

    def roaming(self, number: int) -> Object:
        """A volume that needs no local room and has no place yet."""
        volume = self.volume(_FAR + number)
        spec = {
            "size": str(_size(number)),
            "numberOfReplicas": 1,
            "dataLocality": "disabled",
            "diskSelector": [],
            "nodeID": "",
        }
        volume["spec"] |= spec
        volume["status"] = {"state": "detached"}
        return volume

    def _pod(self, number: int, node: str) -> Object:
        spec = {
            "nodeName": node,
            "containers": [],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": f"new-{number}"}}],
        }
        metadata = meta(f"new-{number}", f"team-{number % 50}", 2 * _NEW + number)
        return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def _kind(number: int) -> int:
    return int(number % 4 == 3)


def _size(number: int) -> int:
    return _SIZES[number // 7 % len(_SIZES)] * GI


def _claim_spec(number: int) -> Object:
    return {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(_size(number))}},
        "storageClassName": f"storage-{_kind(number)}",
    }


def view_of(objects: Outstanding, demands: int, spare: int, roaming: int) -> View:
    """The cluster with so many demands, half of unbound claims (even numbers), half of unplaced volumes, and so many roaming volumes.

    `spare` claims more have no node selected for them yet.
    """
    held: dict[str, dict[Key, object]] = {}

    def keep(field: str, raw: Object) -> None:
        key, value = read(field, raw)
        held.setdefault(field, {})[key] = value

    for field in BY_FIELD:
        for index, raw in enumerate(objects.of(field) if field in _LIVE else ()):
            if field != "pods" or index % 5 == 0:  # as the caches: no pod without a claim
                keep(field, raw)
    for number in range(demands):
        for field, raw in objects.unplaced(number) if number % 2 else objects.unbound(number):
            keep(field, raw)
    for number in range(demands, demands + spare):
        for field, raw in objects.unbound(number, selected=False):
            keep(field, raw)
    for number in range(roaming):
        keep("volumes", objects.roaming(number))
    maps: Mapping[str, Any] = {field: HashTrieMap(held.get(field, {})) for field in BY_FIELD}
    return rebuilt(Snapshot(**maps), NOW, 1)


_LIVE = frozenset(
    {
        "nodes", "pods", "claims", "persistent_volumes", "storage_classes", "volume_attachments", "longhorn_nodes", "volumes",
        "replicas", "settings", "engine_images", "instance_managers", "backing_images",
    }
)  # fmt: skip


def asking(name: str, sizes: tuple[int, ...] = (10, 5)) -> Pod:
    """A pod with a new claim per size in GiB."""
    template = {"accessModes": ["ReadWriteOnce"], "storageClassName": "storage-0"}
    volumes = [
        {
            "name": f"data-{index}",
            "ephemeral": {
                "volumeClaimTemplate": {"spec": {**template, "resources": {"requests": {"storage": f"{size}Gi"}}}}
            },
        }
        for index, size in enumerate(sizes)
    ]
    raw = {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": {"volumes": volumes}}
    return read_pod(shape("Pod", raw, WirePod))


def ledger_of(view: View, demands: Demands, offers: int) -> Ledger:
    """So many offers, one after the other, each as wide as the rule of widths makes it then."""
    chance = random.Random(offers)  # noqa: S311 # repeatable, not secret
    rooms = {name: sum(room.free for room in view.rooms(name).values()) for name in view.cluster.nodes}
    for demand in demands.all:
        rooms[demand.node] -= demand.volume.volume.size
    ledger = Ledger()
    for number in range(offers):
        pod = asking(f"offered-{number}", (chance.choice(_SIZES), chance.choice(_SIZES)))
        volumes = resolve(pod, view).local
        nodes = roomiest(((room, name) for name, room in rooms.items()), width(len(rooms), number))
        for name in nodes:
            rooms[name] -= sum(volume.volume.size for volume in volumes)
        told = PodSeen(uid=pod.uid, namespace=pod.namespace, name=pod.name)
        ledger, _ = step(ledger, Offered(told, nodes, volumes), number / 1_000)
    return ledger
