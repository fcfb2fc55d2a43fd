"""What the guard answers, what it remembers, and when it is proven, in virtual time.

Disk a has space for volume x alone, disk b for either x or the older volume y. Longhorn chooses b for x.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.decisions.evaluator import Evaluator
from app.extender.guard import ANSWER_SECONDS, GuardContext, PlacementGuard
from app.extender.metrics import Metrics
from app.runtime.metrics import PREFIX
from scheduler_core.convert.admission import admission_request
from scheduler_core.cooperative import Cooperative
from scheduler_core.extender.decision import NO_CONTENDERS, Contenders, FilterOptions, Packing
from scheduler_core.extender.guard_health import ANSWER_LIFETIME, GuardState
from scheduler_core.extender.settings import GuardMode
from scheduler_core.model.replica_placement import Placement
from scheduler_core.offers.ledger import Ledger
from tests import builders as make
from tests.worlds.disk_schedules import disk_schedule
from tests.worlds.offers import with_offer
from tests.worlds.placements import NODE, node_with_disks, placement, placement_review, waiting_volume
from tests.worlds.state_source import FakeStateSource
from tests.worlds.virtual_time import virtual_loop, virtually

ON_A = placement("x", 10, "a")
ON_B = placement("x", 10, "b")
Y_ON_B = placement("y", 20, "b")
OTHERS_ON_B = placement("other", 5, "b")
SECONDS_OF_TAKEOVER = 6.0


class SlowEvaluator(Evaluator):
    """Waits before each computation."""

    seconds = 0.0

    async def run(self, computation: Cooperative[Any]) -> Any:
        """Waits, then computes."""
        await asyncio.sleep(self.seconds)
        return await super().run(computation)


class World:
    """A leader's guard; tests play Longhorn and the API server by hand."""

    def __init__(self, mode: GuardMode = GuardMode.ENFORCE) -> None:
        disks = {"a": make.disk(10), "b": make.disk(20)}
        self.cache = FakeStateSource(
            node_with_disks(disks), waiting_volume("x", 10, age=2), waiting_volume("y", 20, age=1)
        )
        self.mode = mode
        self.competes = True
        self.ledger = Ledger()
        self.metrics = Metrics()
        self.loop = virtual_loop()
        self.evaluator = SlowEvaluator(self.cache, FilterOptions(), self.loop.time)
        context = GuardContext(lambda: self.mode, self.contenders)
        self.guard = PlacementGuard(self.cache, self.evaluator, context, self.metrics, self.loop.time)
        self.cache.subscribe("replicas", self.guard.note_delivery)
        self.evaluator.follow_guard(lambda: self.guard.proven, lambda: self.guard.allowances)
        self.guard.adopt()

    def contenders(self) -> Contenders:
        """All demand of the state, and the offers that the test made."""
        return make.competing(self.cache.state(), self.ledger) if self.competes else NO_CONTENDERS

    async def disk(self, wanted: Placement, **request: Any) -> str:
        """The disk that the API server would write for Longhorn's choice."""
        review = placement_review(wanted)
        review["request"] |= request
        changes = await self.guard.review(admission_request(review))
        values = {change["path"]: change["value"] for change in changes if change["op"] == "replace"}
        return str(values.get("/spec/diskID", wanted.disk)).removeprefix(f"{NODE}-")

    def show(self, written: Placement, **labels: str) -> None:
        """The watch delivers a replica at a place."""
        raw = make.replica(
            written.replica,
            written.volume,
            NODE,
            size=10,
            healthy=False,
            diskID=written.disk,
            diskPath=written.disk_path,
        )
        raw["metadata"]["labels"] = {"longhornnode": NODE, "longhorndiskuuid": written.disk} | labels
        self.cache.put(raw)

    async def prove(self) -> None:
        """One placement is answered and shown."""
        await self.disk(ON_B)
        self.show(ON_A)
        assert self.guard.proven

    def counted(self, name: str, **labels: str) -> float | None:
        """A counter's value."""
        return self.metrics.registry.get_sample_value(f"{PREFIX}_placement_guard_{name}_total", labels)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    """Keeps the log out of the output."""
    with capture_logs() as lines:
        yield lines


@virtually
async def test_a_choice_that_would_break_the_plan_is_changed() -> None:
    """And counted."""
    world = World()
    assert await world.disk(ON_B) == "a"
    assert world.counted("placements", outcome="changed") == 1


@virtually
async def test_placements_at_the_same_time_see_each_other() -> None:
    """No watch has shown the first one yet."""
    world = World()
    assert (await world.disk(ON_B), await world.disk(Y_ON_B)) == ("a", "b")
    assert [entry.disk for entry in world.guard.activity.awaited] == ["n-a", "n-b"]


@virtually
async def test_observing_changes_nothing_and_counts_what_enforcing_would_change() -> None:
    """Longhorn's choice is what takes space then."""
    world = World(GuardMode.OBSERVE)
    assert await world.disk(ON_B) == "b"
    assert world.counted("placements", outcome="changed") == 1
    assert [entry.disk for entry in world.guard.activity.awaited] == ["n-b"]


@virtually
async def test_a_dry_run_is_answered_and_not_remembered() -> None:
    """Nothing will be written."""
    world = World()
    assert await world.disk(ON_B, dryRun=True) == "a"
    assert world.guard.activity.awaited == ()
    assert not world.guard.activity.outcomes


@pytest.mark.parametrize("cause", ["off", "follower", "no reservations"])
def test_nothing_is_changed_while_the_guard_may_not_decide(cause: str) -> None:
    """Longhorn's choice is written."""

    @virtually
    async def check() -> None:
        world = World()
        if cause == "off":
            world.mode = GuardMode.OFF
        if cause == "follower":
            world.guard.clear()
        world.competes = cause != "no reservations"
        assert await world.disk(ON_B) == "b"
        assert world.guard.activity.awaited == ()

    check()


@virtually
async def test_a_lead_lost_during_a_decision_changes_nothing() -> None:
    """The successor may have decided otherwise."""
    world = World()
    world.evaluator.seconds = 0.1
    task = asyncio.create_task(world.disk(ON_B))
    await asyncio.sleep(0.05)
    world.guard.clear()
    world.guard.adopt()
    assert await task == "b"
    assert world.guard.activity.awaited == ()


@virtually
async def test_a_decision_that_takes_too_long_is_given_up() -> None:
    """The API server does not wait longer; the placement counts as bypassed once it is shown."""
    world = World()
    world.evaluator.seconds = 2 * ANSWER_SECONDS
    assert await world.disk(ON_B) == "b"
    assert world.loop.time() == pytest.approx(ANSWER_SECONDS)
    assert world.counted("placements", outcome="late") == 1
    world.loop.jump_to(SECONDS_OF_TAKEOVER)
    world.show(ON_B)
    assert world.counted("observations", observation="bypassed") == 1


@virtually
async def test_an_update_of_another_shape_is_left_alone() -> None:
    """It is counted, and passes the guard by."""
    world = World()
    assert await world.disk(replace(ON_B, disk_path="")) == "b"
    assert world.counted("placements", outcome="refused-shape") == 1


@virtually
async def test_the_guard_is_proven_by_a_placement_that_a_watch_shows_as_answered() -> None:
    """Then `auto` offers every node with a packing."""
    world = World()
    packing = [world.evaluator.options.packing]
    await world.prove()
    packing.append(world.evaluator.options.packing)
    assert packing == [Packing.AUTO, Packing.EXACT]
    assert world.guard.activity.awaited == ()


@virtually
async def test_a_placement_that_passes_the_guard_by_unproves_it_at_once() -> None:
    """The next one that is answered and shown proves it again."""
    world = World()
    await world.prove()
    world.loop.jump_to(SECONDS_OF_TAKEOVER)
    world.cache.put(make.replica("r-other", "vol-other", healthy=False, size=5))
    world.show(OTHERS_ON_B)
    assert not world.guard.proven
    assert world.evaluator.options.packing is Packing.AUTO
    await world.disk(Y_ON_B)
    world.show(Y_ON_B)
    assert world.guard.proven


@virtually
async def test_auto_does_not_rely_on_the_guard_while_a_disk_has_a_disk_schedule() -> None:
    """There the guard leaves placements alone."""
    world = World()
    await world.prove()
    assert world.evaluator.options.guarded
    world.cache.put(disk_schedule(f"{NODE}-a", node=NODE, disk="a"))
    assert world.guard.proven
    assert not world.evaluator.options.guarded


@virtually
async def test_a_placement_of_the_previous_leader_does_not_count_against_the_new_one() -> None:
    """It is shown right after the take-over."""
    world = World()
    world.show(ON_B)
    assert world.counted("observations", observation="bypassed") == 0


@virtually
async def test_a_change_that_is_found_otherwise_ends_changing() -> None:
    """The guard observes until a process leads anew."""
    world = World()
    assert await world.disk(Y_ON_B) == "b"
    world.show(Y_ON_B)
    assert world.guard.proven
    assert await world.disk(ON_B) == "a"
    world.show(replace(ON_B, disk=ON_A.disk))
    states = [world.guard.activity.health]
    assert not world.guard.proven
    world.guard.adopt()
    states.append(world.guard.activity.health)
    assert states == [GuardState.TAMPERED, GuardState.UNPROVEN]


@virtually
async def test_a_placement_that_is_never_written_stops_taking_space() -> None:
    """Longhorn gave it up."""
    world = World()
    await world.disk(ON_B)
    task = asyncio.create_task(world.guard.run())
    await asyncio.sleep(ANSWER_LIFETIME + 2)
    task.cancel()
    assert world.guard.activity.awaited == ()


@virtually
async def test_an_offer_that_is_made_meanwhile_is_kept_too() -> None:
    """Volume x may go to b if nothing else is to come; while the guard decides, b is offered to another pod."""
    world = World()
    world.cache.remove(*waiting_volume("y", 20, age=1))
    world.cache.put(make.claim("z", 20), make.pod("z", name="pod-z", uid="uid-pod-z"))
    world.evaluator.seconds = 0.1
    answer = asyncio.create_task(world.disk(ON_B))
    await asyncio.sleep(0.05)
    world.ledger = with_offer(world.ledger, world.cache.state().view, "pod-z", [NODE], 0.0)
    assert await answer == "a"


@virtually
async def test_a_pod_does_not_get_a_node_where_an_allowed_placement_leaves_it_no_space() -> None:
    """Not only once a watch shows it: volume x takes b, which the pod needs."""
    world = World()
    world.cache.remove(*waiting_volume("y", 20, age=1))
    world.cache.put(make.claim("z", 20), make.pod("z", name="pod-z", uid="uid-pod-z"))
    pod = world.cache.state().view.snapshot.pods["default", "pod-z"]
    assert (await world.evaluator.filter_without_fetch(pod, [NODE], world.contenders())).fits
    decision = asyncio.create_task(world.evaluator.filter_without_fetch(pod, [NODE], world.contenders()))
    assert await world.disk(ON_B) == "b"
    assert not (await decision).fits
    assert not (await world.evaluator.filter_without_fetch(pod, [NODE], world.contenders())).fits
    world.show(ON_B)
    assert world.guard.allowances == ()
