"""Registry of the kinds that a snapshot may hold: how each is read, and which field of the snapshot holds it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from scheduler_core.convert import kube, longhorn
from scheduler_core.convert.fields import Fields
from scheduler_core.convert.generic import SCHEDULED_POD
from scheduler_core.convert.kube import DISRUPTION_BUDGET
from scheduler_core.convert.meta import Metadata, Wire, decode_json, decode_object
from scheduler_core.convert.redacted_disk_schedule import RedactedDiskSchedule, redacted_disk_schedule
from scheduler_core.errors import ObjectError
from scheduler_core.model.snapshot import NamespacedName, Snapshot

LONGHORN_GROUP: Final = "longhorn.io"
SNAPSHOT_GROUP: Final = "snapshot.storage.k8s.io"

Key = str | NamespacedName


@dataclass(frozen=True, slots=True)
class SnapshotKind:
    """A kind that a snapshot may hold, and how it is read."""

    # The API group, "" for core/v1.
    group: str
    fields: Fields[Any]
    # The name of the field of `Snapshot`.
    field: str
    # Whether its key has a namespace.
    namespaced: bool = False

    @property
    def label(self) -> str:
        """The kind's name in messages, for Longhorn's kinds with their group, because Kubernetes and Longhorn both have
        a Node.
        """
        return self.fields.kind

    @property
    def kind(self) -> str:
        return self.label.partition(".")[0]

    def read(self, raw: object) -> tuple[Key, object]:
        """The key and the model of one decoded object.

        Raises:
            ObjectError: a field is missing or wrong
        """
        return self._convert_wire(decode_object(self.label, raw, self.fields.wire))

    def decode(self, raw: bytes | msgspec.Raw) -> tuple[Key, object]:
        """The key and the model of an object of the API server.

        Raises:
            ObjectError: as `read`
        """
        return self._convert_wire(decode_json(self.label, raw, self.fields.wire))

    def _convert_wire(self, wire: Wire) -> tuple[Key, object]:
        metadata: Metadata | None = getattr(wire, "metadata", None)
        if metadata is None or not metadata.name:
            raise ObjectError(self.label, "metadata.name", "is missing")
        key: Key = (metadata.namespace or "default", metadata.name) if self.namespaced else metadata.name
        return key, self.fields.construct(wire)


_KINDS: Final = (
    SnapshotKind("", kube.NODE, "nodes"),
    SnapshotKind("", kube.POD, "pods", namespaced=True),
    SnapshotKind("", kube.CLAIM, "claims", namespaced=True),
    SnapshotKind("", kube.PERSISTENT_VOLUME, "persistent_volumes"),
    SnapshotKind("storage.k8s.io", kube.STORAGE_CLASS, "storage_classes"),
    SnapshotKind("storage.k8s.io", kube.VOLUME_ATTACHMENT, "volume_attachments"),
    SnapshotKind("storage.k8s.io", kube.CSI_NODE, "csi_nodes"),
    SnapshotKind("policy", DISRUPTION_BUDGET, "disruption_budgets", namespaced=True),
    SnapshotKind(SNAPSHOT_GROUP, kube.VOLUME_SNAPSHOT, "volume_snapshots", namespaced=True),
    SnapshotKind(SNAPSHOT_GROUP, kube.VOLUME_SNAPSHOT_CONTENT, "volume_snapshot_contents"),
    SnapshotKind(LONGHORN_GROUP, longhorn.NODE, "longhorn_nodes"),
    SnapshotKind(LONGHORN_GROUP, longhorn.VOLUME, "volumes"),
    SnapshotKind(LONGHORN_GROUP, longhorn.REPLICA, "replicas"),
    SnapshotKind(LONGHORN_GROUP, longhorn.BACKING_IMAGE, "backing_images"),
    SnapshotKind(LONGHORN_GROUP, longhorn.BACKUP, "backups"),
    SnapshotKind(LONGHORN_GROUP, longhorn.ENGINE_IMAGE, "engine_images"),
    SnapshotKind(LONGHORN_GROUP, longhorn.INSTANCE_MANAGER, "instance_managers"),
    SnapshotKind(LONGHORN_GROUP, longhorn.SETTING, "settings"),
    SnapshotKind(
        LONGHORN_GROUP,
        Fields.by_hand("DiskSchedule.longhorn.io", RedactedDiskSchedule, redacted_disk_schedule),
        "disk_schedules",
    ),
)
KINDS: Final = {(kind.group, kind.kind): kind for kind in _KINDS}
# The same with what kube-scheduler's own filters read of pods.
PREDICTED_KINDS: Final = {**KINDS, ("", "Pod"): SnapshotKind("", SCHEDULED_POD, "pods", namespaced=True)}
WORKLOADS: Final = frozenset({"Pod", "Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job", "CronJob"})


def group_of(api_version: str) -> str:
    """The API group of an apiVersion: "" for core/v1."""
    return api_version.rpartition("/")[0]


def build_snapshot(objects: Iterable[tuple[SnapshotKind, object]], base: Snapshot | None = None) -> Snapshot:
    """Builds a snapshot from decoded objects; with `base`, they replace its own objects of the same name.

    Raises:
        ObjectError: an object cannot be read, or two different objects bear one name
    """
    by_field: dict[str, dict[Key, object]] = {}
    for kind, raw in objects:
        key, value = kind.read(raw)
        if by_field.setdefault(kind.field, {}).setdefault(key, value) != value:
            name = "/".join(key) if isinstance(key, tuple) else key
            raise ObjectError(f"{kind.label} {name}", "", "appears twice with different contents")
    base = base or Snapshot()
    merged: dict[str, Any] = {field: {**(getattr(base, field) or {}), **values} for field, values in by_field.items()}
    return replace(base, **merged)
