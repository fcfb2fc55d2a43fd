"""The Lease of leader election (coordination.k8s.io/v1): its wire type, its conversion to a record, and the bodies to
write.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler_core.convert.meta import Wire, decode_json
from scheduler_core.leadership.election import LeaseRecord


class _Metadata(Wire):
    resource_version: str = ""


class _LeaseSpec(Wire):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Wire):
    """coordination.k8s.io/v1 Lease."""

    metadata: _Metadata
    spec: _LeaseSpec | None = None


def lease(raw: bytes) -> LeaseRecord:
    """The content of a Lease; absent fields count as empty or 0.

    Raises:
        ObjectError: it is no Lease
    """
    wire = decode_json("Lease", raw, Lease)
    spec = wire.spec or _LeaseSpec()
    return LeaseRecord(
        holder=spec.holder_identity or "",
        duration=spec.lease_duration_seconds or 0,
        acquired=spec.acquire_time or "",
        renewed=spec.renew_time or "",
        transitions=spec.lease_transitions or 0,
        resource_version=wire.metadata.resource_version,
    )


def new_lease(namespace: str, name: str, record: LeaseRecord) -> dict[str, Any]:
    """The body that creates a Lease."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": _spec(record),
    }


def update_lease(raw: bytes, record: LeaseRecord) -> dict[str, Any]:
    """The body that replaces the Lease read as `raw`, with its foreign labels and fields, and the version that the
    record is based on.
    """
    body: dict[str, Any] = msgspec.json.decode(raw)
    # The uid stays: without it, the API server takes a replace of a deleted Lease for a create (AllowCreateOnUpdate),
    # whatever its resourceVersion.
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    metadata["resourceVersion"] = record.resource_version
    return {**body, "metadata": metadata, "spec": {**(body.get("spec") or {}), **_spec(record)}}


def _spec(record: LeaseRecord) -> dict[str, Any]:
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": record.duration,
        "acquireTime": record.acquired or None,
        "renewTime": record.renewed or None,
        "leaseTransitions": record.transitions,
    }
