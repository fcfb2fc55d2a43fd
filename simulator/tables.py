"""The simulator's cache of the cluster: one table per kind.

Watches fill it, and the answers to the simulator's own writes.

A write's answer goes into the table at once, so the next decision sees it. An older watch event is dropped. The answer to a placement is
discarded, as in Longhorn: only the watch shows where the replica is.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from app.kube import resources
from app.kube.resources import Resource
from scheduler_core.convert.snapshot_kinds import KINDS, SnapshotKind
from scheduler_core.errors import ObjectError
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import kube, longhorn
from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.model.snapshot import NamespacedName, Snapshot
from simulator.objects import DISK_LABEL, Json, Key, KubeObject

Model = TypeVar("Model")
Name = TypeVar("Name", bound=Key)
WAITING = "waiting"
_MAX_DELETED_UIDS = 10_000
ChangeListener = Callable[[Any, KubeObject[Any] | None, KubeObject[Any] | None], None]


class Table(Generic[Name, Model]):
    """The objects and models of one kind, and listeners to changes."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.objects: dict[Name, KubeObject[Model]] = {}
        self.models: dict[Name, Model] = {}
        self.listeners: list[ChangeListener] = []
        # A write's answer may arrive after the event that the object is gone: the object must not reappear.
        self._deleted_uids: dict[str, None] = {}
        self._kind: SnapshotKind | None = KINDS.get((resource.group, resource.kind))

    def get(self, key: Name) -> KubeObject[Model] | None:
        return self.objects.get(key)

    def decode(self, raw: bytes | msgspec.Raw) -> tuple[Key, KubeObject[Model]]:
        """Decodes one object; returns its key and value."""
        try:
            body: Json = msgspec.json.decode(raw)
        except msgspec.DecodeError as error:
            raise ObjectError(self.resource.label, "", f"is no JSON: {error}") from error
        return self.read(body)

    def read(self, body: Json) -> tuple[Key, KubeObject[Model]]:
        if self._kind is not None:
            key, model = self._kind.read(body)
            return key, KubeObject(body, model)  # type: ignore[arg-type] # the registry's conversion of this kind
        return str(body["metadata"]["name"]), KubeObject(body, None)  # type: ignore[arg-type] # a kind without a model

    def replace(self, objects: Mapping[Any, KubeObject[Model]]) -> None:
        for key in [key for key in self.objects if key not in objects]:
            self._drop(key)
        for key, value in objects.items():
            self._upsert(key, value)

    def change(self, key: Any, value: KubeObject[Model] | None) -> None:
        if value is None:
            self._drop(key)
        else:
            self._upsert(key, value)

    def record_write(self, body: Json) -> KubeObject[Model]:
        """Applies the answer to a write; returns the written object."""
        key, value = self.read(body)
        if value.deleting and not value.finalizers:
            self._drop(key)
        elif value.uid not in self._deleted_uids:
            self._upsert(key, value)
        return value

    def _upsert(self, key: Any, value: KubeObject[Model]) -> None:
        current = self.objects.get(key)
        if current is not None and current.version >= value.version:
            return
        self.objects[key] = value
        self.models[key] = value.model
        self._notify(key, current, value)

    def _drop(self, key: Any) -> None:
        current = self.objects.pop(key, None)
        if current is not None:
            del self.models[key]
            self._deleted_uids[current.uid] = None
            if len(self._deleted_uids) > _MAX_DELETED_UIDS:
                del self._deleted_uids[next(iter(self._deleted_uids))]
            self._notify(key, current, None)

    def _notify(self, key: Any, old: KubeObject[Model] | None, new: KubeObject[Model] | None) -> None:
        for listener in self.listeners:
            listener(key, old, new)


class Index(Generic[Model]):
    """Index of a table's objects by other values than the key."""

    def __init__(self, table: Table[Any, Model], values_of: Callable[[KubeObject[Model]], Iterable[Any]]) -> None:
        self._values_of = values_of
        self._objects: dict[Any, dict[Any, KubeObject[Model]]] = {}
        table.listeners.append(self._on_change)

    def get(self, value: Any) -> list[KubeObject[Model]]:
        return sorted(self.unordered_objects(value), key=lambda obj: (obj.namespace, obj.name))

    def unordered_objects(self, value: Any) -> Iterable[KubeObject[Model]]:
        """Returns the objects with a value, without the time that ordering thousands of them takes."""
        return self._objects.get(value, {}).values()

    def _on_change(self, key: Any, old: KubeObject[Model] | None, new: KubeObject[Model] | None) -> None:
        before = set(self._values_of(old)) if old else set()
        after = set(self._values_of(new)) if new else set()
        for value in before - after:
            entries = self._objects[value]
            del entries[key]
            if not entries:
                del self._objects[value]
        for value in after:
            assert new is not None  # noqa: S101 # without a new object there are no values after the change
            self._objects.setdefault(value, {})[key] = new


class Store:
    """Every table and index."""

    def __init__(self) -> None:
        self.nodes: Table[str, kube.Node] = Table(resources.NODES)
        self.pods: Table[NamespacedName, kube.Pod] = Table(resources.PODS)
        self.claims: Table[NamespacedName, kube.Claim] = Table(resources.CLAIMS)
        self.persistent_volumes: Table[str, kube.PersistentVolume] = Table(resources.PERSISTENT_VOLUMES)
        self.storage_classes: Table[str, kube.StorageClass] = Table(resources.STORAGE_CLASSES)
        self.attachments: Table[str, kube.VolumeAttachment] = Table(resources.VOLUME_ATTACHMENTS)
        self.csi_nodes: Table[str, None] = Table(resources.CSI_NODES)
        self.capacities: Table[str, None] = Table(resources.CAPACITIES)
        self.longhorn_nodes: Table[str, longhorn.Node] = Table(resources.LONGHORN_NODES)
        self.volumes: Table[str, longhorn.Volume] = Table(resources.LONGHORN_VOLUMES)
        self.replicas: Table[str, longhorn.Replica] = Table(resources.LONGHORN_REPLICAS)
        self.shards: Table[str, None] = Table(resources.LONGHORN_SHARDS)
        self.settings: Table[str, str] = Table(resources.LONGHORN_SETTINGS)
        self.backing_images: Table[str, longhorn.BackingImage] = Table(resources.LONGHORN_BACKING_IMAGES)
        self.engine_images: Table[str, longhorn.EngineImage] = Table(resources.LONGHORN_ENGINE_IMAGES)
        self.instance_managers: Table[str, longhorn.InstanceManager] = Table(resources.LONGHORN_INSTANCE_MANAGERS)
        self.disk_schedules: Table[str, DiskSchedule] = Table(resources.DISK_SCHEDULES)
        self.replicas_by_volume = Index(self.replicas, lambda obj: (obj.model.volume,))
        self.replicas_by_node = Index(self.replicas, lambda obj: (obj.model.node_id,))
        self.replicas_by_disk_label = Index(self.replicas, lambda obj: (obj.labels.get(DISK_LABEL, ""),))
        self.unplaced_or_failed_replicas = Index(
            self.replicas, lambda obj: (WAITING,) if not obj.model.node_id or obj.model.failed_at else ()
        )
        self.shards_by_volume = Index(self.shards, lambda obj: (obj.spec["shardGroupName"],))
        self.shards_by_node = Index(self.shards, lambda obj: (obj.spec["nodeID"],))
        self.attachments_by_volume = Index(self.attachments, lambda obj: (obj.model.persistent_volume,))
        self.persistent_volumes_by_handle = Index(self.persistent_volumes, lambda obj: (obj.model.handle,))
        self.pods_by_claim = Index(self.pods, _claim_keys)
        self._cluster_cache = _ClusterCache(self)

    @property
    def tables(self) -> tuple[Table[Any, Any], ...]:
        return tuple(value for value in vars(self).values() if isinstance(value, Table))

    def shard_bytes(self, node: str) -> Counter[str]:
        """The bytes of the shards on a node's disks, by disk UUID."""
        sizes = Counter[str]()
        for shard in self.shards_by_node.get(node):
            sizes[shard.spec["diskUUID"]] += int(shard.spec["size"])
        return sizes

    def table(self, resource: Resource) -> Table[Any, Any] | None:
        return next((table for table in self.tables if table.resource == resource), None)

    def cluster(self, now: datetime) -> Cluster:
        """The cluster as Longhorn would read it now. It shares the tables: use it before anything is awaited."""
        return self._cluster_cache.cluster(now)

    def provisioning_snapshot(self) -> Snapshot:
        """What the data of a new volume, and its place, may come from."""
        return Snapshot(
            claims=self.claims.models,
            persistent_volumes=self.persistent_volumes.models,
            volumes=self.volumes.models,
            backing_images=self.backing_images.models,
            longhorn_nodes=self.longhorn_nodes.models,
        )

    @property
    def longhorn_settings(self) -> Settings:
        return self._cluster_cache.settings()


def _claim_keys(obj: KubeObject[kube.Pod]) -> Iterable[NamespacedName]:
    return [(obj.model.namespace, volume.claim) for volume in obj.model.volumes]


_CACHED_PARTS = ("nodes", "managers", "images", "settings")


class _ClusterCache:
    """Cache of the parts of a Cluster that take time to compute."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._replicas: dict[str, tuple[longhorn.Replica, ...]] = {}
        self._cached: dict[str, Any] = {}
        store.replicas.listeners.append(self._on_replica_change)
        store.longhorn_nodes.listeners.append(lambda *_: self._cached.pop("nodes", None))
        store.instance_managers.listeners.append(lambda *_: self._cached.pop("managers", None))
        store.engine_images.listeners.append(lambda *_: self._cached.pop("images", None))
        store.settings.listeners.append(lambda *_: self._cached.pop("settings", None))

    def _on_replica_change(
        self, _key: str, old: KubeObject[longhorn.Replica] | None, new: KubeObject[longhorn.Replica] | None
    ) -> None:
        for volume in {obj.model.volume for obj in (old, new) if obj is not None}:
            models = tuple(obj.model for obj in self._store.replicas_by_volume.get(volume))
            if models:
                self._replicas[volume] = models
            else:
                self._replicas.pop(volume, None)

    def settings(self) -> Settings:
        if "settings" not in self._cached:
            self._cached["settings"] = Settings.read(self._store.settings.models)
        settings: Settings = self._cached["settings"]
        return settings

    def cluster(self, now: datetime) -> Cluster:
        store = self._store
        if any(part not in self._cached for part in _CACHED_PARTS):
            self._refresh(now)
        snapshot = Snapshot(
            nodes=store.nodes.models,
            volumes=store.volumes.models,
            replicas=store.replicas.models,
            backing_images=store.backing_images.models,
        )
        return Cluster(
            snapshot=snapshot,
            now=now,
            settings=self.settings(),
            nodes=self._cached["nodes"],
            kube_nodes=store.nodes.models,
            replicas_by_volume=self._replicas,
            instance_managers=self._cached["managers"],
            engine_images=self._cached["images"],
        )

    def _refresh(self, now: datetime) -> None:
        store = self._store
        snapshot = Snapshot(
            longhorn_nodes=store.longhorn_nodes.models,
            engine_images=store.engine_images.models,
            instance_managers=store.instance_managers.models,
        )
        fresh = Cluster.of(snapshot, now, self.settings())
        self._cached.update(nodes=fresh.nodes, managers=fresh.instance_managers, images=fresh.engine_images)
