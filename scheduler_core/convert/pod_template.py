"""Objects of a file, as `kubectl apply` would store them, and the pod that a workload's template describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from scheduler_core.convert.generic import SCHEDULED_POD
from scheduler_core.convert.kube import Workload, workload_pod
from scheduler_core.convert.meta import Wire, decode_object
from scheduler_core.model.kube import Pod


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


# What the DaemonSet controller adds to its pods (util.AddOrUpdateDaemonPodTolerations).
_DAEMON_TAINTS: Final = (
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
)
_DAEMON_TOLERATIONS: Final = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": effect} for taint, effect in _DAEMON_TAINTS
]


def read_pod(kind: str, raw: Any) -> Pod:
    """Returns a pod with what kube-scheduler's filters read of it, or a workload's first pod.

    Raises:
        ObjectError: it cannot be read
    """
    if kind == "Pod":
        return SCHEDULED_POD.read(raw)
    pod = workload_pod(kind, decode_object(kind, raw, Workload))
    return replace(pod, scheduling=SCHEDULED_POD.read(template_pod(kind, raw)).scheduling)


def template_pod(kind: str, workload: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the first pod of a workload, undecoded, with the fields of the template and the name that `workload_pod`
    gives it.
    """
    spec = _mapping(workload.get("spec"))
    if "jobTemplate" in spec:
        spec = _mapping(_mapping(spec["jobTemplate"]).get("spec"))
    template = _mapping(spec.get("template"))
    metadata = _mapping(workload.get("metadata"))
    pod_spec = dict(_mapping(template.get("spec")))
    if kind == "DaemonSet":
        pod_spec["tolerations"] = [*(pod_spec.get("tolerations") or ()), *_DAEMON_TOLERATIONS]
    own = {"name": f"{metadata.get('name', '')}-0", "namespace": metadata.get("namespace") or "default"}
    return {"metadata": {**_mapping(template.get("metadata")), **own}, "spec": pod_spec}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
