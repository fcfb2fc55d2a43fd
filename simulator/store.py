"""What the simulator knows: one table per kind, filled by watches and by the answers to its own writes.

A write's answer goes into the table at once, so the next decision sees it; a watch event that is older is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from app.kube import resources
from app.kube.resources import Resource
from scheduler_core.convert.snapshot_kinds import KINDS, Kind
from scheduler_core.errors import ObjectError
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import kube, longhorn
from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.model.snapshot import NamespacedName, Snapshot
from simulator.objects import Json, Key, Obj

Model = TypeVar("Model")
Name = TypeVar("Name", bound=Key)
_REMEMBERED: Final = 10_000
Changed = Callable[[Any, Obj[Any] | None, Obj[Any] | None], None]


class Table(Generic[Name, Model]):
    """The objects of one kind, with their models beside them, and who wants to know of changes."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.objects: dict[Name, Obj[Model]] = {}
        self.models: dict[Name, Model] = {}
        self.listeners: list[Changed] = []
        # A write's answer may come after the event that the object is gone: it must not come back.
        self._gone: dict[str, None] = {}
        self._kind: Kind | None = KINDS.get((resource.group, resource.kind))

    def get(self, key: Name) -> Obj[Model] | None:
        """One object."""
        return self.objects.get(key)

    def decode(self, raw: bytes | msgspec.Raw) -> tuple[Key, Obj[Model]]:
        """Reads one object.

        Raises:
            ObjectError: it cannot be read
        """
        try:
            body: Json = msgspec.json.decode(raw)
        except msgspec.DecodeError as error:
            raise ObjectError(self.resource.label, "", f"is no JSON: {error}") from error
        return self.read(body)

    def read(self, body: Json) -> tuple[Key, Obj[Model]]:
        """Key and value of a decoded object.

        Raises:
            ObjectError: it cannot be read
        """
        if self._kind is not None:
            key, model = self._kind.read(body)
            return key, Obj(body, model)  # type: ignore[arg-type] # the registry's conversion of this kind
        return str(body["metadata"]["name"]), Obj(body, None)  # type: ignore[arg-type] # a kind without a model

    def replaced(self, objects: Mapping[Any, Obj[Model]]) -> None:
        """The kind as a whole, from a list."""
        for key in [key for key in self.objects if key not in objects]:
            self._drop(key)
        for key, value in objects.items():
            self._put(key, value)

    def changed(self, key: Any, value: Obj[Model] | None) -> None:
        """One event of a watch."""
        if value is None:
            self._drop(key)
        else:
            self._put(key, value)

    def wrote(self, body: Json) -> Obj[Model]:
        """The answer to a write."""
        key, value = self.read(body)
        if value.deleting and not value.finalizers:
            self._drop(key)
        elif value.uid not in self._gone:
            self._put(key, value)
        return value

    def _put(self, key: Any, value: Obj[Model]) -> None:
        known = self.objects.get(key)
        if known is not None and known.version >= value.version:
            return
        self.objects[key] = value
        self.models[key] = value.model
        self._tell(key, known, value)

    def _drop(self, key: Any) -> None:
        known = self.objects.pop(key, None)
        if known is not None:
            del self.models[key]
            self._gone[known.uid] = None
            if len(self._gone) > _REMEMBERED:
                del self._gone[next(iter(self._gone))]
            self._tell(key, known, None)

    def _tell(self, key: Any, old: Obj[Model] | None, new: Obj[Model] | None) -> None:
        for listener in self.listeners:
            listener(key, old, new)


class Index(Generic[Model]):
    """The objects of a table by something else than their key."""

    def __init__(self, table: Table[Any, Model], terms: Callable[[Obj[Model]], Iterable[Any]]) -> None:
        self._terms = terms
        self._found: dict[Any, dict[Any, Obj[Model]]] = {}
        table.listeners.append(self._changed)

    def of(self, term: Any) -> list[Obj[Model]]:
        """The objects of a term, ordered by name."""
        return sorted(self._found.get(term, {}).values(), key=lambda obj: (obj.namespace, obj.name))

    def _changed(self, key: Any, old: Obj[Model] | None, new: Obj[Model] | None) -> None:
        before = set(self._terms(old)) if old else set()
        after = set(self._terms(new)) if new else set()
        for term in before - after:
            entries = self._found[term]
            del entries[key]
            if not entries:
                del self._found[term]
        for term in after:
            assert new is not None  # noqa: S101 # only a new object has terms
            self._found.setdefault(term, {})[key] = new


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
        self.settings: Table[str, str] = Table(resources.LONGHORN_SETTINGS)
        self.backing_images: Table[str, longhorn.BackingImage] = Table(resources.LONGHORN_BACKING_IMAGES)
        self.engine_images: Table[str, longhorn.EngineImage] = Table(resources.LONGHORN_ENGINE_IMAGES)
        self.instance_managers: Table[str, longhorn.InstanceManager] = Table(resources.LONGHORN_INSTANCE_MANAGERS)
        self.disk_schedules: Table[str, DiskSchedule] = Table(resources.DISK_SCHEDULES)
        self.replicas_of = Index(self.replicas, lambda obj: (obj.model.volume,))
        self.replicas_on = Index(self.replicas, lambda obj: (obj.model.node_id,))
        self.attachments_of = Index(self.attachments, lambda obj: (obj.model.persistent_volume,))
        self.persistent_volumes_of = Index(self.persistent_volumes, lambda obj: (obj.model.handle,))
        self.pods_of = Index(self.pods, _claims_of)
        self._view = _View(self)

    @property
    def tables(self) -> tuple[Table[Any, Any], ...]:
        """Every table."""
        return tuple(value for value in vars(self).values() if isinstance(value, Table))

    def table(self, resource: Resource) -> Table[Any, Any] | None:
        """The table of a kind, None if it is not kept."""
        return next((table for table in self.tables if table.resource == resource), None)

    def cluster(self, now: datetime) -> Cluster:
        """What Longhorn would read at this moment. It shares the tables: use it before anything is awaited."""
        return self._view.cluster(now)

    @property
    def longhorn_settings(self) -> Settings:
        """Longhorn's settings; values that do not parse are kept as faults."""
        return self._view.settings()


def _claims_of(obj: Obj[kube.Pod]) -> Iterable[NamespacedName]:
    return [(obj.model.namespace, volume.claim) for volume in obj.model.volumes]


_GROUPED: Final = ("nodes", "managers", "images", "settings")


class _View:
    """The parts of a Cluster that take time to make, made again only after they changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._replicas: dict[str, tuple[longhorn.Replica, ...]] = {}
        self._made: dict[str, Any] = {}
        store.replicas.listeners.append(self._replica_changed)
        store.longhorn_nodes.listeners.append(lambda *_: self._made.pop("nodes", None))
        store.instance_managers.listeners.append(lambda *_: self._made.pop("managers", None))
        store.engine_images.listeners.append(lambda *_: self._made.pop("images", None))
        store.settings.listeners.append(lambda *_: self._made.pop("settings", None))

    def _replica_changed(self, _key: str, old: Obj[longhorn.Replica] | None, new: Obj[longhorn.Replica] | None) -> None:
        for volume in {obj.model.volume for obj in (old, new) if obj is not None}:
            found = tuple(obj.model for obj in self._store.replicas_of.of(volume))
            if found:
                self._replicas[volume] = found
            else:
                self._replicas.pop(volume, None)

    def settings(self) -> Settings:
        if "settings" not in self._made:
            self._made["settings"] = Settings.read(self._store.settings.models)
        found: Settings = self._made["settings"]
        return found

    def cluster(self, now: datetime) -> Cluster:
        store = self._store
        if any(part not in self._made for part in _GROUPED):
            self._remake(now)
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
            nodes=self._made["nodes"],
            kube_nodes=store.nodes.models,
            replicas_by_volume=self._replicas,
            instance_managers=self._made["managers"],
            engine_images=self._made["images"],
        )

    def _remake(self, now: datetime) -> None:
        store = self._store
        snapshot = Snapshot(
            longhorn_nodes=store.longhorn_nodes.models,
            engine_images=store.engine_images.models,
            instance_managers=store.instance_managers.models,
        )
        made = Cluster.of(snapshot, now, self.settings())
        self._made.update(nodes=made.nodes, managers=made.instance_managers, images=made.engine_images)
