"""Objects of a file, as `kubectl apply` would store them, the pod that a workload's template describes, and the kubectl
commands that carry out a remedy, in the order of their execution.
"""

import json
from collections.abc import Mapping
from functools import reduce
from typing import Annotated, Any

from scheduler_core import errors
from scheduler_core.convert import generic, kube, snapshot_kinds, wire_types
from scheduler_core.convert.wire_types import Fields
from scheduler_core.model.kube import Claim, ClaimVolume, Pod
from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED, Volume
from scheduler_core.structs import Struct


def _is_ordered(policy: str | None) -> bool:
    return policy != "Parallel"


class WorkloadSpec(Struct, frozen=True):
    """What a workload asks for besides the template of its pods."""

    name: Annotated[str, "metadata.name"]
    replicas: Annotated[int | None, "spec.replicas"] = None  # None if it names none
    creates_in_order: Annotated[bool, "spec.podManagementPolicy", _is_ordered] = True
    claims: Annotated[tuple[Claim, ...], "spec.volumeClaimTemplates"] = ()


WORKLOAD_FIELDS = {kind: Fields(kind, WorkloadSpec, claims=kube.CLAIM) for kind in snapshot_kinds.WORKLOADS - {"Pod"}}


def with_namespace(raw: Any, namespace: str) -> Any:
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("namespace"):
        return raw
    return {**raw, "metadata": {**metadata, "namespace": namespace}}


# What the DaemonSet controller adds to its pods (util.AddOrUpdateDaemonPodTolerations).
_DAEMON_TAINTS = (
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
)
_DAEMON_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": effect} for taint, effect in _DAEMON_TAINTS
]


def workload_spec(kind: str, raw: object) -> WorkloadSpec:
    return WORKLOAD_FIELDS[kind].read(raw)


def read_pod(kind: str, raw: Any) -> Pod:
    """Returns a pod with what kube-scheduler's filters read of it, or the pod that a workload would create first on an
    empty cluster; for a StatefulSet pod 0, with its own claims.
    """
    if kind == "Pod":
        return generic.SCHEDULED_POD.read(raw)
    workload = workload_spec(kind, raw)
    own_claims = {claim.name: claim.spec for claim in workload.claims}
    path = "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"
    template = reduce(lambda part, key: _mapping(part.get(key)), path.split("."), raw)
    spec = template.get("spec")
    if not isinstance(spec, Mapping):
        raise errors.ObjectError(
            wire_types.object_name(kind, raw), path, "is missing, so there is no pod to decide about"
        )
    if kind == "DaemonSet":
        spec = {**spec, "tolerations": [*(spec.get("tolerations") or ()), *_DAEMON_TOLERATIONS]}
    own = {"name": f"{workload.name}-0", "namespace": raw["metadata"].get("namespace")}
    try:
        pod = generic.SCHEDULED_POD.read({"metadata": {**_mapping(template.get("metadata")), **own}, "spec": spec})
    except errors.ObjectError as error:
        raise type(error)(wire_types.object_name(kind, raw), f"{path}.{error.field}", error.problem) from error
    mounted = (volume for volume in pod.volumes if volume.name not in own_claims)
    created = (ClaimVolume(volume, f"{volume}-{pod.name}", claim) for volume, claim in own_claims.items())
    return Pod(pod.namespace, pod.name, volumes=(*mounted, *created), scheduling=pod.scheduling)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


Command = tuple[str, ...]
"""The words of a command line."""

_VOLUMES = "volumes.longhorn.io"


def replica_move_commands(volume: Volume, replica: str, namespace: str, *, auto_balanced: bool) -> tuple[Command, ...]:
    """Returns the commands that move a replica of a volume: they make one more replica, and then delete the old one.
    The volume's fields are set back to what they are now. `auto_balanced`: whether replica-auto-balance is in force for it.
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
        patch(namespace, _VOLUMES, volume.name, {"spec": {"numberOfReplicas": number + 1, **meanwhile}}),
        (*wait, f"{robustness}degraded", "--timeout=2m"),
        (*wait, f"{robustness}healthy", "--timeout=24h"),
        patch(namespace, _VOLUMES, volume.name, {"spec": {"numberOfReplicas": number}}),
        (*kubectl, "delete", "replicas.longhorn.io", replica),
        *([patch(namespace, _VOLUMES, volume.name, {"spec": afterwards})] if afterwards else ()),
    )


def patch(namespace: str, kind: str, name: str, body: dict[str, Any]) -> Command:
    text = json.dumps(body, separators=(",", ":"))
    return ("kubectl", "-n", namespace, "patch", kind, name, "--type=merge", "-p", text)
