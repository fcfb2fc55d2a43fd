"""With DiskSchedules the simulator starts, grows, copies and writes only granted bytes."""

import asyncio
from typing import Any

import msgspec

from app.kube.resources import CLAIMS, LONGHORN_BACKING_IMAGES, LONGHORN_NAMESPACE, LONGHORN_VOLUMES, PERSISTENT_VOLUMES
from scheduler_core.model.disk_schedule import Allocation, AllocationState
from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED
from simulator.status import report
from tests.worlds.fake_api import until
from tests.worlds.simulator import GIB, QUICK, World
from tests.worlds.simulator_disk_schedules import DiskScheduling

CLAIM = CLAIMS.path("shop", "v")


async def start_world(*sizes: str, **changes: Any) -> tuple[World, DiskScheduling]:
    """Starts a cluster with a DiskSchedule for each disk."""
    world = World(disk_schedules=True, **changes)
    await world.start(*sizes)
    disks = DiskScheduling(world)
    await disks.sync()
    await disks.answer()
    return world, disks


def available_gib(world: World, node: str) -> int:
    """The available space in the node's status, in Gi rounded up. Longhorn rounds it down to 100 MiB."""
    return -(-world.disk(node).storage_available // GIB)


async def test_the_simulator_places_no_replica() -> None:
    world, _ = await start_world("50Gi", "50Gi")
    await world.settle(world.add_volume("v", 10, DISABLED), world.attach("v", "a"))
    assert world.places("v") == []
    assert len(world.replicas("v")) == 1
    assert not world.attachment("v").get("attached")


async def test_a_replica_starts_once_its_disk_grants_its_size() -> None:
    world, disks = await start_world("50Gi")
    await world.settle(world.add_volume("v", 10), world.attach("v", "a"))
    await world.settle(disks.ask())
    assert world.places("v") == ["a"]
    assert disks.of("a").spec.replicas == {world.replicas("v")[0].name: 10 * GIB}
    assert not world.attachment("v").get("attached")
    assert report(world.controllers, ready=True)["ungranted"] == [world.replicas("v")[0].name]
    await world.settle(disks.answer())
    assert world.attachment("v")["attached"] is True
    assert world.volume("v").robustness == "healthy"
    assert report(world.controllers, ready=True)["ungranted"] == []


async def test_an_engine_starts_once_all_its_placed_replicas_are_granted() -> None:
    world, disks = await start_world("50Gi", "50Gi")
    await world.settle(world.add_volume("v", 10, DISABLED, replicas=2), world.attach("v", "a"))
    for _ in range(2):  # one replica is placed at a time
        await disks.ask()
    await world.settle(disks.answer("a"))
    assert world.places("v") == ["a", "b"]
    assert sorted(each.model.current_state for each in world.replicas("v")) == ["", "running"]
    assert not world.attachment("v").get("attached")
    await world.settle(disks.answer("b"))
    assert world.attachment("v")["attached"] is True
    assert world.volume("v").robustness == "healthy"


async def test_a_rebuild_waits_for_its_grant() -> None:
    world, disks = await start_world("50Gi", "50Gi", "50Gi")
    await disks.settle(world.add_volume("v", 10, DISABLED, replicas=2), world.attach("v", "a"))
    leaving = world.places("v")[0]
    await world.settle(world.patch_disk(leaving, allowScheduling=False, evictionRequested=True))
    await world.settle(disks.ask())
    assert [each.model.healthy_at for each in world.replicas("v")].count("") == 1
    await disks.settle()
    assert leaving not in world.places("v")
    assert len(world.places("v")) == 2
    assert disks.of(leaving).status.storage_scheduled == 0


async def test_an_ungranted_replica_with_data_starts_again() -> None:
    world = World()
    await world.settle(world.start("50Gi"), world.add_volume("v", 40), world.write("v", 30), world.attach("v", "a"))
    world.controllers.config = msgspec.structs.replace(QUICK, disk_schedules=True)
    disks = DiskScheduling(world)
    await disks.settle()
    [replica] = world.replicas("v")
    assert disks.of("a").status.replicas[replica.name] == Allocation(AllocationState.REJECTED, 0)
    await world.settle(world.detach("v"))
    await world.settle(world.attach("v", "a"))
    assert world.attachment("v")["attached"] is True
    assert report(world.controllers, ready=True)["ungranted"] == [replica.name]


async def grow_claim(*sizes: str, gib: int, replicas: int) -> tuple[World, DiskScheduling]:
    """Starts a cluster, and grows the claim of a 10 Gi volume."""
    world, disks = await start_world(*sizes)
    await world.add_volume("v", 10, DISABLED if replicas > 1 else BEST_EFFORT, replicas=replicas)
    spec = {"volumeName": "v", "storageClassName": "none", "resources": {"requests": {"storage": "10Gi"}}}
    status = {"capacity": {"storage": "10Gi"}}
    body = {"metadata": {"name": "v", "namespace": "shop"}, "spec": spec, "status": status}
    await world.create(CLAIMS, body)
    reference = {"namespace": "shop", "name": "v"}
    volume = {"claimRef": reference, "capacity": {"storage": "10Gi"}}
    await disks.settle(world.patch(PERSISTENT_VOLUMES, "v", spec=volume), world.attach("v", "a"))
    assert world.volume("v").robustness == "healthy"
    await world.api.patch(CLAIM, {"metadata": {}, "spec": {"resources": {"requests": {"storage": f"{gib}Gi"}}}})
    await world.settle()
    return world, disks


def sizes_of(world: World) -> tuple[int, list[int], int, int]:
    """Sizes in Gi: the volume, its replicas, its PersistentVolume and its claim."""
    store = world.store
    capacity = store.persistent_volumes.objects["v"].spec["capacity"]["storage"]
    claim_capacity = store.claims.objects["shop", "v"].status["capacity"]["storage"]
    replicas = [each.model.size // GIB for each in world.replicas("v")]
    return world.volume("v").size // GIB, replicas, _gib(capacity), _gib(claim_capacity)


def _gib(text: str) -> int:
    return int(text.removesuffix("Gi")) if text.endswith("Gi") else int(text) // GIB


async def test_an_expansion_waits_until_every_disk_grants_it() -> None:
    world, disks = await grow_claim("50Gi", "50Gi", gib=20, replicas=2)
    assert sizes_of(world) == (20, [10, 10], 10, 10)
    await world.settle(disks.ask())
    assert sizes_of(world) == (20, [10, 10], 10, 10)
    await disks.settle()
    assert sizes_of(world) == (20, [20, 20], 20, 20)


async def test_writes_stay_within_the_grant_and_reduce_the_available_space() -> None:
    world, disks = await grow_claim("50Gi", gib=30, replicas=1)
    await world.settle(world.write("v", 25))
    assert world.volume("v").actual_size == 10 * GIB
    assert available_gib(world, "a") == 40
    await disks.settle()
    assert world.volume("v").actual_size == 25 * GIB
    assert available_gib(world, "a") == 25
    assert disks.of("a").status.storage_available == world.disk("a").storage_available


async def test_a_grant_wakes_the_controllers_that_wait_for_it() -> None:
    world, disks = await grow_claim("50Gi", gib=20, replicas=1)
    await world.settle(world.add_volume("w", 10), world.attach("w", "a"))
    queues = (world.controllers.volumes, world.controllers.claims, world.controllers.replicas)
    task = asyncio.create_task(world.controllers.run())
    try:
        await disks.ask()
        await until("the queues are empty", lambda: not any(map(len, queues)))
        await disks.answer()
        await until("attached", lambda: world.attachment("w").get("attached") is True)
        await disks.ask()
        await until("grown", lambda: sizes_of(world) == (20, [20], 20, 20))
        assert disks.of("a").status.storage_scheduled == 30 * GIB
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_deleted_replica_is_gone_once_its_data_is_deleted_and_its_space_released() -> None:
    world, disks = await start_world("50Gi")
    await disks.settle(world.add_volume("v", 10), world.attach("v", "a"))
    await world.settle(world.detach("v"), world.delete_volume("v"))
    assert [each.finalizers for each in world.replicas("v")] == [["longhorn.io"]]
    assert world.disk("a").storage_scheduled == 10 * GIB
    await disks.settle()
    assert world.store.volumes.objects == {}
    assert disks.of("a").status.storage_scheduled == 0
    assert world.disk("a").storage_scheduled == 0


async def test_a_released_replica_waits_for_the_deletion_of_its_data() -> None:
    world, disks = await start_world("50Gi", delete_seconds=(3600.0, 3600.0))
    await disks.settle(world.add_volume("v", 10), world.attach("v", "a"))
    await world.settle(world.delete_volume("v"))
    await world.settle(disks.release())
    assert [each.finalizers for each in world.replicas("v")] == [["simulator/data"]]
    assert world.disk("a").storage_scheduled == 10 * GIB


async def test_a_backing_image_is_copied_once_the_disk_grants_it() -> None:
    world, disks = await start_world("50Gi")
    metadata = {"name": "i", "namespace": LONGHORN_NAMESPACE, "annotations": {"simulator/real-size": "3Gi"}}
    await world.create(LONGHORN_BACKING_IMAGES, {"metadata": metadata})
    await world.add_volume("v", 10)
    await world.settle(world.patch(LONGHORN_VOLUMES, "v", spec={"backingImage": "i"}), world.attach("v", "a"))
    assert world.store.backing_images.models["i"].disks == ()
    await world.settle(disks.ask())
    image = world.store.backing_images.objects["i"]
    assert image.model.disks == (world.disk("a").uuid,)
    assert "diskFileStatusMap" not in image.status
    await world.patch(LONGHORN_BACKING_IMAGES, "i", spec={"diskFileSpecMap": None})
    await world.settle(disks.answer())
    assert not world.attachment("v").get("attached")
    await disks.settle()
    assert world.attachment("v")["attached"] is True
    assert disks.of("a").status.backing_images == {"i": Allocation(AllocationState.SCHEDULED, 3 * GIB)}
    assert available_gib(world, "a") == 47
