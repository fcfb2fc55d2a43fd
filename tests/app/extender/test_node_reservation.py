"""Step 5 of the proposal, sentence by sentence, in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from app.decisions.evaluator import Scheduling
from app.extender.availability import CallerGoneError, UnavailableError
from app.extender.metrics import PREFIX, Metrics
from app.extender.node_reservation import ADOPTED_SECONDS, NodeReservations
from app.extender.verbs import Verbs
from scheduler_core.errors import ResolutionError
from scheduler_core.extender.filter import Decision, Options
from scheduler_core.extender.settings import ExtenderSettings
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import Reason
from tests import builders as make
from tests.builders import Object
from tests.worlds.state_source import FakeCache
from tests.worlds.virtual_time import VirtualLoop, run

NODES = ("a", "b")
SCHEDULING_SECONDS, RESERVATION_SECONDS = 5, 7
WAITED = f"{PREFIX}_pod_scheduling_wait_duration_seconds"
RESERVED = f"{PREFIX}_node_reservation_duration_seconds"


def cluster() -> list[Object]:
    """Two nodes of 100 Gi, with engines; nothing on them."""
    managers = [
        {
            "apiVersion": make.LONGHORN,
            "kind": "InstanceManager",
            "metadata": {"name": f"im-{node}", "namespace": "longhorn-system"},
            "spec": {"nodeID": node, "dataEngine": "v1", "image": ""},
            "status": {"currentState": "running"},
        }
        for node in NODES
    ]
    engine = {
        "apiVersion": make.LONGHORN,
        "kind": "EngineImage",
        "metadata": {"name": "ei", "namespace": "longhorn-system"},
        "spec": {"image": ""},
        "status": {"state": "deployed", "nodeDeploymentMap": dict.fromkeys(NODES, True)},
    }
    return [
        make.storage_class("longhorn"),
        *(make.kube_node(name) for name in NODES),
        *(make.longhorn_node(name) for name in NODES),
        *managers,
        engine,
    ]


def db(number: int, node: str = "", uid: str = "", **fields: Any) -> Object:
    """The pod that mounts claim data-<number>."""
    return make.pod(f"data-{number}", name=f"db-{number}", uid=uid or f"uid-{number}", node=node, **fields)


async def here() -> bool:
    """A caller that waits."""
    return False


async def gone() -> bool:
    """A caller that has hung up."""
    return True


class World:
    """A cluster of two nodes, with everything that happens after a decision done by hand."""

    def __init__(self, **settings: Any) -> None:
        self.settings = ExtenderSettings(
            enabled=True,
            pod_scheduling_timeout=settings.get("scheduling", SCHEDULING_SECONDS),
            node_reservation_timeout=settings.get("reservation", RESERVATION_SECONDS),
        )
        self.cache = FakeCache(cluster())
        self.metrics = Metrics()
        self.refusal = ""
        self.loop = asyncio.get_running_loop()
        assert isinstance(self.loop, VirtualLoop)
        self.scheduling = Scheduling(self.cache, settings.get("options", Options()), lambda: 0.0)
        self.reservations = NodeReservations(
            self.cache, self.scheduling, lambda: self.settings, self.metrics, self.loop.time
        )
        self.verbs = Verbs(self.scheduling, lambda: self.refusal, self.reservations)

    def create(self, *numbers: int) -> None:
        """Pods and their unbound claims of 10 Gi."""
        for number in numbers:
            self.cache.put(make.claim(f"data-{number}", 10), db(number))

    def bind(self, number: int, node: str) -> None:
        """kube-scheduler has bound the pod."""
        self.cache.put(db(number, node))

    def provision(self, number: int, node: str) -> None:
        """Longhorn has placed the replica of the pod's volume; the node does not list it yet."""
        self.cache.put(
            *make.bound(f"data-{number}", 10), make.replica(f"r-{number}", f"vol-data-{number}", node, size=10)
        )

    def list_replicas(self, node: str, *numbers: int) -> None:
        """Longhorn's node status lists these."""
        listed = make.disk(100, listed={f"r-{number}": 10 for number in numbers})
        self.cache.put(make.longhorn_node(node, {"disk-1": listed}))

    async def ask(self, number: int, hung_up: Callable[[], Awaitable[bool]] = here, **fields: Any) -> list[str]:
        """kube-scheduler asks about the pod; the nodes that fit."""
        return fits(await self.verbs.filter(make.as_pod(db(number, **fields)), NODES, hung_up))

    def asking(self, number: int, **fields: Any) -> asyncio.Task[list[str]]:
        """The same, in the background."""
        return asyncio.create_task(self.ask(number, **fields), name=f"question about {number}")

    def count(self, metric: str, **label: str) -> float:
        """How often a histogram was observed."""
        return self.metrics.registry.get_sample_value(f"{metric}_count", label) or 0.0

    def total(self, metric: str, **label: str) -> float:
        """The sum of what a histogram observed."""
        return self.metrics.registry.get_sample_value(f"{metric}_sum", label) or 0.0

    async def pass_time(self, seconds: float) -> None:
        """Lets time pass."""
        await asyncio.sleep(seconds)

    async def assert_free(self) -> None:
        """Nobody holds anything, and nothing is left behind."""
        async with asyncio.timeout(1):
            await self.reservations.settled()
        await asyncio.sleep(0)
        assert self.reservations.reserved() == frozenset()
        assert self.cache.listeners == {}
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


def fits(decision: Decision) -> list[str]:
    """The candidates that fit."""
    return [name for name, reason in zip(decision.candidates, decision.reasons, strict=True) if reason.fits]


def virtually(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test in virtual time."""

    def wrapper() -> None:
        run(test())

    wrapper.__name__, wrapper.__doc__ = test.__name__, test.__doc__
    return wrapper


@virtually
async def test_the_answer_comes_at_once() -> None:
    """The wait begins after the answer."""
    world = World()
    world.create(0)
    assert await world.ask(0) == ["a", "b"]
    assert world.loop.time() == 0


@virtually
async def test_others_wait_until_the_pod_has_a_node() -> None:
    """The write lock is held, and then the node is reserved."""
    world = World()
    world.create(0, 1)
    await world.ask(0)
    second = world.asking(1)
    await world.pass_time(3)
    assert not second.done()
    world.bind(0, "a")
    assert await second == ["b"]
    assert world.loop.time() == 3
    assert world.reservations.reserved() == {"a"}
    assert world.count(WAITED, pod_scheduled="true") == 1
    assert world.total(WAITED, pod_scheduled="true") == pytest.approx(3)


@virtually
async def test_others_wait_at_most_until_the_time_out() -> None:
    """Then nothing is reserved."""
    world = World()
    world.create(0, 1)
    await world.ask(0)
    assert await world.ask(1) == ["a", "b"]
    assert world.loop.time() == SCHEDULING_SECONDS
    assert world.count(WAITED, pod_scheduled="false") == 1
    assert world.count(WAITED, pod_scheduled="true") == 0
    world.bind(0, "a")  # too late
    await world.pass_time(1)
    assert world.reservations.reserved() == frozenset()


@virtually
async def test_questions_are_answered_in_their_order() -> None:
    """One at a time."""
    world = World(reservation=0)
    world.create(0, 1, 2, 3)
    answered: list[int] = []

    async def ask(number: int) -> None:
        await world.ask(number)
        answered.append(number)

    await asyncio.gather(*(ask(number) for number in (2, 0, 3, 1)))
    assert answered == [2, 0, 3, 1]
    assert world.loop.time() == 3 * SCHEDULING_SECONDS


@virtually
async def test_a_node_is_reserved_until_all_replicas_are_listed() -> None:
    """Not when they are placed, but when Longhorn's node says so."""
    world = World()
    world.cache.put(
        make.claim("logs-0", 10), make.claim("data-0", 10), make.pod("data-0", "logs-0", name="db-0", uid="u")
    )
    pod = make.as_pod(make.pod("data-0", "logs-0", name="db-0", uid="u"))
    await world.verbs.filter(pod, NODES, here)
    world.cache.put(make.pod("data-0", "logs-0", name="db-0", uid="u", node="a"))
    await world.pass_time(0.1)
    assert world.reservations.reserved() == {"a"}
    for name in ("data-0", "logs-0"):
        world.cache.put(*make.bound(name, 10), make.replica(f"r-{name}", f"vol-{name}", "a", size=10))
        await world.pass_time(1)
        assert world.reservations.reserved() == {"a"}
    world.cache.put(make.longhorn_node("a", {"disk-1": make.disk(100, listed={"r-data-0": 10})}))
    await world.pass_time(1)
    assert world.reservations.reserved() == {"a"}
    world.cache.put(make.longhorn_node("a", {"disk-1": make.disk(100, listed={"r-data-0": 10, "r-logs-0": 10})}))
    await world.pass_time(0)
    await world.pass_time(0.001)
    assert world.reservations.reserved() == frozenset()
    assert world.count(RESERVED, replicas_scheduled="true") == 1
    assert world.total(RESERVED, replicas_scheduled="true") == pytest.approx(3.1, abs=0.01)


@virtually
async def test_a_node_is_reserved_at_most_until_the_time_out() -> None:
    """A replica that ended elsewhere never comes."""
    world = World()
    world.create(0)
    await world.ask(0)
    world.bind(0, "a")
    await world.pass_time(0)
    world.provision(0, "b")
    world.list_replicas("b", 0)
    await world.pass_time(RESERVATION_SECONDS - 0.01)
    assert world.reservations.reserved() == {"a"}
    await world.pass_time(0.02)
    await world.assert_free()
    assert world.count(RESERVED, replicas_scheduled="false") == 1
    assert world.total(RESERVED, replicas_scheduled="false") == pytest.approx(RESERVATION_SECONDS)


@virtually
async def test_the_order_in_which_things_are_heard_does_not_matter() -> None:
    """The node may list a replica before its claim, volume and replica have been heard of."""
    world = World()
    world.create(0)
    await world.ask(0)
    world.bind(0, "a")
    await world.pass_time(0.1)
    world.list_replicas("a", 0)
    await world.pass_time(0.5)
    assert world.reservations.reserved() == {"a"}
    world.provision(0, "a")
    await world.pass_time(0.3)
    await world.assert_free()
    assert world.count(RESERVED, replicas_scheduled="true") == 1


@virtually
async def test_a_reserved_node_is_refused_with_its_reason() -> None:
    """The others are judged as ever."""
    world = World()
    world.create(0, 1)
    await world.ask(0)
    world.bind(0, "a")
    await world.pass_time(0)
    decision = await world.verbs.filter(make.as_pod(db(1)), NODES, here)
    assert list(decision.reasons) == [Reason.NODE_RESERVED, Reason.ROOM]
    explanation = await world.verbs.explain(make.as_pod(db(1)), NODES)
    assert list(explanation.decision.reasons) == [Reason.NODE_RESERVED, Reason.ROOM]
    preemption = await world.verbs.preempt(make.as_pod(db(1)), NODES)
    assert fits(preemption) == ["b"]


@virtually
async def test_a_pod_that_returns_to_its_replicas_waits_for_nothing() -> None:
    """But for its turn: it is not asked to yield to a reservation, nobody waits for it, and nothing is reserved for it."""
    world = World()
    world.create(0, 1)
    world.provision(1, "a")
    world.list_replicas("a", 1)
    await world.ask(0)
    world.bind(0, "a")
    await world.pass_time(0)
    decision = await world.verbs.filter(make.as_pod(db(1)), NODES, here)
    assert dict(zip(NODES, decision.reasons, strict=True)) == {"a": Reason.HOME, "b": Reason.HOME_ELSEWHERE}
    world.bind(1, "a")
    world.create(2)
    assert await world.ask(2) == ["b"]
    assert world.loop.time() == 0


@virtually
async def test_a_pod_that_is_refused_everywhere_is_not_waited_for() -> None:
    """It takes nothing."""
    world = World()
    world.cache.put(make.claim("data-0", 1000), db(0))
    world.create(1)
    assert await world.ask(0) == []
    assert await world.ask(1) == ["a", "b"]
    assert world.loop.time() == 0


@virtually
async def test_a_pod_without_claims_passes_by_the_lock() -> None:
    """Even while another is waited for."""
    world = World()
    world.create(0)
    await world.ask(0)
    decision = await world.verbs.filter(make.as_pod(make.pod(name="free")), NODES, here)
    assert list(decision.reasons) == [Reason.NO_VOLUMES] * 2
    assert world.loop.time() == 0


@virtually
async def test_a_question_that_cannot_be_answered_frees_the_lock() -> None:
    """A claim that does not exist."""
    world = World()
    world.create(1)
    with pytest.raises(ResolutionError, match="data-0 does not exist"):
        await world.ask(0)
    assert await world.ask(1) == ["a", "b"]
    assert world.loop.time() == 0


@virtually
async def test_without_a_scheduling_time_out_nothing_is_waited_for_or_reserved() -> None:
    """As the proposal has it for 0."""
    world = World(scheduling=0)
    world.create(0, 1)
    await world.ask(0)
    world.bind(0, "a")
    assert await world.ask(1) == ["a", "b"]
    await world.assert_free()
    assert world.loop.time() == 0
    assert all(world.count(WAITED, pod_scheduled=label) == 0 for label in ("true", "false"))


@virtually
async def test_without_a_reservation_time_out_the_lock_is_held_and_no_node_reserved() -> None:
    """The second half is off."""
    world = World(reservation=0)
    world.create(0, 1)
    await world.ask(0)
    second = world.asking(1)
    await world.pass_time(1)
    assert not second.done()
    world.bind(0, "a")
    assert await second == ["a", "b"]
    assert world.count(WAITED, pod_scheduled="true") == 1
    assert all(world.count(RESERVED, replicas_scheduled=label) == 0 for label in ("true", "false"))


@virtually
async def test_a_pod_that_is_asked_about_again_is_not_waited_for_twice() -> None:
    """kube-scheduler has given up the first attempt."""
    world = World()
    world.create(0, 1)
    await world.ask(0)
    await world.pass_time(1)
    assert await world.ask(0) == ["a", "b"]
    assert world.loop.time() == 1
    assert world.count(WAITED, pod_scheduled="false") == 1
    second = world.asking(1)
    await world.pass_time(SCHEDULING_SECONDS - 0.5)
    assert not second.done()
    world.bind(0, "a")
    assert await second == ["b"]


@virtually
async def test_a_pod_asked_about_again_in_the_same_moment() -> None:
    """Its wait had not even begun."""
    world = World()
    world.create(0)
    await asyncio.gather(world.ask(0), world.ask(0), world.ask(0))
    world.bind(0, "a")
    await world.pass_time(0)
    world.provision(0, "a")
    world.list_replicas("a", 0)
    await world.pass_time(1)
    await world.assert_free()


@virtually
async def test_a_pod_deleted_while_it_is_waited_for() -> None:
    """Others go on at once."""
    world = World()
    world.create(0, 1)
    await world.ask(0)
    second = world.asking(1)
    await world.pass_time(1)
    world.cache.remove(db(0))
    assert await second == ["a", "b"]
    assert world.loop.time() == 1
    assert world.count(WAITED, pod_scheduled="false") == 1


@virtually
async def test_a_pod_replaced_by_another_of_its_name() -> None:
    """The one that is waited for is gone."""
    world = World()
    world.create(0, 1)
    await world.ask(0)
    await world.pass_time(1)
    world.cache.put(db(0, uid="another", node="b"))
    assert await world.ask(1) == ["a", "b"]
    assert world.loop.time() == 1


@virtually
async def test_the_predecessor_of_the_same_name_is_not_taken_for_the_pod() -> None:
    """The cache may be behind kube-scheduler: a StatefulSet's pod is created anew while its old one is still known."""
    world = World()
    world.create(0, 1)
    world.cache.put(db(0, uid="old", node="b"))
    await world.ask(0)
    second = world.asking(1)
    await world.pass_time(1)
    assert not second.done()
    world.cache.remove(db(0))
    await world.pass_time(1)
    assert not second.done()
    world.cache.put(db(0))
    await world.pass_time(1)
    assert not second.done()
    world.bind(0, "a")
    assert await second == ["b"]


@virtually
async def test_a_pod_that_the_cache_has_not_seen_yet_is_waited_for() -> None:
    """Bound when it is first seen, or not."""
    world = World()
    world.cache.put(make.claim("data-0", 10))
    world.create(1)
    await world.ask(0)
    second = world.asking(1)
    await world.pass_time(1)
    assert not second.done()
    world.bind(0, "a")
    assert await second == ["b"]


@virtually
async def test_a_pod_without_a_uid_is_known_by_its_name() -> None:
    """A question asked by hand."""
    world = World()
    world.create(0, 1)
    pod = replace(make.as_pod(db(0)), uid="")
    await world.verbs.filter(pod, NODES, here)
    world.bind(0, "a")
    assert await world.ask(1) == ["b"]
    assert world.loop.time() == 0


@virtually
async def test_a_caller_that_hung_up_in_the_queue_leaves_nothing() -> None:
    """Its pod is not evaluated."""
    world = World()
    world.create(0, 1, 2)
    await world.ask(0)
    second, third = world.asking(1, hung_up=gone), world.asking(2)
    await world.pass_time(SCHEDULING_SECONDS)
    with pytest.raises(CallerGoneError):
        await second
    assert await third == ["a", "b"]
    assert world.loop.time() == SCHEDULING_SECONDS


@virtually
async def test_a_caller_that_hung_up_before_its_answer_leaves_nothing() -> None:
    """Nobody waits for its pod."""
    world = World()
    world.create(0, 1)
    calls = iter([False, True])

    async def hangs_up() -> bool:
        return next(calls)

    with pytest.raises(CallerGoneError):
        await world.ask(0, hangs_up)
    assert await world.ask(1) == ["a", "b"]
    assert world.loop.time() == 0


@virtually
async def test_a_question_that_is_cancelled_in_the_queue_leaves_nothing() -> None:
    """The next one has its turn."""
    world = World()
    world.create(0, 1, 2)
    await world.ask(0)
    second, third = world.asking(1), world.asking(2)
    await world.pass_time(1)
    second.cancel()
    world.bind(0, "a")
    assert await third == ["b"]


@virtually
async def test_the_loss_of_the_lead_frees_everything_and_answers_nobody() -> None:
    """Neither the lock nor a node is held for a pod somebody else decides about; what is queued is refused at once."""
    world = World()
    world.create(0, 1, 2, 3)
    await world.ask(0)
    world.bind(0, "a")
    await world.pass_time(0)
    await world.ask(1)
    queued = [world.asking(2), world.asking(3)]
    await world.pass_time(1)
    world.refusal = "not the leader"
    world.reservations.clear()
    for task in queued:
        with pytest.raises(UnavailableError, match="not the leader"):
            await task
    await world.assert_free()
    assert world.loop.time() == 1
    # Nobody saw how they ended.
    assert all(world.count(RESERVED, replicas_scheduled=label) == 0 for label in ("true", "false"))
    assert world.count(WAITED, pod_scheduled="false") == 0


@virtually
async def test_the_loss_of_the_lead_in_the_moment_of_an_answer_leaves_no_lock() -> None:
    """The wait is cancelled before it has begun."""
    world = World()
    world.create(0, 1)
    await world.ask(0)
    world.reservations.clear()
    assert await world.ask(1) == ["a", "b"]
    assert world.loop.time() == 0


@virtually
async def test_a_question_under_evaluation_is_not_answered_after_the_loss() -> None:
    """It is checked again before the answer."""
    world = World()
    world.cache.put(db(0))
    world.cache.elsewhere["default/data-0"] = make.claim("data-0", 10)
    question = world.asking(0)
    await world.pass_time(0)
    world.refusal = "not the leader"
    with pytest.raises(UnavailableError):
        await question
    await world.assert_free()


@virtually
async def test_who_hands_over_answers_what_it_has_taken() -> None:
    """But takes nothing new."""
    world = World()
    world.verbs = Verbs(world.scheduling, lambda: world.refusal, world.reservations, lambda: "")
    world.create(0, 1, 2)
    await world.ask(0)
    taken = world.asking(1)
    await world.pass_time(1)
    world.refusal = "shutting down"
    with pytest.raises(UnavailableError, match="shutting down"):
        await world.ask(2)
    settled = asyncio.create_task(world.reservations.settled())
    await world.pass_time(1)
    world.bind(0, "a")
    assert await taken == ["b"]
    await world.pass_time(1)
    assert not settled.done()
    world.bind(1, "b")
    await settled
    assert world.loop.time() == 3


@virtually
async def test_a_new_leader_reserves_what_its_predecessor_had_reserved() -> None:
    """Bound pods whose replicas are not listed yet; not those that run, nor those whose replicas are."""
    world = World()
    world.create(0, 1, 2, 3)
    world.bind(0, "a")
    world.provision(1, "b")
    world.list_replicas("b", 1)
    world.bind(1, "b")
    world.cache.put(db(2, "b", phase="Running"), db(3, "b", deleting=True))
    await world.reservations.adopt(math.inf)
    assert world.reservations.reserved() == {"a"}
    world.provision(0, "a")
    world.list_replicas("a", 0)
    await world.pass_time(1)
    await world.assert_free()


def chosen(number: int, node: str = "a") -> Object:
    """An unbound claim for which kube-scheduler has chosen a node."""
    raw = make.claim(f"data-{number}", 10)
    raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": node}
    return raw


@virtually
async def test_a_new_leader_reserves_the_nodes_chosen_for_pods_that_are_not_bound_yet() -> None:
    """Until Longhorn lists their replicas, however long provisioning takes after what ended the predecessor."""
    world = World()
    world.create(0, 1)
    world.cache.put(chosen(0))
    await world.reservations.adopt(math.inf)
    assert world.reservations.reserved() == {"a"}
    assert await world.ask(1) == ["b"]
    world.bind(1, "b")
    await world.pass_time(1)
    world.provision(1, "b")
    world.list_replicas("b", 1)
    await world.pass_time(SCHEDULING_SECONDS + RESERVATION_SECONDS + 1)
    assert world.reservations.reserved() == {"a"}
    world.bind(0, "a")
    world.provision(0, "a")
    world.list_replicas("a", 0)
    await world.pass_time(1)
    await world.assert_free()


@virtually
async def test_a_node_that_was_only_chosen_is_free_when_the_pod_goes_elsewhere() -> None:
    """Its binding failed, and the next attempt found another one."""
    world = World()
    world.create(0)
    world.cache.put(chosen(0))
    await world.reservations.adopt(math.inf)
    world.bind(0, "b")
    await world.pass_time(1)
    assert world.reservations.reserved() == frozenset()


@virtually
async def test_what_is_adopted_for_a_pod_does_not_stand_in_its_own_way() -> None:
    """kube-scheduler has given up the attempt it was chosen in."""
    world = World()
    world.create(0, 1)
    world.cache.put(chosen(0))
    await world.reservations.adopt(math.inf)
    assert await world.ask(0) == ["a", "b"]


@virtually
async def test_what_is_adopted_ends_after_a_minute_at_the_latest() -> None:
    """A pod may be stuck for other reasons."""
    world = World()
    world.create(0)
    world.cache.put(chosen(0))
    await world.reservations.adopt(math.inf)
    await world.pass_time(ADOPTED_SECONDS - 0.1)
    assert world.reservations.reserved() == {"a"}
    await world.pass_time(0.2)
    await world.assert_free()


@virtually
async def test_a_new_leader_adopts_nothing_that_is_switched_off() -> None:
    """Both time-outs 0."""
    world = World(scheduling=0, reservation=0)
    world.create(0, 1)
    world.bind(0, "a")
    world.cache.put(chosen(1))
    await world.reservations.adopt(math.inf)
    await world.assert_free()


@virtually
async def test_where_best_effort_is_only_preferred_it_is_not_awaited() -> None:
    """Its replica may be anywhere."""
    world = World(options=Options(require_best_effort=False))
    world.create(0, 1)
    await world.ask(0)
    assert await world.ask(1) == ["a", "b"]
    world.bind(0, "a")
    await world.reservations.adopt(math.inf)
    await world.assert_free()
    assert world.loop.time() == 0


@virtually
async def test_two_pods_may_reserve_one_node() -> None:
    """It is free when both are listed."""
    world = World()
    world.create(0, 1)
    world.bind(0, "a")
    world.bind(1, "a")
    await world.reservations.adopt(math.inf)
    for number in (0, 1):
        assert world.reservations.reserved() == {"a"}
        world.provision(number, "a")
        world.list_replicas("a", *range(number + 1))
        await world.pass_time(1)
    await world.assert_free()


@virtually
async def test_many_questions_at_once_are_told_apart_by_their_registry() -> None:
    """Both histograms have both labels from the beginning."""
    registry: CollectorRegistry = World().metrics.registry
    for metric, label in ((WAITED, "pod_scheduled"), (RESERVED, "replicas_scheduled")):
        assert [registry.get_sample_value(f"{metric}_count", {label: value}) for value in ("true", "false")] == [
            0.0,
            0.0,
        ]


def as_pod(number: int) -> Pod:
    """The model of a pod."""
    return make.as_pod(db(number))


@virtually
async def test_who_loses_the_lead_while_explaining_or_preempting_does_not_answer() -> None:
    """Victims would be chosen on an old view."""
    world = World()
    world.create(0)
    pod = make.as_pod(db(0))
    refusals = iter(["", "lost", "", "lost"])
    verbs = Verbs(world.scheduling, lambda: next(refusals), world.reservations)
    with pytest.raises(UnavailableError, match="lost"):
        await verbs.preempt(pod, NODES)
    with pytest.raises(UnavailableError, match="lost"):
        await verbs.explain(pod, NODES)


@virtually
async def test_soon_after_a_take_over_a_chosen_node_stays_reserved_when_binding_is_late() -> None:
    """The API server was away; controllers come back one after the other. Later the proposal's letter counts again."""
    world = World()
    world.create(0, 1, 2)
    await world.reservations.adopt(math.inf)
    await world.ask(0)
    world.cache.put(chosen(0))
    assert await world.ask(1) == ["b"]
    assert world.loop.time() == SCHEDULING_SECONDS
    assert world.count(WAITED, pod_scheduled="false") == 1
    await world.pass_time(ADOPTED_SECONDS + SCHEDULING_SECONDS)
    assert world.reservations.reserved() == frozenset()
    await world.ask(2)
    world.cache.put(chosen(2))
    await world.pass_time(SCHEDULING_SECONDS + 1)
    assert world.reservations.reserved() == frozenset()
