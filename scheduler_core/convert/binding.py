"""Pending pods, and the objects that a scheduler writes for them.

These are Bindings, Events, and a claim's selected node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from scheduler_core.convert import kube as kube_convert
from scheduler_core.convert.generic import GenericPod, generic_pod
from scheduler_core.convert.kube import SELECTED_NODE_ANNOTATION
from scheduler_core.convert.meta import Metadata, Wire, decode_json, decode_object
from scheduler_core.errors import ObjectError
from scheduler_core.model import kube
from scheduler_core.model.generic import Pod, PodKey

# The API server refuses longer notes of events.k8s.io; kube-scheduler cuts there, too.
MAX_MESSAGE: Final = 1024
WAIT_FOR_FIRST_CONSUMER: Final = "WaitForFirstConsumer"
_DEFAULT_SCHEDULER: Final = "default-scheduler"


@dataclass(frozen=True, slots=True)
class PendingPod:
    """A pod as a scheduler reads it.

    Attributes:
        pod: what the classic rules read
        kube_pod: what Longhorn's rules read; None once the pod has a node
        scheduler_name: `spec.schedulerName`
        priority: higher goes first
        created: when, in the API's form, which sorts by time
        needs_node: whether it has no node, is neither finished nor being deleted, and is held back by no scheduling gate
    """

    pod: Pod
    kube_pod: kube.Pod | None = None
    scheduler_name: str = ""
    priority: int = 0
    created: str = ""
    needs_node: bool = False

    @property
    def queue_key(self) -> tuple[int, str, PodKey]:
        """Sorts pending pods by priority, then by age, then by name."""
        return -self.priority, self.created, self.pod.key


class _SchedulingGate(Wire):
    name: str = ""


class _Spec(Wire):
    scheduler_name: str | None = None
    priority: int | None = None
    scheduling_gates: list[_SchedulingGate] | None = None


class _PendingPod(Wire):
    metadata: Metadata
    spec: _Spec | None = None


def pending_pod(raw: bytes | msgspec.Raw) -> tuple[PodKey, PendingPod]:
    """Reads a pod as the API server sends it.

    Raises:
        ObjectError: a field is missing or wrong
    """
    return _build_pending_pod(lambda wire: decode_json("Pod", raw, wire))


def read_pending_pod(raw: object) -> tuple[PodKey, PendingPod]:
    """Reads a pod from a decoded file.

    Raises:
        ObjectError: a field is missing or wrong
    """
    return _build_pending_pod(lambda wire: decode_object("Pod", raw, wire))


def _build_pending_pod(read: Callable[[type[Any]], Any]) -> tuple[PodKey, PendingPod]:
    pod = generic_pod(read(GenericPod))
    if not pod.name:
        raise ObjectError("Pod", "metadata.name", "is missing")
    if pod.node_name:
        return pod.key, PendingPod(pod)
    wire: _PendingPod = read(_PendingPod)
    spec = wire.spec or _Spec()
    schedulable = wire.metadata.deletion_timestamp is None and not spec.scheduling_gates
    pending = PendingPod(
        pod=pod,
        kube_pod=kube_convert.pod(read(kube_convert.Pod)),
        scheduler_name=spec.scheduler_name or _DEFAULT_SCHEDULER,
        priority=spec.priority or 0,
        created=wire.metadata.creation_timestamp or "",
        needs_node=schedulable and not pod.finished,
    )
    return pod.key, pending


class _NodeNameSpec(Wire):
    node_name: str | None = None


class _PodWithNodeName(Wire):
    metadata: Metadata
    spec: _NodeNameSpec | None = None


def unbound_pod_key(raw: bytes | msgspec.Raw) -> PodKey | None:
    """The namespace and name of a pod without node.

    The rest of the pod need not be readable. None if the pod has a node, or if name or node cannot be read.
    """
    try:
        pod = decode_json("Pod", raw, _PodWithNodeName)
    except ObjectError:
        return None
    if not pod.metadata.name or (pod.spec and pod.spec.node_name):
        return None
    return pod.metadata.namespace or "default", pod.metadata.name


def kube_pod(raw: bytes | msgspec.Raw) -> kube.Pod:
    """Reads a pod with its claims, whether it has a node or not.

    Raises:
        ObjectError: a field is missing or wrong
    """
    return kube_convert.pod(decode_json("Pod", raw, kube_convert.Pod))


class _BindingModeClass(Wire):
    volume_binding_mode: str | None = None


def waits_for_consumer(raw: bytes) -> bool:
    """Whether a StorageClass delays provisioning until a node is selected.

    Raises:
        ObjectError: it is no StorageClass
    """
    return decode_json("StorageClass", raw, _BindingModeClass).volume_binding_mode == WAIT_FOR_FIRST_CONSUMER


def selected_node_patch(node: str) -> dict[str, Any]:
    """The merge patch of a claim that selects the node to provision it for."""
    return {"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: node}}}


def binding(pod: Pod, node: str) -> dict[str, Any]:
    """The body that binds a pod to a node.

    It carries the pod's UID, so that a different pod of the same name is never bound in its place.
    """
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod.name, "namespace": pod.namespace, **({"uid": pod.uid} if pod.uid else {})},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


@dataclass(frozen=True, slots=True)
class PodEvent:
    """The content of an Event: something has happened to a pod, `count` times.

    Attributes:
        name: of the Event object
        component: the component that reports it
        first, last: when it happened first and last, in the API's form
    """

    name: str
    pod: Pod
    reason: str
    message: str
    normal: bool
    component: str
    first: str
    last: str
    count: int = 1


def new_event(event: PodEvent) -> dict[str, Any]:
    """The body that creates an Event."""
    pod = event.pod
    involved_object = {"kind": "Pod", "apiVersion": "v1", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event.name, "namespace": pod.namespace},
        "involvedObject": involved_object,
        "reason": event.reason,
        "type": "Normal" if event.normal else "Warning",
        "source": {"component": event.component},
        "reportingComponent": event.component,
        "firstTimestamp": event.first,
        **event_patch(event),
    }


def truncate_message(message: str) -> str:
    """The text as an Event can hold it.

    Other reports of the same message are truncated in the same way, so that all of them are equal.
    """
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 4]} ..."


def event_patch(event: PodEvent) -> dict[str, Any]:
    """The patch of an Event that happened again."""
    return {"message": truncate_message(event.message), "count": event.count, "lastTimestamp": event.last}
