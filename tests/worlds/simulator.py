"""A simulated cluster whose controllers reconcile key by key until nothing changes, and its API server in memory, with what
decisions rely on: versions, merge patches, finalizers, admission, watches.
"""

import itertools
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec

from app.kube import resources
from app.kube.client import ApiError, KubeClient
from scheduler_core.model import longhorn
from simulator.action_runner import ActionRunner
from simulator.config import Config
from simulator.controllers import Controllers
from simulator.images import ENGINE_IMAGE, MANAGER_IMAGE
from simulator.objects import DRIVER, KubeObject
from simulator.tables import Store, Table

Json = dict[str, Any]
Admission = Callable[[Json, Json], Json]
"""Receives an object before and after a PUT; returns what is to be written, or raises an ApiError."""
_DELETED_AT = "2026-01-01T00:00:00Z"


class MemoryApi:
    """Stands in for KubeClient; the store gets every write at once, as from a watch without lag."""

    def __init__(self, store: Store) -> None:
        self.writes = 0  # how many writes succeeded
        self.admission: Admission = lambda _, new: new  # changes or refuses the PUTs of objects
        self._held: list[Callable[[], None]] | None = None
        self.freed: list[Json] = []
        self._tables: dict[str, Table[Any, Any]] = {
            table.resource.plural + table.resource.group: table for table in store.tables
        }
        self._objects: dict[str, Json] = {}
        self._versions = itertools.count(1)

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        """POST."""
        full = f"{path}/{body['metadata']['name']}"
        if full in self._objects:
            raise ApiError(f"POST {path}", 409, "AlreadyExists", "exists")
        number = next(self._versions)
        metadata = {**body["metadata"], "uid": f"uid-{number}", "creationTimestamp": _DELETED_AT}
        return self._store(full, {**body, "metadata": metadata})

    async def patch(self, path: str, body: Mapping[str, Any]) -> bytes:
        """PATCH, of an object or its status, with the resourceVersion as a condition."""
        name, current = self._find(path)
        expected_version = body["metadata"].get("resourceVersion")
        if expected_version is not None and expected_version != current["metadata"]["resourceVersion"]:
            raise ApiError(f"PATCH {path}", 409, "Conflict", "the object has changed")
        return self._store(name, _merge(current, body))

    async def replace(self, path: str, body: Mapping[str, Any]) -> bytes:
        """PUT, of an object without its status, or of its status alone."""
        name, current = self._find(path)
        if body["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"]:
            raise ApiError(f"PUT {path}", 409, "Conflict", "the object has changed")
        if path != name:
            return self._store(name, {**current, "status": body["status"]})
        status = {"status": current["status"]} if "status" in current else {}
        wanted = {**{key: value for key, value in body.items() if key != "status"}, **status}
        return self._store(name, self.admission(current, wanted))

    async def delete(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """DELETE: at once, or when the last finalizer goes."""
        name, current = self._find(path)
        uid = ((body or {}).get("preconditions") or {}).get("uid")
        if uid not in (None, current["metadata"]["uid"]):
            raise ApiError(f"DELETE {path}", 409, "Conflict", "another object")
        return self._store(name, _merge(current, {"metadata": {"deletionTimestamp": _DELETED_AT}}))

    def hold_watches(self) -> None:
        """Holds back all events until `release_watches`."""
        self._held = []

    def release_watches(self) -> None:
        """Delivers the events that were held back, in their order."""
        events = self._held or []
        self._held = None
        for deliver in events:
            deliver()

    def _find(self, path: str) -> tuple[str, Json]:
        name = path.removesuffix("/status")
        if name not in self._objects:
            raise ApiError(path, 404, "NotFound", "not found")
        return name, self._objects[name]

    def _store(self, name: str, body: Json) -> bytes:
        self.writes += 1
        body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(next(self._versions))}}
        answer = msgspec.json.encode(body)
        table = self._table(name)
        key, value = table.decode(answer)
        if body["metadata"].get("deletionTimestamp") and not body["metadata"].get("finalizers"):
            self._objects.pop(name, None)
            self.freed.append(body)
            self._deliver(lambda: table.change(key, None))
        else:
            self._objects[name] = body
            self._deliver(lambda: table.change(key, value))
        return answer

    def _deliver(self, event: Callable[[], None]) -> None:
        if self._held is None:
            event()
        else:
            self._held.append(event)

    def _table(self, name: str) -> Table[Any, Any]:
        parts = name.split("/")
        group = parts[2] if parts[1] == "apis" else ""
        return self._tables[parts[-2] + group]


def _merge(base: Json, patch: Mapping[str, Any]) -> Json:
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            nested = merged.get(key)
            merged[key] = _merge(nested if isinstance(nested, dict) else {}, value)
        else:
            merged[key] = value
    return merged


GIB = 2**30


def reported(gib: int) -> int:
    """The available bytes that a node's status reports: Longhorn rounds them down to 100 MiB."""
    return gib * GIB // (100 * 2**20) * (100 * 2**20)


AT_ONCE = (0.0, 0.0)
QUICK = Config(
    provision_seconds=AT_ONCE,
    publish_seconds=AT_ONCE,
    publish_poll=0.0,
    placement_seconds=AT_ONCE,
    attach_seconds=AT_ONCE,
    detach_seconds=AT_ONCE,
    start_seconds=AT_ONCE,
    rebuild_seconds=AT_ONCE,
    expand_seconds=AT_ONCE,
    delete_seconds=AT_ONCE,
    backing_image_seconds=AT_ONCE,
    status_lag=AT_ONCE,
    freed_lag=AT_ONCE,
)
ROUNDS = 200


class World:
    """Nodes, volumes and attachments, and the simulator with changes of a configuration; `seconds` is the clock of the nodes' status."""

    def __init__(self, config: Config = QUICK, seed: int = 1, **changes: object) -> None:
        self.store = Store()
        self.api = MemoryApi(self.store)
        self.seconds = 0.0
        rng = random.Random(seed)  # noqa: S311 # chance in a simulation
        client = cast("KubeClient", self.api)
        performer = ActionRunner(client, self.store, rng)
        changed = msgspec.structs.replace(config, **changes)
        self.controllers = Controllers(self.store, performer, changed, rng, lambda: self.seconds)

    async def create(self, resource: resources.Resource, body: Json) -> None:
        await self.api.create(resource.path(body["metadata"].get("namespace", "")), body)

    async def patch(self, resource: resources.Resource, name: str, **body: object) -> None:
        """Changes an object; one with a namespace is in Longhorn's."""
        await self.api.patch(resource.path(resources.LONGHORN_NAMESPACE, name), {"metadata": {}, **body})

    async def start(self, *sizes: str, **settings: str) -> None:
        """Nodes a, b, c … with one disk each, and settings."""
        values = {
            "default-engine-image": ENGINE_IMAGE,
            "default-instance-manager-image": MANAGER_IMAGE,
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }
        for name, value in values.items():
            metadata = {"name": name, "namespace": resources.LONGHORN_NAMESPACE}
            await self.create(resources.LONGHORN_SETTINGS, {"metadata": metadata, "value": value})
        for name, size in zip("abcdefgh", sizes, strict=False):
            await self.add_node(name, size)
        await self.settle()

    async def add_node(self, name: str, *sizes: str, kind: str = longhorn.FILESYSTEM) -> None:
        """A Kubernetes node with disks."""
        disks = json.dumps([{"size": size, "type": kind} for size in sizes])
        metadata = {
            "name": name,
            "annotations": {"simulator/disks": disks},
            "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{name}"},
        }
        ready = {"type": "Ready", "status": "True"}
        await self.create(resources.NODES, {"metadata": metadata, "status": {"conditions": [ready]}})

    async def annotate_node(self, name: str, **annotations: str | None) -> None:
        """Changes annotations of a Kubernetes node: down="true"."""
        changed = {f"simulator/{key}": value for key, value in annotations.items()}
        await self.patch(resources.NODES, name, metadata={"annotations": changed})

    async def patch_disk(self, node: str, **fields: object) -> None:
        await self.patch(resources.LONGHORN_NODES, node, spec={"disks": {"disk-1": fields}})

    async def add_volume(
        self, name: str, gib: int, locality: str = longhorn.BEST_EFFORT, replicas: int = 1, **fields: object
    ) -> None:
        """A Longhorn volume with a PersistentVolume; `fields` are more of its spec."""
        spec = {
            "size": str(gib * GIB),
            "numberOfReplicas": replicas,
            "dataLocality": locality,
            "dataEngine": "v1",
            "image": ENGINE_IMAGE,
            "nodeID": "",
            **fields,
        }
        metadata = {"name": name, "namespace": resources.LONGHORN_NAMESPACE, "finalizers": ["longhorn.io"]}
        await self.create(resources.LONGHORN_VOLUMES, {"metadata": metadata, "spec": spec})
        source = {"csi": {"driver": DRIVER, "volumeHandle": name}}
        await self.create(resources.PERSISTENT_VOLUMES, {"metadata": {"name": name}, "spec": source})

    async def attach(self, volume: str, node: str) -> None:
        """Attaches a volume, as kube-controller-manager does for a pod."""
        spec = {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}}
        await self.create(resources.VOLUME_ATTACHMENTS, {"metadata": {"name": f"{volume}-{node}"}, "spec": spec})

    async def detach(self, volume: str) -> None:
        for attachment in self.store.attachments_by_volume.get(volume):
            await self.api.delete(resources.VOLUME_ATTACHMENTS.path(name=attachment.name))

    async def delete_volume(self, name: str) -> None:
        await self.api.delete(resources.LONGHORN_VOLUMES.path(resources.LONGHORN_NAMESPACE, name))

    async def write(self, volume: str, gib: int) -> None:
        """Requests that data is written to a volume."""
        await self.patch(resources.LONGHORN_VOLUMES, volume, metadata={"annotations": {"simulator/write": f"{gib}Gi"}})

    async def settle(self, *actions: Awaitable[object]) -> None:
        """Takes the actions one after the other, then reconciles everything until a whole round writes nothing."""
        for action in actions:
            await action
        controllers = self.controllers
        store = self.store
        for _ in range(ROUNDS):
            before = self.api.writes
            await controllers.sync_nodes()
            handlers: tuple[tuple[Any, Table[Any, Any]], ...] = (
                (controllers.reconcile_node, store.nodes),
                (controllers.reconcile_volume, store.volumes),
                (controllers.reconcile_replica, store.replicas),
                (controllers.reconcile_attachment, store.attachments),
                (controllers.reconcile_persistent_volume, store.persistent_volumes),
                (controllers.reconcile_claim, store.claims),
                (controllers.reconcile_backing_image, store.backing_images),
            )
            for handle, table in handlers:
                for key in list(table.objects):
                    await handle(key)
            if self.api.writes == before:
                return
        raise AssertionError(f"still writing after {ROUNDS} rounds")

    def volume(self, name: str) -> longhorn.Volume:
        return self.store.volumes.models[name]

    def replicas(self, name: str) -> list[KubeObject[longhorn.Replica]]:
        return self.store.replicas_by_volume.get(name)

    def places(self, name: str) -> list[str]:
        return sorted(each.model.node_id for each in self.replicas(name) if each.model.node_id)

    def disk(self, node: str) -> longhorn.Disk:
        return self.store.longhorn_nodes.models[node].disks[0]

    def condition(self, volume: str) -> Json:
        condition: Json = self.store.volumes.objects[volume].status["conditions"][0]
        return condition

    def attachment(self, volume: str) -> Json:
        return self.store.attachments_by_volume.get(volume)[0].status
