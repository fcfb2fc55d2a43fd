"""Requests for objects that do not exist: a working controller withdraws them at once, a former standby waits."""

import asyncio
import json
from pathlib import Path

import pytest

from app.disk_schedule.controller_cache import Informer
from app.disk_schedule.schedule_controllers import OrphanController
from app.kube.resources import DISK_SCHEDULES
from scheduler_core.convert.disk_schedule import read_disk_schedule
from tests.worlds.controllers import RecordingApi, World, put
from tests.worlds.fake_api import connect_client, until

SCHEDULE = {
    "apiVersion": "longhorn.io/v1beta2",
    "kind": "DiskSchedule",
    "metadata": {"name": "d", "namespace": "longhorn-system"},
    "spec": {"name": "disk-1", "nodeID": "n", "replicas": {"r": 5}, "backingImages": {"i": 5}},
}


def withdrawn_fields(api: RecordingApi) -> set[str]:
    """The fields of the spec that were written without a request."""
    return {field for body in api.bodies for field in ("replicas", "backingImages") if body["spec"][field] == {}}


async def withdrawn(folder: Path, *, works: bool, late: bool = False) -> set[str]:
    """The fields of which the controller withdraws the request after replica r and image i were deleted.

    It worked then, or starts to work afterwards. With `late` the request is made after the controller has reconciled the deletion.
    """
    api = RecordingApi()
    api.add(DISK_SCHEDULES.path("longhorn-system"), SCHEDULE)
    async with connect_client(api, folder) as client:
        world = World(client)
        controller = OrphanController(world.context)
        world.replica("r", "v")
        put(world.watches.images, {"metadata": {"name": "i"}, "spec": {}})
        running = asyncio.create_task(controller.run()) if works else None
        await asyncio.sleep(0.1)
        world.watches.replicas.change("r", None)
        world.watches.images.change("i", None)
        if late:
            await until("a reconciliation without a request", lambda: not len(controller.queue))
        schedule = Informer(read_disk_schedule, keep=True).object_of(json.dumps(SCHEDULE).encode())
        world.watches.schedules.change("d", schedule)
        running = running or asyncio.create_task(controller.run())
        if works:
            await until("both requests are withdrawn", lambda: withdrawn_fields(api) == {"replicas", "backingImages"})
        else:
            await asyncio.sleep(0.5)  # in which a write would follow
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return withdrawn_fields(api)


@pytest.mark.parametrize(
    "late", [pytest.param(False, id="before the deletion"), pytest.param(True, id="after the deletion")]
)
async def test_requests_for_a_replica_and_an_image_that_are_deleted_are_withdrawn_at_once(
    tmp_path: Path, *, late: bool
) -> None:
    assert await withdrawn(tmp_path, works=True, late=late) == {"replicas", "backingImages"}


async def test_a_standby_does_not_note_deletions_and_waits_once_it_starts(tmp_path: Path) -> None:
    """A missing object may be about to be created."""
    assert await withdrawn(tmp_path, works=False) == set()
