"""Objects of a file, as `kubectl apply` would store them."""

from __future__ import annotations

from typing import Any

from scheduler_core.convert.meta import Wire, decode_object


class _Spec(Wire):
    replicas: int | None = None
    pod_management_policy: str | None = None


class AppliedWorkload(Wire):
    """What a workload asks for besides the template of its pods."""

    spec: _Spec | None = None


def with_namespace(raw: Any, namespace: str) -> Any:
    """Returns an object, in this namespace if it names none; an object without metadata stays as it is."""
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("namespace"):
        return raw
    return {**raw, "metadata": {**metadata, "namespace": namespace}}


def workload_replicas(kind: str, raw: object) -> int | None:
    """Returns how many pods a workload requests, None if it names none.

    Raises:
        ObjectError: it is no number
    """
    spec = decode_object(kind, raw, AppliedWorkload).spec
    return spec.replicas if spec is not None else None


def creates_in_order(kind: str, raw: object) -> bool:
    spec = decode_object(kind, raw, AppliedWorkload).spec
    return spec is None or spec.pod_management_policy != "Parallel"
