"""Pending pods, and what a scheduler writes for them: Bindings, and a claim's selected node."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec

from scheduler_core.convert import generic as generic_convert
from scheduler_core.convert.fields import Fields
from scheduler_core.convert.kube import POD
from scheduler_core.convert.meta import Metadata, Subject, Wire, decode_json, decode_object
from scheduler_core.errors import ObjectError
from scheduler_core.model import kube
from scheduler_core.model.generic import Pod, PodKey
from scheduler_core.model.kube import SELECTED_NODE_ANNOTATION, namespace_or_default

# RFC 3339; the API server writes it in UTC and whole seconds, and such texts sort by time.
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)
_EXAMPLE: Final = "2026-01-31T12:00:00Z"
_DEFAULT_SCHEDULER: Final = "default-scheduler"


@dataclass(frozen=True, slots=True)
class PendingPod:
    """A pod as a scheduler reads it."""

    pod: Pod  # what the classic rules read
    kube_pod: kube.Pod | None = None  # what Longhorn's rules read; None once the pod has a node
    scheduler_name: str = ""  # `spec.schedulerName`
    priority: int = 0  # higher goes first
    created: str = ""  # when, in the API's form, which sorts by time
    # Whether it has no node, is neither finished nor being deleted, and is held back by no scheduling gate.
    needs_node: bool = False

    @property
    def queue_key(self) -> tuple[int, str, PodKey]:
        """Sorts pending pods by priority, then by age, then by name."""
        return -self.priority, self.created, self.pod.key


class _SchedulingGate(Wire):
    name: str = ""


def _is_held_back(deleted: str | None, gates: list[_SchedulingGate] | None) -> bool:
    return deleted is not None or bool(gates)


@dataclass(frozen=True, slots=True)
class _QueuedPod:
    scheduler_name: Annotated[str, "spec.schedulerName"] = _DEFAULT_SCHEDULER
    priority: Annotated[int, "spec.priority"] = 0
    held_back: Annotated[bool, "metadata.deletionTimestamp", "spec.schedulingGates", _is_held_back] = False


@dataclass(frozen=True, slots=True)
class _PlacedPod:
    namespace: Annotated[str, "metadata.namespace", namespace_or_default]
    name: Annotated[str, "metadata.name"]
    node: Annotated[str, "spec.nodeName"] = ""


_QUEUED_POD: Final = Fields("Pod", _QueuedPod)
_PLACED_POD: Final = Fields("Pod", _PlacedPod)


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
    wire = read(generic_convert.POD.wire)
    pod = generic_convert.POD.construct(wire)
    if not pod.name:
        raise ObjectError("Pod", "metadata.name", "is missing")
    created = _creation_time(wire.metadata)
    if pod.node_name:
        return pod.key, PendingPod(pod)
    queued = _QUEUED_POD.construct(read(_QUEUED_POD.wire))
    pending = PendingPod(
        pod=pod,
        kube_pod=POD.construct(read(POD.wire)),
        scheduler_name=queued.scheduler_name,
        priority=queued.priority,
        created=created,
        needs_node=not queued.held_back and not pod.finished,
    )
    return pod.key, pending


def _creation_time(metadata: Metadata) -> str:
    """When an object was created, in UTC and whole seconds; "" if it does not say.

    Raises:
        ObjectError: the text is no time, so that the pod has no place in the order of pods
    """
    text = metadata.creation_timestamp or ""
    if not text:
        return ""
    try:
        time = datetime.fromisoformat(text) if _TIME.fullmatch(text) else None
    except ValueError:
        time = None
    if time is None:
        subject = Subject("Pod", metadata).text
        raise ObjectError(subject, "metadata.creationTimestamp", f"{text!r:.60} is no time such as {_EXAMPLE}")
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unbound_pod_key(raw: bytes | msgspec.Raw) -> PodKey | None:
    """The namespace and name of a pod without node; None if it has one, or if name or node cannot be read. The rest of
    the pod need not be readable.
    """
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
