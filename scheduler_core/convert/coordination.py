"""The Lease of leader election (coordination.k8s.io/v1): how it is read, and the bodies to write."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scheduler_core.convert.fields import Fields
from scheduler_core.leadership.election import LeaseRecord

lease: Final = Fields("Lease", LeaseRecord).decode
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
