"""`reservation: capacity`, in virtual time: which nodes are offered to which pods, and when offers end."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.decisions.evaluator import Evaluator
from app.extender.availability import CallerGoneError, HungUp
from app.extender.metrics import Metrics
from app.extender.offer_store import OfferStore
from app.extender.offers import ANSWER_TIMEOUT, MAX_WAIT, SETTLE_TIMEOUT, Offers
from app.extender.verbs import Verbs
from app.policy.file import PolicyFile
from app.policy.in_force import PolicyInForce, SnapshotGenericState
from app.policy.plugins import load_plugins
from app.runtime.metrics import PREFIX
from app.runtime.probes import UnavailableError
from scheduler_core.errors import ResolutionError
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import Contenders, Decision, FilterOptions
from scheduler_core.extender.settings import Enforcement, ExtenderSettings
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.model import generic
from scheduler_core.model.kube import Pod
from scheduler_core.offers.handover_record import HandoverRecord, RecordEncoder, RecordHead, decode_record
from scheduler_core.offers.ledger import Ledger
from tests import builders as make
from tests.builders import Object
from tests.worlds.filter_request import caller_hung_up, caller_waits, fitting_nodes
from tests.worlds.state_source import FakeStateSource, SlowSource
from tests.worlds.two_nodes import NODES, claim_with_node, database_pod, nominated_pod, two_nodes
from tests.worlds.virtual_time import run, virtual_loop, virtually

SCHEDULING_WAIT = f"{PREFIX}_pod_scheduling_wait_duration_seconds"


class InterruptedEvaluator(Evaluator):
    """Lets something happen before an evaluation ends.

    Attributes:
        interruptions: called one after the other, each at the end of one evaluation
    """

    def __init__(self, cache: FakeStateSource) -> None:
        super().__init__(cache, FilterOptions(), lambda: 0.0)
        self.interruptions: list[Callable[[], None]] = []

    async def filter_without_fetch(self, pod: Pod, candidates: Sequence[str], contenders: Contenders) -> Decision:
        """Decides, then calls the next interruption."""
        decision = await super().filter_without_fetch(pod, candidates, contenders)
        if self.interruptions:
            self.interruptions.pop(0)()
        return decision


class FakeOfferStore(OfferStore):
    """Keeps the final record.

    Attributes:
        final: the ledger that was recorded last before the end
    """

    def __init__(self, *, fails: bool = False) -> None:
        self.final: Ledger | None = None
        self._fails = fails

    def note(self, ledger: Ledger) -> None:
        """Does nothing."""

    async def write_final(self, ledger: Ledger) -> bool:
        """Keeps the ledger."""
        self.final = ledger
        return not self._fails


class World:
    """Two nodes of 100 Gi; tests play kube-scheduler and Longhorn by hand."""

    def __init__(
        self,
        *,
        scheduling_timeout: int = 5,
        reservation_timeout: int = 5,
        cache: FakeStateSource | None = None,
        store: FakeOfferStore | None = None,
    ) -> None:
        settings = ExtenderSettings(
            enabled=True, pod_scheduling_timeout=scheduling_timeout, node_reservation_timeout=reservation_timeout
        )
        self.cache = cache or FakeStateSource(two_nodes())
        self.metrics = Metrics()
        self.loop = virtual_loop()
        self.evaluator = InterruptedEvaluator(self.cache)
        self.store = store
        self.settings = settings
        self.offers = Offers(
            self.cache, self.evaluator, lambda: self.settings, self.metrics, self.loop.time, store=store
        )
        self.verbs = Verbs(self.evaluator, PolicyInForce(), decider=self.offers)

    def use_policy(self, file: Path, priority: Object, *plugins: str, gold: str = "") -> None:
        """Ranks nodes by one priority of a policy file; the node `gold` has a label gold."""
        file.write_text(json.dumps({"priorities": [priority]}))
        nodes = [generic.Node(name, labels={"gold": "yes"} if name == gold else {}) for name in NODES]
        source = SnapshotGenericState(GenericClusterState.of(nodes, [], []))
        policy = PolicyFile(str(file), load_plugins(plugins))
        self.verbs = Verbs(self.evaluator, PolicyInForce(policy, source), decider=self.offers)

    def create(self, number: int, size: int) -> None:
        """Creates a pod and its unbound claim."""
        self.cache.put(make.claim(f"data-{number}", size), database_pod(number))

    def resize(self, *names: str, space: int) -> None:
        """Leaves so many Gi on each of these nodes."""
        self.cache.put(*(make.longhorn_node(name, space) for name in names))

    async def decide(self, number: int, hung_up: HungUp = caller_waits) -> Decision:
        """Sends /filter for the pod of this number and both nodes."""
        return await self.decide_pod(database_pod(number), hung_up=hung_up)

    async def decide_pod(
        self, raw_pod: Object, nodes: Sequence[str] = NODES, hung_up: HungUp = caller_waits
    ) -> Decision:
        """Sends /filter for a pod."""
        return (await self.verbs.filter(make.as_pod(raw_pod), None, nodes, hung_up)).decision

    async def filter_whole_pod(self, number: int) -> None:
        """Sends /filter for the pod of this number, which a policy's rules read, too."""
        whole = generic.Pod("default", f"database-{number}")
        await self.verbs.filter(make.as_pod(database_pod(number)), whole, NODES, caller_waits)

    async def filter(self, number: int) -> list[str]:
        """Sends /filter for the pod of this number; returns the nodes that fit."""
        return fitting_nodes(await self.decide(number))

    def select(self, number: int, size: int, node: str) -> None:
        """Selects a node for a pod's claim, as kube-scheduler does; Longhorn has not provisioned it yet."""
        self.cache.put(claim_with_node(number, node, size))

    def nominate(self, number: int, node: str, **condition: Any) -> None:
        """Nominates a node in a pod's status, with a condition of type PodScheduled."""
        self.cache.put(nominated_pod(number, node, **condition))

    def offered_nodes(self, number: int) -> list[str]:
        """The nodes of the pod's offer."""
        offer = self.offers.ledger.offer_of(f"uid-{number}")
        return sorted(offer.nodes) if offer else []

    def ended_offers(self, scheduled: str) -> float:
        """How many offers have ended with a decision ("true"), or without ("false")."""
        labels = {"pod_scheduled": scheduled}
        return self.metrics.registry.get_sample_value(f"{SCHEDULING_WAIT}_count", labels) or 0.0

    async def settle(self) -> None:
        """Lets the tasks that watch pods run."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def assert_clean(self) -> None:
        """Asserts that no offer is outstanding, and no task or listener is left."""
        await self.settle()
        assert self.offers.ledger.outstanding == 0
        assert self.cache.listeners == {}
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@virtually
async def test_a_pod_without_competitors_is_offered_every_node_that_fits() -> None:
    """kube-scheduler's scoring decides, and the request does not wait."""
    world = World()
    world.create(0, 40)
    assert await world.filter(0) == ["a", "b"]
    assert world.offered_nodes(0) == ["a", "b"]
    assert world.loop.time() == 0
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_in_a_burst_each_pod_is_offered_the_nodes_with_most_free_space() -> None:
    """Where an offer would leave no room for as much again, one node of two is offered."""
    world = World()
    for number in (0, 1):
        world.create(number, 30)
    world.create(2, 30)
    assert await world.filter(0) == ["a", "b"]
    assert await world.filter(1) == ["a"]
    assert await world.filter(2) == ["b"]
    decision = await world.decide(1)
    assert [reason.name for reason in decision.reasons] == ["ROOM", "NOT_OFFERED"]
    world.offers.clear()


def test_in_a_burst_each_pod_is_offered_the_nodes_with_the_highest_scores(tmp_path: Path) -> None:
    """The policy prefers b; a has more free space."""
    argument = {"labelPreference": {"label": "gold", "presence": True}}
    priority = {"name": "PreferGold", "weight": 10, "argument": argument}

    async def test() -> None:
        world = World()
        world.use_policy(tmp_path / "policy.json", priority, gold="b")
        world.resize("a", space=70)
        world.resize("b", space=60)
        for number in (0, 1):
            world.create(number, 25)
            await world.filter_whole_pod(number)
        assert world.offered_nodes(1) == ["b"]
        world.offers.clear()

    run(test())


def test_a_priority_that_fails_refuses_no_pod(tmp_path: Path) -> None:
    """Space alone then decides which nodes are offered."""
    plugin = tmp_path / "broken_priority.py"
    plugin.write_text(
        "from scheduler_core.generic.plugin_rules import PriorityPlugin\n"
        "def broken(state, argument, nodes):\n"
        "    raise ValueError('no score')\n"
        "PRIORITIES = [PriorityPlugin('Broken', broken)]\n"
    )

    async def test() -> None:
        world = World()
        world.use_policy(tmp_path / "policy.json", {"name": "Broken", "weight": 1}, str(plugin))
        for number in (0, 1):
            world.create(number, 30)
            await world.filter_whole_pod(number)
        assert world.offered_nodes(1) == ["a"]
        world.offers.clear()

    run(test())


@virtually
async def test_simultaneous_requests_never_get_the_same_space() -> None:
    """No node of 100 Gi is offered to two of four pods of 60 Gi.

    While another pod waits for its turn, an offer has no more nodes than that pod can spare.
    """
    world = World()
    for number in range(4):
        world.create(number, 60)
    answers = asyncio.gather(*(world.decide(number) for number in range(4)))
    await asyncio.sleep(0.05)
    world.select(0, 60, "a")
    offered = [fitting_nodes(answer) for answer in await answers]
    assert offered == [["a"], ["b"], [], []]
    assert world.loop.time() == pytest.approx(MAX_WAIT)
    world.offers.clear()


@virtually
async def test_a_decision_turns_an_offer_into_demand() -> None:
    """The other node is free again at once."""
    world = World()
    world.create(0, 60)
    assert await world.filter(0) == ["a", "b"]
    world.create(1, 60)
    world.select(0, 60, "a")
    await world.settle()
    assert world.offered_nodes(0) == []
    assert world.ended_offers("true") == 1
    decision = await world.decide(1)
    assert [reason.name for reason in decision.reasons] == ["SPOKEN_FOR", "ROOM"]
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_a_nomination_narrows_an_offer_unless_it_comes_from_preemption() -> None:
    """Preemption nominates with the condition PodScheduled=False, for nodes that were never evaluated."""
    world = World()
    world.create(0, 60)
    await world.filter(0)
    world.nominate(0, "b", reason="Unschedulable", message="no")
    await world.settle()
    assert world.offered_nodes(0) == ["a", "b"]
    world.nominate(0, "")
    world.nominate(0, "a")
    await world.settle()
    assert world.offered_nodes(0) == ["a"]
    world.offers.clear()


@virtually
async def test_a_request_waits_briefly_for_the_decision_about_an_offer() -> None:
    """The first pod is decided 100 ms after the second request."""
    world = World()
    world.create(0, 60)
    await world.filter(0)
    world.create(1, 60)
    second = asyncio.create_task(world.decide(1))
    await asyncio.sleep(0.1)
    assert not second.done()
    world.select(0, 60, "a")
    assert fitting_nodes(await second) == ["b"]
    assert world.loop.time() == pytest.approx(0.1)
    world.offers.clear()


@virtually
async def test_a_request_that_waited_in_vain_is_refused_as_waiting() -> None:
    """kube-scheduler's only loop must not be blocked for longer."""
    world = World()
    world.create(0, 60)
    await world.filter(0)
    world.create(1, 60)
    decision = await world.decide(1)
    assert [reason.name for reason in decision.reasons] == ["WAITING", "WAITING"]
    assert world.loop.time() == pytest.approx(MAX_WAIT)
    world.offers.clear()


@virtually
async def test_with_a_pod_scheduling_time_out_of_0_no_request_waits() -> None:
    """The second pod is refused at once."""
    world = World(scheduling_timeout=0)
    world.create(0, 60)
    await world.filter(0)
    world.create(1, 60)
    assert await world.filter(1) == []
    assert world.loop.time() == 0
    world.offers.clear()


@virtually
async def test_with_a_node_reservation_time_out_of_0_nothing_is_offered() -> None:
    """Every pod is evaluated alone."""
    world = World(reservation_timeout=0)
    world.create(0, 60)
    world.create(1, 60)
    assert await world.filter(0) == ["a", "b"]
    assert await world.filter(1) == ["a", "b"]
    await world.assert_clean()


@virtually
async def test_a_second_request_replaces_the_pods_own_offer() -> None:
    """Retries and one-node probes of the same pod do not compete with its offer."""
    world = World()
    world.create(0, 60)
    assert await world.filter(0) == ["a", "b"]
    assert await world.filter(0) == ["a", "b"]
    assert fitting_nodes(await world.decide_pod(database_pod(0), ["a"])) == ["a"]
    assert world.offered_nodes(0) == ["a"]
    assert await world.filter(0) == ["a", "b"]
    assert world.offers.ledger.outstanding == 1
    world.offers.clear()


@virtually
async def test_a_caller_that_has_hung_up_leaves_no_offer() -> None:
    """kube-scheduler's time-out ended before the answer."""
    world = World()
    world.create(0, 60)
    with pytest.raises(CallerGoneError):
        await world.decide(0, caller_hung_up)
    await world.assert_clean()


@virtually
async def test_a_late_request_of_a_caller_that_hung_up_leaves_a_newer_offer_alone() -> None:
    """kube-scheduler acts on the answer to its newer request."""
    world = World()
    world.create(0, 60)
    assert await world.filter(0) == ["a", "b"]
    newer = world.offers.ledger.offer_of("uid-0")
    for space in (100, 10):
        world.resize("a", "b", space=space)
        with pytest.raises(CallerGoneError):
            await world.decide(0, caller_hung_up)
        assert world.offers.ledger.offer_of("uid-0") is newer
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_an_offer_ends_when_its_pod_is_deleted() -> None:
    """kube-scheduler has not decided by then."""
    world = World()
    world.create(0, 60)
    await world.filter(0)
    await world.settle()
    world.cache.remove(database_pod(0))
    await world.assert_clean()
    assert world.ended_offers("false") == 1


@virtually
async def test_an_offer_ends_one_second_after_its_pod_was_declared_unschedulable() -> None:
    """No decision followed."""
    world = World()
    world.create(0, 60)
    await world.filter(0)
    await asyncio.sleep(3)
    world.nominate(0, "", reason="Unschedulable", message="other nodes")
    await asyncio.sleep(0.9)
    assert world.offered_nodes(0) == ["a", "b"]
    await asyncio.sleep(0.2)
    await world.assert_clean()


@virtually
async def test_an_offer_lives_a_minute_at_most() -> None:
    """kube-scheduler may have failed."""
    world = World()
    world.create(0, 60)
    await world.filter(0)
    await asyncio.sleep(59.9)
    assert world.offered_nodes(0) == ["a", "b"]
    await asyncio.sleep(0.2)
    await world.assert_clean()


@virtually
async def test_after_a_take_over_a_nomination_is_demand() -> None:
    """Nothing else shows the previous leader's answer."""
    world = World()
    world.create(0, 60)
    world.nominate(0, "a")
    await world.offers.adopt(math.inf)
    world.create(1, 60)
    decision = await world.decide(1)
    assert [reason.name for reason in decision.reasons] == ["SPOKEN_FOR", "ROOM"]
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_a_pod_whose_claim_does_not_exist_is_an_error_and_gets_no_offer() -> None:
    """It is an error without reservations, too."""
    world = World()
    with pytest.raises(ResolutionError, match="data-7"):
        await world.decide(7)
    await world.assert_clean()


@virtually
async def test_a_new_leader_waits_until_the_previous_leaders_decisions_are_visible() -> None:
    """The pod shows its decision 2 s later."""
    world = World()
    world.create(0, 60)
    taking_over = asyncio.create_task(world.offers.adopt(0.0))
    await asyncio.sleep(2)
    assert not taking_over.done()
    world.nominate(0, "b")
    await taking_over
    assert world.loop.time() < 2.5
    world.offers.clear()
    await world.assert_clean()


@pytest.mark.parametrize(("undisturbed", "expected"), [(0.0, SETTLE_TIMEOUT), (3.0, SETTLE_TIMEOUT - 3), (60.0, 0.0)])
def test_a_new_leader_waits_for_an_undecided_pod_until_5_s_after_the_last_answer(
    undisturbed: float, expected: float
) -> None:
    """There may have been no request for it."""

    async def scenario() -> None:
        world = World()
        world.create(0, 60)
        await world.offers.adopt(undisturbed)
        assert world.loop.time() == pytest.approx(expected)

    run(scenario())


@virtually
async def test_a_new_leader_does_not_wait_if_no_pod_is_undecided() -> None:
    """A cluster at rest is taken over at once."""
    world = World()
    world.cache.put(make.claim("data-0", 60), database_pod(0, node="a"))
    await world.offers.adopt(0.0)
    assert world.loop.time() == 0


@virtually
async def test_fetching_a_missing_object_does_not_hold_up_other_requests() -> None:
    """While the API server is slow, another pod is answered."""
    world = World()
    world.create(0, 30)
    world.cache.put(database_pod(1))
    world.cache.elsewhere["default/data-1"] = make.claim("data-1", 30)
    world.cache.fetch_seconds = 1.5
    slow = asyncio.create_task(world.filter(1))
    await asyncio.sleep(0.1)
    assert await world.filter(0) == ["a", "b"]
    assert world.loop.time() < 0.2
    assert await slow == ["a"]
    assert world.loop.time() == pytest.approx(1.5)
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_a_node_that_fills_up_during_the_evaluation_is_not_offered() -> None:
    """The pod is evaluated again from the newer state."""
    world = World()
    world.create(0, 60)
    world.evaluator.interruptions = [lambda: world.resize("a", space=10)]
    assert await world.filter(0) == ["b"]
    assert world.evaluator.interruptions == []
    world.offers.clear()
    await world.assert_clean()


class RestlessStateSource(FakeStateSource):
    """A state that changes with every read.

    Attributes:
        changes: the next change comes first
    """

    def __init__(self, *objects: Object | list[Object]) -> None:
        self.changes: list[Object] = []
        super().__init__(*objects)

    def state(self) -> ClusterState:
        """Makes the next change, and returns the state with it."""
        if self.changes:
            self.put(self.changes.pop(0))
        return super().state()


@virtually
async def test_nodes_that_do_not_stop_changing_are_left_out() -> None:
    """Only nodes that were evaluated as they are now are offered."""
    cache = RestlessStateSource(two_nodes())
    world = World(cache=cache)
    world.create(0, 60)
    cache.changes = [make.longhorn_node("a", 100 + number) for number in range(100)]
    decision = await world.decide(0)
    assert cache.changes
    assert {reason.name for reason in decision.reasons} <= {"ROOM", "WAITING"}
    assert decision.reasons[0].name == "WAITING"
    cache.changes = []
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_a_pod_whose_volumes_may_go_anywhere_gets_an_offer_too() -> None:
    """Its volume counts on every node until one is selected, and as demand afterwards."""
    world = World()
    world.cache.put(make.storage_class("far", dataLocality="disabled"))
    world.cache.put(make.claim("data-0", 60, storage_class="far"), database_pod(0))
    assert await world.filter(0) == ["a", "b"]
    world.create(1, 60)
    assert await world.filter(1) == []
    assert world.loop.time() == pytest.approx(MAX_WAIT)
    claim = make.claim("data-0", 60, storage_class="far")
    claim["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    world.cache.put(claim)
    await world.assert_clean()


def volume_with_replica(number: int, size: int, node: str) -> list[Object]:
    """The bound claim data-<number>, whose volume has a healthy replica on a node."""
    return [
        make.claim(f"data-{number}", size, bound=True),
        make.persistent_volume(f"data-{number}"),
        make.volume(f"vol-data-{number}", size),
        make.replica(f"r-{number}", f"vol-data-{number}", node, size=size),
    ]


@virtually
async def test_replicas_that_exist_do_not_count_in_an_offer() -> None:
    """Only its second volume of 30 Gi takes space; 60 of 100 Gi are its own replica."""
    world = World()
    world.cache.put(
        *volume_with_replica(0, 60, "a"), make.claim("more", 30), make.pod("data-0", "more", name="db-0", uid="uid-0")
    )
    world.resize("b", space=10)
    assert fitting_nodes(await world.decide_pod(make.pod("data-0", "more", name="db-0", uid="uid-0"))) == ["a"]
    world.create(1, 30)
    assert await world.filter(1) == []
    world.create(2, 10)
    assert await world.filter(2) == ["a"] or await world.filter(2) == ["b"]
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_an_offer_and_the_demand_of_the_same_volume_count_once() -> None:
    """The volume has another name once its claim is bound."""
    world = World()
    world.create(0, 40)
    world.select(0, 40, "a")
    assert await world.filter(0) == ["a", "b"]
    bound = make.claim("data-0", 40, bound=True)
    bound["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    persistent = make.persistent_volume("data-0", uid="uid-data-0")
    persistent["metadata"]["creationTimestamp"] = "2026-01-01T00:00:05Z"
    pending = database_pod(0)
    pending["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
    world.cache.put(pending, bound, persistent, make.volume("vol-data-0", 40))
    world.create(1, 60)
    assert await world.filter(1) == ["a"] or world.offered_nodes(1) == ["b"]
    decision = await world.decide(1)
    assert decision.reasons[0].name in {"ROOM", "NOT_OFFERED"}
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_a_pod_that_fits_nowhere_at_its_second_request_loses_its_offer() -> None:
    """Other pods get the space when it is free again."""
    world = World()
    world.create(0, 60)
    await world.filter(0)
    world.resize("a", "b", space=10)
    assert await world.filter(0) == []
    assert world.offered_nodes(0) == []
    world.resize("a", "b", space=200)
    world.create(1, 60)
    assert await world.filter(1) == ["a", "b"]
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_an_offer_made_the_moment_the_last_one_ends_is_watched() -> None:
    """kube-scheduler's first back-off is as long as an offer of an unschedulable pod lasts."""
    world = World()
    world.create(0, 60)
    await world.filter(0)
    await world.settle()
    world.nominate(0, "", reason="Unschedulable", message="no")
    await world.settle()
    world.loop.call_later(1.0, lambda: None)
    await asyncio.sleep(1.0)
    assert await world.filter(0) == ["a", "b"]
    world.select(0, 60, "a")
    await world.assert_clean()


@virtually
async def test_an_answer_that_is_refused_at_the_last_moment_leaves_no_offer() -> None:
    """kube-scheduler gets the reason instead of nodes."""
    world = World()
    world.create(0, 60)

    async def refuse() -> bool:
        raise UnavailableError("not the leader any more")

    with pytest.raises(UnavailableError):
        await world.offers.filter(make.as_pod(database_pod(0)), NODES, refuse)
    await world.assert_clean()


@virtually
async def test_an_evaluation_that_began_in_an_earlier_lead_makes_no_offer() -> None:
    """The offers of that lead are forgotten."""
    world = World()
    world.create(0, 60)
    world.evaluator.interruptions = [world.offers.clear]
    with pytest.raises(UnavailableError):
        await world.filter(0)
    assert world.evaluator.interruptions == []
    await world.assert_clean()


class Journal:
    """Records requests, refusals and decisions."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def note_request(self, pod: Pod) -> None:
        """Records a request."""
        self.entries.append(f"{pod.name} requested")

    def note_refusal(self, pod: Pod, candidates: Sequence[str]) -> None:
        """Records a refusal."""
        self.entries.append(f"{pod.name} refused on {' '.join(candidates)}")

    def note_decision(self, pod: Pod, node: str, offered_at: float) -> None:
        """Records a decision."""
        self.entries.append(f"{pod.name} goes to {node}, offered at {offered_at:g} s")


@virtually
async def test_requests_refusals_and_decisions_are_observed() -> None:
    """Observers get the pod each time."""
    world = World()
    journal = Journal()
    world.offers.subscribe(journal, journal)
    world.create(0, 60)
    world.create(1, 160)
    await asyncio.sleep(3)
    await world.filter(0)
    await world.filter(1)
    world.select(0, 60, "b")
    await world.assert_clean()
    assert journal.entries == [
        "db-0 requested",
        "db-1 requested",
        "db-1 refused on a b",
        "db-0 goes to b, offered at 3 s",
    ]


@virtually
async def test_a_request_without_candidates_is_not_observed_as_a_refusal() -> None:
    """A policy refused all nodes, so Longhorn's objects cannot change that."""
    world = World()
    journal = Journal()
    world.offers.subscribe(journal, journal)
    world.create(0, 60)
    decision = await world.offers.filter(make.as_pod(database_pod(0)), [], caller_waits)
    assert not decision.reasons
    assert journal.entries == ["db-0 requested"]
    await world.assert_clean()


@virtually
async def test_while_refusals_are_only_observed_no_pod_counts_as_refused() -> None:
    """kube-scheduler gets every node, so that there is nothing to retry; enforcing takes effect with the next request."""
    world = World()
    journal = Journal()
    world.offers.subscribe(journal, journal)
    world.create(1, 160)
    for mode in (Enforcement.OBSERVE, Enforcement.ENFORCE):
        world.settings = replace(world.settings, enforcement=mode)
        await world.filter(1)
    assert journal.entries == ["db-1 requested", "db-1 requested", "db-1 refused on a b"]
    await world.assert_clean()


@virtually
async def test_draining_waits_until_offers_have_ended() -> None:
    """They end by a decision or by age."""
    world = World()
    await world.offers.adopt(math.inf)
    world.create(0, 60)
    await world.filter(0)
    settling = asyncio.create_task(world.offers.settle())
    await asyncio.sleep(2)
    assert not settling.done()
    world.select(0, 60, "a")
    assert await settling, "a successor may answer at once"
    assert world.loop.time() == pytest.approx(2)
    await world.assert_clean()


@virtually
async def test_draining_waits_for_an_accepted_request_whose_pod_is_looked_for() -> None:
    """Its offer is handed over with the others."""
    world = World(cache=SlowSource(two_nodes()), store=FakeOfferStore())
    await world.offers.adopt(math.inf)
    world.cache.put(make.claim("data-0", 60))
    world.cache.elsewhere["default/db-0"] = database_pod(0)
    request = asyncio.create_task(world.filter(0))
    await asyncio.sleep(0.1)
    assert await world.offers.settle()
    assert await request == ["a", "b"]
    assert world.store is not None
    assert world.store.final is not None
    assert world.store.final.outstanding == 1
    world.offers.clear()


@virtually
async def test_draining_waits_5_s_at_most() -> None:
    """If an offer is open then that no successor can know, the Lease must run out."""
    world = World()
    await world.offers.adopt(math.inf)
    world.create(0, 60)
    await world.filter(0)
    assert not await world.offers.settle()
    assert world.loop.time() == pytest.approx(SETTLE_TIMEOUT)
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_a_leader_that_has_not_adopted_yet_hands_nothing_over() -> None:
    """Its own record would hide its predecessor's."""
    world = World(store=FakeOfferStore())
    assert not await world.offers.settle()
    assert world.store is not None
    assert world.store.final is None


@virtually
async def test_draining_records_the_open_offers_without_waiting_for_decisions() -> None:
    """The pod's decision is under way."""
    world = World(store=FakeOfferStore())
    await world.offers.adopt(math.inf)
    world.create(0, 60)
    await world.filter(0)
    assert await world.offers.settle()
    assert world.loop.time() == 0
    assert world.store is not None
    assert world.store.final is not None
    assert set(world.store.final.offers) == {"uid-0"}
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_draining_answers_accepted_requests_first() -> None:
    """What they are offered is recorded, too."""
    world = World(store=FakeOfferStore())
    await world.offers.adopt(math.inf)
    world.cache.put(database_pod(0))
    world.cache.elsewhere["default/data-0"] = make.claim("data-0", 60)
    world.cache.fetch_seconds = 1.5
    request = asyncio.create_task(world.filter(0))
    await asyncio.sleep(0.1)
    assert await world.offers.settle()
    assert await request == ["a", "b"]
    assert world.store is not None
    assert world.store.final is not None
    assert set(world.store.final.offers) == {"uid-0"}
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_a_request_that_takes_too_long_for_the_hand_over_gets_no_offer() -> None:
    """The record is written, and must have every offer."""
    world = World(store=FakeOfferStore())
    await world.offers.adopt(math.inf)
    world.cache.put(database_pod(0))
    world.cache.elsewhere["default/data-0"] = make.claim("data-0", 60)
    world.cache.fetch_seconds = ANSWER_TIMEOUT + 1
    request = asyncio.create_task(world.filter(0))
    await asyncio.sleep(0.1)
    assert await world.offers.settle()
    with pytest.raises(UnavailableError):
        await request
    assert world.store is not None
    assert world.store.final is not None
    assert not world.store.final.offers


@virtually
async def test_if_the_record_cannot_be_written_draining_waits_as_without() -> None:
    """The successor must not start at once."""
    world = World(store=FakeOfferStore(fails=True))
    await world.offers.adopt(math.inf)
    world.create(0, 60)
    await world.filter(0)
    assert not await world.offers.settle()
    assert world.loop.time() == pytest.approx(SETTLE_TIMEOUT)


def restart(world: World, *, final: bool = True) -> tuple[World, HandoverRecord]:
    """A new leader in the same cluster, and the previous one's record."""
    ledger = world.offers.ledger
    data = RecordEncoder().encode(ledger, RecordHead("leader", 1, final=final), world.loop.time()).data
    world.offers.clear()
    return World(cache=world.cache), decode_record(data)


@virtually
async def test_a_new_leader_restores_recorded_offers_at_once() -> None:
    """They count, narrow and end as if the leader had not changed."""
    world = World()
    world.create(0, 60)
    await world.filter(0)
    await asyncio.sleep(20)
    world, record = restart(world)
    await world.offers.adopt(math.inf, record)
    assert world.loop.time() == 20, "a final record makes waiting unnecessary"
    assert world.offered_nodes(0) == ["a", "b"]
    await asyncio.sleep(39.9)
    assert world.offered_nodes(0) == ["a", "b"]
    await asyncio.sleep(0.2)
    assert world.offered_nodes(0) == [], "60 s after it was made"
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_a_killed_leaders_offers_are_restored_with_at_least_their_age() -> None:
    """The time since it may have answered last has passed; the wait for what it did not record stays."""
    world = World()
    world.create(0, 60)
    await world.filter(0)
    world, record = restart(world, final=False)
    await world.offers.adopt(4.0, record)
    assert world.loop.time() == pytest.approx(1.0)
    assert world.offered_nodes(0) == ["a", "b"]
    await asyncio.sleep(54.9)
    assert world.offered_nodes(0) == ["a", "b"]
    await asyncio.sleep(0.2)
    await world.assert_clean()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda world: world.cache.put(database_pod(0, node="a")), id="bound"),
        pytest.param(lambda world: world.cache.put(database_pod(0, uid="other")), id="another pod of its name"),
        pytest.param(lambda world: world.cache.put(database_pod(0, phase="Failed")), id="finished"),
        pytest.param(lambda world: world.select(0, 60, "a"), id="decided"),
    ],
)
def test_an_offer_that_has_ended_meanwhile_is_not_restored(change: Callable[[World], None]) -> None:
    """What followed from it is visible."""

    async def scenario() -> None:
        world = World()
        world.create(0, 60)
        await world.filter(0)
        world, record = restart(world)
        change(world)
        await world.offers.adopt(math.inf, record)
        await world.settle()
        assert world.offered_nodes(0) == []

    run(scenario())


@virtually
async def test_restoring_fetches_what_no_watch_has_delivered() -> None:
    """Without its claim the offer could not be restored."""
    world = World()
    world.cache.put(database_pod(0))
    world.cache.elsewhere["default/data-0"] = make.claim("data-0", 60)
    await world.filter(0)
    world, record = restart(world)
    world.cache = FakeStateSource(two_nodes(), database_pod(0))
    successor = World(cache=world.cache)
    successor.cache.elsewhere["default/data-0"] = make.claim("data-0", 60)
    await successor.offers.adopt(math.inf, record)
    assert successor.offered_nodes(0) == ["a", "b"]
    successor.offers.clear()
    await successor.assert_clean()


@virtually
async def test_an_unchanged_condition_does_not_end_a_restored_offer() -> None:
    """A digest suffices to recognise it; another one ends the offer after a second."""
    world = World()
    world.create(0, 60)
    world.cache.put(nominated_pod(0, "", status="False", message="no space"))
    await world.filter(0)
    world, record = restart(world)
    await world.offers.adopt(math.inf, record)
    await asyncio.sleep(5)
    assert world.offered_nodes(0) == ["a", "b"]
    world.cache.put(nominated_pod(0, "", status="False", message="still no space"))
    await asyncio.sleep(1.1)
    assert world.offered_nodes(0) == []


@virtually
async def test_a_predecessor_of_the_same_name_does_not_end_the_offer() -> None:
    """A StatefulSet's new pod has the name of the old pod, which the watch may still show."""
    world = World()
    world.create(0, 60)
    before = database_pod(0)
    before["metadata"]["uid"] = "uid-of-its-predecessor"
    world.cache.elsewhere["default/db-0"] = database_pod(0)
    world.cache.put(before)
    await world.filter(0)
    await world.settle()
    assert world.offered_nodes(0) == ["a", "b"]
    world.cache.put(database_pod(0))
    await world.settle()
    assert world.offered_nodes(0) == ["a", "b"]
    world.cache.put(before)
    await world.assert_clean()


@virtually
async def test_a_nomination_counts_for_as_long_as_it_stands() -> None:
    """In a large burst kube-scheduler's other writes are more than a minute behind."""
    world = World()
    world.create(0, 60)
    world.create(1, 60)
    await world.filter(0)
    world.nominate(0, "a")
    await asyncio.sleep(600)
    decision = await world.decide(1)
    assert [reason.name for reason in decision.reasons] == ["SPOKEN_FOR", "ROOM"]
    world.offers.clear()
    await world.assert_clean()


def preemptor(number: int, priority: int) -> Object:
    """A pod of a priority."""
    raw = database_pod(number)
    raw["spec"]["priority"] = priority
    return raw


@virtually
async def test_the_node_that_preemption_makes_room_on_is_held() -> None:
    """Against pods of lower or equal priority, until the nomination goes."""
    world = World()
    world.create(1, 60)
    world.cache.put(make.claim("data-0", 60), preemptor(0, 5), make.claim("data-2", 60), preemptor(2, 6))
    decision = await world.verbs.preempt(make.as_pod(preemptor(0, 5)), None, ["a"])
    assert fitting_nodes(decision) == ["a"]
    nominated = nominated_pod(0, "a", reason="Unschedulable", message="no")
    nominated["spec"]["priority"] = 5
    world.cache.put(nominated)
    await asyncio.sleep(120)
    assert [reason.name for reason in (await world.decide(1)).reasons] == ["SPOKEN_FOR", "ROOM"]
    decision = await world.decide_pod(preemptor(2, 6))
    assert [reason.name for reason in decision.reasons] == ["ROOM", "SPOKEN_FOR"]
    world.nominate(0, "", reason="Unschedulable", message="no")
    await asyncio.sleep(2)
    assert world.offered_nodes(0) == []
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_no_room_is_held_for_a_pod_that_fits_nowhere() -> None:
    """Preemption is pointless there, and no victim ends."""
    world = World()
    world.cache.put(make.claim("data-0", 600), preemptor(0, 5))
    assert fitting_nodes(await world.verbs.preempt(make.as_pod(preemptor(0, 5)), None, ["a"])) == []
    assert world.offered_nodes(0) == []
    await world.assert_clean()


@virtually
async def test_an_offer_of_a_pod_that_no_view_shows_ends() -> None:
    """A nomination would keep it for ever; the pod was deleted before its watch showed it."""
    world = World()
    world.cache.put(make.claim("data-0", 60))
    world.cache.elsewhere["default/db-0"] = database_pod(0)
    await world.decide_pod(nominated_pod(0, "a"), ["a"])
    assert world.offered_nodes(0) == ["a"]
    await asyncio.sleep(61)
    assert world.offered_nodes(0) == []
    await world.assert_clean()


@virtually
async def test_nothing_is_offered_to_a_pod_that_does_not_exist() -> None:
    """Requests about made-up pods would otherwise take the space of real ones."""
    world = World()
    world.cache.put(make.claim("data-0", 60))
    assert await world.filter(0) == ["a", "b"]
    assert world.offered_nodes(0) == []
    assert world.cache.fetched == ["default/db-0"]


@virtually
async def test_nothing_is_offered_to_a_pod_of_another_uid() -> None:
    """The pod of this name is a later one."""
    world = World()
    world.create(0, 60)
    stranger = database_pod(0)
    stranger["metadata"]["uid"] = "made-up"
    await world.decide_pod(stranger)
    assert world.offers.ledger.outstanding == 0


@virtually
async def test_a_pod_that_the_state_has_is_not_read_again() -> None:
    """No request to the API server is on the way of a decision."""
    world = World()
    world.create(0, 60)
    await world.filter(0)
    assert world.cache.fetched == []
    world.offers.clear()


@virtually
async def test_nothing_is_held_for_a_pod_that_does_not_exist() -> None:
    """Neither at a preemption."""
    world = World()
    world.cache.put(make.claim("data-0", 60))
    await world.verbs.preempt(make.as_pod(database_pod(0)), None, ["a"])
    assert world.offers.ledger.outstanding == 0


@virtually
async def test_a_hold_outlives_a_refusal_while_its_nomination_stands() -> None:
    """While victims end, kube-scheduler asks about the other nodes only."""
    world = World()
    nominated = nominated_pod(0, "a", reason="Unschedulable", message="no")
    nominated["spec"]["priority"] = 5
    world.cache.put(make.claim("data-0", 60), nominated)
    world.create(1, 60)
    world.resize("b", space=10)
    await world.verbs.preempt(make.as_pod(nominated), None, ["a"])
    decision = await world.decide_pod(nominated, ["b"])
    assert fitting_nodes(decision) == []
    assert world.offered_nodes(0) == ["a"]
    assert [reason.name for reason in (await world.decide(1)).reasons] == ["SPOKEN_FOR", "INSUFFICIENT_STORAGE"]
    world.offers.clear()


@virtually
async def test_what_a_pod_of_higher_priority_was_offered_comes_before_a_hold() -> None:
    """It was offered what is held for another, and a third pod must not get it, too."""
    world = World()
    world.cache.put(make.claim("data-0", 50), preemptor(0, 5), make.claim("data-2", 90), preemptor(2, 100))
    world.create(1, 40)
    world.resize("b", space=10)
    await world.verbs.preempt(make.as_pod(preemptor(0, 5)), None, ["a"])
    assert fitting_nodes(await world.decide_pod(preemptor(2, 100))) == ["a"]
    assert await world.filter(1) == []
    world.offers.clear()


@virtually
async def test_preemption_may_choose_another_node_than_before() -> None:
    """The hold follows the nomination."""
    world = World()
    nominated = nominated_pod(0, "a", reason="Unschedulable", message="no")
    world.cache.put(make.claim("data-0", 60), nominated)
    await world.verbs.preempt(make.as_pod(nominated), None, ["a", "b"])
    world.nominate(0, "b", reason="Unschedulable", message="no, again")
    await asyncio.sleep(2)
    assert world.offered_nodes(0) == ["b"]
    world.offers.clear()


@virtually
async def test_a_wide_offer_that_replaces_a_decided_one_expires() -> None:
    """Its watcher waited for no time at all."""
    world = World()
    world.create(0, 60)
    await world.filter(0)
    world.nominate(0, "a")
    await world.settle()
    await world.filter(0)
    await asyncio.sleep(100)
    assert world.offers.outstanding == 0
    await world.assert_clean()


@virtually
async def test_restored_offers_keep_different_persistent_volumes() -> None:
    """The first pod's is not free for the second."""
    world = World(cache=FakeStateSource([*two_nodes(), *make.kept("pv-s", 20, "a"), *make.kept("pv-m", 30, "a")]))
    for number in (0, 1):
        world.create(number, 10)
        await world.filter(number)
    world, record = restart(world)
    await world.offers.adopt(math.inf, record)
    offers = [world.offers.ledger.offers[f"uid-{number}"] for number in (0, 1)]
    assert [getattr(volume, "persistent_volume", "") for offer in offers for volume in offer.volumes] == [
        "pv-s",
        "pv-m",
    ]
    world.offers.clear()
