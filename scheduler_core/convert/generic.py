"""Nodes, pods, services and controllers as the generic scheduler reads them: wire types, and their conversion to
`model/generic.py`.

The API server's defaults for requests and ports are applied here as well (`pod_requests`), so that objects from files
mean the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from scheduler_core.convert.meta import Metadata, Subject, Wire, WireCondition, conditions
from scheduler_core.convert.pod_requests import (
    CPU,
    MEMORY,
    MILLI,
    WireAmounts,
    WireContainer,
    WireRequests,
    amount,
    classic_host_ports,
    container_amount,
    host_ports,
    pod_requests,
    uncounted_request_fields,
)
from scheduler_core.convert.selectors import (
    DO_NOT_SCHEDULE,
    WireAffinity,
    WireLabelSelector,
    WireNodeSelector,
    WireSpreadConstraint,
    WireTaint,
    WireToleration,
    label_selector,
    node_selector_terms,
    pod_affinity_terms,
    required_node_affinity,
    spread_constraint,
    taints,
    tolerations,
)
from scheduler_core.model.constraints import Labels, LabelSelector, NodeSelectorTerm, PodConstraints
from scheduler_core.model.generic import Cloud, CloudDisk, Controller, Namespace, Node, Pod, Service
from scheduler_core.model.kube import condition

# pkg/scheduler/algorithm/priorities: getNonzeroRequests, defaultMilliCpuRequest and defaultMemoryRequest.
DEFAULT_CPU_REQUEST: Final = 100
DEFAULT_MEMORY_REQUEST: Final = 200 * 1024 * 1024
_FINISHED: Final = frozenset({"Succeeded", "Failed"})


class _NodeSpec(Wire):
    unschedulable: bool | None = None
    taints: list[WireTaint] | None = None


class _NodeStatus(Wire):
    capacity: WireAmounts | None = None
    allocatable: WireAmounts | None = None
    conditions: list[WireCondition] | None = None


class GenericNode(Wire):
    """core/v1 Node."""

    metadata: Metadata
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


def generic_node(wire: GenericNode) -> Node:
    """A node.

    Raises:
        ObjectError: a capacity is no quantity
    """
    spec = wire.spec or _NodeSpec()
    status = wire.status or _NodeStatus()
    capacity = status.capacity or {}
    subject = Subject("Node", wire.metadata)
    return Node(
        name=wire.metadata.name,
        labels=wire.metadata.labels or {},
        cpu=amount(capacity.get(CPU), subject, f"status.capacity[{CPU}]", MILLI),
        memory=amount(capacity.get(MEMORY), subject, f"status.capacity[{MEMORY}]"),
        pods=amount(capacity.get("pods"), subject, "status.capacity[pods]"),
        ready=any(entry.type == "Ready" and entry.status == "True" for entry in status.conditions or ()),
        unschedulable=bool(spec.unschedulable),
        taints=taints(spec.taints or ()),
        allocatable=_allocatable(status, subject),
    )


def _allocatable(status: _NodeStatus, subject: Subject) -> dict[str, int]:
    """What pods may request of a node; by default its capacity, as the API server fills it in."""
    field = "status.capacity" if status.allocatable is None else "status.allocatable"
    amounts = status.capacity if status.allocatable is None else status.allocatable
    return {
        name: amount(value, subject, f"{field}[{name}]", MILLI if name == CPU else 1)
        for name, value in (amounts or {}).items()
    }


class _GceDisk(Wire):
    pd_name: str = ""
    read_only: bool | None = None


class _EbsDisk(Wire):
    volume_id: str = msgspec.field(default="", name="volumeID")
    read_only: bool | None = None


class _Volume(Wire):
    gce_persistent_disk: _GceDisk | None = None
    aws_elastic_block_store: _EbsDisk | None = None


class _ResourceClaim(Wire):
    name: str = ""


class _PodSpec(WireRequests):
    node_name: str | None = None
    node_selector: dict[str, str] | None = None
    volumes: list[_Volume] | None = None
    affinity: WireAffinity | None = None
    tolerations: list[WireToleration] | None = None
    topology_spread_constraints: list[WireSpreadConstraint] | None = None
    resource_claims: list[_ResourceClaim] | None = None


class _PodStatus(Wire):
    phase: str | None = None
    conditions: list[WireCondition] | None = None


class GenericPod(Wire):
    """core/v1 Pod."""

    metadata: Metadata
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


def generic_pod(wire: GenericPod) -> Pod:
    """A pod.

    Raises:
        ObjectError: a request or limit is no quantity, or negative
    """
    spec = wire.spec or _PodSpec()
    status = wire.status or _PodStatus()
    subject = Subject("Pod", wire.metadata)
    containers = spec.containers or []
    cpu = _container_amounts(containers, CPU, subject)
    memory = _container_amounts(containers, MEMORY, subject)
    return Pod(
        namespace=wire.metadata.namespace or "default",
        name=wire.metadata.name,
        labels=_labels(wire.metadata.labels),
        node_name=spec.node_name or "",
        node_selector=spec.node_selector or {},
        cpu=sum(value or 0 for value in cpu),
        memory=sum(value or 0 for value in memory),
        nonzero_cpu=sum(DEFAULT_CPU_REQUEST if value is None else value for value in cpu),
        nonzero_memory=sum(DEFAULT_MEMORY_REQUEST if value is None else value for value in memory),
        ports=classic_host_ports(containers, host_network=bool(spec.host_network)),
        disks=tuple(disk for volume in spec.volumes or () for disk in _cloud_disks(volume)),
        finished=status.phase in _FINISHED,
        uid=wire.metadata.uid or "",
        constraints=_share(_constraints(wire, spec, subject)),
    )


def is_ready(wire: GenericPod) -> bool:
    """Whether a pod is ready, as is a running pod of a file that names no conditions."""
    status = wire.status or _PodStatus()
    ready = condition(conditions(status.conditions), "Ready")
    return ready.status == "True" or (not status.conditions and status.phase == "Running")


def _container_amounts(containers: list[WireContainer], name: str, subject: Subject) -> list[int | None]:
    return [
        container_amount(entry.resources, name, subject, f"spec.containers[{index}]")
        for index, entry in enumerate(containers)
    ]


# Pods of one workload have equal constraints: they share one value.
@lru_cache(maxsize=4096)
def _share(constraints: PodConstraints) -> PodConstraints:
    return constraints


def _constraints(wire: GenericPod, spec: _PodSpec, subject: Subject) -> PodConstraints:
    namespace = wire.metadata.namespace or "default"
    labels = _labels(wire.metadata.labels)
    spread = [
        spread_constraint(entry, labels)
        for entry in spec.topology_spread_constraints or ()
        if entry.when_unsatisfiable == DO_NOT_SCHEDULE
    ]
    return PodConstraints(
        tolerations=tolerations(spec.tolerations or ()),
        node_affinity=required_node_affinity(spec.affinity),
        pod_affinity=pod_affinity_terms(spec.affinity, namespace, anti=False),
        pod_anti_affinity=pod_affinity_terms(spec.affinity, namespace, anti=True),
        spread=tuple(spread),
        requests=pod_requests(spec, subject),
        host_ports=host_ports(spec),
        request_fields=uncounted_request_fields(spec),
        claim_fields=tuple(f"spec.resourceClaims[{index}]" for index in range(len(spec.resource_claims or ()))),
        terminating=wire.metadata.deletion_timestamp is not None,
    )


class _ServiceSpec(Wire):
    selector: dict[str, str] | None = None


class GenericService(Wire):
    """core/v1 Service."""

    metadata: Metadata
    spec: _ServiceSpec | None = None


def generic_service(wire: GenericService) -> Service:
    spec = wire.spec or _ServiceSpec()
    return Service(wire.metadata.namespace or "default", wire.metadata.name, _labels(spec.selector))


class GenericReplicationController(Wire):
    """core/v1 ReplicationController, whose selector is a map of labels."""

    metadata: Metadata
    spec: _ServiceSpec | None = None


def replication_controller(wire: GenericReplicationController) -> Controller:
    spec = wire.spec or _ServiceSpec()
    selector = LabelSelector(_labels(spec.selector))
    return Controller("ReplicationController", wire.metadata.namespace or "default", wire.metadata.name, selector)


class _WorkloadSpec(Wire):
    selector: WireLabelSelector | None = None


class GenericWorkload(Wire):
    """apps/v1 ReplicaSet or StatefulSet."""

    metadata: Metadata
    spec: _WorkloadSpec | None = None


class _TemplateSpec(Wire):
    template: GenericPod | None = None


class GenericTemplate(Wire):
    """The template of a workload's pods."""

    spec: _TemplateSpec | None = None


def workload(kind: str, wire: GenericWorkload) -> Controller:
    spec = wire.spec or _WorkloadSpec()
    return Controller(kind, wire.metadata.namespace or "default", wire.metadata.name, label_selector(spec.selector))


class GenericNamespace(Wire):
    """core/v1 Namespace."""

    metadata: Metadata


def generic_namespace(wire: GenericNamespace) -> Namespace:
    return Namespace(wire.metadata.name, _labels(wire.metadata.labels))


class _VolumeNodeAffinity(Wire):
    required: WireNodeSelector | None = None


class _VolumeSpec(Wire):
    node_affinity: _VolumeNodeAffinity | None = None


class GenericVolume(Wire):
    """core/v1 PersistentVolume."""

    metadata: Metadata
    spec: _VolumeSpec | None = None


def volume_affinity(wire: GenericVolume) -> tuple[NodeSelectorTerm, ...] | None:
    """The terms of a PersistentVolume's node affinity, None for every node."""
    affinity = wire.spec.node_affinity if wire.spec else None
    return None if affinity is None or affinity.required is None else node_selector_terms(affinity.required)


def _labels(wire: dict[str, str] | None) -> Labels:
    return frozenset((wire or {}).items())


def _cloud_disks(volume: _Volume) -> list[CloudDisk]:
    disks = []
    if volume.gce_persistent_disk is not None:
        disk = volume.gce_persistent_disk
        disks.append(CloudDisk(Cloud.GCE, disk.pd_name, bool(disk.read_only)))
    if volume.aws_elastic_block_store is not None:
        block = volume.aws_elastic_block_store
        disks.append(CloudDisk(Cloud.EBS, block.volume_id, bool(block.read_only)))
    return disks
