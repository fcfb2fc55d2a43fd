"""What became of pods that kube-scheduler decided about, and of demands, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from structlog.testing import capture_logs
from structlog.types import EventDict

from app.decisions.evaluator import Scheduling
from app.extender.metrics import PREFIX, Metrics, Outstanding
from app.extender.placements import FOLLOW_SECONDS, LONGEST_PLACEMENT, LOOK_SECONDS, Placements
from scheduler_core.evaluation.contention import Joint
from scheduler_core.extender.filter import Options, Others
from scheduler_core.extender.placement_monitor import STUCK_SECONDS, Misplaced, Survey
from tests import builders as make
from tests.app.extender.test_node_reservation import cluster, db, virtually
from tests.worlds.state_source import FakeCache
from tests.worlds.virtual_time import VirtualLoop, run

RESERVED = f"{PREFIX}_node_reservation_duration_seconds"


class World:
    """Two nodes of 100Gi; kube-scheduler and Longhorn are played by hand."""

    def __init__(self, options: Options | None = None, joint: Joint | None = None) -> None:
        self.cache, self.metrics, self.logs = FakeCache(cluster()), Metrics(), list[EventDict]()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop, self.joint = loop, joint
        decisions = Scheduling(self.cache, options or Options(), loop.time)
        self.placements = Placements(self.cache, decisions, self.others, self.metrics, loop.time)

    def others(self) -> Others:
        """What counts; nothing unless there is a joint."""
        return Others(joint=self.joint, demands=self.cache.demands() if self.joint else None)

    def bind(self, number: int, node: str, **fields: Any) -> None:
        """The pod is bound, its volume made."""
        name = f"data-{number}"
        objects = make.claim(name, 10, bound=True), make.persistent_volume(name, uid=f"uid-{name}")
        self.cache.put(*objects, make.volume(f"vol-{name}", 10), db(number, node, **fields))

    def replica(self, number: int, node: str, *, healthy: bool = False) -> None:
        """Longhorn has placed the volume's replica."""
        self.cache.put(make.replica(f"r-{number}", f"vol-data-{number}", node, size=10, healthy=healthy))

    def listed(self, number: int, node: str) -> None:
        """And the node's status lists it."""
        self.cache.put(make.longhorn_node(node, {"disk-1": make.disk(100, listed={f"r-{number}": 10})}))

    def decided(self, number: int, node: str) -> None:
        """kube-scheduler's decision is seen, a second after the offer."""
        self.placements.decided(make.as_pod(db(number)), node, self.loop.time() - 1)

    def counted(self, listed: str) -> tuple[float, float]:
        """How many waits have ended, placed or not, and how many seconds they took in all."""
        labels = {"replicas_scheduled": listed}
        count, seconds = (
            self.metrics.registry.get_sample_value(f"{RESERVED}_{kind}", labels) for kind in ("count", "sum")
        )
        return count or 0.0, seconds or 0.0

    @property
    def misplacements(self) -> float | None:
        """How many were counted."""
        return self.metrics.registry.get_sample_value(f"{PREFIX}_misplacements_total")

    def told(self, event: str) -> list[EventDict]:
        """The log's lines about an event."""
        return [line for line in self.logs if line["event"] == event]


class Losing(Joint):
    """A real one, during whose work the lead is lost."""

    lose: Callable[[], None]

    def besides(self, *args: Any) -> Any:
        """As it is."""
        self.lose()
        return super().besides(*args)


@asynccontextmanager
async def leading(world: World | None = None) -> AsyncIterator[World]:
    """A world in which this process leads and looks."""
    world = world or World()
    world.placements.adopt()
    task = asyncio.create_task(world.placements.run())
    with capture_logs() as world.logs:
        yield world
    assert not task.done(), task
    task.cancel()
    await asyncio.wait({task})


@virtually
async def test_a_pod_is_placed_when_longhorn_lists_its_volumes_on_its_node() -> None:
    """The seconds since the decision are observed, and told."""
    async with leading() as world:
        world.decided(0, "a")
        await asyncio.sleep(2)
        world.bind(0, "a")
        world.replica(0, "a")
        await asyncio.sleep(1)
        assert world.placements.followed == 1
        world.listed(0, "a")
        await asyncio.sleep(FOLLOW_SECONDS)
        assert world.placements.followed == 0
        count, seconds = world.counted("true")
        assert count == 1
        assert 3 <= seconds <= 3 + FOLLOW_SECONDS
        [line] = world.told("placed")
        assert line.items() >= {"pod": "default/db-0", "uid": "uid-0", "node": "a", "s": seconds}.items()
        assert line["since_offer_s"] == seconds + 1


@virtually
async def test_a_pod_whose_second_volume_is_missing_is_not_placed_yet() -> None:
    """All of its local volumes must be there."""
    async with leading() as world:
        world.bind(0, "a")
        world.bind(1, "a")
        pod = make.pod("data-0", "data-1", name="db-0", uid="uid-0", node="a")
        world.cache.put(pod)
        world.placements.decided(make.as_pod(pod), "a", 0.0)
        world.replica(0, "a")
        world.listed(0, "a")
        await asyncio.sleep(5)
        assert world.placements.followed == 1


@virtually
async def test_what_is_heard_in_another_order_is_noticed_too() -> None:
    """The node lists the replica before anybody heard of the replica."""
    async with leading() as world:
        world.bind(0, "a")
        world.listed(0, "a")
        world.decided(0, "a")
        await asyncio.sleep(1)
        world.replica(0, "a")
        await asyncio.sleep(1 + FOLLOW_SECONDS)
        assert world.counted("true")[0] == 1


@virtually
async def test_a_pod_that_is_deleted_is_not_placed() -> None:
    """At once: nobody waits for it."""
    async with leading() as world:
        world.bind(0, "a")
        world.decided(0, "a")
        await asyncio.sleep(1)
        world.cache.remove(db(0))
        await asyncio.sleep(FOLLOW_SECONDS)
        assert world.counted("false")[0] == 1
        assert [line["became"] for line in world.told("not placed")] == ["gone"]


@pytest.mark.parametrize(
    "pod", [pytest.param({"deleting": True}, id="being deleted"), pytest.param({"phase": "Failed"}, id="failed")]
)
def test_a_pod_that_is_over_is_not_placed(pod: dict[str, Any]) -> None:
    """It will not use its volumes any more."""

    async def scenario() -> None:
        async with leading() as world:
            world.bind(0, "a", **pod)
            world.decided(0, "a")
            await asyncio.sleep(FOLLOW_SECONDS)
            assert [line["became"] for line in world.told("not placed")] == ["gone"]

    run(scenario())


@virtually
async def test_another_pod_of_its_name_is_another() -> None:
    """The one that was decided for is gone."""
    async with leading() as world:
        world.bind(0, "a")
        world.decided(0, "a")
        await asyncio.sleep(1)
        world.bind(0, "a", uid="another")
        world.replica(0, "b")
        await asyncio.sleep(FOLLOW_SECONDS)
        assert [line["became"] for line in world.told("not placed")] == ["gone"]


@virtually
async def test_a_pod_that_no_watch_has_brought_yet_is_not_gone() -> None:
    """Its claim's selected node may be heard of first."""
    async with leading() as world:
        world.decided(0, "a")
        await asyncio.sleep(5)
        assert (world.placements.followed, world.told("not placed")) == (1, [])


@virtually
async def test_a_pod_that_goes_elsewhere_is_not_placed() -> None:
    """What counts is the node it is bound to."""
    async with leading() as world:
        world.cache.put(db(0))
        world.decided(0, "a")
        await asyncio.sleep(1)
        world.bind(0, "b")
        await asyncio.sleep(FOLLOW_SECONDS)
        assert [line["became"] for line in world.told("not placed")] == ["elsewhere"]


@virtually
async def test_a_pod_that_is_not_placed_in_five_minutes_is_given_up() -> None:
    """Longhorn may never find room."""
    async with leading() as world:
        world.bind(0, "a")
        world.decided(0, "a")
        await asyncio.sleep(LONGEST_PLACEMENT - FOLLOW_SECONDS)
        assert world.placements.followed == 1
        await asyncio.sleep(2 * FOLLOW_SECONDS)
        assert world.counted("false") == (1, LONGEST_PLACEMENT)
        [line] = world.told("not placed")
        assert (line["became"], line["log_level"]) == ("late", "warning")


@virtually
async def test_the_same_decision_seen_again_does_not_begin_anew() -> None:
    """The time since it was seen first is what counts."""
    async with leading() as world:
        world.bind(0, "a")
        world.replica(0, "a")
        world.decided(0, "a")
        await asyncio.sleep(2.1)
        world.decided(0, "a")
        world.listed(0, "a")
        await asyncio.sleep(FOLLOW_SECONDS)
        assert world.counted("true") == (1, 2.25)


@virtually
async def test_another_decision_ends_the_first() -> None:
    """kube-scheduler tried again, and chose another node."""
    async with leading() as world:
        world.cache.put(db(0))
        world.decided(0, "a")
        await asyncio.sleep(2.125)
        world.decided(0, "b")
        assert [line["became"] for line in world.told("not placed")] == ["elsewhere"]
        world.bind(0, "b")
        world.replica(0, "b")
        world.listed(0, "b")
        await asyncio.sleep(1)
        assert world.counted("true") == (1, 0.125)


@virtually
async def test_best_effort_volumes_are_not_waited_for_where_they_are_not_required() -> None:
    """They may be anywhere."""
    async with leading(World(Options(require_best_effort=False))) as world:
        world.bind(0, "a")
        world.decided(0, "a")
        await asyncio.sleep(FOLLOW_SECONDS)
        assert world.counted("true")[0] == 1


@virtually
async def test_a_misplaced_volume_is_told_and_counted_once() -> None:
    """However long it is so."""
    async with leading() as world:
        world.bind(0, "a")
        world.replica(0, "b")
        await asyncio.sleep(LOOK_SECONDS)
        assert world.placements.report.misplaced == (Misplaced("default/db-0", "vol-data-0", "a", ("b",)),)
        world.replica(0, "b", healthy=True)
        await asyncio.sleep(10)
        assert world.misplacements == 1
        [line] = world.told("misplaced")
        expected = {"pod": "default/db-0", "volume": "vol-data-0", "wanted": "a", "replicas_on": ["b"]}
        assert line.items() >= expected.items()
        assert line["log_level"] == "warning"


@pytest.mark.parametrize("joint", [None, Joint()], ids=["reservations off", "reservations on"])
def test_what_is_outstanding_is_reported_in_numbers(joint: Joint | None) -> None:
    """Also where nothing of it is counted against anybody."""

    async def scenario() -> None:
        async with leading(World(joint=joint)) as world:
            world.bind(0, "a")
            world.cache.put(make.claim("data-1", 500), db(1, "a"))
            await asyncio.sleep(LOOK_SECONDS)
            assert [demand.volume.name for demand in world.placements.report.hopeless] == ["data-1"]
            await asyncio.sleep(STUCK_SECONDS + LOOK_SECONDS)
            found = world.placements.outstanding(offers=3, waiting=4)
            demands = {"pod": 2, "selected_node": 0, "attachment": 0, "hard_node_affinity": 0}
            assert found == Outstanding(demands, 3, 1, 0, 2, 4)

    run(scenario())


@virtually
async def test_who_does_not_lead_does_not_look() -> None:
    """Two processes would count the same misplacement."""
    world = World()
    async with leading(world):
        world.placements.clear()
        world.bind(0, "a")
        world.replica(0, "b")
        await asyncio.sleep(5)
        assert (world.misplacements, world.placements.report) == (0, Survey())
        world.placements.adopt()
        await asyncio.sleep(0.01)
        assert world.misplacements == 1


@virtually
async def test_losing_the_lead_forgets_everything() -> None:
    """What was followed is not counted: nobody saw how it ended."""
    async with leading() as world:
        world.bind(0, "a")
        world.replica(0, "b")
        world.decided(0, "a")
        await asyncio.sleep(1)
        world.placements.clear()
        assert (world.placements.followed, world.placements.report) == (0, Survey())
        await asyncio.sleep(LONGEST_PLACEMENT + 1)
        assert (world.counted("true"), world.counted("false")) == ((0, 0), (0, 0))


@virtually
async def test_a_lead_lost_in_the_middle_of_a_survey_leaves_nothing_of_it() -> None:
    """Surveys are made in slices."""
    joint = Losing()
    world = World(joint=joint)
    joint.lose = world.placements.clear
    world.bind(0, "a")
    world.replica(0, "b")
    async with leading(world):
        await asyncio.sleep(1)
        assert (world.misplacements, world.placements.report) == (0, Survey())


@virtually
async def test_looking_after_many_pods_gives_others_their_turn() -> None:
    """With a clock by which every look takes longer than a slice."""
    world = World()
    ticks = count()
    decisions = Scheduling(world.cache, Options(), lambda: float(next(ticks)))
    world.placements = Placements(world.cache, decisions, world.others, world.metrics, lambda: float(next(ticks)))
    for number in range(20):
        world.bind(number, "a")
        world.replica(number, "a")
        world.decided(number, "a")
    world.cache.put(make.longhorn_node("a", {"disk-1": make.disk(500, listed={f"r-{n}": 10 for n in range(20)})}))
    async with leading(world):
        followed = []
        while world.placements.followed:
            followed.append(world.placements.followed)
            await asyncio.sleep(0)
    assert followed[-20:] == list(range(20, 0, -1))
