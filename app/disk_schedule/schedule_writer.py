"""Writes DiskSchedules, each against its newest version, with one writer at a time per disk in this process.

Data flow: a caller describes a change of one disk → it waits until no other write of this disk is under way → all changes that
wait for the disk by then are applied to the newest cached version, in one PUT → the response is stored in the cache, before the
watch delivers it. After 409 the watch is about to deliver a newer version: the changes are applied to that, a few times.

A change of a request was decided from some version of the DiskSchedule. It is applied to a newer version only if that has the
same request and the same answer for this name: what else changed does not concern it. Otherwise it fails like a conflict, and
is decided again. So neither other requests on the disk nor other writers hold it up.

A withdrawal is left out if its object is on the disk. The object is read after the version to which the withdrawal is applied,
for every version anew: a controller that places the object there afterwards, and requests its bytes, makes another version.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.disk_schedule.informer import Informer, InformerObject
from app.kube.client import ApiError
from scheduler_core.convert import disk_schedule as convert
from scheduler_core.disk_schedule.writes import SetRequirement, set_requirement
from scheduler_core.model.disk_schedule import Allocation, DiskSchedule, DiskScheduleSpec, Fault

Put = Callable[[str, Mapping[str, Any], str], Awaitable[InformerObject[DiskSchedule]]]
"""Replaces a DiskSchedule, or its status, at the version in the body; the arguments are name, body and subresource."""
IsOnDisk = Callable[[SetRequirement], Awaitable[bool]]
"""Reads whether the object of a request is on the disk now."""
Decide = Callable[[InformerObject[DiskSchedule], DiskSchedule], Mapping[str, Any] | None]
"""Returns the body of the status to write, None if it is up to date."""

# A writer that is faster every time has written this often within one call of ours each.
_MAX_ATTEMPTS: Final = 12
_WATCH_TIMEOUT: Final = 2.0


@dataclass(slots=True)
class _Disk:
    """The writes of one disk that wait."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the writer
    changes: list[_Change] = field(default_factory=list["_Change"])  # what the next writer applies


@dataclass(slots=True)
class _Change:
    """A change of a request."""

    write: SetRequirement
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

    async def set_requirement(self, write: SetRequirement, decided_from: DiskSchedule) -> None:
        """Changes one request.

        Raises:
            ApiError: a call failed; `conflict` if the request or its answer is not what the decision was made from
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
        """Decides about the newest version and writes the status; after a conflict, decides again. Returns the version
        after that; None if there is no DiskSchedule that can be read.

        Raises:
            ApiError: a call failed; `conflict` if other writers were faster every time
        """
        disk = self._disks[name]
        try:
            async with disk.lock:
                for attempt in range(_MAX_ATTEMPTS):
                    cached = self._schedules.get(name)
                    if cached is None or isinstance(cached.value, Fault):
                        return None
                    body = decide(cached, cached.value)
                    if body is None:
                        return cached
                    try:
                        return await self._put(name, body, "status")
                    except ApiError as error:
                        await self._wait_for_newer(cached, error, attempt)
        finally:
            self._forget(name)
        raise AssertionError("the last attempt returns or raises")

    async def _write_changes(self, name: str, disk: _Disk) -> None:
        """Applies all waiting changes in one PUT."""
        changes = disk.changes
        disk.changes = []
        try:
            for attempt in range(_MAX_ATTEMPTS):
                cached = self._schedules.get(name)
                if cached is None or isinstance(cached.value, Fault):
                    for change in changes:
                        if change.write.size:
                            change.error = _conflict(name, "there is no DiskSchedule that can be read by now")
                    break
                spec = _apply(await self._without_needed_requests(changes), cached.value)
                if spec is cached.value.spec:
                    break
                try:
                    await self._put(name, convert.with_spec(cached.raw, spec), "")
                    break
                except ApiError as error:
                    await self._wait_for_newer(cached, error, attempt)
        except ApiError as error:
            for change in changes:
                change.error = change.error or error
        finally:
            for change in changes:
                change.done = True

    async def _without_needed_requests(self, changes: list[_Change]) -> list[_Change]:
        """Returns the changes except withdrawals whose object is on the disk."""
        withdrawals = [change for change in changes if not change.write.size]
        on_disk = await asyncio.gather(*(self._is_on_disk(change.write) for change in withdrawals))
        needed = [change for change, is_on_disk in zip(withdrawals, on_disk, strict=True) if is_on_disk]
        return [change for change in changes if change not in needed]

    async def _wait_for_newer(self, cached: InformerObject[DiskSchedule], error: ApiError, attempt: int) -> None:
        """Waits for the version that a conflict was with; raises `error` if there is none in time."""
        if not error.conflict or attempt == _MAX_ATTEMPTS - 1:
            raise error
        if not await self._schedules.wait_for_other_version(cached.name, cached.version, _WATCH_TIMEOUT):
            raise error

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


def _entry(schedule: DiskSchedule, write: SetRequirement) -> tuple[object, ...]:
    """What a change of a request is decided from."""
    allocation: Allocation | None = schedule.status.allocations(write.kind).get(write.name)
    return schedule.spec.requests(write.kind).get(write.name), allocation, schedule.deleting
