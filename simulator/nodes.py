"""Longhorn nodes: their objects, their status, and eviction requests. An annotation of the Kubernetes node describes the objects."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Struct

from app.kube.resources import CSI_NODES, LONGHORN_INSTANCE_MANAGERS, LONGHORN_NAMESPACE, LONGHORN_NODES
from scheduler_core.errors import CoreError, QuantityError
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.node_controller import CollectedDisk, ManagerPod, sync_node, sync_node_remotely
from scheduler_core.model import kube, longhorn
from scheduler_core.model.kube import Condition
from scheduler_core.model.longhorn import BLOCK, FILESYSTEM, V1, V2
from scheduler_core.model.quantity import parse_bytes
from scheduler_core.structs import replace
from simulator.actions import Action, CreateObject, PatchObject, ReplaceStatus
from simulator.config import Config
from simulator.objects import DISK_LABEL, DISKS, DOWN, DRIVER, STOPPED_MANAGER, Json, KubeObject
from simulator.volumes.observation import RUNNING, STOPPED, UNKNOWN, Replica, patch_replica_spec

_UUID_NAMESPACE = uuid.UUID("6c6f6e67-686f-726e-0000-000000000000")
_BLOCK_FOR_EVICTION = "block-for-eviction"
_BLOCK_FOR_EVICTION_IF_LAST = "block-for-eviction-if-contains-last-replica"


class DisksError(CoreError):
    """The annotation with a node's disks cannot be read."""


class DiskSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One disk in the annotation; sizes are quantities."""

    size: str
    name: Annotated[str, msgspec.Meta(min_length=1)] = ""
    reserved: str = "0"
    used: str = "0"
    tags: list[str] = []
    type: str = FILESYSTEM
    filesystem: str = "ext4"


class PhysicalDisk(Struct, frozen=True):
    """A disk as it really is; sizes in bytes.

    Attributes:
        used: bytes on the disk that are not Longhorn's
    """

    name: str
    size: int
    reserved: int = 0
    used: int = 0
    tags: tuple[str, ...] = ()
    type: str = FILESYSTEM
    filesystem: str = "ext4"


class NodeObservation(Struct, frozen=True):
    """The input of a decision about one node.

    Attributes:
        cluster: with this node's replicas only, and only those that its status may list (`status_lag.py`)
        instance_managers: the node's instance managers by data engine
        replicas: the replicas that are on the node now
        labelled_replicas: the replicas with the label of one of its disks
        written_bytes: bytes of replicas' data and of backing images, by disk UUID
        healthy_elsewhere: for each volume with a replica here, whether a healthy replica is on another node
        shard_bytes: bytes of the shards of sharded volumes, by disk UUID
    """

    config: Config
    cluster: Cluster
    node: KubeObject[kube.Node] | None
    longhorn_node: KubeObject[longhorn.Node] | None
    csi_node: KubeObject[None] | None
    instance_managers: Mapping[str, KubeObject[longhorn.InstanceManager]]
    replicas: Sequence[Replica]
    labelled_replicas: Sequence[Replica]
    written_bytes: Mapping[str, int]
    healthy_elsewhere: Mapping[str, bool]
    time: str
    manager_image: str
    shard_bytes: Mapping[str, int] = {}


def read_disks(node: KubeObject[kube.Node]) -> tuple[PhysicalDisk, ...] | None:
    """The disks in a node's annotation, None without it. A node without the annotation is no Longhorn node."""
    text = node.annotations.get(DISKS)
    if text is None:
        return None
    try:
        entries = msgspec.json.decode(text, type=list[DiskSpec])
        disks = tuple(_physical_disk(entry, index) for index, entry in enumerate(entries, start=1))
    except (msgspec.DecodeError, QuantityError) as error:
        raise DisksError(f"Node {node.name}: annotation {DISKS}: {error}") from error
    if len({disk.name for disk in disks}) < len(disks):
        raise DisksError(f"Node {node.name}: annotation {DISKS}: two disks have one name")
    return disks


def _physical_disk(entry: DiskSpec, index: int) -> PhysicalDisk:
    return PhysicalDisk(
        name=entry.name or f"disk-{index}",
        size=parse_bytes(entry.size),
        reserved=parse_bytes(entry.reserved),
        used=parse_bytes(entry.used),
        tags=tuple(entry.tags),
        type=entry.type,
        filesystem=entry.filesystem,
    )


def disk_uuid(node: str, disk: str) -> str:
    return str(uuid.uuid5(_UUID_NAMESPACE, f"{node}/{disk}"))


def decide_node(observation: NodeObservation) -> list[Action]:
    """Updates a node's objects and status, and what its replicas take from it. Its status, and its replicas' places and eviction
    requests, follow when all of its objects exist.
    """
    disks = read_disks(observation.node) if observation.node is not None else ()
    if disks is None:
        return []
    objects = [
        *_register_csi_driver(observation),
        *_update_instance_managers(observation, disks),
        *_update_longhorn_node(observation, disks),
    ]
    if objects or observation.longhorn_node is None:
        return objects
    return [*_update_status(observation, disks), *_correct_places(observation), *_update_eviction_requests(observation)]


def _register_csi_driver(observation: NodeObservation) -> list[Action]:
    if observation.node is None:
        return []
    entry = {"name": DRIVER, "nodeID": observation.node.name, "topologyKeys": ["kubernetes.io/hostname"]}
    if observation.csi_node is None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": observation.node.name, "uid": observation.node.uid}
        body = {"metadata": {"name": observation.node.name, "ownerReferences": [owner]}, "spec": {"drivers": [entry]}}
        return [CreateObject(CSI_NODES, body, "CSI driver registered")]
    drivers = observation.csi_node.spec.get("drivers") or []
    if any(driver.get("name") == DRIVER for driver in drivers):
        return []
    return [
        PatchObject(CSI_NODES, observation.csi_node, {"spec": {"drivers": [*drivers, entry]}}, "CSI driver registered")
    ]


def _update_instance_managers(observation: NodeObservation, disks: Sequence[PhysicalDisk]) -> list[Action]:
    """Updates one instance manager per data engine in use. On a node that is down its state is unknown. With the annotation
    `simulator/stopped: "true"` it stays stopped.
    """
    node = observation.longhorn_node
    up = node is None or node.model.ready or not node.status
    actions: list[Action] = []
    for engine in (V1, V2) if any(disk.type == BLOCK for disk in disks) else (V1,):
        manager = observation.instance_managers.get(engine)
        stopped = manager is not None and manager.annotations.get(STOPPED_MANAGER) == "true"
        state = UNKNOWN if not up else STOPPED if stopped else RUNNING
        if manager is None and observation.node is not None:
            body = _new_instance_manager(observation.node.name, engine, observation)
            actions.append(CreateObject(LONGHORN_INSTANCE_MANAGERS, body, "instance manager created"))
        elif manager is not None and manager.model.state != state:
            event = f"instance manager {state}"
            body = {"status": {"currentState": state}}
            actions.append(PatchObject(LONGHORN_INSTANCE_MANAGERS, manager, body, event, status=True))
    return actions


def manager_name(node: str, engine: str) -> str:
    """The name of a node's instance manager."""
    return f"instance-manager-{engine}-{uuid.uuid5(_UUID_NAMESPACE, f'{node}/{engine}').hex[:12]}"


def _new_instance_manager(node: str, engine: str, observation: NodeObservation) -> Json:
    return {
        "metadata": {"name": manager_name(node, engine), "namespace": LONGHORN_NAMESPACE},
        "spec": {"nodeID": node, "dataEngine": engine, "image": observation.manager_image, "type": "aio"},
    }


def _update_longhorn_node(observation: NodeObservation, disks: Sequence[PhysicalDisk]) -> list[Action]:
    if observation.node is None:
        return []
    wanted = {disk.name: _new_disk(disk) for disk in disks}
    if observation.longhorn_node is None:
        metadata: Json = {"name": observation.node.name, "namespace": LONGHORN_NAMESPACE}
        spec = {
            "name": observation.node.name,
            "allowScheduling": True,
            "evictionRequested": False,
            "tags": [],
            "disks": wanted,
        }
        return [CreateObject(LONGHORN_NODES, {"metadata": metadata, "spec": spec}, "Longhorn node created")]
    present = observation.longhorn_node.spec.get("disks") or {}
    new = {name: disk for name, disk in wanted.items() if name not in present}
    if not new:
        return []
    return [PatchObject(LONGHORN_NODES, observation.longhorn_node, {"spec": {"disks": new}}, "disks added")]


def _new_disk(disk: PhysicalDisk) -> Json:
    return {
        "path": f"/var/lib/longhorn/{disk.name}",
        "diskType": disk.type,
        "allowScheduling": True,
        "evictionRequested": False,
        "storageReserved": disk.reserved,
        "tags": list(disk.tags),
    }


def _update_status(observation: NodeObservation, disks: Sequence[PhysicalDisk]) -> list[Action]:
    """Writes the node's changed status as Longhorn's node controller does."""
    current = observation.longhorn_node
    if current is None:
        return []
    node = replace(current.model, disks=tuple(disk for disk in current.model.disks if disk.in_spec))
    physical = {disk.name: disk for disk in disks}
    down = observation.node is None or observation.node.annotations.get(DOWN) == "true"
    if down:
        synced = sync_node_remotely(observation.cluster, node, ())
    else:
        collected = {disk.name: _collect_disk(observation, disk, physical.get(disk.name)) for disk in node.disks}
        synced = sync_node(observation.cluster, node, (ManagerPod(),), collected, observation.shard_bytes)
    body = _status_body(synced, current.status, observation.time)
    if not current.status:
        body["diskStatus"] = None  # as a new node has it at first (measured with Longhorn v1.12.1's control code)
    return [] if body == current.status else [ReplaceStatus(LONGHORN_NODES, current, body, "node status written")]


def _collect_disk(observation: NodeObservation, disk: longhorn.Disk, known_disk: PhysicalDisk | None) -> CollectedDisk:
    """The disk monitor's measurement: a disk's size and free space."""
    node = observation.longhorn_node
    name = node.name if node is not None else ""
    physical = known_disk or PhysicalDisk(disk.name, parse_bytes(observation.config.default_disk_size))
    identity = disk_uuid(name, disk.name)
    return CollectedDisk(
        uuid=identity,
        storage_maximum=physical.size,
        storage_available=max(0, physical.size - physical.used - observation.written_bytes.get(identity, 0)),
        filesystem_type=physical.filesystem if physical.type == FILESYSTEM else "",
    )


def _status_body(node: longhorn.Node, before: Json, time: str) -> Json:
    disks_before = before.get("diskStatus") or {}
    return {
        **before,
        "conditions": _write_conditions(node.conditions, before.get("conditions"), time),
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
                "conditions": _write_conditions(
                    disk.conditions, (disks_before.get(disk.name) or {}).get("conditions"), time
                ),
            }
            for disk in node.disks
        },
    }


def _write_conditions(conditions: Sequence[Condition], before: list[Json] | None, time: str) -> list[Json]:
    """Returns conditions as Longhorn writes them. The time changes with the status only."""
    previous = {entry.get("type"): entry for entry in before or ()}
    written = []
    for entry in sorted(conditions, key=lambda each: each.type):
        old = previous.get(entry.type) or {}
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


def _correct_places(observation: NodeObservation) -> list[Action]:
    """Writes node and path of each replica that a disk's status lists. The status lists replicas by their label. It is written
    where the replica's spec differs. Longhorn does so for a disk that moved to another node (syncDiskStatus), without a look at
    spec.diskID.
    """
    node = observation.longhorn_node
    if node is None or not node.model.ready:
        return []
    disks = {disk.uuid: disk for disk in node.model.disks if disk.ready}
    actions: list[Action] = []
    for replica in observation.labelled_replicas:
        disk = disks.get(replica.labels.get(DISK_LABEL, ""))
        if disk is None or replica.name not in disk.scheduled_replicas or replica.model.deleting:
            continue
        place = {"nodeID": node.name, "diskPath": disk.path}
        if place != {name: replica.spec.get(name) for name in place}:
            actions.append(patch_replica_spec(replica, place, "replica's node and path corrected"))
    return actions


def _update_eviction_requests(observation: NodeObservation) -> list[Action]:
    """Updates evictionRequested of the replicas that a disk's status lists. Nothing changes while the node is down. Mirrors
    Longhorn's syncReplicaEvictionRequested.
    """
    node = observation.longhorn_node
    if node is None or not node.model.ready:
        return []
    actions: list[Action] = []
    for disk in node.model.disks:
        for replica in observation.replicas:
            if replica.name not in disk.scheduled_replicas or replica.model.deleting:
                continue
            wanted = node.model.eviction_requested or disk.eviction_requested or _drain_evicts(observation, replica)
            if wanted != replica.model.eviction_requested:
                event = "replica to be evicted" if wanted else "replica need not leave any more"
                actions.append(patch_replica_spec(replica, {"evictionRequested": wanted}, event))
    return actions


def _drain_evicts(observation: NodeObservation, replica: Replica) -> bool:
    if observation.node is None or not observation.node.model.unschedulable:
        return False
    policy = observation.cluster.settings.node_drain_policy
    if policy == _BLOCK_FOR_EVICTION_IF_LAST:
        return not observation.healthy_elsewhere.get(replica.model.volume, False)
    return policy == _BLOCK_FOR_EVICTION
