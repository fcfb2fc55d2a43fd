"""Redacts objects, so that a snapshot file can be published.

Only what decisions read stays, so that the file can be part of a bug report.

The wire types are the list of what is kept. Fields that they do not name (environment variables, secrets, commands, the last
applied configuration) are never decoded. Where a wire type keeps a mapping whole, only entries that influence a decision are
kept: labels of nodes and of free PersistentVolumes, the mirror label of DiskSchedules, four annotations, and some parameters of Longhorn's own StorageClasses
(other parameters hold URLs with credentials).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from scheduler_core.convert.disk_schedule import MIRROR_LABEL
from scheduler_core.convert.kube import DEFAULT_CLASS_ANNOTATIONS, SELECTED_NODE_ANNOTATION, STORAGE_CLASS_ANNOTATION
from scheduler_core.convert.meta import decode_json
from scheduler_core.convert.snapshot_kinds import SnapshotKind
from scheduler_core.model.kube import PersistentVolume

_ANNOTATIONS: Final = frozenset({*DEFAULT_CLASS_ANNOTATIONS, SELECTED_NODE_ANNOTATION, STORAGE_CLASS_ANNOTATION})
# What scheduler_core.longhorn.provisioned_volume reads of a StorageClass.
STORAGE_CLASS_PARAMETERS: Final = frozenset(
    {
        "backingImage", "backingImageDataSourceType", "cloneMode", "csi.storage.k8s.io/fstype", "dataEngine",
        "dataLocality", "dataSource", "diskSelector", "fsType", "migratable", "nodeSelector", "numberOfReplicas",
        "replicaAutoBalance", "replicaDiskSoftAntiAffinity", "replicaSoftAntiAffinity", "replicaZoneSoftAntiAffinity",
        "share",
    }
)  # fmt: skip
PROVISIONER: Final = "driver.longhorn.io"


def redact(kind: SnapshotKind, api_version: str, raw: bytes | msgspec.Raw) -> dict[str, Any]:
    """The redacted object as data, ready to be printed as JSON or YAML.

    Raises:
        ObjectError: it cannot be read
    """
    wire = decode_json(kind.label, raw, kind.wire)
    model = kind.convert(wire)  # what is written must be readable
    body = _omit_none(msgspec.to_builtins(wire))
    # Claims may select free PersistentVolumes by any label.
    selectable = isinstance(model, PersistentVolume) and model.available is not None
    _redact_metadata(body, keep_label=_every_label if selectable else _KEPT_LABELS.get(kind.field, _no_label))
    if kind.field == "storage_classes":
        parameters = body.pop("parameters", {})
        if body.get("provisioner") == PROVISIONER:
            body["parameters"] = {key: value for key, value in parameters.items() if key in STORAGE_CLASS_PARAMETERS}
    return {"apiVersion": api_version, "kind": kind.kind, **body}


def _no_label(_: str) -> bool:
    return False


def _every_label(_: str) -> bool:
    return True


_KEPT_LABELS: Final[Mapping[str, Callable[[str], bool]]] = {
    "nodes": _every_label,
    "disk_schedules": lambda key: key == MIRROR_LABEL,
}


def _omit_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _omit_none(entry) for key, entry in value.items() if entry is not None}
    return [_omit_none(entry) for entry in value] if isinstance(value, list) else value


def _redact_metadata(value: Any, *, keep_label: Callable[[str], bool]) -> None:
    """Removes labels and annotations, except for those that are kept."""
    # Nested objects, too: a volume claim template has metadata of its own.
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _redact_metadata(entry, keep_label=_no_label)
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict):
        return
    annotations = {key: text for key, text in metadata.pop("annotations", {}).items() if key in _ANNOTATIONS}
    labels = {key: text for key, text in metadata.pop("labels", {}).items() if keep_label(key)}
    if annotations:
        metadata["annotations"] = annotations
    if labels:
        metadata["labels"] = labels
