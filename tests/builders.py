"""Kubernetes objects as kubectl prints them, one function per kind, with sensible defaults and keyword overrides. Sizes are given
as numbers of Gi. `snapshot(...)` turns objects into the Snapshot that a snapshot file would give, through the very conversion the
product uses.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scheduler_core.cluster.view import View
from scheduler_core.convert.snapshot_kinds import KINDS, build_snapshot, group_of
from scheduler_core.decide.decision import Competing, FilterOptions
from scheduler_core.decide.explain import Explanation, explain_nodes
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.offers.ledger import Ledger

Object = dict[str, Any]
GI = 1024**3
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONGHORN = "longhorn.io/v1beta2"


def condition(kind: str, status: bool | str = True, reason: str = "") -> Object:
    """A status condition."""
    return {"type": kind, "status": status if isinstance(status, str) else str(status), "reason": reason}


def kube_node(name: str, **labels: str) -> Object:
    """A core/v1 Node; labels by keyword, with _ for every character a keyword cannot have."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def disk(
    size: float = 100,
    *,
    scheduled: float = 0,
    available: float | None = None,
    reserved: float = 0,
    tags: Sequence[str] = (),
    kind: str = "filesystem",
    allow: bool = True,
    evict: bool = False,
    ready: bool = True,
    schedulable: bool = True,
    pressure: bool = False,
    listed: Mapping[str, float] | None = None,
    filesystem: str = "ext4",
) -> Object:
    """A disk of `size` Gi for `longhorn_node`; `listed` are replicas Longhorn's status already counts."""
    replicas = {name: int(gib * GI) for name, gib in (listed or {}).items()}
    return {
        "spec": {
            "allowScheduling": allow,
            "evictionRequested": evict,
            "diskType": kind,
            "path": "/var/lib/longhorn/",
            "storageReserved": int(reserved * GI),
            "tags": list(tags),
        },
        "status": {
            "storageMaximum": int(size * GI),
            "storageAvailable": int((size if available is None else available) * GI),
            "storageScheduled": int(scheduled * GI) + sum(replicas.values()),
            "scheduledReplica": replicas,
            "diskType": kind,
            "filesystemType": filesystem,
            "conditions": [
                condition("Ready", ready),
                condition("Schedulable", schedulable and ready and not pressure, "DiskPressure" if pressure else ""),
            ],
        },
    }


def longhorn_node(
    name: str,
    disks: Mapping[str, Object] | float = 100,
    *,
    allow: bool = True,
    evict: bool = False,
    ready: bool = True,
    schedulable: bool = True,
    zone: str = "",
    tags: Sequence[str] = (),
) -> Object:
    """A nodes.longhorn.io; a number instead of disks is one disk of that many Gi. Disk UUIDs are ``<node>-<disk>``."""
    disks = disks if isinstance(disks, Mapping) else {"disk-1": disk(disks)}
    return {
        "apiVersion": LONGHORN,
        "kind": "Node",
        "metadata": {"name": name, "namespace": "longhorn-system"},
        "spec": {
            "allowScheduling": allow,
            "evictionRequested": evict,
            "tags": list(tags),
            "disks": {key: value["spec"] for key, value in disks.items()},
        },
        "status": {
            "zone": zone,
            "conditions": [
                condition("Ready", ready),
                condition("Schedulable", schedulable, "" if schedulable else "KubernetesNodeCordoned"),
            ],
            "diskStatus": {key: {**value["status"], "diskUUID": f"{name}-{key}"} for key, value in disks.items()},
        },
    }


def storage_class(
    name: str = "longhorn",
    *,
    provisioner: str = "driver.longhorn.io",
    default: bool = False,
    created: str = "2026-01-01T00:00:00Z",
    binding: str = "WaitForFirstConsumer",
    **parameters: str,
) -> Object:
    """A StorageClass; best-effort with one replica unless its parameters say otherwise."""
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "annotations": annotations, "creationTimestamp": created},
        "provisioner": provisioner,
        "volumeBindingMode": binding,
        "parameters": {"numberOfReplicas": "1", "dataLocality": "best-effort", **parameters},
    }


def claim(
    name: str,
    size: float | str | None = 100,
    *,
    bound: bool = False,
    storage_class: str | None = "longhorn",
    namespace: str = "default",
    access: str = "ReadWriteOnce",
    owners: Iterable[Object] = (),
    phase: str | None = None,
    source: str | None = None,
) -> Object:
    """A PersistentVolumeClaim of `size` Gi (or a quantity); bound ones to PersistentVolume ``pv-<name>``."""
    spec: Object = {"accessModes": [access], "resources": {"requests": {}}}
    if size is not None:
        spec["resources"]["requests"]["storage"] = size if isinstance(size, str) else f"{int(size * GI)}"
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    if bound:
        spec["volumeName"] = f"pv-{name}"
    if source is not None:
        spec["dataSource"] = {"kind": "PersistentVolumeClaim", "name": source}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "ownerReferences": list(owners)},
        "spec": spec,
        "status": {"phase": phase or ("Bound" if bound else "Pending")},
    }


def persistent_volume(
    claim_name: str, *, handle: str | None = None, driver: str = "driver.longhorn.io", uid: str | None = None
) -> Object:
    """The PersistentVolume of a bound claim; its Longhorn volume is ``vol-<claim>``. With `uid` it has a claimRef."""
    reference = {} if uid is None else {"claimRef": {"namespace": "default", "name": claim_name, "uid": uid}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"pv-{claim_name}"},
        "spec": {"csi": {"driver": driver, "volumeHandle": handle or f"vol-{claim_name}"}, **reference},
    }


def available_volume(
    name: str,
    size: float | str = 100,
    *,
    storage_class: str = "longhorn",
    driver: str = "driver.longhorn.io",
    node: str = "",
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A free PersistentVolume of `size` Gi (or a quantity); its Longhorn volume is ``vol-<name>``. With `node` only that value of
    the label ``node`` is admitted; further spec fields by their API names.
    """
    if node:
        requirement = {"key": "node", "operator": "In", "values": [node]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": size if isinstance(size, str) else f"{int(size * GI)}"},
            "storageClassName": storage_class,
            "csi": {"driver": driver, "volumeHandle": f"vol-{name}"},
            **spec,
        },
        "status": {"phase": "Available"},
    }


def kept(name: str, size: float = 100, *nodes: str, locality: str = "best-effort", **fields: Any) -> list[Object]:
    """A free PersistentVolume whose Longhorn volume has a replica of `size` Gi on each of the nodes."""
    replicas = [replica(f"{name}-{node}", f"vol-{name}", node, size=size) for node in nodes]
    return [available_volume(name, size, **fields), volume(f"vol-{name}", size, locality=locality), *replicas]


def volume(name: str, size: float = 100, *, locality: str = "best-effort", actual: float = 0, **spec: Any) -> Object:
    """A volumes.longhorn.io of `size` Gi of which `actual` Gi are written; further spec fields by their CRD names."""
    return {
        "apiVersion": LONGHORN,
        "kind": "Volume",
        "metadata": {"name": name, "namespace": "longhorn-system"},
        "spec": {
            "size": str(int(size * GI)),
            "numberOfReplicas": 1,
            "dataLocality": locality,
            "dataEngine": "v1",
            "accessMode": "rwo",
            **spec,
        },
        "status": {"actualSize": int(actual * GI), "state": "detached", "robustness": "unknown"},
    }


def replica(
    name: str,
    volume_name: str,
    node: str = "",
    *,
    size: float = 100,
    disk: str = "disk-1",
    healthy: bool = True,
    failed: bool = False,
    deleting: bool = False,
    **spec: Any,
) -> Object:
    """A replicas.longhorn.io, placed on ``<node>-<disk>`` unless `node` is empty."""
    metadata: Object = {"name": name, "namespace": "longhorn-system"}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "apiVersion": LONGHORN,
        "kind": "Replica",
        "metadata": metadata,
        "spec": {
            "volumeName": volume_name,
            "volumeSize": str(int(size * GI)),
            "nodeID": node,
            "diskID": f"{node}-{disk}" if node else "",
            "dataEngine": "v1",
            "active": True,
            "healthyAt": "2025-12-01T00:00:00Z" if healthy else "",
            "failedAt": "2025-12-31T00:00:00Z" if failed else "",
            **spec,
        },
    }


def bound(name: str, size: float = 100, *, access: str = "ReadWriteOnce", **volume_fields: Any) -> list[Object]:
    """A bound claim with its PersistentVolume and Longhorn volume ``vol-<name>``."""
    return [
        claim(name, size, bound=True, access=access),
        persistent_volume(name),
        volume(f"vol-{name}", size, **volume_fields),
    ]


def setting(name: str, value: str) -> Object:
    """A settings.longhorn.io."""
    return {
        "apiVersion": LONGHORN,
        "kind": "Setting",
        "metadata": {"name": name, "namespace": "longhorn-system"},
        "value": value,
    }


def csi_node(name: str, *drivers: str) -> Object:
    """A CSINode."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name},
        "spec": {"drivers": [{"name": driver, "nodeID": name} for driver in drivers]},
    }


def pod(
    *claims: str,
    name: str = "pod",
    namespace: str = "default",
    uid: str = "uid-pod",
    node: str = "",
    phase: str = "Pending",
    deleting: bool = False,
    ephemeral: Mapping[str, Object] | None = None,
) -> Object:
    """A Pod that mounts claims by name, and generic ephemeral volumes by volume name and claim spec."""
    metadata: Object = {"name": name, "namespace": namespace, "uid": uid}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    volumes: list[Object] = [
        {"name": f"volume-{index}", "persistentVolumeClaim": {"claimName": entry}} for index, entry in enumerate(claims)
    ]
    volumes += [
        {"name": key, "ephemeral": {"volumeClaimTemplate": {"spec": spec}}} for key, spec in (ephemeral or {}).items()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": node, "volumes": volumes},
        "status": {"phase": phase},
    }


def ephemeral_spec(size: float = 100, storage_class: str = "longhorn") -> Object:
    """The claim spec of a generic ephemeral volume."""
    return {
        "storageClassName": storage_class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{int(size * GI)}"}},
    }


def flat(*objects: Object | Iterable[Object]) -> list[Object]:
    """Objects and lists of objects as one list."""
    found: list[Object] = []
    for entry in objects:
        found += [entry] if isinstance(entry, dict) else list(entry)
    return found


def write_list(file: Path, *objects: Object | Iterable[Object]) -> str:
    """Writes objects as `kubectl get -o json` prints them, in a folder as snapshot.json; returns the path."""
    file = file / "snapshot.json" if file.is_dir() else file
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": flat(*objects)}))
    return str(file)


def snapshot(*objects: Object | Iterable[Object]) -> Snapshot:
    """The snapshot of some objects."""
    return build_snapshot((KINDS[group_of(entry["apiVersion"]), entry["kind"]], entry) for entry in flat(*objects))


def view(*objects: Object | Iterable[Object]) -> View:
    """The view of some objects at NOW."""
    return View.of(snapshot(*objects), NOW)


def as_pod(raw: Object) -> Pod:
    """The model of a pod."""
    value = KINDS["", "Pod"].read(raw)[1]
    assert isinstance(value, Pod)
    return value


def state(*objects: Object | Iterable[Object]) -> ClusterState:
    """The state of a cluster of some objects."""
    return ClusterState.of(view(*objects))


def competing(
    current: ClusterState,
    ledger: Ledger | None = None,
    contention: Contention | None = None,
    equivalence: EquivalenceCache | None = None,
) -> Competing:
    """All demand of a state and some offers as contenders, with empty caches unless others are given."""
    return Competing(current.demand, ledger or Ledger(), contention or Contention(), equivalence or EquivalenceCache())


def explained(
    raw_pod: Object,
    *objects: Object | Iterable[Object],
    nodes: Iterable[str] | None = None,
    options: FilterOptions | None = None,
) -> Explanation:
    """The explanation for a pod in a cluster of some objects; for all Longhorn nodes unless `nodes` are given."""
    current = state(*objects)
    candidates = sorted(nodes if nodes is not None else current.view.snapshot.longhorn_nodes)
    return explain_nodes(as_pod(raw_pod), candidates, current, options or FilterOptions())


def fitting(explanation: Explanation) -> list[str]:
    """The nodes that fit."""
    decision = explanation.decision
    return [name for name, reason in zip(decision.candidates, decision.reasons, strict=True) if reason.fits]


def reasons(explanation: Explanation) -> dict[str, str]:
    """The name of the reason for each node."""
    decision = explanation.decision
    return {name: reason.name for name, reason in zip(decision.candidates, decision.reasons, strict=True)}
