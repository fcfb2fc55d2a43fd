"""The backing image controller: when it looks again by itself, and what a deletion needs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.controllers.images import ImageController, UnreadableError
from app.controllers.queue import Again
from app.kube.client import KubeClient
from app.kube.resources import LONGHORN_BACKING_IMAGES
from scheduler_core.model.disk_schedule import FINALIZER
from tests.app.controllers.world import World, Written
from tests.app.fake_api import served
from tests.builders import Object

PATH = LONGHORN_BACKING_IMAGES.path("longhorn-system")


def looked_at(folder: Path, raw: Object) -> tuple[Again | None, list[Object]]:
    """One look at a backing image i of a Longhorn without a disk: why to look again, and what was written."""

    async def play() -> tuple[Again | None, list[Object]]:
        api = Written()
        api.add(PATH, raw)
        async with served(api.handle, folder) as kubeconfig:
            client = await KubeClient.connect(str(kubeconfig))
            try:
                again = await ImageController(World(client).context).reconcile("i")
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
