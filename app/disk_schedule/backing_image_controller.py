"""The backing image controller: on which disks copies are, asked for, and given back when the image goes."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from app.disk_schedule.controller import Context, Controller
from app.disk_schedule.informer import ImageSeen, VolumeSeen, read_image
from app.disk_schedule.orphan_requests import Orphans
from app.disk_schedule.writer import Read
from app.kube.resources import LONGHORN_BACKING_IMAGES
from app.runtime.work_queue import Again
from scheduler_core.convert import disk_schedule as convert
from scheduler_core.disk_schedule.backing_image_placement import candidates, needed
from scheduler_core.disk_schedule.backing_images import ImageSight, decided
from scheduler_core.disk_schedule.candidates import unasked_on
from scheduler_core.disk_schedule.replica_release import changed
from scheduler_core.disk_schedule.writes import Require
from scheduler_core.errors import CoreError, ObjectError
from scheduler_core.model.disk_schedule import DiskSchedule, Fault, ImageCopies, Kind
from scheduler_core.model.longhorn import Replica, Volume

log = structlog.get_logger("controllers")


class UnreadableError(CoreError):
    """A backing image has no condition that could say what is wrong with it, so the log and a metric do."""


class ImageController(Controller):
    """Looks at backing images: when one changes, when a disk has answered, and when a replica comes that needs one."""

    name = "backing-image"

    def __init__(self, context: Context) -> None:
        self._orphans = Orphans(context.orphans_after, context.clock)
        super().__init__(context)

    def listen(self) -> None:
        """Images, answers and requests about them, and the replicas that are made from them.

        Volumes, too, because a replica does not say which image it is made from: its volume may be seen after it.
        """
        self.watches.images.listen(self._image_changed)
        self.watches.schedules.listen(self._schedule_changed)
        self.watches.replicas.listen(self._replica_changed)
        self.watches.volumes.listen(self._volume_changed)

    def everything(self) -> Iterable[str]:
        """All images, and all requests for one."""
        asked = {name for each in self.watches.schedules.readable().values() for name in each.spec.backing_images}
        return sorted(asked | self.watches.images.all().keys())

    def _image_changed(self, name: str, _before: ImageSeen | Fault | None, after: ImageSeen | Fault | None) -> None:
        if after is None and self._works:
            self._orphans.gone(name)
        self.look(name)

    def _schedule_changed(
        self, _name: str, before: DiskSchedule | Fault | None, after: DiskSchedule | Fault | None
    ) -> None:
        was = before if isinstance(before, DiskSchedule) else DiskSchedule("")
        now = after if isinstance(after, DiskSchedule) else DiskSchedule("")
        new = now.spec.backing_images.keys() - was.spec.backing_images.keys()
        strange = {name for name in new if self.watches.images.get(name) is None}
        for name in sorted(strange | changed(was.status.backing_images, now.status.backing_images)):
            self.look(name)

    def _replica_changed(self, _name: str, before: Replica | Fault | None, after: Replica | Fault | None) -> None:
        places = {each.disk_id if isinstance(each, Replica) else "" for each in (before, after)}
        replica = after if isinstance(after, Replica) else before
        if not isinstance(replica, Replica) or len(places) == 1:
            return
        volume = self.watches.volumes.value(replica.volume)
        if volume is not None and not isinstance(volume, Fault):
            self.look(volume.volume.backing_image)

    def _volume_changed(self, _name: str, before: VolumeSeen | Fault | None, after: VolumeSeen | Fault | None) -> None:
        was, now = (each.volume.backing_image if isinstance(each, VolumeSeen) else "" for each in (before, after))
        if was != now:
            self.look(was)
            self.look(now)

    async def reconcile(self, key: str) -> Again | None:
        """Reads DiskSchedules first, then the image; decides; writes."""
        schedules = self.watches.schedules.all()
        values = {name: each.value for name, each in schedules.items() if not isinstance(each.value, Fault)}
        raw = await self.carrier.read(LONGHORN_BACKING_IMAGES, key)
        if raw is None:
            await self._released(key, values, Read(schedules))
            return None
        self._orphans.there(key)
        sight = self._sight(raw, key, values)
        decision = decided(sight)
        await self.carrier.carry(decision.writes, Read(schedules, objects={(Kind.BACKING_IMAGE, key): raw}))
        # Of an image without a size there is nothing to ask for once a copy is to be made; that it has a size then is an event.
        return Again.WAITING if decision.waiting and (sight.image.size or not sight.image.wanted) else None

    def _sight(self, raw: bytes, name: str, values: dict[str, DiskSchedule]) -> ImageSight:
        copies = convert.image_copies(raw)
        if isinstance(copies, ImageCopies) and copies.deleting:
            return ImageSight(copies, values)
        seen, cluster = _readable(raw, name), self.watches.cluster()
        return ImageSight(
            seen.copies,
            values,
            {each.name: each.value for each in self.watches.nodes.all().values()},
            needed(self._volumes(), self.watches.replicas.readable().values(), name),
            candidates(cluster, values, seen.image),
            unasked_on(cluster, values),
        )

    def _volumes(self) -> list[Volume]:
        return [seen.volume for seen in self.watches.volumes.readable().values()]

    async def _released(self, name: str, values: dict[str, DiskSchedule], read: Read) -> None:
        """Withdraws what is asked for an image that does not exist."""
        disks = sorted(uuid for uuid, each in values.items() if name in each.spec.backing_images)
        if disks and (wait := self._orphans.wait(name)) > 0:
            self.queue.add_later(name, wait)
            return
        if disks:
            log.info("a request is withdrawn: there is no such backing image", image=name)
        await self.carrier.carry((Require(uuid, Kind.BACKING_IMAGE, name, 0, stray=True) for uuid in disks), read)
        self._orphans.there(name)


def _readable(raw: bytes, name: str) -> ImageSeen:
    """The image, if everything that is decided by can be read.

    Raises:
        UnreadableError: it cannot be read
    """
    try:
        seen = read_image(raw)
    except ObjectError as error:
        raise UnreadableError(f"backing image {name} cannot be read: {error}") from error
    if isinstance(seen, Fault):
        raise UnreadableError(f"backing image {name} cannot be read: {seen}")
    if seen.copies.faults:
        faults = "; ".join(str(fault) for fault in seen.copies.faults)
        raise UnreadableError(f"backing image {name} cannot be read: {faults}")
    return seen
