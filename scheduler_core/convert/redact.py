"""Redacts objects to what decisions read, so that a snapshot file can be published as part of a bug report.

The wire types are the list of what is kept. Fields that they do not name (environment variables, secrets, commands, the
last applied configuration) are never decoded. Where a wire type keeps a mapping whole, only entries that influence a
decision are kept: labels of nodes and of free PersistentVolumes, labels of pods, of their templates and of namespaces
that a selector of some pod or of a PodDisruptionBudget names, the mirror label of DiskSchedules, four annotations, and
some parameters of Longhorn's own StorageClasses (other parameters hold URLs with credentials).
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from scheduler_core.convert import disk_schedule, generic, kubectl, snapshot_kinds, wire_types
from scheduler_core.convert.wire_types import Fields
from scheduler_core.model import kube, longhorn

_ANNOTATIONS = frozenset(
    {*kube.DEFAULT_CLASS_ANNOTATIONS, kube.SELECTED_NODE_ANNOTATION, kube.STORAGE_CLASS_ANNOTATION}
)
# What scheduler_core.longhorn.csi_driver reads of a StorageClass.
STORAGE_CLASS_PARAMETERS = frozenset(
    {
        "backingImage", "backingImageDataSourceType", "backingImageDiskSelector", "backingImageNodeSelector",
        "backupBlockSize", "cloneMode", "csi.storage.k8s.io/fstype", "dataEngine", "dataLayout.dataChunks",
        "dataLayout.parityChunks", "dataLayout.stripSizeKB", "dataLayout.type", "dataLocality", "dataSource",
        "disableRevisionCounter", "diskSelector", "encrypted", "exclusive", "freezeFilesystemForSnapshot",
        "fromBackup", "fsType", "migratable", "nodeSelector", "numberOfReplicas", "recurringJobSelector",
        "replicaAutoBalance", "replicaDiskSoftAntiAffinity", "replicaSoftAntiAffinity",
        "replicaZoneSoftAntiAffinity", "share", "staleReplicaTimeout", "ublkNumberOfQueue", "ublkQueueDepth",
        "unmapMarkSnapChainRemoved", "volumeTopology",
    }
)  # fmt: skip
# What kube-scheduler's own filters read of these kinds, besides what decisions read.
_FILTERED: Mapping[str, Fields[Any]] = {"nodes": generic.NODE, "pods": generic.SCHEDULED_POD}
PROVISIONER = "driver.longhorn.io"


def redact(kind: snapshot_kinds.SnapshotKind, api_version: str, raw: bytes | msgspec.Raw) -> dict[str, Any]:
    """The redacted object as data, to be printed as JSON or YAML."""
    wire = wire_types.decode_json(kind.label, raw, kind.fields.wire)
    model = kind.fields.construct(wire)  # what is written must be readable
    body = _omit_none(msgspec.to_builtins(wire))
    if kind.field in _FILTERED:
        filtered = wire_types.decode_json(kind.label, raw, _FILTERED[kind.field].wire)
        body = _merge(body, _omit_none(msgspec.to_builtins(filtered)))
    # Claims may select free PersistentVolumes by any label.
    selectable = isinstance(model, kube.PersistentVolume) and model.available is not None
    _redact_metadata(body, _EVERY_LABEL if selectable else _KEPT_LABELS.get(kind.field, ()))
    if kind.field == "storage_classes":
        parameters = body.pop("parameters", {})
        if body.get("provisioner") == PROVISIONER:
            kept = {key: value for key, value in parameters.items() if key in STORAGE_CLASS_PARAMETERS}
            # The rest of a backup's URL says where the backups are.
            if kept.get("fromBackup"):
                kept["fromBackup"] = f"?backup={longhorn.backup_name(kept['fromBackup'])}"
            body["parameters"] = kept
    return {"apiVersion": api_version, "kind": kind.kind, **body}


def redact_namespace(raw: bytes | msgspec.Raw) -> dict[str, Any]:
    """A namespace as data: its name and its labels, for `keep_selected_labels`."""
    body = _omit_none(msgspec.to_builtins(wire_types.decode_json("Namespace", raw, generic.NAMESPACE.wire)))
    body["metadata"].pop("annotations", None)
    return {"apiVersion": "v1", "kind": "Namespace", **body}


def redact_stateful_set(raw: bytes | msgspec.Raw) -> dict[str, Any]:
    """A StatefulSet as data: what predictions read of it."""
    kind = "StatefulSet"
    wires = [
        wire_types.decode_json(kind, raw, wire) for wire in (kubectl.WORKLOAD_FIELDS[kind].wire, generic.TEMPLATE.wire)
    ]
    kubectl.read_pod(kind, msgspec.json.decode(raw))  # what is written must be readable
    body = _merge(*(_omit_none(msgspec.to_builtins(wire)) for wire in wires))
    metadata = body["spec"]["template"].setdefault("metadata", {})
    labels = metadata.get("labels", {})
    _redact_metadata(body)
    # The labels of its template are for `keep_selected_labels`.
    metadata["labels"] = labels
    return {"apiVersion": "apps/v1", "kind": kind, **body}


def selects_namespaces(objects: Iterable[dict[str, Any]]) -> bool:
    """Whether a pod, or a workload's template, selects namespaces by their labels."""
    # The spec of a workload's pods is in its template.
    specs = [spec.get("template", {}).get("spec", spec) for spec in (raw.get("spec", {}) for raw in objects)]
    return any("namespaceSelector" in json.dumps(spec.get("affinity", {})) for spec in specs)


def keep_selected_labels(objects: Iterable[dict[str, Any]]) -> None:
    """Removes labels of pods, their templates and namespaces that no selector names. Selectors of affinity between
    pods, of topology spread constraints and of PodDisruptionBudgets count.
    """
    objects = list(objects)
    labelled = [raw for raw in objects if raw["apiVersion"] == "v1" and raw["kind"] in ("Pod", "Namespace")]
    labelled += [raw["spec"]["template"] for raw in objects if raw["kind"] == "StatefulSet"]
    budgets = (raw for raw in objects if raw["kind"] == "PodDisruptionBudget")
    keys = _selector_keys([raw.get("spec", {}).get("selector") for raw in budgets])
    for raw in labelled:
        spec = raw.get("spec", {})
        keys |= _selector_keys([spec.get("affinity"), spec.get("topologySpreadConstraints")])
    for raw in labelled:
        _keep_entries(raw["metadata"], "labels", keys)


def _selector_keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return {key for entry in value for key in _selector_keys(entry)}
    if not isinstance(value, dict):
        return set()
    expressions = (entry["key"] for entry in value.get("matchExpressions", ()) if "key" in entry)
    nested = _selector_keys([*value.values()])
    return {*value.get("matchLabels", ()), *value.get("matchLabelKeys", ()), *expressions, *nested}


def _merge(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        return {**first, **{key: _merge(first[key], entry) if key in first else entry for key, entry in second.items()}}
    if isinstance(first, list) and isinstance(second, list):
        # Both are of one object, so the lists are of equal length.
        return [_merge(*pair) for pair in zip(first, second, strict=True)]
    return first


_EVERY_LABEL = None
_KEPT_LABELS: Mapping[str, tuple[str, ...] | None] = {
    "nodes": _EVERY_LABEL,
    # `keep_selected_labels` removes most of them once all pods are known.
    "pods": _EVERY_LABEL,
    "disk_schedules": (disk_schedule.MIRROR_LABEL,),
}


def _omit_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _omit_none(entry) for key, entry in value.items() if entry is not None}
    return [_omit_none(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def _redact_metadata(value: Any, labels: tuple[str, ...] | None = ()) -> None:
    # Nested objects, too: a volume claim template has metadata of its own.
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _redact_metadata(entry)
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if isinstance(metadata, dict):
        _keep_entries(metadata, "annotations", _ANNOTATIONS)
        _keep_entries(metadata, "labels", labels)


def _keep_entries(metadata: dict[str, Any], field: str, keys: Collection[str] | None) -> None:
    """Keeps the entries of these keys, all for None."""
    entries = metadata.pop(field, {})
    kept = {key: text for key, text in entries.items() if keys is None or key in keys}
    if kept:
        metadata[field] = kept
