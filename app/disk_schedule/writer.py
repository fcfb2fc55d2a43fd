"""Carries out decisions: one write after the other, until one fails. Each write is made against the version that was read. 409 means
that another writer was faster. It is raised like every other failure; the work queue then requeues the key, and everything is read
and decided again.

`ScheduleWriter` writes DiskSchedules, each against its newest version, with one writer at a time per disk in this process.

Data flow: a caller describes a change of one disk → it waits until no other write of this disk is under way → all changes that
wait for the disk by then are applied to the newest cached version, in one PUT → the response is stored in the cache, before the
watch delivers it. After 409 the watch is about to deliver a newer version: the changes are applied to that, a few times.

A change of a request was decided from some version of the DiskSchedule. It is applied to a newer version only if that has the
same request and the same answer for this name: what else changed does not concern it. Otherwise it fails like a conflict, and
is decided again. So neither other requests on the disk nor other writers hold it up.

A withdrawal is left out if its object is on the disk. The object is read after the version to which the withdrawal is applied,
for every version anew: a controller that places the object there afterwards, and requests its bytes, makes another version.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import structlog

from app.disk_schedule.controller_cache import ControllerCache, Informer, InformerObject
from app.kube.client import ApiError, KubeClient, pages
from app.kube.resources import DISK_SCHEDULES, LONGHORN_BACKING_IMAGES, LONGHORN_REPLICAS, LONGHORN_VOLUMES, Resource
from scheduler_core import errors
from scheduler_core.convert import disk_schedule as convert
from scheduler_core.convert.wire_types import header
from scheduler_core.disk_schedule import writes as disk_writes
from scheduler_core.disk_schedule.writes import set_requirement
from scheduler_core.model.disk_schedule import FINALIZER, Allocation, DiskSchedule, DiskScheduleSpec, Fault, RequestKind
from scheduler_core.model.longhorn import VOLUME_LABEL
from scheduler_core.structs import Struct, field

Put = Callable[[str, Mapping[str, Any], str], Awaitable[InformerObject[DiskSchedule]]]
"""Replaces a DiskSchedule, or its status, at the version in the body; the arguments are name, body and subresource."""
IsOnDisk = Callable[[disk_writes.SetRequirement], Awaitable[bool]]
"""Reads whether the object of a request is on the disk now."""
Decide = Callable[[InformerObject[DiskSchedule], DiskSchedule], Awaitable[Mapping[str, Any] | None]]
"""Returns the body to write, None if the version is up to date."""

# A writer that is faster every time has written this often within one call of ours each.
_MAX_ATTEMPTS = 12
# The conflict proves that there is a newer version: a watch that does not show it by then is not connected.
_WATCH_TIMEOUT = 2.0


class _Disk(Struct):
    """The writes of one disk that wait."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the writer
    changes: "list[_Change]" = []  # what the next writer applies


class _Change(Struct):
    """A change of a request."""

    write: disk_writes.SetRequirement
    decided_from: tuple[object, ...]  # request and answer in the version that it was decided from
    done: bool = False  # whether it was carried out, or failed
    error: ApiError | None = None  # why it failed


class ScheduleWriter:
    """Owner of the writes of DiskSchedules.

    Args:
        schedules: the cache, which has the newest version
        put: writes
        is_on_disk: asked before a request is withdrawn
    """

    def __init__(self, schedules: Informer[DiskSchedule], put: Put, is_on_disk: IsOnDisk) -> None:
        self._schedules = schedules
        self._put = put
        self._is_on_disk = is_on_disk
        self._disks: defaultdict[str, _Disk] = defaultdict(_Disk)

    async def set_requirement(self, write: disk_writes.SetRequirement, decided_from: DiskSchedule) -> None:
        """Changes one request. Raises an ApiError if a call failed; `conflict` if the request or its answer is not what
        the decision was made from.
        """
        change = _Change(write, _entry(decided_from, write))
        disk = self._disks[write.disk]
        disk.changes.append(change)
        try:
            async with disk.lock:
                if not change.done:
                    await self._write_changes(write.disk, disk)
        finally:
            if change in disk.changes:
                disk.changes.remove(change)
            self._forget(write.disk)
        if change.error is not None:
            raise change.error

    async def write_status(self, name: str, decide: Decide) -> InformerObject[DiskSchedule] | None:
        """Writes the status, as `_write_newest`."""
        try:
            async with self._disks[name].lock:
                return await self._write_newest(name, decide, "status")
        finally:
            self._forget(name)

    async def _write_changes(self, name: str, disk: _Disk) -> None:
        changes = disk.changes
        disk.changes = []

        async def apply(cached: InformerObject[DiskSchedule], schedule: DiskSchedule) -> Mapping[str, Any] | None:
            withdrawals = [change for change in changes if not change.write.size]
            on_disk = await asyncio.gather(*(self._is_on_disk(change.write) for change in withdrawals))
            needed = [change for change, is_on_disk in zip(withdrawals, on_disk, strict=True) if is_on_disk]
            spec = _apply([change for change in changes if change not in needed], schedule)
            return None if spec is schedule.spec else convert.with_spec(cached.raw, spec)

        try:
            if await self._write_newest(name, apply, "") is None:
                for change in changes:
                    if change.write.size:
                        change.error = _conflict(name, "there is no DiskSchedule that can be read by now")
        except ApiError as error:
            for change in changes:
                change.error = change.error or error
        finally:
            for change in changes:
                change.done = True

    async def _write_newest(self, name: str, decide: Decide, subresource: str) -> InformerObject[DiskSchedule] | None:
        """Decides about the newest version and writes what follows; after a conflict, decides again. Returns the version
        after that; None if there is no DiskSchedule that can be read. Raises an ApiError if a call failed; `conflict`
        if other writers were faster every time.
        """
        for attempt in range(_MAX_ATTEMPTS):
            cached = self._schedules.get(name)
            if cached is None or isinstance(cached.value, Fault):
                return None
            body = await decide(cached, cached.value)
            if body is None:
                return cached
            try:
                return await self._put(name, body, subresource)
            except ApiError as error:
                if not error.conflict or attempt == _MAX_ATTEMPTS - 1:
                    raise
                # The watch is about to deliver the version that the conflict was with.
                if not await self._schedules.wait_for_other_version(name, cached.version, _WATCH_TIMEOUT):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _forget(self, name: str) -> None:
        disk = self._disks.get(name)
        if disk is not None and not disk.changes and not disk.lock.locked():
            del self._disks[name]


def _apply(changes: list[_Change], schedule: DiskSchedule) -> DiskScheduleSpec:
    """Returns the spec with the changes that were decided from the request and answer that `schedule` has."""
    # Every other change fails.
    spec = schedule.spec
    for change in changes:
        write = change.write
        if _entry(schedule, write) != change.decided_from:
            if spec.requests(write.kind).get(write.name, 0) != write.size:
                change.error = _conflict(schedule.name, "there is another request or answer by now")
        else:
            change.error = None
            spec = set_requirement(spec, write.kind, write.name, write.size)
    return spec


def _conflict(name: str, problem: str) -> ApiError:
    return ApiError(f"PUT DiskSchedule {name}", 409, "Conflict", problem)


def _entry(schedule: DiskSchedule, write: disk_writes.SetRequirement) -> tuple[object, ...]:
    allocation: Allocation | None = schedule.status.allocations(write.kind).get(write.name)
    return schedule.spec.requests(write.kind).get(write.name), allocation, schedule.deleting


log = structlog.get_logger("controllers")

_OBJECTS = {RequestKind.REPLICA: LONGHORN_REPLICAS, RequestKind.BACKING_IMAGE: LONGHORN_BACKING_IMAGES}
_MAX_LABEL_LENGTH = 63


class NotNowError(errors.CoreError):
    """This process may not write: it does not lead, or cannot decide now."""


class ReadObjects(Struct):
    """The objects that a decision was made from. A write stores its response here, for the next write of the same
    object.
    """

    # The DiskSchedules that the decision was made from, by disk UUID; one that cannot be read by now is not written.
    schedules: dict[str, DiskSchedule]
    volume: bytes | None = None
    # Replicas and BackingImages by kind and name, as bytes.
    objects: dict[tuple[RequestKind, str], bytes] = {}


class ObjectWriter:
    """Reads and writes single objects. Every method raises an ApiError if the API server refused or did not answer;
    `conflict` if the object exists already, or has another version now. Writing raises a NotNowError if this process may
    not write.

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
        """Returns an object as it is now, None if there is none."""
        return await self._client.find(resource.path(self._namespace, name))

    async def read_schedule(self, name: str) -> None:
        raw = await self.read(DISK_SCHEDULES, name)
        if raw is not None:
            self._cache.schedules.store(raw)

    async def list_all(self, resource: Resource) -> list[bytes]:
        """Returns all objects of a kind as the API server has them; none if the kind does not exist."""
        items: list[bytes] = []
        try:
            async for page in pages(self._client, resource.path(self._namespace), {}):
                items += map(bytes, page.items)
        except ApiError as error:
            if not error.not_found:
                raise
        return items

    async def list_replicas(self, volume: str, cached_names: Iterable[str]) -> dict[str, bytes]:
        """Returns a volume's replicas as they are now, by name, found by Longhorn's label or by the names in the cache."""
        replicas: dict[str, bytes] = {}
        if len(volume) <= _MAX_LABEL_LENGTH:
            query = {"labelSelector": f"{VOLUME_LABEL}={volume}"}
            async for page in pages(self._client, LONGHORN_REPLICAS.path(self._namespace), query):
                replicas |= {header(raw).name: bytes(raw) for raw in page.items}
        for name in sorted(set(cached_names) - replicas.keys()):
            raw = await self.read(LONGHORN_REPLICAS, name)
            if raw is not None:
                replicas[name] = raw
        return replicas

    async def create(self, resource: Resource, body: Mapping[str, Any]) -> bytes:
        """Creates an object; returns it as it was stored."""
        self._require_permission()
        return await self._client.create(resource.path(self._namespace), body)

    async def delete(self, resource: Resource, name: str, options: Mapping[str, Any]) -> None:
        self._require_permission()
        await self._client.delete(resource.path(self._namespace, name), options)

    async def put_schedule(
        self, name: str, body: Mapping[str, Any], subresource: str = ""
    ) -> InformerObject[DiskSchedule]:
        """Replaces a DiskSchedule, or its status, at the version in `body`."""
        raw = await self._replace(DISK_SCHEDULES, name, body, subresource)
        return self._cache.schedules.store(raw)

    async def remove_finalizer(self, resource: Resource, raw: bytes) -> None:
        """Removes the finalizer from an object. The response is ignored: the object may be gone with this write."""
        await self._replace(resource, header(raw).name, convert.set_finalizer(raw, present=False))

    async def write_all(self, writes: Iterable[disk_writes.Write], read_objects: ReadObjects) -> None:
        """Carries out writes in their order; the first that fails ends them."""
        for write in writes:
            match write:
                case disk_writes.SetRequirement():
                    await self._set_requirement(write, read_objects)
                case disk_writes.AssignReplica(replica, node, disk, path):
                    place = partial(convert.with_replica_fields, place=(node, disk, path))
                    await self._update(read_objects, RequestKind.REPLICA, replica, place)
                case disk_writes.SetReplicaSize(replica, size):
                    resize = partial(convert.with_replica_fields, size=size)
                    await self._update(read_objects, RequestKind.REPLICA, replica, resize)
                case disk_writes.ChangeCopies(image, added, removed):
                    copies = partial(convert.with_copies, added=added, dropped=removed)
                    await self._update(read_objects, RequestKind.BACKING_IMAGE, image, copies)
                case disk_writes.RemoveFinalizer(kind, name):
                    raw = read_objects.objects.get((kind, name))
                    if raw is not None and FINALIZER in header(raw).finalizers:
                        await self.remove_finalizer(_OBJECTS[kind], raw)
                case disk_writes.SetVolumeCondition(condition):
                    if read_objects.volume is None:
                        raise AssertionError("only a volume that was read is reported on")
                    body = convert.with_volume_condition(read_objects.volume, condition)
                    name = header(read_objects.volume).name
                    log.info("volume", volume=name, status=condition.status, reason=condition.reason)
                    read_objects.volume = await self._replace(LONGHORN_VOLUMES, name, body, "status")
                    self._cache.volumes.store(read_objects.volume)

    async def _set_requirement(self, write: disk_writes.SetRequirement, read_objects: ReadObjects) -> None:
        schedule = read_objects.schedules.get(write.disk)
        if schedule is None:
            if not isinstance(self._cache.schedules.value(write.disk), Fault):
                raise _conflict(write.disk, "it is not among those that the decision was made from")
            return
        await self.schedules.set_requirement(write, schedule)
        newest = self._cache.schedules.value(write.disk)
        if isinstance(newest, Fault):
            del read_objects.schedules[write.disk]
        elif newest is not None:
            read_objects.schedules[write.disk] = newest

    async def _is_on_disk(self, write: disk_writes.SetRequirement) -> bool:
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

    async def _replace(self, resource: Resource, name: str, body: Mapping[str, Any], subresource: str = "") -> bytes:
        self._require_permission()
        return await self._client.replace(resource.path(self._namespace, name, subresource), body)

    def _require_permission(self) -> None:
        if not self._allowed():
            raise NotNowError("this process may not write now")
