"""Carries out what was decided: one write after the other, each against the version that was read, until one fails.

409 means that somebody was faster. It is raised like every other failure; the work queue then has everything read and decided again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from app.disk_schedule.informer import Collection, Seen, schedule_seen
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
from scheduler_core.convert.snapshot_kinds import KINDS, LONGHORN_GROUP
from scheduler_core.disk_schedule.requests import set_requirement
from scheduler_core.disk_schedule.writes import Assign, Copies, Finalize, Grow, Report, Require, Write
from scheduler_core.errors import CoreError, ObjectError
from scheduler_core.model.disk_schedule import FINALIZER, DiskSchedule, Fault, Kind
from scheduler_core.model.longhorn import Replica

log = structlog.get_logger("controllers")

_OBJECTS: Final = {Kind.REPLICA: LONGHORN_REPLICAS, Kind.BACKING_IMAGE: LONGHORN_BACKING_IMAGES}
_VOLUME_LABEL: Final = "longhornvolume"
_LONGEST_LABEL: Final = 63


class NotNowError(CoreError):
    """This process may not write any more: it does not lead, or another allocator is there."""


@dataclass(slots=True)
class Read:
    """The objects a decision was made from, as bytes; a write puts its answer there, for the next write of the same object."""

    schedules: dict[str, Seen[DiskSchedule]]
    volume: bytes | None = None
    objects: dict[tuple[Kind, str], bytes] = field(default_factory=dict[tuple[Kind, str], bytes])


class Carrier:
    """Reads and writes single objects.

    Args:
        allowed: asked before every write; it holds for a leader without a rival
    """

    def __init__(
        self, client: KubeClient, namespace: str, schedules: Collection[DiskSchedule], allowed: Callable[[], bool]
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._schedules = schedules
        self._allowed = allowed

    async def read(self, resource: Resource, name: str) -> bytes | None:
        """An object as it is now, None if there is none.

        Raises:
            ApiError: the API server refused or did not answer
        """
        try:
            return await self._client.get(resource.path(self._namespace, name))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def replicas_of(self, volume: str, known: Iterable[str]) -> dict[str, bytes]:
        """A volume's replicas as they are now: by Longhorn's label, and those of `known` names that lack it.

        Raises:
            ApiError: as read
        """
        found: dict[str, bytes] = {}
        if len(volume) <= _LONGEST_LABEL:
            query = {"labelSelector": f"{_VOLUME_LABEL}={volume}"}
            async for page in pages(self._client, LONGHORN_REPLICAS.path(self._namespace), query):
                found |= {header(raw).name: bytes(raw) for raw in page.items}
        for name in sorted(set(known) - found.keys()):
            raw = await self.read(LONGHORN_REPLICAS, name)
            if raw is not None:
                found[name] = raw
        return found

    async def create(self, resource: Resource, body: Mapping[str, Any]) -> None:
        """Creates an object.

        Raises:
            ApiError: as read; `conflict` if it is there already
            NotNowError: this process may not write
        """
        self._check()
        await self._client.create(resource.path(self._namespace), body)

    async def delete(self, resource: Resource, name: str, options: Mapping[str, Any]) -> None:
        """Deletes an object under preconditions.

        Raises:
            ApiError: as read; `conflict` if they do not hold
            NotNowError: this process may not write
        """
        self._check()
        await self._client.delete(resource.path(self._namespace, name), options)

    async def put_schedule(self, name: str, body: Mapping[str, Any], subresource: str = "") -> Seen[DiskSchedule]:
        """Writes a DiskSchedule, or its status, at the version in `body`.

        Raises:
            ApiError: as read; `conflict` if somebody was faster
            NotNowError: this process may not write
        """
        raw = await self._put(DISK_SCHEDULES, name, body, subresource)
        seen = schedule_seen(raw)
        self._schedules.learn(seen)
        return seen

    async def last_write(self, resource: Resource, name: str, body: Mapping[str, Any]) -> None:
        """Writes an object that may be gone with it: the write that takes a finalizer off.

        Raises:
            ApiError: as read
            NotNowError: this process may not write
        """
        await self._put(resource, name, body)

    async def carry(self, writes: Iterable[Write], read: Read) -> None:
        """Carries out writes in their order; the first that fails ends them.

        Raises:
            ApiError: as read; `conflict` if somebody was faster
            NotNowError: this process may not write
        """
        for write in writes:
            match write:
                case Require():
                    await self._require(write, read)
                case Assign(replica, node, disk, path):
                    await self._object(read, Kind.REPLICA, replica, _changing(place=(node, disk, path)))
                case Grow(replica, size):
                    await self._object(read, Kind.REPLICA, replica, _changing(size=size))
                case Copies(image, added, dropped):
                    await self._object(read, Kind.BACKING_IMAGE, image, _copying(added, dropped))
                case Finalize(kind, name):
                    await self._finalize(read, kind, name)
                case Report(condition):
                    if read.volume is None:
                        raise AssertionError("only a volume that was read is reported on")
                    body = convert.changed_condition(read.volume, condition)
                    name = header(read.volume).name
                    log.info("volume", volume=name, status=condition.status, reason=condition.reason)
                    read.volume = await self._put(LONGHORN_VOLUMES, name, body, "status")

    async def _require(self, write: Require, read: Read) -> None:
        seen = read.schedules[write.disk]
        if isinstance(seen.value, Fault) or (write.stray and await self._is_there(write)):
            return
        spec = set_requirement(seen.value.spec, write.kind, write.name, write.size)
        if spec is seen.value.spec:
            return
        read.schedules[write.disk] = await self.put_schedule(write.disk, convert.changed_spec(seen.raw, spec))

    async def _is_there(self, write: Require) -> bool:
        """Whether an object, read once more, says that it is on the disk of a stray request after all."""
        raw = await self.read(_OBJECTS[write.kind], write.name)
        if raw is None:
            return False
        if write.kind is Kind.BACKING_IMAGE:
            image = convert.image_copies(raw)
            return isinstance(image, Fault) or write.disk in image.wanted or write.disk in image.found
        replica = read_replica(raw)
        return isinstance(replica, Fault) or replica.disk_id == write.disk

    async def _object(self, read: Read, kind: Kind, name: str, change: Callable[[bytes], Mapping[str, Any]]) -> None:
        raw = read.objects[kind, name]
        read.objects[kind, name] = await self._put(_OBJECTS[kind], name, change(raw))

    async def _finalize(self, read: Read, kind: Kind, name: str) -> None:
        raw = read.objects.get((kind, name))
        if raw is None or FINALIZER not in header(raw).finalizers:
            return
        await self.last_write(_OBJECTS[kind], name, convert.without_finalizer(raw))

    async def _put(self, resource: Resource, name: str, body: Mapping[str, Any], subresource: str = "") -> bytes:
        self._check()
        return await self._client.replace(resource.path(self._namespace, name, subresource), body)

    def _check(self) -> None:
        if not self._allowed():
            raise NotNowError("this process may not write now")


def _changing(
    *, place: tuple[str, str, str] | None = None, size: int | None = None
) -> Callable[[bytes], Mapping[str, Any]]:
    return lambda raw: convert.changed_replica(raw, place=place, size=size)


def _copying(added: tuple[str, ...], dropped: tuple[str, ...]) -> Callable[[bytes], Mapping[str, Any]]:
    return lambda raw: convert.changed_copies(raw, added, dropped)


def read_replica(raw: bytes) -> Replica | Fault:
    """A replica as the API server sends it; a Fault if it cannot be read."""
    try:
        _, value = KINDS[LONGHORN_GROUP, "Replica"].decode(raw)
    except ObjectError as error:
        return Fault(error.field, error.problem)
    if not isinstance(value, Replica):
        raise TypeError(f"a replica is read as {type(value).__name__}")
    return value
