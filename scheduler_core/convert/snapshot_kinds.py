"""Registry of the kinds that a snapshot may hold: how each is read, and which field of the snapshot holds it.

Also here: of Longhorn's custom resources (longhorn.io/v1beta2) what the paths at the fields of `model/longhorn.py` do not say, and a
DiskSchedule cut down to its requests and answers, and to what says whose controller answers. Decisions about pods read it like that, and a
bug report shows it. The controllers read the same object through `disk_schedule.py`, which keeps every field, because they write it back.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from scheduler_core import errors
from scheduler_core.convert import disk_schedule, generic, kube, wire_types
from scheduler_core.convert.kube import DISRUPTION_BUDGET
from scheduler_core.convert.wire_types import Fields, map_of, value_at
from scheduler_core.model import disk_schedule as model, longhorn
from scheduler_core.model.snapshot import NamespacedName, Snapshot
from scheduler_core.structs import Struct, replace

_DISK = Fields("", longhorn.Disk)


def _join_disks(spec_disks: dict[str, Any] | None, status_disks: dict[str, Any] | None) -> tuple[longhorn.Disk, ...]:
    """The disks of a node, spec and status joined by name."""
    spec_disks = spec_disks or {}
    status_disks = status_disks or {}
    disks = []
    for name in sorted(spec_disks.keys() | status_disks.keys()):
        wire = _DISK.wire(name=name, spec=spec_disks.get(name), status=status_disks.get(name))
        try:
            disks.append(_DISK.construct(wire))
        except errors.ObjectError as error:
            part, _, field = error.field.partition(".")
            disk = f"spec.disks.{name}" if part == "spec" else f"status.diskStatus.{name}"
            raise errors.ObjectError("", f"{disk}.{field}", error.problem) from error
    return tuple(disks)


LONGHORN_NODE = Fields(
    "Node.longhorn.io", longhorn.Node, disks=(_join_disks, map_of(_DISK.part("spec")), map_of(_DISK.part("status")))
)
VOLUME = Fields("Volume.longhorn.io", longhorn.Volume)
REPLICA = Fields("Replica.longhorn.io", longhorn.Replica)
BACKING_IMAGE = Fields(
    "BackingImage.longhorn.io",
    longhorn.BackingImage,
    disks=(lambda files: tuple(sorted(files or ())), map_of(wire_types.Wire | None)),
)
BACKUP = Fields("Backup.longhorn.io", longhorn.Backup)
ENGINE_IMAGE = Fields("EngineImage.longhorn.io", longhorn.EngineImage)
INSTANCE_MANAGER = Fields("InstanceManager.longhorn.io", longhorn.InstanceManager)


SETTING = value_at("Setting.longhorn.io", "value", "")


class _Spec(wire_types.Wire):
    name: Any = None
    node_id: Any = msgspec.field(default=None, name="nodeID")
    replicas: Any = None
    backing_images: Any = None


class _Status(wire_types.Wire):
    replicas: Any = None
    backing_images: Any = None
    conditions: Any = None

    def __post_init__(self) -> None:
        """Keeps only the types of the conditions, which say whose controller answers."""
        entries = self.conditions if isinstance(self.conditions, list) else ()
        types = (entry.get("type") for entry in entries if isinstance(entry, dict))
        self.conditions = [{"type": kind} for kind in types if isinstance(kind, str)] or None


class RedactedDiskSchedule(disk_schedule.DiskSchedule):
    """longhorn.io DiskSchedule, cut down to requests and answers."""

    spec: _Spec | None = None
    status: _Status | None = None


def redacted_disk_schedule(wire: RedactedDiskSchedule) -> model.DiskSchedule:
    """Converts a DiskSchedule; unusable fields become faults, never an exception."""
    spec, status = msgspec.to_builtins((wire.spec, wire.status))
    schedule = disk_schedule.disk_schedule(disk_schedule.DiskSchedule(metadata=wire.metadata, spec=spec, status=status))
    # A condition that comes or goes is no change for a decision.
    return replace(schedule, status=replace(schedule.status, conditions=()))


LONGHORN_GROUP = "longhorn.io"
SNAPSHOT_GROUP = "snapshot.storage.k8s.io"

Key = str | NamespacedName


class SnapshotKind(Struct, frozen=True):
    """A kind that a snapshot may hold, and how it is read."""

    group: str  # the API group, "" for core/v1
    fields: Fields[Any]
    field: str  # the name of the field of `Snapshot`
    namespaced: bool = False  # whether its key has a namespace

    @property
    def label(self) -> str:
        return self.fields.kind

    @property
    def kind(self) -> str:
        return self.label.partition(".")[0]

    def read(self, raw: object) -> tuple[Key, object]:
        """The key and the model of one decoded object."""
        return self._convert_wire(wire_types.decode_object(self.label, raw, self.fields.wire))

    def decode(self, raw: bytes | msgspec.Raw) -> tuple[Key, object]:
        """The key and the model of an object of the API server."""
        return self._convert_wire(wire_types.decode_json(self.label, raw, self.fields.wire))

    def _convert_wire(self, wire: wire_types.Wire) -> tuple[Key, object]:
        metadata: wire_types.Metadata | None = getattr(wire, "metadata", None)
        if metadata is None or not metadata.name:
            raise errors.ObjectError(self.label, "metadata.name", "is missing")
        key: Key = (metadata.namespace or "default", metadata.name) if self.namespaced else metadata.name
        return key, self.fields.construct(wire)


_KINDS = (
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
    SnapshotKind(LONGHORN_GROUP, LONGHORN_NODE, "longhorn_nodes"),
    SnapshotKind(LONGHORN_GROUP, VOLUME, "volumes"),
    SnapshotKind(LONGHORN_GROUP, REPLICA, "replicas"),
    SnapshotKind(LONGHORN_GROUP, BACKING_IMAGE, "backing_images"),
    SnapshotKind(LONGHORN_GROUP, BACKUP, "backups"),
    SnapshotKind(LONGHORN_GROUP, ENGINE_IMAGE, "engine_images"),
    SnapshotKind(LONGHORN_GROUP, INSTANCE_MANAGER, "instance_managers"),
    SnapshotKind(LONGHORN_GROUP, SETTING, "settings"),
    SnapshotKind(
        LONGHORN_GROUP,
        Fields.by_hand("DiskSchedule.longhorn.io", RedactedDiskSchedule, redacted_disk_schedule),
        "disk_schedules",
    ),
)
KINDS = {(kind.group, kind.kind): kind for kind in _KINDS}
# The same with what kube-scheduler's own filters read of pods.
PREDICTED_KINDS = {**KINDS, ("", "Pod"): SnapshotKind("", generic.SCHEDULED_POD, "pods", namespaced=True)}
WORKLOADS = frozenset({"Pod", "Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job", "CronJob"})


def group_of(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def build_snapshot(objects: Iterable[tuple[SnapshotKind, object]], base: Snapshot | None = None) -> Snapshot:
    """Builds a snapshot from decoded objects; with `base`, they replace its own objects of the same name."""
    by_field: dict[str, dict[Key, object]] = {}
    for kind, raw in objects:
        key, value = kind.read(raw)
        first = by_field.setdefault(kind.field, {}).setdefault(key, value)
        if first is not value and first != value:
            name = "/".join(key) if isinstance(key, tuple) else key
            raise errors.ObjectError(f"{kind.label} {name}", "", "appears twice with different contents")
    base = base or Snapshot()
    merged: dict[str, Any] = {field: {**(getattr(base, field) or {}), **values} for field, values in by_field.items()}
    return replace(base, **merged)
