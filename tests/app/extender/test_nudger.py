"""Refused pods are nudged when they fit, in virtual time; tests play kube-scheduler and Longhorn by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from app.evaluator import Evaluator, no_contenders
from app.extender.metrics import Metrics
from app.extender.nudger import MAX_DECISIONS, MAX_REMEMBERED, TURN_INTERVAL, Nudger, write_nudge
from app.extender.offers import Offers
from app.kube.client import ApiError
from scheduler_core.decide.decision import Contenders, Decision, FilterOptions
from scheduler_core.decide.extender_settings import ExtenderSettings
from scheduler_core.decide.nudge_limits import BURST, NUDGES_PER_SECOND, PENDING_NUDGE_LIFETIME
from scheduler_core.model.kube import Pod
from tests import builders as make
from tests.worlds.fake_api import FakeApi, connect_client, failing
from tests.worlds.state_source import FakeStateSource, caller_waits
from tests.worlds.timeline import play, rows
from tests.worlds.two_nodes import NODES, claim_with_node, database_pod, two_nodes
from tests.worlds.virtual_time import virtual_loop, virtually

START = datetime(2026, 1, 1, tzinfo=UTC)


class CountingEvaluator(Evaluator):
    """Records which pods were evaluated."""

    def __init__(self, cache: FakeStateSource) -> None:
        super().__init__(cache, FilterOptions())
        self.evaluated: list[str] = []
        self.candidates: list[Sequence[str]] = []
        self.after_filter: Callable[[], None] | None = None  # called after every evaluation

    async def decide(
        self, pod: Pod, candidates: Sequence[str], contenders: Callable[[], Contenders] = no_contenders
    ) -> Decision:
        """Records the pod, and evaluates it."""
        self.evaluated.append(pod.name)
        self.candidates.append(candidates)
        decision = await super().decide(pod, candidates, contenders)
        if self.after_filter is not None:
            self.after_filter()
        return decision


class World:
    """Two full nodes of 100 Gi."""

    def __init__(self, *, reservation_timeout: int = 5) -> None:
        settings = ExtenderSettings(
            enabled=True, pod_scheduling_timeout=0, node_reservation_timeout=reservation_timeout
        )
        self.cache = FakeStateSource(two_nodes())
        self.fill("a", "b")
        self.loop = virtual_loop()
        self.evaluator = CountingEvaluator(self.cache)
        # An evaluator of its own: only the nudger's evaluations are counted.
        self.offers = Offers(self.cache, CountingEvaluator(self.cache), lambda: settings, Metrics(), self.loop.time)
        self.results: list[str] = []  # what the metrics counted
        self.patches: list[tuple[str, str, float]] = []  # name of the pod, written time and virtual time of each patch
        # How the next patches end: an error, or whether the pod still exists; others succeed.
        self.patch_outcomes: list[ApiError | bool] = []
        self.slow_pods: set[str] = set()  # pods whose patches do not end before `patches_may_end` is set
        self.patches_may_end = asyncio.Event()
        self.on_patched: Callable[[Pod], object] | None = None  # called after every patch that succeeded
        self.contenders_read: list[float] = []  # virtual times at which the nudger read the contenders
        self._task: asyncio.Task[None] | None = None
        self.nudger = Nudger(
            self.cache,
            self.evaluator,
            self.contenders,
            self.patch,
            self.count_nudge,
            clock=self.loop.time,
            now=lambda: START + timedelta(seconds=self.loop.time()),
        )

    def contenders(self) -> Contenders:
        """The contenders of the offers; notes that they were read."""
        self.contenders_read.append(self.loop.time())
        return self.offers.contenders()

    async def patch(self, pod: Pod, at: str) -> bool:
        """The API server."""
        if pod.name in self.slow_pods:
            await self.patches_may_end.wait()
        self.patches.append((pod.name, at, self.loop.time()))
        await asyncio.sleep(0.01)
        outcome = self.patch_outcomes.pop(0) if self.patch_outcomes else True
        if isinstance(outcome, ApiError):
            raise outcome
        if outcome and self.on_patched:
            self.on_patched(pod)
        return outcome

    def count_nudge(self, result: str) -> None:
        self.results.append(result)

    @property
    def nudged(self) -> list[str]:
        return [name for name, _, _ in self.patches]

    @property
    def remembered(self) -> list[str]:
        return [entry.pod.name for entry in self.nudger.waiting]

    def fill(self, *names: str, space: float = 0) -> None:
        """Fills these nodes with other volumes, down to so many Gi."""
        for name in names:
            self.cache.put(make.longhorn_node(name, {"disk-1": make.disk(100, scheduled=100 - space)}))

    def create(self, number: int, size: float = 60) -> None:
        self.cache.put(make.claim(f"data-{number}", size), database_pod(number))

    def refuse(self, *numbers: int) -> None:
        for number in numbers:
            self.nudger.note_refusal(make.as_pod(database_pod(number)), list(NODES))

    def create_and_refuse(self, *numbers: int, size: float = 60) -> None:
        for number in numbers:
            self.create(number, size)
        self.refuse(*numbers)

    async def filter(self, number: int) -> Decision:
        return await self.offers.decide(make.as_pod(database_pod(number)), NODES, caller_waits)

    def requested(self, *numbers: int) -> None:
        for number in numbers:
            self.nudger.note_request(make.as_pod(database_pod(number)))

    def refuse_on(self, number: int, *nodes: str) -> None:
        """Reports that /filter has refused the pod on these nodes; kube-scheduler has excluded the others."""
        self.nudger.note_refusal(make.as_pod(database_pod(number)), list(nodes))

    def create_and_refuse_up_to(self, number: int) -> None:
        """Creates so many pods, and reports that /filter has refused them."""
        self.create_and_refuse(*range(number))

    def decline(self, number: int, *, lacking: str = "insufficient_Longhorn_storage", node: str = "") -> None:
        """Writes kube-scheduler's message about a pod's last attempt; the pod may have a node by now."""
        raw = database_pod(number, node)
        message = f"0/2 nodes are available: 2 {lacking.replace('_', ' ')}. preemption: 0/2 nodes are available"
        raw["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        ]
        self.cache.put(raw)

    def select(self, number: int, node: str = "") -> None:
        self.cache.put(claim_with_node(number, node, 60))

    def create_claim(self, number: int, *, storage_class: str = "longhorn") -> None:
        self.cache.put(make.claim(f"data-{number}", 60, storage_class=storage_class))

    def create_class(self, name: str) -> None:
        self.cache.put(make.storage_class(name))

    def delete_claim(self, number: int) -> None:
        self.cache.remove(make.claim(f"data-{number}", 60))

    def delete(self, number: int) -> None:
        self.cache.remove(database_pod(number))

    def show(self, number: int, node: str = "", **fields: Any) -> None:
        self.cache.put(database_pod(number, node, **fields))

    def bind_during_the_next_evaluation(self, number: int, node: str) -> None:
        self.evaluator.after_filter = lambda: self.show(number, node)

    def pods_ask_when_nudged(self) -> None:
        self.on_patched = self.nudger.note_request

    def next_patch_finds_no_pod(self) -> None:
        self.patch_outcomes.append(False)

    def hold_patches_of(self, number: int) -> None:
        self.slow_pods.add(f"db-{number}")

    def nudged_first(self) -> list[str]:
        return list(dict.fromkeys(self.nudged))

    def evaluations(self) -> int:
        return len(self.evaluator.evaluated)

    def contenders_reads(self) -> int:
        number = len(self.contenders_read)
        self.contenders_read.clear()
        return number

    def offers_outstanding(self) -> int:
        return self.offers.observed_ledger().outstanding

    async def ask(self, number: int) -> list[bool]:
        """Sends /filter; returns for each node whether the pod fits."""
        return [reason.fits for reason in (await self.filter(number)).reasons]

    def run(self) -> None:
        self._task = asyncio.create_task(self.nudger.run())

    async def end(self) -> None:
        """Stops the nudger, and asserts that it leaves no task behind."""
        if self._task is not None:
            assert not self._task.done()
            self._task.cancel()
            await asyncio.wait({self._task})
            assert self._task.cancelled()
        self.offers.clear()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.run()
        yield
        await self.end()


TIMELINES = """
# Refused pods that fit are nudged.
only as many pods are nudged as fit together, those refused first
    # There is space for two of three pods.
    0 run; create_and_refuse 1
    0.1 create_and_refuse 0 2
    1.1 fill a b space=60
    4.1 nudged -> db-1 db-0
pending nudges of one node add up
    # Only as many pods are nudged as the node has space for.
    0 run; create_and_refuse 0 1 2 3 size=40
    1 fill a space=90
    4 nudged -> db-0 db-1
without reservations, too, only as many pods are nudged as fit together
    # kube-scheduler must not be flooded.
    0 world reservation_timeout=0
    0 run; create_and_refuse 0 1 2
    2 evaluations -> 1; fill a b space=60
    5 nudged -> db-0 db-1
offered space is not free
    # The third pod is nudged once a pod with an offer is deleted.
    0 fill a b space=60; create 0; create 1; create 2; ask 0 -> yes no; ask 1 -> no yes; run; refuse 2
    3 nudged -> none; delete 0
    4 nudged -> db-2
a pending nudge does not compete with requests
    # The ledger of offers never has it.
    0 run; create_and_refuse 0; create 1; fill a space=60
    1 nudged -> db-0; offers_outstanding -> 0; ask 1 -> yes no
a pod is nudged only for the nodes it was refused on
    # kube-scheduler itself has excluded the other nodes.
    0 run; create 0; refuse_on 0 b; fill a space=60
    2 nudged -> none; fill b space=60
    3 nudged -> db-0
a slow patch does not hold up other nudges
    # Patches do not wait for each other.
    0 hold_patches_of 0; run; create_and_refuse 0 1; fill a b space=60
    1 nudged -> db-1
of a thousand equivalent pods one is evaluated while it does not fit
    # When some fit, only as many are evaluated.
    0 run; create_and_refuse_up_to 1000
    1 evaluations -> 1; fill a space=10
    2 evaluations -> 2; fill a space=60
    3 evaluations -> 4; nudged -> db-0
objects that a refused pod names and the state lacks are not fetched
    # A watch will deliver them; a GET per review would be a flood.
    0 run; create_and_refuse 0 1; delete_claim 0; create_claim 1 storage_class=later; fill a b space=60
    10 nudged -> none; cache.fetched -> none; create_claim 0; create_class later
    11 nudged_first -> db-0 db-1
# Pods are reviewed and nudged at intervals.
a nudged pod is left alone until kube-scheduler should have retried it
    # Changes do not matter meanwhile.
    0 run; create_and_refuse 0; fill a space=60
    0.5 nudged -> db-0; fill b space=1
    1 fill b space=2
    2 fill b space=3
    2.9 fill b space=4
    3 nudged -> db-0
a nudge without a request gives way to other pods
    # The first pod may lack CPU, so it is not requested; its back-off grows.
    0 run; create_and_refuse 0 1
    1 fill a space=60
    15 nudged_first -> db-0 db-1
without changes pods are only reviewed periodically
    # Some space becomes free by time alone.
    0 run; create_and_refuse 0
    29 evaluations -> 1
    59 evaluations -> 2; nudged -> none
without remembered pods the nudger is idle
    # It does not read the contenders.
    0 run
    1000 contenders_reads -> 0; create_and_refuse 0
    1000.3 contenders_reads -> 2
    1001 requested 0
    1002 contenders_reads -> 3; fill a space=60
    2000 contenders_reads -> 0
the wait of the pod that was refused first is known
    # A later refusal changes nothing; without pods it is 0.
    0 nudger.oldest_wait -> 0; create_and_refuse 0
    30 create_and_refuse 1
    40 nudger.oldest_wait -> 40; requested 0; nudger.oldest_wait -> 10
# Pods that need no nudge are forgotten.
a requested pod is forgotten
    # It gets an answer, not a nudge.
    0 run; create_and_refuse 0; requested 0; remembered -> none; fill a space=60
    100 nudged -> none
a requested pod ends its pending nudge
    # Its offer counts instead, if it has one, and the next pod has its turn.
    0 run; create_and_refuse 0 1; pods_ask_when_nudged; fill a space=60
    0.6 nudged -> db-0 db-1
a deleted pod is forgotten
    # Free space does not matter.
    0 run; create_and_refuse 0
    1 remembered -> db-0; delete 0; fill a space=60
    2 remembered -> none; nudged -> none
a bound pod is forgotten
    0 run; create_and_refuse 0
    1 remembered -> db-0; show 0 a; fill a space=60
    2 remembered -> none; nudged -> none
a finished pod is forgotten
    0 run; create_and_refuse 0
    1 remembered -> db-0; show 0 phase=Failed; fill a space=60
    2 remembered -> none; nudged -> none
a pod that is being deleted is forgotten
    0 run; create_and_refuse 0
    1 remembered -> db-0; show 0 deleting=1; fill a space=60
    2 remembered -> none; nudged -> none
a pod whose name another pod has is forgotten
    0 run; create_and_refuse 0
    1 remembered -> db-0; show 0 uid=uid-of-another; fill a space=60
    2 remembered -> none; nudged -> none
a pod that no watch has delivered yet is not gone
    # The cache may still have an earlier pod of the name.
    0 create_claim 0; show 0 uid=uid-of-its-predecessor; run; refuse 0
    1 remembered -> db-0; fill a space=60
    2 nudged -> db-0
a pod that no watch ever delivers is forgotten
    # It was deleted before the watch delivered it.
    0 create_claim 0; run; refuse 0
    59 remembered -> db-0
    91 remembered -> none
a pod that is gone when it is patched is forgotten
    # It counts as gone, and the next pod has its turn.
    0 next_patch_finds_no_pod; run; create_and_refuse 0 1; fill a space=60
    1 nudged -> db-0 db-1; results -> gone patched; remembered -> db-1
a pod whose node is selected after its refusal is forgotten
    # Its nudges would be wasted: kube-scheduler is binding it.
    0 run; create_and_refuse 0
    1 select 0 a
    2 remembered -> none; fill a b space=60
    32 nudged -> none
a pod that is refused with a selected node is nudged
    # Its binding failed: the claim keeps the node that was selected before.
    0 run; create 0; select 0 a; refuse 0
    1 remembered -> db-0; fill b space=60
    2 nudged -> db-0
a refused pod is forgotten when another node is selected
    0 run; create 0; select 0 a; refuse 0
    1 remembered -> db-0; select 0 b
    2 remembered -> none
a refused pod is forgotten when its node is selected again
    # The claim had lost it meanwhile.
    0 run; create 0; select 0 a; refuse 0
    1 remembered -> db-0; select 0
    2 remembered -> db-0; select 0 a
    3 remembered -> none
a pod that is bound during its evaluation is not nudged
    # kube-scheduler was faster.
    0 bind_during_the_next_evaluation 0 a; run; create_and_refuse 0; fill a space=60
    1 nudged -> none; remembered -> none
losing the lead forgets everything
    # The next leader nudges the pods.
    0 run; create_and_refuse 0 1
    1 nudger.clear; remembered -> none; fill a space=60
    101 nudged -> none
after a take-over pods whose conditions name a reason of the extender are remembered
    # They may be nudged for any Longhorn node. Other pods are left alone; the bound one takes what is free on its node.
    0 create 0; create 1; create 2; create 3; decline 0; decline 1 lacking=Insufficient_cpu; decline 3 node=a; nudger.adopt
    0 remembered -> db-0; run; fill a b space=60
    1 nudged -> db-0
after a take-over pods with a selected node are not nudged
    # The previous leader's answer led to that node; the condition is older.
    0 create 0; create 1; decline 0; decline 1; select 0 a; nudger.adopt; remembered -> db-1; run; fill a b space=60
    30 nudged_first -> db-1
"""


@pytest.mark.parametrize("timeline", rows(TIMELINES))
def test_refused_pods_are_nudged_or_forgotten(timeline: str) -> None:
    play(World, timeline)


@virtually
async def test_a_refused_pod_that_fits_again_is_nudged_once_and_that_is_logged() -> None:
    world = World()
    with capture_logs() as logs:
        async with world.running():
            world.create_and_refuse(0)
            await asyncio.sleep(5)
            assert world.patches == []
            world.fill("a", space=60)
            await asyncio.sleep(TURN_INTERVAL + 0.1)
            ((name, at, when),) = world.patches
            assert (name, world.results) == ("db-0", ["patched"])
            assert 5 <= when <= 5 + TURN_INTERVAL
            assert datetime.fromisoformat(at) == START + timedelta(seconds=when)
            assert at.endswith("Z")
            await asyncio.sleep(PENDING_NUDGE_LIFETIME - 1)
            assert len(world.patches) == 1
    (line,) = [entry for entry in logs if entry["event"] == "nudged"]
    assert (line["pod"], line["uid"]) == ("default/db-0", "uid-0")
    assert 5 <= line["waited"] <= 5.5


@virtually
async def test_a_pod_that_keeps_being_refused_is_nudged_less_and_less_often() -> None:
    world = World()
    async with world.running():

        def retry(pod: Pod) -> None:
            world.nudger.note_request(pod)
            world.nudger.note_refusal(pod, NODES)

        world.on_patched = retry
        world.create_and_refuse(0)
        world.fill("a", space=60)
        await asyncio.sleep(400)
        times = [at for _, _, at in world.patches]
        waits = [later - at for at, later in pairwise(times)]
        for wait, least in zip(waits, (1, 2, 4, 8, 16, 32, 60, 60, 60), strict=False):
            assert least <= wait <= least + TURN_INTERVAL + 0.01
        assert len(waits) >= 8
        (waiting,) = world.nudger.waiting
        assert waiting.seconds == pytest.approx(400)
        assert waiting.nudges == len(times)


@virtually
async def test_many_pods_are_nudged_at_a_limited_rate() -> None:
    """All fit, because pods that return to their replicas take no space."""
    world = World()
    for number in range(200):
        world.cache.put(
            *make.bound(f"data-{number}", 1),
            make.replica(f"r-{number}", f"vol-data-{number}", "a", size=1),
            database_pod(number),
        )
    world.on_patched = world.nudger.note_request
    async with world.running():
        world.refuse(*range(200))
        await asyncio.sleep(2)
        times = [at for _, _, at in world.patches]
        for at in times:
            assert sum(1 for earlier in times if earlier <= at) <= BURST + NUDGES_PER_SECOND * at
        assert len(world.patches) >= BURST + NUDGES_PER_SECOND
        await asyncio.sleep(5)
        assert sorted(world.nudged) == sorted(f"db-{number}" for number in range(200))


PATH = "/api/v1/namespaces/default/pods"
REFUSED = make.as_pod(database_pod(0))


ANOTHER = database_pod(0, uid="uid-of-another")


@pytest.mark.parametrize(
    ("status", "objects", "outcome"),
    [
        *(pytest.param(status, [], False, id=f"{status}, gone") for status in (404, 409, 422)),
        *(pytest.param(status, [ANOTHER], False, id=f"{status}, another pod") for status in (404, 409, 422)),
        *(pytest.param(status, [database_pod(0)], status, id=f"{status}, exists") for status in (403, 409, 422, 500)),
        pytest.param(409, None, 503, id="409, unknown whether it exists"),
    ],
)
async def test_a_patch_that_fails_is_an_error_unless_the_pod_is_gone(
    status: int, objects: list[Any] | None, outcome: int | bool, tmp_path: Path
) -> None:
    api = FakeApi()
    api.plans["get"] = [failing(status), *([failing(503)] if objects is None else [])]
    api.collections[PATH]
    api.add(PATH, *(objects or ()))
    async with connect_client(api, tmp_path) as client:
        if outcome is False:
            assert not await write_nudge(client, REFUSED, "now")
        else:
            with pytest.raises(ApiError) as failed:
                await write_nudge(client, REFUSED, "now")
            assert failed.value.status == outcome


async def test_the_patch_names_the_pod_by_uid_and_writes_one_annotation(tmp_path: Path) -> None:
    bodies: list[Any] = []

    async def take(request: web.Request) -> web.StreamResponse:
        bodies.append((request.method, request.path, request.headers["Content-Type"], await request.json()))
        return web.json_response({})

    api = FakeApi()
    api.plans["get"] = [take]
    async with connect_client(api, tmp_path) as client:
        assert await write_nudge(client, REFUSED, "now")
    metadata = {"uid": "uid-0", "annotations": {"longhorn.io/scheduler-extender-nudged": "now"}}
    assert bodies == [("PATCH", f"{PATH}/db-0", "application/merge-patch+json", {"metadata": metadata})]


@virtually
async def test_a_failed_patch_is_repeated_after_the_back_off_and_logged_once_per_kind() -> None:
    world = World()
    forbidden = ApiError("PATCH", 403, "Forbidden", "no")
    world.patch_outcomes = [forbidden, forbidden, ApiError("PATCH", 0, "", "no answer"), forbidden]
    with capture_logs() as logs:
        async with world.running():
            world.create_and_refuse(0)
            world.fill("a", space=60)
            await asyncio.sleep(20)
            times = [at for _, _, at in world.patches]
            waits = [later - at for at, later in pairwise(times)]
            assert [round(wait / 2) * 2 for wait in waits[1:4]] == [2, 4, 8]
            assert world.results == ["failed"] * 4 + ["patched"]
    warnings = [entry["problem"] for entry in logs if entry["log_level"] == "warning"]
    assert warnings == ["PATCH: no", "PATCH: no answer"]


@virtually
async def test_a_thousand_different_pods_are_evaluated_in_turns() -> None:
    world = World()
    for number in range(1000):
        world.create(number, 10 + number / 100)
    async with world.running():
        world.refuse(*range(1000))
        for turn in range(1, 11):
            await asyncio.sleep(TURN_INTERVAL + 0.0001)
            assert len(world.evaluator.evaluated) == MAX_DECISIONS * turn
        await asyncio.sleep(TURN_INTERVAL * 5)
        assert sorted(world.evaluator.evaluated) == sorted(f"db-{number}" for number in range(1000))


@virtually
async def test_changes_during_a_round_count_in_the_next_round() -> None:
    world = World()
    for number in range(2 * MAX_DECISIONS):
        world.create(number, 60 + number / 100)
    async with world.running():
        world.refuse(*range(2 * MAX_DECISIONS))
        await asyncio.sleep(TURN_INTERVAL + 0.01)
        first = world.evaluator.evaluated[0]
        assert len(world.evaluator.evaluated) == MAX_DECISIONS
        world.create(999)
        world.fill(
            "a", space=float(make.claim(f"data-{first[3:]}")["spec"]["resources"]["requests"]["storage"]) / make.GI
        )
        await asyncio.sleep(1)
        assert world.patches


@virtually
async def test_a_bounded_number_of_pods_is_remembered_those_refused_first() -> None:
    world = World()
    for number in range(MAX_REMEMBERED + 10):
        world.nudger.note_refusal(Pod("default", f"db-{number}", f"uid-{number}"), list(NODES))
    assert len(world.remembered) == MAX_REMEMBERED
    assert set(world.remembered) == {f"db-{number}" for number in range(MAX_REMEMBERED)}
    world.nudger.note_request(Pod("default", "db-7", "uid-7"))
    world.nudger.note_refusal(Pod("default", "late", "uid-late"), list(NODES))
    assert "late" in world.remembered


@virtually
async def test_equal_candidate_lists_are_stored_once() -> None:
    world = World()
    async with world.running():
        for number in range(3):
            world.create_and_refuse(number, size=60 + number)
        await asyncio.sleep(1)
    assert len(world.evaluator.candidates) == 3
    assert len(set(map(id, world.evaluator.candidates))) == 1


@virtually
async def test_a_refused_pod_is_nudged_requested_and_offered_a_node() -> None:
    world = World()
    world.offers.subscribe(world.nudger)
    world.create(0)
    requests: list[asyncio.Task[Decision]] = []

    def retry(pod: Pod) -> None:
        requests.append(asyncio.create_task(world.filter(0)))

    world.on_patched = retry
    async with world.running():
        await world.filter(0)
        assert world.remembered == ["db-0"]
        world.fill("a", space=60)
        await asyncio.sleep(30)
        assert world.nudged == ["db-0"]
        assert world.remembered == []
        (request,) = requests
        assert [reason.fits for reason in request.result().reasons] == [True, False]
