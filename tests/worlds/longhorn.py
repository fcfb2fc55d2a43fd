"""Small Longhorn clusters; by default nodes and disks are ready, schedulable and empty, with 100 GiB."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.placement import DiskCandidates, PlacementResult
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import kube, longhorn as lh
from scheduler_core.model.snapshot import Snapshot

GIB = 1024**3
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG_AGO = "2025-12-01T00:00:00Z"
TRUE = {"Ready": "True", "Schedulable": "True"}


def conditions(**statuses: str) -> tuple[kube.Condition, ...]:
    """Ready and Schedulable conditions, both True unless given."""
    return tuple(kube.Condition(kind, status) for kind, status in {**TRUE, **statuses}.items())


def disk(name: str = "d1", **fields: Any) -> lh.Disk:
    """An open file system disk of 100 GiB; `uuid` is completed by `node`."""
    defaults: dict[str, Any] = {
        "path": f"/data/{name}",
        "allow_scheduling": True,
        "spec_type": "filesystem",
        "status_type": "filesystem",
        "filesystem_type": "ext4",
        "storage_maximum": 100 * GIB,
        "storage_available": 100 * GIB,
        "conditions": conditions(),
    }
    return lh.Disk(name, **{**defaults, **fields})


def node(name: str = "n1", *disks: lh.Disk, **fields: Any) -> lh.Node:
    """An open node in its own zone, by default with one disk; disk UUIDs are ``<node>-<disk>`` unless given."""
    named = tuple(_with_uuid(name, each) for each in disks or (disk(),))
    defaults: dict[str, Any] = {"allow_scheduling": True, "zone": f"z-{name}", "conditions": conditions()}
    return lh.Node(name, disks=named, **{**defaults, **fields})


def _with_uuid(node_name: str, entry: lh.Disk) -> lh.Disk:
    fields = {field: getattr(entry, field) for field in type(entry).__match_args__}
    return lh.Disk(**{**fields, "uuid": entry.uuid or f"{node_name}-{entry.name}"})


def volume(name: str = "v", size: int = 10 * GIB, **fields: Any) -> lh.Volume:
    """A volume of 10 GiB with three replicas."""
    return lh.Volume(name, size, **{"number_of_replicas": 3, **fields})


def replica(name: str, place: str = "", **fields: Any) -> lh.Replica:
    """A healthy replica of volume v at ``node/disk``, or an unplaced one."""
    node_name, _, disk_name = place.partition("/")
    defaults: dict[str, Any] = {
        "volume": "v",
        "size": 10 * GIB,
        "node_id": node_name,
        "disk_id": f"{node_name}-{disk_name}" if disk_name else "",
        "healthy_at": LONG_AGO if place else "",
    }
    return lh.Replica(name, **{**defaults, **fields})


def failed(name: str, place: str, **fields: Any) -> lh.Replica:
    return replica(name, place, **{"failed_at": LONG_AGO, **fields})


def cluster(
    *nodes: lh.Node,
    volumes: Iterable[lh.Volume] = (),
    replicas: Iterable[lh.Replica] = (),
    settings: Mapping[str, str] | None = None,
    **fields: Any,
) -> Cluster:
    """A cluster at NOW; its Kubernetes nodes are plain ones unless `nodes` of the snapshot are given as `kube_nodes`."""
    kube_nodes = fields.pop("kube_nodes", None) or {each.name: kube.Node(each.name) for each in nodes}
    snapshot = Snapshot(
        nodes=kube_nodes,
        longhorn_nodes={each.name: each for each in nodes},
        volumes={each.name: each for each in volumes},
        replicas={each.name: each for each in replicas},
        **fields,
    )
    return Cluster.of(snapshot, NOW, Settings.read(settings or {}))


def places(result: DiskCandidates | PlacementResult) -> list[str]:
    """Candidates or choices as ``node/disk``, in order."""
    disks = result.disks if isinstance(result, DiskCandidates) else [choice.candidate for choice in result.choices]
    return [f"{each.node.name}/{each.disk.name}" for each in disks]
