"""Objects of core/v1, storage.k8s.io/v1 and policy/v1: what the paths at the fields of `model/kube.py` and
`model/generic.py` do not say, and Events as a recorder writes them.
"""

from typing import Any

import msgspec

from scheduler_core import errors
from scheduler_core.convert import pod_constraints, wire_types
from scheduler_core.model import generic, kube
from scheduler_core.model.constraints import LabelSelector, Requirement
from scheduler_core.model.kube import condition
from scheduler_core.structs import Struct

NODE = wire_types.Fields("Node", kube.Node)
STORAGE_CLASS = wire_types.Fields("StorageClass", kube.StorageClass)
VOLUME_ATTACHMENT = wire_types.Fields("VolumeAttachment", kube.VolumeAttachment)
# Alone, for a reader to which a pod counts that cannot be read as a whole.
POD_PHASE = wire_types.value_at("Pod", "status.phase", "")
VOLUME_SNAPSHOT_CONTENT = wire_types.Fields("VolumeSnapshotContent", kube.VolumeSnapshotContent)


def _owners(owners: list[wire_types.OwnerReference] | None) -> tuple[tuple[str, str, str], ...]:
    return tuple((owner.kind, owner.name, owner.uid) for owner in owners or ())


_CLAIM_SPEC = wire_types.Fields(
    "",
    kube.ClaimSpec,
    selector=(
        lambda wire: LabelSelector() if wire is None else pod_constraints.label_selector(wire),
        pod_constraints.WireLabelSelector | None,
    ),
)
# Templates of claims need no metadata.
CLAIM = wire_types.Fields("PersistentVolumeClaim", kube.Claim, needs_metadata=False, spec=_CLAIM_SPEC, owners=_owners)
CLAIM_VOLUME = wire_types.Fields("", kube.ClaimVolume, template=CLAIM)


def pod_volumes(metadata: wire_types.Metadata, volumes: list[Any] | None) -> tuple[kube.ClaimVolume, ...]:
    """The claim-backed volumes of a pod. The claim of a generic ephemeral volume is named ``<pod>-<volume>``."""
    claim_volumes = []
    for index, volume in enumerate(volumes or ()):
        if volume.persistentVolumeClaim is not None:
            if not volume.persistentVolumeClaim.claimName:
                raise errors.ObjectError("", f"spec.volumes[{index}].persistentVolumeClaim.claimName", "is empty")
            claim_volumes.append(kube.ClaimVolume(volume.name, volume.persistentVolumeClaim.claimName))
        elif volume.ephemeral is not None:
            claim = f"{metadata.name}-{volume.name}"
            try:
                spec = _CLAIM_SPEC.construct(volume.ephemeral.volumeClaimTemplate or CLAIM.wire())
                claim_volumes.append(kube.ClaimVolume(volume.name, claim, spec, ephemeral=True))
            except errors.OversizeError as error:
                # The API server accepts such a pod, and its controllers create such a claim.
                problem = str(errors.OversizeError(wire_types.subject("Pod", metadata), error.field, error.problem))
                claim_volumes.append(
                    kube.ClaimVolume(volume.name, claim, kube.ClaimSpec(), ephemeral=True, problem=problem)
                )
    return tuple(claim_volumes)


def _unschedulable(entries: list[wire_types.WireCondition] | None) -> str:
    scheduled = condition(wire_types.conditions(entries), "PodScheduled")
    if scheduled.status != "False":
        return ""
    return f"{scheduled.last_transition_time} {scheduled.reason}: {scheduled.message}"


POD = wire_types.Fields(
    "Pod",
    kube.Pod,
    unschedulable=_unschedulable,
    volumes=(pod_volumes, wire_types.Metadata, wire_types.list_of(CLAIM_VOLUME.wire)),
    owner=(lambda owners: owners[0].kind if owners else "", wire_types.list_of(wire_types.OwnerReference)),
)


def _node_affinity(required: pod_constraints.WireNodeSelector | None) -> tuple[tuple[Requirement, ...], ...] | None:
    """The terms that can be met, None for every node (CheckNodeAffinity of component-helpers/storage/volume)."""
    terms = pod_constraints.node_selector_terms(required)
    # The rule reads a node's labels and not its name, so requirements on fields are met if they are valid.
    return None if terms is None else tuple(term.labels for term in terms)


_AVAILABLE_VOLUME = wire_types.Fields("", kube.AvailableVolume, node_affinity=_node_affinity)


def _if_available(
    wire: wire_types.Wire, deleted: str | None, claim: object, phase: str | None
) -> kube.AvailableVolume | None:
    """What claims may match, None if no claim may be bound to the volume."""
    # The fields of bound volumes decide nothing, and there are many of these.
    free = phase == "Available" and claim is None and deleted is None
    return _AVAILABLE_VOLUME.construct(wire) if free else None


PERSISTENT_VOLUME = wire_types.Fields(
    "PersistentVolume",
    kube.PersistentVolume,
    available=(_if_available, _AVAILABLE_VOLUME, str | None, object, str | None),
)


VOLUME_SNAPSHOT = wire_types.value_at("VolumeSnapshot", "status.boundVolumeSnapshotContentName", "")


class _CsiDriver(wire_types.Wire):
    name: str


def _driver_names(drivers: list[_CsiDriver] | None) -> frozenset[str]:
    return frozenset(driver.name for driver in drivers or ())


CSI_NODE = wire_types.value_at("CSINode", "spec.drivers", frozenset[str](), _driver_names)


class ConfigMap(wire_types.Wire):
    """core/v1 ConfigMap."""

    metadata: wire_types.Metadata
    data: dict[str, str] | None = None


def _sync_failure(
    generation: int | None, observed_generation: int | None, entries: list[wire_types.WireCondition] | None
) -> str:
    current = (entries or ()) if generic.is_current(generation, observed_generation) else ()
    return next((entry.message or "unknown" for entry in current if entry.reason == "SyncFailed"), "")


DISRUPTION_BUDGET = wire_types.Fields(
    "PodDisruptionBudget", generic.DisruptionBudget, selector=pod_constraints.label_selector, sync_failure=_sync_failure
)


# The API server refuses longer notes of events.k8s.io; kube-scheduler cuts there, too.
MAX_MESSAGE = 1024


class ObjectReference(Struct, frozen=True, rename="camel"):
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class ObjectEvent(Struct, frozen=True):
    """The content of an Event in its object's namespace: something has happened to the object, `count` times."""

    name: str
    about: ObjectReference
    reason: str
    message: str
    normal: bool
    component: str  # the component that reports it
    first: str  # when it happened first and last, in the API's form
    last: str  # when it happened first and last, in the API's form
    count: int = 1


def new_event(event: ObjectEvent) -> dict[str, Any]:
    """The body that creates an Event."""
    about = event.about
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event.name, "namespace": about.namespace},
        "involvedObject": msgspec.to_builtins(about),
        "reason": event.reason,
        "type": "Normal" if event.normal else "Warning",
        "source": {"component": event.component},
        "reportingComponent": event.component,
        "firstTimestamp": event.first,
        **event_patch(event),
    }


def event_patch(event: ObjectEvent) -> dict[str, Any]:
    """The patch of an Event that happened again."""
    return {"message": truncate_message(event.message), "count": event.count, "lastTimestamp": event.last}


def truncate_message(message: str) -> str:
    """The text as an Event can hold it; other reports truncate it in the same way, so that all are equal."""
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 4]} ..."
