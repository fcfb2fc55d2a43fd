"""The pod that a workload's template describes, as a Kubernetes object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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


def template_pod(kind: str, workload: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the first pod of a workload, undecoded, with the fields of the template and the name that `workload_pod`
    gives it. A Pod is returned as it is.
    """
    if kind == "Pod":
        return dict(workload)
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
