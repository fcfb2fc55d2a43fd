"""Reconciles backing images: where copies are made, and requests for their space."""

from __future__ import annotations

from collections.abc import Iterable

from app.disk_schedule.controller import Controller
from app.disk_schedule.informer import ImageObject, VolumeObject, read_image
from app.disk_schedule.writer import ReadObjects
from app.kube.resources import LONGHORN_BACKING_IMAGES
from app.runtime.work_queue import Requeue
from scheduler_core.convert import disk_schedule as convert
from scheduler_core.disk_schedule.backing_images import (
    ImageSnapshot,
    candidate_disks,
    decide_image,
    disks_that_need_image,
)
from scheduler_core.disk_schedule.writes import NO_DISK, changed_names
from scheduler_core.errors import CoreError, ObjectError
from scheduler_core.model.disk_schedule import BackingImageCopies, DiskSchedule, Fault, RequestKind
from scheduler_core.model.longhorn import Replica, Volume


class UnreadableError(CoreError):
    """A backing image cannot be read; it has no condition that could say so, but the log and a metric do."""


class ImageController(Controller):
    """Reconciles an image when it, its allocations, or its users change."""

    name = "backing-image"

    def subscribe(self) -> None:
        """Subscribes to images, and to what may change the copies that they need."""
        self.cache.images.subscribe(self._on_image_change)
        self.cache.schedules.subscribe(self._on_schedule_change)
        # A replica needs a copy of its image on its disk. Only its volume says which image that is, and may be seen after it.
        self.cache.replicas.subscribe(self._on_replica_change)
        self.cache.volumes.subscribe(self._on_volume_change)

    def all_keys(self) -> Iterable[str]:
        return self.cache.images.all()

    def _on_image_change(self, name: str, _before: object, _after: object) -> None:
        self.enqueue(name)

    def _on_schedule_change(
        self, _name: str, before: DiskSchedule | Fault | None, after: DiskSchedule | Fault | None
    ) -> None:
        old = before if isinstance(before, DiskSchedule) else DiskSchedule("")
        new = after if isinstance(after, DiskSchedule) else DiskSchedule("")
        for name in sorted(changed_names(old.status.backing_images, new.status.backing_images)):
            self.enqueue(name)

    def _on_replica_change(self, _name: str, before: Replica | Fault | None, after: Replica | Fault | None) -> None:
        disks = {each.disk_id if isinstance(each, Replica) else "" for each in (before, after)}
        replica = after if isinstance(after, Replica) else before
        if not isinstance(replica, Replica) or len(disks) == 1:
            return
        volume = self.cache.volumes.value(replica.volume)
        if volume is not None and not isinstance(volume, Fault):
            self.enqueue(volume.volume.backing_image)

    def _on_volume_change(
        self, _name: str, before: VolumeObject | Fault | None, after: VolumeObject | Fault | None
    ) -> None:
        old, new = (each.volume.backing_image if isinstance(each, VolumeObject) else "" for each in (before, after))
        if old != new:
            self.enqueue(old)
            self.enqueue(new)

    async def reconcile(self, key: str) -> Requeue | None:
        """Reads the DiskSchedules, then the image, decides, and writes."""
        cached_schedules = self.cache.schedules.all()
        schedules = {name: each.value for name, each in cached_schedules.items() if not isinstance(each.value, Fault)}
        raw = await self.writer.read(LONGHORN_BACKING_IMAGES, key)
        if raw is None:
            return None
        snapshot = self._snapshot(raw, key, schedules)
        decision = decide_image(snapshot)
        read_objects = ReadObjects(cached_schedules, objects={(RequestKind.BACKING_IMAGE, key): raw})
        await self.writer.write_all(decision.writes, read_objects)
        if decision.shortage:
            self.context.events.record("BackingImage", raw, NO_DISK, decision.shortage, normal=False)
        # For an image without a size there is nothing to request once a copy is wanted; an event announces its size.
        waits_for_event = not snapshot.image.size and snapshot.image.wanted_disks
        return Requeue.WAITING if decision.requeue and not waits_for_event else None

    def _snapshot(self, raw: bytes, name: str, schedules: dict[str, DiskSchedule]) -> ImageSnapshot:
        copies = convert.backing_image_copies(raw)
        if isinstance(copies, BackingImageCopies) and copies.deleting:
            return ImageSnapshot(copies, schedules)
        image = _read_image(raw, name)
        space = self.cache.disks.space()
        return ImageSnapshot(
            image.copies,
            schedules,
            nodes={each.name: each.value for each in self.cache.nodes.all().values()},
            needed_disks=disks_that_need_image(*self._users(name), name),
            candidates=candidate_disks(self.cache.cluster(), space, image.image),
            space=space,
        )

    def _users(self, image: str) -> tuple[list[Volume], list[Replica]]:
        names = sorted(self.cache.disks.volumes_of(image))
        volumes = [each.volume for name in names if isinstance(each := self.cache.volumes.value(name), VolumeObject)]
        replicas = [self.cache.replicas.value(each) for name in names for each in self.cache.disks.replicas_of(name)]
        return volumes, [each for each in replicas if isinstance(each, Replica)]


def _read_image(raw: bytes, name: str) -> ImageObject:
    """Returns the image, or raises an UnreadableError if something that decisions depend on cannot be read."""
    try:
        image = read_image(raw)
    except ObjectError as error:
        raise UnreadableError(f"backing image {name} cannot be read: {error}") from error
    if isinstance(image, Fault):
        raise UnreadableError(f"backing image {name} cannot be read: {image}")
    if image.copies.faults:
        faults = "; ".join(str(fault) for fault in image.copies.faults)
        raise UnreadableError(f"backing image {name} cannot be read: {faults}")
    return image
