"""Nodes, pods, services and controllers as the generic scheduler reads them: wire types, and their conversion to
`model/generic.py` and `PodScheduling`. Then what is written for pending pods: Bindings, a claim's selected node, and two patches of a pod.

The API server's defaults for requests and ports are applied here as well (`pod_requests`), so that objects from files
mean the same.

The annotation that nudges a pod makes kube-scheduler retry it. The condition PodScheduled is written by `longhorn-extender schedule`
as kube-scheduler writes it (schedule_one.go: updatePod, podutil.UpdatePodCondition).
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from scheduler_core.convert import pod_constraints
from scheduler_core.convert.kube import CLAIM_VOLUME, POD, pod_volumes
from scheduler_core.convert.wire_types import Fields, Metadata, Wire, WireCondition, conditions, list_of, map_of
from scheduler_core.errors import ObjectError
from scheduler_core.model import generic, kube
from scheduler_core.model.constraints import (
    Cloud,
    CloudDisk,
    LabelSelector,
    PodConstraints,
    PodScheduling,
    SpreadConstraint,
    read_labels,
)
from scheduler_core.model.kube import SELECTED_NODE_ANNOTATION, Condition, Pod, condition, namespace_or_default
from scheduler_core.structs import Struct, replace

# pkg/scheduler/algorithm/priorities: getNonzeroRequests, defaultMilliCpuRequest and defaultMemoryRequest.
DEFAULT_CPU_REQUEST = 100
DEFAULT_MEMORY_REQUEST = 200 * 1024 * 1024


def _capacity(name: str) -> Callable[..., int]:
    def read(capacity: pod_constraints.WireAmounts | None) -> int:
        return pod_constraints.resource_amount(name, (capacity or {}).get(name), f"status.capacity[{name}]")

    return read


def _allocatable(
    capacity: pod_constraints.WireAmounts | None, allocatable: pod_constraints.WireAmounts | None
) -> dict[str, int]:
    """What pods may request of a node; by default its capacity, as the API server fills it in."""
    field = "status.capacity" if allocatable is None else "status.allocatable"
    amounts = capacity if allocatable is None else allocatable
    return {
        name: pod_constraints.resource_amount(name, value, f"{field}[{name}]")
        for name, value in (amounts or {}).items()
    }


NODE = Fields(
    "Node",
    generic.Node,
    cpu=_capacity(pod_constraints.CPU),
    memory=_capacity(pod_constraints.MEMORY),
    pods=_capacity("pods"),
    ready=(lambda entries: condition(conditions(entries), "Ready").status == "True", list_of(WireCondition)),
    allocatable=_allocatable,
)
SERVICE = Fields("Service", generic.Service)
NAMESPACE = Fields("Namespace", generic.Namespace)


class _GceDisk(Wire):
    pd_name: str = ""
    read_only: bool | None = None


class _EbsDisk(Wire):
    volume_id: str = msgspec.field(default="", name="volumeID")
    read_only: bool | None = None


_Volume: Any = msgspec.defstruct(
    "_Volume",
    [("gcePersistentDisk", _GceDisk | None, None), ("awsElasticBlockStore", _EbsDisk | None, None)],
    bases=(CLAIM_VOLUME.wire,),
    kw_only=True,
)


def _cloud_disks(volumes: list[Any] | None) -> tuple[CloudDisk, ...]:
    disks = []
    for volume in volumes or ():
        if volume.gcePersistentDisk is not None:
            disk = volume.gcePersistentDisk
            disks.append(CloudDisk(Cloud.GCE, disk.pd_name, bool(disk.read_only)))
        if volume.awsElasticBlockStore is not None:
            block = volume.awsElasticBlockStore
            disks.append(CloudDisk(Cloud.EBS, block.volume_id, bool(block.read_only)))
    return tuple(disks)


def _request_of(name: str, default: int) -> Callable[[pod_constraints.Containers], int]:
    def read(containers: pod_constraints.Containers) -> int:
        return sum(default if value is None else value for value in pod_constraints.container_amounts(containers, name))

    return read


def _spread(
    labels: dict[str, str] | None, constraints: list[pod_constraints.WireSpreadConstraint] | None
) -> tuple[SpreadConstraint, ...]:
    hard = [entry for entry in constraints or () if entry.when_unsatisfiable == pod_constraints.DO_NOT_SCHEDULE]
    return tuple(pod_constraints.spread_constraint(entry, read_labels(labels)) for entry in hard)


_CONSTRAINTS = Fields(
    "",
    PodConstraints,
    node_affinity=pod_constraints.node_selector_terms,
    pod_affinity=pod_constraints.pod_affinity_terms,
    pod_anti_affinity=pod_constraints.pod_affinity_terms,
    spread=_spread,
    requests=pod_constraints.pod_requests,
    host_ports=pod_constraints.host_ports,
    request_fields=pod_constraints.uncounted_request_fields,
    claim_fields=(lambda claims: tuple(f"spec.resourceClaims[{i}]" for i in range(len(claims or ()))), list_of(Wire)),
)


# Pods of one workload have equal constraints: they share one value.
@lru_cache(maxsize=4096)
def _share(constraints: PodConstraints) -> PodConstraints:
    return constraints


def _is_pod_ready(phase: str | None, entries: list[WireCondition] | None) -> bool:
    ready = condition(conditions(entries), "Ready")
    return ready.status == "True" or (not entries and phase == "Running")


_SCHEDULING = Fields(
    "",
    PodScheduling,
    cpu=_request_of(pod_constraints.CPU, 0),
    memory=_request_of(pod_constraints.MEMORY, 0),
    nonzero_cpu=_request_of(pod_constraints.CPU, DEFAULT_CPU_REQUEST),
    nonzero_memory=_request_of(pod_constraints.MEMORY, DEFAULT_MEMORY_REQUEST),
    ports=pod_constraints.classic_host_ports,
    disks=(_cloud_disks, list_of(_Volume)),
    constraints=(lambda wire: _share(_CONSTRAINTS.construct(wire)), _CONSTRAINTS),
    ready=_is_pod_ready,
)
SCHEDULED_POD = POD.extend(volumes=(pod_volumes, Metadata, list_of(_Volume)), scheduling=_SCHEDULING)


class _Template(Struct, frozen=True):
    pod: Annotated[kube.Pod | None, "spec.template"] = None


TEMPLATE = Fields("StatefulSet", _Template, needs_metadata=False, pod=SCHEDULED_POD)


def _controller(kind: str, selector: Any = pod_constraints.label_selector) -> Fields[generic.Controller]:
    return Fields(kind, generic.Controller, kind=(lambda _: kind, Metadata), selector=selector)


REPLICATION_CONTROLLER = _controller(
    "ReplicationController", (lambda labels: LabelSelector(read_labels(labels)), map_of(str))
)
REPLICA_SET = _controller("ReplicaSet")
STATEFUL_SET = _controller("StatefulSet")
# By kind and API group.
CONTROLLERS: Mapping[tuple[str, str], Fields[generic.Controller]] = {
    ("ReplicationController", ""): REPLICATION_CONTROLLER,
    ("ReplicaSet", "apps"): REPLICA_SET,
    ("StatefulSet", "apps"): STATEFUL_SET,
}


VOLUME_NODE_AFFINITY = Fields("PersistentVolume", generic.VolumeNodeAffinity, terms=pod_constraints.node_selector_terms)


# RFC 3339; the API server writes it in UTC and whole seconds, and such texts sort by time.
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def _has_gates(gates: list[Wire] | None) -> bool:
    return bool(gates)


def _creation_time(text: str | None) -> str:
    """When an object was created, in UTC and whole seconds; "" if it does not say.

    Raises:
        ObjectError: the text is no time, so that the pod has no place in the order of pods
    """
    if not text:
        return ""
    try:
        time = datetime.fromisoformat(text) if _TIME.fullmatch(text) else None
    except ValueError:
        time = None
    if time is None:
        raise ObjectError("", "metadata.creationTimestamp", f"{text!r:.60} is no time such as 2026-01-31T12:00:00Z")
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class PendingPod(Struct, frozen=True):
    """A pod as a scheduler reads it."""

    pod: Annotated[Pod, ""]
    # Once it has a node, these are the defaults.
    scheduler_name: Annotated[str, "spec.schedulerName"] = "default-scheduler"
    created: Annotated[str, "metadata.creationTimestamp", _creation_time] = ""  # in a form that sorts by time
    gated: Annotated[bool, "spec.schedulingGates", _has_gates] = False  # whether a scheduling gate holds it back

    @property
    def needs_node(self) -> bool:
        return self.pod.live and not self.pod.node_name and not self.gated

    @property
    def queue_key(self) -> tuple[int, str, generic.PodKey]:
        """Sorts pending pods by priority, then by age, then by name."""
        return -self.pod.priority, self.created, self.pod.namespaced_name


class _PlacedPod(Struct, frozen=True):
    namespace: Annotated[str, "metadata.namespace", namespace_or_default]
    name: Annotated[str, "metadata.name"]
    node: Annotated[str, "spec.nodeName"] = ""


_PENDING_POD = Fields("Pod", PendingPod, pod=SCHEDULED_POD)
_PLACED_POD = Fields("Pod", _PlacedPod)


def pending_pod(raw: bytes | msgspec.Raw) -> PendingPod:
    """Reads a pod as the API server sends it."""
    return _normalize(_PENDING_POD.decode(raw))


def read_pending_pod(raw: object) -> PendingPod:
    """Reads a pod from a decoded file."""
    return _normalize(_PENDING_POD.read(raw))


def _normalize(pending: PendingPod) -> PendingPod:
    pod = pending.pod
    if not pod.name:
        raise ObjectError("Pod", "metadata.name", "is missing")
    return PendingPod(pod_on_node(pod, pod.node_name)) if pod.node_name else pending


def pod_on_node(pod: Pod, node: str) -> Pod:
    """The pod on a node with what rules read of it there, so that its other changes, which are frequent, change nothing."""
    return Pod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        node_name=node,
        phase=pod.phase if pod.finished else "Running",
        deleting=pod.deleting,
        scheduling=_share_scheduling(pod.scheduling if pod.scheduling.ready else replace(pod.scheduling, ready=True)),
    )


@lru_cache(maxsize=10_000)
def _share_scheduling(scheduling: PodScheduling) -> PodScheduling:
    """One value for all pods of a template: there may be 100,000 pods."""
    return scheduling


def unbound_pod_key(raw: bytes | msgspec.Raw) -> generic.PodKey | None:
    """Namespace and name of a pod without node; None if it has one, or if name or node cannot be read."""
    try:
        pod = _PLACED_POD.decode(raw)
    except ObjectError:
        return None
    return (pod.namespace, pod.name) if pod.name and not pod.node else None


def selected_node_patch(node: str) -> dict[str, Any]:
    """The merge patch of a claim that selects the node to provision it for."""
    return {"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: node}}}


def binding(pod: Pod, node: str) -> dict[str, Any]:
    """The body that binds a pod to a node."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        # With the UID, a different pod of the same name is never bound in its place.
        "metadata": {"name": pod.name, "namespace": pod.namespace, **({"uid": pod.uid} if pod.uid else {})},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


# The extender writes nothing else to a pod; manifests/access/admissionpolicy.yaml allows no other change.
NUDGE_ANNOTATION = "longhorn.io/scheduler-extender-nudged"
POD_REASON_UNSCHEDULABLE = "Unschedulable"
POD_REASON_SCHEDULER_ERROR = "SchedulerError"


class _Pod(Struct, frozen=True):
    uid: Annotated[str, "metadata.uid"] = ""
    version: Annotated[str | None, "metadata.resourceVersion"] = None
    generation: Annotated[int, "metadata.generation"] = 0
    node: Annotated[str, "spec.nodeName"] = ""
    conditions: Annotated[tuple[Condition, ...], "status.conditions"] = ()


_POD = Fields("Pod", _Pod)


def nudge_patch(uid: str, at: str) -> dict[str, Any]:
    """The merge patch that notes a pod's nudge. With the UID it is refused for a different pod of the same name."""
    return {"metadata": {"uid": uid, "annotations": {NUDGE_ANNOTATION: at}}}


def not_scheduled_patch(raw: bytes, uid: str, reason: str, message: str, now: str) -> dict[str, Any] | None:
    """The strategic merge patch that sets PodScheduled to False, None if the pod has this very condition already, has a
    node, or is a different pod of the same name. `now` becomes the last transition, unless the condition was False
    already.
    """
    pod = _POD.decode(raw)
    if pod.uid != uid or pod.node:
        return None
    current = condition(pod.conditions, "PodScheduled")
    if (current.status, current.reason, current.message) == ("False", reason, message):
        return None
    since = current.last_transition_time if current.status == "False" else ""
    desired: dict[str, Any] = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    desired["lastTransitionTime"] = since or now
    if pod.generation:  # from Kubernetes 1.33 on
        desired["observedGeneration"] = pod.generation
    # With the version that was read, the patch is refused with a conflict if the pod is bound in the meantime.
    return {"metadata": {"resourceVersion": pod.version}, "status": {"conditions": [desired]}}
