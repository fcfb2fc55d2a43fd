"""Which events make which controller reconcile which key: the proposal's watch scopes."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests import builders
from tests.worlds.controllers import Reconciled, World, put


async def reconciled_keys(event: Callable[[World], None], before: Callable[[World], None] | None = None) -> Reconciled:
    """The keys that controllers reconcile after an event, which follows `before`.

    Volume v has replica r and backing image i on disk n-disk-1.
    """
    world = World()
    put(world.watches.nodes, builders.longhorn_node("n"))
    put(world.watches.volumes, builders.volume("v", backingImage="i"))
    put(world.watches.images, {"metadata": {"name": "i"}, "spec": {}})
    world.replica("r", "v")
    world.schedule("n-disk-1", spec={"replicas": {"r": 5}, "backingImages": {"i": 5}})
    if before is not None:
        before(world)
    running = [asyncio.create_task(controller.run()) for controller in world.controllers]
    keys = await world.reconciled_after(lambda: event(world))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return keys


REQUESTS = {"replicas": {"r": 5}, "backingImages": {"i": 5}}
SCHEDULED = {"state": "scheduled", "scheduledSize": 5}
DISK = {("disk-schedule", "n-disk-1"), ("mirror", "n-disk-1")}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(
            lambda world: world.schedule("n-disk-1", spec=REQUESTS, status={"replicas": {"r": SCHEDULED}}),
            {("volume", "v")},
            id="a replica is decided",
        ),
        pytest.param(
            lambda world: world.schedule("n-disk-1", spec=REQUESTS, status={"backingImages": {"i": SCHEDULED}}),
            {("backing-image", "i")},
            id="a backing image is decided: no volume is reconciled",
        ),
        pytest.param(
            lambda world: world.schedule("n-disk-1", spec={**REQUESTS, "replicas": {"r": 5, "ghost": 5}}),
            {("orphan", "replica/ghost")},
            id="a request for a replica that does not exist",
        ),
        pytest.param(
            lambda world: world.schedule("n-disk-1", spec={**REQUESTS, "backingImages": {"i": 7}}),
            set(),
            id="a request is made: only the disk is reconciled",
        ),
    ],
)
async def test_a_changed_disk_schedule_wakes_controllers(event: Callable[[World], None], expected: Reconciled) -> None:
    """Its own controller is always woken. Node sync is not, because the disk and its emptiness are unchanged."""
    assert await reconciled_keys(event) == expected | DISK


async def test_a_disk_that_moves_to_another_node_wakes_the_volumes_of_its_replicas() -> None:
    def schedule(node: str) -> Callable[[World], None]:
        return lambda world: world.schedule(
            "n-disk-1", spec={**REQUESTS, "nodeID": node}, status={"replicas": {"r": SCHEDULED}}
        )

    keys = await reconciled_keys(schedule("m"), before=schedule("n"))
    assert keys == {("volume", "v"), ("node-sync", "all disks")} | DISK


async def test_a_node_whose_space_changes_wakes_its_disks_and_a_new_disk_wakes_node_sync() -> None:
    def node(**more: Any) -> Callable[[World], None]:
        raw = builders.longhorn_node("n", **more)
        return lambda world: put(world.watches.nodes, raw)

    assert await reconciled_keys(node(disks=50)) == DISK
    two = node(disks={"disk-1": builders.disk(100), "disk-2": builders.disk(100)})
    assert await reconciled_keys(two) == DISK | {("node-sync", "all disks")}


async def test_a_replica_wakes_its_volume_and_its_own_controller_only_when_it_is_deleted() -> None:
    """A moved replica also wakes its image and both disks; the other disk has no DiskSchedule that could allocate."""
    moved = await reconciled_keys(lambda world: world.replica("r", "v", "m"))
    assert moved == {("volume", "v"), ("backing-image", "i"), ("mirror", "m-disk-1")} | DISK
    going = await reconciled_keys(lambda world: world.replica("r", "v", deleting=True))
    assert going == {("volume", "v"), ("replica", "r")} | DISK


async def test_an_unchanged_object_wakes_no_controller() -> None:
    assert await reconciled_keys(lambda world: world.replica("r", "v")) == set()


async def test_an_unreadable_replica_that_is_deleted_wakes_its_controller_and_the_mirror_of_its_disks() -> None:
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    keys = await reconciled_keys(
        lambda world: world.unreadable_replica("r", **deleted), before=lambda world: world.unreadable_replica("r")
    )
    assert keys == {("replica", "r"), ("mirror", "n-disk-1")}


async def test_an_unreadable_image_that_is_deleted_wakes_the_mirror_of_its_disks() -> None:
    bad = {"metadata": {"name": "i"}, "spec": {}, "status": {"realSize": -1}}
    keys = await reconciled_keys(
        lambda world: world.watches.images.change("i", None), before=lambda world: put(world.watches.images, bad)
    )
    assert keys == {("backing-image", "i"), ("volume", "v"), ("mirror", "n-disk-1"), ("orphan", "backing image/i")}


async def test_a_volume_delivered_after_its_replica_wakes_the_image_it_is_made_from() -> None:
    def replica(world: World) -> None:
        world.replica("late-r", "late")

    with_image = await reconciled_keys(
        lambda world: put(world.watches.volumes, builders.volume("late", backingImage="i")), before=replica
    )
    assert with_image == {("volume", "late"), ("backing-image", "i")}
    without_image = await reconciled_keys(
        lambda world: put(world.watches.volumes, builders.volume("late")), before=replica
    )
    assert without_image == {("volume", "late")}
