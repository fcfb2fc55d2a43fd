"""Longhorn nodes: their objects from an annotation of the Kubernetes node, their status, and what evicts replicas."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import msgspec

from app.kube.resources import (
    CSI_NODES,
    LONGHORN_INSTANCE_MANAGERS,
    LONGHORN_NAMESPACE,
    LONGHORN_NODES,
    LONGHORN_REPLICAS,
)
from scheduler_core.errors import CoreError, QuantityError
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.node_status import Collected, ManagerPod, synced_node
from scheduler_core.model import kube, longhorn
from scheduler_core.model.kube import Condition
from scheduler_core.model.longhorn import BLOCK, FILESYSTEM, V1, V2
from scheduler_core.model.quantity import parse_bytes
from simulator.actions import Action, Create, Patch, Replace
from simulator.config import Config
from simulator.objects import DISKS, DOWN, DRIVER, STOPPED_MANAGER, Json, Obj
from simulator.volumes.observation import RUNNING, STOPPED, UNKNOWN, Replica

_NAMES: Final = uuid.UUID("6c6f6e67-686f-726e-0000-000000000000")
_POLICY: Final = "block-for-eviction"
_LAST_POLICY: Final = "block-for-eviction-if-contains-last-replica"


class DisksError(CoreError):
    """The annotation that lists a node's disks cannot be read."""


class DiskSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One disk of the annotation; sizes are quantities."""

    size: str
    name: Annotated[str, msgspec.Meta(min_length=1)] = ""
    reserved: str = "0"
    used: str = "0"
    tags: list[str] = []
    type: str = FILESYSTEM
    filesystem: str = "ext4"


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk as it really is; sizes in bytes. `used` is what is on it beside Longhorn's data."""

    name: str
    size: int
    reserved: int = 0
    used: int = 0
    tags: tuple[str, ...] = ()
    type: str = FILESYSTEM
    filesystem: str = "ext4"


@dataclass(frozen=True, slots=True)
class NodeSight:
    """What a decision about one node sees.

    Attributes:
        cluster: with this node's replicas only, as the status may tell of them (`lag`)
        written: bytes of replicas' data and backing images by disk UUID
        replicas: the replicas that are on the node now
        others: for each volume with a replica here, whether a healthy one is on another node
    """

    config: Config
    cluster: Cluster
    node: Obj[kube.Node] | None
    longhorn_node: Obj[longhorn.Node] | None
    csi_node: Obj[None] | None
    managers: Mapping[str, Obj[longhorn.InstanceManager]]
    replicas: Sequence[Replica]
    written: Mapping[str, int]
    others: Mapping[str, bool]
    time: str
    manager_image: str


def read_disks(node: Obj[kube.Node]) -> tuple[Disk, ...] | None:
    """The disks of a node's annotation, None if it has no such annotation: then it is no Longhorn node.

    Raises:
        DisksError: the annotation is no list of disks
    """
    text = node.annotations.get(DISKS)
    if text is None:
        return None
    try:
        entries = msgspec.json.decode(text, type=list[DiskSpec])
        disks = tuple(_disk(entry, index) for index, entry in enumerate(entries, start=1))
    except (msgspec.DecodeError, QuantityError) as error:
        raise DisksError(f"Node {node.name}: annotation {DISKS}: {error}") from error
    if len({disk.name for disk in disks}) < len(disks):
        raise DisksError(f"Node {node.name}: annotation {DISKS}: two disks have one name")
    return disks


def _disk(entry: DiskSpec, index: int) -> Disk:
    return Disk(
        name=entry.name or f"disk-{index}",
        size=parse_bytes(entry.size),
        reserved=parse_bytes(entry.reserved),
        used=parse_bytes(entry.used),
        tags=tuple(entry.tags),
        type=entry.type,
        filesystem=entry.filesystem,
    )


def disk_uuid(node: str, disk: str) -> str:
    """The UUID of a disk: the same at every start."""
    return str(uuid.uuid5(_NAMES, f"{node}/{disk}"))


def decide_node(sight: NodeSight) -> list[Action]:
    """Sees to a node's objects, then to its status, then to the replicas that have to leave it.

    Raises:
        DisksError: the annotation is no list of disks
    """
    disks = read_disks(sight.node) if sight.node is not None else ()
    if disks is None:
        return []
    objects = [*_csi_node(sight), *_managers(sight, disks), *_longhorn_node(sight, disks)]
    if objects or sight.longhorn_node is None:
        return objects
    return [*_status(sight, disks), *_evictions(sight)]


def _csi_node(sight: NodeSight) -> list[Action]:
    if sight.node is None:
        return []
    entry = {"name": DRIVER, "nodeID": sight.node.name, "topologyKeys": ["kubernetes.io/hostname"]}
    if sight.csi_node is None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": sight.node.name, "uid": sight.node.uid}
        body = {"metadata": {"name": sight.node.name, "ownerReferences": [owner]}, "spec": {"drivers": [entry]}}
        return [Create(CSI_NODES, body, "CSI driver registered")]
    drivers = sight.csi_node.spec.get("drivers") or []
    if any(driver.get("name") == DRIVER for driver in drivers):
        return []
    return [Patch(CSI_NODES, sight.csi_node, {"spec": {"drivers": [*drivers, entry]}}, "CSI driver registered")]


def _managers(sight: NodeSight, disks: Sequence[Disk]) -> list[Action]:
    """One instance manager per data engine in use; what runs on a node that is down is unknown.

    One with the annotation `simulator/stopped: "true"` stays stopped.
    """
    up = sight.longhorn_node is None or sight.longhorn_node.model.ready or not sight.longhorn_node.status
    actions: list[Action] = []
    for engine in (V1, V2) if any(disk.type == BLOCK for disk in disks) else (V1,):
        known = sight.managers.get(engine)
        stopped = known is not None and known.annotations.get(STOPPED_MANAGER) == "true"
        state = UNKNOWN if not up else STOPPED if stopped else RUNNING
        if known is None and sight.node is not None:
            body = _manager(sight.node.name, engine, sight)
            actions.append(Create(LONGHORN_INSTANCE_MANAGERS, body, "instance manager created"))
        elif known is not None and known.model.state != state:
            why = f"instance manager {state}"
            body = {"status": {"currentState": state}}
            actions.append(Patch(LONGHORN_INSTANCE_MANAGERS, known, body, why, status=True))
    return actions


def manager_name(node: str, engine: str) -> str:
    """The name of a node's instance manager."""
    return f"instance-manager-{engine}-{uuid.uuid5(_NAMES, f'{node}/{engine}').hex[:12]}"


def _manager(node: str, engine: str, sight: NodeSight) -> Json:
    return {
        "metadata": {"name": manager_name(node, engine), "namespace": LONGHORN_NAMESPACE},
        "spec": {"nodeID": node, "dataEngine": engine, "image": sight.manager_image, "type": "aio"},
    }


def _longhorn_node(sight: NodeSight, disks: Sequence[Disk]) -> list[Action]:
    """The Longhorn node of a Kubernetes node, with its disks; disks that the annotation names later are added."""
    if sight.node is None:
        return []
    wanted = {disk.name: _spec_disk(disk) for disk in disks}
    if sight.longhorn_node is None:
        metadata: Json = {"name": sight.node.name, "namespace": LONGHORN_NAMESPACE}
        spec = {
            "name": sight.node.name,
            "allowScheduling": True,
            "evictionRequested": False,
            "tags": [],
            "disks": wanted,
        }
        return [Create(LONGHORN_NODES, {"metadata": metadata, "spec": spec}, "Longhorn node created")]
    known = sight.longhorn_node.spec.get("disks") or {}
    new = {name: disk for name, disk in wanted.items() if name not in known}
    return [Patch(LONGHORN_NODES, sight.longhorn_node, {"spec": {"disks": new}}, "disks added")] if new else []


def _spec_disk(disk: Disk) -> Json:
    return {
        "path": f"/var/lib/longhorn/{disk.name}",
        "diskType": disk.type,
        "allowScheduling": True,
        "evictionRequested": False,
        "storageReserved": disk.reserved,
        "tags": list(disk.tags),
    }


def _status(sight: NodeSight, disks: Sequence[Disk]) -> list[Action]:
    """Writes the node's status as Longhorn's node controller does, if it is another."""
    current = sight.longhorn_node
    if current is None:
        return []
    node = replace(current.model, disks=tuple(disk for disk in current.model.disks if disk.in_spec))
    real = {disk.name: disk for disk in disks}
    down = sight.node is None or sight.node.annotations.get(DOWN) == "true"
    collected = {disk.name: _collected(sight, disk, real.get(disk.name)) for disk in node.disks}
    synced = synced_node(sight.cluster, node, [] if down else [ManagerPod()], None if down else collected)
    body = _status_body(synced, current.status, sight.time)
    return [] if body == current.status else [Replace(LONGHORN_NODES, current, body, "node status written")]


def _collected(sight: NodeSight, disk: longhorn.Disk, real: Disk | None) -> Collected:
    """What the disk monitor finds: the disk's size, and what is left of it after everything that is on it."""
    node = sight.longhorn_node
    name = node.name if node is not None else ""
    found = real or Disk(disk.name, parse_bytes(sight.config.default_disk_size))
    identity = disk_uuid(name, disk.name)
    return Collected(
        uuid=identity,
        storage_maximum=found.size,
        storage_available=max(0, found.size - found.used - sight.written.get(identity, 0)),
        filesystem_type=found.filesystem if found.type == FILESYSTEM else "",
    )


def _status_body(node: longhorn.Node, before: Json, time: str) -> Json:
    disks_before = before.get("diskStatus") or {}
    return {
        **before,
        "conditions": _conditions(node.conditions, before.get("conditions"), time),
        "zone": node.zone,
        "region": node.region,
        "diskStatus": {
            disk.name: {
                "diskName": disk.name,
                "diskUUID": disk.uuid,
                "diskType": disk.spec_type,
                "diskPath": disk.path,
                "filesystemType": disk.filesystem_type,
                "storageMaximum": disk.storage_maximum,
                "storageAvailable": disk.storage_available,
                "storageScheduled": disk.storage_scheduled,
                "scheduledReplica": dict(disk.scheduled_replicas),
                "scheduledBackingImage": dict(disk.scheduled_backing_images),
                "conditions": _conditions(disk.conditions, (disks_before.get(disk.name) or {}).get("conditions"), time),
            }
            for disk in node.disks
        },
    }


def _conditions(conditions: Sequence[Condition], before: list[Json] | None, time: str) -> list[Json]:
    """Conditions as Longhorn writes them; the time changes with the status only."""
    known = {entry.get("type"): entry for entry in before or ()}
    written = []
    for entry in sorted(conditions, key=lambda each: each.type):
        old = known.get(entry.type) or {}
        same = old.get("status") == entry.status
        written.append(
            {
                "type": entry.type,
                "status": entry.status,
                "reason": entry.reason,
                "message": entry.message,
                "lastProbeTime": "",
                "lastTransitionTime": old.get("lastTransitionTime") if same else time,
            }
        )
    return written


def _evictions(sight: NodeSight) -> list[Action]:
    """syncReplicaEvictionRequested: for every replica that a disk's status lists; never while the node is down."""
    node = sight.longhorn_node
    if node is None or not node.model.ready:
        return []
    actions: list[Action] = []
    for disk in node.model.disks:
        for replica in sight.replicas:
            if replica.name not in disk.scheduled_replicas or replica.model.deleting:
                continue
            wanted = node.model.eviction_requested or disk.eviction_requested or _drained(sight, replica)
            if wanted != replica.model.eviction_requested:
                why = "replica to be evicted" if wanted else "replica need not leave any more"
                body = {"spec": {"evictionRequested": wanted}}
                actions.append(Patch(LONGHORN_REPLICAS, replica, body, why))
    return actions


def _drained(sight: NodeSight, replica: Replica) -> bool:
    """Whether a cordon evicts a replica, by node-drain-policy."""
    if sight.node is None or not sight.node.model.unschedulable:
        return False
    policy = sight.cluster.settings.node_drain_policy
    if policy == _LAST_POLICY:
        return not sight.others.get(replica.model.volume, False)
    return policy == _POLICY
