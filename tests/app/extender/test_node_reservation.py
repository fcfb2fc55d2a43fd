"""Step 5 of the proposal, sentence by sentence, in virtual time."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from app.extender.availability import CallerGoneError
from app.extender.node_reservation import ADOPTED_SECONDS
from app.runtime.metrics import PREFIX
from app.runtime.probes import UnavailableError
from scheduler_core.errors import ResolutionError
from scheduler_core.extender.decision import FilterOptions
from scheduler_core.model.verdict import Reason
from tests import builders as make
from tests.worlds.filter_request import caller_hung_up, fitting_nodes
from tests.worlds.node_reservation import NODE_RESERVATION_TIMEOUT, POD_SCHEDULING_TIMEOUT, NodeReservationWorld
from tests.worlds.two_nodes import NODES, claim_with_node, database_pod
from tests.worlds.virtual_time import virtually

SCHEDULING_WAIT = f"{PREFIX}_pod_scheduling_wait_duration_seconds"
RESERVATION_WAIT = f"{PREFIX}_node_reservation_duration_seconds"


@virtually
async def test_the_first_request_is_answered_at_once() -> None:
    """The wait for its pod begins after the answer."""
    world = NodeReservationWorld()
    world.create(0)
    assert await world.filter(0) == ["a", "b"]
    assert world.loop.time() == 0


@virtually
async def test_the_next_request_waits_until_the_pod_has_a_node() -> None:
    """The write lock is held until then; after that the node is reserved."""
    world = NodeReservationWorld()
    world.create(0, 1)
    await world.filter(0)
    second = world.start_filter(1)
    await asyncio.sleep(3)
    assert not second.done()
    world.bind(0, "a")
    assert await second == ["b"]
    assert world.loop.time() == 3
    assert world.reservations.reserved_nodes() == {"a"}
    assert world.observations(SCHEDULING_WAIT, pod_scheduled="true") == 1
    assert world.total(SCHEDULING_WAIT, pod_scheduled="true") == pytest.approx(3)


@virtually
async def test_the_next_request_waits_at_most_for_the_pod_scheduling_time_out() -> None:
    """No node is reserved afterwards."""
    world = NodeReservationWorld()
    world.create(0, 1)
    await world.filter(0)
    assert await world.filter(1) == ["a", "b"]
    assert world.loop.time() == POD_SCHEDULING_TIMEOUT
    assert world.observations(SCHEDULING_WAIT, pod_scheduled="false") == 1
    assert world.observations(SCHEDULING_WAIT, pod_scheduled="true") == 0
    world.bind(0, "a")  # too late
    await asyncio.sleep(1)
    assert world.reservations.reserved_nodes() == frozenset()


@virtually
async def test_requests_are_answered_in_the_order_of_arrival() -> None:
    """One request is answered at a time."""
    world = NodeReservationWorld(reservation_timeout=0)
    world.create(0, 1, 2, 3)
    answered_pods: list[int] = []

    async def filter_pod(number: int) -> None:
        await world.filter(number)
        answered_pods.append(number)

    await asyncio.gather(*(filter_pod(number) for number in (2, 0, 3, 1)))
    assert answered_pods == [2, 0, 3, 1]
    assert world.loop.time() == 3 * POD_SCHEDULING_TIMEOUT


@virtually
async def test_a_node_is_reserved_until_all_replicas_are_listed() -> None:
    """The reservation outlives the placement until Longhorn's node lists the replicas."""
    world = NodeReservationWorld()
    world.cache.put(
        make.claim("logs-0", 10), make.claim("data-0", 10), make.pod("data-0", "logs-0", name="db-0", uid="u")
    )
    pod = make.as_pod(make.pod("data-0", "logs-0", name="db-0", uid="u"))
    await world.decide(pod)
    world.cache.put(make.pod("data-0", "logs-0", name="db-0", uid="u", node="a"))
    await asyncio.sleep(0.1)
    assert world.reservations.reserved_nodes() == {"a"}
    for name in ("data-0", "logs-0"):
        world.cache.put(*make.bound(name, 10), make.replica(f"r-{name}", f"vol-{name}", "a", size=10))
        await asyncio.sleep(1)
        assert world.reservations.reserved_nodes() == {"a"}
    world.cache.put(make.longhorn_node("a", {"disk-1": make.disk(100, listed={"r-data-0": 10})}))
    await asyncio.sleep(1)
    assert world.reservations.reserved_nodes() == {"a"}
    world.cache.put(make.longhorn_node("a", {"disk-1": make.disk(100, listed={"r-data-0": 10, "r-logs-0": 10})}))
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    assert world.reservations.reserved_nodes() == frozenset()
    assert world.observations(RESERVATION_WAIT, replicas_scheduled="true") == 1
    assert world.total(RESERVATION_WAIT, replicas_scheduled="true") == pytest.approx(3.1, abs=0.01)


@virtually
async def test_a_node_is_reserved_at_most_for_the_node_reservation_time_out() -> None:
    """A replica that was placed on the other node never comes."""
    world = NodeReservationWorld()
    world.create(0)
    await world.filter(0)
    world.bind(0, "a")
    await asyncio.sleep(0)
    world.provision(0, "b")
    world.list_replicas("b", 0)
    await asyncio.sleep(NODE_RESERVATION_TIMEOUT - 0.01)
    assert world.reservations.reserved_nodes() == {"a"}
    await asyncio.sleep(0.02)
    await world.assert_idle()
    assert world.observations(RESERVATION_WAIT, replicas_scheduled="false") == 1
    assert world.total(RESERVATION_WAIT, replicas_scheduled="false") == pytest.approx(NODE_RESERVATION_TIMEOUT)


@virtually
async def test_the_order_of_watch_events_does_not_matter() -> None:
    """A node may list a replica before the watches deliver it."""
    world = NodeReservationWorld()
    world.create(0)
    await world.filter(0)
    world.bind(0, "a")
    await asyncio.sleep(0.1)
    world.list_replicas("a", 0)
    await asyncio.sleep(0.5)
    assert world.reservations.reserved_nodes() == {"a"}
    world.provision(0, "a")
    await asyncio.sleep(0.3)
    await world.assert_idle()
    assert world.observations(RESERVATION_WAIT, replicas_scheduled="true") == 1


@virtually
async def test_a_reserved_node_is_refused_with_its_reason() -> None:
    """This holds in filter, explain and preempt; the other node is evaluated as usual."""
    world = NodeReservationWorld()
    world.create(0, 1)
    await world.filter(0)
    world.bind(0, "a")
    await asyncio.sleep(0)
    decision = await world.decide(make.as_pod(database_pod(1)))
    assert list(decision.reasons) == [Reason.NODE_RESERVED, Reason.ROOM]
    explanation = await world.explain(1)
    assert list(explanation.decision.reasons) == [Reason.NODE_RESERVED, Reason.ROOM]
    preemption = await world.preempt(1)
    assert fitting_nodes(preemption) == ["b"]


@virtually
async def test_a_pod_that_returns_to_its_replicas_needs_no_reservation() -> None:
    """It ignores reservations, makes none, and no request waits for it."""
    world = NodeReservationWorld()
    world.create(0, 1)
    world.provision(1, "a")
    world.list_replicas("a", 1)
    await world.filter(0)
    world.bind(0, "a")
    await asyncio.sleep(0)
    decision = await world.decide(make.as_pod(database_pod(1)))
    assert dict(zip(NODES, decision.reasons, strict=True)) == {"a": Reason.HOME, "b": Reason.HOME_ELSEWHERE}
    world.bind(1, "a")
    world.create(2)
    assert await world.filter(2) == ["b"]
    assert world.loop.time() == 0


@virtually
async def test_the_next_request_does_not_wait_for_a_pod_that_is_refused_everywhere() -> None:
    """The pod takes no space."""
    world = NodeReservationWorld()
    world.cache.put(make.claim("data-0", 1000), database_pod(0))
    world.create(1)
    assert await world.filter(0) == []
    assert await world.filter(1) == ["a", "b"]
    assert world.loop.time() == 0


@virtually
async def test_a_pod_without_claims_needs_no_lock() -> None:
    """It is answered even while another pod holds the lock."""
    world = NodeReservationWorld()
    world.create(0)
    await world.filter(0)
    decision = await world.decide(make.as_pod(make.pod(name="free")))
    assert list(decision.reasons) == [Reason.NO_VOLUMES] * 2
    assert world.loop.time() == 0


@virtually
async def test_a_request_that_fails_releases_the_lock() -> None:
    """The pod's claim does not exist."""
    world = NodeReservationWorld()
    world.create(1)
    with pytest.raises(ResolutionError, match="data-0 does not exist"):
        await world.filter(0)
    assert await world.filter(1) == ["a", "b"]
    assert world.loop.time() == 0


@virtually
async def test_a_pod_scheduling_time_out_of_0_disables_waiting_and_reservations() -> None:
    """The proposal says so."""
    world = NodeReservationWorld(scheduling_timeout=0)
    world.create(0, 1)
    await world.filter(0)
    world.bind(0, "a")
    assert await world.filter(1) == ["a", "b"]
    await world.assert_idle()
    assert world.loop.time() == 0
    assert all(world.observations(SCHEDULING_WAIT, pod_scheduled=label) == 0 for label in ("true", "false"))


@virtually
async def test_a_node_reservation_time_out_of_0_keeps_the_lock_and_reserves_no_node() -> None:
    """Requests still wait for each other."""
    world = NodeReservationWorld(reservation_timeout=0)
    world.create(0, 1)
    await world.filter(0)
    second = world.start_filter(1)
    await asyncio.sleep(1)
    assert not second.done()
    world.bind(0, "a")
    assert await second == ["a", "b"]
    assert world.observations(SCHEDULING_WAIT, pod_scheduled="true") == 1
    assert all(world.observations(RESERVATION_WAIT, replicas_scheduled=label) == 0 for label in ("true", "false"))


@virtually
async def test_a_second_request_for_a_pod_ends_the_wait_of_the_first() -> None:
    """kube-scheduler has given up the first attempt."""
    world = NodeReservationWorld()
    world.create(0, 1)
    await world.filter(0)
    await asyncio.sleep(1)
    assert await world.filter(0) == ["a", "b"]
    assert world.loop.time() == 1
    assert world.observations(SCHEDULING_WAIT, pod_scheduled="false") == 1
    second = world.start_filter(1)
    await asyncio.sleep(POD_SCHEDULING_TIMEOUT - 0.5)
    assert not second.done()
    world.bind(0, "a")
    assert await second == ["b"]


@virtually
async def test_simultaneous_requests_for_one_pod_leave_nothing_behind() -> None:
    """The wait of the first request has not begun yet."""
    world = NodeReservationWorld()
    world.create(0)
    answers = await asyncio.gather(world.filter(0), world.filter(0), world.filter(0))
    assert list(answers) == [["a", "b"]] * 3
    world.bind(0, "a")
    await asyncio.sleep(0)
    world.provision(0, "a")
    world.list_replicas("a", 0)
    await asyncio.sleep(1)
    await world.assert_idle()


@virtually
async def test_the_deletion_of_the_pod_ends_the_wait() -> None:
    """The next request is answered at once."""
    world = NodeReservationWorld()
    world.create(0, 1)
    await world.filter(0)
    second = world.start_filter(1)
    await asyncio.sleep(1)
    world.cache.remove(database_pod(0))
    assert await second == ["a", "b"]
    assert world.loop.time() == 1
    assert world.observations(SCHEDULING_WAIT, pod_scheduled="false") == 1


@virtually
async def test_a_successor_of_the_same_name_ends_the_wait() -> None:
    """The pod that held the lock is gone."""
    world = NodeReservationWorld()
    world.create(0, 1)
    await world.filter(0)
    await asyncio.sleep(1)
    world.cache.put(database_pod(0, uid="another", node="b"))
    assert await world.filter(1) == ["a", "b"]
    assert world.loop.time() == 1


@virtually
async def test_a_predecessor_of_the_same_name_is_not_the_pod() -> None:
    """A StatefulSet's new pod may be requested while the cache still has the old one."""
    world = NodeReservationWorld()
    world.create(0, 1)
    world.cache.elsewhere["default/db-0"] = database_pod(0)
    world.cache.put(database_pod(0, uid="old", node="b"))
    await world.filter(0)
    second = world.start_filter(1)
    await asyncio.sleep(1)
    assert not second.done()
    world.cache.remove(database_pod(0))
    await asyncio.sleep(1)
    assert not second.done()
    world.cache.put(database_pod(0))
    await asyncio.sleep(1)
    assert not second.done()
    world.bind(0, "a")
    assert await second == ["b"]


@virtually
async def test_nothing_is_reserved_for_a_pod_that_does_not_exist() -> None:
    """The next request does not wait for it."""
    world = NodeReservationWorld()
    world.cache.put(make.claim("data-0", 10))
    world.create(1)
    assert await world.filter(0) == ["a", "b"]
    assert await world.filter(1) == ["a", "b"]
    assert world.loop.time() == 0


@virtually
async def test_a_pod_that_the_cache_does_not_have_yet_holds_the_lock() -> None:
    """It does so until the cache has it with a node."""
    world = NodeReservationWorld()
    world.cache.put(make.claim("data-0", 10))
    world.cache.elsewhere["default/db-0"] = database_pod(0)
    world.create(1)
    await world.filter(0)
    second = world.start_filter(1)
    await asyncio.sleep(1)
    assert not second.done()
    world.bind(0, "a")
    assert await second == ["b"]


@virtually
async def test_a_pod_without_a_uid_is_identified_by_its_name() -> None:
    """A request may be written by hand."""
    world = NodeReservationWorld()
    world.create(0, 1)
    pod = replace(make.as_pod(database_pod(0)), uid="")
    await world.decide(pod)
    world.bind(0, "a")
    assert await world.filter(1) == ["b"]
    assert world.loop.time() == 0


@virtually
async def test_a_caller_that_hung_up_in_the_queue_leaves_nothing_behind() -> None:
    """Its pod is not evaluated."""
    world = NodeReservationWorld()
    world.create(0, 1, 2)
    await world.filter(0)
    second = world.start_filter(1, caller_hung_up)
    third = world.start_filter(2)
    await asyncio.sleep(POD_SCHEDULING_TIMEOUT)
    with pytest.raises(CallerGoneError):
        await second
    assert await third == ["a", "b"]
    assert world.loop.time() == POD_SCHEDULING_TIMEOUT


@virtually
async def test_a_caller_that_hung_up_before_its_answer_leaves_nothing_behind() -> None:
    """The next request does not wait for its pod."""
    world = NodeReservationWorld()
    world.create(0, 1)
    calls = iter([False, True])

    async def hangs_up() -> bool:
        return next(calls)

    with pytest.raises(CallerGoneError):
        await world.filter(0, hangs_up)
    assert await world.filter(1) == ["a", "b"]
    assert world.loop.time() == 0


@virtually
async def test_a_request_that_is_cancelled_in_the_queue_leaves_nothing_behind() -> None:
    """The next request has its turn."""
    world = NodeReservationWorld()
    world.create(0, 1, 2)
    await world.filter(0)
    second = world.start_filter(1)
    third = world.start_filter(2)
    await asyncio.sleep(1)
    second.cancel()
    world.bind(0, "a")
    assert await third == ["b"]


@virtually
async def test_losing_the_lead_frees_everything_and_refuses_queued_requests() -> None:
    """A new leader decides about the pods."""
    world = NodeReservationWorld()
    world.create(0, 1, 2, 3)
    await world.filter(0)
    world.bind(0, "a")
    await asyncio.sleep(0)
    await world.filter(1)
    queued = [world.start_filter(2), world.start_filter(3)]
    await asyncio.sleep(1)
    world.refusal = "not the leader"
    world.reservations.clear()
    for task in queued:
        with pytest.raises(UnavailableError, match="not the leader"):
            await task
    await world.assert_idle()
    assert world.loop.time() == 1
    # Their ends were not seen.
    assert all(world.observations(RESERVATION_WAIT, replicas_scheduled=label) == 0 for label in ("true", "false"))
    assert world.observations(SCHEDULING_WAIT, pod_scheduled="false") == 0


@virtually
async def test_losing_the_lead_right_after_an_answer_releases_the_lock() -> None:
    """The wait is cancelled before it has begun."""
    world = NodeReservationWorld()
    world.create(0, 1)
    await world.filter(0)
    world.reservations.clear()
    assert await world.filter(1) == ["a", "b"]
    assert world.loop.time() == 0


@virtually
async def test_a_request_under_evaluation_is_not_answered_after_the_lead_is_lost() -> None:
    """The lead is checked again before the answer."""
    world = NodeReservationWorld()
    world.cache.put(database_pod(0))
    world.cache.elsewhere["default/data-0"] = make.claim("data-0", 10)
    request = world.start_filter(0)
    await asyncio.sleep(0)
    world.refusal = "not the leader"
    with pytest.raises(UnavailableError):
        await request
    await world.assert_idle()


@virtually
async def test_a_draining_process_answers_accepted_requests() -> None:
    """It accepts no new requests."""
    world = NodeReservationWorld()
    world.verbs = world.verbs_with(lambda: world.refusal, lambda: "")
    world.create(0, 1, 2)
    await world.filter(0)
    accepted = world.start_filter(1)
    await asyncio.sleep(1)
    world.refusal = "shutting down"
    with pytest.raises(UnavailableError, match="shutting down"):
        await world.filter(2)
    settled = asyncio.create_task(world.reservations.settle())
    await asyncio.sleep(1)
    world.bind(0, "a")
    assert await accepted == ["b"]
    await asyncio.sleep(1)
    assert not settled.done()
    world.bind(1, "b")
    await settled
    assert world.loop.time() == 3


@virtually
async def test_a_new_leader_reserves_what_the_previous_leader_had_reserved() -> None:
    """It reserves the nodes of bound pods whose replicas are not listed yet, and no others."""
    world = NodeReservationWorld()
    world.create(0, 1, 2, 3)
    world.bind(0, "a")
    world.provision(1, "b")
    world.list_replicas("b", 1)
    world.bind(1, "b")
    world.cache.put(database_pod(2, "b", phase="Running"), database_pod(3, "b", deleting=True))
    await world.reservations.adopt(math.inf)
    assert world.reservations.reserved_nodes() == {"a"}
    world.provision(0, "a")
    world.list_replicas("a", 0)
    await asyncio.sleep(1)
    await world.assert_idle()


@virtually
async def test_a_new_leader_reserves_the_nodes_selected_for_pods_that_are_not_bound_yet() -> None:
    """The reservations last until Longhorn lists the replicas."""
    world = NodeReservationWorld()
    world.create(0, 1)
    world.cache.put(claim_with_node(0, "a"))
    await world.reservations.adopt(math.inf)
    assert world.reservations.reserved_nodes() == {"a"}
    assert await world.filter(1) == ["b"]
    world.bind(1, "b")
    await asyncio.sleep(1)
    world.provision(1, "b")
    world.list_replicas("b", 1)
    await asyncio.sleep(POD_SCHEDULING_TIMEOUT + NODE_RESERVATION_TIMEOUT + 1)
    assert world.reservations.reserved_nodes() == {"a"}
    world.bind(0, "a")
    world.provision(0, "a")
    world.list_replicas("a", 0)
    await asyncio.sleep(1)
    await world.assert_idle()


@virtually
async def test_a_node_that_was_only_selected_is_free_once_the_pod_is_bound_elsewhere() -> None:
    """The first binding failed, and the next attempt chose the other node."""
    world = NodeReservationWorld()
    world.create(0)
    world.cache.put(claim_with_node(0, "a"))
    await world.reservations.adopt(math.inf)
    world.bind(0, "b")
    await asyncio.sleep(1)
    assert world.reservations.reserved_nodes() == frozenset()


@virtually
async def test_an_adopted_reservation_does_not_refuse_its_own_pod() -> None:
    """kube-scheduler has given up the attempt that selected the node."""
    world = NodeReservationWorld()
    world.create(0, 1)
    world.cache.put(claim_with_node(0, "a"))
    await world.reservations.adopt(math.inf)
    assert await world.filter(0) == ["a", "b"]


@virtually
async def test_an_adopted_reservation_lasts_a_minute_at_most() -> None:
    """A pod may be stuck for other reasons."""
    world = NodeReservationWorld()
    world.create(0)
    world.cache.put(claim_with_node(0, "a"))
    await world.reservations.adopt(math.inf)
    await asyncio.sleep(ADOPTED_SECONDS - 0.1)
    assert world.reservations.reserved_nodes() == {"a"}
    await asyncio.sleep(0.2)
    await world.assert_idle()


@virtually
async def test_a_new_leader_adopts_nothing_while_reservations_are_disabled() -> None:
    """Both time-outs are 0."""
    world = NodeReservationWorld(scheduling_timeout=0, reservation_timeout=0)
    world.create(0, 1)
    world.bind(0, "a")
    world.cache.put(claim_with_node(1, "a"))
    await world.reservations.adopt(math.inf)
    assert world.reservations.reserved_nodes() == frozenset()
    await world.assert_idle()


@virtually
async def test_volumes_that_only_prefer_their_node_need_no_reservation() -> None:
    """Their replicas may be on any node."""
    world = NodeReservationWorld(options=FilterOptions(require_best_effort=False))
    world.create(0, 1)
    await world.filter(0)
    assert await world.filter(1) == ["a", "b"]
    world.bind(0, "a")
    await world.reservations.adopt(math.inf)
    await world.assert_idle()
    assert world.loop.time() == 0


@virtually
async def test_two_pods_may_reserve_one_node() -> None:
    """It is free once the replicas of both are listed."""
    world = NodeReservationWorld()
    world.create(0, 1)
    world.bind(0, "a")
    world.bind(1, "a")
    await world.reservations.adopt(math.inf)
    for number in (0, 1):
        assert world.reservations.reserved_nodes() == {"a"}
        world.provision(number, "a")
        world.list_replicas("a", *range(number + 1))
        await asyncio.sleep(1)
    await world.assert_idle()


@virtually
async def test_both_histograms_have_both_labels_from_the_start() -> None:
    """A rate over a series that appears later misses its first observation."""
    registry: CollectorRegistry = NodeReservationWorld().metrics.registry
    for metric, label in ((SCHEDULING_WAIT, "pod_scheduled"), (RESERVATION_WAIT, "replicas_scheduled")):
        assert [registry.get_sample_value(f"{metric}_count", {label: value}) for value in ("true", "false")] == [
            0.0,
            0.0,
        ]


@virtually
async def test_explain_and_preempt_are_not_answered_after_the_lead_is_lost() -> None:
    """Victims would be chosen from an old state."""
    world = NodeReservationWorld()
    world.create(0)
    refusals = iter(["", "lost", "", "lost"])
    world.verbs = world.verbs_with(lambda: next(refusals))
    with pytest.raises(UnavailableError, match="lost"):
        await world.preempt(0)
    with pytest.raises(UnavailableError, match="lost"):
        await world.explain(0)


@virtually
async def test_soon_after_a_take_over_a_selected_node_stays_reserved_though_binding_is_late() -> None:
    """After an outage of the API server binding takes longer. Later the time-out of the proposal counts."""
    world = NodeReservationWorld()
    world.create(0, 1, 2)
    await world.reservations.adopt(math.inf)
    await world.filter(0)
    world.cache.put(claim_with_node(0, "a"))
    assert await world.filter(1) == ["b"]
    assert world.loop.time() == POD_SCHEDULING_TIMEOUT
    assert world.observations(SCHEDULING_WAIT, pod_scheduled="false") == 1
    await asyncio.sleep(ADOPTED_SECONDS + POD_SCHEDULING_TIMEOUT)
    assert world.reservations.reserved_nodes() == frozenset()
    await world.filter(2)
    world.cache.put(claim_with_node(2, "a"))
    await asyncio.sleep(POD_SCHEDULING_TIMEOUT + 1)
    assert world.reservations.reserved_nodes() == frozenset()
