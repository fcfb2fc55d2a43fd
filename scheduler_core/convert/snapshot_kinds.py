"""Every kind a snapshot may hold: how it is read, and where in the snapshot it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from scheduler_core.convert import kube, longhorn
from scheduler_core.convert.meta import Metadata, Wire, shape, shape_json
from scheduler_core.convert.redacted_disk_schedule import DiskSchedule, shown_disk_schedule
from scheduler_core.errors import ObjectError
from scheduler_core.model.snapshot import NamespacedName, Snapshot

LONGHORN_GROUP: Final = "longhorn.io"

Key = str | NamespacedName


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind is read: its API group, its wire type, its conversion, and the field of `Snapshot` it goes to."""

    group: str
    kind: str
    wire: type[Wire]
    convert: Callable[[Any], object]
    field: str
    namespaced: bool = False

    @property
    def label(self) -> str:
        """The kind as people write it; Longhorn's carry their group, because both have a Node."""
        return f"{self.kind}.{self.group}" if self.group == LONGHORN_GROUP else self.kind

    def read(self, raw: object) -> tuple[Key, object]:
        """The key and the model of one decoded object.

        Raises:
            ObjectError: a field is missing or wrong
        """
        return self._converted(shape(self.label, raw, self.wire))

    def decode(self, raw: bytes | msgspec.Raw) -> tuple[Key, object]:
        """The key and the model of one object as the API server sends it.

        Raises:
            ObjectError: as `read`
        """
        return self._converted(shape_json(self.label, raw, self.wire))

    def _converted(self, wire: Wire) -> tuple[Key, object]:
        metadata: Metadata | None = getattr(wire, "metadata", None)
        if metadata is None or not metadata.name:
            raise ObjectError(self.label, "metadata.name", "is missing")
        key: Key = (metadata.namespace or "default", metadata.name) if self.namespaced else metadata.name
        return key, self.convert(wire)


_KINDS: Final = (
    Kind("", "Node", kube.Node, kube.node, "nodes"),
    Kind("", "Pod", kube.Pod, kube.pod, "pods", namespaced=True),
    Kind("", "PersistentVolumeClaim", kube.Claim, kube.claim, "claims", namespaced=True),
    Kind("", "PersistentVolume", kube.PersistentVolume, kube.persistent_volume, "persistent_volumes"),
    Kind("storage.k8s.io", "StorageClass", kube.StorageClass, kube.storage_class, "storage_classes"),
    Kind("storage.k8s.io", "VolumeAttachment", kube.VolumeAttachment, kube.volume_attachment, "volume_attachments"),
    Kind(LONGHORN_GROUP, "Node", longhorn.Node, longhorn.node, "longhorn_nodes"),
    Kind(LONGHORN_GROUP, "Volume", longhorn.Volume, longhorn.volume, "volumes"),
    Kind(LONGHORN_GROUP, "Replica", longhorn.Replica, longhorn.replica, "replicas"),
    Kind(LONGHORN_GROUP, "BackingImage", longhorn.BackingImage, longhorn.backing_image, "backing_images"),
    Kind(LONGHORN_GROUP, "EngineImage", longhorn.EngineImage, longhorn.engine_image, "engine_images"),
    Kind(LONGHORN_GROUP, "InstanceManager", longhorn.InstanceManager, longhorn.instance_manager, "instance_managers"),
    Kind(LONGHORN_GROUP, "Setting", longhorn.Setting, longhorn.setting, "settings"),
    Kind(LONGHORN_GROUP, "DiskSchedule", DiskSchedule, shown_disk_schedule, "disk_schedules"),
)
KINDS: Final = {(kind.group, kind.kind): kind for kind in _KINDS}
WORKLOADS: Final = frozenset({"Pod", "Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job", "CronJob"})


def group_of(api_version: str) -> str:
    """The API group of an apiVersion: "" for core/v1."""
    return api_version.rpartition("/")[0]


def build_snapshot(objects: Iterable[tuple[Kind, object]], base: Snapshot | None = None) -> Snapshot:
    """A snapshot of decoded objects; with `base`, those objects are added to it and replace its own of the same name.

    Raises:
        ObjectError: an object cannot be read, or two different objects bear one name
    """
    found: dict[str, dict[Key, object]] = {}
    for kind, raw in objects:
        key, value = kind.read(raw)
        known = found.setdefault(kind.field, {})
        if known.setdefault(key, value) != value:
            name = "/".join(key) if isinstance(key, tuple) else key
            raise ObjectError(f"{kind.label} {name}", "", "appears twice with different contents")
    base = base or Snapshot()
    merged: dict[str, Any] = {field: {**(getattr(base, field) or {}), **values} for field, values in found.items()}
    return replace(base, **merged)
