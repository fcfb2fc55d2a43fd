"""One writer at a time per disk: changes are applied to the newest version, unless they were decided from something else."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from app.disk_schedule.controller_cache import Informer, InformerObject
from app.disk_schedule.writer import ReadObjects, ScheduleWriter
from app.kube.client import ApiError
from scheduler_core.convert.disk_schedule import read_disk_schedule, with_status
from scheduler_core.disk_schedule.writes import SetRequirement
from scheduler_core.model.disk_schedule import DiskSchedule, DiskScheduleStatus, RequestKind
from tests.builders import Object
from tests.worlds.controllers import World, put


class Server:
    """One DiskSchedule with optimistic concurrency, and a cache that follows it late."""

    def __init__(self, **requests: int) -> None:
        self.version = 0
        self.puts: list[Object] = []  # the bodies that were accepted
        self.conflicts = 0
        # Changes that another writer makes, each just before one of our writes.
        self.foreign: list[Callable[[Object], None]] = []
        self.body: Object = {"metadata": {"name": "u"}, "spec": {"replicas": requests}}
        self.cache = Informer(read_disk_schedule, keep=True)
        self.cache.change("u", self._store())

    def _store(self) -> InformerObject[DiskSchedule]:
        self.version += 1
        self.body = {**self.body, "metadata": {"name": "u", "resourceVersion": str(self.version)}}
        return self.cache.object_of(json.dumps(self.body).encode())

    async def put(self, name: str, body: Mapping[str, Any], subresource: str) -> InformerObject[DiskSchedule]:
        """Answers a PUT."""
        await asyncio.sleep(0.001)
        if self.foreign:
            self.foreign.pop(0)(self.body)
            newer = self._store()
            asyncio.get_running_loop().call_later(0.005, self.cache.change, "u", newer)
        if body["metadata"]["resourceVersion"] != str(self.version):
            self.conflicts += 1
            raise ApiError(f"PUT {name}", 409, "Conflict", "changed")
        self.puts.append(dict(body))
        self.body = {**self.body, **{key: body[key] for key in ("status" if subresource else "spec",)}}
        self._store()
        return self.cache.store(json.dumps(self.body).encode())

    @property
    def requests(self) -> dict[str, int]:
        return dict(self.body["spec"]["replicas"])

    def cached(self) -> DiskSchedule:
        value = self.cache.value("u")
        assert isinstance(value, DiskSchedule)
        return value


def request(name: str, size: int) -> SetRequirement:
    return SetRequirement("u", RequestKind.REPLICA, name, size)


def annotate(body: Object) -> None:
    body["metadata"]["annotations"] = {"count": "1"}


async def is_gone(_: SetRequirement) -> bool:
    return False


async def change(server: Server, *writes: SetRequirement) -> list[BaseException | None]:
    """Makes changes at the same time; returns their errors."""
    writer = ScheduleWriter(server.cache, server.put, is_gone)
    decided_from = server.cached()
    return list(
        await asyncio.gather(*(writer.set_requirement(write, decided_from) for write in writes), return_exceptions=True)
    )


async def test_changes_of_one_disk_that_wait_are_written_together_and_never_conflict() -> None:
    server = Server()
    assert await change(server, *(request(f"r{number}", 5) for number in range(20))) == [None] * 20
    assert (len(server.requests), server.conflicts) == (20, 0)
    assert len(server.puts) <= 2


async def test_a_foreign_writer_that_is_faster_several_times_does_not_hold_up_a_change() -> None:
    server = Server()
    server.foreign = [annotate] * 5
    assert await change(server, request("r", 5)) == [None]
    assert (server.requests, server.conflicts) == ({"r": 5}, 5)


async def test_a_change_decided_from_another_answer_fails_as_a_conflict_and_others_succeed() -> None:
    """A request that was refused may be granted by now; its withdrawal must be decided again."""

    def grant(body: Object) -> None:
        body["status"] = {"replicas": {"refused": {"state": "scheduled", "scheduledSize": 5}}}

    server = Server(refused=5)
    server.foreign = [grant]
    error, none = await change(server, request("refused", 0), request("other", 7))
    assert isinstance(error, ApiError)
    assert error.conflict
    assert none is None
    assert server.requests == {"refused": 5, "other": 7}


async def test_a_writer_that_is_always_faster_ends_in_a_conflict() -> None:
    server = Server()
    server.foreign = [annotate] * 100
    [error] = await change(server, request("r", 5))
    assert isinstance(error, ApiError)
    assert (error.conflict, server.puts) == (True, [])


async def test_a_status_is_decided_again_from_the_version_that_was_faster() -> None:
    server = Server(a=5)
    seen: list[int] = []
    server.foreign = [lambda body: body["spec"]["replicas"].update(b=7)]

    async def decide(cached: InformerObject[DiskSchedule], schedule: DiskSchedule) -> Object:
        seen.append(len(schedule.spec.replicas))
        return with_status(cached.raw, DiskScheduleStatus(storage_scheduled=len(schedule.spec.replicas)))

    await ScheduleWriter(server.cache, server.put, is_gone).write_status("u", decide)
    assert (seen, server.body["status"]["storageScheduled"]) == ([1, 2], 2)


async def test_a_request_as_wanted_already_is_not_written() -> None:
    server = Server(r=5)
    writer = ScheduleWriter(server.cache, server.put, is_gone)
    decided_from = server.cached()
    await writer.set_requirement(request("r", 5), decided_from)
    server.cache.change("u", None)
    await writer.set_requirement(request("r", 0), decided_from)
    with pytest.raises(ApiError) as refused:
        await writer.set_requirement(request("r", 7), decided_from)
    assert (refused.value.conflict, server.puts) == (True, [])


async def test_an_object_is_read_after_each_version_from_which_its_request_is_withdrawn() -> None:
    server = Server(r=5)
    readings: list[int] = []
    server.foreign = [annotate]

    async def is_on_disk(_: SetRequirement) -> bool:
        readings.append(server.version)
        return len(readings) > 1

    writer = ScheduleWriter(server.cache, server.put, is_on_disk)
    await writer.set_requirement(request("r", 0), server.cached())
    assert (server.requests, readings, server.puts) == ({"r": 5}, [1, 2], [])


async def test_a_request_on_a_disk_schedule_that_appeared_after_the_decision_is_a_conflict() -> None:
    """The decision is made again. A request on one that cannot be read is left out."""
    world = World()
    world.schedule("u")
    with pytest.raises(ApiError) as caught:
        await world.context.writer.write_all([request("r", 5)], ReadObjects({}))
    assert caught.value.conflict
    put(world.watches.schedules, {"metadata": {"name": "u", "labels": "not a map"}})
    await world.context.writer.write_all([request("r", 5)], ReadObjects({}))
