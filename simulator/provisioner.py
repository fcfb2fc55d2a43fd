"""The CSI provisioner: claims become Longhorn volumes, these PersistentVolumes; and back, by reclaim policy.

Mirrors external-provisioner's controller and longhorn-manager's csi/util.go:getVolumeOptions and CreateVolume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.kube.resources import CLAIMS, LONGHORN_NAMESPACE, LONGHORN_VOLUMES, PERSISTENT_VOLUMES
from scheduler_core.errors import CoreError
from scheduler_core.longhorn.settings import Settings, parse_bool, parse_int
from scheduler_core.model import kube, longhorn
from simulator.actions import Action, Create, Delete, Later, without_finalizer
from simulator.config import Config
from simulator.objects import CLAIM, DRIVER, FINALIZER, Json, Obj
from simulator.volumes.sight import CREATING, Volume

PROVISIONER_ANNOTATIONS: Final = (
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
)
PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
PROVISIONER_FINALIZER: Final = "external-provisioner.volume.kubernetes.io/finalizer"
WAIT_FOR_CONSUMER: Final = "WaitForFirstConsumer"
_MINIMUM_SIZE: Final = 10 * 1024**2
_MINIMUM_XFS_SIZE: Final = 300 * 1024**2
_SIZE_STEP: Final = 2 * 1024**2
_SHARED: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})
_CREATED_IMAGES: Final = ("download", "export-from-volume")

Claim = Obj[kube.Claim]
StorageClass = Obj[kube.StorageClass]
PersistentVolume = Obj[kube.PersistentVolume]


class ParameterError(CoreError):
    """A StorageClass has a parameter Longhorn's CSI driver refuses."""


def volume_name(claim: Claim) -> str:
    """The name external-provisioner gives the volume of a claim."""
    return f"pvc-{claim.uid}"


def csi_size(request: int, file_system: str) -> int:
    """The size in bytes for a request in bytes: at least 10 MiB (300 MiB on xfs), rounded up to 2 MiB."""
    smallest = _MINIMUM_XFS_SIZE if file_system == "xfs" else _MINIMUM_SIZE
    return -(-max(request, smallest) // _SIZE_STEP) * _SIZE_STEP


def claim_of(volume: Volume) -> tuple[str, str, str] | None:
    """The (namespace, name, uid) of the claim a volume was provisioned for, None for volumes made otherwise."""
    namespace, _, rest = volume.annotations.get(CLAIM, "").partition("/")
    name, _, uid = rest.partition("/")
    return (namespace, name, uid) if uid else None


@dataclass(frozen=True, slots=True)
class Provisioning:
    """What a decision about a claim sees."""

    config: Config
    claim: Claim
    storage_class: StorageClass | None
    volume: Volume | None
    persistent_volume: PersistentVolume | None
    settings: Settings


def decide_claim(sight: Provisioning) -> list[Action]:
    """Provisions a claim that is ready for it: the Longhorn volume, and when that exists its PersistentVolume.

    Raises:
        ParameterError: the StorageClass asks for something Longhorn refuses
    """
    claim, storage_class = sight.claim, sight.storage_class
    ours = any(claim.annotations.get(key) == DRIVER for key in PROVISIONER_ANNOTATIONS)
    if not ours or claim.deleting or claim.model.spec.volume_name or storage_class is None:
        return []
    delayed = storage_class.raw.get("volumeBindingMode") == WAIT_FOR_CONSUMER
    if delayed and not claim.model.selected_node:
        return []
    if sight.volume is None:
        body = new_volume(claim, storage_class, sight.settings)
        created = Create(LONGHORN_VOLUMES, body, "volume provisioned", counts="provisioned")
        return [Later("provision", sight.config.provision_seconds, (created,))]
    if sight.persistent_volume is not None or sight.volume.model.state in ("", CREATING):
        return []
    body = new_persistent_volume(claim, storage_class, sight.volume)
    return [Create(PERSISTENT_VOLUMES, body, "PersistentVolume created")]


def new_volume(claim: Claim, storage_class: StorageClass, settings: Settings) -> Json:
    """The Longhorn volume the CSI driver creates: StorageClass parameters first, then Longhorn's settings.

    Raises:
        ParameterError: a parameter is not what it should be
    """
    parameters = storage_class.model.parameters
    engine = parameters.get("dataEngine") or longhorn.V1
    locality = parameters.get("dataLocality") or settings.default_data_locality
    if locality not in (longhorn.DISABLED, longhorn.BEST_EFFORT, longhorn.STRICT_LOCAL):
        raise ParameterError(f"StorageClass {storage_class.name}: dataLocality {locality!r} is unknown")
    shared = _SHARED.intersection(claim.model.spec.access_modes) or _flag(storage_class, "share")
    spec: Json = {
        "size": str(csi_size(claim.model.spec.request or 0, _file_system(parameters))),
        "numberOfReplicas": _number_of_replicas(storage_class, locality, engine, settings),
        "dataEngine": engine,
        "dataLocality": locality,
        "accessMode": "rwx" if shared else "rwo",
        "migratable": _flag(storage_class, "migratable"),
        "nodeSelector": _selector(parameters, "nodeSelector"),
        "diskSelector": _selector(parameters, "diskSelector"),
        "backingImage": _backing_image(parameters),
        "image": settings.default_engine_image or "",
        "frontend": "blockdev",
        "replicaSoftAntiAffinity": parameters.get("replicaSoftAntiAffinity") or "ignored",
        "replicaZoneSoftAntiAffinity": parameters.get("replicaZoneSoftAntiAffinity") or "ignored",
        "replicaDiskSoftAntiAffinity": parameters.get("replicaDiskSoftAntiAffinity") or "ignored",
        "replicaAutoBalance": parameters.get("replicaAutoBalance") or "ignored",
        "staleReplicaTimeout": int(parameters.get("staleReplicaTimeout") or 2880),
        "nodeID": "",
    }
    key = f"{claim.namespace}/{claim.name}/{claim.uid}"
    metadata: Json = {
        "name": volume_name(claim),
        "namespace": LONGHORN_NAMESPACE,
        "annotations": {CLAIM: key},
        "finalizers": [FINALIZER],
    }
    return {"metadata": metadata, "spec": spec}


def _number_of_replicas(storage_class: StorageClass, locality: str, engine: str, settings: Settings) -> int:
    if locality == longhorn.STRICT_LOCAL:
        return 1  # the webhook refuses anything else
    text = storage_class.model.parameters.get("numberOfReplicas", "")
    if not text:
        return settings.default_replica_count.get(engine, 3)
    try:
        return parse_int(text)
    except ValueError as error:
        raise ParameterError(f"StorageClass {storage_class.name}: numberOfReplicas {text!r} is not {error}") from error


def _flag(storage_class: StorageClass, key: str) -> bool:
    text = storage_class.model.parameters.get(key, "")
    try:
        return bool(text) and parse_bool(text)
    except ValueError as error:
        raise ParameterError(f"StorageClass {storage_class.name}: {key} {text!r} is not {error}") from error


def _file_system(parameters: Mapping[str, str]) -> str:
    return parameters.get("csi.storage.k8s.io/fstype") or parameters.get("fsType") or ""


def _selector(parameters: Mapping[str, str], key: str) -> list[str]:
    return parameters[key].split(",") if key in parameters else []


def _backing_image(parameters: Mapping[str, str]) -> str:
    created = parameters.get("backingImageDataSourceType") in _CREATED_IMAGES
    return "" if created else parameters.get("backingImage", "")


def new_persistent_volume(claim: Claim, storage_class: StorageClass, volume: Volume) -> Json:
    """The PersistentVolume of a provisioned volume: bound to its claim, usable from every node."""
    policy = storage_class.raw.get("reclaimPolicy") or "Delete"
    metadata: Json = {"name": volume.name, "annotations": {PROVISIONED_BY: DRIVER}}
    if policy == "Delete":
        metadata["finalizers"] = [PROVISIONER_FINALIZER]
    reference = {
        "apiVersion": "v1",
        "kind": CLAIMS.kind,
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
    }
    spec: Json = {
        "capacity": {"storage": str(volume.model.size)},
        "accessModes": list(claim.model.spec.access_modes),
        "persistentVolumeReclaimPolicy": policy,
        "storageClassName": storage_class.name,
        "volumeMode": claim.spec.get("volumeMode") or "Filesystem",
        "claimRef": reference,
        "csi": {
            "driver": DRIVER,
            "volumeHandle": volume.name,
            "fsType": _file_system(storage_class.model.parameters) or "ext4",
            "volumeAttributes": dict(storage_class.model.parameters),
        },
    }
    return {"metadata": metadata, "spec": spec}


def decide_reclaim(persistent_volume: PersistentVolume, volume: Volume | None, *, attached: bool) -> list[Action]:
    """Deletes what a released PersistentVolume with policy Delete stood for, then the PersistentVolume itself."""
    if persistent_volume.model.driver != DRIVER:
        return []
    policy = persistent_volume.spec.get("persistentVolumeReclaimPolicy")
    if policy != "Delete":
        return list(
            without_finalizer(PERSISTENT_VOLUMES, persistent_volume, PROVISIONER_FINALIZER, "PersistentVolume kept")
        )
    if persistent_volume.status.get("phase") not in ("Released", "Failed") or attached:
        return []
    if volume is not None:
        if volume.deleting:
            return []
        return [Delete(LONGHORN_VOLUMES, volume, "volume of a released PersistentVolume deleted", "volumes_deleted")]
    gone: list[Action] = []
    if not persistent_volume.deleting:
        gone.append(Delete(PERSISTENT_VOLUMES, persistent_volume, "PersistentVolume deleted"))
        return gone
    return list(
        without_finalizer(PERSISTENT_VOLUMES, persistent_volume, PROVISIONER_FINALIZER, "PersistentVolume gone")
    )
