"""Nodes, pods, services and controllers as the generic scheduler reads them: wire types, and their conversion to
`model/generic.py` and `PodScheduling`.

The API server's defaults for requests and ports are applied here as well (`pod_requests`), so that objects from files
mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec

from scheduler_core.convert.fields import Fields, list_of
from scheduler_core.convert.kube import CLAIM_VOLUME, POD, pod_volumes
from scheduler_core.convert.meta import Metadata, Wire, WireCondition, conditions
from scheduler_core.convert.pod_constraints import (
    CPU,
    DO_NOT_SCHEDULE,
    MEMORY,
    MILLI,
    Containers,
    WireAmounts,
    WireLabelSelector,
    WireSpreadConstraint,
    amount,
    classic_host_ports,
    container_amounts,
    host_ports,
    label_selector,
    node_selector_terms,
    pod_affinity_terms,
    pod_requests,
    spread_constraint,
    uncounted_request_fields,
)
from scheduler_core.model import kube
from scheduler_core.model.constraints import (
    Cloud,
    CloudDisk,
    LabelSelector,
    PodConstraints,
    PodScheduling,
    SpreadConstraint,
    read_labels,
)
from scheduler_core.model.generic import Controller, Namespace, Node, Service, VolumeNodeAffinity
from scheduler_core.model.kube import condition

# pkg/scheduler/algorithm/priorities: getNonzeroRequests, defaultMilliCpuRequest and defaultMemoryRequest.
DEFAULT_CPU_REQUEST: Final = 100
DEFAULT_MEMORY_REQUEST: Final = 200 * 1024 * 1024


def _capacity(name: str) -> Callable[..., int]:
    scale = MILLI if name == CPU else 1

    def read(capacity: WireAmounts | None) -> int:
        return amount((capacity or {}).get(name), f"status.capacity[{name}]", scale)

    return read


def _allocatable(capacity: WireAmounts | None, allocatable: WireAmounts | None) -> dict[str, int]:
    """What pods may request of a node; by default its capacity, as the API server fills it in."""
    field = "status.capacity" if allocatable is None else "status.allocatable"
    amounts = capacity if allocatable is None else allocatable
    return {
        name: amount(value, f"{field}[{name}]", MILLI if name == CPU else 1) for name, value in (amounts or {}).items()
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


_Volume: Any = msgspec.defstruct(
    "_Volume",
    [("gcePersistentDisk", _GceDisk | None, None), ("awsElasticBlockStore", _EbsDisk | None, None)],
    bases=(CLAIM_VOLUME.wire,),
    kw_only=True,
)


class _ResourceClaim(Wire):
    name: str = ""


def _cloud_disks(volumes: list[Any] | None) -> tuple[CloudDisk, ...]:
    disks = []
    for volume in volumes or ():
        if volume.gcePersistentDisk is not None:
            disk = volume.gcePersistentDisk
            disks.append(CloudDisk(Cloud.GCE, disk.pd_name, bool(disk.read_only)))
        if volume.awsElasticBlockStore is not None:
            block = volume.awsElasticBlockStore
            disks.append(CloudDisk(Cloud.EBS, block.volume_id, bool(block.read_only)))
    return tuple(disks)


def _request_of(name: str, default: int) -> Callable[[Containers], int]:
    """What the containers request together, each that requests nothing this much."""

    def read(containers: Containers) -> int:
        return sum(default if value is None else value for value in container_amounts(containers, name))

    return read


def _spread(
    labels: dict[str, str] | None, constraints: list[WireSpreadConstraint] | None
) -> tuple[SpreadConstraint, ...]:
    hard = [entry for entry in constraints or () if entry.when_unsatisfiable == DO_NOT_SCHEDULE]
    return tuple(spread_constraint(entry, read_labels(labels)) for entry in hard)


def _claim_fields(claims: list[_ResourceClaim] | None) -> tuple[str, ...]:
    return tuple(f"spec.resourceClaims[{index}]" for index in range(len(claims))) if claims else ()


_CONSTRAINTS: Final = Fields(
    "",
    PodConstraints,
    node_affinity=node_selector_terms,
    pod_affinity=pod_affinity_terms,
    pod_anti_affinity=pod_affinity_terms,
    spread=_spread,
    requests=pod_requests,
    host_ports=host_ports,
    request_fields=uncounted_request_fields,
    claim_fields=_claim_fields,
)


# Pods of one workload have equal constraints: they share one value.
@lru_cache(maxsize=4096)
def _share(constraints: PodConstraints) -> PodConstraints:
    return constraints


def _shared_constraints(wire: Wire) -> PodConstraints:
    return _share(_CONSTRAINTS.construct(wire))


def _is_pod_ready(phase: str | None, entries: list[WireCondition] | None) -> bool:
    ready = condition(conditions(entries), "Ready")
    return ready.status == "True" or (not entries and phase == "Running")


_SCHEDULING: Final = Fields(
    "",
    PodScheduling,
    cpu=_request_of(CPU, 0),
    memory=_request_of(MEMORY, 0),
    nonzero_cpu=_request_of(CPU, DEFAULT_CPU_REQUEST),
    nonzero_memory=_request_of(MEMORY, DEFAULT_MEMORY_REQUEST),
    ports=classic_host_ports,
    disks=(_cloud_disks, list_of(_Volume)),
    constraints=(_shared_constraints, _CONSTRAINTS),
    ready=_is_pod_ready,
)
SCHEDULED_POD: Final = POD.extend(volumes=(pod_volumes, Metadata, list_of(_Volume)), scheduling=_SCHEDULING)


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


@dataclass(frozen=True, slots=True)
class _Template:
    pod: Annotated[kube.Pod | None, "spec.template"] = None


TEMPLATE: Final = Fields("StatefulSet", _Template, needs_metadata=False, pod=SCHEDULED_POD)


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


VOLUME_NODE_AFFINITY: Final = Fields("PersistentVolume", VolumeNodeAffinity, terms=node_selector_terms)
