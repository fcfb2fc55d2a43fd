"""Controllers that interrupt each other at every API call, are killed anywhere, and run in several copies at once.

The world is an API server with optimistic concurrency and nothing else. An actor is a generator that pauses before each call; to
kill it is not to go on. Whatever the order: a status never grants beyond the storageAvailable it read, a replica that runs
never loses its bytes, and at rest every byte that is held belongs to one replica on one disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from scheduler_core.disk_schedule.reconcile import reconciled
from scheduler_core.disk_schedule.replicas import released
from scheduler_core.disk_schedule.requests import set_requirement
from scheduler_core.disk_schedule.volumes import VolumeSight, decided
from scheduler_core.disk_schedule.writes import Assign, Finalize, Grow, Report, Require, Write
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.model.disk_schedule import DiskSchedule, Kind, Spec
from scheduler_core.model.kube import Condition
from scheduler_core.model.longhorn import FILESYSTEM, Disk, Node, Replica, Volume
from scheduler_core.model.snapshot import Snapshot

GI = 1024**3
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIME = "2026-01-01T00:00:00Z"
READY = (Condition("Ready", "True"), Condition("Schedulable", "True"))
SETTINGS = {"storage-minimal-available-percentage": "0"}  # so that storageAvailable alone decides
Actor = Generator[None, None, None]
Key = tuple[str, str]


class ConflictError(Exception):
    """409: somebody was faster."""


@dataclass
class World:
    """The API server: objects with versions. `available` are the bytes each disk reports, by node."""

    available: dict[str, int]
    objects: dict[Key, tuple[int, Any]] = field(default_factory=dict)
    version: int = 0

    def put(self, kind: str, name: str, value: object, seen: int | None = None) -> int:
        """Writes an object, if it still is at the version seen (0: not there); None writes it in any case."""
        if seen is not None and self.objects.get((kind, name), (0, None))[0] != seen:
            raise ConflictError
        self.version += 1
        self.objects[kind, name] = (self.version, value)
        return self.version

    def all(self, kind: str) -> dict[str, tuple[int, Any]]:
        """The objects of a kind, as a list would give them."""
        return {name: entry for (each, name), entry in sorted(self.objects.items()) if each == kind}

    def fork(self) -> World:
        """The same world, to go on differently."""
        return World(dict(self.available), dict(self.objects), self.version)

    def nodes(self) -> dict[str, Node]:
        """One disk per node; every node a failure domain of its own."""
        return {name: self._node(name, size) for name, size in self.available.items()}

    def _node(self, name: str, size: int) -> Node:
        disk = Disk(
            "disk",
            uuid=f"{name}-uuid",
            allow_scheduling=True,
            spec_type=FILESYSTEM,
            status_type=FILESYSTEM,
            storage_maximum=10_000 * GI,
            storage_available=size,
            conditions=READY,
        )
        return Node(name, allow_scheduling=True, conditions=READY, disks=(disk,))

    def schedule(self, node: str) -> DiskSchedule:
        """The DiskSchedule of a node's disk."""
        found = self.objects["schedule", f"{node}-uuid"][1]
        assert isinstance(found, DiskSchedule)
        return found


def world(available: dict[str, int], volumes: dict[str, int]) -> World:
    """Disks without requests, and volumes of one unplaced replica each."""
    made = World(available)
    for node in available:
        made.put(
            "schedule", f"{node}-uuid", DiskSchedule(f"{node}-uuid", Spec("disk", node), finalizers=("longhorn.io",))
        )
    for name, size in volumes.items():
        add_volume(made, name, size)
    return made


def add_volume(made: World, name: str, size: int, replicas: int = 1) -> None:
    """A volume and its replicas, without a place."""
    made.put("volume", name, (Volume(name, size, replicas), None))
    for number in range(replicas):
        made.put("replica", f"{name}-{number}", Replica(f"{name}-{number}", name, size))


def disk_controller(api: World, uuid: str) -> Actor:
    """Reads the node and the object, writes the status; never more than the storageAvailable it read."""
    yield
    version, schedule = api.objects["schedule", uuid]
    yield
    node = api.nodes()[schedule.spec.node]
    outcome = reconciled(schedule, node, TIME)
    yield
    if outcome.status is not None:
        after, before = outcome.status, schedule.status
        more = any(
            entry.size > (before.of(kind)[name].size if name in before.of(kind) else 0)
            for kind in Kind
            for name, entry in after.of(kind).items()
        )
        assert not more or after.storage_scheduled <= node.disks[0].storage_available
        assert after.storage_scheduled == sum(entry.size for kind in Kind for entry in after.of(kind).values())
        api.put("schedule", uuid, replace(schedule, status=after), version)


def volume_controller(api: World, name: str) -> Actor:
    """Reads schedules, then volume and replicas; carries out what was decided; starts what is ready."""
    yield
    schedules = api.all("schedule")
    yield
    version, (volume, condition) = api.objects["volume", name]
    replicas = {key: entry for key, entry in api.all("replica").items() if entry[1].volume == name}
    models = {key: entry[1] for key, entry in replicas.items()}
    cluster = Cluster.of(Snapshot(longhorn_nodes=api.nodes(), replicas=models, settings=SETTINGS), NOW)
    sight = VolumeSight(
        cluster,
        volume,
        tuple(entry[1] for entry in replicas.values()),
        {key: entry[1] for key, entry in schedules.items()},
        condition,
    )
    decision = decided(sight, TIME)
    yield from perform(api, decision.writes, {"schedule": schedules, "replica": replicas}, (name, version))
    for key in sorted(decision.ready):
        seen, replica = replicas[key]
        if not replica.current_state:
            yield
            api.put("replica", key, replace(replica, current_state="running"), seen)


def replica_controller(api: World, name: str) -> Actor:
    """Gives back what a deleted replica held."""
    yield
    schedules = api.all("schedule")
    yield
    replicas = {key: entry for key, entry in api.all("replica").items() if key == name}
    replica = replicas[name][1] if name in replicas else None
    writes = released(name, replica, {key: entry[1] for key, entry in schedules.items()})
    yield from perform(api, writes, {"schedule": schedules, "replica": replicas}, ("", 0))


def perform(
    api: World, writes: tuple[Write, ...], seen: dict[str, dict[str, tuple[int, Any]]], volume: tuple[str, int]
) -> Actor:
    """One write after the other, each against the version read or written last."""
    for write in writes:
        yield
        match write:
            case Require(disk, kind, name, size):
                version, schedule = seen["schedule"][disk]
                if write.stray:
                    _, replica = api.objects.get(("replica", name), (0, None))
                    if replica is not None and replica.disk_id == disk:
                        continue
                    yield
                after = replace(schedule, spec=set_requirement(schedule.spec, kind, name, size))
                seen["schedule"][disk] = (api.put("schedule", disk, after, version), after)
            case Assign(name, node, disk):
                version, replica = seen["replica"][name]
                after = replace(replica, node_id=node, disk_id=disk)
                seen["replica"][name] = (api.put("replica", name, after, version), after)
            case Grow(name, size):
                version, replica = seen["replica"][name]
                after = replace(replica, size=size)
                seen["replica"][name] = (api.put("replica", name, after, version), after)
            case Report(condition):
                name, version = volume
                known, _ = api.objects["volume", name][1]
                volume = (name, api.put("volume", name, (known, condition), version))
            case Finalize(_, name):
                version, _ = seen["replica"][name]
                if api.objects.get(("replica", name), (0, None))[0] != version:
                    raise ConflictError
                del api.objects["replica", name]
            case _:
                pytest.fail(f"{write} is not expected here")


def advance(actor: Actor) -> bool:
    """Lets an actor do its next call; False when it is through or gave up."""
    try:
        next(actor)
    except (StopIteration, ConflictError):
        return False
    return True


def finish(actor: Actor) -> None:
    """Lets an actor go on to its end, undisturbed."""
    while advance(actor):
        pass


def check(api: World) -> None:
    """What holds at every moment: a replica that runs holds its bytes on its disk."""
    for name, (_, replica) in api.all("replica").items():
        if replica.current_state == "running" and not replica.deleting:
            answer = api.objects["schedule", replica.disk_id][1].status.replicas.get(name)
            assert answer is not None, f"{name} runs and holds nothing"
            assert answer.size >= replica.size, f"{name} runs with {replica.size} and holds {answer.size}"


def names(api: World, kind: str) -> list[str]:
    """Everything of a kind that a controller may have to look at; replicas also by request."""
    found = set(api.all(kind))
    if kind == "replica":
        found |= {name for _, schedule in api.all("schedule").values() for name in schedule.spec.replicas}
    return sorted(found)


CONTROLLERS: dict[str, Callable[[World, str], Actor]] = {
    "schedule": disk_controller,
    "volume": volume_controller,
    "replica": replica_controller,
}


def settle(api: World) -> None:
    """Every controller in turn, undisturbed, until nobody writes any more."""
    for _ in range(60):
        before = api.version, len(api.objects)
        for kind, controller in CONTROLLERS.items():
            for name in names(api, kind):
                finish(controller(api, name))
                check(api)
        if (api.version, len(api.objects)) == before:
            return
    pytest.fail("the controllers never come to rest")


def check_at_rest(api: World) -> None:
    """Each placed replica holds its bytes on its disk and nowhere else, nothing else is held, and no volume grew by half."""
    check(api)
    placed = {name: replica for name, (_, replica) in api.all("replica").items() if replica.disk_id}
    sizes = {(replica.volume, replica.size) for replica in placed.values()}
    assert len(sizes) == len({volume for volume, _ in sizes})
    for uuid, (_, schedule) in api.all("schedule").items():
        here = {name: replica.size for name, replica in placed.items() if replica.disk_id == uuid}
        assert schedule.spec.replicas == here
        assert {name: entry.size for name, entry in schedule.status.replicas.items()} == here
        assert schedule.status.storage_scheduled == sum(here.values())


def operate(api: World, random: Random, made: Iterator[int]) -> None:
    """What users, and data being written, do to the cluster."""
    volumes, replicas = api.all("volume"), api.all("replica")
    action = random.choice(["create", "create", "resize", "delete", "write", "free"])
    node = random.choice(sorted(api.available))
    if action == "create" and len(volumes) < 8:
        add_volume(api, f"v{next(made)}", random.randint(1, 6) * 10 * GI, random.randint(1, 2))
    elif action == "resize" and volumes:
        name = random.choice(sorted(volumes))
        volume, condition = volumes[name][1]
        smallest = max((entry[1].size for entry in replicas.values() if entry[1].volume == name), default=0)
        larger = max(smallest, volume.size + random.randint(-3, 4) * 10 * GI)
        api.put("volume", name, (replace(volume, size=larger), condition))
    elif action == "delete" and volumes:
        name = random.choice(sorted(volumes))
        for key, (_, replica) in replicas.items():
            if replica.volume == name:
                api.put("replica", key, replace(replica, deleting=True))
        volume, condition = volumes[name][1]
        api.put("volume", name, (replace(volume, deleting=True), condition))
    elif action in {"write", "free"}:
        change = random.randint(1, 5) * 10 * GI
        api.available[node] = max(0, api.available[node] + (change if action == "free" else -change))


@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_random_operations_with_kills_lose_and_double_nothing(seed: int) -> None:
    """Up to eight actors at once, several of them for the same object, each killed once in a while."""
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


def writer(api: World, uuid: str, name: str, size: int) -> Actor:
    """Asks for room: reads, writes against that version, and again after a conflict."""
    while True:
        yield
        version, schedule = api.objects["schedule", uuid]
        yield
        try:
            after = replace(schedule, spec=set_requirement(schedule.spec, Kind.REPLICA, name, size))
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


@pytest.mark.parametrize("killed", [None, "r1", "r2", "disk"])
def test_every_order_of_two_writers_and_the_disk_controller_ends_alike(killed: str | None) -> None:
    """Two requests of which one fits, one growth, in all orders of their calls; one of them is killed at its last call.

    The controller reads, reads and writes twice. Whoever lost a conflict tries again in the end.
    """
    for order in orders({"r1": 3, "r2": 3, "disk": 4}):
        api = world({"a": 100 * GI}, {})
        actors = {"r1": writer(api, "a-uuid", "r1", 60 * GI), "r2": writer(api, "a-uuid", "r2", 60 * GI)}
        actors["disk"] = disk_controller(api, "a-uuid")
        calls = dict.fromkeys(actors, 0)
        for name in order:
            calls[name] += 1
            if name != killed or calls[name] < 3:
                advance(actors[name])
        for name in {"r1", "r2"} - {killed}:
            finish(actors[name])
        finish(disk_controller(api, "a-uuid"))
        finish(disk_controller(api, "a-uuid"))
        schedule = api.schedule("a")
        held = {name: entry.size for name, entry in schedule.status.replicas.items() if entry.size}
        assert set(schedule.spec.replicas) >= {"r1", "r2"} - {killed}
        assert schedule.status.replicas.keys() == schedule.spec.replicas.keys()
        assert schedule.status.storage_scheduled == sum(held.values()) == 60 * GI


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


SCENARIOS = [created, refused, growing, half_grown, half_held, deleted]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_leaders_and_a_disk_controller_interrupt_each_other_anywhere_and_are_killed(
    scenario: Callable[[World], None],
) -> None:
    """Two copies of the volume controller and a disk's (or one copy, a user and the replica's), with three interruptions.

    Each runs a number of calls and then another goes on; whoever has begun may go on later or is killed. Afterwards an undisturbed
    cluster comes to rest with nothing lost and nothing leaked.
    """
    start = world({"a": 100 * GI, "b": 100 * GI}, {})
    scenario(start)
    makers: dict[str, Callable[[World], Actor]] = {
        "old leader": lambda api: volume_controller(api, "v"),
        "new leader": lambda api: volume_controller(api, "v"),
        "disk": lambda api: disk_controller(api, "a-uuid" if scenario in {created, refused, deleted} else "b-uuid"),
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
