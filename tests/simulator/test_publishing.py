"""Publish calls: their polls, their time-out, their workers and their back-off; the states of a volume while it is published."""

import random
from typing import Any

import msgspec

from app.kube.resources import VOLUME_ATTACHMENTS
from scheduler_core.model.longhorn import DISABLED, STRICT_LOCAL
from simulator.config import Config, draw_seconds, quantiles
from tests.worlds.simulator import QUICK, World

REAL_PUBLISH = msgspec.structs.replace(QUICK, publish_poll=Config().publish_poll)
NOT_READY = "rpc error: code = Aborted desc = volume v is not ready for workloads: "


async def _world(config: Config = REAL_PUBLISH, *volumes: str) -> World:
    """Nodes a and b, and detached volumes without locality."""
    world = World(config)
    await world.start("500Gi", "500Gi")
    for name in volumes:
        await world.add_volume(name, 10, DISABLED)
    await world.settle()
    return world


async def _publish(world: World, attachment: str) -> float | None:
    """Lets the attacher take up an attachment and handle it once more; returns when it is to be handled again."""
    await world.controllers.reconcile_attachment(attachment)
    return await world.controllers.reconcile_attachment(attachment)


def _states(world: World) -> list[str]:
    states: list[str] = []

    def on_volume(_key: str, _old: Any, new: Any) -> None:
        if states[-1:] != [new.model.state]:
            states.append(new.model.state)

    world.store.volumes.listeners.append(on_volume)
    return states


async def test_new_volume_is_creating_and_detaching_before_it_is_detached() -> None:
    world = World()
    await world.start("50Gi")
    states = _states(world)
    await world.settle(world.add_volume("v", 10, DISABLED))
    assert states == ["", "creating", "detaching", "detached"]


async def test_publish_before_the_volume_is_detached_is_refused() -> None:
    world = await _world()
    await world.add_volume("v", 10, DISABLED)
    await world.controllers.reconcile_volume("v")
    await world.attach("v", "a")
    delays = [await _publish(world, "v-a"), *[await world.controllers.reconcile_attachment("v-a") for _ in range(9)]]
    message = NOT_READY + "waiting for the volume to fully detach. current state: creating"
    assert world.attachment("v")["attachError"]["message"] == message
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert world.volume("v").node_id == ""


async def test_successful_publish_ends_the_back_off() -> None:
    world = await _world(QUICK)
    await world.settle(world.add_volume("v", 10, DISABLED), world.attach("v", "a"), _publish(world, "v-a"))
    assert world.attachment("v")["attached"] is True
    assert world.controllers.publish_calls.retry_delay("v-a") == 1


async def test_volume_without_a_place_stays_detached() -> None:
    world = World()
    await world.start("10Gi", "50Gi")
    states = _states(world)
    await world.settle(world.add_volume("v", 20, STRICT_LOCAL), world.attach("v", "a"))
    assert world.volume("v").node_id == "a"
    assert states == ["", "creating", "detaching", "detached"]


async def test_publish_call_looks_at_its_volume_every_two_seconds() -> None:
    world = await _world(REAL_PUBLISH, "v")
    await world.attach("v", "a")
    assert await _publish(world, "v-a") == 2
    await world.settle()
    assert world.volume("v").state == "attached"
    assert not world.attachment("v").get("attached")
    world.seconds += 1.5
    assert await world.controllers.reconcile_attachment("v-a") == 0.5
    world.seconds += 0.5
    await world.controllers.reconcile_attachment("v-a")
    assert world.attachment("v")["attached"] is True


async def test_publish_call_ends_after_ninety_seconds() -> None:
    world = World()
    await world.settle(world.start("10Gi"), world.add_volume("v", 20, STRICT_LOCAL), world.add_node("b", "50Gi"))
    await world.settle(world.attach("v", "a"))
    world.seconds += 89
    await world.settle()
    assert "attachError" not in world.attachment("v")
    world.seconds += 1
    assert await world.controllers.reconcile_attachment("v-a") == 1
    assert world.attachment("v")["attachError"]["message"] == (
        "rpc error: code = DeadlineExceeded desc = volume v failed to attach to node a with attachmentID v-a"
    )
    assert world.volume("v").node_id == "a"


async def test_hanging_publish_calls_hold_up_all_other_attachments() -> None:
    names = [f"v{number}" for number in range(11)]
    world = await _world(REAL_PUBLISH, *names)
    for name in names:
        await world.attach(name, "a")
    for name in names[:10]:
        await _publish(world, f"{name}-a")
    assert await _publish(world, "v10-a") is None
    await world.settle()
    assert [world.volume(name).node_id for name in names] == ["a"] * 10 + [""]
    world.controllers.attachments.due.clear()
    world.seconds += 2
    await world.controllers.reconcile_attachment("v0-a")
    assert "v10-a" in world.controllers.attachments.due
    await _publish(world, "v10-a")
    assert world.volume("v10").node_id == "a"


async def test_deleted_attachment_frees_its_worker() -> None:
    world = await _world(msgspec.structs.replace(REAL_PUBLISH, attach_workers=1), "u", "v")
    for name in ("u", "v"):
        await world.attach(name, "a")
    await _publish(world, "u-a")
    assert await _publish(world, "v-a") is None
    world.controllers.attachments.due.clear()
    await world.detach("u")
    await world.controllers.reconcile_attachment("u-a")
    assert "v-a" in world.controllers.attachments.due


async def test_error_of_an_attachment_does_not_enqueue_it() -> None:
    """Otherwise its back-off would have no effect."""
    world = await _world(REAL_PUBLISH, "v")
    await world.attach("v", "a")
    due = world.controllers.attachments.due
    due.clear()
    await world.patch(VOLUME_ATTACHMENTS, "v-a", status={"attached": False, "attachError": {"message": "no"}})
    assert not due
    await world.patch(VOLUME_ATTACHMENTS, "v-a", metadata={"labels": {"a": "b"}})
    assert "v-a" in due


async def test_change_of_a_volume_does_not_enqueue_its_attachment() -> None:
    """The attacher watches no volumes of Longhorn."""
    world = await _world(REAL_PUBLISH, "v")
    await world.attach("v", "a")
    world.controllers.attachments.due.clear()
    await world.write("v", 5)
    assert not world.controllers.attachments.due


async def test_publishes_of_one_pod_are_milliseconds_apart() -> None:
    (_, least), (_, most) = quantiles(Config().publish_seconds)
    assert most - least <= 0.0101


async def test_most_placements_follow_another_within_half_a_second() -> None:
    rng = random.Random(1)  # noqa: S311 # chance in a simulation
    delay = Config().placement_seconds
    gaps = sorted(abs(draw_seconds(delay, rng) - draw_seconds(delay, rng)) for _ in range(4000))
    assert gaps[-1] <= 1.8
    assert 0.55 < sum(gap < 0.5 for gap in gaps) / len(gaps) < 0.8
    assert gaps[len(gaps) // 10] < 0.02


async def test_replica_is_not_placed_on_a_disk_that_is_filled_during_its_delay() -> None:
    world = World(placement_seconds=(3600.0, 3600.0))
    await world.settle(world.start("50Gi"), world.add_volume("v", 40), world.attach("v", "a"))
    assert (world.volume("v").node_id, world.places("v")) == ("a", [])
    await world.settle(world.patch_disk("a", storageReserved=2**40))
    assert (world.places("v"), world.condition("v")["status"]) == ([], "False")
