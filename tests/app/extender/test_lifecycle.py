"""When this process competes, answers and points the Service to itself; tests play the election and the Service by hand."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from app.extender.endpoint_publisher import EndpointPublisher
from app.extender.guard_endpoint import GuardEndpoint
from app.extender.lifecycle import ExtenderLifecycle, ExtenderParts, LiveSettings
from app.extender.metrics import Metrics
from app.extender.node_reservation import NodeReservations
from app.extender.serving_certificate import ServingCertificate
from app.kube.client import ApiError
from app.runtime.metrics import PREFIX
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.settings import (
    ENABLED,
    ENFORCEMENT,
    NODE_RESERVATION_TIMEOUT,
    PLACEMENT_GUARD,
    POD_SCHEDULING_TIMEOUT,
    Enforcement,
)
from scheduler_core.offers.events import ObservedPod, Offered, RecordedOffer
from scheduler_core.offers.handover_record import HandoverRecord, RecordError, RecordHead
from tests import builders as make
from tests.worlds.fake_api import until

PUBLISH_RETRY_INTERVAL = 0.3


class FakeCache:
    """A cache that is as complete and as fresh as its attributes say.

    Attributes:
        caught_up: `catch_up` waits for it
        catch_ups: how often `catch_up` was called
        run_fails: `run` raises an error once it is set
    """

    def __init__(self) -> None:
        self.problem = ""
        self.unreadable: list[str] = []
        self.has_synced = True
        self.settings: dict[str, str] = {}
        self.caught_up = asyncio.Event()
        self.caught_up.set()
        self.catch_ups = 0
        self.versions = {"pods": "10"}
        self.run_fails = asyncio.Event()

    async def run(self) -> None:
        """Runs until cancelled, or fails."""
        await self.run_fails.wait()
        raise RuntimeError("a fault")

    async def wait_for_sync(self) -> None:
        """Never returns: the heap of the tests is not to be frozen."""
        await asyncio.Event().wait()

    async def catch_up(self) -> None:
        """Waits until `caught_up` is set."""
        self.catch_ups += 1
        await self.caught_up.wait()

    async def reach(self, versions: Mapping[str, str], seconds: float) -> bool:
        """Whether these are the versions of this cache."""
        assert seconds > 0
        return versions == self.versions

    def state(self) -> ClusterState:
        """A cluster with two pods."""
        pods = [make.pod("data-0", name="db-0"), make.pod("data-1", name="db-1")]
        return make.state(pods)


class FakeStore:
    """The predecessor's record.

    Attributes:
        record: what `read` returns
        error: what it raises
    """

    def __init__(self) -> None:
        self.record: HandoverRecord | None = None
        self.error: Exception | None = None

    async def read(self) -> HandoverRecord | None:
        """Returns the record."""
        if self.error is not None:
            raise self.error
        return self.record


class FakeConfigMap:
    """The extender's ConfigMap."""

    def __init__(self) -> None:
        self.problem = ""
        self.data: dict[str, str] = {ENABLED: "true"}

    async def run(self) -> None:
        """Does nothing until cancelled."""
        await asyncio.Event().wait()


class FakeElector:
    """An election that tests win and lose."""

    def __init__(self, story: list[str]) -> None:
        self.story = story
        self.holder = "other"
        self.problem = ""
        self.term = 0
        self.alive = True
        self.enabled = False
        self.won = False
        self.undisturbed = math.inf

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Does nothing: the leader loop looks often enough."""

    def start(self) -> None:
        """Does nothing."""

    def enable(self, enabled: bool) -> None:
        """Notes whether to compete."""
        if enabled != self.enabled:
            self.story.append("competes" if enabled else "competes no more")
        self.enabled = enabled

    def leading(self) -> bool:
        """Whether this process has won and still competes."""
        return self.won and self.enabled

    def win(self) -> None:
        """Wins the lead in a new term."""
        self.won = True
        self.term += 1

    def stop(self, *, release: bool, seconds: float) -> None:
        """Ends the election."""
        if self.alive:
            assert seconds > 0
            self.story.append("released" if release else "ended")
        self.alive = False
        self.won = False


class FakePublisher:
    """The Service's endpoint.

    Attributes:
        error: every call raises it
        calls: how often it was called
        hangs: whether calls do not return
    """

    def __init__(self, story: list[str], name: str = "") -> None:
        self.story = story
        self._name = name
        self.error: ApiError | None = None
        self.calls = 0
        self.hangs = False

    async def _call(self, event: str) -> None:
        self.calls += 1
        if self.hangs:
            await asyncio.sleep(60)
        if self.error is not None:
            raise self.error
        self.story.append(f"{self._name}{event}")

    async def publish(self) -> bool:
        """Points the Service here."""
        await self._call("published")
        return True

    async def withdraw(self) -> None:
        """Points the Service nowhere, if it points here."""
        await self._call("withdrawn")

    async def empty(self) -> bool:
        """Points the Service nowhere, wherever it points."""
        await self._call("emptied")
        return True


class FakeCertificate:
    """A certificate that is always accepted."""

    ready = True
    problem = ""


class FakeReservations:
    """Reservations that settle when a test says so.

    Attributes:
        free: `settle` waits for it
        adopting: `adopt` waits for it, if there is one
        undisturbed: the argument of the last `adopt`
        record: the other argument
        hands_over: what `settle` returns
        late_refusal: read by `clear`
        refusal_when_cleared: what `late_refusal` returned then
    """

    def __init__(self, story: list[str]) -> None:
        self.story = story
        self.free = asyncio.Event()
        self.free.set()
        self.late_refusal: Callable[[], str] = str
        self.refusal_when_cleared = ""
        self.adopting: asyncio.Event | None = None
        self.undisturbed = -1.0
        self.record: HandoverRecord | None = None
        self.hands_over = True

    def reserved_nodes(self) -> frozenset[str]:
        """Returns no node."""
        return frozenset()

    async def adopt(self, undisturbed: float, record: HandoverRecord | None = None) -> None:
        """Takes over."""
        self.undisturbed = undisturbed
        self.record = record
        if self.adopting is not None:
            await self.adopting.wait()
        self.story.append("adopted")

    async def settle(self) -> bool:
        """Waits for the last pod."""
        await self.free.wait()
        self.story.append("settled")
        return self.hands_over

    def clear(self) -> None:
        """Forgets everything; by then no request must be answered any more."""
        self.story.append("cleared")
        self.refusal_when_cleared = self.late_refusal()


class FakeLeaderTask:
    """A task that works only while this process leads."""

    def __init__(self, story: list[str]) -> None:
        self.story = story

    async def run(self) -> None:
        """Runs until cancelled."""
        self.story.append("task runs")
        await asyncio.Event().wait()

    def adopt(self) -> None:
        """Begins."""
        self.story.append("task begins")

    def clear(self) -> None:
        """Ends."""
        self.story.append("task ends")


class World:
    """The life cycle of an extender among fakes.

    Attributes:
        story: the events of the fakes, in order
    """

    def __init__(self, environment: dict[str, str] | None = None, *, leader_task: bool = False) -> None:
        self.story: list[str] = []
        self.cache = FakeCache()
        self.config_map = FakeConfigMap()
        self.elector = FakeElector(self.story)
        self.publisher = FakePublisher(self.story)
        self.guard_publisher = FakePublisher(self.story, "guard ")
        certificate = cast("ServingCertificate", FakeCertificate())
        guard = GuardEndpoint(certificate, cast("EndpointPublisher", self.guard_publisher), self.elector.leading)
        self.reservations = FakeReservations(self.story)
        self.metrics = Metrics()
        self.store = FakeStore()
        fakes: dict[str, Any] = {
            "cache": self.cache, "config_map": self.config_map, "elector": self.elector, "publisher": self.publisher,
            "offer_store": self.store, "guard": guard,
        }  # fmt: skip
        parts = ExtenderParts(**fakes, metrics=self.metrics, environment=environment or {}, node_name="host")
        settings = LiveSettings(parts.cache, parts.config_map, parts.environment)
        tasks = [FakeLeaderTask(self.story)] if leader_task else []
        self.lifecycle = ExtenderLifecycle(parts, settings, cast("NodeReservations", self.reservations), tasks)
        self.reservations.late_refusal = self.lifecycle.late_refusal

    async def wait_until_competing(self) -> None:
        """Returns once this process competes."""
        await until("competing", lambda: self.elector.enabled)

    async def lead(self) -> None:
        """Wins the election, and returns once this process answers."""
        await self.wait_until_competing()
        self.elector.win()
        await until("answering", lambda: not self.lifecycle.refusal())

    async def lead_and_publish(self) -> None:
        """As `lead`, and returns once the Service leads here."""
        await self.lead()
        await until("the Service", lambda: "published" in self.story)


@asynccontextmanager
async def running_world(*, leader_task: bool = False) -> AsyncIterator[World]:
    """A world whose life cycle runs, and must not end by itself."""
    world = World(leader_task=leader_task)
    task = asyncio.create_task(world.lifecycle.run())
    try:
        yield world
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the intervals."""
    monkeypatch.setattr("app.runtime.leader_loop._STEP_INTERVAL", 0.01)
    monkeypatch.setattr("app.extender.published_service.RETRY_INTERVAL", PUBLISH_RETRY_INTERVAL)
    monkeypatch.setattr("app.extender.lifecycle.SILENT_SECONDS", 0.05)


async def test_settings_come_from_the_first_source_that_has_them() -> None:
    """The order is ConfigMap, Setting, environment and defaults, for each setting by itself."""
    world = World({ENABLED: "false", POD_SCHEDULING_TIMEOUT: "1", NODE_RESERVATION_TIMEOUT: "2"})
    world.config_map.data = {POD_SCHEDULING_TIMEOUT: "3"}
    world.cache.settings = {POD_SCHEDULING_TIMEOUT: "4", ENABLED: "true", "other": "x"}
    state = world.lifecycle.state()
    assert (state.enabled, state.pod_scheduling_timeout, state.node_reservation_timeout) == (True, 3, 2)
    assert {name: origin.partition(" ")[0] for name, origin in state.origins.items()} == {
        ENABLED: "Setting",
        NODE_RESERVATION_TIMEOUT: "environment",
        POD_SCHEDULING_TIMEOUT: "ConfigMap",
        ENFORCEMENT: "defaults",
        PLACEMENT_GUARD: "defaults",
    }


async def test_a_change_of_the_enforcement_counts_at_once() -> None:
    """The ConfigMap decides before the flag; no process has to be restarted."""
    world = World({ENFORCEMENT: "enforce"})
    for mode in (Enforcement.OBSERVE, Enforcement.ENFORCE):
        world.config_map.data = {ENFORCEMENT: mode.value}
        assert world.lifecycle.state().enforcement is mode


async def test_until_the_settings_are_known_the_refusal_is_not_that_it_is_disabled() -> None:
    """The refusal is that it is not ready."""
    world = World()
    world.config_map.data = {}
    world.config_map.problem = "ConfigMap not read yet"
    assert world.lifecycle.refusal() == "not ready: ConfigMap not read yet"
    world.config_map.problem = ""
    world.cache.has_synced = False
    world.cache.problem = "nodes not listed yet"
    assert world.lifecycle.refusal() == "not ready: nodes not listed yet"
    world.cache.has_synced = True
    assert world.lifecycle.refusal().startswith(f"{ENABLED} is false (the default")


async def test_a_new_leader_answers_after_catching_up_and_adopting() -> None:
    """It does not answer as soon as it is elected."""
    async with running_world() as world:
        world.cache.caught_up.clear()
        await world.wait_until_competing()
        assert world.lifecycle.refusal() == "not the leader, other is"
        world.elector.win()
        await until("the catching up", lambda: world.cache.catch_ups)
        assert world.lifecycle.refusal() == "taking over from the last leader"
        await until("the Service", lambda: "published" in world.story)
        world.cache.caught_up.set()
        await until("answering", lambda: not world.lifecycle.refusal())
        assert world.story == ["competes", "published", "guard emptied", "adopted"], "the Service points here meanwhile"
        heartbeat = {"node": "host"}
        await until(
            "the heartbeat", lambda: world.metrics.registry.get_sample_value(f"{PREFIX}_heartbeat", heartbeat) == 1
        )


def record_of(*pods: str, final: bool = True, versions: dict[str, str] | None = None) -> HandoverRecord:
    """A record with offers to these pods."""
    head = RecordHead("other", 1, final=final, versions=versions or {"pods": "10"})
    return HandoverRecord(
        head, tuple(RecordedOffer(Offered(ObservedPod(name, "default", name), frozenset()), 1.0) for name in pods), 1
    )


@pytest.mark.parametrize(
    ("record", "catch_ups"),
    [
        pytest.param(record_of("db-0", "db-1"), 0, id="complete"),
        pytest.param(record_of("db-0", versions={"pods": "11"}), 1, id="its leader had seen more"),
        pytest.param(record_of("db-0", "unknown"), 1, id="an unknown pod"),
        pytest.param(record_of("db-0", final=False), 1, id="its leader may have answered later"),
        pytest.param(None, 1, id="none"),
    ],
)
async def test_a_new_leader_catches_up_with_the_record_of_the_previous_leader(
    record: HandoverRecord | None, catch_ups: int
) -> None:
    """What happened after a final record, the previous leader would not have known either."""
    async with running_world() as world:
        world.store.record = record
        await world.lead()
        assert world.cache.catch_ups == catch_ups
        assert world.reservations.record is record


@pytest.mark.parametrize(
    ("error", "undisturbed", "counted"),
    [
        pytest.param(RecordError("damaged"), math.inf, 0.0, id="damaged"),
        pytest.param(ApiError("GET it", 503, "", "no"), math.inf, 0.0, id="no answer"),
        pytest.param(RecordError("damaged"), 7.0, 7.0, id="the Lease ran out"),
        pytest.param(ApiError("GET it", 404, "NotFound", "no"), math.inf, math.inf, id="not installed"),
    ],
)
async def test_without_a_usable_record_a_new_leader_waits_as_if_the_previous_one_had_just_answered(
    error: Exception, undisturbed: float, counted: float
) -> None:
    """A released Lease says that there is a record."""
    async with running_world() as world:
        world.store.error = error
        world.elector.undisturbed = undisturbed
        await world.lead()
        assert world.reservations.record is None
        assert world.reservations.undisturbed == counted


async def test_catching_up_that_does_not_end_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """This goes on as long as the process leads."""
    monkeypatch.setattr("app.runtime.leader_loop.CATCH_UP_TIMEOUT", 0.05)
    async with running_world() as world:
        world.cache.caught_up.clear()
        await world.wait_until_competing()
        world.elector.win()
        await until("the third time", lambda: world.cache.catch_ups > 2)
        assert world.lifecycle.refusal() != ""
        world.cache.caught_up.set()
        await until("answering", lambda: not world.lifecycle.refusal())
        assert world.story.count("adopted") == 1


async def test_a_lead_lost_during_catching_up_is_not_taken_over() -> None:
    """A new term catches up again."""
    async with running_world() as world:
        world.cache.caught_up.clear()
        await world.wait_until_competing()
        world.elector.win()
        await until("the catching up", lambda: world.cache.catch_ups)
        world.elector.win()
        world.cache.caught_up.set()
        await until("answering in the second term", lambda: not world.lifecycle.refusal())
        assert world.cache.catch_ups == 2
        assert world.story.count("adopted") == 1


async def test_a_lead_lost_during_adoption_is_not_taken_over() -> None:
    """The adopted state is forgotten."""
    async with running_world() as world:
        world.reservations.adopting = asyncio.Event()
        world.elector.undisturbed = 2.5
        await world.wait_until_competing()
        world.elector.win()
        await until("the settling", lambda: world.reservations.undisturbed == 2.5)
        world.elector.won = False
        world.reservations.adopting.set()
        await until("the end of it", lambda: "cleared" in world.story)
        assert world.lifecycle.refusal().startswith("not the leader")


async def test_leader_tasks_begin_and_end_with_the_lead() -> None:
    """Two processes must neither nudge nor count the same misplacement."""
    async with running_world(leader_task=True) as world:
        await world.lead()
        world.elector.won = False
        await until("the end", lambda: "task ends" in world.story)
        await world.lead()
    events = [entry for entry in world.story if entry in {"adopted", "cleared"} or entry.startswith("task")]
    begins = ["adopted", "task begins"]
    assert events == ["task runs", *begins, "cleared", "task ends", *begins]


async def test_a_stale_cache_ends_the_lead() -> None:
    """Another candidate may have a fresher cache. This process competes again with a fresh cache."""
    async with running_world() as world:
        await world.lead()
        world.cache.problem = "pods not heard of for 61 s"
        assert world.lifecycle.refusal() == "not ready: pods not heard of for 61 s"
        await until("the loss", lambda: "cleared" in world.story)
        assert not world.elector.enabled
        world.cache.problem = ""
        await until("its return", lambda: not world.lifecycle.refusal())


async def test_a_disabled_leader_withdraws_from_the_service_before_it_releases_the_lease() -> None:
    """A later withdrawal might overwrite a successor's endpoint."""
    async with running_world() as world:
        await world.lead_and_publish()
        world.config_map.data = {ENABLED: "false"}
        assert world.lifecycle.refusal() == f"{ENABLED} is false (says ConfigMap longhorn-scheduler-extender)"
        await until("the end", lambda: "cleared" in world.story)
        assert world.story[:4] == ["competes", "adopted", "published", "guard emptied"]
        assert world.story[4:] == ["withdrawn", "competes no more", "cleared"]


async def test_a_disabled_leader_that_cannot_withdraw_tries_again() -> None:
    """It keeps the Lease meanwhile, and answers no request."""
    async with running_world() as world:
        await world.lead_and_publish()
        world.publisher.error = ApiError("PUT slice", 403, "Forbidden", "may not")
        calls = world.publisher.calls
        began = time.monotonic()
        world.config_map.data = {ENABLED: "false"}
        await until("another try", lambda: world.publisher.calls >= calls + 2)
        assert time.monotonic() - began >= PUBLISH_RETRY_INTERVAL
        assert world.elector.leading()
        assert world.lifecycle.refusal().startswith(f"{ENABLED} is false")
        world.publisher.error = None
        await until("the end", lambda: not world.elector.enabled)
        assert "withdrawn" in world.story


async def test_a_service_that_cannot_be_written_is_tried_again() -> None:
    """This process answers meanwhile, because requests may arrive otherwise."""
    async with running_world() as world:
        world.publisher.error = ApiError("PUT slice", 403, "Forbidden", "may not")
        began = time.monotonic()
        await world.lead()
        await until("another try", lambda: world.publisher.calls >= 2)
        assert time.monotonic() - began >= PUBLISH_RETRY_INTERVAL
        world.publisher.error = None
        await until("the Service", lambda: "published" in world.story)


async def test_a_dead_elector_ends_the_process() -> None:
    """It could never lead again; a new process can."""
    world = World()
    task = asyncio.create_task(world.lifecycle.run())
    await world.wait_until_competing()
    world.elector.alive = False
    done, _ = await asyncio.wait({task}, timeout=5)
    assert done
    assert isinstance(task.exception(), ExceptionGroup)


async def test_draining_hands_over_step_by_step() -> None:
    """The process leads until it has settled, withdrawn and released the Lease."""
    async with running_world() as world:
        await world.lead_and_publish()
        del world.story[:]
        world.reservations.free.clear()
        draining = asyncio.create_task(world.lifecycle.drain())
        await asyncio.sleep(0.1)
        assert world.lifecycle.refusal() == "shutting down"
        assert world.lifecycle.late_refusal() == ""
        assert world.elector.leading()
        world.reservations.free.set()
        await draining
        assert world.story == ["settled", "cleared", "withdrawn", "released"]
        assert world.reservations.refusal_when_cleared != ""
        assert world.lifecycle.late_refusal() != ""


async def test_the_lease_runs_out_if_offers_cannot_be_handed_over() -> None:
    """A release would say that a successor can know every decision."""
    async with running_world() as world:
        await world.lead_and_publish()
        world.reservations.hands_over = False
        await world.lifecycle.drain()
        assert world.story[-2:] == ["withdrawn", "ended"]


async def test_draining_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any step may hang."""
    monkeypatch.setattr("app.runtime.leader_loop.DRAIN_TIMEOUT", 0.1)
    monkeypatch.setattr("app.extender.published_service.WITHDRAW_TIMEOUT", 0.1)
    async with running_world() as world:
        await world.lead_and_publish()
        world.reservations.free.clear()
        world.publisher.hangs = True
        async with asyncio.timeout(2):
            await world.lifecycle.drain()
        assert world.story[-2:] == ["cleared", "released"]


async def test_a_follower_drains_without_withdrawing() -> None:
    """It has not pointed the Service anywhere."""
    async with running_world() as world:
        await world.wait_until_competing()
        await world.lifecycle.drain()
        assert world.story == ["competes", "settled", "cleared", "released"]


async def test_after_a_crash_the_lease_runs_out() -> None:
    """A release would say that the decisions of the last answers are visible."""
    world = World()
    task = asyncio.create_task(world.lifecycle.run())
    await world.lead()
    world.cache.run_fails.set()
    await asyncio.wait({task}, timeout=5)
    assert world.story[-1] == "ended"
    assert task.exception() is not None


async def test_a_leader_with_a_problem_keeps_the_lease_silently_until_its_decisions_are_visible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other process answers meanwhile; without the problem it goes on, and the period starts again."""
    monkeypatch.setattr("app.extender.lifecycle.SILENT_SECONDS", 1.0)
    async with running_world() as world:
        await world.lead()
        world.cache.problem = "nodes not heard of"
        await asyncio.sleep(0.1)
        assert world.lifecycle.refusal().startswith("not ready")
        assert world.elector.enabled
        world.cache.problem = ""
        await asyncio.sleep(1.1)
        assert world.elector.enabled
        assert world.lifecycle.refusal() == ""
        world.cache.problem = "nodes not heard of"
        await until("the end of the lead", lambda: not world.elector.enabled)


async def test_a_process_disabled_after_it_lost_the_lead_points_the_service_nowhere() -> None:
    """While disabled no process competes, so no leader would do it."""
    async with running_world() as world:
        await world.lead_and_publish()
        world.elector.won = False
        await until("stepped down", lambda: bool(world.lifecycle.refusal()))
        assert "withdrawn" not in world.story
        world.config_map.data = {ENABLED: "false"}
        world.elector.holder = ""
        await until("withdrawn", lambda: "withdrawn" in world.story)
        assert world.story.count("published") == 1


async def test_the_placement_guard_is_published_by_the_leader_while_it_is_switched_on() -> None:
    """A change of the setting takes effect at run time."""
    async with running_world() as world:
        await world.lead_and_publish()
        await until("an empty slice", lambda: "guard emptied" in world.story)
        world.config_map.data = {**world.config_map.data, PLACEMENT_GUARD: "observe"}
        await until("the guard", lambda: "guard published" in world.story)
        guard = world.lifecycle.state().guard
        assert guard is not None
        assert (guard.mode, guard.published, guard.problem) == ("observe", True, "")
        world.config_map.data = {**world.config_map.data, PLACEMENT_GUARD: "off"}
        await until("its end", lambda: world.story.count("guard emptied") > 1)
        assert "withdrawn" not in world.story


async def test_a_new_leader_points_the_placement_guard_here_while_it_catches_up() -> None:
    """Until then API servers may wait for a process that has ended, a second for each placement."""
    async with running_world() as world:
        world.config_map.data = {**world.config_map.data, PLACEMENT_GUARD: "enforce"}
        world.cache.caught_up.clear()
        await world.wait_until_competing()
        world.elector.win()
        await until("the guard", lambda: "guard published" in world.story)
        assert world.lifecycle.late_refusal() == "taking over from the last leader"
        world.cache.caught_up.set()
        await until("answering", lambda: not world.lifecycle.refusal())


async def test_a_drained_leader_is_removed_from_both_services_before_it_returns() -> None:
    """Both servers listen until then, and no placement is changed any more."""
    async with running_world() as world:
        world.config_map.data = {**world.config_map.data, PLACEMENT_GUARD: "enforce"}
        await world.lead_and_publish()
        await until("the guard", lambda: "guard published" in world.story)
        await world.lifecycle.drain()
        assert {"withdrawn", "guard withdrawn", "released"} <= set(world.story)
        assert world.reservations.refusal_when_cleared != ""


async def test_a_disabled_leader_is_removed_from_both_services() -> None:
    """The guard knows no plan without the extender."""
    async with running_world() as world:
        world.config_map.data = {**world.config_map.data, PLACEMENT_GUARD: "enforce"}
        await world.lead_and_publish()
        await until("the guard", lambda: "guard published" in world.story)
        world.config_map.data = {**world.config_map.data, ENABLED: "false"}
        await until("the end", lambda: {"withdrawn", "guard withdrawn"} <= set(world.story))
        assert world.lifecycle.refusal() != ""


async def test_trouble_with_the_placement_guard_does_not_end_the_lead() -> None:
    """kube-scheduler is answered as before."""
    async with running_world() as world:
        world.guard_publisher.error = ApiError("PUT slice", 403, "Forbidden", "may not")
        world.config_map.data = {**world.config_map.data, PLACEMENT_GUARD: "enforce"}
        await world.lead_and_publish()
        await until("the guard", lambda: world.guard_publisher.calls > 1)
        guard = world.lifecycle.state().guard
        assert guard is not None
        assert guard.problem == "PUT slice: may not"
        assert world.lifecycle.refusal() == ""
        await world.lifecycle.drain()
        assert "released" in world.story
