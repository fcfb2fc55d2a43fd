"""Delays and refusals of Longhorn that a simpler simulator would lack. The node status is late, attachments are refused, and images and
instance managers are missing.
"""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.kube import resources
from scheduler_core.errors import CoreError
from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED, STRICT_LOCAL
from simulator.__main__ import BAD_INPUT, BROKEN, _explain
from simulator.nodes import manager_name
from simulator.objects import DRIVER
from tests.worlds.simulator import GIB, World, reported

ROOT = Path(__file__).parents[2]
LONG = 3600.0
LAG = 30.0


async def _attach_volumes(world: World, *names: str, node: str = "a") -> None:
    for name in names:
        await world.add_volume(name, 10)
        await world.attach(name, node)
    await world.settle()


async def test_node_status_omits_a_replica_until_the_lag_is_over() -> None:
    """The controller requeues the node, so no other event is necessary."""
    world = World(status_lag=(LAG, LAG))
    await world.start("50Gi", "50Gi")
    await _attach_volumes(world, "v")
    await world.write("v", 5)
    await world.patch(resources.NODES, "a", spec={"unschedulable": True})
    await world.settle()
    assert world.places("v") == ["a"]
    assert (world.disk("a").storage_scheduled, world.disk("a").scheduled_replicas) == (0, {})
    assert world.disk("a").storage_available == reported(45)
    assert not world.store.longhorn_nodes.models["a"].schedulable
    world.seconds += 1
    assert await world.controllers.reconcile_node("a") == LAG - 1
    world.seconds += LAG - 1
    assert await world.controllers.reconcile_node("a") is None
    assert world.disk("a").storage_scheduled == 10 * GIB


async def test_each_replica_has_a_lag_of_its_own() -> None:
    world = World(status_lag=(LAG, LAG))
    await world.start("50Gi")
    await _attach_volumes(world, "u")
    world.seconds += LAG / 2
    await _attach_volumes(world, "v")
    world.seconds += LAG / 2
    await world.settle()
    assert list(world.disk("a").scheduled_replicas) == [world.replicas("u")[0].name]


async def test_node_status_counts_a_deleted_replica_until_the_lag_is_over() -> None:
    """The replica's object is gone, and its space is still counted: for as long as the lag of freed space, not of placements."""
    world = World(freed_lag=(LAG, LAG))
    await world.settle(world.start("50Gi"), _attach_volumes(world, "v"))
    await world.settle(world.delete_volume("v"))
    assert world.store.replicas.objects == {}
    assert world.disk("a").storage_scheduled == 10 * GIB
    world.seconds += LAG
    await world.settle()
    assert world.disk("a").storage_scheduled == 0


async def test_node_status_stays_as_it_was_while_the_node_s_manager_is_gone() -> None:
    world = World()
    await world.settle(world.start("50Gi"), _attach_volumes(world, "v"), world.annotate_node("a", down="true"))
    assert (world.disk("a").ready, world.disk("a").schedulable) == (False, False)
    await world.settle(world.delete_volume("v"))
    assert world.store.replicas.objects == {}
    assert world.disk("a").storage_scheduled == 10 * GIB
    await world.settle(world.annotate_node("a", down=None))
    disk = world.disk("a")
    assert (disk.ready, disk.storage_scheduled, disk.scheduled_replicas) == (True, 0, {})


@pytest.mark.parametrize("locality", [BEST_EFFORT, STRICT_LOCAL])
async def test_local_volume_too_large_for_every_disk_is_not_attached(locality: str) -> None:
    world = World()
    await world.settle(world.start("10Gi"), world.add_volume("v", 20, locality), world.attach("v", "a"))
    assert "un-schedulable replicas" in world.attachment("v")["attachError"]["message"]
    assert (world.volume("v").node_id, world.replicas("v")) == ("", [])
    await world.settle(world.annotate_node("a", disks='[{"size": "60Gi"}]'))
    assert world.attachment("v")["attached"] is True
    assert world.places("v") == ["a"]


async def test_local_volume_without_room_on_one_node_is_attached_on_another() -> None:
    world = World()
    await world.settle(world.start("10Gi", "50Gi"), world.add_volume("v", 20, STRICT_LOCAL), world.attach("v", "a"))
    await world.settle(world.detach("v"))
    await world.settle(world.attach("v", "b"))
    assert world.attachment("v")["attached"] is True
    assert world.places("v") == ["b"]


async def _write_image_deployment(world: World, **nodes: bool) -> None:
    image = world.patch(resources.LONGHORN_ENGINE_IMAGES, "ei-simulated", status={"nodeDeploymentMap": nodes})
    await world.settle(image)


async def test_volume_is_not_attached_where_its_engine_image_is_missing() -> None:
    """The simulator does not deploy a removed image again by itself."""
    world = World()
    await world.start("50Gi", "50Gi")
    await _write_image_deployment(world, a=False)
    await world.add_node("c", "50Gi")
    await _attach_volumes(world, "v")
    [image] = world.store.engine_images.models.values()
    assert image.nodes == {"b", "c"}
    assert "is not deployed on node a" in world.attachment("v")["attachError"]["message"]
    assert world.volume("v").node_id == ""
    await _write_image_deployment(world, a=True)
    assert world.attachment("v")["attached"] is True


async def test_volume_is_not_attached_where_no_instance_manager_runs() -> None:
    world = World()
    await world.settle(world.start("50Gi", "50Gi"), world.add_volume("v", 10, DISABLED))
    [home] = world.places("v")
    other = "b" if home == "a" else "a"
    manager = partial(world.patch, resources.LONGHORN_INSTANCE_MANAGERS, manager_name(other, "v1"))
    await manager(metadata={"annotations": {"simulator/stopped": "true"}})
    await world.settle(world.attach("v", other))
    assert world.store.instance_managers.models[manager_name(other, "v1")].state == "stopped"
    assert world.volume("v").state == "attaching"
    await world.settle(manager(metadata={"annotations": {"simulator/stopped": None}}))
    assert world.volume("v").state == "attached"


async def _start_rebuild(world: World) -> str:
    """Starts a rebuild, which stays incomplete; returns the replica's node. The volume has 5 GiB of data."""
    await world.start("50Gi", "50Gi", "50Gi", replica_replenishment_wait_interval="0")
    await world.settle(world.add_volume("v", 10, DISABLED, replicas=2), world.attach("v", "a"), world.write("v", 5))
    lost = next(node for node in world.places("v") if node != "a")
    await world.settle(world.annotate_node(lost, down="true"))
    [new] = [each for each in world.replicas("v") if not each.model.healthy_at and not each.model.failed_at]
    assert new.model.current_state == "running"
    return new.model.node_id


async def test_replica_occupies_the_disk_while_it_is_rebuilt() -> None:
    world = World(rebuild_seconds=(LONG, LONG))
    home = await _start_rebuild(world)
    assert world.disk(home).storage_available == reported(45)


async def test_replica_is_removed_after_five_failed_rebuilds() -> None:
    world = World(rebuild_seconds=(LONG, LONG))
    await world.start("50Gi", "50Gi")
    await world.settle(world.add_volume("v", 10, DISABLED, replicas=2), world.attach("v", "a"))
    [weak] = [each.name for each in world.replicas("v") if each.model.node_id == "b"]
    counts = []
    for _ in range(6):
        await world.settle(world.annotate_node("b", down="true"))
        replica = world.store.replicas.models.get(weak)
        counts.append(replica.rebuild_retry_count if replica is not None else None)
        await world.settle(world.annotate_node("b", down=None))
    assert counts == [0, 1, 2, 3, 4, None]


async def test_faulted_volume_is_salvaged_only_with_auto_salvage() -> None:
    world = World()
    await world.start("50Gi", "50Gi", auto_salvage="false")
    await world.settle(_attach_volumes(world, "v"), world.annotate_node("a", down="true"))
    await world.settle(world.annotate_node("a", down=None))
    assert world.volume("v").robustness == "faulted"
    await world.settle(world.patch(resources.LONGHORN_SETTINGS, "auto-salvage", value="true"))
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
async def test_class_is_refused_unless_its_tags_exist(parameters: dict[str, str], refused: bool) -> None:
    """Otherwise Longhorn creates no volume, and the claim stays pending."""
    world = World()
    await world.start("50Gi")
    await world.patch_disk("a", tags=["ssd"])
    await world.patch(resources.LONGHORN_NODES, "a", spec={"tags": ["storage"]})
    storage_class = {"metadata": {"name": "c"}, "provisioner": DRIVER, "parameters": parameters}
    await world.create(resources.STORAGE_CLASSES, storage_class)
    annotations = {"volume.kubernetes.io/storage-provisioner": DRIVER}
    claim: dict[str, Any] = {
        "metadata": {"name": "data", "namespace": "shop", "annotations": annotations},
        "spec": {"storageClassName": "c", "resources": {"requests": {"storage": "1Gi"}}},
    }
    await world.settle(world.create(resources.CLAIMS, claim))
    assert (world.store.volumes.models == {}) is refused
    assert (world.controllers.runner.counters["provisioning_errors"] > 0) is refused


def test_error_group_is_explained_by_its_unexpected_error() -> None:
    wrong_input = CoreError("no such cluster")
    unexpected = KeyError("x")
    assert _explain(ExceptionGroup("tasks", [wrong_input])) == ("no such cluster", BAD_INPUT)
    text, code = _explain(ExceptionGroup("tasks", [wrong_input, ExceptionGroup("more", [unexpected])]))
    assert code == BROKEN
    assert text.startswith("unexpected KeyError: 'x'")


def test_unexpected_error_ends_with_one_line() -> None:
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
