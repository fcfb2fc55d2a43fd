"""Carries out decisions: one write after the other, until one fails. Each write is made against the version that was
read. 409 means that another writer was faster. It is raised like every other failure; the work queue then requeues the
key, and everything is read and decided again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from app.disk_schedule.informer import InformerObject
from app.disk_schedule.schedule_writer import ScheduleWriter
from app.disk_schedule.watches import ControllerCache
from app.kube.client import ApiError, KubeClient
from app.kube.paging import pages
from app.kube.resources import (
    DISK_SCHEDULES,
    LONGHORN_BACKING_IMAGES,
    LONGHORN_REPLICAS,
    LONGHORN_VOLUMES,
    Resource,
)
from scheduler_core.convert import disk_schedule as convert
from scheduler_core.convert.object_header import header
from scheduler_core.disk_schedule.writes import (
    AssignReplica,
    ChangeCopies,
    RemoveFinalizer,
    SetReplicaSize,
    SetRequirement,
    SetVolumeCondition,
    Write,
)
from scheduler_core.errors import CoreError
from scheduler_core.model.disk_schedule import FINALIZER, DiskSchedule, Fault, RequestKind

log = structlog.get_logger("controllers")

_OBJECTS: Final = {RequestKind.REPLICA: LONGHORN_REPLICAS, RequestKind.BACKING_IMAGE: LONGHORN_BACKING_IMAGES}
_VOLUME_LABEL: Final = "longhornvolume"
_MAX_LABEL_LENGTH: Final = 63


class NotNowError(CoreError):
    """This process may not write: it does not lead, or cannot decide now."""


@dataclass(slots=True)
class ReadObjects:
    """The objects that a decision was made from. A write stores its response here, for the next write of the same
    object.
    """

    # The DiskSchedules that the decision was made from, by disk UUID.
    schedules: dict[str, InformerObject[DiskSchedule]]
    volume: bytes | None = None
    # Replicas and BackingImages by kind and name, as bytes.
    objects: dict[tuple[RequestKind, str], bytes] = field(default_factory=dict[tuple[RequestKind, str], bytes])


class ObjectWriter:
    """Reads and writes single objects.

    Args:
        client: the API server
        namespace: Longhorn's namespace
        cache: receives every DiskSchedule, Volume and Replica that was written, before the watch delivers it
        allowed: checked before every write; whether this process may write now
    """

    def __init__(self, client: KubeClient, namespace: str, cache: ControllerCache, allowed: Callable[[], bool]) -> None:
        self._client = client
        self._namespace = namespace
        self._cache = cache
        self._allowed = allowed
        self.schedules = ScheduleWriter(cache.schedules, self.put_schedule, self._is_on_disk)

    async def read(self, resource: Resource, name: str) -> bytes | None:
        """Returns an object as it is now, None if there is none.

        Raises:
            ApiError: the API server refused or did not answer
        """
        try:
            return await self._client.get(resource.path(self._namespace, name))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def read_schedule(self, name: str) -> None:
        """Reads a DiskSchedule into the cache, as it is now.

        Raises:
            ApiError: as read
        """
        raw = await self.read(DISK_SCHEDULES, name)
        if raw is not None:
            self._cache.schedules.store(raw)

    async def list_all(self, resource: Resource) -> list[bytes]:
        """Returns all objects of a kind as the API server has them; none if the kind does not exist.

        Raises:
            ApiError: as read
        """
        items: list[bytes] = []
        try:
            async for page in pages(self._client, resource.path(self._namespace), {}):
                items += map(bytes, page.items)
        except ApiError as error:
            if not error.not_found:
                raise
        return items

    async def list_replicas(self, volume: str, cached_names: Iterable[str]) -> dict[str, bytes]:
        """Returns a volume's replicas as they are now, by name, found by Longhorn's label or by the names in the cache.

        Raises:
            ApiError: as read
        """
        replicas: dict[str, bytes] = {}
        if len(volume) <= _MAX_LABEL_LENGTH:
            query = {"labelSelector": f"{_VOLUME_LABEL}={volume}"}
            async for page in pages(self._client, LONGHORN_REPLICAS.path(self._namespace), query):
                replicas |= {header(raw).name: bytes(raw) for raw in page.items}
        for name in sorted(set(cached_names) - replicas.keys()):
            raw = await self.read(LONGHORN_REPLICAS, name)
            if raw is not None:
                replicas[name] = raw
        return replicas

    async def create(self, resource: Resource, body: Mapping[str, Any]) -> bytes:
        """Creates an object; returns it as it was stored.

        Raises:
            ApiError: as read; `conflict` if it exists already
            NotNowError: this process may not write
        """
        self._require_permission()
        return await self._client.create(resource.path(self._namespace), body)

    async def delete(self, resource: Resource, name: str, options: Mapping[str, Any]) -> None:
        """Deletes an object under preconditions.

        Raises:
            ApiError: as read; `conflict` if the preconditions do not hold
            NotNowError: this process may not write
        """
        self._require_permission()
        await self._client.delete(resource.path(self._namespace, name), options)

    async def put_schedule(
        self, name: str, body: Mapping[str, Any], subresource: str = ""
    ) -> InformerObject[DiskSchedule]:
        """Replaces a DiskSchedule, or its status, at the version in `body`.

        Raises:
            ApiError: as read; `conflict` if the object has another version now
            NotNowError: this process may not write
        """
        raw = await self._replace(DISK_SCHEDULES, name, body, subresource)
        return self._cache.schedules.store(raw)

    async def put_without_finalizer(self, resource: Resource, name: str, body: Mapping[str, Any]) -> None:
        """Replaces an object by one without its finalizer. The response is ignored: the object may be gone with this
        write.

        Raises:
            ApiError: as read
            NotNowError: this process may not write
        """
        await self._replace(resource, name, body)

    async def write_all(self, writes: Iterable[Write], read_objects: ReadObjects) -> None:
        """Carries out writes in their order; the first that fails ends them.

        Raises:
            ApiError: as read; `conflict` if an object has another version now
            NotNowError: this process may not write
        """
        for write in writes:
            match write:
                case SetRequirement():
                    await self._set_requirement(write, read_objects)
                case AssignReplica(replica, node, disk, path):
                    await self._update(
                        read_objects, RequestKind.REPLICA, replica, _replica_change(place=(node, disk, path))
                    )
                case SetReplicaSize(replica, size):
                    await self._update(read_objects, RequestKind.REPLICA, replica, _replica_change(size=size))
                case ChangeCopies(image, added, removed):
                    await self._update(read_objects, RequestKind.BACKING_IMAGE, image, _copies_change(added, removed))
                case RemoveFinalizer(kind, name):
                    await self._remove_finalizer(read_objects, kind, name)
                case SetVolumeCondition(condition):
                    if read_objects.volume is None:
                        raise AssertionError("only a volume that was read is reported on")
                    body = convert.with_volume_condition(read_objects.volume, condition)
                    name = header(read_objects.volume).name
                    log.info("volume", volume=name, status=condition.status, reason=condition.reason)
                    read_objects.volume = await self._replace(LONGHORN_VOLUMES, name, body, "status")
                    self._cache.volumes.store(read_objects.volume)

    async def _set_requirement(self, write: SetRequirement, read_objects: ReadObjects) -> None:
        schedule = read_objects.schedules[write.disk].value
        if isinstance(schedule, Fault):
            return
        await self.schedules.set_requirement(write, schedule)
        newest = self._cache.schedules.get(write.disk)
        if newest is not None:
            read_objects.schedules[write.disk] = newest

    async def _is_on_disk(self, write: SetRequirement) -> bool:
        """Whether the object of a request is on the disk, as the API server has it now, and not being deleted."""
        raw = await self.read(_OBJECTS[write.kind], write.name)
        if raw is None or header(raw).deleting:
            return False
        if write.kind is RequestKind.BACKING_IMAGE:
            image = convert.backing_image_copies(raw)
            # An object that cannot be read may be on the disk.
            return isinstance(image, Fault) or write.disk in image.wanted_disks or write.disk in image.copy_states
        replica = self._cache.replicas.object_of(raw).value
        return isinstance(replica, Fault) or replica.disk_id == write.disk

    async def _update(
        self, read_objects: ReadObjects, kind: RequestKind, name: str, change: Callable[[bytes], Mapping[str, Any]]
    ) -> None:
        raw = await self._replace(_OBJECTS[kind], name, change(read_objects.objects[kind, name]))
        read_objects.objects[kind, name] = raw
        if kind is RequestKind.REPLICA:
            self._cache.replicas.store(raw)

    async def _remove_finalizer(self, read_objects: ReadObjects, kind: RequestKind, name: str) -> None:
        raw = read_objects.objects.get((kind, name))
        if raw is None or FINALIZER not in header(raw).finalizers:
            return
        await self.put_without_finalizer(_OBJECTS[kind], name, convert.without_finalizer(raw))

    async def _replace(self, resource: Resource, name: str, body: Mapping[str, Any], subresource: str = "") -> bytes:
        self._require_permission()
        return await self._client.replace(resource.path(self._namespace, name, subresource), body)

    def _require_permission(self) -> None:
        if not self._allowed():
            raise NotNowError("this process may not write now")


def _replica_change(
    *, place: tuple[str, str, str] | None = None, size: int | None = None
) -> Callable[[bytes], Mapping[str, Any]]:
    return lambda raw: convert.with_replica_fields(raw, place=place, size=size)


def _copies_change(added: tuple[str, ...], removed: tuple[str, ...]) -> Callable[[bytes], Mapping[str, Any]]:
    return lambda raw: convert.with_copies(raw, added, removed)
