"""Refused pods are nudged when they fit, in virtual time; tests play kube-scheduler and Longhorn by hand."""

from __future__ import annotations

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

from app.decisions.evaluator import Evaluator, no_contenders
from app.extender.metrics import Metrics
from app.extender.nudger import MAX_DECISIONS, REVIEW_INTERVAL, TURN_INTERVAL, UNSEEN_SECONDS, NudgePatch, Nudger
from app.extender.offers import Offers
from app.extender.refusals import MAX_REMEMBERED, RefusedPods
from app.kube.client import ApiError
from scheduler_core.extender.decision import Contenders, Decision, FilterOptions
from scheduler_core.extender.nudge import BURST, NUDGES_PER_SECOND, PENDING_NUDGE_LIFETIME
from scheduler_core.extender.settings import ExtenderSettings
from scheduler_core.model.kube import Pod
from tests import builders as make
from tests.builders import Object
from tests.worlds.fake_api import FakeApi, connect_client, failing
from tests.worlds.filter_request import caller_waits
from tests.worlds.state_source import FakeStateSource
from tests.worlds.two_nodes import NODES, claim_with_node, database_pod, two_nodes
from tests.worlds.virtual_time import run, virtual_loop, virtually

START = datetime(2026, 1, 1, tzinfo=UTC)


class CountingEvaluator(Evaluator):
    """Records which pods were evaluated.

    Attributes:
        after_filter: called after every evaluation
    """

    def __init__(self, cache: FakeStateSource) -> None:
        super().__init__(cache, FilterOptions(), lambda: 0.0)
        self.evaluated: list[str] = []
        self.after_filter: Callable[[], None] | None = None

    async def filter(
        self, pod: Pod, candidates: Sequence[str], contenders: Callable[[], Contenders] = no_contenders
    ) -> Decision:
        """Records the pod, and evaluates it."""
        self.evaluated.append(pod.name)
        decision = await super().filter(pod, candidates, contenders)
        if self.after_filter is not None:
            self.after_filter()
        return decision


class World:
    """Two full nodes of 100 Gi.

    Attributes:
        results: what the metrics counted
        patches: name of the pod, written time and virtual time of each patch
        patch_outcomes: how the next patches end: an error, or whether the pod still exists; others succeed
        slow_pods: pods whose patches do not end before `patches_may_end` is set
        on_patched: called after every patch that succeeded
        contenders_read: virtual times at which the nudger read the contenders
    """

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
        self.results: list[str] = []
        self.patches: list[tuple[str, str, float]] = []
        self.patch_outcomes: list[ApiError | bool] = []
        self.slow_pods: set[str] = set()
        self.patches_may_end = asyncio.Event()
        self.on_patched: Callable[[Pod], object] | None = None
        self.contenders_read: list[float] = []
        self.nudger = Nudger(
            self.cache,
            self.evaluator,
            self.contenders,
            self.patch,
            self,
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
        """The metric."""
        self.results.append(result)

    @property
    def names(self) -> list[str]:
        """The patched pods, in order."""
        return [name for name, _, _ in self.patches]

    @property
    def remembered_pods(self) -> list[str]:
        """The names of the remembered pods."""
        return [entry.pod.name for entry in self.nudger.waiting]

    def fill(self, *names: str, space: float = 0) -> None:
        """Fills these nodes with other volumes, down to so many Gi."""
        for name in names:
            self.cache.put(make.longhorn_node(name, {"disk-1": make.disk(100, scheduled=100 - space)}))

    def create(self, number: int, size: float = 60) -> None:
        """Creates a pod and its unbound claim."""
        self.cache.put(make.claim(f"data-{number}", size), database_pod(number))

    def refuse(self, *numbers: int) -> None:
        """Reports that /filter has refused the pods."""
        for number in numbers:
            self.nudger.note_refusal(make.as_pod(database_pod(number)), list(NODES))

    def create_and_refuse(self, *numbers: int, size: float = 60) -> None:
        """Creates pods, and reports that /filter has refused them."""
        for number in numbers:
            self.create(number, size)
        self.refuse(*numbers)

    async def filter(self, number: int) -> Decision:
        """Sends /filter for the pod of this number."""
        return await self.offers.filter(make.as_pod(database_pod(number)), NODES, caller_waits)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the nudger, and asserts that it leaves no task behind."""
        before = asyncio.all_tasks()
        task = asyncio.create_task(self.nudger.run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.wait({task})
        self.offers.clear()
        await asyncio.sleep(0)
        assert task.cancelled()
        assert asyncio.all_tasks() <= before


@virtually
async def test_a_refused_pod_that_fits_again_is_nudged_once() -> None:
    """The nudge comes in the next turn, with the time in UTC."""
    world = World()
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


@virtually
async def test_a_nudge_is_logged_with_its_pod_and_its_wait() -> None:
    """Each nudge has one line."""
    world = World()
    with capture_logs() as logs:
        async with world.running():
            world.create_and_refuse(0)
            await asyncio.sleep(5)
            world.fill("a", space=60)
            await asyncio.sleep(1)
    (line,) = [entry for entry in logs if entry["event"] == "nudged"]
    assert (line["pod"], line["uid"]) == ("default/db-0", "uid-0")
    assert 5 <= line["waited"] <= 5.5


@virtually
async def test_only_as_many_pods_are_nudged_as_fit_together_those_refused_first() -> None:
    """There is space for two of three pods."""
    world = World()
    async with world.running():
        world.create_and_refuse(1)
        await asyncio.sleep(0.1)
        world.create_and_refuse(0, 2)
        await asyncio.sleep(1)
        world.fill("a", "b", space=60)
        await asyncio.sleep(PENDING_NUDGE_LIFETIME)
        assert world.names == ["db-1", "db-0"]


@virtually
async def test_pending_nudges_of_one_node_add_up() -> None:
    """Only as many pods are nudged as the node has space for."""
    world = World()
    async with world.running():
        world.create_and_refuse(0, 1, 2, 3, size=40)
        await asyncio.sleep(1)
        world.fill("a", space=90)
        await asyncio.sleep(PENDING_NUDGE_LIFETIME)
        assert world.names == ["db-0", "db-1"]


@virtually
async def test_without_reservations_too_only_as_many_pods_are_nudged_as_fit_together() -> None:
    """kube-scheduler must not be flooded."""
    world = World(reservation_timeout=0)
    async with world.running():
        world.create_and_refuse(0, 1, 2)
        await asyncio.sleep(2)
        assert len(world.evaluator.evaluated) == 1
        world.fill("a", "b", space=60)
        await asyncio.sleep(PENDING_NUDGE_LIFETIME)
        assert world.names == ["db-0", "db-1"]


@virtually
async def test_a_nudged_pod_is_left_alone_until_kube_scheduler_should_have_retried_it() -> None:
    """Changes do not matter meanwhile."""
    world = World()
    async with world.running():
        world.create_and_refuse(0)
        world.fill("a", space=60)
        for step in range(10):
            await asyncio.sleep(PENDING_NUDGE_LIFETIME / 10)
            world.fill("b", space=step)
        assert world.names == ["db-0"]


@virtually
async def test_a_nudge_without_a_request_gives_way_to_other_pods() -> None:
    """The first pod may lack CPU, so it is not requested; its back-off grows."""
    world = World()
    async with world.running():
        world.create_and_refuse(0, 1)
        await asyncio.sleep(1)
        world.fill("a", space=60)
        await asyncio.sleep(5 * PENDING_NUDGE_LIFETIME)
        assert world.names[0] == "db-0"
        assert "db-1" in world.names


@virtually
async def test_offered_space_is_not_free() -> None:
    """The third pod is nudged once a pod with an offer is deleted."""
    world = World()
    world.fill("a", "b", space=60)
    for number in (0, 1, 2):
        world.create(number)
    for number in (0, 1):
        await world.filter(number)
    async with world.running():
        world.refuse(2)
        await asyncio.sleep(3)
        assert world.patches == []
        world.cache.remove(database_pod(0))
        await asyncio.sleep(1)
        assert world.names == ["db-2"]


@virtually
async def test_a_pending_nudge_does_not_compete_with_requests() -> None:
    """The ledger of offers never has it."""
    world = World()
    async with world.running():
        world.create_and_refuse(0)
        world.create(1)
        world.fill("a", space=60)
        await asyncio.sleep(1)
        assert world.names == ["db-0"]
        assert world.offers.ledger.outstanding == 0
        decision = await world.filter(1)
        assert [reason.fits for reason in decision.reasons] == [True, False]


@virtually
async def test_without_changes_pods_are_only_reviewed_periodically() -> None:
    """Some space becomes free by time alone."""
    world = World()
    async with world.running():
        world.create_and_refuse(0)
        await asyncio.sleep(REVIEW_INTERVAL - 1)
        assert world.evaluator.evaluated == ["db-0"]
        await asyncio.sleep(REVIEW_INTERVAL)
        assert world.evaluator.evaluated == ["db-0", "db-0"]
        assert world.patches == []


@virtually
async def test_without_remembered_pods_the_nudger_is_idle() -> None:
    """It does not read the contenders."""
    world = World()
    async with world.running():
        await asyncio.sleep(1000)
        assert world.contenders_read == []
        world.create_and_refuse(0)
        await asyncio.sleep(1)
        assert world.contenders_read
        world.nudger.note_request(make.as_pod(database_pod(0)))
        await asyncio.sleep(1)
        world.contenders_read.clear()
        world.fill("a", space=60)
        await asyncio.sleep(1000)
        assert world.contenders_read == []


@virtually
async def test_the_wait_of_the_pod_that_was_refused_first_is_known() -> None:
    """A later refusal changes nothing; without pods it is 0."""
    world = World()
    assert world.nudger.oldest_wait == 0
    world.create_and_refuse(0)
    await asyncio.sleep(30)
    world.create_and_refuse(1)
    await asyncio.sleep(10)
    assert world.nudger.oldest_wait == 40
    world.nudger.note_request(make.as_pod(database_pod(0)))
    assert world.nudger.oldest_wait == 10


@virtually
async def test_a_requested_pod_is_forgotten() -> None:
    """It gets an answer, not a nudge."""
    world = World()
    async with world.running():
        world.create_and_refuse(0)
        world.nudger.note_request(make.as_pod(database_pod(0)))
        assert world.remembered_pods == []
        world.fill("a", space=60)
        await asyncio.sleep(100)
        assert world.patches == []


@virtually
async def test_a_requested_pod_ends_its_pending_nudge() -> None:
    """Its offer counts instead, if it has one, and the next pod has its turn."""
    world = World()
    async with world.running():
        world.create_and_refuse(0, 1)
        world.on_patched = world.nudger.note_request
        world.fill("a", space=60)
        await asyncio.sleep(2 * TURN_INTERVAL + 0.1)
        assert world.names == ["db-0", "db-1"]


@virtually
async def test_a_pod_that_keeps_being_refused_is_nudged_less_and_less_often() -> None:
    """The back-off doubles from one second to a minute."""
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
        assert sorted(world.names) == sorted(f"db-{number}" for number in range(200))


POD_ENDS: dict[str, Callable[[World], None]] = {
    "deleted": lambda world: world.cache.remove(database_pod(0)),
    "bound": lambda world: world.cache.put(database_pod(0, "a")),
    "finished": lambda world: world.cache.put(database_pod(0, phase="Failed")),
    "being deleted": lambda world: world.cache.put(database_pod(0, deleting=True)),
    "another of its name": lambda world: world.cache.put(database_pod(0, uid="uid-of-another")),
}


@pytest.mark.parametrize("how", POD_ENDS)
def test_a_pod_that_needs_no_node_any_more_is_forgotten(how: str) -> None:
    """Free space does not matter."""

    async def scenario() -> None:
        world = World()
        async with world.running():
            world.create_and_refuse(0)
            await asyncio.sleep(1)
            assert world.remembered_pods == ["db-0"]
            POD_ENDS[how](world)
            world.fill("a", space=60)
            await asyncio.sleep(1)
            assert world.remembered_pods == []
            assert world.patches == []

    run(scenario())


PATH = "/api/v1/namespaces/default/pods"
REFUSED = make.as_pod(database_pod(0))


def api_that_refuses(status: int) -> FakeApi:
    """An API server that refuses a patch with this status and serves pods."""
    api = FakeApi()
    api.collections[PATH]
    api.plans["get"] = [failing(status)]
    return api


@pytest.mark.parametrize("status", [404, 409, 422])
async def test_a_patch_finds_that_the_pod_is_gone(status: int, tmp_path: Path) -> None:
    """The name is free, or a new pod has it."""
    for objects in ([], [database_pod(0, uid="uid-of-another")]):
        api = api_that_refuses(status)
        api.add(PATH, *objects)
        async with connect_client(api, tmp_path) as client:
            assert not await NudgePatch(client)(REFUSED, "now")


@pytest.mark.parametrize("status", [403, 409, 422, 500])
async def test_a_patch_that_fails_while_the_pod_exists_is_an_error(status: int, tmp_path: Path) -> None:
    """A webhook, other writers or the server may cause it."""
    api = api_that_refuses(status)
    api.add(PATH, database_pod(0))
    async with connect_client(api, tmp_path) as client:
        with pytest.raises(ApiError) as failed:
            await NudgePatch(client)(REFUSED, "now")
        assert failed.value.status == status


async def test_a_patch_is_an_error_if_it_is_unknown_whether_the_pod_exists(tmp_path: Path) -> None:
    """The error is that of the GET."""
    api = api_that_refuses(409)
    api.plans["get"].append(failing(503))
    async with connect_client(api, tmp_path) as client:
        with pytest.raises(ApiError) as failed:
            await NudgePatch(client)(REFUSED, "now")
        assert failed.value.status == 503


async def test_the_patch_names_the_pod_by_uid_and_writes_one_annotation(tmp_path: Path) -> None:
    """A merge patch leaves everything else unchanged."""
    bodies: list[Any] = []

    async def take(request: web.Request) -> web.StreamResponse:
        bodies.append((request.method, request.path, request.headers["Content-Type"], await request.json()))
        return web.json_response({})

    api = FakeApi()
    api.plans["get"] = [take]
    async with connect_client(api, tmp_path) as client:
        assert await NudgePatch(client)(REFUSED, "now")
    metadata = {"uid": "uid-0", "annotations": {"longhorn.io/scheduler-extender-nudged": "now"}}
    assert bodies == [("PATCH", f"{PATH}/db-0", "application/merge-patch+json", {"metadata": metadata})]


@virtually
async def test_a_pod_that_no_watch_has_delivered_yet_is_not_gone() -> None:
    """The cache may still have an earlier pod of the name."""
    world = World()
    world.cache.put(make.claim("data-0", 60), database_pod(0, uid="uid-of-its-predecessor"))
    async with world.running():
        world.refuse(0)
        await asyncio.sleep(1)
        assert world.remembered_pods == ["db-0"]
        world.fill("a", space=60)
        await asyncio.sleep(1)
        assert world.names == ["db-0"]


@virtually
async def test_a_pod_that_no_watch_ever_delivers_is_forgotten() -> None:
    """It was deleted before the watch delivered it."""
    world = World()
    world.cache.put(make.claim("data-0", 60))
    async with world.running():
        world.refuse(0)
        await asyncio.sleep(UNSEEN_SECONDS + REVIEW_INTERVAL + 1)
        assert world.remembered_pods == []


@virtually
async def test_a_pod_that_is_gone_when_it_is_patched_is_forgotten() -> None:
    """It counts as gone, and the next pod has its turn."""
    world = World()
    world.patch_outcomes = [False]
    async with world.running():
        world.create_and_refuse(0, 1)
        world.fill("a", space=60)
        await asyncio.sleep(1)
        assert world.names == ["db-0", "db-1"]
        assert world.results == ["gone", "patched"]
        assert world.remembered_pods == ["db-1"]


@virtually
async def test_a_failed_patch_is_repeated_after_the_back_off_and_logged_once_per_kind() -> None:
    """Neither a refusal nor a time-out ends the loop."""
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
async def test_a_slow_patch_does_not_hold_up_other_nudges() -> None:
    """Patches do not wait for each other."""
    world = World()
    world.slow_pods = {"db-0"}
    async with world.running():
        world.create_and_refuse(0, 1)
        world.fill("a", "b", space=60)
        await asyncio.sleep(1)
        assert world.names == ["db-1"]


def unschedulable_pod(number: int, message: str) -> Object:
    """The pod db-<number>, whose condition has kube-scheduler's message about its last attempt."""
    raw = database_pod(number)
    raw["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]
    return raw


@virtually
async def test_after_a_take_over_pods_whose_conditions_name_a_reason_of_the_extender_are_remembered() -> None:
    """They may be nudged for any Longhorn node. Other pods are left alone."""
    world = World()
    for number in range(4):
        world.create(number, 60)
    refused = "0/2 nodes are available: 2 insufficient Longhorn storage. preemption: 0/2 nodes are available"
    world.cache.put(unschedulable_pod(0, refused), unschedulable_pod(1, "0/2 nodes are available: 2 Insufficient cpu."))
    bound = unschedulable_pod(3, refused)
    bound["spec"]["nodeName"] = "a"
    world.cache.put(bound)
    world.nudger.adopt()
    assert world.remembered_pods == ["db-0"]
    async with world.running():
        # The bound pod takes what is free on its node.
        world.fill("a", "b", space=60)
        await asyncio.sleep(1)
        assert world.names == ["db-0"]


@virtually
async def test_after_a_take_over_pods_with_a_selected_node_are_not_nudged() -> None:
    """The previous leader's answer led to that node; the condition is older."""
    world = World()
    world.create(0)
    world.create(1)
    refused = "0/2 nodes are available: 2 insufficient Longhorn storage. preemption: 0/2 nodes are available"
    world.cache.put(unschedulable_pod(0, refused), unschedulable_pod(1, refused), claim_with_node(0, "a", 60))
    world.nudger.adopt()
    assert world.remembered_pods == ["db-1"]
    async with world.running():
        world.fill("a", "b", space=60)
        await asyncio.sleep(30)
        assert set(world.names) == {"db-1"}


@virtually
async def test_a_pod_whose_node_is_selected_after_its_refusal_is_forgotten() -> None:
    """Its nudges would be wasted: kube-scheduler is binding it."""
    world = World()
    async with world.running():
        world.create_and_refuse(0)
        await asyncio.sleep(1)
        world.cache.put(claim_with_node(0, "a", 60))
        await asyncio.sleep(1)
        assert world.remembered_pods == []
        world.fill("a", "b", space=60)
        await asyncio.sleep(30)
        assert world.patches == []


@virtually
async def test_a_pod_that_is_refused_with_a_selected_node_is_nudged() -> None:
    """Its binding failed: the claim keeps the node that was selected before."""
    world = World()
    async with world.running():
        world.create(0)
        world.cache.put(claim_with_node(0, "a", 60))
        world.refuse(0)
        await asyncio.sleep(1)
        assert world.remembered_pods == ["db-0"]
        world.fill("b", space=60)
        await asyncio.sleep(1)
        assert world.names == ["db-0"]


@virtually
async def test_a_refused_pod_is_forgotten_when_its_selected_node_changes() -> None:
    """Another node was selected, or the same one again after the claim had lost it."""
    world = World()
    async with world.running():
        for number, later_nodes in enumerate((("b",), ("", "a"))):
            world.create(number)
            world.cache.put(claim_with_node(number, "a", 60))
            world.refuse(number)
            for node in later_nodes:
                await asyncio.sleep(1)
                assert world.remembered_pods == [f"db-{number}"]
                world.cache.put(claim_with_node(number, node, 60))
            await asyncio.sleep(1)
            assert world.remembered_pods == []


@virtually
async def test_losing_the_lead_forgets_everything() -> None:
    """The next leader nudges the pods."""
    world = World()
    async with world.running():
        world.create_and_refuse(0, 1)
        await asyncio.sleep(1)
        world.nudger.clear()
        assert world.remembered_pods == []
        world.fill("a", space=60)
        await asyncio.sleep(100)
        assert world.patches == []


@virtually
async def test_a_pod_that_is_bound_during_its_evaluation_is_not_nudged() -> None:
    """kube-scheduler was faster."""
    world = World()

    world.evaluator.after_filter = lambda: world.cache.put(database_pod(0, "a"))
    async with world.running():
        world.create_and_refuse(0)
        world.fill("a", space=60)
        await asyncio.sleep(1)
        assert world.patches == []
        assert world.remembered_pods == []


@virtually
async def test_objects_that_a_refused_pod_names_and_the_state_lacks_are_not_fetched() -> None:
    """A watch will deliver them; a GET per review would be a flood."""
    world = World()
    async with world.running():
        world.create_and_refuse(0, 1)
        world.cache.remove(make.claim("data-0", 60))
        world.cache.put(make.claim("data-1", 60, storage_class="later"))
        world.fill("a", "b", space=60)
        await asyncio.sleep(10)
        assert (world.patches, world.cache.fetched) == ([], [])
        world.cache.put(make.claim("data-0", 60), make.storage_class("later"))
        await asyncio.sleep(1)
        assert sorted(world.names) == ["db-0", "db-1"]


@virtually
async def test_of_a_thousand_equivalent_pods_one_is_evaluated_while_it_does_not_fit() -> None:
    """When some fit, only as many are evaluated."""
    world = World()
    async with world.running():
        world.create_and_refuse(*range(1000))
        await asyncio.sleep(1)
        assert len(world.evaluator.evaluated) == 1
        world.fill("a", space=10)
        await asyncio.sleep(1)
        assert len(world.evaluator.evaluated) == 2
        world.fill("a", space=60)
        await asyncio.sleep(1)
        assert len(world.evaluator.evaluated) == 4
        assert len(world.patches) == 1


@virtually
async def test_a_thousand_different_pods_are_evaluated_in_turns() -> None:
    """Each pod is evaluated once after one change."""
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
    """The first pods of a long round were evaluated before the change."""
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
    """A requested pod frees its place for another pod."""
    world = World()
    for number in range(MAX_REMEMBERED + 10):
        world.nudger.note_refusal(Pod("default", f"db-{number}", f"uid-{number}"), list(NODES))
    assert len(world.remembered_pods) == MAX_REMEMBERED
    assert set(world.remembered_pods) == {f"db-{number}" for number in range(MAX_REMEMBERED)}
    world.nudger.note_request(Pod("default", "db-7", "uid-7"))
    world.nudger.note_refusal(Pod("default", "late", "uid-late"), list(NODES))
    assert "late" in world.remembered_pods


def test_equal_candidate_lists_are_stored_once() -> None:
    """A refused pod has as many candidates as the cluster has nodes."""
    refused_pods = RefusedPods()
    for number in range(MAX_REMEMBERED):
        refused_pods.remember(Pod("default", f"db-{number}", f"uid-{number}"), list(NODES), 0.0)
    assert len(refused_pods) == MAX_REMEMBERED
    assert len({id(refusal.candidates) for refusal in refused_pods.oldest_first()}) == 1


@virtually
async def test_a_pod_is_nudged_only_for_the_nodes_it_was_refused_on() -> None:
    """kube-scheduler itself has excluded the other nodes."""
    world = World()
    async with world.running():
        world.create(0)
        world.nudger.note_refusal(make.as_pod(database_pod(0)), ["b"])
        world.fill("a", space=60)
        await asyncio.sleep(2)
        assert world.patches == []
        world.fill("b", space=60)
        await asyncio.sleep(1)
        assert world.names == ["db-0"]


@virtually
async def test_a_refused_pod_is_nudged_requested_and_offered_a_node() -> None:
    """After the offer nothing more happens."""
    world = World()
    world.offers.subscribe(world.nudger)
    world.create(0)
    requests: list[asyncio.Task[Decision]] = []

    def retry(pod: Pod) -> None:
        requests.append(asyncio.create_task(world.filter(0)))

    world.on_patched = retry
    async with world.running():
        await world.filter(0)
        assert world.remembered_pods == ["db-0"]
        world.fill("a", space=60)
        await asyncio.sleep(30)
        assert world.names == ["db-0"]
        assert world.remembered_pods == []
        (request,) = requests
        assert [reason.fits for reason in request.result().reasons] == [True, False]
