"""An object cut down to what decisions read, so that it can be shown to strangers: a snapshot file for a bug report.

The wire types are the list of what is kept; whatever they do not name (environment variables, secrets, commands, the last applied
configuration) is not there to begin with. Where the wire types keep a mapping whole, only entries that decide something are kept:
labels of nodes, three annotations, and some parameters of Longhorn's own StorageClasses (others hold URLs with credentials).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from scheduler_core.convert.disk_schedule import MIRROR_LABEL
from scheduler_core.convert.kube import DEFAULT_CLASS_ANNOTATIONS, SELECTED_NODE_ANNOTATION, STORAGE_CLASS_ANNOTATION
from scheduler_core.convert.meta import shape_json
from scheduler_core.convert.snapshot_kinds import Kind

_ANNOTATIONS: Final = frozenset({*DEFAULT_CLASS_ANNOTATIONS, SELECTED_NODE_ANNOTATION, STORAGE_CLASS_ANNOTATION})


# What scheduler_core.longhorn.provisioning reads of a StorageClass.
PARAMETERS: Final = frozenset(
    {
        "backingImage", "backingImageDataSourceType", "cloneMode", "csi.storage.k8s.io/fstype", "dataEngine",
        "dataLocality", "dataSource", "diskSelector", "fsType", "migratable", "nodeSelector", "numberOfReplicas",
        "replicaAutoBalance", "replicaDiskSoftAntiAffinity", "replicaSoftAntiAffinity", "replicaZoneSoftAntiAffinity",
        "share",
    }
)  # fmt: skip
PROVISIONER: Final = "driver.longhorn.io"


def published(kind: Kind, api_version: str, raw: bytes | msgspec.Raw) -> dict[str, Any]:
    """The object as data, ready to be printed as JSON or YAML.

    Raises:
        ObjectError: it cannot be read
    """
    wire = shape_json(kind.label, raw, kind.wire)
    kind.convert(wire)  # what is written must be readable
    kept = _without_absent(msgspec.to_builtins(wire))
    _cut_metadata(kept, labels=_LABELS.get(kind.field, _no_label))
    if kind.field == "storage_classes":
        parameters = kept.pop("parameters", {})
        if kept.get("provisioner") == PROVISIONER:
            kept["parameters"] = {key: value for key, value in parameters.items() if key in PARAMETERS}
    return {"apiVersion": api_version, "kind": kind.kind, **kept}


def _no_label(_: str) -> bool:
    return False


_LABELS: Final[Mapping[str, Callable[[str], bool]]] = {
    "nodes": lambda _: True,
    "disk_schedules": lambda key: key == MIRROR_LABEL,
}


def _without_absent(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_absent(entry) for key, entry in value.items() if entry is not None}
    return [_without_absent(entry) for entry in value] if isinstance(value, list) else value


def _cut_metadata(value: Any, *, labels: Callable[[str], bool]) -> None:
    """Also inside: a volume claim template has metadata of its own. `labels` says which ones stay."""
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _cut_metadata(entry, labels=_no_label)
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict):
        return
    annotations = {key: text for key, text in metadata.pop("annotations", {}).items() if key in _ANNOTATIONS}
    kept = {key: text for key, text in metadata.pop("labels", {}).items() if labels(key)}
    if annotations:
        metadata["annotations"] = annotations
    if kept:
        metadata["labels"] = kept
