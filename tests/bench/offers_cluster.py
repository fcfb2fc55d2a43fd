"""A cluster in which many volumes have no replica yet. It is the cluster of the live caches, with demand and offers."""

import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from heapq import nsmallest
from typing import Any

from rpds import HashTrieMap

from scheduler_core.cluster.update import build_view
from scheduler_core.cluster.view import View
from scheduler_core.convert.snapshot_kinds import KINDS, Key
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.offers.ledger import Ledger, offer_width, step
from scheduler_core.offers.outstanding_offer import ObservedPod, Offered
from scheduler_core.volumes.demand_index import DemandIndex
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.bench import cluster
from tests.bench.live_cluster import Object, Objects, meta, uid

GI = cluster.GI
NOW = datetime(2026, 1, 2, tzinfo=UTC)
BY_FIELD = {kind.field: kind for kind in KINDS.values()}
# GiB of the volumes that have no replica yet. A few sizes give many combinations.
_SIZES = (2, 5, 10)
_FIRST_NEW = 10_000_000
_FIRST_UNPLACED = 5 * _FIRST_NEW
_FIRST_ROAMING = 7 * _FIRST_NEW
# Bytes of a volume of which a disk takes one, but not two.
_LARGE = 250 * GI


def read(field: str, raw: Object) -> tuple[Key, object]:
    return BY_FIELD[field].read(raw)


class PendingObjects(Objects):
    """`Objects` with more volumes that have a node but no replica yet. The replicas of all other volumes are on the nodes of their pods."""

    def node_name(self, index: int) -> str:
        """The node that holds both replicas of a volume."""
        return cluster.name_of(index // 4)

    def node_of(self, number: int) -> str:
        """The node that a volume is demanded on; demand is spread evenly."""
        return cluster.name_of(number % self.nodes)

    def unbound_claim(
        self, number: int, *, selected: bool = True, bound_pod: bool = False
    ) -> Iterator[tuple[str, Object]]:
        """A pod and its unbound claim, for which kube-scheduler has selected a node."""
        name = f"new-{number}"
        namespace = f"team-{number % 50}"
        index = _FIRST_NEW + number
        note = {"volume.kubernetes.io/selected-node": self.node_of(number)} if selected else {}
        yield (
            "claims",
            {"metadata": meta(name, namespace, index, annotations=note), "spec": _claim_spec(number), "status": {}},
        )
        yield "pods", self._pod(number, self.node_of(number) if bound_pod else "")

    def roaming(self, number: int) -> Iterator[tuple[str, Object]]:
        for part in range(3):
            yield from self.bound_claim(
                _FIRST_ROAMING - _FIRST_ROAMING % self.nodes + part * self.nodes + number, _LARGE + number * 2**20
            )

    def bound_claim(self, number: int, size: int = 0) -> Iterator[tuple[str, Object]]:
        """A bound pod and its bound claim, whose volume has no replica."""
        name = f"new-{number}"
        namespace = f"team-{number % 50}"
        index = _FIRST_NEW + number
        handle = f"pvc-{uid(index)}"
        spec = {**_claim_spec(number), "volumeName": handle}
        yield "claims", {"metadata": meta(name, namespace, index), "spec": spec, "status": {"phase": "Bound"}}
        reference = {"namespace": namespace, "name": name, "uid": uid(index)}
        csi = {"driver": "driver.longhorn.io", "volumeHandle": handle}
        yield "persistent_volumes", {"metadata": meta(handle, index=index), "spec": {"csi": csi, "claimRef": reference}}
        volume = self.volume(index)
        volume["spec"] |= {"size": str(size or _size(number)), "numberOfReplicas": 1, "nodeID": ""}
        volume["spec"]["diskSelector"] = ["ssd"] if _kind(number) else []
        volume["status"] = {"state": "detached"}
        yield "volumes", volume
        yield "pods", self._pod(number, self.node_of(number))

    def replica_on_demanded_node(self, number: int) -> Object:
        """The replica that ends the demand for a bound claim. It is on the disk with the tag of its volume."""
        index = _FIRST_NEW + number
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

    def unplaced_volume(self, number: int) -> Object:
        """A volume that needs no local space and has no replica yet."""
        volume = self.volume(_FIRST_UNPLACED + number)
        volume["spec"] |= {"size": str(_size(number)), "numberOfReplicas": 1, "dataLocality": "disabled", "nodeID": ""}
        volume["status"] = {"state": "detached"}
        return volume

    def _pod(self, number: int, node: str) -> Object:
        spec = {
            "nodeName": node,
            "containers": [],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": f"new-{number}"}}],
        }
        metadata = meta(f"new-{number}", f"team-{number % 50}", 2 * _FIRST_NEW + number)
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


def make_view(objects: PendingObjects, demands: int, spare_claims: int, unplaced: int, roaming: int = 0) -> View:
    """Returns the view of a cluster with demand, unplaced and roaming volumes. Half of the demand is of unbound claims
    (even numbers), half of bound claims. No node is selected for the `spare_claims`.
    """
    by_field: dict[str, dict[Key, object]] = {}

    def add(field: str, raw: Object) -> None:
        key, value = read(field, raw)
        by_field.setdefault(field, {})[key] = value

    for field in BY_FIELD:
        for index, raw in enumerate(objects.of(field)):
            if field != "pods" or index % 5 == 0:  # as the caches: no pod without a claim
                add(field, raw)
    for number in range(demands):
        for field, raw in objects.bound_claim(number) if number % 2 else objects.unbound_claim(number):
            add(field, raw)
    for number in range(demands, demands + spare_claims):
        for field, raw in objects.unbound_claim(number, selected=False):
            add(field, raw)
    for number in range(unplaced):
        add("volumes", objects.unplaced_volume(number))
    for number in range(roaming):
        for field, raw in objects.roaming(number):
            add(field, raw)
    maps: Mapping[str, Any] = {field: HashTrieMap(by_field.get(field, {})) for field in BY_FIELD}
    return build_view(Snapshot(**maps), NOW, 1)


def new_pod(name: str, sizes: tuple[int, ...] = (10, 5)) -> Pod:
    """A pod with an ephemeral volume of each size in GiB."""
    ephemeral = {f"data-{index}": make.ephemeral_spec(size, "storage-0") for index, size in enumerate(sizes)}
    return make.as_pod(make.pod(name=name, uid=f"uid-{name}", ephemeral=ephemeral))


def make_ledger(view: View, demand: DemandIndex, offers: int) -> Ledger:
    """Returns a ledger with offers, each as wide as `offer_width` allows."""
    chance = random.Random(offers)  # noqa: S311 # repeatable, not secret
    free = {name: sum(disk.free for disk in view.free_space(name).values()) for name in view.cluster.nodes}
    for demanded in demand.all:
        free[demanded.node] -= demanded.volume.volume.size
    ledger = Ledger()
    for number in range(offers):
        pod = new_pod(f"offered-{number}", (chance.choice(_SIZES), chance.choice(_SIZES)))
        volumes = resolve(pod, view).local
        nodes = frozenset(nsmallest(offer_width(len(free), number), free, key=lambda name: (-free[name], name)))
        for name in nodes:
            free[name] -= sum(volume.volume.size for volume in volumes)
        observed = ObservedPod(uid=pod.uid, namespace=pod.namespace, name=pod.name)
        ledger, _ = step(ledger, Offered(observed, nodes, volumes), number / 1_000)
    return ledger
