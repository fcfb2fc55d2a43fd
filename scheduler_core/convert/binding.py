"""Pods that wait for a node, and what a scheduler writes about them: Bindings, Events, and the node a claim is to be provisioned for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from scheduler_core.convert import kube as claims
from scheduler_core.convert.generic import GenericPod, generic_pod
from scheduler_core.convert.kube import SELECTED_NODE_ANNOTATION
from scheduler_core.convert.meta import Metadata, Wire, shape, shape_json
from scheduler_core.errors import ObjectError
from scheduler_core.model import kube
from scheduler_core.model.generic import Pod, PodKey

# The API server refuses longer notes of events.k8s.io; kube-scheduler cuts there, too.
LONGEST_MESSAGE: Final = 1024
WAITS_FOR_CONSUMER: Final = "WaitForFirstConsumer"
_DEFAULT_SCHEDULER: Final = "default-scheduler"


@dataclass(frozen=True, slots=True)
class Applicant:
    """A pod as whoever binds pods reads it.

    Attributes:
        pod: what the classic rules read
        mounts: what Longhorn's rules read; None once the pod has a node
        scheduler: who shall schedule it
        priority: higher goes first
        created: when, in the API's form, which sorts by time
        waits: whether it wants a node: it has none, is neither finished nor being deleted, and no scheduling gate holds it back
    """

    pod: Pod
    mounts: kube.Pod | None = None
    scheduler: str = ""
    priority: int = 0
    created: str = ""
    waits: bool = False

    @property
    def turn(self) -> tuple[int, str, PodKey]:
        """Its place among those that wait: by priority, then by age, then by name."""
        return -self.priority, self.created, self.pod.key


class _Gate(Wire):
    name: str = ""


class _Spec(Wire):
    scheduler_name: str | None = None
    priority: int | None = None
    scheduling_gates: list[_Gate] | None = None


class _WaitingPod(Wire):
    metadata: Metadata
    spec: _Spec | None = None


def applicant(raw: bytes | msgspec.Raw) -> tuple[PodKey, Applicant]:
    """A pod as the API server sends it.

    Raises:
        ObjectError: a field is missing or wrong
    """
    return _applicant(lambda wire: shape_json("Pod", raw, wire))


def read_applicant(raw: object) -> tuple[PodKey, Applicant]:
    """A pod as a file has it.

    Raises:
        ObjectError: a field is missing or wrong
    """
    return _applicant(lambda wire: shape("Pod", raw, wire))


def _applicant(read: Callable[[type[Any]], Any]) -> tuple[PodKey, Applicant]:
    pod = generic_pod(read(GenericPod))
    if not pod.name:
        raise ObjectError("Pod", "metadata.name", "is missing")
    if pod.node_name:
        return pod.key, Applicant(pod)
    wire: _WaitingPod = read(_WaitingPod)
    spec = wire.spec or _Spec()
    free = wire.metadata.deletion_timestamp is None and not spec.scheduling_gates
    found = Applicant(
        pod=pod,
        mounts=claims.pod(read(claims.Pod)),
        scheduler=spec.scheduler_name or _DEFAULT_SCHEDULER,
        priority=spec.priority or 0,
        created=wire.metadata.creation_timestamp or "",
        waits=free and not pod.finished,
    )
    return pod.key, found


class _Place(Wire):
    node_name: str | None = None


class _PlacedPod(Wire):
    metadata: Metadata
    spec: _Place | None = None


def homeless(raw: bytes | msgspec.Raw) -> PodKey | None:
    """Who a pod is that has no node, whatever else of it cannot be read; None if it has one, or that cannot be told."""
    try:
        pod = shape_json("Pod", raw, _PlacedPod)
    except ObjectError:
        return None
    if not pod.metadata.name or (pod.spec and pod.spec.node_name):
        return None
    return pod.metadata.namespace or "default", pod.metadata.name


def mounting(raw: bytes | msgspec.Raw) -> kube.Pod:
    """A pod with the claims it mounts, whether it has a node or not.

    Raises:
        ObjectError: a field is missing or wrong
    """
    return claims.pod(shape_json("Pod", raw, claims.Pod))


class _BindingModeClass(Wire):
    volume_binding_mode: str | None = None


def waits_for_consumer(raw: bytes) -> bool:
    """Whether a StorageClass has its claims provisioned once a node is known.

    Raises:
        ObjectError: it is no StorageClass
    """
    return shape_json("StorageClass", raw, _BindingModeClass).volume_binding_mode == WAITS_FOR_CONSUMER


def selected_node_patch(node: str) -> dict[str, Any]:
    """Tells who provisions a claim for which node."""
    return {"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: node}}}


def binding(pod: Pod, node: str) -> dict[str, Any]:
    """The body that binds a pod; with its UID, so that another pod of its name is never bound in its place."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod.name, "namespace": pod.namespace, **({"uid": pod.uid} if pod.uid else {})},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


@dataclass(frozen=True, slots=True)
class Happening:
    """What an Event tells: that something has happened to a pod, `count` times.

    Attributes:
        name: of the Event object
        component: who says so
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


def new_event(happening: Happening) -> dict[str, Any]:
    """The body that creates an Event."""
    pod = happening.pod
    about = {"kind": "Pod", "apiVersion": "v1", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": happening.name, "namespace": pod.namespace},
        "involvedObject": about,
        "reason": happening.reason,
        "type": "Normal" if happening.normal else "Warning",
        "source": {"component": happening.component},
        "reportingComponent": happening.component,
        "firstTimestamp": happening.first,
        **event_patch(happening),
    }


def short(message: str) -> str:
    """What an Event takes of a text, so that everything else that says it can say the same."""
    return message if len(message) <= LONGEST_MESSAGE else f"{message[: LONGEST_MESSAGE - 4]} ..."


def event_patch(happening: Happening) -> dict[str, Any]:
    """What changes when it happens again."""
    return {"message": short(happening.message), "count": happening.count, "lastTimestamp": happening.last}
