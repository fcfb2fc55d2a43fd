"""The engine image and backing images. They have to be on a node, or on a disk, before a replica can run there."""

from collections.abc import Iterable, Sequence

from app.kube.resources import LONGHORN_BACKING_IMAGES, LONGHORN_ENGINE_IMAGES, LONGHORN_NAMESPACE
from scheduler_core.errors import QuantityError
from scheduler_core.model import longhorn
from scheduler_core.model.quantity import parse_bytes
from simulator.actions import Action, AfterDelay, CreateObject, PatchObject, ReplaceStatus
from simulator.config import Config
from simulator.disk_schedule_grants import Schedules, copyable_disks
from simulator.objects import REAL_SIZE, VIRTUAL_SIZE, Json, KubeObject

ENGINE_IMAGE = "longhornio/longhorn-engine:simulated"
MANAGER_IMAGE = "longhornio/longhorn-instance-manager:simulated"
READY = "ready"

BackingImage = KubeObject[longhorn.BackingImage]


def decide_engine_image(image: KubeObject[longhorn.EngineImage] | None, nodes: Iterable[str]) -> list[Action]:
    """Deploys the default engine image on every Longhorn node. A node that the image's status lists as not deployed stays so."""
    if image is None:
        metadata = {"name": "ei-simulated", "namespace": LONGHORN_NAMESPACE}
        body = {"metadata": metadata, "spec": {"image": ENGINE_IMAGE}}
        return [CreateObject(LONGHORN_ENGINE_IMAGES, body, "engine image created")]
    deployed: Json = image.status.get("nodeDeploymentMap") or {}
    wanted = {node: deployed.get(node, True) for node in sorted(nodes)}
    state = image.status.get("state") or "deployed"
    status = {**image.status, "state": state, "nodeDeploymentMap": wanted}
    return (
        []
        if status == image.status
        else [ReplaceStatus(LONGHORN_ENGINE_IMAGES, image, status, "engine image deployed")]
    )


def decide_backing_image(
    image: BackingImage, needed: Sequence[str], config: Config, schedules: Schedules
) -> list[Action]:
    """Lists the disks that need an image, and copies it there. A disk is listed at once, the copy takes a while. The image's size
    comes from annotations. With DiskSchedules their controllers list the disks, and the image is copied to disks that have
    granted its size.
    """
    sizes = {key: size for key, size in _annotated_sizes(image).items() if image.status.get(key) != size}
    if sizes:
        return [PatchObject(LONGHORN_BACKING_IMAGES, image, {"status": sizes}, "backing image measured", status=True)]
    if config.disk_schedules:
        allowed = copyable_disks(schedules, image.model)
        return [_copy(image, disk, config) for disk in missing_copies(image) if disk in allowed]
    new = [disk for disk in needed if disk not in image.model.disks]
    if new:
        body = {"spec": {"diskFileSpecMap": {disk: {"evictionRequested": False} for disk in new}}}
        return [PatchObject(LONGHORN_BACKING_IMAGES, image, body, "backing image wanted on a disk")]
    return [_copy(image, disk, config) for disk in missing_copies(image)]


def missing_copies(image: BackingImage) -> list[str]:
    files: Json = image.status.get("diskFileStatusMap") or {}
    return [disk for disk in image.model.disks if (files.get(disk) or {}).get("state") != READY]


def _copy(image: BackingImage, disk: str, config: Config) -> Action:
    body = {"status": {"diskFileStatusMap": {disk: {"state": READY, "progress": 100}}}}
    copied = PatchObject(LONGHORN_BACKING_IMAGES, image, body, "backing image copied to a disk", status=True)
    return AfterDelay(f"copy {disk}", config.backing_image_seconds, (copied,))


def _annotated_sizes(image: BackingImage) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for key, annotation in (("realSize", REAL_SIZE), ("virtualSize", VIRTUAL_SIZE)):
        try:
            sizes[key] = parse_bytes(image.annotations[annotation])
        except (KeyError, QuantityError):
            continue  # there is no annotation, or it is no quantity: the status stays as it is
    return sizes
