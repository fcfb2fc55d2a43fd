"""Where a quicker or kinder Longhorn would hide faults: late status, refused attachments, images and managers that are gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.kube.resources import (
    CLAIMS,
    LONGHORN_ENGINE_IMAGES,
    LONGHORN_INSTANCE_MANAGERS,
    LONGHORN_NAMESPACE,
    LONGHORN_NODES,
    LONGHORN_SETTINGS,
    NODES,
    STORAGE_CLASSES,
)
from scheduler_core.errors import CoreError
from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED, STRICT_LOCAL
from simulator.__main__ import BAD_INPUT, BROKEN, _explain
from simulator.nodes import manager_name
from simulator.objects import DRIVER
from tests.worlds.simulator import GIB, QUICK, World

ROOT = Path(__file__).parents[2]
LONG = 3600.0
LAG = 30.0


async def _attached(world: World, *names: str, node: str = "a") -> None:
    for name in names:
        await world.add_volume(name, 10)
        await world.attach(name, node)
    await world.settle()


async def test_node_status_does_not_know_a_replica_before_the_lag_is_over() -> None:
    """Whatever else wakes the node's controller, which writes conditions and free space at once."""
    world = World(msgspec.structs.replace(QUICK, status_lag=LAG))
    await world.start("50Gi", "50Gi")
    await _attached(world, "v")
    await world.write("v", 5)
    await world.api.patch(NODES.path(name="a"), {"metadata": {}, "spec": {"unschedulable": True}})
    await world.settle()
    assert world.places("v") == ["a"]
    assert (world.disk("a").storage_scheduled, world.disk("a").scheduled_replicas) == (0, {})
    assert world.disk("a").storage_available == 45 * GIB // (100 * 2**20) * (100 * 2**20)
    assert not world.store.longhorn_nodes.models["a"].schedulable


async def test_node_status_knows_a_replica_when_the_lag_is_over() -> None:
    """Without any other event: the controller looks again by itself."""
    world = World(msgspec.structs.replace(QUICK, status_lag=LAG))
    await world.start("50Gi")
    await _attached(world, "v")
    assert world.disk("a").storage_scheduled == 0
    world.seconds += 1
    assert await world.controllers._reconcile_node("a") == LAG - 1
    world.seconds += LAG - 1
    assert await world.controllers._reconcile_node("a") is None
    assert world.disk("a").storage_scheduled == 10 * GIB


async def test_each_replica_has_a_lag_of_its_own() -> None:
    """A node where something changes all the time tells of the older changes nevertheless."""
    world = World(msgspec.structs.replace(QUICK, status_lag=LAG))
    await world.start("50Gi")
    await _attached(world, "u")
    world.seconds += LAG / 2
    await _attached(world, "v")
    world.seconds += LAG / 2
    await world.settle()
    assert list(world.disk("a").scheduled_replicas) == [world.replicas("u")[0].name]


async def test_freed_space_is_known_after_the_lag_too() -> None:
    """The replica's object is gone, the status still counts it."""
    world = World(msgspec.structs.replace(QUICK, status_lag=LAG))
    await world.start("50Gi")
    await _attached(world, "v")
    world.seconds += LAG
    await world.settle()
    await world.delete_volume("v")
    await world.settle()
    assert world.store.replicas.objects == {}
    assert world.disk("a").storage_scheduled == 10 * GIB


@pytest.mark.parametrize("locality", [BEST_EFFORT, STRICT_LOCAL])
async def test_local_volume_no_disk_can_take_is_not_attached(locality: str) -> None:
    """The failed precheck made it unscheduled: the node of the attachment does not reach the volume, until there is room."""
    world = World()
    await world.start("10Gi")
    await world.add_volume("v", 20, locality)
    await world.attach("v", "a")
    await world.settle()
    assert "insufficient storage" in world.attachment("v")["attachError"]["message"]
    assert (world.volume("v").node_id, world.replicas("v")) == ("", [])
    await world.annotate_node("a", disks='[{"size": "60Gi"}]')
    await world.settle()
    assert world.attachment("v")["attached"] is True
    assert world.places("v") == ["a"]


async def test_local_volume_without_room_here_can_go_elsewhere() -> None:
    """Detached, it counts as scheduled again, and the next node may have room."""
    world = World()
    await world.start("10Gi", "50Gi")
    await world.add_volume("v", 20, STRICT_LOCAL)
    await world.attach("v", "a")
    await world.settle()
    await world.detach("v")
    await world.settle()
    await world.attach("v", "b")
    await world.settle()
    assert world.attachment("v")["attached"] is True
    assert world.places("v") == ["b"]


async def _deploy(world: World, **nodes: bool) -> None:
    path = LONGHORN_ENGINE_IMAGES.path(LONGHORN_NAMESPACE, "ei-simulated")
    await world.api.patch(path, {"metadata": {}, "status": {"nodeDeploymentMap": nodes}})
    await world.settle()


async def test_volume_is_not_attached_where_its_engine_image_is_not() -> None:
    """Nobody deploys it again but who took it away."""
    world = World()
    await world.start("50Gi", "50Gi")
    await _deploy(world, a=False)
    await world.add_node("c", "50Gi")
    await _attached(world, "v")
    [image] = world.store.engine_images.models.values()
    assert image.nodes == {"b", "c"}
    assert "is not deployed on node a" in world.attachment("v")["attachError"]["message"]
    assert world.volume("v").node_id == ""
    await _deploy(world, a=True)
    assert world.attachment("v")["attached"] is True


async def test_volume_is_not_attached_where_no_instance_manager_runs() -> None:
    """A manager that a test has stopped stays stopped until the test says otherwise."""
    world = World()
    await world.start("50Gi", "50Gi")
    await world.add_volume("v", 10, DISABLED)
    await world.settle()
    [home] = world.places("v")
    other = "b" if home == "a" else "a"
    path = LONGHORN_INSTANCE_MANAGERS.path(LONGHORN_NAMESPACE, manager_name(other, "v1"))
    await world.api.patch(path, {"metadata": {"annotations": {"simulator/stopped": "true"}}})
    await world.attach("v", other)
    await world.settle()
    assert world.store.instance_managers.models[manager_name(other, "v1")].state == "stopped"
    assert world.volume("v").state == "attaching"
    await world.api.patch(path, {"metadata": {"annotations": {"simulator/stopped": None}}})
    await world.settle()
    assert world.volume("v").state == "attached"


async def _rebuilding(world: World) -> str:
    """Node of a replica that is being rebuilt, and stays so, of a volume with 5 GiB of data."""
    await world.start("50Gi", "50Gi", "50Gi", replica_replenishment_wait_interval="0")
    await world.add_volume("v", 10, DISABLED, replicas=2)
    await world.attach("v", "a")
    await world.write("v", 5)
    await world.settle()
    lost = next(node for node in world.places("v") if node != "a")
    await world.annotate_node(lost, down="true")
    await world.settle()
    [new] = [each for each in world.replicas("v") if not each.model.healthy_at and not each.model.failed_at]
    assert new.model.current_state == "running"
    return new.model.node_id


async def test_replica_occupies_the_disk_while_it_is_rebuilt() -> None:
    """Its data is written there before it is healthy."""
    world = World(msgspec.structs.replace(QUICK, rebuild_seconds=(LONG, LONG)))
    home = await _rebuilding(world)
    assert world.disk(home).storage_available == 45 * GIB // (100 * 2**20) * (100 * 2**20)


async def test_replica_that_fails_again_and_again_is_not_used_for_ever() -> None:
    """Each failure before it is healthy counts; after five Longhorn removes it."""
    world = World(msgspec.structs.replace(QUICK, rebuild_seconds=(LONG, LONG)))
    await world.start("50Gi", "50Gi")
    await world.add_volume("v", 10, DISABLED, replicas=2)
    await world.attach("v", "a")
    await world.settle()
    [weak] = [each.name for each in world.replicas("v") if each.model.node_id == "b"]
    counts = []
    for _ in range(6):
        await world.annotate_node("b", down="true")
        await world.settle()
        known = world.store.replicas.models.get(weak)
        counts.append(known.rebuild_retry_count if known is not None else None)
        await world.annotate_node("b", down=None)
        await world.settle()
    assert counts == [0, 1, 2, 3, 4, None]


async def test_faulted_volume_is_left_alone_without_auto_salvage() -> None:
    """Until the setting allows it."""
    world = World()
    await world.start("50Gi", "50Gi", auto_salvage="false")
    await _attached(world, "v")
    await world.annotate_node("a", down="true")
    await world.settle()
    await world.annotate_node("a", down=None)
    await world.settle()
    assert world.volume("v").robustness == "faulted"
    path = LONGHORN_SETTINGS.path(LONGHORN_NAMESPACE, "auto-salvage")
    await world.api.patch(path, {"metadata": {}, "value": "true"})
    await world.settle()
    assert world.volume("v").robustness == "healthy"


@pytest.mark.parametrize(
    ("parameters", "refused"),
    [
        pytest.param({"nodeSelector": "storage", "diskSelector": "ssd"}, False, id="known tags"),
        pytest.param({"nodeSelector": "compute"}, True, id="no node"),
        pytest.param({"diskSelector": "ssd,hdd"}, True, id="no disk"),
        pytest.param({"nodeSelector": ""}, True, id="empty"),
    ],
)
async def test_class_with_a_tag_nothing_bears_is_refused(parameters: dict[str, str], refused: bool) -> None:
    """Longhorn creates no such volume; the claim stays pending."""
    world = World()
    await world.start("50Gi")
    await world.patch_disk("a", tags=["ssd"])
    path = LONGHORN_NODES.path(LONGHORN_NAMESPACE, "a")
    await world.api.patch(path, {"metadata": {}, "spec": {"tags": ["storage"]}})
    storage_class = {"metadata": {"name": "c"}, "provisioner": DRIVER, "parameters": parameters}
    await world.api.create(STORAGE_CLASSES.path(), storage_class)
    annotations = {"volume.kubernetes.io/storage-provisioner": DRIVER}
    claim: dict[str, Any] = {
        "metadata": {"name": "data", "namespace": "shop", "annotations": annotations},
        "spec": {"storageClassName": "c", "resources": {"requests": {"storage": "1Gi"}}},
    }
    await world.api.create(CLAIMS.path("shop"), claim)
    await world.settle()
    assert (world.store.volumes.models == {}) is refused
    assert (world.controllers.runner.counters["provisioning_errors"] > 0) is refused


def test_group_of_failures_is_explained_by_what_broke() -> None:
    """Not by the group, and a fault of the program goes before one of the cluster."""
    wrong, bug = CoreError("no such cluster"), KeyError("x")
    assert _explain(ExceptionGroup("tasks", [wrong])) == ("no such cluster", BAD_INPUT)
    text, code = _explain(ExceptionGroup("tasks", [wrong, ExceptionGroup("more", [bug])]))
    assert code == BROKEN
    assert text.startswith("unexpected KeyError: 'x'")


def test_unexpected_failure_ends_with_one_line() -> None:
    """The traceback is in the log on standard output."""
    program = (
        "import simulator.__main__ as main\n"
        "async def broken(options):\n"
        "    raise ExceptionGroup('tasks', [ValueError('odd')])\n"
        "main.run = broken\n"
        "main.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == BROKEN
    assert done.stderr == ("simulator: unexpected ValueError: odd; the log on standard output has the traceback\n")
    assert "ValueError: odd" in msgspec.json.decode(done.stdout)["exception"]
