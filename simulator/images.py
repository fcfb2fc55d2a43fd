"""Engine image and backing images: what has to be on a node, or on a disk, before a replica can run there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.kube.resources import LONGHORN_BACKING_IMAGES, LONGHORN_ENGINE_IMAGES, LONGHORN_NAMESPACE
from scheduler_core.errors import QuantityError
from scheduler_core.model import longhorn
from scheduler_core.model.quantity import parse_bytes
from simulator.actions import Action, Create, Later, Patch, Replace
from simulator.config import Config
from simulator.disk_schedule_grants import Schedules, copyable
from simulator.objects import REAL_SIZE, VIRTUAL_SIZE, Json, Obj
from simulator.volumes.observation import Volume

ENGINE_IMAGE = "longhornio/longhorn-engine:simulated"
MANAGER_IMAGE = "longhornio/longhorn-instance-manager:simulated"
READY = "ready"

BackingImage = Obj[longhorn.BackingImage]


def decide_engine_image(known: Obj[longhorn.EngineImage] | None, nodes: Iterable[str]) -> list[Action]:
    """The default engine image, deployed on every Longhorn node, except where somebody says that it is not."""
    if known is None:
        metadata = {"name": "ei-simulated", "namespace": LONGHORN_NAMESPACE}
        body = {"metadata": metadata, "spec": {"image": ENGINE_IMAGE}}
        return [Create(LONGHORN_ENGINE_IMAGES, body, "engine image created")]
    deployed: Json = known.status.get("nodeDeploymentMap") or {}
    wanted = {node: deployed.get(node, True) for node in sorted(nodes)}
    state = known.status.get("state") or "deployed"
    status = {**known.status, "state": state, "nodeDeploymentMap": wanted}
    return [] if status == known.status else [Replace(LONGHORN_ENGINE_IMAGES, known, status, "engine image deployed")]


def needed_disks(image: str, volumes: Iterable[tuple[Volume, Sequence[longhorn.Replica]]]) -> list[str]:
    """The disks that hold replicas of volumes that use an image."""
    return sorted(
        {
            replica.disk_id
            for volume, replicas in volumes
            if volume.model.backing_image == image
            for replica in replicas
            if replica.disk_id
        }
    )


def decide_backing_image(
    image: BackingImage, needed: Sequence[str], config: Config, schedules: Schedules
) -> list[Action]:
    """Lists the disks an image is needed on, at once, and copies it there, after a while; its size comes from annotations.

    With DiskSchedules their controllers list the disks, and it is copied to those that have granted its size.
    """
    sizes = {key: size for key, size in _sizes(image).items() if image.status.get(key) != size}
    if sizes:
        return [Patch(LONGHORN_BACKING_IMAGES, image, {"status": sizes}, "backing image measured", status=True)]
    if config.disk_schedules:
        allowed = copyable(schedules, image.model)
        return [_copy(image, disk, config) for disk in missing(image) if disk in allowed]
    new = [disk for disk in needed if disk not in image.model.disks]
    if new:
        body = {"spec": {"diskFileSpecMap": {disk: {"evictionRequested": False} for disk in new}}}
        return [Patch(LONGHORN_BACKING_IMAGES, image, body, "backing image wanted on a disk")]
    return [_copy(image, disk, config) for disk in missing(image)]


def missing(image: BackingImage) -> list[str]:
    """The disks an image is to be on but is not yet."""
    files: Json = image.status.get("diskFileStatusMap") or {}
    return [disk for disk in image.model.disks if (files.get(disk) or {}).get("state") != READY]


def _copy(image: BackingImage, disk: str, config: Config) -> Action:
    body = {"status": {"diskFileStatusMap": {disk: {"state": READY, "progress": 100}}}}
    copied = Patch(LONGHORN_BACKING_IMAGES, image, body, "backing image copied to a disk", status=True)
    return Later(f"copy {disk}", config.backing_image_seconds, (copied,))


def _sizes(image: BackingImage) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, annotation in (("realSize", REAL_SIZE), ("virtualSize", VIRTUAL_SIZE)):
        try:
            found[key] = parse_bytes(image.annotations[annotation])
        except (KeyError, QuantityError):
            continue  # not told, or told in a way nobody understands: the status stays what it is
    return found
