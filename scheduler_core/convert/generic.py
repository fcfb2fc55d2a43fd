"""Nodes, pods and services as the generic scheduler reads them.

The module has their wire types and their conversion to `model/generic.py`.

Two of the API server's defaults are applied here as well, so that objects from files mean the same: a request that is not set
equals the limit, and with hostNetwork a port without hostPort is the host's port of the same number.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from scheduler_core.convert.meta import Metadata, Subject, Wire, WireCondition
from scheduler_core.errors import ObjectError, QuantityError
from scheduler_core.model.generic import Cloud, CloudDisk, Labels, Node, Pod, Service
from scheduler_core.model.quantity import parse_clamped

# pkg/scheduler/algorithm/priorities: getNonzeroRequests, defaultMilliCpuRequest and defaultMemoryRequest.
DEFAULT_CPU_REQUEST: Final = 100
DEFAULT_MEMORY_REQUEST: Final = 200 * 1024 * 1024
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
MILLI: Final = 1000

_Amount = str | int | float
_Amounts = dict[str, _Amount]


class _NodeSpec(Wire):
    unschedulable: bool | None = None


class _NodeStatus(Wire):
    capacity: _Amounts | None = None
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
    status = wire.status or _NodeStatus()
    capacity = status.capacity or {}
    subject = Subject("Node", wire.metadata)
    return Node(
        name=wire.metadata.name,
        labels=wire.metadata.labels or {},
        cpu=_amount(capacity.get("cpu"), subject, "status.capacity.cpu", MILLI),
        memory=_amount(capacity.get("memory"), subject, "status.capacity.memory"),
        pods=_amount(capacity.get("pods"), subject, "status.capacity.pods"),
        ready=any(entry.type == "Ready" and entry.status == "True" for entry in status.conditions or ()),
        unschedulable=bool(wire.spec and wire.spec.unschedulable),
    )


class _Port(Wire):
    container_port: int = 0
    host_port: int | None = None


class _Resources(Wire):
    requests: _Amounts | None = None
    limits: _Amounts | None = None


class _Container(Wire):
    resources: _Resources | None = None
    ports: list[_Port] | None = None


class _GceDisk(Wire):
    pd_name: str = ""
    read_only: bool | None = None


class _EbsDisk(Wire):
    volume_id: str = msgspec.field(default="", name="volumeID")
    read_only: bool | None = None


class _Volume(Wire):
    gce_persistent_disk: _GceDisk | None = None
    aws_elastic_block_store: _EbsDisk | None = None


class _PodSpec(Wire):
    node_name: str | None = None
    node_selector: dict[str, str] | None = None
    host_network: bool | None = None
    containers: list[_Container] | None = None
    volumes: list[_Volume] | None = None


class _PodStatus(Wire):
    phase: str | None = None


class GenericPod(Wire):
    """core/v1 Pod."""

    metadata: Metadata
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


def generic_pod(wire: GenericPod) -> Pod:
    """A pod; its init containers are ignored.

    Raises:
        ObjectError: a request or limit is no quantity, or negative
    """
    spec = wire.spec or _PodSpec()
    status = wire.status or _PodStatus()
    subject = Subject("Pod", wire.metadata)
    containers = spec.containers or ()
    requests = [_container_requests(entry.resources, subject) for entry in containers]
    return Pod(
        namespace=wire.metadata.namespace or "default",
        name=wire.metadata.name,
        labels=_labels(wire.metadata.labels),
        node_name=spec.node_name or "",
        node_selector=spec.node_selector or {},
        cpu=sum(cpu or 0 for cpu, _ in requests),
        memory=sum(memory or 0 for _, memory in requests),
        nonzero_cpu=sum(DEFAULT_CPU_REQUEST if cpu is None else cpu for cpu, _ in requests),
        nonzero_memory=sum(DEFAULT_MEMORY_REQUEST if memory is None else memory for _, memory in requests),
        ports=frozenset(_host_ports(containers, host_network=bool(spec.host_network))) - {0},
        disks=tuple(disk for volume in spec.volumes or () for disk in _cloud_disks(volume)),
        finished=status.phase in _FINISHED,
        uid=wire.metadata.uid or "",
    )


class _ServiceSpec(Wire):
    selector: dict[str, str] | None = None


class GenericService(Wire):
    """core/v1 Service."""

    metadata: Metadata
    spec: _ServiceSpec | None = None


def generic_service(wire: GenericService) -> Service:
    """A service."""
    spec = wire.spec or _ServiceSpec()
    return Service(wire.metadata.namespace or "default", wire.metadata.name, _labels(spec.selector))


def _labels(wire: dict[str, str] | None) -> Labels:
    return frozenset((wire or {}).items())


def _container_requests(resources: _Resources | None, subject: Subject) -> tuple[int | None, int | None]:
    """A container's requests of CPU and memory, None without request and limit."""
    if resources is None:
        return None, None
    amounts = {**(resources.limits or {}), **(resources.requests or {})}
    field = "spec.containers[].resources.requests"
    cpu = amounts.get("cpu")
    memory = amounts.get("memory")
    return (
        None if cpu is None else _amount(cpu, subject, f"{field}.cpu", MILLI),
        None if memory is None else _amount(memory, subject, f"{field}.memory"),
    )


def _host_ports(containers: list[_Container] | tuple[()], *, host_network: bool) -> list[int]:
    ports = [port for entry in containers for port in entry.ports or ()]
    return [port.host_port or (port.container_port if host_network else 0) for port in ports]


def _cloud_disks(volume: _Volume) -> list[CloudDisk]:
    disks = []
    if volume.gce_persistent_disk is not None:
        disk = volume.gce_persistent_disk
        disks.append(CloudDisk(Cloud.GCE, disk.pd_name, bool(disk.read_only)))
    if volume.aws_elastic_block_store is not None:
        block = volume.aws_elastic_block_store
        disks.append(CloudDisk(Cloud.EBS, block.volume_id, bool(block.read_only)))
    return disks


def _amount(value: _Amount | None, subject: Subject, field: str, scale: int = 1) -> int:
    """A quantity times `scale`, rounded up, and at most 2^63-1.

    The limit is more than any node has.

    Raises:
        ObjectError: the value is no quantity, or negative
    """
    if value is None or value == "":
        return 0
    try:
        amount = _parse_cached(str(value), scale)
    except QuantityError as error:
        raise ObjectError(subject.text, field, str(error)) from error
    if amount < 0:
        raise ObjectError(subject.text, field, f"{value!r} is negative")
    return amount


_parse_cached = lru_cache(maxsize=4096)(parse_clamped)
