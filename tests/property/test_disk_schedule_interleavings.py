"""Controllers that interrupt each other at every API call, are killed anywhere, and run in several copies at once.

Whatever the order: a status never grants beyond the storageAvailable it read, a replica that runs and a
copy that was made never lose their bytes, and at rest every byte that is held belongs to one replica or copy on one disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest

from scheduler_core.disk_schedule.requests import set_requirement
from scheduler_core.model.disk_schedule import (
    Allocation,
    AllocationState,
    BackingImageCopies,
    DiskSchedule,
    DiskScheduleSpec,
    DiskScheduleStatus,
    RequestKind,
)
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
    disk_controller,
    finish,
    image_controller,
    names,
    replica_controller,
    settle,
    volume_controller,
    world,
)


def operate(api: World, random: Random, made: Iterator[int]) -> None:
    """What users do to the cluster, data that is written, and disks that go, come back, or are moved."""
    actions = [
        "create",
        "create",
        "resize",
        "delete",
        "write",
        "free",
        "image",
        "remove image",
        "ask by hand",
        "relist",
    ]
    match random.choice(actions):
        case "create":
            create(api, random, made)
        case "resize":
            resize(api, random)
        case "delete":
            delete(api, random)
        case "image" if len(api.all("image")) < 4:
            name = f"i{next(made)}"
            api.put("image", name, BackingImageCopies(name, random.randint(1, 3) * 10 * GI, random.randint(1, 2)))
        case "remove image" if images := api.all("image"):
            name = random.choice(sorted(images))
            api.put("image", name, replace(images[name][1], deleting=True))
        case "ask by hand" if schedules := api.all("schedule"):
            uuid, kind = random.choice(sorted(schedules)), random.choice(list(RequestKind))
            _, found = schedules[uuid]
            api.put("schedule", uuid, replace(found, spec=set_requirement(found.spec, kind, "ghost", 10 * GI)))
        case "relist":
            home, other = random.choice(sorted(api.available)), random.choice(sorted(api.available))
            api.listed[home] = random.choice([(), (other,), (home, other), (other, home), (home,), (home,)])
        case "write" | "free" as action:
            node, change = random.choice(sorted(api.available)), random.randint(1, 5) * 10 * GI
            api.available[node] = max(0, api.available[node] + (change if action == "free" else -change))
        case _:
            pass


def create(api: World, random: Random, made: Iterator[int]) -> None:
    """A volume, perhaps one made from an image, and perhaps one whose replicas have no size."""
    if len(api.all("volume")) < 8:
        image = random.choice(["", "", *sorted(api.all("image"))])
        name, size, replicas = f"v{next(made)}", random.randint(1, 6) * 10 * GI, random.randint(1, 2)
        add_volume(api, name, size, replicas, image=image, sized=random.random() < 0.9)


def resize(api: World, random: Random) -> None:
    """Another wish, never below what the replicas have."""
    if volumes := api.all("volume"):
        name = random.choice(sorted(volumes))
        volume, condition = volumes[name][1]
        smallest = max((each.size for _, each in api.all("replica").values() if each.volume == name), default=0)
        larger = max(smallest, 10 * GI, volume.size + random.randint(-3, 4) * 10 * GI)
        api.put("volume", name, (replace(volume, size=larger), condition))


def delete(api: World, random: Random) -> None:
    """A volume with its replicas."""
    if volumes := api.all("volume"):
        name = random.choice(sorted(volumes))
        for key, (_, replica) in api.all("replica").items():
            if replica.volume == name:
                api.put("replica", key, replace(replica, deleting=True))
        volume, condition = volumes[name][1]
        api.put("volume", name, (replace(volume, deleting=True), condition))


@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_random_operations_with_kills_lose_and_double_nothing(seed: int) -> None:
    """Up to eight actors of all five controllers at once, several of them for the same object, each killed once in a while."""
    random, made = Random(seed), itertools.count()  # noqa: S311 # a seed makes it repeatable
    api = world({"a": 150 * GI, "b": 100 * GI, "c": 60 * GI}, {})
    running: list[Actor] = []
    for number in range(1000):
        operate(api, random, made)
        for _ in range(12):
            if len(running) < 8:
                kind = random.choice(sorted(CONTROLLERS))
                if known := names(api, kind):
                    running.append(CONTROLLERS[kind](api, random.choice(known)))
            if running:
                actor = random.choice(running)
                if random.random() < 0.02 or not advance(actor):
                    running.remove(actor)
            check(api)
        if number % 50 == 49:
            running.clear()
            settle(api)
            check_at_rest(api)
            for name, (_, (volume, _)) in api.all("volume").items():
                if volume.deleting:
                    del api.objects["volume", name]


def test_a_disk_that_two_nodes_list_is_not_asked_again_and_again() -> None:
    """It was moved from a to b: while a still lists it, its DiskSchedule stays there and refuses, so nobody may ask it."""
    api = world({"a": 100 * GI, "b": 0}, {"v": 50 * GI})
    api.listed["a"] = ("a", "b")
    settle(api)
    assert not api.objects["replica", "v-0"][1].disk_id
    api.listed["a"] = ("b",)
    settle(api)
    check_at_rest(api)
    replica = api.objects["replica", "v-0"][1]
    assert (replica.node_id, replica.disk_id, replica.current_state) == ("b", "a-uuid", "running")


def test_at_the_first_start_a_newcomer_leaves_a_replica_that_has_data_its_room() -> None:
    """Nobody has asked for it as yet, and the newcomer's name comes first."""
    api = world({"a": 100 * GI, "b": 90 * GI}, {"new": 60 * GI, "old": 60 * GI})
    old = api.objects["replica", "old-0"][1]
    api.put("replica", "old-0", replace(old, node_id="a", disk_id="a-uuid", healthy_at=TIME))
    settle(api)
    check_at_rest(api)
    assert api.objects["replica", "new-0"][1].disk_id == "b-uuid"
    assert api.schedule("a").status.replicas["old-0"].size == 60 * GI


def writer(api: World, uuid: str, name: str, size: int) -> Actor:
    """Asks for room: reads, writes against that version, and again after a conflict."""
    while True:
        yield
        version, schedule = api.objects["schedule", uuid]
        yield
        try:
            after = replace(schedule, spec=set_requirement(schedule.spec, RequestKind.REPLICA, name, size))
            api.put("schedule", uuid, after, version)
        except ConflictError:
            continue
        return


def orders(counts: dict[str, int]) -> Iterator[tuple[str, ...]]:
    """Every order of so many calls each."""
    if not any(counts.values()):
        yield ()
    for name, left in counts.items():
        if left:
            for rest in orders({**counts, name: left - 1}):
                yield (name, *rest)


Bytes = dict[str, int]
CASES: dict[str, tuple[Bytes, Bytes]] = {
    "two newcomers": ({}, {"r1": 60, "r2": 60}),
    "a growth and a newcomer": ({"r1": 30}, {"r1": 60, "r2": 60}),
    "two growths": ({"r1": 40, "r2": 40}, {"r1": 70, "r2": 60}),
    "a withdrawal and a newcomer": ({"r1": 60}, {"r1": 0, "r2": 60}),
    "a withdrawal and a growth": ({"r1": 60, "r2": 40}, {"r1": 0, "r2": 100}),
}


@pytest.mark.parametrize("killed", [None, "r1", "r2", "disk"])
@pytest.mark.parametrize("case", CASES)
def test_every_order_of_two_writers_and_the_disk_controller_ends_alike(case: str, killed: str | None) -> None:
    """Two wishes that do not both fit beside what is held, in all orders of their calls; one is killed at its last call.

    The controller reads, reads and writes twice. Whoever lost a conflict tries again in the end. What is held and still asked for
    is never taken back, and in the end each request is answered and no bytes lie idle that one asks for.
    """
    held, wishes = CASES[case]
    start = world({"a": 100}, {})
    status = DiskScheduleStatus(
        {name: Allocation(AllocationState.SCHEDULED, size) for name, size in held.items()}, {}, sum(held.values())
    )
    start.put(
        "schedule",
        "a-uuid",
        replace(start.schedule("a"), spec=DiskScheduleSpec("a", "a", replicas=held), status=status),
    )
    for order in orders({"r1": 3, "r2": 3, "disk": 4}):
        api = start.fork()
        actors = {name: writer(api, "a-uuid", name, size) for name, size in wishes.items()}
        actors["disk"] = disk_controller(api, "a-uuid")
        calls = dict.fromkeys(actors, 0)
        for name in order:
            calls[name] += 1
            if name != killed or calls[name] < 3:
                advance(actors[name])
                check_kept(api.schedule("a"), held)
        for name in wishes.keys() - {killed}:
            finish(actors[name])
        finish(disk_controller(api, "a-uuid"))
        finish(disk_controller(api, "a-uuid"))
        schedule = api.schedule("a")
        asked = {**held, **{name: size for name, size in wishes.items() if name != killed}}
        assert schedule.spec.replicas == {name: size for name, size in asked.items() if size}
        check_kept(schedule, held)
        answers = schedule.status.replicas
        assert answers.keys() == schedule.spec.replicas.keys()
        total = sum(entry.size for entry in answers.values())
        assert schedule.status.storage_scheduled == total <= 100
        for name, entry in answers.items():
            wish = asked[name]
            assert entry.size == wish if entry.state is AllocationState.SCHEDULED else total + wish - entry.size > 100


def check_kept(schedule: DiskSchedule, held: Bytes) -> None:
    """Whoever held something and still asks for it holds it."""
    for name, size in held.items():
        if name in schedule.spec.replicas:
            assert schedule.status.replicas[name].size >= size


def created(api: World) -> None:
    """A volume that has just been made."""
    add_volume(api, "v", 50 * GI)


def refused(api: World) -> None:
    """A replica that asks a disk which meanwhile is full."""
    add_volume(api, "v", 50 * GI)
    api.put("replica", "v-0", replace(api.objects["replica", "v-0"][1], node_id="a", disk_id="a-uuid"))
    schedule = api.schedule("a")
    api.put("schedule", "a-uuid", replace(schedule, spec=replace(schedule.spec, replicas={"v-0": 50 * GI})))
    api.available["a"] = 10 * GI


def growing(api: World) -> None:
    """Two replicas that run, and a new size for which only one disk has room as yet."""
    add_volume(api, "v", 50 * GI, 2)
    settle(api)
    assert [entry[1].current_state for entry in api.all("replica").values()] == ["running", "running"]
    api.available["b"] = 60 * GI
    volume, condition = api.objects["volume", "v"][1]
    api.put("volume", "v", (replace(volume, size=80 * GI), condition))


def half_grown(api: World) -> None:
    """As `growing`, at the moment when one disk has granted, the other refused, and then found room after all."""
    growing(api)
    for kind, name in (("volume", "v"), ("schedule", "a-uuid"), ("schedule", "b-uuid")):
        finish(CONTROLLERS[kind](api, name))
    assert sorted(api.schedule(node).status.storage_scheduled for node in "ab") == [50 * GI, 80 * GI]
    api.available["b"] = 100 * GI


def half_held(api: World) -> None:
    """As `growing`, when one of the replicas is from before the DiskSchedules: it has data, and holds nothing as yet."""
    growing(api)
    (unheld,) = [name for name, (_, replica) in api.all("replica").items() if replica.node_id == "b"]
    api.put("replica", unheld, replace(api.objects["replica", unheld][1], current_state="", healthy_at=TIME))
    schedule = api.schedule("b")
    status = replace(schedule.status, replicas={}, storage_scheduled=0)
    api.put("schedule", "b-uuid", replace(schedule, status=status))


def deleted(api: World) -> None:
    """A replica that has a place, whose room is still to be asked for; somebody deletes it meanwhile."""
    add_volume(api, "v", 50 * GI)
    replica = api.objects["replica", "v-0"][1]
    api.put("replica", "v-0", replace(replica, node_id="a", disk_id="a-uuid"))


def deleting(api: World, name: str) -> Actor:
    """A user deletes a replica."""
    yield
    api.put("replica", name, replace(api.objects["replica", name][1], deleting=True))


def copied(api: World) -> None:
    """An image that is to have two copies, one of them on a disk which meanwhile is full."""
    api.put("image", "i", BackingImageCopies("i", 50 * GI, 2, wanted_disks=frozenset({"a-uuid"})))
    schedule = api.schedule("a")
    api.put("schedule", "a-uuid", replace(schedule, spec=replace(schedule.spec, backing_images={"i": 50 * GI})))
    api.available["a"] = 10 * GI


SCENARIOS = [created, refused, growing, half_grown, half_held, deleted, copied]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_leaders_and_a_disk_controller_interrupt_each_other_anywhere_and_are_killed(
    scenario: Callable[[World], None],
) -> None:
    """Two copies of the volume or image controller and a disk's (or one copy, a user and the replica's), with three interruptions.

    Each runs a number of calls and then another goes on; whoever has begun may go on later or is killed. Afterwards an undisturbed
    cluster comes to rest with nothing lost and nothing leaked.
    """
    start = world({"a": 100 * GI, "b": 100 * GI}, {})
    scenario(start)

    def leader(api: World) -> Actor:
        return image_controller(api, "i") if scenario is copied else volume_controller(api, "v")

    makers: dict[str, Callable[[World], Actor]] = {
        "old leader": leader,
        "new leader": leader,
        "disk": lambda api: disk_controller(
            api, "a-uuid" if scenario in {created, refused, deleted, copied} else "b-uuid"
        ),
    }
    if scenario is deleted:
        del makers["new leader"]
        makers["user"] = lambda api: deleting(api, "v-0")
        makers["replica"] = lambda api: replica_controller(api, "v-0")
    for turns in itertools.product(makers, makers, makers, makers):
        if any(left == right for left, right in itertools.pairwise(turns)):
            continue
        for lengths in itertools.product((2, 3, 4, 5, 6, 7), repeat=2):
            api = start.fork()
            actors = {name: make(api) for name, make in makers.items()}
            for name, length in zip(turns, (*lengths, 20, 20), strict=True):
                for _ in range(length):
                    if not advance(actors[name]):
                        break
                    check(api)
                check(api)
            settle(api)
            check_at_rest(api)
