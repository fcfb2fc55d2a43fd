"""Explanations and the cluster's state as plain data: the stable JSON of `explain`, `/explain` and `/state`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from scheduler_core.longhorn.space import Room
from scheduler_core.model import longhorn
from scheduler_core.model.kube import Pod
from scheduler_core.resolve import PodVolume
from scheduler_core.verbs import Explanation
from scheduler_core.verdict import Verdict
from scheduler_core.view import View


class Answer(BaseModel):
    """Something that is answered; never changed once made."""

    model_config = ConfigDict(frozen=True)


class ReplicaAnswer(Answer):
    """A replica of one of the pod's volumes."""

    name: str
    node: str = Field(description="empty while it has no place")
    disk: str = Field(description="UUID of its disk, empty while it has no place")
    healthy: bool
    failed: bool


class VolumeAnswer(Answer):
    """A Longhorn volume of the pod."""

    name: str = Field(description="the Longhorn volume; the claim while it is unbound")
    claim: str = Field(description="namespace/name")
    bound: bool = Field(description="whether the Longhorn volume exists")
    local: bool = Field(description="whether it needs room on the pod's own node")
    data_locality: str = Field(serialization_alias="dataLocality")
    size: int = Field(description="bytes")
    actual_size: int = Field(serialization_alias="actualSize", description="bytes its data occupies")
    replicas: list[ReplicaAnswer]


class PlacementAnswer(Answer):
    """One step of a placement order."""

    volume: str
    disk: str = Field(description="UUID of the disk Longhorn picks; empty for the volume that finds none")


class NodeAnswer(Answer):
    """What is said about one node."""

    fits: bool
    order_safe: bool = Field(
        description="whether Longhorn is proven to find room in whatever order it places the volumes"
    )
    reason: str
    detail: str
    plan: dict[str, str] = Field(description="the UUID of a disk for each volume that needs space here")
    counter_example: list[PlacementAnswer] = Field(
        serialization_alias="counterExample",
        description="an order that fails; empty if there is none or none was found",
    )
    missing: int = Field(description="the least bytes that, freed on one disk, would let all fit; 0: not applicable")


class ExplainAnswer(Answer):
    """Why a pod fits or does not fit on each node."""

    pod: str = Field(description="namespace/name")
    volumes: list[VolumeAnswer]
    nodes: dict[str, NodeAnswer]


def explain_answer(pod: Pod, explanation: Explanation) -> ExplainAnswer:
    """An explanation as data; nodes in the order asked."""
    decision = explanation.decision
    return ExplainAnswer(
        pod=pod.key,
        volumes=[_volume(volume) for volume in decision.resolution.volumes],
        nodes={name: _node(verdict) for name, verdict in zip(decision.candidates, explanation.verdicts, strict=True)},
    )


def _volume(volume: PodVolume) -> VolumeAnswer:
    return VolumeAnswer(
        name=volume.name,
        claim=volume.claim,
        bound=volume.bound,
        local=volume.local,
        data_locality=volume.volume.data_locality,
        size=volume.volume.size,
        actual_size=volume.volume.actual_size,
        replicas=[replica_answer(replica) for replica in volume.replicas],
    )


def replica_answer(replica: longhorn.Replica) -> ReplicaAnswer:
    """A replica as data."""
    return ReplicaAnswer(
        name=replica.name,
        node=replica.node_id,
        disk=replica.disk_id,
        healthy=bool(replica.healthy_at and not replica.failed_at),
        failed=bool(replica.failed_at),
    )


def _node(verdict: Verdict) -> NodeAnswer:
    return NodeAnswer(
        fits=verdict.fits,
        order_safe=verdict.order_safe,
        reason=verdict.reason.text,
        detail=verdict.detail,
        plan=dict(verdict.plan),
        counter_example=[PlacementAnswer(volume=volume, disk=disk) for volume, disk in verdict.counter_example],
        missing=verdict.missing,
    )


class DiskState(Answer):
    """A disk and what counts on it, in bytes."""

    name: str
    uuid: str
    type: str
    tags: list[str]
    ready: bool
    schedulable: bool
    allow_scheduling: bool = Field(serialization_alias="allowScheduling")
    eviction_requested: bool = Field(serialization_alias="evictionRequested")
    storage_maximum: int = Field(serialization_alias="storageMaximum")
    storage_reserved: int = Field(serialization_alias="storageReserved")
    storage_available: int = Field(serialization_alias="storageAvailable")
    storage_scheduled: int = Field(serialization_alias="storageScheduled", description="as Longhorn's status has it")
    free: int = Field(description="what may still be scheduled: size <= free")
    headroom: int = Field(description="what may still be written: actual size < headroom")
    replicas: dict[str, int] = Field(description="counted in storageScheduled, by name")
    backing_images: dict[str, int] = Field(serialization_alias="backingImages", description="likewise")
    not_yet_scheduled: dict[str, int] = Field(
        serialization_alias="notYetScheduled",
        description="replicas placed here that Longhorn's status does not list yet",
    )


class NodeState(Answer):
    """A Longhorn node."""

    ready: bool
    schedulable: bool
    allow_scheduling: bool = Field(serialization_alias="allowScheduling")
    eviction_requested: bool = Field(serialization_alias="evictionRequested")
    zone: str
    tags: list[str]
    disks: list[DiskState]


class ServiceState(Answer):
    """Who answers, by which settings."""

    answering: bool = Field(description="whether this process answers kube-scheduler")
    refusal: str = Field(description="why it does not; empty if it does")
    leader: str = Field(description="who holds the Lease, as far as known")
    enabled: bool
    pod_scheduling_timeout: int = Field(serialization_alias="podSchedulingTimeout", description="seconds")
    node_reservation_timeout: int = Field(serialization_alias="nodeReservationTimeout", description="seconds")
    origins: dict[str, str] = Field(description="where each setting's value comes from")
    refused_settings: list[str] = Field(serialization_alias="refusedSettings", description="values that are not valid")
    reserved_nodes: list[str] = Field(
        serialization_alias="reservedNodes", description="nodes that take no new volumes now"
    )


class StateAnswer(Answer):
    """What decisions are based on at this moment."""

    version: int = Field(description="of the view; grows with every change")
    service: ServiceState | None = Field(default=None, description="who answers and why; null over a snapshot file")
    nodes: dict[str, NodeState]


def state_answer(view: View, service: ServiceState | None = None) -> StateAnswer:
    """The view as data; nodes ordered by name."""
    nodes = view.snapshot.longhorn_nodes
    return StateAnswer(
        version=view.version, service=service, nodes={name: _node_state(view, nodes[name]) for name in sorted(nodes)}
    )


def _node_state(view: View, node: longhorn.Node) -> NodeState:
    return NodeState(
        ready=node.ready,
        schedulable=node.schedulable,
        allow_scheduling=node.allow_scheduling,
        eviction_requested=node.eviction_requested,
        zone=node.zone,
        tags=sorted(node.tags),
        disks=[_disk_state(view, disk, view.rooms(node.name)[disk.name]) for disk in node.disks],
    )


def _disk_state(view: View, disk: longhorn.Disk, room: Room) -> DiskState:
    return DiskState(
        name=disk.name,
        uuid=disk.uuid,
        type=disk.spec_type,
        tags=sorted(disk.tags),
        ready=disk.ready,
        schedulable=disk.schedulable,
        allow_scheduling=disk.allow_scheduling,
        eviction_requested=disk.eviction_requested,
        storage_maximum=disk.storage_maximum,
        storage_reserved=disk.storage_reserved,
        storage_available=disk.storage_available,
        storage_scheduled=disk.storage_scheduled,
        free=room.free,
        headroom=room.headroom,
        replicas=dict(sorted(disk.scheduled_replicas.items())),
        backing_images=dict(sorted(disk.scheduled_backing_images.items())),
        not_yet_scheduled={replica.name: replica.size for replica in view.late_on(disk)},
    )
