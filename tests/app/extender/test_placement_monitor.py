"""How pods fare after kube-scheduler's decision, and the report on all demand, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from itertools import count
from typing import Any

import pytest
from structlog.testing import capture_logs
from structlog.types import EventDict

from app.evaluator import Evaluator
from app.extender.metrics import Metrics, Outstanding
from app.extender.placement_monitor import INTERVAL, MAX_PLACEMENT_SECONDS, Placements
from app.runtime.probes import PREFIX
from scheduler_core.decide.decision import NO_CONTENDERS, Contenders, FilterOptions
from scheduler_core.evaluation.contention import Contention
from scheduler_core.monitor.demand_monitor import STUCK_AFTER, Misplaced, PlacementReport
from scheduler_core.monitor.overbooking_monitor import SETTLE_TIME, OverbookingReport
from tests import builders as make
from tests.worlds.decision_runners import LaterRunner
from tests.worlds.state_source import FakeStateSource
from tests.worlds.timeline import play, rows
from tests.worlds.two_nodes import database_pod, two_nodes
from tests.worlds.virtual_time import virtual_loop, virtually

PLACEMENT_WAIT = f"{PREFIX}_node_reservation_duration_seconds"


class World:
    """Two nodes of 100 Gi; tests play kube-scheduler and Longhorn by hand. Pods compete if there is a `contention`."""

    def __init__(self, *, best_effort: str = "require", contention: Contention | None = None) -> None:
        self.cache = FakeStateSource(two_nodes())
        self.metrics = Metrics()
        self.logs: list[EventDict] = []
        self.loop = virtual_loop()
        self._contention = contention
        evaluator = Evaluator(self.cache, FilterOptions(require_best_effort=best_effort == "require"))
        self.placements = Placements(self.cache, evaluator, self.contenders, self.metrics, self.loop.time)
        self.cache.subscribe("replicas", self.placements.note_delivery)

    def lead(self) -> None:
        self.placements.adopt()
        self._task = asyncio.create_task(self.placements.run())

    async def end(self) -> None:
        assert not self._task.done(), self._task
        self._task.cancel()
        await asyncio.wait({self._task})

    def contenders(self) -> Contenders:
        if self._contention is None:
            return NO_CONTENDERS
        return make.competing(self.cache.state(), contention=self._contention)

    def bind(self, number: int, node: str, **fields: Any) -> None:
        """Binds a pod and provisions its volume, which has no replica yet."""
        name = f"data-{number}"
        self.cache.put(
            make.claim(name, 10, bound=True),
            make.persistent_volume(name, uid=f"uid-{name}"),
            make.volume(f"vol-{name}", 10),
            database_pod(number, node, **fields),
        )

    def place(self, number: int, node: str, *, healthy: bool = False) -> None:
        self.cache.put(make.replica(f"r-{number}", f"vol-data-{number}", node, size=10, healthy=healthy))

    def list_replica(self, number: int, node: str) -> None:
        self.cache.put(make.longhorn_node(node, {"disk-1": make.disk(100, listed={f"r-{number}": 10})}))

    def show(self, number: int) -> None:
        self.cache.put(database_pod(number))

    def delete(self, number: int) -> None:
        self.cache.remove(database_pod(number))

    def decide(self, number: int, node: str) -> None:
        self.placements.note_decision(make.as_pod(database_pod(number)), node, self.loop.time() - 1)

    def decide_for_two_volumes(self, node: str) -> None:
        pod = make.pod("data-0", "data-1", name="db-0", uid="uid-0", node=node)
        self.cache.put(pod)
        self.placements.note_decision(make.as_pod(pod), node, 0.0)

    def ended_waits(self, placed: str) -> tuple[float, float]:
        """How many pods were placed ("true") or not ("false"), and the sum of their waits."""
        labels = {"replicas_scheduled": placed}
        registry = self.metrics.registry
        waits = registry.get_sample_value(f"{PLACEMENT_WAIT}_count", labels)
        seconds = registry.get_sample_value(f"{PLACEMENT_WAIT}_sum", labels)
        return waits or 0.0, seconds or 0.0

    def became(self) -> list[str]:
        """What pods became that were not placed."""
        return [line["became"] for line in self.log_lines("not placed")]

    def has_no_report(self) -> bool:
        return self.placements.report == PlacementReport()

    @property
    def misplacements(self) -> float | None:
        return self.metrics.registry.get_sample_value(f"{PREFIX}_misplacements_total")

    @property
    def overbookings(self) -> float | None:
        return self.metrics.registry.get_sample_value(f"{PREFIX}_overbookings_total")

    def place_at_once(self, size: float, *volumes: str) -> None:
        self.cache.put(*(make.replica(f"r-{name}", name, "a", size=size, healthy=False) for name in volumes))

    def log_lines(self, event: str) -> list[EventDict]:
        return [line for line in self.logs if line["event"] == event]


class LeadingWorld(World):
    """A world of timelines, in which this process leads and `Placements` runs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._captured = ExitStack()
        self.logs = self._captured.enter_context(capture_logs())
        self.lead()

    async def end(self) -> None:
        self._captured.close()
        await super().end()


class InterruptedContention(Contention):
    """Calls `interruption` before every evaluation."""

    interruption: Callable[[], None]

    def competitors(self, *args: Any) -> Any:
        self.interruption()
        return super().competitors(*args)


@asynccontextmanager
async def leading(world: World | None = None) -> AsyncIterator[World]:
    """A world in which this process leads and `Placements` runs."""
    world = world or World()
    world.lead()
    with capture_logs() as world.logs:
        yield world
    await world.end()


TIMELINES = """
# A pod is followed until its volumes are placed.
a pod whose second volume is missing is not placed yet
    0 bind 0 a; bind 1 a; decide_for_two_volumes a; place 0 a; list_replica 0 a
    5 placements.followed -> 1
the order of watch events does not matter
    0 bind 0 a; list_replica 0 a; decide 0 a
    1.1 placements.followed -> 1; place 0 a
    2.1 ended_waits true -> 1 2
a deleted pod is not followed any more
    0 bind 0 a; decide 0 a
    1.1 delete 0
    2.1 ended_waits false -> 1 2; became -> gone
a pod that is being deleted is not followed any more
    0 bind 0 a deleting=1; decide 0 a
    1.1 became -> gone
a failed pod is not followed any more
    0 bind 0 a phase=Failed; decide 0 a
    1.1 became -> gone
a successor of the same name is not the pod
    0 bind 0 a; decide 0 a
    1.1 bind 0 a uid=another; place 0 b
    2.1 became -> gone
a pod that no watch has delivered yet is not gone
    # The selected node of its claim may be delivered first.
    0 decide 0 a
    5 placements.followed -> 1; became -> none
a pod that is bound to another node is not placed
    0 show 0; decide 0 a
    1.1 bind 0 b
    2.1 became -> elsewhere
the same decision again does not restart the wait
    0 bind 0 a; place 0 a; decide 0 a
    2.1 decide 0 a; list_replica 0 a
    3.1 ended_waits true -> 1 3
a decision for another node ends the first wait
    0 show 0; decide 0 a
    2.125 decide 0 b; became -> elsewhere; bind 0 b; place 0 b; list_replica 0 b
    3.2 ended_waits true -> 1 0.875
a pod whose volumes only prefer their node is placed at once
    # Their replicas may be on any node.
    0 world best_effort=prefer
    0.1 bind 0 a; decide 0 a
    1.1 ended_waits true -> 1 0.9
# Only a leader counts.
a new leader counts no disk that was overbooked before
    0.1 placements.clear; place_at_once 60 x y
    5 placements.adopt
    10 overbookings -> 0; placements.overbookings.overbooked -> none
a new leader counts a disk that is overbooked after it took over
    0.1 placements.clear; placements.adopt
    0.3 place_at_once 60 x y
    5 overbookings -> 1
a follower makes no report
    # Two processes would count the same misplacement.
    0 placements.clear; bind 0 a; place 0 b
    5 misplacements -> 0; has_no_report -> yes; placements.adopt
    5.01 misplacements -> 1
losing the lead forgets everything
    # Followed pods are not counted, because their outcomes are not observed.
    0 bind 0 a; place 0 b; decide 0 a
    1.01 has_no_report -> no; placements.clear; placements.followed -> 0; has_no_report -> yes
    302 ended_waits true -> 0 0; ended_waits false -> 0 0
"""


@pytest.mark.parametrize("timeline", rows(TIMELINES))
def test_the_leader_follows_pods_until_they_are_placed(timeline: str) -> None:
    play(LeadingWorld, timeline)


@virtually
async def test_a_report_is_made_once_a_second_however_many_pods_are_followed() -> None:
    async with leading() as world:
        world.bind(0, "a")
        world.decide(0, "a")
        await asyncio.sleep(INTERVAL / 2)
        times = set()
        for _ in range(40):
            await asyncio.sleep(INTERVAL / 10)
            times.add(world.placements.report.time)
        assert world.placements.followed == 1
        assert len(times) == 5


@virtually
async def test_a_pod_is_placed_when_longhorn_lists_its_volumes_on_its_node() -> None:
    async with leading() as world:
        world.decide(0, "a")
        await asyncio.sleep(2)
        world.bind(0, "a")
        world.place(0, "a")
        await asyncio.sleep(1)
        assert world.placements.followed == 1
        world.list_replica(0, "a")
        await asyncio.sleep(INTERVAL)
        assert world.placements.followed == 0
        waits, seconds = world.ended_waits("true")
        assert waits == 1
        assert 3 <= seconds <= 3 + INTERVAL
        [line] = world.log_lines("placed")
        assert line.items() >= {"pod": "default/db-0", "uid": "uid-0", "node": "a", "s": seconds}.items()
        assert line["since_offer_s"] == seconds + 1


@virtually
async def test_a_pod_that_is_not_placed_in_five_minutes_is_given_up() -> None:
    async with leading() as world:
        world.bind(0, "a")
        world.decide(0, "a")
        await asyncio.sleep(MAX_PLACEMENT_SECONDS - INTERVAL)
        assert world.placements.followed == 1
        await asyncio.sleep(2 * INTERVAL)
        assert world.ended_waits("false") == (1, MAX_PLACEMENT_SECONDS)
        [line] = world.log_lines("not placed")
        assert (line["became"], line["log_level"]) == ("late", "warning")


@virtually
async def test_a_misplaced_volume_is_logged_and_counted_once() -> None:
    async with leading() as world:
        world.bind(0, "a")
        world.place(0, "b")
        await asyncio.sleep(INTERVAL)
        assert world.placements.report.misplaced == (Misplaced("default/db-0", "vol-data-0", "a", ("b",)),)
        world.place(0, "b", healthy=True)
        await asyncio.sleep(10)
        assert world.misplacements == 1
        [line] = world.log_lines("misplaced")
        expected = {"pod": "default/db-0", "volume": "vol-data-0", "wanted": "a", "replicas_on": ["b"]}
        assert line.items() >= expected.items()
        assert line["log_level"] == "warning"


@pytest.mark.parametrize("contention", [None, Contention()], ids=["reservations off", "reservations on"])
@virtually
async def test_outstanding_demand_is_reported_in_numbers(contention: Contention | None) -> None:
    async with leading(World(contention=contention)) as world:
        world.bind(0, "a")
        world.cache.put(make.claim("data-1", 500), database_pod(1, "a"))
        await asyncio.sleep(INTERVAL)
        assert [demand.volume.name for demand in world.placements.report.hopeless] == ["data-1"]
        await asyncio.sleep(STUCK_AFTER + INTERVAL)
        demands = {"pod": 2, "selected_node": 0, "nomination": 0, "attachment": 0, "hard_node_affinity": 0}
        assert world.placements.outstanding(offers=3, waiting=4, oldest_wait=9.5) == Outstanding(
            demands, 3, 1, 0, 0, 2, 4, 9.5
        )


@virtually
async def test_an_overbooked_disk_is_counted_and_logged_once() -> None:
    async with leading() as world:
        await asyncio.sleep(0.1)
        world.place_at_once(60, "x")
        await asyncio.sleep(0.016)
        world.place_at_once(60, "y")
        await asyncio.sleep(10)
        assert world.overbookings == 1
        [line] = world.log_lines("overbooked")
        expected = {"node": "a", "disk": "disk-1", "volumes": ["x", "y"], "volume_count": 2, "within_ms": 16}
        assert line.items() >= {**expected, "bytes_over": 20 * make.GI, "log_level": "warning"}.items()
        assert world.placements.outstanding(offers=0, waiting=0, oldest_wait=0).overbooked_disks == 1
        assert world.misplacements == 0


@virtually
async def test_a_mended_disk_remains_counted() -> None:
    async with leading() as world:
        await asyncio.sleep(0.1)
        world.place_at_once(60, "x", "y")
        await asyncio.sleep(2 * INTERVAL + SETTLE_TIME)
        world.cache.remove(make.replica("r-x", "x"))
        await asyncio.sleep(INTERVAL)
        assert (world.overbookings, world.placements.overbookings.overbooked) == (1, ())


@virtually
async def test_a_log_line_names_a_limited_number_of_volumes() -> None:
    async with leading() as world:
        await asyncio.sleep(0.1)
        names = [f"v-{number:02d}" for number in range(60)]
        world.place_at_once(100, *names)
        await asyncio.sleep(5)
        [line] = world.log_lines("overbooked")
        assert (line["volumes"], line["volume_count"]) == (names[:50], 60)


@virtually
async def test_a_report_on_disks_during_which_the_lead_is_lost_is_dropped() -> None:
    world = World()
    evaluator = Evaluator(world.cache, FilterOptions(), LaterRunner())
    world.placements = Placements(world.cache, evaluator, world.contenders, world.metrics, world.loop.time)
    world.cache.subscribe("replicas", world.placements.note_delivery)
    world.placements.adopt()
    await world.placements.update_overbookings()
    world.place_at_once(60, *(f"v-{number}" for number in range(600)))
    await asyncio.sleep(SETTLE_TIME)
    updating = asyncio.create_task(world.placements.update_overbookings())
    await asyncio.sleep(0)
    assert not updating.done()
    world.placements.clear()
    await updating
    assert (world.overbookings, world.placements.overbookings) == (0, OverbookingReport())


@virtually
async def test_a_report_during_which_the_lead_is_lost_is_dropped() -> None:
    contention = InterruptedContention()
    world = World(contention=contention)
    contention.interruption = world.placements.clear
    world.bind(0, "a")
    world.place(0, "b")
    async with leading(world):
        await asyncio.sleep(1)
        assert (world.misplacements, world.placements.report) == (0, PlacementReport())


@virtually
async def test_rounds_that_take_long_leave_most_of_the_time_to_decisions() -> None:
    """A round of 0.1 s is followed by a pause of 0.9 s."""
    contention = InterruptedContention()
    world = World(contention=contention)
    spent: list[float] = []
    contention.interruption = lambda: spent.append(0.1)
    evaluator = Evaluator(world.cache, FilterOptions())
    clock = lambda: world.loop.time() + sum(spent)  # noqa: E731
    world.placements = Placements(world.cache, evaluator, world.contenders, world.metrics, clock)
    world.bind(0, "a")
    world.decide(0, "a")
    async with leading(world):
        for number in range(40):
            world.list_replica(number + 1, "a")
            await asyncio.sleep(0.25)
        assert world.placements.followed == 1
    assert 5 <= len(spent) <= 12


@virtually
async def test_checking_many_pods_lets_other_tasks_run() -> None:
    world = World()
    ticks = count()
    evaluator = Evaluator(world.cache, FilterOptions())
    world.placements = Placements(world.cache, evaluator, world.contenders, world.metrics, lambda: float(next(ticks)))
    for number in range(20):
        world.bind(number, "a")
        world.place(number, "a")
        world.decide(number, "a")
    world.cache.put(make.longhorn_node("a", {"disk-1": make.disk(500, listed={f"r-{n}": 10 for n in range(20)})}))
    async with leading(world):
        followed = []
        while world.placements.followed:
            followed.append(world.placements.followed)
            await asyncio.sleep(0)
    assert followed[-20:] == list(range(20, 0, -1))
