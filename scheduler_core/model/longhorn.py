"""Longhorn's custom resources (longhorn.io/v1beta2) with only the fields that a decision reads. Names follow the CRDs;
sizes are in bytes; times are RFC 3339 texts, "" when not set, as Longhorn stores them. Absent booleans and numbers are
Go's zero values, as Longhorn itself would decode them. A replica's placement is what Longhorn's scheduler writes. A backup's URL names
Kubernetes objects, which have nothing escaped.
"""

from collections.abc import Mapping
from typing import Annotated

from scheduler_core.model.kube import Condition, condition, is_set
from scheduler_core.model.quantity import read_byte_count, read_counter, read_size
from scheduler_core.structs import Struct

V1 = "v1"
V2 = "v2"
FILESYSTEM = "filesystem"
BLOCK = "block"
DISABLED = "disabled"
BEST_EFFORT = "best-effort"
STRICT_LOCAL = "strict-local"
SHARDED = "sharded"
CORDONED = "KubernetesNodeCordoned"
# datastore/longhorn.go: a replica that failed this often is never reused (FailedReplicaMaxRetryCount).
FAILED_REPLICA_MAX_RETRY_COUNT = 5
# Longhorn finds the replicas of a node and of a disk by these labels.
VOLUME_LABEL = "longhornvolume"
NODE_LABEL = "longhornnode"
DISK_LABEL = "longhorndiskuuid"
# The placement guard writes it with its answer.
REVIEWED = "longhorn.io/scheduler-extender-reviewed"


class Disk(Struct, frozen=True):
    """A disk of a Longhorn node: the entries of spec.disks and status.diskStatus with the same name. It has both types:
    the scheduler reads that of the spec, CSI GetCapacity that of the status.
    """

    name: Annotated[str, "name"]
    uuid: Annotated[str, "status.diskUUID"] = ""
    in_spec: Annotated[bool, "spec", is_set] = True
    in_status: Annotated[bool, "status", is_set] = True
    path: Annotated[str, "spec.path"] = ""
    allow_scheduling: Annotated[bool, "spec.allowScheduling"] = False
    eviction_requested: Annotated[bool, "spec.evictionRequested"] = False
    tags: Annotated[tuple[str, ...], "spec.tags"] = ()
    spec_type: Annotated[str, "spec.diskType"] = ""
    status_type: Annotated[str, "status.diskType"] = ""
    filesystem_type: Annotated[str, "status.filesystemType"] = ""
    storage_reserved: Annotated[int, "spec.storageReserved", read_counter] = 0
    storage_maximum: Annotated[int, "status.storageMaximum", read_counter] = 0
    storage_available: Annotated[int, "status.storageAvailable", read_counter] = 0
    storage_scheduled: Annotated[int, "status.storageScheduled", read_counter] = 0
    scheduled_replicas: Annotated[Mapping[str, int], "status.scheduledReplica"] = {}
    scheduled_backing_images: Annotated[Mapping[str, int], "status.scheduledBackingImage"] = {}
    conditions: Annotated[tuple[Condition, ...], "status.conditions"] = ()

    @property
    def ready(self) -> bool:
        return condition(self.conditions, "Ready").status == "True"

    @property
    def schedulable(self) -> bool:
        return condition(self.conditions, "Schedulable").status == "True"


class Node(Struct, frozen=True):
    """A Longhorn node (nodes.longhorn.io); `disks` are ordered by name."""

    name: Annotated[str, "metadata.name"]
    allow_scheduling: Annotated[bool, "spec.allowScheduling"] = False
    eviction_requested: Annotated[bool, "spec.evictionRequested"] = False
    tags: Annotated[tuple[str, ...], "spec.tags"] = ()
    zone: Annotated[str, "status.zone"] = ""
    region: Annotated[str, "status.region"] = ""
    deleting: Annotated[bool, "metadata.deletionTimestamp", is_set] = False
    conditions: Annotated[tuple[Condition, ...], "status.conditions"] = ()
    disks: Annotated[tuple[Disk, ...], "spec.disks", "status.diskStatus"] = ()

    @property
    def ready(self) -> bool:
        return condition(self.conditions, "Ready").status == "True"

    @property
    def schedulable(self) -> bool:
        """Whether the Schedulable condition is True (False when cordoned)."""
        return condition(self.conditions, "Schedulable").status == "True"


class TopologyTerm(Struct, frozen=True):
    """One term of volume.spec.topologyRequirement; an empty field matches every node."""

    zone: Annotated[str, "zone"] = ""
    region: Annotated[str, "region"] = ""


class DataLayout(Struct, frozen=True):
    """How a sharded volume is divided by erasure coding (volume.spec.dataLayout of type sharded)."""

    data_chunks: int
    parity_chunks: int
    strip_size_kb: int


def _data_layout(
    kind: str | None, data_chunks: int | None, parity_chunks: int | None, strip_size_kb: int | None
) -> DataLayout | None:
    return DataLayout(data_chunks or 0, parity_chunks or 0, strip_size_kb or 0) if kind == SHARDED else None


def _replicas_without_shards(layout: str | None, number: int | None) -> int:
    return 0 if layout == SHARDED else number or 0


class Volume(Struct, frozen=True):
    """A Longhorn volume (volumes.longhorn.io), or the volume that Longhorn would create for an unbound claim."""

    name: Annotated[str, "metadata.name"]
    size: Annotated[int, "spec.size", read_size] = 0
    # spec.numberOfReplicas, 0 for a sharded volume that exists: its shards are objects of their own.
    number_of_replicas: Annotated[int, "spec.dataLayout.type", "spec.numberOfReplicas", _replicas_without_shards] = 0
    data_engine: Annotated[str, "spec.dataEngine"] = V1
    data_locality: Annotated[str, "spec.dataLocality"] = DISABLED
    access_mode: Annotated[str, "spec.accessMode"] = "rwo"
    migratable: Annotated[bool, "spec.migratable"] = False
    node_selector: Annotated[tuple[str, ...], "spec.nodeSelector"] = ()
    disk_selector: Annotated[tuple[str, ...], "spec.diskSelector"] = ()
    backing_image: Annotated[str, "spec.backingImage"] = ""
    image: Annotated[str, "spec.image"] = ""
    replica_soft_anti_affinity: Annotated[str, "spec.replicaSoftAntiAffinity"] = ""
    replica_zone_soft_anti_affinity: Annotated[str, "spec.replicaZoneSoftAntiAffinity"] = ""
    replica_disk_soft_anti_affinity: Annotated[str, "spec.replicaDiskSoftAntiAffinity"] = ""
    replica_auto_balance: Annotated[str, "spec.replicaAutoBalance"] = ""
    clone_mode: Annotated[str, "spec.cloneMode"] = ""
    data_source: Annotated[str, "spec.dataSource"] = ""
    topology_requirement: Annotated[tuple[TopologyTerm, ...], "spec.topologyRequirement"] = ()
    node_id: Annotated[str, "spec.nodeID"] = ""
    current_node_id: Annotated[str, "status.currentNodeID"] = ""
    state: Annotated[str, "status.state"] = ""
    robustness: Annotated[str, "status.robustness"] = ""
    last_degraded_at: Annotated[str, "status.lastDegradedAt"] = ""
    # The space that its data occupies (status.actualSize), 0 for a new volume.
    actual_size: Annotated[int, "status.actualSize", read_byte_count] = 0
    # How far a clone is (status.cloneStatus.state), "" before it begins.
    clone_state: Annotated[str, "status.cloneStatus.state"] = ""
    # Whether a backup is still being restored (status.restoreRequired).
    restore_required: Annotated[bool, "status.restoreRequired"] = False
    # Whether it is a disaster recovery volume that is not activated (status.isStandby).
    standby: Annotated[bool, "status.isStandby"] = False
    deleting: Annotated[bool, "metadata.deletionTimestamp", is_set] = False
    # None for a volume of replicas.
    data_layout: Annotated[
        DataLayout | None,
        "spec.dataLayout.type",
        "spec.dataLayout.dataChunks",
        "spec.dataLayout.parityChunks",
        "spec.dataLayout.stripSizeKB",
        _data_layout,
    ] = None
    # Bytes of the sharded volume that this one's replicas stand for the shards of (`longhorn/csi_driver.py`), 0 for others.
    whole_size: int = 0

    @property
    def has_shards(self) -> bool:
        """Whether it is a sharded volume that exists: Longhorn has placed its shards, or does so whatever its pod's node."""
        return self.data_layout is not None and not self.whole_size


# Every real object has the field; one written by hand may not.
def _is_active(active: bool | None) -> bool:  # noqa: FBT001 # a value of an object
    return active is not False


def _is_original(generation: int | None) -> bool:
    return generation == 1


class Replica(Struct, frozen=True):
    """A replica (replicas.longhorn.io), which is placed once it has a node and a disk."""

    name: Annotated[str, "metadata.name"]
    volume: Annotated[str, "spec.volumeName"] = ""
    size: Annotated[int, "spec.volumeSize", read_size] = 0
    node_id: Annotated[str, "spec.nodeID"] = ""
    disk_id: Annotated[str, "spec.diskID"] = ""
    disk_path: Annotated[str, "spec.diskPath"] = ""
    data_engine: Annotated[str, "spec.dataEngine"] = V1
    image: Annotated[str, "spec.image"] = ""
    active: Annotated[bool, "spec.active", _is_active] = True
    healthy_at: Annotated[str, "spec.healthyAt"] = ""
    failed_at: Annotated[str, "spec.failedAt"] = ""
    eviction_requested: Annotated[bool, "spec.evictionRequested"] = False
    hard_node_affinity: Annotated[str, "spec.hardNodeAffinity"] = ""
    rebuild_retry_count: Annotated[int, "spec.rebuildRetryCount"] = 0
    linked_clone_source: Annotated[str, "spec.linkedCloneSrcReplicaName"] = ""
    current_state: Annotated[str, "status.currentState"] = ""
    deleting: Annotated[bool, "metadata.deletionTimestamp", is_set] = False
    # `node_label` and `disk_label`: the labels by which Longhorn finds the replicas of a node and of a disk.
    node_label: Annotated[str, f"metadata.labels[{NODE_LABEL}]"] = ""
    disk_label: Annotated[str, f"metadata.labels[{DISK_LABEL}]"] = ""
    # The place that the placement guard answered, as `place` writes it; "" if it was not asked.
    reviewed_place: Annotated[str, f"metadata.annotations[{REVIEWED}]"] = ""
    spec_is_original: Annotated[bool, "metadata.generation", _is_original] = False  # not changed since its creation

    @property
    def place(self) -> str:
        return f"{self.node_id}/{self.disk_id}{self.disk_path}"

    @property
    def potentially_reusable(self) -> bool:
        """Whether a failed replica may be reused (scheduler: IsPotentiallyReusableReplica)."""
        return (
            self.node_id != ""
            and self.disk_id != ""
            and self.rebuild_retry_count < FAILED_REPLICA_MAX_RETRY_COUNT
            and not self.eviction_requested
        )


class BackingImage(Struct, frozen=True):
    """A backing image, which takes `real_size` bytes on each disk of `disks` (UUIDs, spec.diskFileSpecMap)."""

    name: Annotated[str, "metadata.name"]
    data_engine: Annotated[str, "spec.dataEngine"] = V1
    node_selector: Annotated[tuple[str, ...], "spec.nodeSelector"] = ()
    disk_selector: Annotated[tuple[str, ...], "spec.diskSelector"] = ()
    disks: Annotated[tuple[str, ...], "spec.diskFileSpecMap"] = ()
    real_size: Annotated[int, "status.realSize", read_byte_count] = 0
    virtual_size: Annotated[int, "status.virtualSize", read_byte_count] = 0
    source_type: Annotated[str, "spec.sourceType"] = ""


class Backup(Struct, frozen=True):
    """A backup (backups.longhorn.io) with the size and the backing image of the volume that it was made of."""

    name: Annotated[str, "metadata.name"]
    volume_size: Annotated[int, "status.volumeSize", read_size] = 0
    backing_image: Annotated[str, "status.volumeBackingImageName"] = ""


def _deployed_nodes(deployments: dict[str, bool] | None) -> frozenset[str]:
    return frozenset(name for name, deployed in (deployments or {}).items() if deployed)


class EngineImage(Struct, frozen=True):
    """An engine image and the nodes it is deployed on (status.nodeDeploymentMap)."""

    name: Annotated[str, "metadata.name"]
    image: Annotated[str, "spec.image"] = ""
    state: Annotated[str, "status.state"] = ""
    nodes: Annotated[frozenset[str], "status.nodeDeploymentMap", _deployed_nodes] = frozenset()


class InstanceManager(Struct, frozen=True):
    """An instance manager: the process that runs engines and replicas of one data engine on one node."""

    name: Annotated[str, "metadata.name"]
    node: Annotated[str, "spec.nodeID"] = ""
    data_engine: Annotated[str, "spec.dataEngine"] = V1
    image: Annotated[str, "spec.image"] = ""
    state: Annotated[str, "status.currentState"] = ""
    deleting: Annotated[bool, "metadata.deletionTimestamp", is_set] = False


class Placement(Struct, frozen=True):
    """A replica that had no place, and the place that it gets."""

    replica: str  # name of the replica
    volume: str  # name of its Longhorn volume
    size: int  # bytes (spec.volumeSize)
    node: str
    disk: str  # the disk's UUID
    disk_path: str  # the disk's path on the node
    data_engine: str = V1
    image: str = ""
    hard_node_affinity: str = ""  # the only node the replica may be on, "" for any
    linked_clone_source: str = ""  # the replica whose data a linked clone shares, "" for any of the source volume

    @property
    def place(self) -> str:
        return f"{self.node}/{self.disk}{self.disk_path}"

    @classmethod
    def of(cls, replica: Replica) -> "Placement":
        """Returns the placement of a replica."""
        return cls(
            replica=replica.name,
            volume=replica.volume,
            size=replica.size,
            node=replica.node_id,
            disk=replica.disk_id,
            disk_path=replica.disk_path,
            data_engine=replica.data_engine,
            image=replica.image,
            hard_node_affinity=replica.hard_node_affinity,
            linked_clone_source=replica.linked_clone_source,
        )


def query_values(url: str) -> dict[str, str]:
    """Returns the values of a URL's query by name, such as ``?backup=NAME&volume=NAME``; the first of each name counts."""
    _, _, query = url.partition("?")
    pairs = (entry.partition("=") for entry in query.partition("#")[0].split("&"))
    return {name: value for name, _, value in reversed(list(pairs)) if name}


def backup_name(url: str) -> str:
    """Returns the backup that a URL such as ``s3://bucket@region/?backup=NAME&volume=NAME`` names, "" if it names none
    (backupstore.DecodeBackupURL).
    """
    return query_values(url).get("backup", "")
