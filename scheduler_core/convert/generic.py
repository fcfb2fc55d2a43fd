"""Nodes, pods, services and controllers as the generic scheduler reads them: wire types, and their conversion to
`model/generic.py`.

The API server's defaults for requests and ports are applied here as well (`pod_requests`), so that objects from files
mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from scheduler_core.convert.fields import Fields
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
    WireToleration,
    label_selector,
    node_selector_terms,
    pod_affinity_terms,
    required_node_affinity,
    spread_constraint,
    tolerations,
)
from scheduler_core.model.constraints import LabelSelector, NodeSelectorTerm, PodConstraints
from scheduler_core.model.generic import Cloud, CloudDisk, Controller, Namespace, Node, Pod, Service, read_labels
from scheduler_core.model.kube import condition

# pkg/scheduler/algorithm/priorities: getNonzeroRequests, defaultMilliCpuRequest and defaultMemoryRequest.
DEFAULT_CPU_REQUEST: Final = 100
DEFAULT_MEMORY_REQUEST: Final = 200 * 1024 * 1024
_FINISHED: Final = frozenset({"Succeeded", "Failed"})


# Errors are given the node's name later.
_NO_SUBJECT: Final = Subject("", Metadata())


def _capacity(name: str) -> Callable[..., int]:
    scale = MILLI if name == CPU else 1

    def read(capacity: WireAmounts | None) -> int:
        return amount((capacity or {}).get(name), _NO_SUBJECT, f"status.capacity[{name}]", scale)

    return read


def _allocatable(capacity: WireAmounts | None, allocatable: WireAmounts | None) -> dict[str, int]:
    """What pods may request of a node; by default its capacity, as the API server fills it in."""
    field = "status.capacity" if allocatable is None else "status.allocatable"
    amounts = capacity if allocatable is None else allocatable
    return {
        name: amount(value, _NO_SUBJECT, f"{field}[{name}]", MILLI if name == CPU else 1)
        for name, value in (amounts or {}).items()
    }


def _is_node_ready(entries: list[WireCondition] | None) -> bool:
    return any(entry.type == "Ready" and entry.status == "True" for entry in entries or ())


NODE: Final = Fields(
    "Node",
    Node,
    cpu=_capacity(CPU),
    memory=_capacity(MEMORY),
    pods=_capacity("pods"),
    ready=_is_node_ready,
    allocatable=_allocatable,
)
SERVICE: Final = Fields("Service", Service)
NAMESPACE: Final = Fields("Namespace", Namespace)


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


def _pod(wire: GenericPod) -> Pod:
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
        labels=read_labels(wire.metadata.labels),
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


POD: Final = Fields.by_hand("Pod", GenericPod, _pod)


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
    labels = read_labels(wire.metadata.labels)
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


class _ReplicationController(Wire):
    metadata: Metadata
    spec: _ServiceSpec | None = None


def _replication_controller(wire: _ReplicationController) -> Controller:
    spec = wire.spec or _ServiceSpec()
    selector = LabelSelector(read_labels(spec.selector))
    return Controller("ReplicationController", wire.metadata.namespace or "default", wire.metadata.name, selector)


class _WorkloadSpec(Wire):
    selector: WireLabelSelector | None = None


class _Workload(Wire):
    metadata: Metadata
    spec: _WorkloadSpec | None = None


class _TemplateSpec(Wire):
    template: GenericPod | None = None


class GenericTemplate(Wire):
    """The template of a workload's pods."""

    spec: _TemplateSpec | None = None


def _workload(kind: str) -> Fields[Controller]:
    def read(wire: _Workload) -> Controller:
        selector = label_selector((wire.spec or _WorkloadSpec()).selector)
        return Controller(kind, wire.metadata.namespace or "default", wire.metadata.name, selector)

    return Fields.by_hand(kind, _Workload, read)


REPLICATION_CONTROLLER: Final = Fields.by_hand("ReplicationController", _ReplicationController, _replication_controller)
REPLICA_SET: Final = _workload("ReplicaSet")
STATEFUL_SET: Final = _workload("StatefulSet")
# By kind and API group.
CONTROLLERS: Final[Mapping[tuple[str, str], Fields[Controller]]] = {
    ("ReplicationController", ""): REPLICATION_CONTROLLER,
    ("ReplicaSet", "apps"): REPLICA_SET,
    ("StatefulSet", "apps"): STATEFUL_SET,
}


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


def _cloud_disks(volume: _Volume) -> list[CloudDisk]:
    disks = []
    if volume.gce_persistent_disk is not None:
        disk = volume.gce_persistent_disk
        disks.append(CloudDisk(Cloud.GCE, disk.pd_name, bool(disk.read_only)))
    if volume.aws_elastic_block_store is not None:
        block = volume.aws_elastic_block_store
        disks.append(CloudDisk(Cloud.EBS, block.volume_id, bool(block.read_only)))
    return disks
