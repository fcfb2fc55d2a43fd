"""Requests for deleted objects: a working controller withdraws them at once, a former standby waits."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from app.disk_schedule.backing_image_controller import ImageController
from app.disk_schedule.controller import Controller
from app.disk_schedule.informer import decode_schedule, decoded_object, read_image
from app.disk_schedule.replica_controller import ReplicaController
from app.kube.client import KubeClient
from app.kube.resources import DISK_SCHEDULES
from tests.builders import Object
from tests.worlds.controllers import RecordingApi, World, put
from tests.worlds.fake_api import serve, until

SCHEDULE = {
    "apiVersion": "longhorn.io/v1beta2",
    "kind": "DiskSchedule",
    "metadata": {"name": "d", "namespace": "longhorn-system"},
    "spec": {"name": "disk-1", "nodeID": "n", "replicas": {"r": 5}, "backingImages": {"i": 5}},
}


async def _written_specs(
    api: RecordingApi, client: KubeClient, kind: type[Controller], *, works: bool, late: bool = False
) -> list[Object]:
    world = World(client)
    controller = kind(world.context)
    world.replica("r", "v")
    put(world.watches.images, read_image, {"metadata": {"name": "i"}, "spec": {}})
    running = asyncio.create_task(controller.run()) if works else None
    await asyncio.sleep(0.1)
    requests = len(api.requests)
    world.watches.replicas.change("r", None)
    world.watches.images.change("i", None)
    if late:
        await until(
            "a reconciliation without a request", lambda: len(api.requests) > requests and not len(controller.queue)
        )
    schedule = decoded_object(decode_schedule, json.dumps(SCHEDULE).encode())
    world.watches.schedules.change("d", schedule)
    running = running or asyncio.create_task(controller.run())
    if works:
        await until("a write", lambda: api.bodies)
    else:
        await until("a reconciliation", lambda: api.requests)
        await asyncio.sleep(0.2)  # in which a write would follow
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return [body["spec"] for body in api.bodies]


def written_specs(folder: Path, kind: type[Controller], *, works: bool, late: bool = False) -> list[Object]:
    """The specs that a controller writes after replica r and image i were deleted.

    It worked then, or starts to work afterwards. With `late` the request is made after the controller has reconciled the deletion.
    """

    async def run() -> list[Object]:
        api = RecordingApi()
        api.add(DISK_SCHEDULES.path("longhorn-system"), SCHEDULE)
        async with serve(api.handle, folder) as kubeconfig:
            client = await KubeClient.connect(str(kubeconfig))
            try:
                return await _written_specs(api, client, kind, works=works, late=late)
            finally:
                await client.close()

    return asyncio.run(run())


KINDS = [
    pytest.param(ReplicaController, "replicas", id="replica"),
    pytest.param(ImageController, "backingImages", id="backing image"),
]


@pytest.mark.parametrize(
    "late", [pytest.param(False, id="before the deletion"), pytest.param(True, id="after the deletion")]
)
@pytest.mark.parametrize(("kind", "field"), KINDS)
def test_a_request_for_an_object_that_is_deleted_is_withdrawn_at_once(
    tmp_path: Path, kind: type[Controller], field: str, *, late: bool
) -> None:
    """This holds for a request made after the deletion, too."""
    specs = written_specs(tmp_path, kind, works=True, late=late)
    assert specs
    assert all(spec[field] == {} for spec in specs)


@pytest.mark.parametrize("kind", [ReplicaController, ImageController])
def test_a_standby_does_not_note_deletions_and_waits_once_it_starts(tmp_path: Path, kind: type[Controller]) -> None:
    """A missing object may be about to be created."""
    assert written_specs(tmp_path, kind, works=False) == []
