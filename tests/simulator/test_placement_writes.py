"""How a replica's place is written, and what admission webhooks may change or refuse (facts measured with Longhorn v1.12.1's control code)."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from app.kube.client import ApiError
from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED, STRICT_LOCAL
from simulator.controller_queue import LonghornQueue
from simulator.nodes import disk_uuid
from simulator.objects import DISK_LABEL, NODE_LABEL
from tests.worlds.simulator import GIB, World
from tests.worlds.virtual_time import run

Json = dict[str, Any]
SMALL = disk_uuid("a", "disk-1")
LARGE = disk_uuid("a", "disk-2")
PATHS = {SMALL: "/var/lib/longhorn/disk-1", LARGE: "/var/lib/longhorn/disk-2"}
PLACE = {"nodeID", "diskID", "diskPath", "dataDirectoryName"}
REFUSED = ApiError("PUT replica", 403, "Forbidden", "admission webhook denied the request")
CONFLICT = ApiError("PUT replica", 409, "Conflict", "the object has changed")


async def _world() -> World:
    """Node a with a disk of 60Gi and one of 100Gi, which Longhorn prefers."""
    world = World()
    await world.settle(world.start(), world.add_node("a", "60Gi", "100Gi"))
    return world


def _record_placements(world: World) -> list[tuple[Json, Json]]:
    """The replicas before and after each placement from now on."""
    placements: list[tuple[Json, Json]] = []

    def admit(before: Json, after: Json) -> Json:
        placements.append((before, after))
        return after

    world.api.admission = admit
    return placements


def _move_to(uuid: str, *, labels: bool) -> Callable[[Json, Json], Json]:
    """An admission webhook that changes the disk of a placement, with or without its label."""

    def admit(_: Json, after: Json) -> Json:
        label = {DISK_LABEL: uuid} if labels else {}
        metadata = {**after["metadata"], "labels": {**after["metadata"]["labels"], **label}}
        return {**after, "metadata": metadata, "spec": {**after["spec"], "diskID": uuid, "diskPath": PATHS[uuid]}}

    return admit


def _scheduled(world: World) -> dict[str, list[str]]:
    return {
        disk.uuid: list(disk.scheduled_replicas)
        for disk in world.store.longhorn_nodes.models["a"].disks
        if disk.scheduled_replicas
    }


@pytest.mark.parametrize(
    ("locality", "changed"),
    [
        pytest.param(DISABLED, PLACE, id="disabled"),
        pytest.param(BEST_EFFORT, PLACE, id="best-effort"),
        pytest.param(STRICT_LOCAL, PLACE | {"hardNodeAffinity"}, id="strict-local"),
    ],
)
async def test_placement_is_one_write_of_place_and_labels(locality: str, changed: set[str]) -> None:
    world = await _world()
    placements = _record_placements(world)
    await world.settle(world.add_volume("v", 10, locality), world.attach("v", "a"))
    [(before, after)] = placements
    assert {key for key, value in after["spec"].items() if before["spec"][key] != value} == changed
    assert (after["spec"]["diskID"], after["spec"]["diskPath"]) == (LARGE, PATHS[LARGE])
    assert {key: after["metadata"]["labels"][key] for key in (NODE_LABEL, DISK_LABEL)} == {
        NODE_LABEL: "a",
        DISK_LABEL: LARGE,
    }
    unchanged = ("name", "namespace", "uid", "finalizers", "ownerReferences")
    assert [after["metadata"][key] for key in unchanged] == [before["metadata"][key] for key in unchanged]


async def test_answer_to_a_placement_is_discarded() -> None:
    """The place is known when the watch shows it, and a placement before that is a conflict."""
    world = await _world()
    await world.add_volume("v", 10, DISABLED)
    await world.controllers.reconcile_volume("v")
    while not world.replicas("v"):
        await world.controllers.reconcile_volume("v")
    world.api.hold_watches()
    await world.controllers.reconcile_volume("v")
    assert world.places("v") == []
    with pytest.raises(ApiError) as raised:
        await world.controllers.reconcile_volume("v")
    assert raised.value.conflict
    world.api.release_watches()
    assert world.places("v") == ["a"]


@pytest.mark.parametrize("locality", [DISABLED, BEST_EFFORT, STRICT_LOCAL])
async def test_place_that_admission_changed_is_the_replica_s_place(locality: str) -> None:
    world = await _world()
    world.api.admission = _move_to(SMALL, labels=True)
    await world.settle(world.add_volume("v", 10, locality), world.attach("v", "a"))
    [replica] = world.replicas("v")
    assert (replica.spec["nodeID"], replica.spec["diskID"], replica.spec["diskPath"]) == ("a", SMALL, PATHS[SMALL])
    assert (replica.labels[NODE_LABEL], replica.labels[DISK_LABEL]) == ("a", SMALL)
    assert _scheduled(world) == {SMALL: [replica.name]}
    assert world.volume("v").state == "attached"


async def test_changed_disk_without_its_label_counts_on_the_old_disk_until_it_heals() -> None:
    """The status goes by the label, and a later write of the spec writes the label anew."""
    world = await _world()
    counts: list[dict[str, list[str]]] = []
    world.store.longhorn_nodes.listeners.append(lambda *_: counts.append(_scheduled(world)))
    world.api.admission = _move_to(SMALL, labels=False)
    await world.settle(world.add_volume("v", 10, DISABLED))
    [replica] = world.replicas("v")
    assert {LARGE: [replica.name]} in counts
    assert _scheduled(world) == {SMALL: [replica.name]}
    assert (replica.labels[DISK_LABEL], replica.spec["diskPath"]) == (SMALL, PATHS[SMALL])


async def test_overbooked_disks_are_counted_by_label() -> None:
    world = await _world()
    world.api.admission = _move_to(SMALL, labels=True)
    for name in ("u", "v"):
        await world.add_volume(name, 40, DISABLED)
    await world.settle()
    disks = {disk.uuid: disk for disk in world.store.longhorn_nodes.models["a"].disks}
    assert (disks[SMALL].storage_scheduled, disks[LARGE].storage_scheduled) == (80 * GIB, 0)


async def test_refused_placement_leaves_the_volume_s_status_as_it_was() -> None:
    world = World()
    await world.start("50Gi", "50Gi")
    await world.add_volume("v", 10, DISABLED, replicas=2)
    while len(world.replicas("v")) < 2:
        await world.controllers.reconcile_volume("v")
    refused: list[str] = []

    def admit(_: Json, after: Json) -> Json:
        if not refused:
            refused.append(after["metadata"]["name"])
            raise REFUSED
        return after

    world.api.admission = admit
    before = world.store.volumes.objects["v"].status
    with pytest.raises(ApiError):
        await world.controllers.reconcile_volume("v")
    assert world.store.volumes.objects["v"].status == before
    [placed] = [each for each in world.replicas("v") if each.model.node_id]
    assert placed.name not in refused
    assert not any(each.model.failed_at for each in world.replicas("v"))
    assert world.controllers.runner.counters["replicas_placed"] == 1


def _handle_times(outcomes: list[ApiError | None], events: list[float], seconds: float) -> list[int]:
    """When a queue handles a key whose first handlings have these outcomes, in milliseconds; later ones succeed."""

    async def play() -> list[int]:
        loop = asyncio.get_running_loop()
        times: list[int] = []

        async def handle(_: str) -> None:
            times.append(round(loop.time() * 1000))
            outcome = outcomes.pop(0) if outcomes else None
            if outcome is not None:
                raise outcome

        queue: LonghornQueue[str] = LonghornQueue("volumes", handle, random.Random(1), workers=1, resync_period=30)  # noqa: S311
        for when in events:
            loop.call_at(when, queue.add, "v")
        task = asyncio.create_task(queue.run())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return times

    return run(play())


@pytest.mark.parametrize(
    ("outcomes", "events", "times"),
    [
        pytest.param([], [0], [0], id="success"),
        pytest.param([REFUSED], [0], [0, 5], id="refused once"),
        pytest.param([REFUSED] * 3, [0], [0, 5, 15, 35], id="refused three times"),
        pytest.param([REFUSED] * 4, [0], [0, 5, 15, 35], id="dropped"),
        pytest.param([REFUSED] * 4, [0, 0.1], [0, 5, 15, 35, 100], id="event after the drop"),
        pytest.param([REFUSED] * 8, [0, 0.1], [0, 5, 15, 35, 100, 105, 115, 135], id="a drop ends the count"),
        pytest.param([REFUSED, None, REFUSED], [0, 0.1], [0, 5, 100, 105], id="a success ends the count"),
        pytest.param([CONFLICT] * 5, [0], [0] * 6, id="conflicts"),
        pytest.param(
            [REFUSED] * 3 + [CONFLICT] + [REFUSED] * 4, [0], [0, 5, 15, 35, 35, 40, 50, 70], id="conflict in between"
        ),
        pytest.param([REFUSED] * 4, [0, 0.002], [0, 2, 5, 25], id="an event is one more attempt"),
    ],
)
def test_refused_volume_is_tried_again_after_5_10_and_20_ms(
    outcomes: list[ApiError | None], events: list[float], times: list[int]
) -> None:
    """Then it is dropped until its next event; a conflict is tried again at once, and uses up no attempt."""
    assert _handle_times(list(outcomes), events, seconds=0.3) == times


def test_dropped_volume_is_tried_again_at_the_resync() -> None:
    """The informers hand out every object within 30 s."""
    times = _handle_times([REFUSED] * 4, [0], seconds=31)
    assert len(times) == 5
    assert 35 < times[4] <= 30_035
