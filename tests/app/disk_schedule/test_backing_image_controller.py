"""The backing image controller: when it requeues an image, and what a deletion needs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.disk_schedule.controller_base import ControllerMetrics
from app.disk_schedule.volume_controllers import ImageController, UnreadableError
from app.kube.resources import LONGHORN_BACKING_IMAGES
from app.runtime.work_queue import Requeue
from scheduler_core.model.disk_schedule import FINALIZER
from tests.builders import Object
from tests.worlds.controllers import BAD_NODE, RecordingApi, World, put
from tests.worlds.fake_api import connect_client

PATH = LONGHORN_BACKING_IMAGES.path("longhorn-system")


async def reconcile(
    folder: Path, raw: Object, before: Callable[[World], None] = lambda _: None
) -> tuple[Requeue | None, list[Object]]:
    """Reconciles a backing image i of a Longhorn without a disk, after `before`; returns the result and what was written."""
    api = RecordingApi()
    api.add(PATH, raw)
    async with connect_client(api, folder) as client:
        world = World(client)
        before(world)
        result = await ImageController(world.context).reconcile("i")
    return result, api.bodies


def image(*, spec: Object | None = None, status: Object | None = None, **metadata: Any) -> Object:
    """A backing image i."""
    return {
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "BackingImage",
        "metadata": {"name": "i", "namespace": "longhorn-system", **metadata},
        "spec": spec or {},
        "status": status or {},
    }


async def test_a_new_image_that_no_disk_can_take_is_requeued(tmp_path: Path) -> None:
    assert await reconcile(tmp_path, image()) == (Requeue.WAITING, [])


async def test_an_image_whose_first_copy_is_being_made_waits_for_an_event(tmp_path: Path) -> None:
    assert await reconcile(tmp_path, image(spec={"diskFileSpecMap": {"n-disk-1": {}}})) == (None, [])


async def test_an_unreadable_image_that_is_deleted_loses_its_finalizer(tmp_path: Path) -> None:
    deleted = "2026-01-01T00:00:00Z"
    add_schedule_in_deletion = image(status={"realSize": -1}, finalizers=["a/b", FINALIZER], deletionTimestamp=deleted)
    result, [body] = await reconcile(tmp_path, add_schedule_in_deletion)
    assert result is None
    assert body["metadata"]["finalizers"] == ["a/b"]


async def test_an_unreadable_image_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"backing image i cannot be read: .*realSize"):
        await reconcile(tmp_path, image(status={"realSize": -1}))


@pytest.mark.parametrize("requests", [{}, {"i": 3}], ids=["no request", "a request for less"])
async def test_no_copy_is_requested_of_a_disk_schedule_in_deletion(tmp_path: Path, requests: Object) -> None:
    """It would never be empty. The image is requeued, because no event reports the next DiskSchedule."""
    image_with_copy = image(
        spec={"diskFileSpecMap": {"d": {}}}, status={"realSize": 5, "diskFileStatusMap": {"d": {"state": "ready"}}}
    )

    def add_schedule_in_deletion(world: World) -> None:
        deleted = {"name": "d", "deletionTimestamp": "2026-01-01T00:00:00Z"}
        spec = {"name": "disk-1", "nodeID": "n", "backingImages": requests}
        put(world.watches.schedules, {"metadata": deleted, "spec": spec})

    assert await reconcile(tmp_path, image_with_copy, add_schedule_in_deletion) == (Requeue.WAITING, [])


async def test_a_place_without_disk_schedule_stays_while_a_node_cannot_be_read(tmp_path: Path) -> None:
    placed = image(spec={"diskFileSpecMap": {"d": {}}}, status={"realSize": 5})

    def add_unreadable_node(world: World) -> None:
        put(world.watches.nodes, BAD_NODE)

    assert await reconcile(tmp_path, placed, add_unreadable_node) == (Requeue.WAITING, [])
    _, [body] = await reconcile(tmp_path, placed)
    assert body["spec"]["diskFileSpecMap"] == {}


async def test_an_image_with_an_unreadable_number_of_copies_is_refused_and_counted(tmp_path: Path) -> None:
    odd = image(spec={"minNumberOfCopies": -1})
    metrics = ControllerMetrics()

    def count_unreadable(world: World) -> None:
        put(world.watches.images, odd)
        metrics.watch(world.watches, world.context.clock)

    with pytest.raises(UnreadableError, match=r"backing image i cannot be read: spec.minNumberOfCopies is -1"):
        await reconcile(tmp_path, odd, count_unreadable)
    add_unreadable_node = "longhorn_scheduler_extender_disk_schedule_unreadable_objects"
    kinds = {"backingimages.longhorn.io": 1, "nodes.longhorn.io": 0}
    assert {kind: metrics.registry.get_sample_value(add_unreadable_node, {"kind": kind}) for kind in kinds} == kinds
