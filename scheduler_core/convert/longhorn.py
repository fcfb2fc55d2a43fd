"""Longhorn's custom resources: wire types of longhorn.io/v1beta2, and their conversion to models. Absent booleans and
numbers are Go's zero values, as Longhorn itself would decode them; the one exception is a replica's `spec.active`,
which every real object carries and a hand-written one forgets.
"""

from __future__ import annotations

from typing import Final

import msgspec

from scheduler_core.convert.meta import Metadata, Subject, Wire, WireCondition, conditions
from scheduler_core.model import longhorn

# Longhorn finds the replicas of a node and of a disk by these labels.
NODE_LABEL: Final = "longhornnode"
DISK_LABEL: Final = "longhorndiskuuid"
# The placement guard writes it with its answer.
REVIEWED: Final = "longhorn.io/scheduler-extender-reviewed"


class _SpecDisk(Wire):
    disk_type: str | None = None
    path: str | None = None
    allow_scheduling: bool | None = None
    eviction_requested: bool | None = None
    storage_reserved: int | None = None
    tags: list[str] | None = None


class _NodeSpec(Wire):
    allow_scheduling: bool | None = None
    eviction_requested: bool | None = None
    tags: list[str] | None = None
    disks: dict[str, _SpecDisk] | None = None


class _StatusDisk(Wire):
    disk_uuid: str | None = msgspec.field(default=None, name="diskUUID")
    disk_type: str | None = None
    filesystem_type: str | None = None
    storage_available: int | None = None
    storage_maximum: int | None = None
    storage_scheduled: int | None = None
    scheduled_replica: dict[str, int] | None = None
    scheduled_backing_image: dict[str, int] | None = None
    conditions: list[WireCondition] | None = None


class _NodeStatus(Wire):
    conditions: list[WireCondition] | None = None
    region: str | None = None
    zone: str | None = None
    disk_status: dict[str, _StatusDisk] | None = None


class Node(Wire):
    """longhorn.io Node."""

    metadata: Metadata
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


def node(wire: Node) -> longhorn.Node:
    """A Longhorn node with its disks, spec and status joined by disk name."""
    spec = wire.spec or _NodeSpec()
    status = wire.status or _NodeStatus()
    spec_disks = spec.disks or {}
    status_disks = status.disk_status or {}
    subject = Subject("Node.longhorn.io", wire.metadata)
    return longhorn.Node(
        name=wire.metadata.name,
        allow_scheduling=bool(spec.allow_scheduling),
        eviction_requested=bool(spec.eviction_requested),
        tags=tuple(spec.tags or ()),
        zone=status.zone or "",
        region=status.region or "",
        deleting=wire.metadata.deletion_timestamp is not None,
        conditions=conditions(status.conditions),
        disks=tuple(
            _disk(name, spec_disks.get(name), status_disks.get(name), subject)
            for name in sorted(spec_disks.keys() | status_disks.keys())
        ),
    )


def _disk(name: str, spec_disk: _SpecDisk | None, status_disk: _StatusDisk | None, subject: Subject) -> longhorn.Disk:
    spec = spec_disk or _SpecDisk()
    status = status_disk or _StatusDisk()
    status_path = f"status.diskStatus.{name}."
    return longhorn.Disk(
        name=name,
        uuid=status.disk_uuid or "",
        in_spec=spec_disk is not None,
        in_status=status_disk is not None,
        path=spec.path or "",
        allow_scheduling=bool(spec.allow_scheduling),
        eviction_requested=bool(spec.eviction_requested),
        tags=tuple(spec.tags or ()),
        spec_type=spec.disk_type or "",
        status_type=status.disk_type or "",
        filesystem_type=status.filesystem_type or "",
        storage_reserved=subject.counter(spec.storage_reserved or 0, f"spec.disks.{name}.storageReserved"),
        storage_maximum=subject.counter(status.storage_maximum or 0, status_path + "storageMaximum"),
        storage_available=subject.counter(status.storage_available or 0, status_path + "storageAvailable"),
        storage_scheduled=subject.counter(status.storage_scheduled or 0, status_path + "storageScheduled"),
        scheduled_replicas=status.scheduled_replica or {},
        scheduled_backing_images=status.scheduled_backing_image or {},
        conditions=conditions(status.conditions),
    )


class _Term(Wire):
    zone: str | None = None
    region: str | None = None


class _DataLayout(Wire):
    type: str | None = None
    data_chunks: int | None = None
    parity_chunks: int | None = None
    strip_size_kb: int | None = msgspec.field(default=None, name="stripSizeKB")


class _VolumeSpec(Wire):
    size: int | str | None = None
    number_of_replicas: int | None = None
    data_engine: str | None = None
    data_locality: str | None = None
    access_mode: str | None = None
    migratable: bool | None = None
    node_selector: list[str] | None = None
    disk_selector: list[str] | None = None
    backing_image: str | None = None
    image: str | None = None
    replica_soft_anti_affinity: str | None = None
    replica_zone_soft_anti_affinity: str | None = None
    replica_disk_soft_anti_affinity: str | None = None
    replica_auto_balance: str | None = None
    clone_mode: str | None = None
    data_source: str | None = None
    topology_requirement: list[_Term] | None = None
    node_id: str | None = msgspec.field(default=None, name="nodeID")
    data_layout: _DataLayout | None = None


class _CloneStatus(Wire):
    state: str | None = None


class _VolumeStatus(Wire):
    actual_size: int | None = None
    clone_status: _CloneStatus | None = None
    restore_required: bool | None = None
    is_standby: bool | None = None
    current_node_id: str | None = msgspec.field(default=None, name="currentNodeID")
    state: str | None = None
    robustness: str | None = None
    last_degraded_at: str | None = None


class Volume(Wire):
    """longhorn.io Volume."""

    metadata: Metadata
    spec: _VolumeSpec | None = None
    status: _VolumeStatus | None = None


def volume(wire: Volume) -> longhorn.Volume:
    """A Longhorn volume."""
    spec = wire.spec or _VolumeSpec()
    status = wire.status or _VolumeStatus()
    subject = Subject("Volume.longhorn.io", wire.metadata)
    layout = _data_layout(spec.data_layout)
    return longhorn.Volume(
        name=wire.metadata.name,
        size=subject.size(spec.size, "spec.size"),
        number_of_replicas=0 if layout is not None else spec.number_of_replicas or 0,
        data_engine=spec.data_engine or longhorn.V1,
        data_locality=spec.data_locality or longhorn.DISABLED,
        access_mode=spec.access_mode or "rwo",
        migratable=bool(spec.migratable),
        node_selector=tuple(spec.node_selector or ()),
        disk_selector=tuple(spec.disk_selector or ()),
        backing_image=spec.backing_image or "",
        image=spec.image or "",
        replica_soft_anti_affinity=spec.replica_soft_anti_affinity or "",
        replica_zone_soft_anti_affinity=spec.replica_zone_soft_anti_affinity or "",
        replica_disk_soft_anti_affinity=spec.replica_disk_soft_anti_affinity or "",
        replica_auto_balance=spec.replica_auto_balance or "",
        clone_mode=spec.clone_mode or "",
        data_source=spec.data_source or "",
        topology_requirement=tuple(
            longhorn.TopologyTerm(term.zone or "", term.region or "") for term in spec.topology_requirement or ()
        ),
        node_id=spec.node_id or "",
        current_node_id=status.current_node_id or "",
        state=status.state or "",
        robustness=status.robustness or "",
        last_degraded_at=status.last_degraded_at or "",
        actual_size=subject.size(status.actual_size, "status.actualSize"),
        clone_state=(status.clone_status and status.clone_status.state) or "",
        restore_required=bool(status.restore_required),
        standby=bool(status.is_standby),
        deleting=wire.metadata.deletion_timestamp is not None,
        data_layout=layout,
    )


def _data_layout(wire: _DataLayout | None) -> longhorn.DataLayout | None:
    if wire is None or wire.type != longhorn.SHARDED:
        return None
    return longhorn.DataLayout(wire.data_chunks or 0, wire.parity_chunks or 0, wire.strip_size_kb or 0)


class _ReplicaSpec(Wire):
    volume_name: str | None = None
    volume_size: int | str | None = None
    node_id: str | None = msgspec.field(default=None, name="nodeID")
    disk_id: str | None = msgspec.field(default=None, name="diskID")
    disk_path: str | None = None
    data_engine: str | None = None
    image: str | None = None
    active: bool | None = None
    healthy_at: str | None = None
    failed_at: str | None = None
    eviction_requested: bool | None = None
    hard_node_affinity: str | None = None
    rebuild_retry_count: int | None = None
    linked_clone_src_replica_name: str | None = None


class _ReplicaStatus(Wire):
    current_state: str | None = None


class _ReplicaMetadata(Metadata):
    generation: int | None = None


class Replica(Wire):
    """longhorn.io Replica."""

    metadata: _ReplicaMetadata
    spec: _ReplicaSpec | None = None
    status: _ReplicaStatus | None = None


def replica(wire: Replica) -> longhorn.Replica:
    """A replica, placed or not."""
    spec = wire.spec or _ReplicaSpec()
    labels = wire.metadata.labels or {}
    subject = Subject("Replica.longhorn.io", wire.metadata)
    return longhorn.Replica(
        name=wire.metadata.name,
        volume=spec.volume_name or "",
        size=subject.size(spec.volume_size, "spec.volumeSize"),
        node_id=spec.node_id or "",
        disk_id=spec.disk_id or "",
        disk_path=spec.disk_path or "",
        data_engine=spec.data_engine or longhorn.V1,
        image=spec.image or "",
        active=spec.active is not False,
        healthy_at=spec.healthy_at or "",
        failed_at=spec.failed_at or "",
        eviction_requested=bool(spec.eviction_requested),
        hard_node_affinity=spec.hard_node_affinity or "",
        rebuild_retry_count=spec.rebuild_retry_count or 0,
        linked_clone_source=spec.linked_clone_src_replica_name or "",
        current_state=(wire.status.current_state if wire.status else None) or "",
        deleting=wire.metadata.deletion_timestamp is not None,
        node_label=labels.get(NODE_LABEL, ""),
        disk_label=labels.get(DISK_LABEL, ""),
        reviewed_place=(wire.metadata.annotations or {}).get(REVIEWED, ""),
        generation=wire.metadata.generation or 0,
    )


class _FileSpec(Wire):
    eviction_requested: bool | None = None


class _BackingImageSpec(Wire):
    source_type: str | None = None
    data_engine: str | None = None
    node_selector: list[str] | None = None
    disk_selector: list[str] | None = None
    disk_file_spec_map: dict[str, _FileSpec | None] | None = None


class _BackingImageStatus(Wire):
    real_size: int | None = None
    virtual_size: int | None = None


class BackingImage(Wire):
    """longhorn.io BackingImage."""

    metadata: Metadata
    spec: _BackingImageSpec | None = None
    status: _BackingImageStatus | None = None


def backing_image(wire: BackingImage) -> longhorn.BackingImage:
    """A backing image and the disks it is, or will be, copied to."""
    spec = wire.spec or _BackingImageSpec()
    status = wire.status or _BackingImageStatus()
    subject = Subject("BackingImage.longhorn.io", wire.metadata)
    return longhorn.BackingImage(
        name=wire.metadata.name,
        data_engine=spec.data_engine or longhorn.V1,
        node_selector=tuple(spec.node_selector or ()),
        disk_selector=tuple(spec.disk_selector or ()),
        disks=tuple(sorted(spec.disk_file_spec_map or ())),
        real_size=subject.size(status.real_size, "status.realSize"),
        virtual_size=subject.size(status.virtual_size, "status.virtualSize"),
        source_type=spec.source_type or "",
    )


class _EngineImageSpec(Wire):
    image: str | None = None


class _EngineImageStatus(Wire):
    state: str | None = None
    node_deployment_map: dict[str, bool] | None = None


class EngineImage(Wire):
    """longhorn.io EngineImage."""

    metadata: Metadata
    spec: _EngineImageSpec | None = None
    status: _EngineImageStatus | None = None


def engine_image(wire: EngineImage) -> longhorn.EngineImage:
    """An engine image and where it is deployed."""
    status = wire.status or _EngineImageStatus()
    return longhorn.EngineImage(
        name=wire.metadata.name,
        image=(wire.spec.image if wire.spec else None) or "",
        state=status.state or "",
        nodes=frozenset(name for name, deployed in (status.node_deployment_map or {}).items() if deployed),
    )


class _InstanceManagerSpec(Wire):
    node_id: str | None = msgspec.field(default=None, name="nodeID")
    data_engine: str | None = None
    image: str | None = None


class _InstanceManagerStatus(Wire):
    current_state: str | None = None


class InstanceManager(Wire):
    """longhorn.io InstanceManager."""

    metadata: Metadata
    spec: _InstanceManagerSpec | None = None
    status: _InstanceManagerStatus | None = None


def instance_manager(wire: InstanceManager) -> longhorn.InstanceManager:
    """An instance manager."""
    spec = wire.spec or _InstanceManagerSpec()
    return longhorn.InstanceManager(
        name=wire.metadata.name,
        node=spec.node_id or "",
        data_engine=spec.data_engine or longhorn.V1,
        image=spec.image or "",
        state=(wire.status.current_state if wire.status else None) or "",
        deleting=wire.metadata.deletion_timestamp is not None,
    )


class Setting(Wire):
    """longhorn.io Setting; its value is at the top level, not in a spec."""

    metadata: Metadata
    value: str | None = None


def setting(wire: Setting) -> str:
    return wire.value or ""
