"""When this process competes, answers and points the Service to itself; timelines play the election and the Service."""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from app.extender.endpoint_publisher import EndpointPublisher, GuardEndpoint
from app.extender.guard_certificate import GuardCertificate
from app.extender.leadership_lifecycle import ExtenderLifecycle, ExtenderParts, LiveSettings
from app.extender.metrics import Metrics
from app.extender.whole_node_reservation import NodeReservations
from app.kube.client import ApiError
from app.runtime.probes import PREFIX
from scheduler_core.decide.extender_settings import (
    GUARD_OTHER_NODES,
    NODE_RESERVATION_TIMEOUT,
    PLACEMENT_GUARD,
    POD_SCHEDULING_TIMEOUT,
    Enforcement,
)
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.model.installation import ENABLED, ENFORCEMENT
from scheduler_core.offers.handover_record import HandoverRecord, RecordError, RecordHead
from scheduler_core.offers.outstanding_offer import ObservedPod, Offer, RecordedOffer
from tests import builders as make
from tests.worlds.publishers import FakeCertificate, FakePublisher
from tests.worlds.timeline import play, rows
from tests.worlds.virtual_time import run


class FakeCache:
    """A cache that is as complete and as fresh as its attributes say."""

    def __init__(self) -> None:
        self.problem = ""
        self.unreadable: list[str] = []
        self.has_synced = True
        self.settings: dict[str, str] = {}
        self.caught_up = asyncio.Event()  # `catch_up` waits for it
        self.caught_up.set()
        self.catch_ups = 0  # how often `catch_up` was called
        self.versions = {"pods": "10"}
        self.run_fails = asyncio.Event()  # `run` raises an error once it is set

    async def run(self) -> None:
        await self.run_fails.wait()
        raise RuntimeError("a fault")

    async def wait_for_sync(self) -> None:
        await asyncio.Event().wait()

    async def catch_up(self) -> None:
        """Waits until `caught_up` is set."""
        self.catch_ups += 1
        await self.caught_up.wait()

    async def reach(self, versions: Mapping[str, str], seconds: float) -> bool:
        assert seconds > 0
        return versions == self.versions

    def state(self) -> ClusterState:
        pods = [make.pod("data-0", name="db-0"), make.pod("data-1", name="db-1")]
        return make.state(pods)


class FakeStore:
    """The predecessor's record."""

    def __init__(self) -> None:
        self.record: HandoverRecord | None = None  # what `read` returns
        self.error: Exception | None = None  # what it raises

    async def read(self) -> HandoverRecord | None:
        if self.error is not None:
            raise self.error
        return self.record


class FakeConfigMap:
    """The extender's ConfigMap."""

    def __init__(self) -> None:
        self.problem = ""
        self.data: dict[str, str] = {ENABLED: "true"}

    async def run(self) -> None:
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
        if enabled != self.enabled:
            self.story.append("competes" if enabled else "competes-no-more")
        self.enabled = enabled

    def leading(self) -> bool:
        return self.won and self.enabled

    def win(self) -> None:
        self.won = True
        self.term += 1

    def stop(self, *, release: bool, seconds: float) -> None:
        """Ends the election."""
        if self.alive:
            assert seconds > 0
            self.story.append("released" if release else "ended")
        self.alive = False
        self.won = False


class FakeReservations:
    """Reservations that settle when a test says so."""

    def __init__(self, story: list[str]) -> None:
        self.story = story
        self.free = asyncio.Event()  # `settle` waits for it
        self.free.set()
        self.late_refusal: Callable[[], str] = str  # read by `clear`
        self.refusal_when_cleared = ""  # what `late_refusal` returned then
        self.adopting: asyncio.Event | None = None  # `adopt` waits for it, if there is one
        self.undisturbed = -1.0  # the argument of the last `adopt`
        self.record: HandoverRecord | None = None  # the other argument
        self.hands_over = True  # what `settle` returns

    def reserved_nodes(self) -> frozenset[str]:
        return frozenset()

    async def adopt(self, undisturbed: float, record: HandoverRecord | None = None) -> None:
        """Takes over."""
        self.undisturbed = undisturbed
        self.record = record
        if self.adopting is not None:
            await self.adopting.wait()
        self.story.append("adopted")

    async def settle(self) -> bool:
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
        self.story.append("task-runs")
        await asyncio.Event().wait()

    def adopt(self) -> None:
        self.story.append("task-begins")

    def clear(self) -> None:
        self.story.append("task-ends")


class World:
    """The life cycle of an extender among fakes."""

    def __init__(self, environment: dict[str, str] | None = None, *, leader_task: str = "") -> None:
        self.story: list[str] = []  # the events of the fakes since they were last read
        self.cache = FakeCache()
        self.config_map = FakeConfigMap()
        self.elector = FakeElector(self.story)
        self.publisher = FakePublisher(self.story)
        self.guard_publisher = FakePublisher(self.story, "guard-")
        certificate = cast("GuardCertificate", FakeCertificate())
        publishers = (cast("EndpointPublisher", self.guard_publisher), cast("EndpointPublisher", FakePublisher()))
        guard = GuardEndpoint(certificate, publishers, self.elector.leading)
        self.reservations = FakeReservations(self.story)
        self.metrics = Metrics()
        self.store = FakeStore()
        fakes: dict[str, Any] = {
            "cache": self.cache, "config_map": self.config_map, "elector": self.elector, "publisher": self.publisher,
            "offer_store": self.store, "guard": guard,
        }  # fmt: skip
        parts = ExtenderParts(**fakes, metrics=self.metrics, node_name="host")
        settings = LiveSettings(parts.cache, parts.config_map, environment or {})
        tasks = [FakeLeaderTask(self.story)] if leader_task else []
        self.lifecycle = ExtenderLifecycle(parts, settings, cast("NodeReservations", self.reservations), tasks)
        self.reservations.late_refusal = self.lifecycle.late_refusal
        self._task: asyncio.Task[None] | None = None
        self._has_failed = False

    def run(self) -> None:
        self._task = asyncio.create_task(self.lifecycle.run())

    def failure(self) -> str:
        self._has_failed = True
        assert self._task is not None
        return type(self._task.exception()).__name__ if self._task.done() else ""

    def lose(self, holder: str = "other") -> None:
        """Loses the lead; `nobody` may hold the Lease then."""
        self.elector.won = False
        self.elector.holder = "" if holder == "nobody" else holder

    def configure(self, **data: str) -> None:
        names = {"enabled": ENABLED, "guard": PLACEMENT_GUARD}
        self.config_map.data = self.config_map.data | {names[key]: value for key, value in data.items()}

    def hold(self, what: str) -> None:
        """The step of the take-over or of the drain does not end."""
        if what == "catching-up":
            self.cache.caught_up.clear()
        elif what == "adopting":
            self.reservations.adopting = asyncio.Event()
        else:
            self.reservations.free.clear()

    def free(self, what: str) -> None:
        """The step goes on."""
        if what == "adopting":
            assert self.reservations.adopting is not None
            self.reservations.adopting.set()
        else:
            (self.cache.caught_up if what == "catching-up" else self.reservations.free).set()

    def service(self, state: str, *, guard: str = "") -> None:
        publisher = self.guard_publisher if guard else self.publisher
        publisher.error = ApiError("PUT slice", 403, "Forbidden", "may not") if state == "refused" else None
        publisher.hangs = state == "hangs"

    def happened(self) -> list[str]:
        story = list(self.story)
        self.story.clear()
        return story

    def answered_when_cleared(self) -> bool:
        return self.reservations.refusal_when_cleared == ""

    def heartbeat(self) -> float | None:
        return self.metrics.registry.get_sample_value(f"{PREFIX}_heartbeat", {"node": "host"})

    def guard(self) -> list[str]:
        state = self.lifecycle.state().guard
        assert state is not None
        return [state.mode, "published" if state.published else "", state.problem]

    async def end(self) -> None:
        if self._task is not None:
            assert self._has_failed or not self._task.done(), self._task
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


TIMELINES = """
# A process answers once it has taken over.
a new leader answers after catching up and adopting
    # It does not answer as soon as it is elected. The Service is pointed here meanwhile.
    0 hold catching-up; run; happened -> competes; lifecycle.refusal -> not the leader, other is; elector.win
    1 cache.catch_ups -> 1; lifecycle.refusal -> taking over from the last leader; happened -> published guard-emptied; heartbeat -> 0
    2 free catching-up; lifecycle.refusal -> none; happened -> adopted; heartbeat -> 1
catching up that does not end is tried again
    # This goes on as long as the process leads; each time it has 15 s.
    0 hold catching-up; run; elector.win
    15 cache.catch_ups -> 1
    31 cache.catch_ups -> 3; lifecycle.refusal -> taking over from the last leader; happened -> competes published guard-emptied published guard-emptied published guard-emptied
    32 free catching-up; lifecycle.refusal -> none; happened -> adopted
a lead lost during catching up is not taken over
    # A new term catches up again.
    0 hold catching-up; run; elector.win
    1 cache.catch_ups -> 1; elector.win; free catching-up
    2 lifecycle.refusal -> none; cache.catch_ups -> 2; happened -> competes published guard-emptied adopted published
a lead lost during adoption is not taken over
    # The adopted state is forgotten.
    0 hold adopting; set elector.undisturbed=2.5; run; elector.win
    1 happened -> competes published guard-emptied; reservations.undisturbed -> 2.5; lose; free adopting; happened -> adopted cleared
    2 lifecycle.refusal -> not the leader, other is
leader tasks begin and end with the lead
    # Two processes must neither nudge nor count the same misplacement.
    0 world leader_task=yes
    0 run; elector.win
    1 happened -> competes task-runs adopted task-begins published guard-emptied; lose
    2 happened -> cleared task-ends; elector.win
    3 happened -> adopted task-begins published
# A process that must not answer gives up its lead.
a stale cache ends the lead
    # Another candidate may have a fresher cache. This process competes again with a fresh cache.
    0 run; elector.win
    1 lifecycle.refusal -> none; set cache.problem=stale; lifecycle.refusal -> not ready: stale
    7 happened -> competes adopted published guard-emptied competes-no-more cleared; set cache.problem=
    8 lifecycle.refusal -> none
a leader with a problem keeps the Lease silently until its decisions are visible
    # For 5 s no other process answers. Without the problem it goes on, and the period starts again.
    0 run; elector.win
    1 set cache.problem=stale
    5.9 elector.enabled -> yes; lifecycle.refusal -> not ready: stale; set cache.problem=
    7 elector.enabled -> yes; lifecycle.refusal -> none
    8 set cache.problem=stale
    12.9 elector.enabled -> yes
    13.6 elector.enabled -> no
a disabled leader withdraws from the Service before it releases the Lease
    # A later withdrawal might overwrite a successor's endpoint.
    0 run; elector.win
    1 happened -> competes adopted published guard-emptied; configure enabled=false
    1 lifecycle.refusal -> scheduler-extender-enabled is false (says ConfigMap longhorn-scheduler-extender)
    2 happened -> withdrawn
    7 happened -> competes-no-more cleared
a disabled leader that cannot withdraw tries again
    # After 2 s. It keeps the Lease meanwhile, and answers no request.
    0 run; elector.win
    1 publisher.calls -> 1; service refused; configure enabled=false
    3.1 publisher.calls -> 2; elector.leading -> yes
    3.6 publisher.calls -> 3; elector.leading -> yes; service works
    3.6 lifecycle.refusal -> scheduler-extender-enabled is false (says ConfigMap longhorn-scheduler-extender)
    6 elector.enabled -> yes; happened -> competes adopted published guard-emptied withdrawn
    11.5 elector.enabled -> no; happened -> competes-no-more cleared
a Service that cannot be written is tried again
    # After 2 s. This process answers meanwhile, because requests may arrive otherwise.
    0 service refused; run; elector.win
    1 lifecycle.refusal -> none; publisher.calls -> 1
    2.1 publisher.calls -> 1
    2.6 publisher.calls -> 2; service works
    5 happened -> competes adopted guard-emptied published
a process disabled after it lost the lead points the Service nowhere
    # While disabled no process competes, so no leader would do it.
    0 run; elector.win
    1 lose
    2 lifecycle.refusal -> not the leader, other is; happened -> competes adopted published guard-emptied cleared; configure enabled=false; lose nobody
    3 happened -> withdrawn competes-no-more
a dead elector ends the process
    # It could never lead again; a new process can.
    0 run; set elector.alive=no
    1 failure -> ExceptionGroup
after a crash the Lease runs out
    # A release would say that the decisions of the last answers are visible.
    0 run; elector.win
    1 cache.run_fails.set; failure -> ExceptionGroup; happened -> competes adopted published guard-emptied ended
# A process that ends hands over.
draining hands over step by step
    # The process leads until it has settled, withdrawn and released the Lease.
    0 run; elector.win
    1 happened -> competes adopted published guard-emptied; hold settling; lifecycle.drain -> waits; lifecycle.refusal -> shutting down; lifecycle.late_refusal -> none
    2 elector.leading -> yes; answer lifecycle.drain -> waits; free settling; answer lifecycle.drain -> none
    2 happened -> settled cleared withdrawn released; answered_when_cleared -> no; lifecycle.late_refusal -> not the leader, other is
the Lease runs out if offers cannot be handed over
    # A release would say that a successor can know every decision.
    0 run; elector.win
    1 happened -> competes adopted published guard-emptied; set reservations.hands_over=no; lifecycle.drain -> none
    1 happened -> settled cleared withdrawn ended
draining is bounded
    # Any step may hang: settling has 10 s, and the withdrawal 1 s.
    0 run; elector.win
    1 happened -> competes adopted published guard-emptied; hold settling; service hangs; lifecycle.drain -> waits
    11.9 answer lifecycle.drain -> waits; happened -> cleared released
    12.1 answer lifecycle.drain -> none
a follower drains without withdrawing
    # It has not pointed the Service anywhere.
    0 run; lifecycle.drain -> none; happened -> competes settled cleared released
# The placement guard follows the lead.
the placement guard is published by the leader while it is switched on
    # A change of the setting takes effect at run time.
    0 run; elector.win
    1 happened -> competes adopted published guard-emptied; configure guard=observe
    2 happened -> guard-published; guard -> observe published none; configure guard=off
    3 happened -> guard-emptied
a new leader points the placement guard here while it catches up
    # Until then API servers may wait for a process that has ended, a second for each placement.
    0 configure guard=enforce; hold catching-up; run; elector.win
    1 happened -> competes published guard-published; lifecycle.late_refusal -> taking over from the last leader; free catching-up
    2 lifecycle.refusal -> none
a drained leader is removed from both Services before it returns
    # Both servers listen until then, and no placement is changed any more.
    0 configure guard=enforce; run; elector.win
    1 happened -> competes adopted published guard-published; lifecycle.drain -> none; answered_when_cleared -> no
    1 happened -> settled cleared withdrawn guard-withdrawn released
a disabled leader is removed from both Services
    # The guard knows no plan without the extender.
    0 configure guard=enforce; run; elector.win
    1 happened -> competes adopted published guard-published; configure enabled=false
    2 happened -> withdrawn guard-withdrawn
    7 happened -> competes-no-more cleared
    7 lifecycle.refusal -> scheduler-extender-enabled is false (says ConfigMap longhorn-scheduler-extender)
trouble with the placement guard does not end the lead
    # kube-scheduler is answered as before.
    0 service refused guard=yes; configure guard=enforce; run; elector.win
    1 guard -> enforce none PUT slice: may not; lifecycle.refusal -> none; lifecycle.drain -> none
    1 happened -> competes adopted published settled cleared withdrawn released
"""


@pytest.mark.parametrize("timeline", rows(TIMELINES))
def test_when_a_process_leads_and_answers(timeline: str) -> None:
    play(World, timeline)


async def test_settings_come_from_the_first_source_that_has_them() -> None:
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
        GUARD_OTHER_NODES: "defaults",
    }


async def test_a_change_of_the_enforcement_counts_at_once() -> None:
    world = World({ENFORCEMENT: "enforce"})
    for mode in (Enforcement.OBSERVE, Enforcement.ENFORCE):
        world.config_map.data = {ENFORCEMENT: mode.value}
        assert world.lifecycle.state().enforcement is mode


async def test_until_the_settings_are_known_the_refusal_is_not_that_it_is_disabled() -> None:
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


async def test_a_process_that_does_not_lead_reviews_placements_unless_it_is_disabled_or_not_ready() -> None:
    world = World()
    assert (world.lifecycle.review_refusal(), bool(world.lifecycle.refusal())) == ("", True)
    world.cache.problem = "nodes not listed yet"
    assert world.lifecycle.review_refusal() == "nodes not listed yet"
    world.config_map.data = {ENABLED: "false"}
    assert world.lifecycle.review_refusal() == f"{ENABLED} is false"


async def test_trouble_is_not_over_while_a_setting_is_refused() -> None:
    world = World()
    events = []
    for problem, enabled in (("not read yet", "true"), ("", "yes please"), ("", "true")):
        world.config_map.problem = problem
        world.config_map.data = {ENABLED: enabled}
        with capture_logs() as logs:
            await world.lifecycle.before_step()
        events.append([entry["event"] for entry in logs])
    assert events == [["trouble"], ["settings", "setting refused"], ["settings", "trouble is over"]]


def record_of(*pods: str, final: bool = True, versions: dict[str, str] | None = None) -> HandoverRecord:
    head = RecordHead("other", 1, final=final, versions=versions or {"pods": "10"})
    names = [ObservedPod(name, "default", name) for name in pods]
    offers = [Offer(pod, frozenset(), made_at=-1.0, number=1, version=0) for pod in names]
    return HandoverRecord(head, tuple(map(RecordedOffer, offers)), 1)


async def take_over(prepare: Callable[[World], None]) -> World:
    """A world in which this process has taken over."""
    world = World()
    prepare(world)
    world.run()
    await asyncio.sleep(0.1)
    world.elector.win()
    await asyncio.sleep(2)
    assert world.lifecycle.refusal() == ""
    await world.end()
    return world


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
def test_a_new_leader_catches_up_with_the_record_of_the_previous_leader(
    record: HandoverRecord | None, catch_ups: int
) -> None:
    """What happened after a final record, the previous leader would not have known either."""
    world = run(take_over(lambda world: setattr(world.store, "record", record)))
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
def test_without_a_usable_record_a_new_leader_waits_as_if_the_previous_one_had_just_answered(
    error: Exception, undisturbed: float, counted: float
) -> None:
    def prepare(world: World) -> None:
        world.store.error = error
        world.elector.undisturbed = undisturbed

    world = run(take_over(prepare))
    assert world.reservations.record is None
    assert world.reservations.undisturbed == counted
