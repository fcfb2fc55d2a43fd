"""Kubernetes objects with only the fields that a decision reads. Names follow Kubernetes; sizes are in bytes."""

from collections.abc import Callable, Mapping
from typing import Annotated

from scheduler_core.model.constraints import NO_SCHEDULING, LabelSelector, PodScheduling, Requirement
from scheduler_core.model.quantity import Amount, read_clamped, read_quantity
from scheduler_core.structs import Struct

FILESYSTEM = "Filesystem"
DEFAULT_CLASS_ANNOTATIONS = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
STORAGE_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
SELECTED_NODE_ANNOTATION = "volume.kubernetes.io/selected-node"
# Of an unsigned 64-bit number.
_MAX_VERSION_DIGITS = 20


def is_set(value: str | None) -> bool:
    return value is not None


def equals(expected: str) -> Callable[..., bool]:
    """Reads whether a text is this one."""

    def read(value: str | None) -> bool:
        return value == expected

    return read


def namespace_or_default(value: str | None) -> str:
    return value or "default"


class Condition(Struct, frozen=True):
    """One status condition. `status` is ``True``, ``False`` or ``Unknown``; times are RFC 3339 texts, "" if absent."""

    type: Annotated[str, "type"]
    status: Annotated[str, "status"]
    reason: Annotated[str, "reason"] = ""
    message: Annotated[str, "message"] = ""
    last_transition_time: Annotated[str, "lastTransitionTime"] = ""


def condition(conditions: tuple[Condition, ...], kind: str) -> Condition:
    for entry in conditions:
        if entry.type == kind:
            return entry
    return Condition(kind, "Unknown")


class Node(Struct, frozen=True):
    """A Kubernetes node; `unschedulable` is what `kubectl cordon` sets."""

    name: Annotated[str, "metadata.name"]
    labels: Annotated[Mapping[str, str], "metadata.labels"] = {}
    unschedulable: Annotated[bool, "spec.unschedulable"] = False
    conditions: Annotated[tuple[Condition, ...], "status.conditions"] = ()


def _class_name(annotations: dict[str, str] | None, name: str | None) -> str | None:
    """The beta annotation for the class still wins, as in Kubernetes' GetPersistentVolumeClaimClass."""
    return (annotations or {}).get(STORAGE_CLASS_ANNOTATION, name)


def _read_request(value: Amount | None) -> int | None:
    return None if value is None else read_quantity(value)


def _source(expected: str) -> Callable[..., str]:
    def read(kind: str, name: str) -> str:
        return name if kind == expected else ""

    return read


class ClaimSpec(Struct, frozen=True):
    """Spec of a PersistentVolumeClaim, or of its template."""

    # None for the cluster's default class, "" for none.
    storage_class: Annotated[str | None, "metadata.annotations", "spec.storageClassName", _class_name] = None
    request: Annotated[int | None, "spec.resources.requests[storage]", _read_request] = None  # in bytes, None if absent
    access_modes: Annotated[tuple[str, ...], "spec.accessModes"] = ()
    volume_name: Annotated[str, "spec.volumeName"] = ""
    # The claim it is cloned from.
    source_claim: Annotated[str, "spec.dataSource.kind", "spec.dataSource.name", _source("PersistentVolumeClaim")] = ""
    # The VolumeSnapshot it is restored from.
    source_snapshot: Annotated[str, "spec.dataSource.kind", "spec.dataSource.name", _source("VolumeSnapshot")] = ""
    # Selects existing PersistentVolumes by their labels, without any part all of them; None if it cannot be read.
    selector: Annotated[LabelSelector | None, "spec.selector"] = LabelSelector()
    volume_mode: Annotated[str, "spec.volumeMode"] = FILESYSTEM
    # The name of its VolumeAttributesClass, "" for none.
    attributes_class: Annotated[str, "spec.volumeAttributesClassName"] = ""


class Claim(Struct, frozen=True):
    """A PersistentVolumeClaim. `owners` are (kind, name, uid) of its owner references; `created` is an RFC 3339 text."""

    namespace: Annotated[str, "metadata.namespace", namespace_or_default]
    name: Annotated[str, "metadata.name"]
    spec: Annotated[ClaimSpec, ""]
    uid: Annotated[str, "metadata.uid"] = ""
    owners: Annotated[tuple[tuple[str, str, str], ...], "metadata.ownerReferences"] = ()
    selected_node: Annotated[str, f"metadata.annotations[{SELECTED_NODE_ANNOTATION}]"] = ""
    created: Annotated[str, "metadata.creationTimestamp"] = ""
    deleting: Annotated[bool, "metadata.deletionTimestamp", is_set] = False
    lost: Annotated[bool, "status.phase", equals("Lost")] = False


class VolumeSnapshotContent(Struct, frozen=True):
    """A VolumeSnapshotContent; `handle` is what the CSI driver calls the snapshot."""

    name: Annotated[str, "metadata.name"]
    driver: Annotated[str, "spec.driver"] = ""
    handle: Annotated[str, "status.snapshotHandle"] = ""


class ClaimVolume(Struct, frozen=True):
    """A pod's volume that is backed by a claim."""

    name: Annotated[str, "name"]
    claim: Annotated[str, "persistentVolumeClaim.claimName"]
    template: Annotated[ClaimSpec | None, "ephemeral.volumeClaimTemplate"] = None  # set if the claim may not exist yet
    # Whether that claim must then be owned by the pod (a generic ephemeral volume) and not by a StatefulSet.
    ephemeral: bool = False
    problem: str = ""  # why nothing can be decided from the template, or ""


def _read_version(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= _MAX_VERSION_DIGITS else 0


FINISHED_PHASES = ("Succeeded", "Failed")


class Pod(Struct, frozen=True):
    """A pod: its identity, its node, and the claims it mounts."""

    namespace: Annotated[str, "metadata.namespace", namespace_or_default]
    name: Annotated[str, "metadata.name"]
    uid: Annotated[str, "metadata.uid"] = ""
    node_name: Annotated[str, "spec.nodeName"] = ""
    nominated_node: Annotated[str, "status.nominatedNodeName"] = ""
    # "" unless the condition PodScheduled is False; then its last transition, reason and message.
    unschedulable: Annotated[str, "status.conditions"] = ""
    phase: Annotated[str, "status.phase"] = "Pending"
    deleting: Annotated[bool, "metadata.deletionTimestamp", is_set] = False
    volumes: Annotated[tuple[ClaimVolume, ...], "metadata", "spec.volumes"] = ()
    # The resourceVersion, which grows with every change: Kubernetes documents it as comparable since 1.35, and etcd
    # always numbered upwards; 0 if it is absent or no decimal number.
    version: Annotated[int, "metadata.resourceVersion", _read_version] = 0
    created: Annotated[str, "metadata.creationTimestamp"] = ""
    priority: Annotated[int, "spec.priority"] = 0  # spec.priority, which admission takes from the PriorityClass
    owner: Annotated[str, "metadata.ownerReferences"] = ""  # the kind of its controller, "" without one
    # Read only where a policy or a prediction asks for it (`SCHEDULED_POD`): there may be 100,000 pods.
    scheduling: PodScheduling = NO_SCHEDULING

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def namespaced_name(self) -> tuple[str, str]:
        return self.namespace, self.name

    @property
    def finished(self) -> bool:
        return self.phase in FINISHED_PHASES

    @property
    def live(self) -> bool:
        """Whether the pod is neither finished nor being deleted, so that it still uses its volumes."""
        return not self.deleting and not self.finished


def _class_name_or_none(annotations: dict[str, str] | None, name: str | None) -> str:
    return _class_name(annotations, name) or ""


class AvailableVolume(Struct, frozen=True):
    """What decides which claims a free PersistentVolume may be bound to."""

    # The name of its class, "" for none.
    storage_class: Annotated[str, "metadata.annotations", "spec.storageClassName", _class_name_or_none]
    capacity: Annotated[int, "spec.capacity[storage]", read_clamped]  # in bytes
    access_modes: Annotated[tuple[str, ...], "spec.accessModes"] = ()
    volume_mode: Annotated[str, "spec.volumeMode"] = FILESYSTEM
    labels: Annotated[Mapping[str, str], "metadata.labels"] = {}
    # Terms of requirements on a node's labels, of which one must be met; None if every node will do.
    node_affinity: Annotated[tuple[tuple[Requirement, ...], ...] | None, "spec.nodeAffinity.required"] = None
    # The name of its VolumeAttributesClass, "" for none.
    attributes_class: Annotated[str, "spec.volumeAttributesClassName"] = ""


def _read_claim_reference(
    reference: object, namespace: str | None, name: str, uid: str | None
) -> tuple[str, str, str] | None:
    return None if reference is None else (namespace or "default", name, uid or "")


class PersistentVolume(Struct, frozen=True):
    """A PersistentVolume."""

    name: Annotated[str, "metadata.name"]
    driver: Annotated[str, "spec.csi.driver", str] = ""  # those of its CSI source, "" for other sources
    handle: Annotated[str, "spec.csi.volumeHandle", str] = ""  # those of its CSI source, "" for other sources
    # (namespace, name, uid) of the claim it is bound to or reserved for; no uid if it is reserved by hand.
    claim: Annotated[
        tuple[str, str, str] | None,
        "spec.claimRef",
        "spec.claimRef.namespace",
        "spec.claimRef.name",
        "spec.claimRef.uid",
        _read_claim_reference,
    ] = None
    created: Annotated[str, "metadata.creationTimestamp"] = ""
    capacity: Annotated[int, "spec.capacity[storage]", read_clamped] = 0  # in bytes, 0 if absent
    # Set if its phase is Available, it is reserved for no claim and is not being deleted.
    available: Annotated[AvailableVolume | None, "", "metadata.deletionTimestamp", "spec.claimRef", "status.phase"] = (
        None
    )


def _is_default(annotations: dict[str, str] | None) -> bool:
    return any((annotations or {}).get(key) == "true" for key in DEFAULT_CLASS_ANNOTATIONS)


class StorageClass(Struct, frozen=True):
    """A StorageClass; of several default classes the newest (`created`) wins."""

    name: Annotated[str, "metadata.name"]
    provisioner: Annotated[str, "provisioner"]
    parameters: Annotated[Mapping[str, str], "parameters"] = {}
    is_default: Annotated[bool, "metadata.annotations", _is_default] = False
    created: Annotated[str, "metadata.creationTimestamp"] = ""
    # Whether its claims are bound when a pod is scheduled, and not at once.
    waits_for_consumer: Annotated[bool, "volumeBindingMode", equals("WaitForFirstConsumer")] = False
    allows_expansion: Annotated[bool, "allowVolumeExpansion"] = False  # whether the API server lets its claims grow


class VolumeAttachment(Struct, frozen=True):
    """A VolumeAttachment of a PersistentVolume to a node."""

    name: Annotated[str, "metadata.name"]
    attacher: Annotated[str, "spec.attacher"]
    node: Annotated[str, "spec.nodeName"]
    persistent_volume: Annotated[str, "spec.source.persistentVolumeName"] = ""
    deleting: Annotated[bool, "metadata.deletionTimestamp", is_set] = False


def is_same_pod(current: Pod | None, requested: Pod) -> bool:
    """Whether an object is the requested pod; for a request by hand, without a UID, the name suffices."""
    return current is not None and requested.uid in ("", current.uid)
