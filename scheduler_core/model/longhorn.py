"""Longhorn's custom resources (longhorn.io/v1beta2) with only the fields that a decision reads. Names follow the CRDs;
sizes are in bytes; times are RFC 3339 texts, "" when not set, as Longhorn stores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_core.model.kube import Condition, condition

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


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk of a Longhorn node: the entries of spec.disks and status.diskStatus with the same name. It has both types:
    the scheduler reads that of the spec, CSI GetCapacity that of the status.
    """

    name: str
    uuid: str = ""
    in_spec: bool = True
    in_status: bool = True
    path: str = ""
    allow_scheduling: bool = False
    eviction_requested: bool = False
    tags: tuple[str, ...] = ()
    spec_type: str = ""
    status_type: str = ""
    filesystem_type: str = ""
    storage_reserved: int = 0
    storage_maximum: int = 0
    storage_available: int = 0
    storage_scheduled: int = 0
    scheduled_replicas: Mapping[str, int] = field(default_factory=dict[str, int])
    scheduled_backing_images: Mapping[str, int] = field(default_factory=dict[str, int])
    conditions: tuple[Condition, ...] = ()

    @property
    def ready(self) -> bool:
        return condition(self.conditions, "Ready").status == "True"

    @property
    def schedulable(self) -> bool:
        return condition(self.conditions, "Schedulable").status == "True"


@dataclass(frozen=True, slots=True)
class Node:
    """A Longhorn node (nodes.longhorn.io); `disks` are ordered by name."""

    name: str
    allow_scheduling: bool = False
    eviction_requested: bool = False
    tags: tuple[str, ...] = ()
    zone: str = ""
    region: str = ""
    deleting: bool = False
    conditions: tuple[Condition, ...] = ()
    disks: tuple[Disk, ...] = ()

    @property
    def ready(self) -> bool:
        return condition(self.conditions, "Ready").status == "True"

    @property
    def schedulable(self) -> bool:
        """Whether the Schedulable condition is True (False when cordoned)."""
        return condition(self.conditions, "Schedulable").status == "True"


@dataclass(frozen=True, slots=True)
class TopologyTerm:
    """One term of volume.spec.topologyRequirement; an empty field matches every node."""

    zone: str = ""
    region: str = ""


@dataclass(frozen=True, slots=True)
class DataLayout:
    """How a sharded volume is divided by erasure coding (volume.spec.dataLayout of type sharded)."""

    data_chunks: int
    parity_chunks: int
    strip_size_kb: int


@dataclass(frozen=True, slots=True)
class Volume:
    """A Longhorn volume (volumes.longhorn.io), or the volume that Longhorn would create for an unbound claim.

    Attributes:
        size: spec.size
        number_of_replicas: spec.numberOfReplicas, 0 for a sharded volume that exists: its shards are objects of their own
        actual_size: the space that its data occupies (status.actualSize), 0 for a new volume
        clone_state: how far a clone is (status.cloneStatus.state), "" before it begins
        restore_required: whether a backup is still being restored (status.restoreRequired)
        standby: whether it is a disaster recovery volume that is not activated (status.isStandby)
        data_layout: None for a volume of replicas
        whole_size: bytes of the sharded volume that this one's replicas stand for the shards of (`longhorn/shards.py`), 0 for others
    """

    name: str
    size: int = 0
    number_of_replicas: int = 0
    data_engine: str = V1
    data_locality: str = DISABLED
    access_mode: str = "rwo"
    migratable: bool = False
    node_selector: tuple[str, ...] = ()
    disk_selector: tuple[str, ...] = ()
    backing_image: str = ""
    image: str = ""
    replica_soft_anti_affinity: str = ""
    replica_zone_soft_anti_affinity: str = ""
    replica_disk_soft_anti_affinity: str = ""
    replica_auto_balance: str = ""
    clone_mode: str = ""
    data_source: str = ""
    topology_requirement: tuple[TopologyTerm, ...] = ()
    node_id: str = ""
    current_node_id: str = ""
    state: str = ""
    robustness: str = ""
    last_degraded_at: str = ""
    actual_size: int = 0
    clone_state: str = ""
    restore_required: bool = False
    standby: bool = False
    deleting: bool = False
    data_layout: DataLayout | None = None
    whole_size: int = 0

    @property
    def has_shards(self) -> bool:
        """Whether it is a sharded volume that exists: Longhorn has placed its shards, or does so whatever its pod's node."""
        return self.data_layout is not None and not self.whole_size


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica (replicas.longhorn.io), which is placed once it has a node and a disk.

    Attributes:
        size: spec.volumeSize
        node_label, disk_label: the labels by which Longhorn finds the replicas of a node and of a disk
        reviewed_place: the place that the placement guard answered, as `place` writes it; "" if it was not asked
        generation: 1 until the spec is changed for the first time, 0 if unknown; replicas that differ in it alone are equal
    """

    name: str
    volume: str
    size: int = 0
    node_id: str = ""
    disk_id: str = ""
    disk_path: str = ""
    data_engine: str = V1
    image: str = ""
    active: bool = True
    healthy_at: str = ""
    failed_at: str = ""
    eviction_requested: bool = False
    hard_node_affinity: str = ""
    rebuild_retry_count: int = 0
    linked_clone_source: str = ""
    current_state: str = ""
    deleting: bool = False
    node_label: str = ""
    disk_label: str = ""
    reviewed_place: str = ""
    generation: int = field(default=0, compare=False)

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


@dataclass(frozen=True, slots=True)
class BackingImage:
    """A backing image (backingimages.longhorn.io). It occupies `real_size` bytes on each disk of `disks` (UUIDs,
    spec.diskFileSpecMap).
    """

    name: str
    data_engine: str = V1
    node_selector: tuple[str, ...] = ()
    disk_selector: tuple[str, ...] = ()
    disks: tuple[str, ...] = ()
    real_size: int = 0
    virtual_size: int = 0
    source_type: str = ""


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup (backups.longhorn.io) with the size and the backing image of the volume that it was made of."""

    name: str
    volume_size: int = 0
    backing_image: str = ""


@dataclass(frozen=True, slots=True)
class EngineImage:
    """An engine image and the nodes it is deployed on (status.nodeDeploymentMap)."""

    name: str
    image: str = ""
    state: str = ""
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class InstanceManager:
    """An instance manager (instancemanagers.longhorn.io): the process that runs engines and replicas of one data engine
    on one node.
    """

    name: str
    node: str = ""
    data_engine: str = V1
    image: str = ""
    state: str = ""
    deleting: bool = False
