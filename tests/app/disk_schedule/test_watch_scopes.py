"""Which events make which controller reconcile which key: the proposal's watch scopes."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests import builders
from tests.worlds.controllers import Reconciled, World, put

Event = Callable[[World], None]


async def reconciled_keys(*events: Event) -> Reconciled:
    """The keys that controllers reconcile after the last event. Volume v has replica r and backing image i on disk n-disk-1."""
    world = World()
    put(world.watches.nodes, builders.longhorn_node("n"))
    put(world.watches.volumes, builders.volume("v", backingImage="i"))
    put(world.watches.images, {"metadata": {"name": "i"}, "spec": {}})
    world.replica("r", "v")
    world.schedule("n-disk-1", spec={"replicas": {"r": 5}, "backingImages": {"i": 5}})
    for event in events[:-1]:
        event(world)
    running = [asyncio.create_task(controller.run()) for controller in world.controllers]
    keys = await world.reconciled_after(lambda: events[-1](world))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return keys


REQUESTS = {"replicas": {"r": 5}, "backingImages": {"i": 5}}
SCHEDULED = {"state": "scheduled", "scheduledSize": 5}
DISK = {("disk-schedule", "n-disk-1"), ("mirror", "n-disk-1")}
VOLUME = ("volume", "v")
NODE_SYNC = ("node-sync", "all disks")
UNREADABLE_IMAGE = {"metadata": {"name": "i"}, "spec": {}, "status": {"realSize": -1}}


def schedule(status: Any = None, **spec: Any) -> Event:
    return lambda world: world.schedule("n-disk-1", spec={**REQUESTS, **spec}, status=status)


def node(disks: Any) -> Event:
    return lambda world: put(world.watches.nodes, builders.longhorn_node("n", disks))


def replica(name: str, volume: str, place: str = "n", **more: Any) -> Event:
    return lambda world: world.replica(name, volume, place, **more)


def unreadable_replica(**metadata: Any) -> Event:
    return lambda world: world.unreadable_replica("r", **metadata)


def late_volume(**spec: Any) -> Event:
    return lambda world: put(world.watches.volumes, builders.volume("late", **spec))


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        # The controller of a changed DiskSchedule is always woken. Node sync is not, while the disk and its emptiness are unchanged.
        pytest.param([schedule({"replicas": {"r": SCHEDULED}})], {VOLUME, *DISK}, id="a replica is decided"),
        pytest.param(
            [schedule({"backingImages": {"i": SCHEDULED}})],
            {("backing-image", "i"), *DISK},
            id="a backing image is decided: no volume is reconciled",
        ),
        pytest.param(
            [schedule(replicas={"r": 5, "ghost": 5})],
            {("orphan", "replica/ghost"), *DISK},
            id="a request for a replica that does not exist",
        ),
        pytest.param([schedule(backingImages={"i": 7})], DISK, id="a request is made: only the disk is reconciled"),
        pytest.param(
            [schedule({"replicas": {"r": SCHEDULED}}, nodeID=name) for name in "nm"],
            {VOLUME, NODE_SYNC, *DISK},
            id="a disk moves to another node",
        ),
        pytest.param([node(50)], DISK, id="a node's space changes"),
        pytest.param(
            [node({f"disk-{number}": builders.disk(100) for number in (1, 2)})], {NODE_SYNC, *DISK}, id="a new disk"
        ),
        # The other disk has no DiskSchedule that could allocate.
        pytest.param(
            [replica("r", "v", "m")],
            {VOLUME, ("backing-image", "i"), ("mirror", "m-disk-1"), *DISK},
            id="a replica moves",
        ),
        pytest.param([replica("r", "v", deleting=True)], {VOLUME, ("replica", "r"), *DISK}, id="a replica is deleted"),
        pytest.param([replica("r", "v")], set(), id="an unchanged object"),
        pytest.param(
            [unreadable_replica(), unreadable_replica(deletionTimestamp="2026-01-01T00:00:00Z")],
            {("replica", "r"), ("mirror", "n-disk-1")},
            id="an unreadable replica is deleted",
        ),
        pytest.param(
            [
                lambda world: put(world.watches.images, UNREADABLE_IMAGE),
                lambda world: world.watches.images.change("i", None),
            ],
            {("backing-image", "i"), VOLUME, ("mirror", "n-disk-1"), ("orphan", "backing image/i")},
            id="an unreadable image is deleted",
        ),
        pytest.param(
            [replica("late-r", "late"), late_volume(backingImage="i")],
            {("volume", "late"), ("backing-image", "i")},
            id="a volume with an image comes after its replica",
        ),
        pytest.param(
            [replica("late-r", "late"), late_volume()], {("volume", "late")}, id="a volume comes after its replica"
        ),
    ],
)
async def test_an_event_wakes_these_controllers(events: list[Event], expected: Reconciled) -> None:
    assert await reconciled_keys(*events) == expected
