"""Requests whose object went: withdrawn at once by who works, waited for by who only watched it go."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from app.disk_schedule.backing_image_controller import ImageController
from app.disk_schedule.controller import Controller
from app.disk_schedule.informer import read_image, schedule_seen
from app.disk_schedule.replica_controller import ReplicaController
from app.kube.client import KubeClient
from app.kube.resources import DISK_SCHEDULES
from tests.builders import Object
from tests.worlds.controllers import World, Written, put
from tests.worlds.fake_api import served, until

SCHEDULE = {
    "apiVersion": "longhorn.io/v1beta2",
    "kind": "DiskSchedule",
    "metadata": {"name": "d", "namespace": "longhorn-system"},
    "spec": {"name": "disk-1", "nodeID": "n", "replicas": {"r": 5}, "backingImages": {"i": 5}},
}


async def _worked(
    api: Written, client: KubeClient, kind: type[Controller], *, works: bool, late: bool = False
) -> list[Object]:
    world = World(client)
    controller = kind(world.context)
    world.replica("r", "v")
    put(world.watches.images, read_image, {"metadata": {"name": "i"}, "spec": {}})
    running = asyncio.create_task(controller.run()) if works else None
    await asyncio.sleep(0.1)
    looked = len(api.requests)
    world.watches.replicas.changed("r", None)
    world.watches.images.changed("i", None)
    if late:
        await until("a look that finds no request", lambda: len(api.requests) > looked and not len(controller.queue))
    seen = schedule_seen(json.dumps(SCHEDULE).encode())
    world.watches.schedules.changed("d", seen)
    running = running or asyncio.create_task(controller.run())
    if works:
        await until("a write", lambda: api.bodies)
    else:
        await until("a look", lambda: api.requests)
        await asyncio.sleep(0.2)  # in which a write would follow
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return [body["spec"] for body in api.bodies]


def asked(folder: Path, kind: type[Controller], *, works: bool, late: bool = False) -> list[Object]:
    """The specs a controller writes after replica r and image i went: it worked then, or begins to work afterwards.

    With `late` they are asked for after it has looked, by who was about to.
    """

    async def play() -> list[Object]:
        api = Written()
        api.add(DISK_SCHEDULES.path("longhorn-system"), SCHEDULE)
        async with served(api.handle, folder) as kubeconfig:
            client = await KubeClient.connect(str(kubeconfig))
            try:
                return await _worked(api, client, kind, works=works, late=late)
            finally:
                await client.close()

    return asyncio.run(play())


KINDS = [
    pytest.param(ReplicaController, "replicas", id="replica"),
    pytest.param(ImageController, "backingImages", id="backing image"),
]


@pytest.mark.parametrize("late", [pytest.param(False, id="before it goes"), pytest.param(True, id="after it went")])
@pytest.mark.parametrize(("kind", "field"), KINDS)
def test_what_is_asked_for_an_object_that_is_seen_to_go_is_withdrawn_at_once(
    tmp_path: Path, kind: type[Controller], field: str, *, late: bool
) -> None:
    """By the controller that works; also if a volume controller noted the place, and asks when nobody can remember the replica."""
    specs = asked(tmp_path, kind, works=True, late=late)
    assert specs
    assert all(spec[field] == {} for spec in specs)


@pytest.mark.parametrize("kind", [ReplicaController, ImageController])
def test_a_standby_notes_nothing_of_what_goes_and_waits_when_it_begins(tmp_path: Path, kind: type[Controller]) -> None:
    """It may stand by for months; what it never saw while it worked may be about to come."""
    assert asked(tmp_path, kind, works=False) == []
