"""The EndpointSlice behind the Service: wire type of discovery.k8s.io/v1, its model, and the bodies written."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from scheduler_core.convert.meta import Metadata, Wire, shape_json
from scheduler_core.leadership.endpoint_slice import DEFAULT_PORT, PORT_NAME, Endpoint, Slice

_TCP: Final = "TCP"


class _Port(Wire):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class _Conditions(Wire):
    ready: bool | None = None


class _Endpoint(Wire):
    addresses: list[str] | None = None
    conditions: _Conditions | None = None
    node_name: str | None = None


class EndpointSlice(Wire):
    """discovery.k8s.io/v1 EndpointSlice."""

    metadata: Metadata
    address_type: str = ""
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


def endpoint_slice(raw: bytes) -> Slice:
    """Where a slice leads. kube-proxy uses the first address of an endpoint only; it takes no ``ready`` as true.

    Raises:
        ObjectError: it is no EndpointSlice
    """
    wire = shape_json("EndpointSlice", raw, EndpointSlice)
    ports = wire.ports or ()
    ready = [entry for entry in wire.endpoints or () if entry.conditions is None or entry.conditions.ready is not False]
    return Slice(
        address_type=wire.address_type,
        endpoints=tuple(
            Endpoint(_canonical(entry.addresses[0]), port.port or 0, entry.node_name or "")
            for entry in ready
            if entry.addresses
            for port in ports
        ),
        labels=wire.metadata.labels or {},
        plain=_plain(ports) and len(ready) == len(wire.endpoints or ()),
    )


def new_slice(namespace: str, name: str, wanted: Slice) -> dict[str, Any]:
    """The body that creates a slice."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(wanted.labels)},
        "addressType": wanted.address_type,
        **_content(wanted),
    }


def changed_slice(raw: bytes, wanted: Slice) -> dict[str, Any]:
    """The body that replaces the slice read as `raw`, at that version, with others' labels and annotations."""
    body: dict[str, Any] = msgspec.json.decode(raw)
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    metadata["labels"] = {**(metadata.get("labels") or {}), **wanted.labels}
    return {**body, "metadata": metadata, **_content(wanted)}


def this_version(raw: bytes) -> dict[str, Any]:
    """DeleteOptions that delete the object read as `raw` only if nobody changed or replaced it since."""
    metadata = msgspec.json.decode(raw)["metadata"]
    return {"preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}}


def _plain(ports: Sequence[_Port]) -> bool:
    return len(ports) == 1 and ports[0].name == PORT_NAME and ports[0].protocol in {None, _TCP}


def _canonical(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address  # a host name, in a slice of type FQDN


def _content(wanted: Slice) -> dict[str, Any]:
    port = wanted.endpoints[0].port if wanted.endpoints else DEFAULT_PORT
    return {
        "endpoints": [
            {
                "addresses": [endpoint.address],
                "conditions": {"ready": True},
                **({"nodeName": endpoint.node} if endpoint.node else {}),
            }
            for endpoint in wanted.endpoints
        ],
        "ports": [{"name": PORT_NAME, "port": port, "protocol": _TCP}],
    }
