"""Controllers that interrupt each other at every API call, are killed anywhere, and run in several copies at once.

In every order a status grants no more than the storageAvailable it was computed from, running replicas and finished copies keep
their bytes, and at rest every held byte belongs to one replica or copy on one disk.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from random import Random

import pytest

from scheduler_core.disk_schedule.writes import gone_disk, set_requirement
from scheduler_core.model import disk_schedule as ds
from scheduler_core.structs import replace
from tests.worlds.disk_schedule_interleaving import (
    CONTROLLERS,
    GI,
    TIME,
    Actor,
    ConflictError,
    World,
    add_volume,
    advance,
    check,
    check_at_rest,
    copier,
    disk_controller,
    finish,
    image_controller,
    names,
    replica_controller,
    scheduled_bytes,
    settle,
    starter,
    stored_bytes,
    volume_controller,
    world,
)


def operate(api: World, random: Random, numbers: Iterator[int]) -> None:
    """Lets users change objects, data be written, and disks be removed, returned or moved."""
    actions = [
        "create",
        "create",
        "resize",
        "delete",
        "write",
        "free",
        "image",
        "remove image",
        "edit request",
        "relist",
    ]
    match random.choice(actions):
        case "create":
            create(api, random, numbers)
        case "resize":
            resize(api, random)
        case "delete":
            delete(api, random)
        case "image" if len(api.all("image")) < 4:
            name = f"i{next(numbers)}"
            api.put("image", name, ds.BackingImageCopies(name, random.randint(1, 3) * 10 * GI, random.randint(1, 2)))
        case "remove image" if images := api.all("image"):
            api.change("image", random.choice(sorted(images)), deleting=True)
        case "edit request" if schedules := api.values("schedule"):
            uuid = random.choice(sorted(schedules))
            kind = random.choice(list(ds.RequestKind))
            api.change("schedule", uuid, spec=set_requirement(schedules[uuid].spec, kind, "ghost", 10 * GI))
        case "relist":
            home = random.choice(sorted(api.available))
            second = random.choice(sorted(api.available))
            api.listed[home] = random.choice([(), (second,), (home, second), (second, home), (home,), (home,)])
        case "write" | "free" as action:
            node = random.choice(sorted(api.available))
            change = random.randint(1, 5) * 10 * GI
            api.available[node] = max(0, api.available[node] + (change if action == "free" else -change))
        case _:
            pass


def create(api: World, random: Random, numbers: Iterator[int]) -> None:
    """Creates a volume, perhaps from an image, perhaps with replicas without size."""
    if len(api.all("volume")) < 8:
        image = random.choice(["", "", *sorted(api.all("image"))])
        name = f"v{next(numbers)}"
        size = random.randint(1, 6) * 10 * GI
        replicas = random.randint(1, 2)
        add_volume(api, name, size, replicas, image=image, sized=random.random() < 0.9)


def resize(api: World, random: Random) -> None:
    """Resizes a volume, never below its replicas' sizes."""
    if volumes := api.values("volume"):
        name = random.choice(sorted(volumes))
        volume, condition = volumes[name]
        smallest = max((each.size for each in api.values("replica").values() if each.volume == name), default=0)
        size = max(smallest, 10 * GI, volume.size + random.randint(-3, 4) * 10 * GI)
        api.put("volume", name, (replace(volume, size=size), condition))


def delete(api: World, random: Random) -> None:
    """Deletes a volume with its replicas."""
    if volumes := api.values("volume"):
        name = random.choice(sorted(volumes))
        for key, replica in api.values("replica").items():
            if replica.volume == name:
                api.change("replica", key, deleting=True)
        volume, condition = volumes[name]
        api.put("volume", name, (replace(volume, deleting=True), condition))


def advance_and_check(api: World, actor: Actor) -> bool:
    """Lets an actor do its next call, and checks the objects if it wrote one."""
    version = api.version
    continues = advance(actor)
    if api.version != version:
        check(api)
    return continues


def take_turn(api: World, actor: Actor, length: int) -> int:
    """Lets an actor do up to so many calls; returns how many it did, the one with which it ended included."""
    return next((count for count in range(1, length + 1) if not advance_and_check(api, actor)), length)


@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_random_operations_with_kills_lose_and_double_no_bytes(seed: int) -> None:
    """Up to eight actors of five controllers, and of those that start replicas and copy images, run at once; some are killed."""
    random = Random(seed)  # noqa: S311 # a seed makes it repeatable
    numbers = itertools.count()
    api = world({"a": 150 * GI, "b": 100 * GI, "c": 60 * GI}, {})
    running: list[Actor] = []
    for number in range(1000):
        version = api.version
        operate(api, random, numbers)
        if api.version != version:
            check(api)
        for _ in range(12):
            if len(running) < 8:
                kind = random.choice(sorted(CONTROLLERS))
                if candidates := names(api, kind):
                    running.append(CONTROLLERS[kind](api, random.choice(candidates)))
            if running:
                actor = random.choice(running)
                if random.random() < 0.02 or not advance_and_check(api, actor):
                    running.remove(actor)
        if number % 50 == 49:
            running.clear()
            settle(api)
            check_at_rest(api)
            assert scheduled_bytes(api) == stored_bytes(api)
            for name, (volume, _) in api.values("volume").items():
                if volume.deleting:
                    del api.objects["volume", name]


def test_a_disk_that_two_nodes_list_is_not_requested_again_and_again() -> None:
    api = world({"a": 100 * GI, "b": 0}, {"v": 50 * GI})
    api.listed["a"] = ("a", "b")
    settle(api)
    assert not api.objects["replica", "v-0"][1].disk_id
    api.listed["a"] = ("b",)
    settle(api)
    check_at_rest(api)
    replica = api.objects["replica", "v-0"][1]
    assert (replica.node_id, replica.disk_id, replica.current_state) == ("b", "a-uuid", "running")


def test_at_the_first_start_a_new_replica_leaves_the_room_of_one_with_data() -> None:
    """That one has no request yet, and the new one's name comes first."""
    api = world({"a": 100 * GI, "b": 90 * GI}, {"new": 60 * GI, "old": 60 * GI})
    api.change("replica", "old-0", node_id="a", disk_id="a-uuid", healthy_at=TIME)
    settle(api)
    check_at_rest(api)
    assert api.objects["replica", "new-0"][1].disk_id == "b-uuid"
    assert api.schedule("a").status.replicas["old-0"].size == 60 * GI


def requester(api: World, uuid: str, name: str, size: int) -> Actor:
    """Requests bytes: it reads, writes against that version, and retries after a conflict."""
    while True:
        yield
        version, schedule = api.objects["schedule", uuid]
        yield
        try:
            after = replace(schedule, spec=set_requirement(schedule.spec, ds.RequestKind.REPLICA, name, size))
            api.put("schedule", uuid, after, version)
        except ConflictError:
            continue
        return


def all_orders(counts: dict[str, int]) -> Iterator[tuple[str, ...]]:
    """Every order of so many calls of each actor."""
    if not any(counts.values()):
        yield ()
    for name, count in counts.items():
        if count:
            for remaining_order in all_orders({**counts, name: count - 1}):
                yield (name, *remaining_order)


Sizes = dict[str, int]
CASES: dict[str, tuple[Sizes, Sizes]] = {
    "two newcomers": ({}, {"r1": 60, "r2": 60}),
    "a growth and a newcomer": ({"r1": 30}, {"r1": 60, "r2": 60}),
    "two growths": ({"r1": 40, "r2": 40}, {"r1": 70, "r2": 60}),
    "a withdrawal and a newcomer": ({"r1": 60}, {"r1": 0, "r2": 60}),
    "a withdrawal and a growth": ({"r1": 60, "r2": 40}, {"r1": 0, "r2": 100}),
}


@pytest.mark.parametrize("killed", [None, "r1", "r2", "disk"])
@pytest.mark.parametrize("case", CASES)
def test_every_order_of_two_requesters_and_the_disk_controller_ends_alike(case: str, killed: str | None) -> None:
    """Two requests that do not both fit on the disk are made in all orders of the calls; one actor is killed after its
    first. A requester reads and writes, the disk controller reads twice and writes. After a conflict the requester
    retries in the end. Held bytes stay held, and in the end each request is answered and no bytes stay free that one
    could use. Before its first call an actor does nothing, so every actor is at that call when an order begins.
    """
    held_sizes, requested_sizes = CASES[case]
    start = world({"a": 100}, {})
    status = ds.DiskScheduleStatus(
        {name: ds.Allocation(ds.AllocationState.SCHEDULED, size) for name, size in held_sizes.items()},
        {},
        sum(held_sizes.values()),
    )
    start.change("schedule", "a-uuid", spec=ds.DiskScheduleSpec("a", "a", replicas=held_sizes), status=status)
    check_held(start.schedule("a"), held_sizes)
    calls = {"r1": 2, "r2": 2, "disk": 3}
    if killed:
        calls[killed] = 1
    for order in all_orders(calls):
        api = start.fork()
        actors = {name: requester(api, "a-uuid", name, size) for name, size in requested_sizes.items()}
        actors["disk"] = disk_controller(api, "a-uuid")
        for actor in actors.values():
            advance(actor)
        assert api == start, "an actor pauses before its first call"
        for name in order:
            advance(actors[name])
            check_held(api.schedule("a"), held_sizes)
        for name in requested_sizes.keys() - {killed}:
            finish(actors[name])
        finish(disk_controller(api, "a-uuid"))
        finish(disk_controller(api, "a-uuid"))
        schedule = api.schedule("a")
        sizes = {**held_sizes, **{name: size for name, size in requested_sizes.items() if name != killed}}
        assert schedule.spec.replicas == {name: size for name, size in sizes.items() if size}
        check_held(schedule, held_sizes)
        answers = schedule.status.replicas
        assert answers.keys() == schedule.spec.replicas.keys()
        total = sum(entry.size for entry in answers.values())
        assert schedule.status.storage_scheduled == total <= 100
        for name, entry in answers.items():
            size = sizes[name]
            assert (
                entry.size == size if entry.state is ds.AllocationState.SCHEDULED else total + size - entry.size > 100
            )


def check_held(schedule: ds.DiskSchedule, held_sizes: Sizes) -> None:
    """Asserts that each request still holds the bytes it held."""
    for name, size in held_sizes.items():
        if name in schedule.spec.replicas:
            assert schedule.status.replicas[name].size >= size


def new_volume(api: World) -> None:
    """A volume without places for its replicas."""
    add_volume(api, "v", 50 * GI)


def full_disk(api: World) -> None:
    """A replica has a request on a disk that is full by now."""
    add_volume(api, "v", 50 * GI)
    api.change("replica", "v-0", node_id="a", disk_id="a-uuid")
    api.request("a-uuid", replicas={"v-0": 50 * GI})
    api.available["a"] = 10 * GI


def expansion(api: World) -> None:
    """Two replicas run, and only one of their disks has room for the new size."""
    add_volume(api, "v", 50 * GI, 2)
    settle(api)
    assert [replica.current_state for replica in api.values("replica").values()] == ["running", "running"]
    api.available["b"] = 60 * GI
    volume, condition = api.objects["volume", "v"][1]
    api.put("volume", "v", (replace(volume, size=80 * GI), condition))


def half_done_expansion(api: World) -> None:
    """As `expansion`, after one disk granted and the other refused, which has room by now."""
    expansion(api)
    for kind, name in (("volume", "v"), ("schedule", "a-uuid"), ("schedule", "b-uuid")):
        finish(CONTROLLERS[kind](api, name))
    assert sorted(api.schedule(node).status.storage_scheduled for node in "ab") == [50 * GI, 80 * GI]
    api.available["b"] = 100 * GI


def expansion_without_request(api: World) -> None:
    """As `expansion`, but one replica is from before the DiskSchedules: it has data and holds nothing."""
    expansion(api)
    (unheld,) = [name for name, replica in api.values("replica").items() if replica.node_id == "b"]
    api.change("replica", unheld, current_state="", healthy_at=TIME)
    api.change("schedule", "b-uuid", status=replace(api.schedule("b").status, replicas={}, storage_scheduled=0))


def unrequested_replica(api: World) -> None:
    """A replica has a place and no request; a user deletes it meanwhile."""
    add_volume(api, "v", 50 * GI)
    api.change("replica", "v-0", node_id="a", disk_id="a-uuid")


def delete_replica(api: World, name: str) -> Actor:
    yield
    api.change("replica", name, deleting=True)


def image_with_full_disk(api: World) -> None:
    api.put("image", "i", ds.BackingImageCopies("i", 50 * GI, 2, wanted_disks=frozenset({"a-uuid"})))
    api.request("a-uuid", backing_images={"i": 50 * GI})
    api.available["a"] = 10 * GI


def returned_disk(api: World) -> None:
    """A replica holds its bytes and never ran; its disk was missing for a moment, which its DiskSchedule still says."""
    add_volume(api, "v", 50 * GI)
    api.change("replica", "v-0", node_id="a", disk_id="a-uuid")
    api.request("a-uuid", replicas={"v-0": 50 * GI})
    finish(disk_controller(api, "a-uuid"))
    api.listed["a"] = ()
    finish(disk_controller(api, "a-uuid"))
    assert gone_disk(api.schedule("a"))
    assert api.schedule("a").status.storage_scheduled == 50 * GI
    api.listed["a"] = ("a",)


def held_copy(api: World) -> None:
    """A copy that has not begun holds its bytes on a disk whose DiskSchedule is being deleted."""
    api.put("image", "i", ds.BackingImageCopies("i", 50 * GI, 1, wanted_disks=frozenset({"a-uuid"})))
    api.request("a-uuid", backing_images={"i": 50 * GI})
    finish(disk_controller(api, "a-uuid"))
    api.change("schedule", "a-uuid", deleting=True)


SCENARIOS = [
    new_volume,
    full_disk,
    expansion,
    half_done_expansion,
    expansion_without_request,
    unrequested_replica,
    image_with_full_disk,
    returned_disk,
    held_copy,
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_leaders_and_a_disk_controller_interrupt_each_other_anywhere_and_are_killed(
    scenario: Callable[[World], None],
) -> None:
    """Two copies of the volume or image controller and a disk's controller interrupt each other three times. For a replica that is deleted
    they are one copy, a user and the replica controller. Each runs a number of calls, then another continues; an actor that was interrupted
    continues later or is killed. Afterwards the controllers run undisturbed and come to rest without lost or leaked bytes.
    """
    start = world({"a": 100 * GI, "b": 100 * GI}, {})
    scenario(start)

    def leader(api: World) -> Actor:
        images = {image_with_full_disk, held_copy}
        return image_controller(api, "i") if scenario in images else volume_controller(api, "v")

    makers: dict[str, Callable[[World], Actor]] = {
        "old leader": leader,
        "new leader": leader,
        "disk": lambda api: disk_controller(
            api, "b-uuid" if scenario in {expansion, half_done_expansion, expansion_without_request} else "a-uuid"
        ),
    }
    if scenario is unrequested_replica:
        del makers["new leader"]
        makers["user"] = lambda api: delete_replica(api, "v-0")
        makers["replica"] = lambda api: replica_controller(api, "v-0")
    if scenario is returned_disk:
        makers["starter"] = lambda api: starter(api, "v-0")
    if scenario is held_copy:
        makers["copier"] = lambda api: copier(api, "i")

    def begin(turns: tuple[str, ...], lengths: tuple[int, ...]) -> tuple[World, dict[str, Actor], tuple[int, ...]]:
        api = start.fork()
        actors = {name: make(api) for name, make in makers.items()}
        calls = tuple(take_turn(api, actors[name], length) for name, length in zip(turns, lengths, strict=True))
        return api, actors, calls

    # Once an actor has ended, a longer turn is the same order.
    different = {
        pair: {begin(pair, lengths)[2] for lengths in itertools.product((2, 3, 4, 5, 6, 7), repeat=2)}
        for pair in itertools.permutations(makers, 2)
    }
    settled: defaultdict[int, list[World]] = defaultdict(list)
    for turns in itertools.product(makers, makers, makers, makers):
        if any(first == second for first, second in itertools.pairwise(turns)):
            continue
        for lengths in different[turns[:2]]:
            api, actors, _ = begin(turns[:2], lengths)
            for name in turns[2:]:
                take_turn(api, actors[name], 20)
            # Most orders lead to a state in which an earlier one ended, and what follows depends on the state alone.
            if api not in settled[api.version]:
                settled[api.version].append(api.fork())
                settle(api)
                check_at_rest(api)
                assert scheduled_bytes(api) == stored_bytes(api)
