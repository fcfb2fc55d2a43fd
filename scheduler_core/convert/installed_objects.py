"""Wire types of the pods, Services and Events that a diagnosis reads, and their conversion."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec

from scheduler_core.convert.fields import Fields
from scheduler_core.convert.meta import Metadata, Wire, WireCondition, conditions, decode_json
from scheduler_core.leadership.endpoint_slice import EXTENDER_WITH_TLS, PLACEMENT_GUARD
from scheduler_core.model.installation import (
    DEFAULT_SCHEDULER,
    EXTENDER_RESOURCE,
    InstalledPod,
    SchedulingFailure,
    ServiceAddress,
)
from scheduler_core.model.kube import condition

# The extender's port in its manifests, with TLS, too.
_HTTP_PORT: Final = "http"
_PROBE_PORT: Final = "probes"
# As the host-network overlay has it.
_HOST_FLAG: Final = "--host"
_LOOPBACK: Final = "127.0.0.1"
_FINISHED: Final = frozenset({"Succeeded", "Failed"})


class _Resources(Wire):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class _ContainerPort(Wire):
    name: str | None = None
    container_port: int = 0


class _Container(Wire):
    resources: _Resources | None = None
    ports: list[_ContainerPort] | None = None
    command: list[str] | None = None
    args: list[str] | None = None


class _ClaimSource(Wire):
    claim_name: str = ""


class _Ephemeral(Wire):
    pass


class _Volume(Wire):
    name: str = ""
    persistent_volume_claim: _ClaimSource | None = None
    ephemeral: _Ephemeral | None = None


class _PodSpec(Wire):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    volumes: list[_Volume] | None = None
    service_account_name: str | None = None
    scheduler_name: str | None = None
    host_network: bool | None = None


class _PodStatus(Wire):
    pod_i_p: str | None = msgspec.field(default=None, name="podIP")
    phase: str | None = None
    conditions: list[WireCondition] | None = None


class InstalledPodObject(Wire):
    """core/v1 Pod."""

    metadata: Metadata
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


def installed_pod(raw: bytes | msgspec.Raw) -> InstalledPod:
    """A pod with what it needs of the extender.

    Raises:
        ObjectError: it is no pod
    """
    wire = decode_json("Pod", raw, InstalledPodObject)
    spec = wire.spec or _PodSpec()
    status = wire.status or _PodStatus()
    containers = [*(spec.containers or ()), *(spec.init_containers or ())]
    ports = [port for container in containers for port in container.ports or ()]
    # Overlays add ports, in any place.
    ports.sort(key=lambda port: port.name != _HTTP_PORT)
    return InstalledPod(
        namespace=wire.metadata.namespace or "default",
        name=wire.metadata.name,
        live=wire.metadata.deletion_timestamp is None and status.phase not in _FINISHED,
        ready=condition(conditions(status.conditions), "Ready").status == "True",
        address=status.pod_i_p or "",
        port=ports[0].container_port if ports else 0,
        probe_port=_port(_PROBE_PORT, ports),
        guard_port=_port(PLACEMENT_GUARD.port_name, ports),
        on_loopback=bool(spec.host_network) and any(_listens_on_loopback(container) for container in containers),
        account=spec.service_account_name or "",
        requests_extender=any(_requests_extender(container.resources) for container in containers),
        scheduler_name=spec.scheduler_name or DEFAULT_SCHEDULER,
        claims=tuple(_claims(wire.metadata.name, spec.volumes or ())),
    )


def _port(name: str, ports: list[_ContainerPort]) -> int:
    return next((port.container_port for port in ports if port.name == name), 0)


def command_line(raw: bytes | msgspec.Raw) -> list[str]:
    """The command and the arguments of a pod's first container.

    Raises:
        ObjectError: it is no pod
    """
    spec = decode_json("Pod", raw, InstalledPodObject).spec or _PodSpec()
    container = spec.containers[0] if spec.containers else _Container()
    return [*(container.command or ()), *(container.args or ())]


def _requests_extender(resources: _Resources | None) -> bool:
    # A limit without a request is a request of that size.
    return resources is not None and any(
        EXTENDER_RESOURCE in (entries or {}) for entries in (resources.requests, resources.limits)
    )


def _listens_on_loopback(container: _Container) -> bool:
    arguments = [*(container.command or ()), *(container.args or ())]
    return f"{_HOST_FLAG}={_LOOPBACK}" in arguments or (_HOST_FLAG, _LOOPBACK) in pairwise(arguments)


def _claims(pod: str, volumes: list[_Volume] | tuple[_Volume, ...]) -> list[str]:
    names = [
        volume.persistent_volume_claim.claim_name
        if volume.persistent_volume_claim is not None
        else f"{pod}-{volume.name}"
        if volume.ephemeral is not None
        else ""
        for volume in volumes
    ]
    return [name for name in names if name]


class _ServicePort(Wire):
    name: str | None = None
    port: int = 0


def _first_port(ports: list[_ServicePort] | None) -> int:
    return ports[0].port if ports else 0


def _is_tls(ports: list[_ServicePort] | None) -> bool:
    return ports[0].name == EXTENDER_WITH_TLS.port_name if ports else False


service_address: Final = Fields("Service", ServiceAddress, port=_first_port, tls=_is_tls).decode


class _InvolvedObject(Wire):
    namespace: str | None = None
    name: str = ""


class _Series(Wire):
    last_observed_time: str | None = None


class EventObject(Wire):
    """core/v1 Event."""

    involved_object: _InvolvedObject
    message: str | None = None
    event_time: str | None = None
    last_timestamp: str | None = None
    series: _Series | None = None


def scheduling_failure(raw: bytes | msgspec.Raw) -> SchedulingFailure:
    """An event of the reason FailedScheduling.

    Raises:
        ObjectError: it is no Event
    """
    wire = decode_json("Event", raw, EventObject)
    about = wire.involved_object
    series = wire.series.last_observed_time if wire.series is not None else None
    return SchedulingFailure(
        pod=f"{about.namespace or 'default'}/{about.name}",
        message=wire.message or "",
        last=series or wire.last_timestamp or wire.event_time or "",
    )


class _DriverSpec(Wire):
    storage_capacity: bool | None = None


class CSIDriverObject(Wire):
    """storage.k8s.io/v1 CSIDriver."""

    spec: _DriverSpec | None = None


def csi_driver_tracks_capacity(raw: bytes | msgspec.Raw) -> bool:
    """Whether kube-scheduler compares CSIStorageCapacity objects for a driver.

    Raises:
        ObjectError: it is no CSIDriver
    """
    spec = decode_json("CSIDriver", raw, CSIDriverObject).spec
    return spec is not None and bool(spec.storage_capacity)
