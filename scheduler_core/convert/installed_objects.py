"""Wire types of the pods, Services and Events that a diagnosis reads, and their conversion."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import msgspec

from scheduler_core.convert.fields import Fields
from scheduler_core.convert.meta import Wire, WireCondition, conditions, decode_json
from scheduler_core.leadership.endpoint_slice import EXTENDER_WITH_TLS, PLACEMENT_GUARD
from scheduler_core.model.installation import (
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


_Containers = list[_Container] | None


def _is_live(deleted: str | None, phase: str | None) -> bool:
    return deleted is None and phase not in _FINISHED


def _is_ready(entries: list[WireCondition] | None) -> bool:
    return condition(conditions(entries), "Ready").status == "True"


def _port_for(name: str) -> Callable[[_Containers, _Containers], int]:
    def read(containers: _Containers, init_containers: _Containers) -> int:
        return next((port.container_port for port in _ports(containers, init_containers) if port.name == name), 0)

    return read


def _http_port(containers: _Containers, init_containers: _Containers) -> int:
    # Overlays add ports, in any place.
    ports = sorted(_ports(containers, init_containers), key=lambda port: port.name != _HTTP_PORT)
    return ports[0].container_port if ports else 0


def _ports(*lists: _Containers) -> list[_ContainerPort]:
    return [port for containers in lists for container in containers or () for port in container.ports or ()]


def _is_on_loopback(host_network: bool | None, containers: _Containers, init_containers: _Containers) -> bool:  # noqa: FBT001 # a value of an object
    return bool(host_network) and any(map(_listens_on_loopback, (*(containers or ()), *(init_containers or ()))))


def _listens_on_loopback(container: _Container) -> bool:
    arguments = _command_line(container)
    return f"{_HOST_FLAG}={_LOOPBACK}" in arguments or (_HOST_FLAG, _LOOPBACK) in pairwise(arguments)


def _command_line(container: _Container) -> list[str]:
    return [*(container.command or ()), *(container.args or ())]


def _requests_extender(containers: _Containers, init_containers: _Containers) -> bool:
    resources = [container.resources for container in (*(containers or ()), *(init_containers or ()))]
    # A limit without a request is a request of that size.
    return any(
        EXTENDER_RESOURCE in (entries or {}) for each in resources if each for entries in (each.requests, each.limits)
    )


def _claims(pod: str, volumes: list[_Volume] | None) -> tuple[str, ...]:
    names = [
        volume.persistent_volume_claim.claim_name
        if volume.persistent_volume_claim is not None
        else f"{pod}-{volume.name}"
        if volume.ephemeral is not None
        else ""
        for volume in volumes or ()
    ]
    return tuple(name for name in names if name)


_POD: Final = Fields(
    "Pod",
    InstalledPod,
    live=_is_live,
    ready=_is_ready,
    port=_http_port,
    probe_port=_port_for(_PROBE_PORT),
    guard_port=_port_for(PLACEMENT_GUARD.port_name),
    on_loopback=_is_on_loopback,
    requests_extender=_requests_extender,
    claims=_claims,
)
installed_pod: Final = _POD.decode


def command_line(raw: bytes | msgspec.Raw) -> list[str]:
    """The command and the arguments of a pod's first container.

    Raises:
        ObjectError: it is no pod
    """
    wire: Any = decode_json("Pod", raw, _POD.wire)
    containers = wire.spec.containers if wire.spec else None
    return _command_line(containers[0]) if containers else []


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
