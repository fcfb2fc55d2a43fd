"""The backing image controller: when it looks again by itself, and what a deletion needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.disk_schedule.backing_image_controller import ImageController, UnreadableError
from app.disk_schedule.informer import read_image, read_schedule, reading
from app.disk_schedule.metrics import ControllerMetrics
from app.kube.client import KubeClient
from app.kube.resources import LONGHORN_BACKING_IMAGES
from app.runtime.work_queue import Again
from scheduler_core.convert.snapshot_kinds import LONGHORN_GROUP
from scheduler_core.model.disk_schedule import FINALIZER
from scheduler_core.model.longhorn import Node
from tests.builders import Object
from tests.worlds.controllers import BAD_NODE, World, Written, put
from tests.worlds.fake_api import served

PATH = LONGHORN_BACKING_IMAGES.path("longhorn-system")


def looked_at(
    folder: Path, raw: Object, before: Callable[[World], None] | None = None
) -> tuple[Again | None, list[Object]]:
    """One look at a backing image i of a Longhorn without a disk, or with what was `before`: why to look again, and what was written."""

    async def play() -> tuple[Again | None, list[Object]]:
        api = Written()
        api.add(PATH, raw)
        async with served(api.handle, folder) as kubeconfig:
            client = await KubeClient.connect(str(kubeconfig))
            world = World(client)
            if before is not None:
                before(world)
            try:
                again = await ImageController(world.context).reconcile("i")
            finally:
                await client.close()
        return again, api.bodies

    return asyncio.run(play())


def image(*, spec: Object | None = None, status: Object | None = None, **metadata: Any) -> Object:
    """A backing image i."""
    return {
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "BackingImage",
        "metadata": {"name": "i", "namespace": "longhorn-system", **metadata},
        "spec": spec or {},
        "status": status or {},
    }


def test_a_new_image_that_no_disk_can_take_now_is_looked_at_again(tmp_path: Path) -> None:
    """No watch tells the controller that a disk can take it."""
    assert looked_at(tmp_path, image()) == (Again.WAITING, [])


def test_an_image_whose_first_copy_is_to_be_made_is_not_looked_at_before_something_happens(tmp_path: Path) -> None:
    """That it has a size then is an event."""
    assert looked_at(tmp_path, image(spec={"diskFileSpecMap": {"n-disk-1": {}}})) == (None, [])


def test_an_image_that_cannot_be_read_and_is_deleted_goes(tmp_path: Path) -> None:
    """What is wrong with it matters no more."""
    deleted = "2026-01-01T00:00:00Z"
    going = image(status={"realSize": -1}, finalizers=["a/b", FINALIZER], deletionTimestamp=deleted)
    again, [body] = looked_at(tmp_path, going)
    assert again is None
    assert body["metadata"]["finalizers"] == ["a/b"]


def test_an_image_that_cannot_be_read_and_is_not_deleted_is_an_error(tmp_path: Path) -> None:
    """Nothing is decided about it."""
    with pytest.raises(UnreadableError, match=r"backing image i cannot be read: .*realSize"):
        looked_at(tmp_path, image(status={"realSize": -1}))


@pytest.mark.parametrize("asked", [{}, {"i": 3}], ids=["no request", "a request for less"])
def test_a_disk_schedule_that_is_being_deleted_is_not_asked_for_a_copy_that_is_there(
    tmp_path: Path, asked: Object
) -> None:
    """As for a replica: it would never be empty. Nothing tells of the next one, so it is looked for."""
    there = image(
        spec={"diskFileSpecMap": {"d": {}}}, status={"realSize": 5, "diskFileStatusMap": {"d": {"state": "ready"}}}
    )

    def going(world: World) -> None:
        deleted = {"name": "d", "deletionTimestamp": "2026-01-01T00:00:00Z"}
        spec = {"name": "disk-1", "nodeID": "n", "backingImages": asked}
        put(world.watches.schedules, read_schedule, {"metadata": deleted, "spec": spec})

    assert looked_at(tmp_path, there, going) == (Again.WAITING, [])


def test_a_place_without_disk_schedule_is_kept_while_a_node_cannot_be_read(tmp_path: Path) -> None:
    """That node may list the disk."""
    placed = image(spec={"diskFileSpecMap": {"d": {}}}, status={"realSize": 5})

    def unreadable(world: World) -> None:
        put(world.watches.nodes, reading(LONGHORN_GROUP, "Node", Node), BAD_NODE)

    assert looked_at(tmp_path, placed, unreadable) == (Again.WAITING, [])
    _, [body] = looked_at(tmp_path, placed)
    assert body["spec"]["diskFileSpecMap"] == {}


def test_an_image_of_which_only_the_number_of_copies_cannot_be_read_is_refused_and_counted(tmp_path: Path) -> None:
    """A mirror needs no such number, and goes on to write down where it is."""
    odd = image(spec={"minNumberOfCopies": -1})
    metrics = ControllerMetrics()

    def counted(world: World) -> None:
        put(world.watches.images, read_image, odd)
        metrics.watch(world.watches, world.context.clock)

    with pytest.raises(UnreadableError, match=r"backing image i cannot be read: spec.minNumberOfCopies is -1"):
        looked_at(tmp_path, odd, counted)
    unreadable = "longhorn_scheduler_extender_disk_schedule_unreadable_objects"
    kinds = {"backingimages.longhorn.io": 1, "nodes.longhorn.io": 0}
    assert {kind: metrics.registry.get_sample_value(unreadable, {"kind": kind}) for kind in kinds} == kinds
