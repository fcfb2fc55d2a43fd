"""Objects of a file, as `kubectl apply` would store them, the pod that a workload's template describes, and the kubectl
commands that carry out a remedy, in the order of their execution.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from scheduler_core.convert.generic import SCHEDULED_POD
from scheduler_core.convert.kube import Workload, workload_pod
from scheduler_core.convert.meta import Wire, decode_object
from scheduler_core.model.kube import Pod
from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED, Volume
from scheduler_core.values import replace


class _Spec(Wire):
    replicas: int | None = None
    pod_management_policy: str | None = None


class AppliedWorkload(Wire):
    """What a workload asks for besides the template of its pods."""

    spec: _Spec | None = None


def with_namespace(raw: Any, namespace: str) -> Any:
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("namespace"):
        return raw
    return {**raw, "metadata": {**metadata, "namespace": namespace}}


def workload_replicas(kind: str, raw: object) -> int | None:
    """Returns how many pods a workload requests, None if it names none."""
    return (decode_object(kind, raw, AppliedWorkload).spec or _Spec()).replicas


def creates_in_order(kind: str, raw: object) -> bool:
    return (decode_object(kind, raw, AppliedWorkload).spec or _Spec()).pod_management_policy != "Parallel"


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
    """Returns a pod with what kube-scheduler's filters read of it, or a workload's first pod."""
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


Command = tuple[str, ...]
"""The words of a command line."""

_VOLUMES: Final = "volumes.longhorn.io"


def replica_move_commands(volume: Volume, replica: str, namespace: str, *, auto_balanced: bool) -> tuple[Command, ...]:
    """Returns the commands that move a replica of a volume: they make one more replica, and then delete the old one.

    Args:
        volume: the volume as it is now; its fields are set back to these values
        replica: the name of the replica to delete
        namespace: Longhorn's
        auto_balanced: whether replica-auto-balance is in force for the volume
    """
    meanwhile: dict[str, Any] = {}
    afterwards: dict[str, Any] = {}
    if volume.data_locality == BEST_EFFORT:
        meanwhile["dataLocality"] = DISABLED
        afterwards["dataLocality"] = volume.data_locality
    if auto_balanced:
        meanwhile["replicaAutoBalance"] = DISABLED
        afterwards["replicaAutoBalance"] = volume.replica_auto_balance or "ignored"
    kubectl = ("kubectl", "-n", namespace)
    number = volume.number_of_replicas
    wait = (*kubectl, "wait", f"{_VOLUMES}/{volume.name}")
    robustness = "--for=jsonpath={.status.robustness}="
    # Each must succeed before the next one: the replica is deleted only when the volume has one more healthy replica
    # than it needs. A rebuild begins within seconds; how long it takes depends on the data.
    return (
        _patch(namespace, _VOLUMES, volume.name, {"spec": {"numberOfReplicas": number + 1, **meanwhile}}),
        (*wait, f"{robustness}degraded", "--timeout=2m"),
        (*wait, f"{robustness}healthy", "--timeout=24h"),
        _patch(namespace, _VOLUMES, volume.name, {"spec": {"numberOfReplicas": number}}),
        (*kubectl, "delete", "replicas.longhorn.io", replica),
        *([_patch(namespace, _VOLUMES, volume.name, {"spec": afterwards})] if afterwards else ()),
    )


def _patch(namespace: str, kind: str, name: str, body: dict[str, Any]) -> Command:
    text = json.dumps(body, separators=(",", ":"))
    return ("kubectl", "-n", namespace, "patch", kind, name, "--type=merge", "-p", text)


def patch_setting(name: str, namespace: str, value: str) -> Command:
    return _patch(namespace, "settings.longhorn.io", name, {"value": value})


def patch_node(name: str, namespace: str, spec: dict[str, Any]) -> Command:
    return _patch(namespace, "nodes.longhorn.io", name, {"spec": spec})
