"""Longhorn nodes as the real control code leaves them, and which volumes a change of a node enqueues."""

from typing import Any

import pytest

from app.kube.resources import LONGHORN_NODES, LONGHORN_REPLICAS
from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED
from tests.worlds.simulator import GIB, World


def _due_volumes(world: World) -> set[str]:
    return set(world.controllers.volumes.due)


def _forget_due_volumes(world: World) -> None:
    world.controllers.volumes.due.clear()


async def _world_with_an_unplaced_replica() -> World:
    """Two of three replicas of `v` are placed, on nodes a and b; volume `w` lacks none."""
    world = World()
    await world.start("50Gi", "50Gi")
    await world.settle(world.add_volume("v", 10, DISABLED, replicas=3), world.add_volume("w", 10, DISABLED))
    assert [each.model.node_id for each in world.replicas("v")].count("") == 1
    _forget_due_volumes(world)
    return world


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"spec": {"tags": ["ssd"]}}, id="spec"),
        pytest.param({"status": {"diskStatus": {"disk-1": {"storageScheduled": 1}}}}, id="status"),
    ],
)
async def test_any_change_of_a_node_enqueues_volumes_with_an_unplaced_replica(body: dict[str, Any]) -> None:
    world = await _world_with_an_unplaced_replica()
    await world.patch(LONGHORN_NODES, "b", **body)
    assert _due_volumes(world) == {"v"}


async def test_new_node_enqueues_volumes_with_an_unplaced_replica() -> None:
    world = await _world_with_an_unplaced_replica()
    await world.add_node("c", "50Gi")
    await world.controllers.reconcile_node("c")
    assert _due_volumes(world) == {"v"}


async def test_any_change_of_a_node_enqueues_volumes_with_a_failed_replica() -> None:
    """The failed replica may be used again after the change."""
    world = World()
    await world.settle(world.start("50Gi", "50Gi", "50Gi"), world.add_volume("v", 10, DISABLED, replicas=2))
    [failed, _] = world.replicas("v")
    await world.patch(LONGHORN_REPLICAS, failed.name, spec={"failedAt": "2026-01-01T00:00:00Z"})
    _forget_due_volumes(world)
    other = ({"a", "b", "c"} - set(world.places("v"))).pop()
    await world.patch(LONGHORN_NODES, other, spec={"tags": ["ssd"]})
    assert _due_volumes(world) == {"v"}


async def test_change_of_a_node_does_not_enqueue_volumes_that_wait_for_their_attachment() -> None:
    world = World()
    await world.settle(world.start("50Gi"), world.add_volume("v", 10, BEST_EFFORT))
    _forget_due_volumes(world)
    await world.patch(LONGHORN_NODES, "a", spec={"tags": ["ssd"]})
    assert _due_volumes(world) == set()


async def test_node_has_null_disks_before_they_are_measured() -> None:
    world = World()
    written: list[Any] = []
    table = world.store.longhorn_nodes
    table.listeners.append(lambda _key, _old, new: written.append(new and new.status.get("diskStatus", "absent")))
    await world.start("50Gi")
    first, second, third = written
    assert (first, second) == ("absent", None)
    assert third["disk-1"]["storageMaximum"] == 50 * GIB


async def test_lost_node_keeps_what_is_scheduled_on_its_disks() -> None:
    world = World()
    await world.settle(world.start("50Gi"), world.add_volume("v", 10, DISABLED))
    before = world.disk("a")
    await world.settle(world.annotate_node("a", down="true"))
    after = world.disk("a")
    assert not world.store.longhorn_nodes.models["a"].ready
    assert (after.ready, after.schedulable) == (False, False)
    assert (after.storage_scheduled, after.scheduled_replicas) == (10 * GIB, before.scheduled_replicas)
    assert (after.storage_maximum, after.storage_available) == (before.storage_maximum, before.storage_available)


async def test_volumes_of_one_pod_choose_the_same_disk_on_a_stale_status() -> None:
    """Both fit the disk with more room by the status, which does not list the first one yet."""
    world = World(status_lag=(30.0, 30.0))
    await world.start()
    await world.add_node("a", "40Gi", "60Gi")
    for name in ("u", "v"):
        await world.add_volume(name, 40)
        await world.attach(name, "a")
    await world.settle()
    [disks] = {tuple(disk.uuid for disk in node.disks) for node in world.store.longhorn_nodes.models.values()}
    assert [each.model.disk_id for name in ("u", "v") for each in world.replicas(name)] == [disks[1], disks[1]]


async def test_replicas_of_one_volume_see_each_other_on_a_stale_status() -> None:
    world = World(status_lag=(30.0, 30.0))
    await world.start("50Gi", replica_soft_anti_affinity="true")
    await world.settle(world.add_volume("v", 40, DISABLED, replicas=2))
    assert world.places("v") == ["a"]
