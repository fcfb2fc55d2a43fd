"""What makes which controller look at what: the proposal's watch scopes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.disk_schedule.informer import read_image, read_volume, reading
from app.kube.client import KubeClient
from scheduler_core.convert.snapshot_kinds import LONGHORN_GROUP
from scheduler_core.model.longhorn import Node
from tests import builders
from tests.worlds.controllers import Looked, World, put
from tests.worlds.fake_api import write_kubeconfig


def played(tmp_path: Path, event: Callable[[World], None], before: Callable[[World], None] | None = None) -> Looked:
    """A volume v with replica r and a backing image i on disk n-disk-1; what an event makes look, after what was `before`."""

    async def play() -> Looked:
        client = await KubeClient.connect(str(write_kubeconfig(tmp_path, "http://127.0.0.1:1")))
        world = World(client)
        put(world.watches.nodes, reading(LONGHORN_GROUP, "Node", Node), builders.longhorn_node("n"))
        put(world.watches.volumes, read_volume, builders.volume("v", backingImage="i"))
        put(world.watches.images, read_image, {"metadata": {"name": "i"}, "spec": {}})
        world.replica("r", "v")
        world.schedule("n-disk-1", spec={"replicas": {"r": 5}, "backingImages": {"i": 5}})
        if before is not None:
            before(world)
        running = [asyncio.create_task(controller.run()) for controller in world.controllers]
        found = await world.after(lambda: event(world))
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await client.close()
        return found

    return asyncio.run(play())


ASKED = {"replicas": {"r": 5}, "backingImages": {"i": 5}}
HELD = {"state": "scheduled", "scheduledSize": 5}
DISK = {("disk-schedule", "n-disk-1"), ("mirror", "n-disk-1")}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(
            lambda world: world.schedule("n-disk-1", spec=ASKED, status={"replicas": {"r": HELD}}),
            {("volume", "v")},
            id="a replica is answered",
        ),
        pytest.param(
            lambda world: world.schedule("n-disk-1", spec=ASKED, status={"backingImages": {"i": HELD}}),
            {("backing-image", "i")},
            id="a backing image is answered: no volume looks",
        ),
        pytest.param(
            lambda world: world.schedule("n-disk-1", spec={**ASKED, "replicas": {"r": 5, "ghost": 5}}),
            {("replica", "ghost")},
            id="a request for a replica that does not exist",
        ),
        pytest.param(
            lambda world: world.schedule("n-disk-1", spec={**ASKED, "backingImages": {"i": 7}}),
            set(),
            id="a request is made: only the disk looks",
        ),
    ],
)
def test_who_looks_when_a_disk_schedule_changes(
    tmp_path: Path, event: Callable[[World], None], expected: Looked
) -> None:
    """Beside the controller of DiskSchedules, who always does. Node sync does not: neither its disk nor whether it is empty changed."""
    assert played(tmp_path, event) == expected | DISK


def test_a_disk_that_moves_to_another_node_wakes_the_volumes_of_its_replicas(tmp_path: Path) -> None:
    """Their condition says whether the replicas' place is the disk's."""

    def schedule(node: str) -> Callable[[World], None]:
        return lambda world: world.schedule(
            "n-disk-1", spec={**ASKED, "nodeID": node}, status={"replicas": {"r": HELD}}
        )

    found = played(tmp_path, schedule("m"), before=schedule("n"))
    assert found == {("volume", "v"), ("node-sync", "all disks")} | DISK


def test_a_node_whose_room_changes_wakes_its_disks_and_one_with_another_disk_node_sync(tmp_path: Path) -> None:
    """Nobody else."""

    def node(**more: Any) -> Callable[[World], None]:
        raw = builders.longhorn_node("n", **more)
        return lambda world: put(world.watches.nodes, reading(LONGHORN_GROUP, "Node", Node), raw)

    assert played(tmp_path, node(disks=50)) == DISK
    two = node(disks={"disk-1": builders.disk(100), "disk-2": builders.disk(100)})
    assert played(tmp_path, two) == DISK | {("node-sync", "all disks")}


def test_a_replica_wakes_its_volume_and_its_controller_only_when_it_goes(tmp_path: Path) -> None:
    """With a new place also the image it is made from, and the mirror of both disks."""
    moved = played(tmp_path, lambda world: world.replica("r", "v", "m"))
    assert moved == {("volume", "v"), ("backing-image", "i"), ("mirror", "n-disk-1"), ("mirror", "m-disk-1")}
    going = played(tmp_path, lambda world: world.replica("r", "v", deleting=True))
    assert going == {("volume", "v"), ("replica", "r"), ("mirror", "n-disk-1")}


def test_what_is_as_it_was_wakes_nobody(tmp_path: Path) -> None:
    """Another version of the same."""
    assert played(tmp_path, lambda world: world.replica("r", "v")) == set()


def test_an_unreadable_replica_that_is_deleted_wakes_its_controller_and_the_mirror_of_the_disks_that_name_it(
    tmp_path: Path,
) -> None:
    """Although what is wrong with it is what was: it does not say where it is, but a DiskSchedule does."""
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    found = played(
        tmp_path,
        lambda world: world.unreadable_replica("r", **deleted),
        before=lambda world: world.unreadable_replica("r"),
    )
    assert found == {("replica", "r"), ("mirror", "n-disk-1")}


def test_an_unreadable_image_that_goes_wakes_the_mirror_of_the_disks_that_name_it(tmp_path: Path) -> None:
    """It does not say where it is, either."""
    bad = {"metadata": {"name": "i"}, "spec": {}, "status": {"realSize": -1}}
    found = played(
        tmp_path,
        lambda world: world.watches.images.changed("i", None),
        before=lambda world: put(world.watches.images, read_image, bad),
    )
    assert found == {("backing-image", "i"), ("mirror", "n-disk-1")}


def test_a_volume_that_is_seen_after_its_replica_wakes_the_image_it_is_made_from(tmp_path: Path) -> None:
    """One that is made from none wakes only its own controller."""

    def replica(world: World) -> None:
        world.replica("late-r", "late")

    made = played(
        tmp_path,
        lambda world: put(world.watches.volumes, read_volume, builders.volume("late", backingImage="i")),
        before=replica,
    )
    assert made == {("volume", "late"), ("backing-image", "i")}
    plain = played(
        tmp_path, lambda world: put(world.watches.volumes, read_volume, builders.volume("late")), before=replica
    )
    assert plain == {("volume", "late")}
