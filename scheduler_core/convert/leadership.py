"""What a leader reads and writes: the Lease of leader election (coordination.k8s.io/v1), the EndpointSlice of a Service
(discovery.k8s.io/v1), and the process's ServiceAccount as the owner of both.

Kubernetes removes an object once its owner is gone: an uninstallation that deletes the ServiceAccount leaves no Lease and no
EndpointSlice.
"""

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from scheduler_core.convert.wire_types import Fields, Metadata, Wire, decode_json, stored_body
from scheduler_core.leadership.election import LeaseRecord
from scheduler_core.leadership.endpoint_slice import Endpoint, LeaderService, Slice
from scheduler_core.structs import Struct

lease = Fields("Lease", LeaseRecord).decode
"""The content of a Lease."""


def new_lease(namespace: str, name: str, record: LeaseRecord) -> dict[str, Any]:
    """The body that creates a Lease."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": _spec(record),
    }


def update_lease(raw: bytes, record: LeaseRecord) -> dict[str, Any]:
    """The body that replaces the Lease read as `raw`, with its foreign fields, at the version of the record."""
    body = stored_body(raw)
    # The uid stays: without it, the API server takes a replace of a deleted Lease for a create (AllowCreateOnUpdate),
    # whatever its resourceVersion.
    metadata = {**body["metadata"], "resourceVersion": record.resource_version}
    return {**body, "metadata": metadata, "spec": {**(body.get("spec") or {}), **_spec(record)}}


def _spec(record: LeaseRecord) -> dict[str, Any]:
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": record.duration,
        "acquireTime": record.acquired or None,
        "renewTime": record.renewed or None,
        "leaseTransitions": record.transitions,
    }


class _Port(Wire):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class _Endpoint(Wire):
    addresses: list[str] | None = None
    conditions: dict[str, bool | None] | None = None
    node_name: str | None = None


class EndpointSlice(Wire):
    """discovery.k8s.io/v1 EndpointSlice."""

    metadata: Metadata
    address_type: str = ""
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


def endpoint_slice(raw: bytes, service: LeaderService) -> Slice:
    """The endpoints and labels of an EndpointSlice, as kube-proxy reads them."""
    wire = decode_json("EndpointSlice", raw, EndpointSlice)
    ports = wire.ports or ()
    endpoints = wire.endpoints or ()
    # kube-proxy takes an absent `ready` as true.
    ready = [entry for entry in endpoints if (entry.conditions or {}).get("ready") is not False]
    return Slice(
        address_type=wire.address_type,
        endpoints=tuple(
            # kube-proxy uses only the first address of an endpoint.
            Endpoint(_canonical(entry.addresses[0]), port.port or 0, entry.node_name or "")
            for entry in ready
            if entry.addresses
            for port in ports
        ),
        labels=wire.metadata.labels or {},
        plain=[(port.name, port.protocol or "TCP") for port in ports] == [(service.port_name, "TCP")]
        and len(ready) == len(endpoints)
        and all(len(entry.addresses or ()) <= 1 for entry in endpoints),
    )


def new_slice(namespace: str, service: LeaderService, desired: Slice) -> dict[str, Any]:
    """The body that creates a slice."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": service.name, "namespace": namespace, "labels": dict(desired.labels)},
        "addressType": desired.address_type,
        **_content(service, desired),
    }


def update_slice(raw: bytes, service: LeaderService, desired: Slice) -> dict[str, Any]:
    body = stored_body(raw)
    labels = {**(body["metadata"].get("labels") or {}), **desired.labels}
    return {**body, "metadata": {**body["metadata"], "labels": labels}, **_content(service, desired)}


def version_precondition(raw: bytes) -> dict[str, Any]:
    """DeleteOptions that delete the object only in the version read as `raw`."""
    metadata = msgspec.json.decode(raw)["metadata"]
    return {"preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}}


def _canonical(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address  # a host name, in a slice of type FQDN


def _content(service: LeaderService, desired: Slice) -> dict[str, Any]:
    port = desired.endpoints[0].port if desired.endpoints else service.port
    ready = {"conditions": {"ready": True}}
    return {
        "endpoints": [
            {"addresses": [each.address], **ready, **({"nodeName": each.node} if each.node else {})}
            for each in desired.endpoints
        ],
        "ports": [{"name": service.port_name, "port": port, "protocol": "TCP"}],
    }


SELF_REVIEW: Mapping[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
"""The question as whom the API server knows the caller. Every authenticated user may ask it."""

_PREFIX = "system:serviceaccount:"


class _User(Struct, frozen=True):
    name: Annotated[str, "status.userInfo.username"] = ""
    uid: Annotated[str, "status.userInfo.uid"] = ""


def owner_references(raw: bytes, namespace: str) -> list[dict[str, str]]:
    """The ownerReferences of an object that the caller creates in a namespace: its ServiceAccount, or none if the
    caller is another user, or an account of another namespace.
    """
    user = Fields("SelfSubjectReview", _User, needs_metadata=False).decode(raw)
    account_namespace, _, name = user.name.removeprefix(_PREFIX).partition(":")
    # An owner must be in the object's namespace, or Kubernetes takes it for gone.
    if not user.uid or not user.name.startswith(_PREFIX) or account_namespace != namespace or not name:
        return []
    return [{"apiVersion": "v1", "kind": "ServiceAccount", "name": name, "uid": user.uid}]


def with_owners(body: Mapping[str, Any], owners: list[dict[str, str]]) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "ownerReferences": owners}}
