"""What the guard answers, what it remembers, and when it is proven, in virtual time.

Disk a has space for volume x alone, disk b for either x or the older volume y. Longhorn chooses b for x.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from app.evaluator import Evaluator
from app.extender import guard
from app.extender.metrics import Metrics
from app.kube.client import ApiError, KubeClient
from app.kube.resources import LONGHORN_NAMESPACE, LONGHORN_REPLICAS
from app.runtime.decision_thread import Urgency
from app.runtime.probes import PREFIX
from scheduler_core.convert.admission import admission_request
from scheduler_core.decide.decision import NO_CONTENDERS, Contenders, FilterOptions
from scheduler_core.decide.extender_settings import ExtenderSettings, GuardMode
from scheduler_core.model.longhorn import REVIEWED, Placement, Replica
from scheduler_core.offers.ledger import Ledger
from scheduler_core.structs import replace
from tests import builders as make
from tests.worlds.disk_schedules import disk_schedule
from tests.worlds.engines import engines
from tests.worlds.fake_api import failing, serve
from tests.worlds.offers import with_offer
from tests.worlds.placements import NODE, node_with_disks, path_of, placement, placement_review, waiting_volume
from tests.worlds.state_source import FakeStateSource
from tests.worlds.timeline import play, rows
from tests.worlds.virtual_time import virtual_loop, virtually

SIZES = {"x": 10, "v": 10, "other": 5}


def at(words: str) -> Placement:
    """A placement, as timelines name it: ``x-on-b``."""
    volume, _, disk = words.partition("-on-")
    return placement(volume, SIZES.get(volume, 20), disk)


class SlowEvaluator(Evaluator):
    """Waits before each computation."""

    seconds = 0.0
    error: Exception | None = None

    async def run(self, work: Callable[[], Any], urgency: Urgency = Urgency.DECISION, rest: float = 0.0) -> Any:
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return await super().run(work, urgency, rest)


class World:
    """A process's guard; timelines play Longhorn and the API server."""

    def __init__(self, *, mode: str = "enforce") -> None:
        disks = {"a": make.disk(10), "b": make.disk(20)}
        self.cache = FakeStateSource(
            node_with_disks(disks), waiting_volume("x", 10, age=2), waiting_volume("y", 20, age=1)
        )
        self.mode = mode
        self.competes = True
        self.ledger = Ledger()  # the offers that this process made
        self.metrics = Metrics()
        self.loop = virtual_loop()
        self.evaluator = SlowEvaluator(self.cache, FilterOptions())
        self.other_nodes = False
        self.leads = True  # whether the process makes the offers
        self.record = Ledger()  # the offers that the leader recorded
        self.written: list[Replica] | ApiError = []  # what the API server has; an error is raised
        self.reads = 0  # how often that was read
        self.obstacle = ""  # why API servers cannot reach the guard
        self._task: asyncio.Task[None] | None = None
        context = guard.GuardContext(
            lambda: ExtenderSettings(placement_guard=GuardMode(self.mode), guard_other_nodes=self.other_nodes),
            lambda: self.leads,
            self.contenders,
            self.recorded,
            self.read_written,
            lambda: self.obstacle,
        )
        self.guard = guard.PlacementGuard(self.cache, self.evaluator, context, self.metrics, self.loop.time)
        self.cache.subscribe("replicas", self.guard.note_delivery)
        self.evaluator.follow_guard(lambda: self.guard.proven, lambda: self.guard.allowances)

    def contenders(self) -> Contenders:
        return make.competing(self.cache.state(), self.ledger) if self.competes else NO_CONTENDERS

    async def recorded(self, node: str) -> Contenders:
        assert node == NODE
        return make.competing(self.cache.state(), self.record)

    async def read_written(self, node: str) -> list[Replica]:
        """What the API server has of the node."""
        assert node == NODE
        self.reads += 1
        if isinstance(self.written, ApiError):
            raise self.written
        return self.written

    async def disk(self, where: str, *, dry_run: bool = False, **fields: Any) -> str:
        """The disk that the API server would write for Longhorn's choice."""
        wanted = replace(at(where), **fields)
        review = placement_review(wanted)
        review["request"]["dryRun"] = dry_run
        changes = await self.guard.review(admission_request(review))
        values = {change["path"]: change["value"] for change in changes if change["op"] == "replace"}
        return str(values.get("/spec/diskID", wanted.disk)).removeprefix(f"{NODE}-")

    async def dry_run(self, where: str) -> str:
        return await self.disk(where, dry_run=True)

    def show(self, where: str, answered: str = "", **fields: Any) -> None:
        """The watch delivers a replica at a place, and with the place that was answered."""
        written = replace(at(where), **fields)
        raw = make.replica(
            written.replica,
            written.volume,
            NODE,
            size=10,
            healthy=False,
            diskID=written.disk,
            diskPath=written.disk_path,
        )
        raw["metadata"]["labels"] = {"longhornnode": NODE, "longhorndiskuuid": written.disk}
        if answered:
            raw["metadata"]["annotations"] = {REVIEWED: at(answered).place}
        self.cache.put(raw)

    async def prove(self) -> None:
        await self.disk("x-on-b")
        self.show("x-on-a", "x-on-a")
        assert self.guard.proven

    def write(self, where: str) -> None:
        """The API server has a placement that no watch has shown."""
        place = at(where)
        self.written = [Replica(place.replica, place.volume, place.size, NODE, place.disk, place.disk_path)]

    def reading_fails(self) -> None:
        self.written = ApiError("GET replicas", 0, "", "no answer")

    def deciding_fails(self, error: str = "") -> None:
        self.evaluator.error = RuntimeError(error) if error else None

    def wait_for_space(self, volume: str, age: int) -> None:
        self.cache.put(*waiting_volume(volume, SIZES.get(volume, 20), age=age))

    def replace_y_by_an_unbound_pod(self) -> None:
        self.cache.remove(*waiting_volume("y", 20, age=1))
        self.cache.put(make.claim("z", 20), make.pod("z", name="pod-z", uid="uid-pod-z"))

    def offer(self, *, by: str = "ledger") -> None:
        """The unbound pod is offered the node, by this process or, in the `record`, by the leader."""
        setattr(self, by, with_offer(Ledger(), self.cache.state().view, "pod-z", [NODE], 0.0))

    def create(self, volume: str) -> None:
        self.cache.put(make.replica(f"r-{volume}", f"vol-{volume}", healthy=False, size=SIZES[volume]))

    def delete(self, volume: str) -> None:
        self.cache.remove(make.replica(f"r-{volume}", f"vol-{volume}", size=10, healthy=False))

    def schedule_disk(self, disk: str) -> None:
        self.cache.put(disk_schedule(f"{NODE}-{disk}", node=NODE, disk=disk))

    def counted(self, metric: str, value: str) -> float | None:
        labels = {"outcome" if metric == "placements" else "observation": value}
        return self.metrics.registry.get_sample_value(f"{PREFIX}_placement_guard_{metric}_total", labels)

    def awaited(self) -> list[str]:
        """The placements that were answered and that no watch has shown."""
        places = self.guard.activity.awaited
        return sorted(f"{place.replica[2:]}-on-{place.disk.removeprefix(f'{NODE}-')}" for place in places)

    def run(self) -> None:
        self._task = asyncio.create_task(self.guard.run())

    def stand_still(self, seconds: float) -> None:
        self.loop.jump_to(self.loop.time() + seconds)

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


TIMELINES = """
# A placement is left or changed.
a choice that would break the plan is changed
    0 disk x-on-b -> a; counted placements changed -> 1
placements at the same time see each other
    0 disk x-on-b -> a; disk y-on-b -> b; awaited -> x-on-a y-on-b
observing changes nothing and counts what enforcing would change
    0 world mode=observe; disk x-on-b -> b; counted placements changed -> 1; awaited -> x-on-b
a dry run is answered and not remembered
    0 dry_run x-on-b -> a; awaited -> none; guard.activity.outcomes -> {}
a guard that is off changes nothing
    0 world mode=off; disk x-on-b -> b; awaited -> none
without reservations nothing is changed
    0 set competes=no; disk x-on-b -> b; awaited -> none
a process that does not lead keeps the same plan
    # It follows from the cluster; nothing is read that a leader would have to give.
    0 set leads=no; disk x-on-b -> a; guard.activity.outcomes -> {'changed': 1}
a standby keeps the offers that the leader recorded
    0 set leads=no; replace_y_by_an_unbound_pod; dry_run x-on-b -> b; offer by=record; disk x-on-b -> a
an offer that is made meanwhile is kept too
    0 replace_y_by_an_unbound_pod; set evaluator.seconds=0.1; disk x-on-b -> waits
    0.05 offer
    0.5 answer disk x-on-b -> a
an update of another shape is left alone
    0 disk x-on-b disk_path= -> b; counted placements refused-shape -> 1
a place that the node does not list is left alone
    # No watch will show it there.
    0 disk x-on-b disk_path=/elsewhere/ -> b; counted placements refused-shape -> 1; awaited -> none
a decision that takes too long is given up
    0 set evaluator.seconds=1.4; disk x-on-b -> waits
    0.699 answer disk x-on-b -> waits
    0.701 answer disk x-on-b -> b; counted placements late -> 1; show x-on-b; counted observations bypassed -> 1
a replica that is deleted takes no space
    0 disk x-on-b; delete x; awaited -> none
a placement that is never written stops taking space
    0 disk x-on-b; run
    62 awaited -> none
# What was written is read where an answer may be unknown.
a standby reads what another process answered
    # The watches of both lag differently: the placement of x on a is written, and shown to neither.
    0 set leads=no; write x-on-a; disk y-on-a -> b; awaited -> x-on-a y-on-b
what cannot be read is decided by what the watches show
    0 set leads=no; reading_fails; disk x-on-b -> a
a leader reads what was written after it took over
    # The previous leader may have answered a moment ago; later its own answers are all that there are.
    0 guard.adopt; dry_run x-on-b; reads -> 1
    2.001 dry_run x-on-b; reads -> 1
a leader reads what was written if no watch shows its answer
    # The answer may be lost, and a standby may have been asked: x is on b, and y needs a disk that is not there.
    0 disk x-on-b -> a; write x-on-b; dry_run y-on-b; reads -> 0
    0.5 dry_run y-on-b; reads -> 1; awaited -> x-on-b
a leader reads what was written after it stood still
    # A standby may have answered meanwhile.
    0 run
    1 dry_run x-on-b; reads -> 0; stand_still 0.85; dry_run x-on-b; reads -> 1
after a decision that took too long the guard reads what was written
    0 set evaluator.seconds=1.4; disk x-on-b -> waits
    0.701 answer disk x-on-b -> b; set evaluator.seconds=0; disk y-on-b; reads -> 1
after an error the guard reads what was written
    0 deciding_fails defect; disk x-on-b -> RuntimeError defect; deciding_fails; disk x-on-b; reads -> 1
a guard that decides nothing reads nothing
    0 set leads=no competes=no; disk x-on-b -> b; reads -> 0
# Placements prove the guard.
the guard is proven by a placement that a watch shows as answered
    0 evaluator.options.packing -> auto; prove; evaluator.options.packing -> exact; awaited -> none
a guard that cannot be reached is not proven
    0 prove; set obstacle=expired; guard.proven -> no; evaluator.options.packing -> auto
    0 set obstacle=; guard.proven -> yes
a placement that passes the guard by unproves it at once
    0 prove; create other; show other-on-b; guard.proven -> no; evaluator.options.packing -> auto
    0 show y-on-b y-on-b; guard.proven -> yes
a placement that passes a guard by that is off unproves it
    0 prove; set mode=off; show y-on-b; set mode=enforce; guard.proven -> no
auto does not rely on the guard while a disk has a DiskSchedule
    0 prove; evaluator.options.guarded -> yes; schedule_disk a; guard.proven -> yes; evaluator.options.guarded -> no
a placement that another process answered proves the guard too
    0 set leads=no; show x-on-b x-on-b; guard.activity.health -> proven; counted observations confirmed -> 1
a change that is found otherwise ends changing
    0 show y-on-b y-on-b; guard.proven -> yes; show x-on-b x-on-a disk=n-a; guard.activity.health -> tampered
    0 guard.proven -> no; wait_for_space v 3; wait_for_space w 1; disk v-on-b -> b
"""


@pytest.mark.parametrize("timeline", rows(TIMELINES))
def test_placements_are_reviewed(timeline: str) -> None:
    play(World, timeline)


@virtually
async def test_invented_reviews_make_the_guard_write_no_wrong_disk() -> None:
    """They take space for a minute, so that a plan may be given up; each replica still gets a disk that has room."""
    world = World()
    for number in range(5):
        await world.disk(f"invented{number}-on-b")
    assert await world.disk("x-on-b") in {"a", "b"}
    assert await world.disk("y-on-b") == "b", "the only disk of its size"
    # A review that names a real replica is replaced by the real one.
    await world.disk("x-on-b")
    assert await world.disk("x-on-a") == "a"


@pytest.mark.parametrize(("behind", "node"), [(False, "m"), (True, NODE)])
@virtually
async def test_a_replica_is_moved_to_another_node_only_by_a_leader_that_has_seen_all_answers(
    behind: bool, node: str
) -> None:
    other = make.longhorn_node("m", {"c": make.disk(10)})
    other["spec"]["disks"]["c"]["path"] = path_of("c")
    world = World()
    world.other_nodes = True
    world.cache.remove(*waiting_volume("x", 10, age=2))
    free = [make.volume("vol-x", 10), make.replica("r-x", "vol-x", size=10, healthy=False)]
    narrow = node_with_disks({"a": make.disk(5), "b": make.disk(20)})
    world.cache.put(*narrow, other, *engines([NODE, "m"]), *free)
    if behind:
        world.guard.adopt()
    await world.disk("x-on-b")
    assert [place.node for place in world.guard.allowances] == [node]


@virtually
async def test_a_pod_does_not_get_a_node_where_an_allowed_placement_leaves_it_no_space() -> None:
    world = World()
    world.replace_y_by_an_unbound_pod()
    pod = world.cache.state().view.snapshot.pods["default", "pod-z"]
    assert (await world.evaluator.decide_without_fetch(pod, [NODE], world.contenders())).fits
    decision = asyncio.create_task(world.evaluator.decide_without_fetch(pod, [NODE], world.contenders()))
    assert await world.disk("x-on-b") == "b"
    assert not (await decision).fits
    assert not (await world.evaluator.decide_without_fetch(pod, [NODE], world.contenders())).fits
    world.show("x-on-b")
    assert world.guard.allowances == ()


async def test_the_replicas_that_the_label_names_are_read_and_a_damaged_one_is_left_out(tmp_path: Path) -> None:
    """The others count, or one bad object would hide what another process answered."""
    asked: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append((request.path, request.query["labelSelector"]))
        damaged = {"metadata": {"name": "r-2"}, "spec": {"volumeSize": "much"}}
        return web.json_response({"items": [damaged, make.replica("r-1", "vol-1", "n", size=10)]})

    async with serve(answer, tmp_path) as kubeconfig, await KubeClient.connect(str(kubeconfig)) as client:
        replicas = await guard.written_replicas(client, LONGHORN_NAMESPACE, "n")
    assert [replica.name for replica in replicas] == ["r-1"]
    assert asked == [(LONGHORN_REPLICAS.path(LONGHORN_NAMESPACE), "longhornnode=n")]


async def test_an_api_server_that_refuses_is_an_error(tmp_path: Path) -> None:
    async with serve(failing(403), tmp_path) as kubeconfig, await KubeClient.connect(str(kubeconfig)) as client:
        with pytest.raises(ApiError):
            await guard.written_replicas(client, LONGHORN_NAMESPACE, "n")
