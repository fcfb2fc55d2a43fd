"""Kubernetes objects with only the fields that a decision reads. Names follow Kubernetes; sizes are in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

FILESYSTEM: Final = "Filesystem"


def is_set(value: str | None) -> bool:
    return value is not None


@dataclass(frozen=True, slots=True)
class Condition:
    """One status condition. `status` is ``True``, ``False`` or ``Unknown``; times are RFC 3339 texts, "" if absent."""

    type: Annotated[str, "type"]
    status: Annotated[str, "status"]
    reason: Annotated[str, "reason"] = ""
    message: Annotated[str, "message"] = ""
    last_transition_time: Annotated[str, "lastTransitionTime"] = ""


def condition(conditions: tuple[Condition, ...], kind: str) -> Condition:
    """Returns the first condition of a type (Longhorn's `types.GetCondition`); without one, a condition with status
    Unknown.
    """
    for entry in conditions:
        if entry.type == kind:
            return entry
    return Condition(kind, "Unknown")


@dataclass(frozen=True, slots=True)
class Node:
    """A Kubernetes node; `unschedulable` is what `kubectl cordon` sets."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    unschedulable: bool = False
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """One requirement of a label selector or of a node selector."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """Spec of a PersistentVolumeClaim, or of its template.

    Attributes:
        storage_class: None for the cluster's default class, "" for none
        request: in bytes, None if absent
        source_claim: the claim it is cloned from
        source_snapshot: the VolumeSnapshot it is restored from
        selector: requirements on the labels of an existing PersistentVolume; all must be met
        attributes_class: the name of its VolumeAttributesClass, "" for none
    """

    storage_class: str | None = None
    request: int | None = None
    access_modes: tuple[str, ...] = ()
    volume_name: str = ""
    source_claim: str = ""
    source_snapshot: str = ""
    selector: tuple[LabelRequirement, ...] = ()
    volume_mode: str = FILESYSTEM
    attributes_class: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim. `owners` are (kind, name, uid) of its owner references; `created` is an RFC 3339 text."""

    namespace: str
    name: str
    spec: ClaimSpec
    uid: str = ""
    owners: tuple[tuple[str, str, str], ...] = ()
    selected_node: str = ""
    created: str = ""
    deleting: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class VolumeSnapshotContent:
    """A VolumeSnapshotContent; `handle` is what the CSI driver calls the snapshot."""

    name: str
    driver: str = ""
    handle: str = ""


@dataclass(frozen=True, slots=True)
class ClaimVolume:
    """A pod's volume that is backed by a claim.

    Attributes:
        template: set if the claim may not exist yet
        ephemeral: whether that claim must then be owned by the pod (a generic ephemeral volume) and not by a StatefulSet
        problem: why nothing can be decided from the template, or ""
    """

    name: str
    claim: str
    template: ClaimSpec | None = None
    ephemeral: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod: its identity, its node, and the claims it mounts.

    Attributes:
        unschedulable: "" unless the condition PodScheduled is False; then its last transition, reason and message
        version: the resourceVersion, which grows with every change: Kubernetes documents it as comparable since 1.35, and etcd
            always numbered upwards; 0 if it is absent or no decimal number
        priority: spec.priority, which admission takes from the PriorityClass
        owner: the kind of its controller, "" without one
    """

    namespace: str
    name: str
    uid: str = ""
    node_name: str = ""
    nominated_node: str = ""
    unschedulable: str = ""
    phase: str = "Pending"
    deleting: bool = False
    volumes: tuple[ClaimVolume, ...] = ()
    version: int = 0
    created: str = ""
    priority: int = 0
    owner: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def live(self) -> bool:
        """Whether the pod is neither finished nor being deleted, so that it still uses its volumes."""
        return not self.deleting and self.phase not in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class AvailableVolume:
    """What decides which claims a free PersistentVolume may be bound to.

    Attributes:
        storage_class: the name of its class, "" for none
        capacity: in bytes
        node_affinity: terms of requirements on a node's labels, of which one must be met; None if every node will do
        attributes_class: the name of its VolumeAttributesClass, "" for none
    """

    storage_class: str
    capacity: int
    access_modes: tuple[str, ...] = ()
    volume_mode: str = FILESYSTEM
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    node_affinity: tuple[tuple[LabelRequirement, ...], ...] | None = None
    attributes_class: str = ""


@dataclass(frozen=True, slots=True)
class PersistentVolume:
    """A PersistentVolume.

    Attributes:
        driver, handle: those of its CSI source, "" for other sources
        claim: (namespace, name, uid) of the claim it is bound to or reserved for; no uid if it is reserved by hand
        capacity: in bytes, 0 if absent
        available: set if its phase is Available, it is reserved for no claim and is not being deleted
    """

    name: str
    driver: str = ""
    handle: str = ""
    claim: tuple[str, str, str] | None = None
    created: str = ""
    capacity: int = 0
    available: AvailableVolume | None = None


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A StorageClass; of several default classes the newest (`created`) wins.

    Attributes:
        waits_for_consumer: whether its claims are bound when a pod is scheduled, and not at once
        allows_expansion: whether the API server lets its claims grow
    """

    name: str
    provisioner: str
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    is_default: bool = False
    created: str = ""
    waits_for_consumer: bool = False
    allows_expansion: bool = False


@dataclass(frozen=True, slots=True)
class VolumeAttachment:
    """A VolumeAttachment of a PersistentVolume to a node."""

    name: str
    attacher: str
    node: str
    persistent_volume: str = ""
    deleting: bool = False


def is_same_pod(current: Pod | None, requested: Pod) -> bool:
    """Whether the object of a requested pod's name is this very pod; for a request written by hand without a UID, the
    name suffices.
    """
    return current is not None and requested.uid in ("", current.uid)
