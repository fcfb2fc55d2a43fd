"""Wire types of core/v1 and storage.k8s.io/v1, and their conversion: nodes, pods, claims, classes and attachments."""

from __future__ import annotations

from scheduler_core.convert.meta import Metadata, Subject, Wire, WireCondition, conditions
from scheduler_core.errors import ObjectError, OversizeError
from scheduler_core.model import kube
from scheduler_core.model.kube import condition

DEFAULT_CLASS_ANNOTATIONS = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
STORAGE_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
SELECTED_NODE_ANNOTATION = "volume.kubernetes.io/selected-node"
# Of an unsigned 64-bit number.
_MAX_VERSION_DIGITS = 20


class _NodeSpec(Wire):
    unschedulable: bool | None = None


class _NodeStatus(Wire):
    conditions: list[WireCondition] | None = None


class Node(Wire):
    """core/v1 Node."""

    metadata: Metadata
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


def node(wire: Node) -> kube.Node:
    """A Kubernetes node."""
    return kube.Node(
        name=wire.metadata.name,
        labels=wire.metadata.labels or {},
        unschedulable=bool(wire.spec and wire.spec.unschedulable),
        conditions=conditions(wire.status.conditions if wire.status else None),
    )


class _Resources(Wire):
    requests: dict[str, str | int | float] | None = None


class _DataSource(Wire):
    kind: str = ""
    name: str = ""


class LabelRequirement(Wire):
    """One of matchExpressions or matchFields."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class _LabelSelector(Wire):
    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelRequirement] | None = None


class ClaimSpec(Wire):
    """spec of a PersistentVolumeClaim."""

    data_source: _DataSource | None = None
    selector: _LabelSelector | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    storage_class_name: str | None = None
    volume_name: str | None = None
    access_modes: list[str] | None = None
    resources: _Resources | None = None


class _ClaimStatus(Wire):
    phase: str | None = None


class Claim(Wire):
    """core/v1 PersistentVolumeClaim, or a template of one."""

    metadata: Metadata | None = None
    spec: ClaimSpec | None = None
    status: _ClaimStatus | None = None


def claim_spec(wire: Claim, subject: Subject) -> kube.ClaimSpec:
    """What a claim requests; the beta annotation for the class still wins, as in Kubernetes'
    GetPersistentVolumeClaimClass.
    """
    spec = wire.spec or ClaimSpec()
    requests = (spec.resources.requests if spec.resources else None) or {}
    request = requests.get("storage")
    source = spec.data_source
    annotations = (wire.metadata.annotations if wire.metadata else None) or {}
    return kube.ClaimSpec(
        storage_class=annotations.get(STORAGE_CLASS_ANNOTATION, spec.storage_class_name),
        request=None if request is None else subject.size(request, "spec.resources.requests.storage"),
        access_modes=tuple(spec.access_modes or ()),
        volume_name=spec.volume_name or "",
        source_claim=source.name if source is not None and source.kind == "PersistentVolumeClaim" else "",
        source_snapshot=source.name if source is not None and source.kind == "VolumeSnapshot" else "",
        selector=_label_selector(spec.selector) if spec.selector is not None else (),
        volume_mode=spec.volume_mode or kube.FILESYSTEM,
        attributes_class=spec.volume_attributes_class_name or "",
    )


def _label_selector(wire: _LabelSelector) -> tuple[kube.LabelRequirement, ...]:
    labels = sorted((wire.match_labels or {}).items())
    requirements = tuple(kube.LabelRequirement(key, "In", (value,)) for key, value in labels)
    return requirements + label_requirements(wire.match_expressions)


def label_requirements(wire: list[LabelRequirement] | None) -> tuple[kube.LabelRequirement, ...]:
    return tuple(kube.LabelRequirement(entry.key, entry.operator, tuple(entry.values or ())) for entry in wire or ())


def claim(wire: Claim) -> kube.Claim:
    """A PersistentVolumeClaim."""
    metadata = wire.metadata or Metadata()
    subject = Subject("PersistentVolumeClaim", metadata)
    return kube.Claim(
        namespace=metadata.namespace or "default",
        name=metadata.name,
        spec=claim_spec(wire, subject),
        uid=metadata.uid or "",
        owners=tuple((owner.kind, owner.name, owner.uid) for owner in metadata.owner_references or ()),
        selected_node=(metadata.annotations or {}).get(SELECTED_NODE_ANNOTATION, ""),
        created=metadata.creation_timestamp or "",
        deleting=metadata.deletion_timestamp is not None,
        lost=bool(wire.status and wire.status.phase == "Lost"),
    )


class _ClaimSource(Wire):
    claim_name: str = ""


class _Ephemeral(Wire):
    volume_claim_template: Claim | None = None


class _PodVolume(Wire):
    name: str = ""
    persistent_volume_claim: _ClaimSource | None = None
    ephemeral: _Ephemeral | None = None


class PodSpec(Wire):
    """spec of a pod."""

    node_name: str | None = None
    volumes: list[_PodVolume] | None = None
    priority: int | None = None


class _PodStatus(Wire):
    phase: str | None = None
    nominated_node_name: str | None = None
    conditions: list[WireCondition] | None = None


class Pod(Wire):
    """core/v1 Pod."""

    metadata: Metadata
    spec: PodSpec | None = None
    status: _PodStatus | None = None


def pod(wire: Pod) -> kube.Pod:
    """A pod, with only its volumes that are backed by claims.

    Raises:
        ObjectError: a volume names no claim, or an ephemeral one asks for a size that is no quantity
    """
    spec = wire.spec or PodSpec()
    status = wire.status or _PodStatus()
    subject = Subject("Pod", wire.metadata)
    return kube.Pod(
        namespace=wire.metadata.namespace or "default",
        name=wire.metadata.name,
        uid=wire.metadata.uid or "",
        node_name=spec.node_name or "",
        nominated_node=status.nominated_node_name or "",
        unschedulable=_unschedulable(status),
        phase=status.phase or "Pending",
        deleting=wire.metadata.deletion_timestamp is not None,
        volumes=pod_volumes(spec, wire.metadata.name, subject),
        version=_version(wire.metadata.resource_version or ""),
        created=wire.metadata.creation_timestamp or "",
        priority=spec.priority or 0,
        owner=wire.metadata.owner_references[0].kind if wire.metadata.owner_references else "",
    )


def _version(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_VERSION_DIGITS else 0


def _unschedulable(status: _PodStatus) -> str:
    scheduled = condition(conditions(status.conditions), "PodScheduled")
    if scheduled.status != "False":
        return ""
    return f"{scheduled.last_transition_time} {scheduled.reason}: {scheduled.message}"


def pod_volumes(spec: PodSpec, pod_name: str, subject: Subject) -> tuple[kube.ClaimVolume, ...]:
    """The claim-backed volumes of a pod. The claim of a generic ephemeral volume is named ``<pod>-<volume>``."""
    claim_volumes = []
    for index, volume in enumerate(spec.volumes or ()):
        if volume.persistent_volume_claim is not None:
            if not volume.persistent_volume_claim.claim_name:
                raise ObjectError(subject.text, f"spec.volumes[{index}].persistentVolumeClaim.claimName", "is empty")
            claim_volumes.append(kube.ClaimVolume(volume.name, volume.persistent_volume_claim.claim_name))
        elif volume.ephemeral is not None:
            claim_volumes.append(_ephemeral_volume(volume.name, volume.ephemeral, pod_name, subject))
    return tuple(claim_volumes)


def _ephemeral_volume(name: str, wire: _Ephemeral, pod_name: str, subject: Subject) -> kube.ClaimVolume:
    claim = f"{pod_name}-{name}"
    template = wire.volume_claim_template or Claim()
    try:
        return kube.ClaimVolume(name, claim, claim_spec(template, subject), ephemeral=True)
    except OversizeError as error:
        # The API server accepts such a pod, and its controllers create such a claim.
        return kube.ClaimVolume(name, claim, kube.ClaimSpec(), ephemeral=True, problem=str(error))


class _PodTemplate(Wire):
    metadata: Metadata | None = None
    spec: PodSpec | None = None


class _WorkloadSpec(Wire):
    template: _PodTemplate | None = None
    volume_claim_templates: list[Claim] | None = None
    job_template: Workload | None = None


class Workload(Wire):
    """A Deployment, StatefulSet, ReplicaSet, DaemonSet, Job or CronJob."""

    metadata: Metadata | None = None
    spec: _WorkloadSpec | None = None


def workload_pod(kind: str, wire: Workload) -> kube.Pod:
    """The pod that a workload would create first on an empty cluster; for a StatefulSet pod 0, with its own claims.

    Raises:
        ObjectError: the workload has no pod template
    """
    metadata = wire.metadata or Metadata()
    subject = Subject(kind, metadata)
    spec = wire.spec or _WorkloadSpec()
    if spec.job_template is not None:
        spec = spec.job_template.spec or _WorkloadSpec()
    if spec.template is None or spec.template.spec is None:
        raise ObjectError(subject.text, "spec.template", "is missing, so there is no pod to decide about")
    name = f"{metadata.name}-0"
    own_claims = {
        (template.metadata.name if template.metadata else ""): claim_spec(template, subject)
        for template in spec.volume_claim_templates or ()
    }
    mounted = pod_volumes(spec.template.spec, name, subject)
    return kube.Pod(
        namespace=metadata.namespace or "default",
        name=name,
        volumes=(
            *(volume for volume in mounted if volume.name not in own_claims),
            *(kube.ClaimVolume(volume, f"{volume}-{name}", template) for volume, template in own_claims.items()),
        ),
    )


class _CsiDriver(Wire):
    name: str


class _CsiNodeSpec(Wire):
    drivers: list[_CsiDriver] | None = None


class CsiNode(Wire):
    """storage.k8s.io/v1 CSINode."""

    metadata: Metadata | None = None
    spec: _CsiNodeSpec | None = None


def csi_node(wire: CsiNode) -> frozenset[str]:
    return frozenset(driver.name for driver in (wire.spec and wire.spec.drivers) or ())


class ConfigMap(Wire):
    """core/v1 ConfigMap."""

    metadata: Metadata
    data: dict[str, str] | None = None


class StorageClass(Wire):
    """storage.k8s.io/v1 StorageClass."""

    metadata: Metadata
    provisioner: str = ""
    parameters: dict[str, str] | None = None
    volume_binding_mode: str | None = None
    allow_volume_expansion: bool | None = None


def storage_class(wire: StorageClass) -> kube.StorageClass:
    """A StorageClass."""
    annotations = wire.metadata.annotations or {}
    return kube.StorageClass(
        name=wire.metadata.name,
        provisioner=wire.provisioner,
        parameters=wire.parameters or {},
        is_default=any(annotations.get(key) == "true" for key in DEFAULT_CLASS_ANNOTATIONS),
        created=wire.metadata.creation_timestamp or "",
        waits_for_consumer=wire.volume_binding_mode == "WaitForFirstConsumer",
        allows_expansion=bool(wire.allow_volume_expansion),
    )


class _AttachmentSource(Wire):
    persistent_volume_name: str | None = None


class _AttachmentSpec(Wire):
    attacher: str = ""
    node_name: str = ""
    source: _AttachmentSource | None = None


class VolumeAttachment(Wire):
    """storage.k8s.io/v1 VolumeAttachment."""

    metadata: Metadata
    spec: _AttachmentSpec | None = None


def volume_attachment(wire: VolumeAttachment) -> kube.VolumeAttachment:
    """A VolumeAttachment."""
    spec = wire.spec or _AttachmentSpec()
    return kube.VolumeAttachment(
        name=wire.metadata.name,
        attacher=spec.attacher,
        node=spec.node_name,
        persistent_volume=(spec.source.persistent_volume_name if spec.source else None) or "",
        deleting=wire.metadata.deletion_timestamp is not None,
    )
