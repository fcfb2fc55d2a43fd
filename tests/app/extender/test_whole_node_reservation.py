"""Step 5 of the proposal, sentence by sentence, in virtual time."""

import asyncio
from typing import Any

import pytest

from app.runtime.probes import PREFIX, UnavailableError
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.structs import replace
from tests import builders as make
from tests.worlds.node_reservation import NodeReservationWorld
from tests.worlds.state_source import caller_hung_up, fitting_nodes
from tests.worlds.timeline import play, rows
from tests.worlds.two_nodes import claim_with_node, database_pod
from tests.worlds.virtual_time import virtually

SCHEDULING_WAIT = f"{PREFIX}_pod_scheduling_wait_duration_seconds"
RESERVATION_WAIT = f"{PREFIX}_node_reservation_duration_seconds"


class World(NodeReservationWorld):
    """The world with the events of timelines: requests wait at most 5 s, and nodes are reserved for at most 7 s."""

    def __init__(self, *, best_effort: str = "require", drains: str = "", **timeouts: int) -> None:
        super().__init__(options=FilterOptions(require_best_effort=best_effort == "require"), **timeouts)
        if drains:
            self.verbs = self.verbs_with(lambda: self.refusal, lambda: "")

    def create_big(self, number: int) -> None:
        self.cache.put(make.claim(f"data-{number}", 1000), database_pod(number))

    def create_claim(self, number: int) -> None:
        self.cache.put(make.claim(f"data-{number}", 10))

    def create_unseen(self, number: int, of: str = "pod") -> None:
        """Creates a pod and its claim, of which no watch has delivered the pod, or the claim."""
        objects = {"pod": database_pod(number), "claim": make.claim(f"data-{number}", 10)}
        unseen = objects.pop(of)
        self.cache.elsewhere[f"default/{unseen['metadata']['name']}"] = unseen
        self.cache.put(*objects.values())
        self.cache.fetch_seconds = 0.5

    def show(self, number: int, node: str = "", **fields: Any) -> None:
        self.cache.put(database_pod(number, "" if node == "none" else node, **fields))

    def delete(self, number: int) -> None:
        self.cache.remove(database_pod(number))

    def select(self, number: int, node: str) -> None:
        self.cache.put(claim_with_node(number, node))

    def waits_for_pods(self, scheduled: str) -> list[float]:
        """How many waits for a pod have ended with a node ("true") or without, and their seconds in all."""
        label = {"pod_scheduled": scheduled}
        return [self.observations(SCHEDULING_WAIT, **label), self.total(SCHEDULING_WAIT, **label)]

    def ended_reservations(self, scheduled: str) -> float:
        """How many reservations have ended with all replicas ("true") or without."""
        return self.observations(RESERVATION_WAIT, replicas_scheduled=scheduled)

    def seconds_of_reservations(self, scheduled: str) -> float:
        return self.total(RESERVATION_WAIT, replicas_scheduled=scheduled)

    async def filter_and_hang_up(self, number: int) -> None:
        """Sends /filter; the caller hangs up at once."""
        await self.filter(number, caller_hung_up)

    async def filter_and_hang_up_later(self, number: int) -> None:
        """Sends /filter; the caller hangs up while it is evaluated."""
        calls = iter([False, True])

        async def hangs_up() -> bool:
            return next(calls)

        await self.filter(number, hangs_up)

    async def filter_by_name(self, number: int) -> list[str]:
        """Sends /filter for a pod without a UID, as in a request written by hand."""
        return fitting_nodes(await self.decide(replace(make.as_pod(database_pod(number)), uid="")))

    async def filter_without_claims(self) -> list[str]:
        """Sends /filter for a pod without claims; returns the reasons."""
        return [reason.name for reason in (await self.decide(make.as_pod(make.pod(name="free")))).reasons]

    async def filter_together(self, *numbers: int) -> list[list[str]]:
        return list(await asyncio.gather(*(self.filter(number) for number in numbers)))

    async def reasons(self, number: int, verb: str = "filter") -> list[str]:
        """Sends /filter or /explain; returns the reason for each node."""
        if verb == "explain":
            return [reason.name for reason in (await self.explain(number)).decision.reasons]
        return [reason.name for reason in (await self.decide(make.as_pod(database_pod(number)))).reasons]

    async def nodes_for_preemption(self, number: int) -> list[str]:
        """Sends /preempt; returns the nodes that fit."""
        return fitting_nodes(await self.preempt(number))

    async def adopt(self) -> None:
        await self.reservations.adopt(float("inf"))

    def lose_lead(self) -> None:
        self.refusal = "follower"
        self.reservations.clear()

    def idle(self) -> None:
        assert self.reservations.reserved_nodes() == frozenset()
        assert self.cache.listeners == {}

    async def end(self) -> None:
        self.reservations.clear()
        await asyncio.sleep(0.001)
        await self.assert_idle()


TIMELINES = """
# One request is answered at a time.
the first request is answered at once
    # The wait for its pod begins after the answer.
    0 create 0; filter 0 -> a b
the next request waits until the pod has a node
    # The write lock is held until then; after that the node is reserved.
    0 create 0 1; filter 0 -> a b; filter 1 -> waits
    2.999 answer filter 1 -> waits
    3 bind 0 a; answer filter 1 -> b; reservations.reserved_nodes -> a; waits_for_pods true -> 1 3
the next request waits at most for the pod-scheduling time-out
    # No node is reserved afterwards.
    0 create 0 1; filter 0 -> a b; filter 1 -> waits
    4.999 answer filter 1 -> waits
    5.001 answer filter 1 -> a b; waits_for_pods false -> 1 5; waits_for_pods true -> 0 0
    5.002 bind 0 a
    6 reservations.reserved_nodes -> none
requests are answered in the order of arrival
    # One request is answered at a time.
    0 world reservation_timeout=0
    0 create 0 1 2 3; filter 2 -> a b; filter 0 -> waits; filter 3 -> waits; filter 1 -> waits
    4.999 answer filter 0 -> waits
    5.001 answer filter 0 -> a b; answer filter 3 -> waits
    9.999 answer filter 3 -> waits
    10.001 answer filter 3 -> a b; answer filter 1 -> waits
    14.999 answer filter 1 -> waits
    15.001 answer filter 1 -> a b
the next request does not wait for a pod that is refused everywhere
    # The pod takes no space.
    0 create_big 0; create 1; filter 0 -> none; filter 1 -> a b
a pod without claims needs no lock
    # It is answered even while another pod holds the lock.
    0 create 0; filter 0 -> a b; filter_without_claims -> NO_VOLUMES NO_VOLUMES
a request that fails releases the lock
    # The pod's claim does not exist.
    0 create 1; filter 0 -> MissingObjectError data-0 does not exist; filter 1 -> a b
a pod-scheduling time-out of 0 disables waiting and reservations
    # The proposal says so.
    0 world scheduling_timeout=0
    0 create 0 1; filter 0 -> a b; bind 0 a; filter 1 -> a b; idle; waits_for_pods true -> 0 0; waits_for_pods false -> 0 0
a node-reservation time-out of 0 keeps the lock and reserves no node
    # Requests still wait for each other.
    0 world reservation_timeout=0
    0 create 0 1; filter 0 -> a b; filter 1 -> waits
    1 answer filter 1 -> waits; bind 0 a; answer filter 1 -> a b; waits_for_pods true -> 1 1
    1 ended_reservations true -> 0; ended_reservations false -> 0
a second request for a pod ends the wait of the first
    # kube-scheduler has given up the first attempt.
    0 create 0 1; filter 0 -> a b
    1 filter 0 -> a b; waits_for_pods false -> 1 1; filter 1 -> waits
    5.5 answer filter 1 -> waits; bind 0 a; answer filter 1 -> b
simultaneous requests for one pod leave nothing behind
    # The wait of the first request has not begun yet.
    0 create 0; filter_together 0 0 0 -> waits
    4.999 answer filter_together 0 0 0 -> waits
    5.001 answer filter_together 0 0 0 -> a b a b a b; bind 0 a; reservations.reserved_nodes -> a; provision 0 a; list_replicas a 0
    11 idle; ended_reservations true -> 1
volumes that only prefer their node need no reservation
    # Their replicas may be on any node.
    0 world best_effort=prefer
    0 create 0 1; filter 0 -> a b; filter 1 -> a b; bind 0 a; adopt -> none; idle
the deletion of the pod ends the wait
    # The next request is answered at once.
    0 create 0 1; filter 0 -> a b; filter 1 -> waits
    1 delete 0; answer filter 1 -> a b; waits_for_pods false -> 1 1
a successor of the same name ends the wait
    # The pod that held the lock is gone.
    0 create 0 1; filter 0 -> a b
    1 show 0 b uid=another; filter 1 -> a b
a predecessor of the same name is not the pod
    # A StatefulSet's new pod may be requested while the cache still has the old one.
    0 create 0 1; create_unseen 0; show 0 b uid=old; filter 0 -> b; filter 1 -> waits
    1 answer filter 1 -> waits; delete 0
    2 answer filter 1 -> waits; show 0
    3 answer filter 1 -> waits; bind 0 a; answer filter 1 -> b
nothing is reserved for a pod that does not exist
    # The next request does not wait for it.
    0 create_claim 0; create 1; filter 0 -> a b; filter 1 -> a b
a pod that the cache does not have yet holds the lock
    # It does so until the cache has it with a node.
    0 create_unseen 0; create 1; filter 0 -> a b; filter 1 -> waits
    1 answer filter 1 -> waits; bind 0 a; answer filter 1 -> b
a pod without a UID is identified by its name
    # A request may be written by hand.
    0 create 0 1; filter_by_name 0 -> a b; bind 0 a; filter 1 -> b
a caller that hung up in the queue leaves nothing behind
    # Its pod is not evaluated.
    0 create 0 1 2; filter 0 -> a b; filter_and_hang_up 1 -> waits; filter 2 -> waits
    4.999 answer filter 2 -> waits
    5.001 answer filter_and_hang_up 1 -> CallerGoneError; answer filter 2 -> a b
a caller that hung up before its answer leaves nothing behind
    # The next request does not wait for its pod.
    0 create 0 1; filter_and_hang_up_later 0 -> CallerGoneError; filter 1 -> a b
a request that is cancelled in the queue leaves nothing behind
    # The next request has its turn.
    0 create 0 1 2; filter 0 -> a b; filter 1 -> waits; filter 2 -> waits
    1 cancel filter 1; bind 0 a; answer filter 2 -> b
# A node is reserved until its replicas are placed.
a node is reserved at most for the node-reservation time-out
    # A replica that was placed on the other node never comes.
    0 create 0; filter 0 -> a b; bind 0 a; provision 0 b; list_replicas b 0
    6.99 reservations.reserved_nodes -> a
    7.01 idle; ended_reservations false -> 1; seconds_of_reservations false -> 7
the order of watch events does not matter
    # A node may list a replica before the watches deliver it.
    0 create 0; filter 0 -> a b; bind 0 a
    0.1 list_replicas a 0
    0.6 reservations.reserved_nodes -> a; provision 0 a
    0.9 idle; ended_reservations true -> 1
a reserved node is refused with its reason
    # This holds in filter, explain and preempt; the other node is evaluated as usual.
    0 create 0 1; filter 0 -> a b; bind 0 a; reasons 1 -> NODE_RESERVED ROOM; reasons 1 explain -> NODE_RESERVED ROOM
    0 nodes_for_preemption 1 -> b
a pod that returns to its replicas needs no reservation
    # It ignores reservations, makes none, and no request waits for it.
    0 create 0 1; provision 1 a; list_replicas a 1; filter 0 -> a b; bind 0 a; reasons 1 -> HOME HOME_ELSEWHERE
    0 bind 1 a; create 2; filter 2 -> b
# Reservations follow the lead.
losing the lead frees everything and refuses queued requests
    # A new leader decides about the pods. The ends of their waits were not seen.
    0 create 0 1 2 3; filter 0 -> a b; bind 0 a; filter 1 -> b; filter 2 -> waits; filter 3 -> waits
    1 lose_lead; answer filter 2 -> UnavailableError follower; answer filter 3 -> UnavailableError follower; idle
    1 ended_reservations true -> 0; ended_reservations false -> 0; waits_for_pods false -> 0 0
a request under evaluation is not answered after the lead is lost
    # The lead is checked again before the answer.
    0 create_unseen 0 of=claim; filter 0 -> waits; set refusal=follower
    0.501 answer filter 0 -> UnavailableError follower; idle
a draining process answers accepted requests
    # It accepts no new requests.
    0 world drains=yes
    0 create 0 1 2; filter 0 -> a b; filter 1 -> waits
    1 set refusal=draining; filter 2 -> UnavailableError draining; reservations.settle -> waits
    2 bind 0 a; answer filter 1 -> b
    3 answer reservations.settle -> waits; bind 1 b; answer reservations.settle -> yes
a new leader reserves what the previous leader had reserved
    # It reserves the nodes of bound pods whose replicas are not listed yet, and no others.
    0 create 0 1 2 3; bind 0 a; provision 1 b; list_replicas b 1; bind 1 b; show 2 b phase=Running; show 3 b deleting=1
    0 adopt -> none; reservations.reserved_nodes -> a; provision 0 a; list_replicas a 0
    1 idle
a new leader reserves the nodes selected for pods that are not bound yet
    # The reservations last until Longhorn lists the replicas.
    0 create 0 1; select 0 a; adopt -> none; reservations.reserved_nodes -> a; filter 1 -> b; bind 1 b
    1 provision 1 b; list_replicas b 1
    14 reservations.reserved_nodes -> a; bind 0 a; provision 0 a; list_replicas a 0
    15 idle
a node that was only selected is free once the pod is bound elsewhere
    # The first binding failed, and the next attempt chose the other node.
    0 create 0; select 0 a; adopt -> none; bind 0 b
    1 reservations.reserved_nodes -> none
an adopted reservation does not refuse its own pod
    # kube-scheduler has given up the attempt that selected the node.
    0 create 0 1; select 0 a; adopt -> none; filter 0 -> a b
an adopted reservation lasts a minute at most
    # A pod may be stuck for other reasons.
    0 create 0; select 0 a; adopt -> none
    59.9 reservations.reserved_nodes -> a
    60.1 idle
a new leader adopts nothing while reservations are disabled
    # Both time-outs are 0.
    0 world scheduling_timeout=0 reservation_timeout=0
    0 create 0 1; bind 0 a; select 1 a; adopt -> none; reservations.reserved_nodes -> none; idle
two pods may reserve one node
    # It is free once the replicas of both are listed.
    0 create 0 1; bind 0 a; bind 1 a; adopt -> none; reservations.reserved_nodes -> a; provision 0 a; list_replicas a 0
    1 reservations.reserved_nodes -> a; provision 1 a; list_replicas a 0 1
    2 idle
soon after a take-over a selected node stays reserved though binding is late
    # After an outage of the API server binding takes longer. Later the time-out of the proposal counts.
    0 create 0 1 2; adopt -> none; filter 0 -> a b; select 0 a; filter 1 -> waits
    4.999 answer filter 1 -> waits
    5.001 answer filter 1 -> b; waits_for_pods false -> 1 5
    70 reservations.reserved_nodes -> none; filter 2 -> a b; select 2 a
    76 reservations.reserved_nodes -> none
"""


@pytest.mark.parametrize("timeline", rows(TIMELINES))
def test_one_pod_at_a_time_is_undecided_and_its_node_is_reserved(timeline: str) -> None:
    play(World, timeline)


@virtually
async def test_losing_the_lead_right_after_an_answer_releases_the_lock() -> None:
    world = NodeReservationWorld()
    world.create(0, 1)
    await world.filter(0)
    world.reservations.clear()
    assert await world.filter(1) == ["a", "b"]
    assert world.loop.time() == 0


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
