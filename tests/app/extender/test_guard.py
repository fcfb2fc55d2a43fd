"""What the guard answers, what it remembers, and when it is proven, in virtual time.

Disk a has space for volume x alone, disk b for either x or the older volume y. Longhorn chooses b for x.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.evaluator import Evaluator
from app.extender import guard
from app.extender.metrics import Metrics
from app.kube.client import ApiError
from app.runtime.decision_thread import Urgency
from app.runtime.probes import PREFIX
from scheduler_core.convert.admission import admission_request
from scheduler_core.decide.decision import NO_CONTENDERS, Contenders, FilterOptions, Packing
from scheduler_core.decide.settings import ExtenderSettings, GuardMode
from scheduler_core.guard.placement_guard import GuardState
from scheduler_core.model.longhorn import REVIEWED, Placement, Replica
from scheduler_core.offers.ledger import Ledger
from scheduler_core.values import replace
from tests import builders as make
from tests.worlds.disk_schedules import disk_schedule
from tests.worlds.engines import engines
from tests.worlds.offers import with_offer
from tests.worlds.placements import NODE, node_with_disks, path_of, placement, placement_review, waiting_volume
from tests.worlds.state_source import FakeStateSource
from tests.worlds.virtual_time import virtual_loop, virtually

ON_A = placement("x", 10, "a")
ON_B = placement("x", 10, "b")
Y_ON_B = placement("y", 20, "b")
OTHERS_ON_B = placement("other", 5, "b")


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
    """A process's guard; tests play Longhorn and the API server by hand."""

    def __init__(self, mode: GuardMode = GuardMode.ENFORCE) -> None:
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
        context = guard.GuardContext(
            lambda: ExtenderSettings(placement_guard=self.mode, guard_other_nodes=self.other_nodes),
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

    async def disk(self, wanted: Placement, **request: Any) -> str:
        """The disk that the API server would write for Longhorn's choice."""
        review = placement_review(wanted)
        review["request"] |= request
        changes = await self.guard.review(admission_request(review))
        values = {change["path"]: change["value"] for change in changes if change["op"] == "replace"}
        return str(values.get("/spec/diskID", wanted.disk)).removeprefix(f"{NODE}-")

    def show(self, written: Placement, reviewed: Placement | None = None, **labels: str) -> None:
        """The watch delivers a replica at a place, and with the place that was answered."""
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
        if reviewed is not None:
            raw["metadata"]["annotations"] = {REVIEWED: reviewed.place}
        self.cache.put(raw)

    async def prove(self) -> None:
        await self.disk(ON_B)
        self.show(ON_A, ON_A)
        assert self.guard.proven

    def counted(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"{PREFIX}_placement_guard_{name}_total", labels)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


@virtually
async def test_a_choice_that_would_break_the_plan_is_changed() -> None:
    world = World()
    assert await world.disk(ON_B) == "a"
    assert world.counted("placements", outcome="changed") == 1


@virtually
async def test_placements_at_the_same_time_see_each_other() -> None:
    world = World()
    assert (await world.disk(ON_B), await world.disk(Y_ON_B)) == ("a", "b")
    assert [entry.disk for entry in world.guard.activity.awaited] == ["n-a", "n-b"]


@virtually
async def test_observing_changes_nothing_and_counts_what_enforcing_would_change() -> None:
    world = World(GuardMode.OBSERVE)
    assert await world.disk(ON_B) == "b"
    assert world.counted("placements", outcome="changed") == 1
    assert [entry.disk for entry in world.guard.activity.awaited] == ["n-b"]


@virtually
async def test_a_dry_run_is_answered_and_not_remembered() -> None:
    world = World()
    assert await world.disk(ON_B, dryRun=True) == "a"
    assert world.guard.activity.awaited == ()
    assert not world.guard.activity.outcomes


@pytest.mark.parametrize("cause", ["off", "no reservations"])
def test_nothing_is_changed_while_the_guard_may_not_decide(cause: str) -> None:
    @virtually
    async def check() -> None:
        world = World()
        if cause == "off":
            world.mode = GuardMode.OFF
        world.competes = cause != "no reservations"
        assert await world.disk(ON_B) == "b"
        assert world.guard.activity.awaited == ()

    check()


@virtually
async def test_a_process_that_does_not_lead_keeps_the_same_plan() -> None:
    """It follows from the cluster; nothing is read that a leader would have to give."""
    world = World()
    world.leads = False
    assert await world.disk(ON_B) == "a"
    assert world.guard.activity.outcomes == {"changed": 1}


@virtually
async def test_a_standby_keeps_the_offers_that_the_leader_recorded() -> None:
    world = World()
    world.leads = False
    world.cache.remove(*waiting_volume("y", 20, age=1))
    world.cache.put(make.claim("z", 20), make.pod("z", name="pod-z", uid="uid-pod-z"))
    assert await world.disk(ON_B, dryRun=True) == "b"
    world.record = with_offer(Ledger(), world.cache.state().view, "pod-z", [NODE], 0.0)
    assert await world.disk(ON_B) == "a"


@virtually
async def test_a_standby_reads_what_another_process_answered() -> None:
    """The watches of both lag differently: the placement of x on a is written, and shown to neither."""
    leader = World()
    standby = World()
    standby.leads = False
    assert await leader.disk(ON_B) == "a"
    standby.written = [Replica("r-x", "vol-x", ON_A.size, NODE, ON_A.disk, ON_A.disk_path)]
    assert await standby.disk(placement("y", 20, "a")) == "b"
    assert {entry.replica for entry in standby.guard.activity.awaited} == {"r-x", "r-y"}


@virtually
async def test_what_cannot_be_read_is_decided_by_what_the_watches_show() -> None:
    world = World()
    world.leads = False
    world.written = ApiError("GET replicas", 0, "", "no answer")
    assert await world.disk(ON_B) == "a"


@virtually
async def test_a_leader_reads_what_was_written_after_it_took_over() -> None:
    """The previous leader may have answered a moment ago; later its own answers are all that there are."""
    world = World()
    world.guard.adopt()
    await world.disk(ON_B, dryRun=True)
    assert world.reads == 1
    await asyncio.sleep(guard.CATCH_UP_SECONDS)
    await world.disk(ON_B, dryRun=True)
    assert world.reads == 1


@virtually
async def test_a_leader_reads_what_was_written_if_no_watch_shows_its_answer() -> None:
    """The answer may be lost, and a standby may have been asked: x is on b, and y needs a disk that is not there."""
    world = World()
    assert await world.disk(ON_B) == "a"
    world.written = [Replica("r-x", "vol-x", ON_B.size, NODE, ON_B.disk, ON_B.disk_path)]
    await world.disk(Y_ON_B, dryRun=True)
    assert world.reads == 0
    await asyncio.sleep(2 * guard.UNSEEN_SECONDS)
    await world.disk(Y_ON_B, dryRun=True)
    assert world.reads == 1
    assert [entry.disk for entry in world.guard.activity.awaited] == [ON_B.disk]


@virtually
async def test_a_leader_reads_what_was_written_after_it_stood_still() -> None:
    """A standby may have answered meanwhile."""
    world = World()
    task = asyncio.create_task(world.guard.run())
    await asyncio.sleep(1)
    await world.disk(ON_B, dryRun=True)
    assert world.reads == 0
    world.loop.jump_to(world.loop.time() + 0.85)
    await asyncio.sleep(0.001)
    await world.disk(ON_B, dryRun=True)
    assert world.reads == 1
    task.cancel()


@virtually
async def test_a_decision_that_takes_too_long_is_given_up() -> None:
    world = World()
    world.evaluator.seconds = 2 * guard.ANSWER_SECONDS
    assert await world.disk(ON_B) == "b"
    assert world.loop.time() == pytest.approx(guard.ANSWER_SECONDS)
    assert world.counted("placements", outcome="late") == 1
    world.show(ON_B)
    assert world.counted("observations", observation="bypassed") == 1


@virtually
async def test_after_a_decision_that_took_too_long_the_guard_reads_what_was_written() -> None:
    world = World()
    world.evaluator.seconds = 2 * guard.ANSWER_SECONDS
    await world.disk(ON_B)
    world.evaluator.seconds = 0.0
    await world.disk(Y_ON_B)
    assert world.reads == 1


@virtually
async def test_a_guard_that_decides_nothing_reads_nothing() -> None:
    world = World()
    world.leads = False
    world.competes = False
    assert await world.disk(ON_B) == "b"
    assert world.reads == 0


@virtually
async def test_a_replica_that_is_deleted_takes_no_space() -> None:
    world = World()
    await world.disk(ON_B)
    world.cache.remove(make.replica("r-x", "vol-x", size=10, healthy=False))
    assert world.guard.activity.awaited == ()


@virtually
async def test_a_placement_that_passes_a_guard_by_that_is_off_unproves_it() -> None:
    world = World()
    await world.prove()
    world.mode = GuardMode.OFF
    world.show(Y_ON_B)
    world.mode = GuardMode.ENFORCE
    assert not world.guard.proven


@virtually
async def test_invented_reviews_make_the_guard_write_no_wrong_disk() -> None:
    """They take space for a minute, so that a plan may be given up; each replica still gets a disk that has room."""
    world = World()
    for number in range(5):
        await world.disk(placement(f"invented-{number}", 20, "b"))
    assert await world.disk(ON_B) in {"a", "b"}
    assert await world.disk(Y_ON_B) == "b", "the only disk of its size"
    # A review that names a real replica is replaced by the real one.
    await world.disk(ON_B)
    assert await world.disk(ON_A) == "a"


@virtually
async def test_after_an_error_the_guard_reads_what_was_written() -> None:
    world = World()
    world.evaluator.error = RuntimeError("a defect")
    with pytest.raises(RuntimeError, match="a defect"):
        await world.disk(ON_B)
    world.evaluator.error = None
    await world.disk(ON_B)
    assert world.reads == 1


@pytest.mark.parametrize(("behind", "node"), [(False, "m"), (True, NODE)])
def test_a_replica_is_moved_to_another_node_only_by_a_leader_that_has_seen_all_answers(behind: bool, node: str) -> None:
    @virtually
    async def check() -> None:
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
        await world.disk(ON_B)
        assert [place.node for place in world.guard.allowances] == [node]

    check()


@virtually
async def test_an_update_of_another_shape_is_left_alone() -> None:
    world = World()
    assert await world.disk(replace(ON_B, disk_path="")) == "b"
    assert world.counted("placements", outcome="refused-shape") == 1


@virtually
async def test_the_guard_is_proven_by_a_placement_that_a_watch_shows_as_answered() -> None:
    world = World()
    packing = [world.evaluator.options.packing]
    await world.prove()
    packing.append(world.evaluator.options.packing)
    assert packing == [Packing.AUTO, Packing.EXACT]
    assert world.guard.activity.awaited == ()


@virtually
async def test_a_guard_that_cannot_be_reached_is_not_proven() -> None:
    world = World()
    await world.prove()
    world.obstacle = "the certificate has expired"
    assert not world.guard.proven
    assert world.evaluator.options.packing is Packing.AUTO
    world.obstacle = ""
    assert world.guard.proven


@virtually
async def test_a_placement_that_passes_the_guard_by_unproves_it_at_once() -> None:
    world = World()
    await world.prove()
    world.cache.put(make.replica("r-other", "vol-other", healthy=False, size=5))
    world.show(OTHERS_ON_B)
    assert not world.guard.proven
    assert world.evaluator.options.packing is Packing.AUTO
    world.show(Y_ON_B, Y_ON_B)
    assert world.guard.proven


@virtually
async def test_auto_does_not_rely_on_the_guard_while_a_disk_has_a_disk_schedule() -> None:
    world = World()
    await world.prove()
    assert world.evaluator.options.guarded
    world.cache.put(disk_schedule(f"{NODE}-a", node=NODE, disk="a"))
    assert world.guard.proven
    assert not world.evaluator.options.guarded


@virtually
async def test_a_placement_that_another_process_answered_proves_the_guard_too() -> None:
    world = World()
    world.leads = False
    world.show(ON_B, ON_B)
    assert (world.guard.activity.health, world.counted("observations", observation="confirmed")) == ("proven", 1)


@virtually
async def test_a_change_that_is_found_otherwise_ends_changing() -> None:
    world = World()
    world.show(Y_ON_B, Y_ON_B)
    assert world.guard.proven
    world.show(replace(ON_B, disk=ON_A.disk), ON_A)
    assert world.guard.activity.health is GuardState.TAMPERED
    assert not world.guard.proven
    world.cache.put(*waiting_volume("v", 10, age=3), *waiting_volume("w", 20, age=1))
    assert await world.disk(placement("v", 10, "b")) == "b"


@virtually
async def test_a_placement_that_is_never_written_stops_taking_space() -> None:
    world = World()
    await world.disk(ON_B)
    task = asyncio.create_task(world.guard.run())
    await asyncio.sleep(guard.ALLOWANCE_LIFETIME + 2)
    task.cancel()
    assert world.guard.activity.awaited == ()


@virtually
async def test_an_offer_that_is_made_meanwhile_is_kept_too() -> None:
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
    world = World()
    world.cache.remove(*waiting_volume("y", 20, age=1))
    world.cache.put(make.claim("z", 20), make.pod("z", name="pod-z", uid="uid-pod-z"))
    pod = world.cache.state().view.snapshot.pods["default", "pod-z"]
    assert (await world.evaluator.decide_without_fetch(pod, [NODE], world.contenders())).fits
    decision = asyncio.create_task(world.evaluator.decide_without_fetch(pod, [NODE], world.contenders()))
    assert await world.disk(ON_B) == "b"
    assert not (await decision).fits
    assert not (await world.evaluator.decide_without_fetch(pod, [NODE], world.contenders())).fits
    world.show(ON_B)
    assert world.guard.allowances == ()
