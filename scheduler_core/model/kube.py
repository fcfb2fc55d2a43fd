"""Kubernetes objects, cut down to the fields a decision reads. Names follow Kubernetes; sizes are in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Condition:
    """One status condition. `status` is ``True``, ``False`` or ``Unknown``; times are RFC 3339 texts, "" if absent."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


def condition(conditions: tuple[Condition, ...], kind: str) -> Condition:
    """The first condition of a type, or an Unknown one (Longhorn's `types.GetCondition`)."""
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
class ClaimSpec:
    """What a PersistentVolumeClaim asks for, or a template of one.

    `storage_class` None means the cluster's default class, "" means none; `request` is in bytes, None if absent.
    `source_claim` is the claim it is cloned from; `source_volume` that claim's Longhorn volume, once resolved.
    """

    storage_class: str | None = None
    request: int | None = None
    access_modes: tuple[str, ...] = ()
    volume_name: str = ""
    source_claim: str = ""
    source_volume: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim. `owners` are (kind, name, uid) of its owner references, `created` is RFC 3339."""

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
class PodVolume:
    """A volume of a pod that is backed by a claim.

    `template` is set when the claim may not exist yet; `ephemeral` when the claim must then be owned by the pod
    (a generic ephemeral volume) rather than by a StatefulSet.
    """

    name: str
    claim: str
    template: ClaimSpec | None = None
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod: who it is, where it runs, and which claims it mounts.

    `unschedulable` is "" unless the condition PodScheduled is False; then its last transition, reason and message.
    `version` grows with every change: the resourceVersion, which Kubernetes documents as comparable since 1.35 and etcd always
    numbered upwards; 0 if it is absent or no decimal number.
    """

    namespace: str
    name: str
    uid: str = ""
    node_name: str = ""
    nominated_node: str = ""
    unschedulable: str = ""
    phase: str = "Pending"
    deleting: bool = False
    volumes: tuple[PodVolume, ...] = ()
    version: int = 0
    created: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``, as kubectl prints it."""
        return f"{self.namespace}/{self.name}"

    @property
    def live(self) -> bool:
        """Whether the pod still uses its volumes and is meant to go on: not finished and not being deleted."""
        return not self.deleting and self.phase not in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class PersistentVolume:
    """A PersistentVolume; `driver` and `handle` are those of its CSI source, "" for other sources.

    `claim` is the (namespace, name, uid) it is bound to or reserved for; reserved by hand it has no uid.
    """

    name: str
    driver: str = ""
    handle: str = ""
    claim: tuple[str, str, str] | None = None
    created: str = ""


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A StorageClass; `created` breaks ties between several default classes (the newest wins)."""

    name: str
    provisioner: str
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    is_default: bool = False
    created: str = ""


@dataclass(frozen=True, slots=True)
class VolumeAttachment:
    """A VolumeAttachment of a PersistentVolume to a node."""

    name: str
    attacher: str
    node: str
    persistent_volume: str = ""
    deleting: bool = False
