"""Wire type of PersistentVolumes and its conversion to the model."""

from __future__ import annotations

from scheduler_core.convert.kube import STORAGE_CLASS_ANNOTATION, LabelRequirement, label_requirements
from scheduler_core.convert.meta import Metadata, Subject, Wire
from scheduler_core.model import kube


class _Csi(Wire):
    driver: str = ""
    volume_handle: str = ""


class _ClaimReference(Wire):
    namespace: str | None = None
    name: str = ""
    uid: str | None = None


class _NodeSelectorTerm(Wire):
    match_expressions: list[LabelRequirement] | None = None
    match_fields: list[LabelRequirement] | None = None


class _NodeSelector(Wire):
    node_selector_terms: list[_NodeSelectorTerm] | None = None


class _VolumeNodeAffinity(Wire):
    required: _NodeSelector | None = None


class _PersistentVolumeSpec(Wire):
    csi: _Csi | None = None
    claim_ref: _ClaimReference | None = None
    capacity: dict[str, str | int | float] | None = None
    access_modes: list[str] | None = None
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    node_affinity: _VolumeNodeAffinity | None = None


class _PersistentVolumeStatus(Wire):
    phase: str | None = None


class PersistentVolume(Wire):
    """core/v1 PersistentVolume."""

    metadata: Metadata
    spec: _PersistentVolumeSpec | None = None
    status: _PersistentVolumeStatus | None = None


def persistent_volume(wire: PersistentVolume) -> kube.PersistentVolume:
    """A PersistentVolume.

    Raises:
        ObjectError: the capacity is no quantity
    """
    spec = wire.spec or _PersistentVolumeSpec()
    capacity = (spec.capacity or {}).get("storage")
    size = Subject("PersistentVolume", wire.metadata).clamped_size(capacity, "spec.capacity.storage")
    return kube.PersistentVolume(
        name=wire.metadata.name,
        driver=spec.csi.driver if spec.csi else "",
        handle=spec.csi.volume_handle if spec.csi else "",
        claim=(spec.claim_ref.namespace or "default", spec.claim_ref.name, spec.claim_ref.uid or "")
        if spec.claim_ref
        else None,
        created=wire.metadata.creation_timestamp or "",
        capacity=size,
        available=_available_volume(wire, spec, size),
    )


def _available_volume(
    wire: PersistentVolume, spec: _PersistentVolumeSpec, capacity: int
) -> kube.AvailableVolume | None:
    """What claims may match, None if no claim may be bound to the volume."""
    phase = wire.status.phase if wire.status else None
    if phase != "Available" or spec.claim_ref is not None or wire.metadata.deletion_timestamp is not None:
        # The fields of bound volumes decide nothing, and there are many of these.
        return None
    annotations = wire.metadata.annotations or {}
    return kube.AvailableVolume(
        storage_class=annotations.get(STORAGE_CLASS_ANNOTATION, spec.storage_class_name or ""),
        capacity=capacity,
        access_modes=tuple(spec.access_modes or ()),
        volume_mode=spec.volume_mode or kube.FILESYSTEM,
        labels=wire.metadata.labels or {},
        node_affinity=_node_affinity(spec.node_affinity),
        attributes_class=spec.volume_attributes_class_name or "",
    )


def _node_affinity(wire: _VolumeNodeAffinity | None) -> tuple[tuple[kube.LabelRequirement, ...], ...] | None:
    """The terms that can be met, None if every node will do (CheckNodeAffinity of
    k8s.io/component-helpers/storage/volume).
    """
    if wire is None or wire.required is None:
        return None
    # An empty term selects no node. The rule reads a node's labels and not its name, so requirements on fields are met
    # if they are valid.
    return tuple(
        label_requirements(term.match_expressions)
        for term in wire.required.node_selector_terms or ()
        if (term.match_expressions or term.match_fields)
        and all(entry.operator in ("In", "NotIn") and len(entry.values or ()) == 1 for entry in term.match_fields or ())
    )
