"""Volumes where DiskSchedules hold every byte: what has not been granted does not start, grow, get copied or get written."""

from __future__ import annotations

import asyncio

import msgspec

from app.kube.resources import CLAIMS, LONGHORN_BACKING_IMAGES, LONGHORN_NAMESPACE, LONGHORN_VOLUMES, PERSISTENT_VOLUMES
from scheduler_core.model.disk_schedule import Allocation, AllocationState
from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED
from simulator.config import Config
from simulator.status import report
from tests.worlds.fake_api import until
from tests.worlds.simulator import GIB, QUICK, World
from tests.worlds.simulator_disk_schedules import DiskScheduling

CLAIM = CLAIMS.path("shop", "v")


def config(**changes: object) -> Config:
    """Without delays."""
    return msgspec.structs.replace(QUICK, disk_schedules=True, **changes)


async def started(*sizes: str, settings: Config | None = None) -> tuple[World, DiskScheduling]:
    """A cluster with a DiskSchedule for each disk."""
    world = World(settings or config())
    await world.start(*sizes)
    disks = DiskScheduling(world)
    await disks.sync()
    await disks.answer()
    return world, disks


def available(world: World, node: str) -> int:
    """What the node's status says is left, in Gi; Longhorn writes it rounded down to 100 MiB."""
    return -(-world.disk(node).storage_available // GIB)


async def test_nothing_is_placed_by_the_simulator_itself() -> None:
    """The replica object is there and waits."""
    world, _ = await started("50Gi", "50Gi")
    await world.add_volume("v", 10, DISABLED)
    await world.attach("v", "a")
    await world.settle()
    assert world.places("v") == []
    assert len(world.replicas("v")) == 1
    assert not world.attachment("v").get("attached")


async def test_a_replica_starts_when_its_disk_has_granted_its_size() -> None:
    """Not when it has a place, nor when its room was asked for."""
    world, disks = await started("50Gi")
    await world.add_volume("v", 10)
    await world.attach("v", "a")
    await world.settle()
    await disks.ask()
    await world.settle()
    assert world.places("v") == ["a"]
    assert disks.of("a").spec.replicas == {world.replicas("v")[0].name: 10 * GIB}
    assert not world.attachment("v").get("attached")
    assert report(world.controllers, ready=True)["ungranted"] == [world.replicas("v")[0].name]
    await disks.answer()
    await world.settle()
    assert world.attachment("v")["attached"] is True
    assert world.volume("v").robustness == "healthy"
    assert report(world.controllers, ready=True)["ungranted"] == []


async def test_a_rejected_replica_starts_where_it_is_tried_next() -> None:
    """Another request was there first: what the disk held when it was asked was not what it held when it decided."""
    world, disks = await started("30Gi", "30Gi")
    for name in ("u", "v"):
        await world.add_volume(name, 20, DISABLED)
    await world.settle()
    await disks.ask()
    [first], [second] = world.replicas("u"), world.replicas("v")
    uuid, other = first.model.disk_id, second.model.disk_id
    await world.api.patch(
        f"/apis/longhorn.io/v1beta2/namespaces/longhorn-system/diskschedules/{other}",
        {"metadata": {}, "spec": {"replicas": {"another": 15 * GIB}}},
    )
    await disks.answer()
    assert disks.schedules[other].status.replicas[second.name] == Allocation(AllocationState.REJECTED, 0)
    await world.attach("v", "a")
    await world.settle()
    assert not world.attachment("v").get("attached")
    await world.delete_volume("u")
    await disks.settle()
    assert world.replicas("v")[0].model.disk_id == uuid
    assert world.attachment("v")["attached"] is True


async def test_an_engine_starts_when_the_room_of_all_its_placed_replicas_is_granted() -> None:
    """One that is still waited for would otherwise have to be rebuilt."""
    world, disks = await started("50Gi", "50Gi")
    await world.add_volume("v", 10, DISABLED, replicas=2)
    await world.attach("v", "a")
    await world.settle()
    for _ in range(2):  # one place at a time
        await disks.ask()
    await disks.answer("a")
    await world.settle()
    assert world.places("v") == ["a", "b"]
    assert sorted(each.model.current_state for each in world.replicas("v")) == ["", "running"]
    assert not world.attachment("v").get("attached")
    await disks.answer("b")
    await world.settle()
    assert world.attachment("v")["attached"] is True
    assert world.volume("v").robustness == "healthy"


async def test_a_rebuild_waits_for_its_grant() -> None:
    """The new replica of a degraded volume gets its place and its data when there is room for it."""
    world, disks = await started("50Gi", "50Gi", "50Gi")
    await world.add_volume("v", 10, DISABLED, replicas=2)
    await world.attach("v", "a")
    await disks.settle()
    leaving = world.places("v")[0]
    await world.patch_disk(leaving, allowScheduling=False, evictionRequested=True)
    await world.settle()
    await disks.ask()
    await world.settle()
    assert [each.model.healthy_at for each in world.replicas("v")].count("") == 1
    await disks.settle()
    assert leaving not in world.places("v")
    assert len(world.places("v")) == 2
    assert disks.of(leaving).status.storage_scheduled == 0


async def test_a_replica_with_data_starts_again_although_its_room_was_never_granted() -> None:
    """It was there before the DiskSchedules, and the disk has no room for it by their measure."""
    world = World()
    await world.start("50Gi")
    await world.add_volume("v", 40)
    await world.write("v", 30)
    await world.attach("v", "a")
    await world.settle()
    world.controllers.config = config()
    disks = DiskScheduling(world)
    await disks.settle()
    [replica] = world.replicas("v")
    assert disks.of("a").status.replicas[replica.name] == Allocation(AllocationState.REJECTED, 0)
    await world.detach("v")
    await world.settle()
    await world.attach("v", "a")
    await world.settle()
    assert world.attachment("v")["attached"] is True
    assert report(world.controllers, ready=True)["ungranted"] == [replica.name]


async def grown_claim(*sizes: str, gib: int, replicas: int) -> tuple[World, DiskScheduling]:
    """A volume of 10 Gi in use, whose claim asks for more."""
    world, disks = await started(*sizes)
    await world.add_volume("v", 10, DISABLED if replicas > 1 else BEST_EFFORT, replicas=replicas)
    spec = {"volumeName": "v", "storageClassName": "none", "resources": {"requests": {"storage": "10Gi"}}}
    status = {"capacity": {"storage": "10Gi"}}
    body = {"metadata": {"name": "v", "namespace": "shop"}, "spec": spec, "status": status}
    await world.api.create(CLAIMS.path("shop"), body)
    reference = {"namespace": "shop", "name": "v"}
    volume = {"metadata": {}, "spec": {"claimRef": reference, "capacity": {"storage": "10Gi"}}}
    await world.api.patch(PERSISTENT_VOLUMES.path(name="v"), volume)
    await world.attach("v", "a")
    await disks.settle()
    assert world.volume("v").robustness == "healthy"
    await world.api.patch(CLAIM, {"metadata": {}, "spec": {"resources": {"requests": {"storage": f"{gib}Gi"}}}})
    await world.settle()
    return world, disks


def sizes_of(world: World) -> tuple[int, list[int], int, int]:
    """In Gi: the volume, its replicas, its PersistentVolume, its claim."""
    store = world.store
    capacity = store.persistent_volumes.objects["v"].spec["capacity"]["storage"]
    told = store.claims.objects["shop", "v"].status["capacity"]["storage"]
    replicas = [each.model.size // GIB for each in world.replicas("v")]
    return world.volume("v").size // GIB, replicas, _gib(capacity), _gib(told)


def _gib(text: str) -> int:
    return int(text.removesuffix("Gi")) if text.endswith("Gi") else int(text) // GIB


async def test_an_expansion_is_held_until_every_disk_has_granted_it() -> None:
    """Only the wish is written at first; when all replicas have grown the claim tells."""
    world, disks = await grown_claim("50Gi", "50Gi", gib=20, replicas=2)
    assert sizes_of(world) == (20, [10, 10], 10, 10)
    await disks.ask()
    await world.settle()
    assert sizes_of(world) == (20, [10, 10], 10, 10)
    await disks.settle()
    assert sizes_of(world) == (20, [20, 20], 20, 20)


async def test_an_expansion_one_disk_rejects_changes_nothing() -> None:
    """By Longhorn's own rule there was room; what the other disk granted is given back."""
    world, disks = await grown_claim("50Gi", "50Gi", gib=20, replicas=2)
    full = world.disk("b").uuid
    await world.api.patch(
        f"/apis/longhorn.io/v1beta2/namespaces/longhorn-system/diskschedules/{full}",
        {"metadata": {}, "spec": {"replicas": {"another": 35 * GIB}}},
    )
    await disks.answer()
    for _ in range(5):
        for look in (disks.ask, disks.answer, world.settle):
            await look()
    assert sizes_of(world) == (20, [10, 10], 10, 10)
    assert disks.of("a").status.storage_scheduled == 10 * GIB
    entry = next(
        each for each in world.store.volumes.objects["v"].status["conditions"] if each["type"] == "DiskAllocation"
    )
    assert entry["reason"] == "ExpansionRejected"


async def test_no_more_is_written_than_is_granted_and_what_is_written_is_gone_from_what_is_available() -> None:
    """A volume whose expansion is held is not filled beyond its old size."""
    world, disks = await grown_claim("50Gi", gib=30, replicas=1)
    await world.write("v", 25)
    await world.settle()
    assert world.volume("v").actual_size == 10 * GIB
    assert available(world, "a") == 40
    await disks.settle()
    assert world.volume("v").actual_size == 25 * GIB
    assert available(world, "a") == 25
    assert disks.of("a").status.storage_available == world.disk("a").storage_available


async def test_whoever_waits_for_a_grant_looks_again_when_it_comes() -> None:
    """The controllers run by themselves here, and nothing but the DiskSchedule and the replica's size changes."""
    world, disks = await grown_claim("50Gi", gib=20, replicas=1)
    await world.add_volume("w", 10)
    await world.attach("w", "a")
    await world.settle()
    queues = (world.controllers.volumes, world.controllers.claims, world.controllers.replicas)
    running = asyncio.create_task(world.controllers.run())
    try:
        await disks.ask()
        await until("nobody looks any more", lambda: not any(map(len, queues)))
        await disks.answer()
        await until("attached", lambda: world.attachment("w").get("attached") is True)
        await disks.ask()
        await until("grown", lambda: sizes_of(world) == (20, [20], 20, 20))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_deleted_replica_is_gone_when_its_data_is_and_its_room_was_given_back() -> None:
    """The one is the simulator's to say, the other the DiskSchedules' controllers'."""
    world, disks = await started("50Gi")
    await world.add_volume("v", 10)
    await world.attach("v", "a")
    await disks.settle()
    await world.detach("v")
    await world.delete_volume("v")
    await world.settle()
    assert [each.finalizers for each in world.replicas("v")] == [["longhorn.io"]]
    assert world.disk("a").storage_scheduled == 10 * GIB
    await disks.settle()
    assert world.store.volumes.objects == {}
    assert disks.of("a").status.storage_scheduled == 0
    assert world.disk("a").storage_scheduled == 0


async def test_room_is_given_back_before_the_data_is_gone() -> None:
    """Then it is the simulator that the replica object waits for."""
    world, disks = await started("50Gi", settings=config(delete_seconds=(3600.0, 3600.0)))
    await world.add_volume("v", 10)
    await world.attach("v", "a")
    await disks.settle()
    await world.delete_volume("v")
    await world.settle()
    await disks.release()
    await world.settle()
    assert [each.finalizers for each in world.replicas("v")] == [["simulator/data"]]
    assert world.disk("a").storage_scheduled == 10 * GIB


async def test_a_backing_image_is_copied_to_a_disk_that_has_granted_it() -> None:
    """And a replica that needs it waits for the copy, even while nobody has listed its disk."""
    world, disks = await started("50Gi")
    metadata = {"name": "i", "namespace": LONGHORN_NAMESPACE, "annotations": {"simulator/real-size": "3Gi"}}
    await world.api.create(LONGHORN_BACKING_IMAGES.path(LONGHORN_NAMESPACE), {"metadata": metadata})
    await world.add_volume("v", 10)
    path = LONGHORN_VOLUMES.path(LONGHORN_NAMESPACE, "v")
    await world.api.patch(path, {"metadata": {}, "spec": {"backingImage": "i"}})
    await world.attach("v", "a")
    await world.settle()
    assert world.store.backing_images.models["i"].disks == ()
    await disks.ask()
    await world.settle()
    image = world.store.backing_images.objects["i"]
    assert image.model.disks == (world.disk("a").uuid,)
    assert "diskFileStatusMap" not in image.status
    await world.api.patch(
        LONGHORN_BACKING_IMAGES.path(LONGHORN_NAMESPACE, "i"), {"metadata": {}, "spec": {"diskFileSpecMap": None}}
    )
    await disks.answer()
    await world.settle()
    assert not world.attachment("v").get("attached")
    await disks.settle()
    assert world.attachment("v")["attached"] is True
    assert disks.of("a").status.backing_images == {"i": Allocation(AllocationState.SCHEDULED, 3 * GIB)}
    assert available(world, "a") == 47


async def test_no_disk_is_ever_promised_more_than_was_available() -> None:
    """Ten volumes of 20 Gi for 100 Gi: as many as fit get room, however large Longhorn's over-provisioning is."""
    world, disks = await started("50Gi", "50Gi")
    for number in range(10):
        await world.add_volume(f"v{number}", 20, DISABLED)
    for _ in range(12):
        for look in (world.settle, disks.ask, disks.answer):
            await look()
    assert sum(len(world.places(f"v{number}")) for number in range(10)) == 4
    for schedule in disks.schedules.values():
        assert schedule.status.storage_scheduled == 40 * GIB
