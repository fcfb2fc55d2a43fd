"""Refused pods are nudged when they fit, in virtual time; kube-scheduler and Longhorn are played by hand."""

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

from app.decisions.evaluator import Scheduling
from app.extender.metrics import Metrics
from app.extender.nudge_patch import PodNudge
from app.extender.nudger import LOOK_SECONDS, MOST_DECISIONS, MOST_REMEMBERED, REVIEW_SECONDS, UNSEEN_SECONDS, Nudger
from app.extender.offers import Offers
from app.kube.client import ApiError
from scheduler_core.cluster.view import View
from scheduler_core.demand.index import Demands
from scheduler_core.extender.filter import Decision, Options, Others
from scheduler_core.extender.nudge import BURST, PER_SECOND, PROMISE_LIFE
from scheduler_core.extender.settings import ExtenderSettings
from scheduler_core.model.kube import Pod
from tests import builders as make
from tests.app.extender.test_node_reservation import NODES, cluster, db, here, virtually
from tests.builders import Object
from tests.worlds.fake_api import FakeApi, connected, failing
from tests.worlds.state_source import FakeCache
from tests.worlds.virtual_time import VirtualLoop

START = datetime(2026, 1, 1, tzinfo=UTC)


class Cache(FakeCache):
    """Derives demands once per view, as the real one does."""

    _known: tuple[View, Demands] | None = None

    def demands(self) -> Demands:
        """The same as long as nothing changes."""
        view = self.memory().view
        if self._known is None or self._known[0] is not view:
            self._known = view, super().demands()
        return self._known[1]


class Counting(Scheduling):
    """Remembers which pods were decided about."""

    def __init__(self, cache: FakeCache) -> None:
        super().__init__(cache, Options(), lambda: 0.0)
        self.decided: list[str] = []

    async def filter(self, pod: Pod, candidates: Sequence[str], others: Callable[[], Others] = Others) -> Decision:
        """As it is, counted."""
        self.decided.append(pod.name)
        return await super().filter(pod, candidates, others)


class World:
    """Two full nodes of 100Gi."""

    def __init__(self, *, reservation: int = 5) -> None:
        self.settings = ExtenderSettings(enabled=True, pod_scheduling_timeout=0, node_reservation_timeout=reservation)
        self.cache = Cache(cluster())
        self.fill("a", "b")
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.scheduling = Counting(self.cache)
        self.offers = Offers(
            self.cache, Counting(self.cache), lambda: self.settings, Metrics(), loop.time
        )  # whose decisions are not counted
        self.results: list[str] = []
        self.patches: list[tuple[str, str, float]] = []
        self.trouble: list[ApiError | bool] = []
        self.asking: Callable[[Pod], object] | None = None
        self.nudger = Nudger(
            self.cache,
            self.scheduling,
            self.offers.others,
            self.patch,
            self,
            clock=loop.time,
            now=lambda: START + timedelta(seconds=loop.time()),
        )

    async def patch(self, pod: Pod, at: str) -> bool:
        """The API server, which has trouble as long as some is left."""
        self.patches.append((pod.name, at, self.loop.time()))
        await asyncio.sleep(0.01)
        answer = self.trouble.pop(0) if self.trouble else True
        if isinstance(answer, ApiError):
            raise answer
        if answer and self.asking:
            self.asking(pod)
        return answer

    def nudged(self, result: str) -> None:
        """The metric."""
        self.results.append(result)

    @property
    def names(self) -> list[str]:
        """The pods patched, in order."""
        return [name for name, _, _ in self.patches]

    @property
    def remembered(self) -> list[str]:
        """The names of the pods that are remembered."""
        return [entry.pod.name for entry in self.nudger.waiting]

    def fill(self, *names: str, room: float = 0) -> None:
        """Other volumes leave so many Gi on each of these nodes."""
        for name in names:
            self.cache.put(make.longhorn_node(name, {"disk-1": make.disk(100, scheduled=100 - room)}))

    def create(self, number: int, size: float = 60) -> None:
        """A pod and its unbound claim."""
        self.cache.put(make.claim(f"data-{number}", size), db(number))

    def refuse(self, *numbers: int) -> None:
        """/filter has refused the pods."""
        for number in numbers:
            self.nudger.refused(make.as_pod(db(number)), list(NODES))

    def refused(self, *numbers: int, size: float = 60) -> None:
        """Pods that were refused."""
        for number in numbers:
            self.create(number, size)
        self.refuse(*numbers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While the nudger runs; afterwards it has left nothing behind."""
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
    """At the next look, with the time in UTC."""
    world = World()
    async with world.running():
        world.refused(0)
        await asyncio.sleep(5)
        assert world.patches == []
        world.fill("a", room=60)
        await asyncio.sleep(LOOK_SECONDS + 0.1)
        ((name, at, when),) = world.patches
        assert (name, world.results) == ("db-0", ["patched"])
        assert 5 <= when <= 5 + LOOK_SECONDS
        assert datetime.fromisoformat(at) == START + timedelta(seconds=when)
        assert at.endswith("Z")
        await asyncio.sleep(PROMISE_LIFE - 1)
        assert len(world.patches) == 1


@virtually
async def test_the_log_says_who_was_nudged_and_how_long_it_had_waited() -> None:
    """One line per nudge."""
    world = World()
    with capture_logs() as logs:
        async with world.running():
            world.refused(0)
            await asyncio.sleep(5)
            world.fill("a", room=60)
            await asyncio.sleep(1)
    (line,) = [entry for entry in logs if entry["event"] == "nudged"]
    assert (line["pod"], line["uid"]) == ("default/db-0", "uid-0")
    assert 5 <= line["waited"] <= 5.5


@virtually
async def test_only_as_many_are_nudged_as_fit_together_those_refused_first() -> None:
    """Room for two of three."""
    world = World()
    async with world.running():
        world.refused(1)
        await asyncio.sleep(0.1)
        world.refused(0, 2)
        await asyncio.sleep(1)
        world.fill("a", "b", room=60)
        await asyncio.sleep(PROMISE_LIFE)
        assert world.names == ["db-1", "db-0"]


@virtually
async def test_as_many_fit_together_on_one_node_as_there_is_room_for() -> None:
    """Promises on one node add up."""
    world = World()
    async with world.running():
        world.refused(0, 1, 2, 3, size=40)
        await asyncio.sleep(1)
        world.fill("a", room=90)
        await asyncio.sleep(PROMISE_LIFE)
        assert world.names == ["db-0", "db-1"]


@virtually
async def test_where_pods_are_judged_alone_still_no_more_are_nudged_than_fit_together() -> None:
    """Reservations are switched off; kube-scheduler must not be flooded."""
    world = World(reservation=0)
    async with world.running():
        world.refused(0, 1, 2)
        await asyncio.sleep(2)
        assert len(world.scheduling.decided) == 1
        world.fill("a", "b", room=60)
        await asyncio.sleep(PROMISE_LIFE)
        assert world.names == ["db-0", "db-1"]


@virtually
async def test_a_nudged_pod_is_left_alone_until_kube_scheduler_should_have_asked() -> None:
    """However much changes meanwhile."""
    world = World()
    async with world.running():
        world.refused(0)
        world.fill("a", room=60)
        for step in range(10):
            await asyncio.sleep(PROMISE_LIFE / 10)
            world.fill("b", room=step)
        assert world.names == ["db-0"]


@virtually
async def test_a_promise_that_nobody_asks_for_gives_way_to_others() -> None:
    """The first pod fits no node's CPU, say, so the extender is not asked; its pace slows down and lets the second have its turn."""
    world = World()
    async with world.running():
        world.refused(0, 1)
        await asyncio.sleep(1)
        world.fill("a", room=60)
        await asyncio.sleep(5 * PROMISE_LIFE)
        assert world.names[0] == "db-0"
        assert "db-1" in world.names


@virtually
async def test_what_is_offered_to_others_is_not_free() -> None:
    """The second pod is nudged when the first one has gone elsewhere."""
    world = World()
    world.fill("a", "b", room=60)
    for number in (0, 1, 2):
        world.create(number)
    for number in (0, 1):
        await world.offers.filter(make.as_pod(db(number)), NODES, here)
    async with world.running():
        world.refuse(2)
        await asyncio.sleep(3)
        assert world.patches == []
        world.cache.remove(db(0))
        await asyncio.sleep(1)
        assert world.names == ["db-2"]


@virtually
async def test_a_promise_stands_in_nobody_s_way_who_is_asked_about() -> None:
    """The real ledger never sees it."""
    world = World()
    async with world.running():
        world.refused(0)
        world.create(1)
        world.fill("a", room=60)
        await asyncio.sleep(1)
        assert world.names == ["db-0"]
        assert world.offers.ledger.outstanding == 0
        decision = await world.offers.filter(make.as_pod(db(1)), NODES, here)
        assert [reason.fits for reason in decision.reasons] == [True, False]


@virtually
async def test_while_nothing_changes_nothing_is_decided_but_a_review_now_and_then() -> None:
    """Some room becomes free by time alone."""
    world = World()
    async with world.running():
        world.refused(0)
        await asyncio.sleep(REVIEW_SECONDS - 1)
        assert world.scheduling.decided == ["db-0"]
        await asyncio.sleep(REVIEW_SECONDS)
        assert world.scheduling.decided == ["db-0", "db-0"]
        assert world.patches == []


@virtually
async def test_while_nothing_is_remembered_nobody_looks() -> None:
    """No question is put to the cache."""
    world = World()
    asked: list[float] = []

    def others() -> Others:
        asked.append(world.loop.time())
        return world.offers.others()

    world.nudger._others = others
    async with world.running():
        await asyncio.sleep(1000)
        assert asked == []
        world.refused(0)
        await asyncio.sleep(1)
        assert asked
        world.nudger.asked(make.as_pod(db(0)))
        await asyncio.sleep(1)
        asked.clear()
        world.fill("a", room=60)
        await asyncio.sleep(1000)
        assert asked == []


@virtually
async def test_a_pod_that_is_asked_about_is_forgotten() -> None:
    """It gets an answer, not a nudge."""
    world = World()
    async with world.running():
        world.refused(0)
        world.nudger.asked(make.as_pod(db(0)))
        assert world.remembered == []
        world.fill("a", room=60)
        await asyncio.sleep(100)
        assert world.patches == []


@virtually
async def test_a_pod_that_is_asked_about_leaves_its_promise_to_the_next() -> None:
    """What it takes is an offer from then on, or nothing."""
    world = World()
    async with world.running():
        world.refused(0, 1)
        world.asking = world.nudger.asked
        world.fill("a", room=60)
        await asyncio.sleep(2 * LOOK_SECONDS + 0.1)
        assert world.names == ["db-0", "db-1"]


@virtually
async def test_a_pod_that_keeps_being_refused_is_nudged_more_and_more_seldom() -> None:
    """1 s after the first nudge, then 2 s, up to a minute."""
    world = World()
    async with world.running():

        def ask(pod: Pod) -> None:
            world.nudger.asked(pod)
            world.nudger.refused(pod, NODES)

        world.asking = ask
        world.refused(0)
        world.fill("a", room=60)
        await asyncio.sleep(400)
        times = [at for _, _, at in world.patches]
        waits = [later - at for at, later in pairwise(times)]
        for wait, least in zip(waits, (1, 2, 4, 8, 16, 32, 60, 60, 60), strict=False):
            assert least <= wait <= least + LOOK_SECONDS + 0.01
        assert len(waits) >= 8
        (waiting,) = world.nudger.waiting
        assert waiting.seconds == pytest.approx(400)
        assert waiting.nudged == len(times)


@virtually
async def test_many_pods_are_nudged_at_a_limited_rate() -> None:
    """Pods that return to their replicas take no room, so that all fit."""
    world = World()
    for number in range(200):
        world.cache.put(
            *make.bound(f"data-{number}", 1), make.replica(f"r-{number}", f"vol-data-{number}", "a", size=1), db(number)
        )
    world.asking = world.nudger.asked
    async with world.running():
        world.refuse(*range(200))
        await asyncio.sleep(2)
        for _, _, at in world.patches:
            assert sum(1 for _, _, other in world.patches if other <= at) <= BURST + PER_SECOND * at
        assert len(world.patches) >= BURST + PER_SECOND
        await asyncio.sleep(5)
        assert sorted(world.names) == sorted(f"db-{number}" for number in range(200))


ENDS: dict[str, Callable[[World], None]] = {
    "deleted": lambda world: world.cache.remove(db(0)),
    "bound": lambda world: world.cache.put(db(0, "a")),
    "finished": lambda world: world.cache.put(db(0, phase="Failed")),
    "being deleted": lambda world: world.cache.put(db(0, deleting=True)),
    "another of its name": lambda world: world.cache.put(db(0, uid="uid-of-another")),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_pod_that_needs_no_node_any_more_is_forgotten(how: str) -> None:
    """Whatever the room."""

    async def scenario() -> None:
        world = World()
        async with world.running():
            world.refused(0)
            await asyncio.sleep(1)
            assert world.remembered == ["db-0"]
            ENDS[how](world)
            world.fill("a", room=60)
            await asyncio.sleep(1)
            assert world.remembered == []
            assert world.patches == []

    virtually(scenario)()


PATH = "/api/v1/namespaces/default/pods"
REFUSED = make.as_pod(db(0))


def answering(status: int) -> FakeApi:
    """An API server that refuses a patch with this status and knows what pods there are."""
    api = FakeApi()
    api.collections[PATH]
    api.plans["get"] = [failing(status)]
    return api


@pytest.mark.parametrize("status", [404, 409, 422])
async def test_a_patch_finds_that_the_pod_is_gone(status: int, tmp_path: Path) -> None:
    """There is none of its name, or another one."""
    for objects in ([], [db(0, uid="uid-of-another")]):
        api = answering(status)
        api.add(PATH, *objects)
        async with connected(api, tmp_path) as client:
            assert not await PodNudge(client)(REFUSED, "now")


@pytest.mark.parametrize("status", [403, 409, 422, 500])
async def test_a_patch_that_fails_while_the_pod_is_there_is_a_failure(status: int, tmp_path: Path) -> None:
    """An admission webhook, others who keep changing it, a server in trouble."""
    api = answering(status)
    api.add(PATH, db(0))
    async with connected(api, tmp_path) as client:
        with pytest.raises(ApiError) as failed:
            await PodNudge(client)(REFUSED, "now")
        assert failed.value.status == status


async def test_whether_a_pod_is_gone_may_be_unknown(tmp_path: Path) -> None:
    """Then that is the failure."""
    api = answering(409)
    api.plans["get"].append(failing(503))
    async with connected(api, tmp_path) as client:
        with pytest.raises(ApiError) as failed:
            await PodNudge(client)(REFUSED, "now")
        assert failed.value.status == 503


async def test_the_patch_names_the_pod_by_uid_and_writes_one_annotation(tmp_path: Path) -> None:
    """As a merge patch, which leaves everything else as it is."""
    bodies: list[Any] = []

    async def take(request: web.Request) -> web.StreamResponse:
        bodies.append((request.method, request.path, request.headers["Content-Type"], await request.json()))
        return web.json_response({})

    api = FakeApi()
    api.plans["get"] = [take]
    async with connected(api, tmp_path) as client:
        assert await PodNudge(client)(REFUSED, "now")
    metadata = {"uid": "uid-0", "annotations": {"longhorn.io/scheduler-extender-nudged": "now"}}
    assert bodies == [("PATCH", f"{PATH}/db-0", "application/merge-patch+json", {"metadata": metadata})]


@virtually
async def test_a_pod_that_no_watch_has_brought_yet_is_not_gone() -> None:
    """kube-scheduler heard of it first; its predecessor may still be there."""
    world = World()
    world.cache.put(make.claim("data-0", 60), db(0, uid="uid-of-its-predecessor"))
    async with world.running():
        world.refuse(0)
        await asyncio.sleep(1)
        assert world.remembered == ["db-0"]
        world.fill("a", room=60)
        await asyncio.sleep(1)
        assert world.names == ["db-0"]


@virtually
async def test_a_pod_that_no_watch_ever_brings_is_forgotten() -> None:
    """It was deleted before it was seen."""
    world = World()
    world.cache.put(make.claim("data-0", 60))
    async with world.running():
        world.refuse(0)
        await asyncio.sleep(UNSEEN_SECONDS + REVIEW_SECONDS + 1)
        assert world.remembered == []


@virtually
async def test_a_pod_that_is_gone_when_it_is_patched_is_forgotten() -> None:
    """Counted as such; what it was promised is free for the next."""
    world = World()
    world.trouble = [False]
    async with world.running():
        world.refused(0, 1)
        world.fill("a", room=60)
        await asyncio.sleep(1)
        assert world.names == ["db-0", "db-1"]
        assert world.results == ["gone", "patched"]
        assert world.remembered == ["db-1"]


@virtually
async def test_a_failed_patch_is_tried_again_at_the_pod_s_pace_and_told_once_per_kind() -> None:
    """Neither a refusal nor silence ends the loop."""
    world = World()
    forbidden = ApiError("PATCH", 403, "Forbidden", "no")
    world.trouble = [forbidden, forbidden, ApiError("PATCH", 0, "", "no answer"), forbidden]
    with capture_logs() as logs:
        async with world.running():
            world.refused(0)
            world.fill("a", room=60)
            await asyncio.sleep(20)
            times = [at for _, _, at in world.patches]
            waits = [later - at for at, later in pairwise(times)]
            assert [round(wait / 2) * 2 for wait in waits[1:4]] == [2, 4, 8]
            assert world.results == ["failed"] * 4 + ["patched"]
    warnings = [entry["problem"] for entry in logs if entry["log_level"] == "warning"]
    assert warnings == ["PATCH: no", "PATCH: no answer"]


@virtually
async def test_a_slow_api_server_holds_up_nobody_else_s_nudge() -> None:
    """Patches do not wait for each other."""
    world = World()
    hang = asyncio.Event()
    sent = world.patch

    async def patch(pod: Pod, at: str) -> bool:
        if pod.name == "db-0":
            await hang.wait()
        return await sent(pod, at)

    world.nudger._patch = patch
    async with world.running():
        world.refused(0, 1)
        world.fill("a", "b", room=60)
        await asyncio.sleep(1)
        assert world.names == ["db-1"]


def told(number: int, message: str) -> Object:
    """A pod of whose last attempt kube-scheduler wrote this."""
    raw = db(number)
    raw["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]
    return raw


@virtually
async def test_after_a_take_over_pods_whose_conditions_name_a_reason_of_the_extender_are_remembered() -> None:
    """Any Longhorn node may take them; pods with other troubles, or without any, are left alone."""
    world = World()
    for number in range(4):
        world.create(number, 60)
    refused = "0/2 nodes are available: 2 insufficient Longhorn storage. preemption: 0/2 nodes are available"
    world.cache.put(told(0, refused), told(1, "0/2 nodes are available: 2 Insufficient cpu."))
    bound = told(3, refused)
    bound["spec"]["nodeName"] = "a"
    world.cache.put(bound)
    world.nudger.adopt()
    assert world.remembered == ["db-0"]
    async with world.running():
        world.fill("b", room=60)
        await asyncio.sleep(1)
        assert world.names == ["db-0"]


@virtually
async def test_losing_the_lead_forgets_everything() -> None:
    """The next leader nudges."""
    world = World()
    async with world.running():
        world.refused(0, 1)
        await asyncio.sleep(1)
        world.nudger.clear()
        assert world.remembered == []
        world.fill("a", room=60)
        await asyncio.sleep(100)
        assert world.patches == []


@virtually
async def test_a_pod_that_is_bound_while_it_is_decided_about_is_not_nudged() -> None:
    """kube-scheduler was quicker."""
    world = World()

    class Slow(Counting):
        async def filter(self, pod: Pod, candidates: Sequence[str], others: Callable[[], Others] = Others) -> Decision:
            decision = await super().filter(pod, candidates, others)
            world.cache.put(db(0, "a"))
            return decision

    world.nudger._scheduling = Slow(world.cache)
    async with world.running():
        world.refused(0)
        world.fill("a", room=60)
        await asyncio.sleep(1)
        assert world.patches == []
        assert world.remembered == []


@virtually
async def test_nobody_is_asked_for_what_a_refused_pod_names_and_the_view_lacks() -> None:
    """A deleted claim, a class: a watch will bring it; a GET per look would be a flood."""
    world = World()
    async with world.running():
        world.refused(0, 1)
        world.cache.remove(make.claim("data-0", 60))
        world.cache.put(make.claim("data-1", 60, storage_class="later"))
        world.fill("a", "b", room=60)
        await asyncio.sleep(10)
        assert (world.patches, world.cache.fetched) == ([], [])
        world.cache.put(make.claim("data-0", 60), make.storage_class("later"))
        await asyncio.sleep(1)
        assert sorted(world.names) == ["db-0", "db-1"]


@virtually
async def test_of_a_thousand_pods_that_are_alike_one_is_asked_while_it_does_not_fit() -> None:
    """And as many as fit, when some do."""
    world = World()
    async with world.running():
        world.refused(*range(1000))
        await asyncio.sleep(1)
        assert len(world.scheduling.decided) == 1
        world.fill("a", room=10)
        await asyncio.sleep(1)
        assert len(world.scheduling.decided) == 2
        world.fill("a", room=60)
        await asyncio.sleep(1)
        assert len(world.scheduling.decided) == 4
        assert len(world.patches) == 1


@virtually
async def test_a_thousand_pods_that_are_not_alike_are_decided_about_a_turn_at_a_time() -> None:
    """Each once after one change."""
    world = World()
    for number in range(1000):
        world.create(number, 10 + number / 100)
    async with world.running():
        world.refuse(*range(1000))
        for turn in range(1, 11):
            await asyncio.sleep(LOOK_SECONDS + 0.0001)
            assert len(world.scheduling.decided) == MOST_DECISIONS * turn
        await asyncio.sleep(LOOK_SECONDS * 5)
        assert sorted(world.scheduling.decided) == sorted(f"db-{number}" for number in range(1000))


@virtually
async def test_changes_during_a_round_are_looked_at_in_the_next() -> None:
    """The first pods of a long round were asked before there was room."""
    world = World()
    for number in range(2 * MOST_DECISIONS):
        world.create(number, 60 + number / 100)
    async with world.running():
        world.refuse(*range(2 * MOST_DECISIONS))
        await asyncio.sleep(LOOK_SECONDS + 0.01)
        first = world.scheduling.decided[0]
        assert len(world.scheduling.decided) == MOST_DECISIONS
        world.create(999)
        world.fill(
            "a", room=float(make.claim(f"data-{first[3:]}")["spec"]["resources"]["requests"]["storage"]) / make.GI
        )
        await asyncio.sleep(1)
        assert world.patches


@virtually
async def test_a_bounded_number_of_pods_is_remembered_those_refused_first() -> None:
    """Their nodes are held once."""
    world = World()
    for number in range(MOST_REMEMBERED + 10):
        world.nudger.refused(Pod("default", f"db-{number}", f"uid-{number}"), list(NODES))
    assert len(world.remembered) == MOST_REMEMBERED
    assert set(world.remembered) == {f"db-{number}" for number in range(MOST_REMEMBERED)}
    assert len({id(entry.candidates) for entry in world.nudger._refusals.oldest_first()}) == 1
    world.nudger.asked(Pod("default", "db-7", "uid-7"))
    world.nudger.refused(Pod("default", "late", "uid-late"), list(NODES))
    assert "late" in world.remembered


@virtually
async def test_a_pod_is_nudged_for_the_nodes_it_was_refused_on_and_no_others() -> None:
    """The others were ruled out by kube-scheduler itself."""
    world = World()
    async with world.running():
        world.create(0)
        world.nudger.refused(make.as_pod(db(0)), ["b"])
        world.fill("a", room=60)
        await asyncio.sleep(2)
        assert world.patches == []
        world.fill("b", room=60)
        await asyncio.sleep(1)
        assert world.names == ["db-0"]


@virtually
async def test_together_with_offers_a_pod_is_nudged_asked_and_offered_a_node() -> None:
    """The whole way: refused by /filter, room, nudge, question, offer, and nothing more."""
    world = World()
    world.offers.tell(asked=world.nudger)
    world.create(0)
    questions: list[asyncio.Task[Any]] = []

    def ask(pod: Pod) -> None:
        questions.append(asyncio.create_task(world.offers.filter(make.as_pod(db(0)), NODES, here)))

    world.asking = ask
    async with world.running():
        await world.offers.filter(make.as_pod(db(0)), NODES, here)
        assert world.remembered == ["db-0"]
        world.fill("a", room=60)
        await asyncio.sleep(30)
        assert world.names == ["db-0"]
        assert world.remembered == []
        (question,) = questions
        assert [reason.fits for reason in question.result().reasons] == [True, False]
