"""`reservation: capacity`, in virtual time: what is offered, to whom, and when it ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from app.decisions.evaluator import Scheduling
from app.extender.availability import CallerGoneError, UnavailableError
from app.extender.metrics import PREFIX, Metrics
from app.extender.offers import LONGEST_WAIT, SETTLING_SECONDS, Offers
from app.extender.verbs import Verbs
from scheduler_core.errors import ResolutionError
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Decision, Options
from scheduler_core.extender.settings import ExtenderSettings
from scheduler_core.model.kube import Pod
from tests import builders as make
from tests.app.extender.test_node_reservation import NODES, cluster, db, fits, here, virtually
from tests.builders import Object
from tests.worlds.state_source import FakeCache
from tests.worlds.virtual_time import VirtualLoop, run

WAITED = f"{PREFIX}_pod_scheduling_wait_duration_seconds"


async def gone() -> bool:
    """A caller that has hung up."""
    return True


class World:
    """Two nodes of 100Gi; kube-scheduler and Longhorn are played by hand."""

    def __init__(self, *, scheduling: int = 5, reservation: int = 5, cache: FakeCache | None = None) -> None:
        self.settings = ExtenderSettings(
            enabled=True, pod_scheduling_timeout=scheduling, node_reservation_timeout=reservation
        )
        self.cache = cache or FakeCache(cluster())
        self.metrics = Metrics()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        decisions = Scheduling(self.cache, Options(), lambda: 0.0)
        self.offers = Offers(self.cache, decisions, lambda: self.settings, self.metrics, loop.time)
        self.verbs = Verbs(decisions, reservations=self.offers)

    def create(self, number: int, size: int) -> None:
        """A pod and its unbound claim."""
        self.cache.put(make.claim(f"data-{number}", size), db(number))

    async def decide(self, number: int, hung_up: Callable[[], Awaitable[bool]] = here) -> Decision:
        """kube-scheduler asks about the pod."""
        return await self.verbs.filter(make.as_pod(db(number)), NODES, hung_up)

    async def ask(self, number: int) -> list[str]:
        """The nodes it is offered."""
        return fits(await self.decide(number))

    def select(self, number: int, size: int, node: str) -> None:
        """kube-scheduler has chosen a node; Longhorn has yet to provision."""
        raw = make.claim(f"data-{number}", size)
        raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": node}
        self.cache.put(raw)

    def nominate(self, number: int, node: str, **condition: Any) -> None:
        """The pod's status names a node."""
        raw = db(number)
        raw["status"]["nominatedNodeName"] = node
        raw["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", **condition}] if condition else []
        self.cache.put(raw)

    def offered(self, number: int) -> list[str]:
        """The nodes of the pod's offer."""
        offer = self.offers.ledger.of(f"uid-{number}")
        return sorted(offer.nodes) if offer else []

    def waits(self, scheduled: str) -> float:
        """How many offers ended with a decision, or without."""
        return self.metrics.registry.get_sample_value(f"{WAITED}_count", {"pod_scheduled": scheduled}) or 0.0

    async def settle(self) -> None:
        """Lets the followers hear."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def assert_clean(self) -> None:
        """Nothing is outstanding, and nobody listens or runs."""
        await self.settle()
        assert self.offers.ledger.outstanding == 0
        assert self.cache.listeners == {}
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@virtually
async def test_alone_a_pod_is_offered_every_node_that_fits() -> None:
    """kube-scheduler's scoring decides; nobody waits."""
    world = World()
    world.create(0, 40)
    assert await world.ask(0) == ["a", "b"]
    assert world.offered(0) == ["a", "b"]
    assert world.loop.time() == 0
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_in_a_burst_each_pod_gets_some_nodes_those_with_most_room() -> None:
    """The first one's offer counts on both nodes, the second's on one."""
    world = World()
    for number in (0, 1):
        world.create(number, 20)
    world.create(2, 30)
    assert await world.ask(0) == ["a", "b"]
    assert await world.ask(1) == ["a"]
    assert await world.ask(2) == ["b"]
    decision = await world.decide(1)
    assert [reason.name for reason in decision.reasons] == ["ROOM", "NOT_OFFERED"]
    world.offers.clear()


@virtually
async def test_pods_asked_about_at_once_never_get_the_same_room() -> None:
    """Four pods of 60Gi, two nodes of 100Gi: no node is offered to two of them."""
    world = World()
    for number in range(4):
        world.create(number, 60)
    asking = asyncio.gather(*(world.decide(number) for number in range(4)))
    await asyncio.sleep(0.05)
    world.select(0, 60, "a")
    taken = [fits(answer) for answer in await asking]
    assert taken == [["a", "b"], ["b"], [], []]
    assert world.loop.time() == pytest.approx(LONGEST_WAIT)
    world.offers.clear()


@virtually
async def test_a_decision_turns_an_offer_into_demand() -> None:
    """The other node is free again at once."""
    world = World()
    world.create(0, 60)
    world.create(1, 60)
    assert await world.ask(0) == ["a", "b"]
    world.select(0, 60, "a")
    await world.settle()
    assert world.offered(0) == []
    assert world.waits("true") == 1
    decision = await world.decide(1)
    assert [reason.name for reason in decision.reasons] == ["SPOKEN_FOR", "ROOM"]
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_a_nomination_narrows_an_offer_unless_it_comes_from_preemption() -> None:
    """Preemption nominates beside PodScheduled=False, for nodes that were never judged."""
    world = World()
    world.create(0, 60)
    await world.ask(0)
    world.nominate(0, "b", reason="Unschedulable", message="no")
    await world.settle()
    assert world.offered(0) == ["a", "b"]
    world.nominate(0, "")
    world.nominate(0, "a")
    await world.settle()
    assert world.offered(0) == ["a"]
    world.offers.clear()


@virtually
async def test_what_is_only_offered_is_waited_for_shortly() -> None:
    """The first pod is decided 100 ms after the second one asked."""
    world = World()
    world.create(0, 60)
    world.create(1, 60)
    await world.ask(0)
    second = asyncio.create_task(world.decide(1))
    await asyncio.sleep(0.1)
    assert not second.done()
    world.select(0, 60, "a")
    assert fits(await second) == ["b"]
    assert world.loop.time() == pytest.approx(0.1)
    world.offers.clear()


@virtually
async def test_in_vain_it_is_told_what_it_waits_for() -> None:
    """The single loop of kube-scheduler must not be held up."""
    world = World()
    world.create(0, 60)
    world.create(1, 60)
    await world.ask(0)
    decision = await world.decide(1)
    assert [reason.name for reason in decision.reasons] == ["WAITING", "WAITING"]
    assert world.loop.time() == pytest.approx(LONGEST_WAIT)
    world.offers.clear()


@virtually
async def test_with_a_pod_scheduling_time_out_of_0_nobody_ever_waits() -> None:
    """Refused at once."""
    world = World(scheduling=0)
    world.create(0, 60)
    world.create(1, 60)
    await world.ask(0)
    assert await world.ask(1) == []
    assert world.loop.time() == 0
    world.offers.clear()


@virtually
async def test_with_a_node_reservation_time_out_of_0_nothing_is_kept() -> None:
    """Every pod is judged alone."""
    world = World(reservation=0)
    world.create(0, 60)
    world.create(1, 60)
    assert await world.ask(0) == ["a", "b"]
    assert await world.ask(1) == ["a", "b"]
    await world.assert_clean()


@virtually
async def test_asking_again_replaces_the_pod_s_own_offer() -> None:
    """Retries and one-node probes of the same pod do not stand in its way."""
    world = World()
    world.create(0, 60)
    assert await world.ask(0) == ["a", "b"]
    assert await world.ask(0) == ["a", "b"]
    assert fits(await world.verbs.filter(make.as_pod(db(0)), ["a"], here)) == ["a"]
    assert world.offered(0) == ["a"]
    assert await world.ask(0) == ["a", "b"]
    assert world.offers.ledger.outstanding == 1
    world.offers.clear()


@virtually
async def test_a_caller_that_has_hung_up_leaves_no_offer() -> None:
    """kube-scheduler's time-out was over before the answer."""
    world = World()
    world.create(0, 60)
    with pytest.raises(CallerGoneError):
        await world.decide(0, gone)
    await world.assert_clean()


@virtually
async def test_a_late_call_whose_caller_has_gone_leaves_a_newer_ones_offer_alone() -> None:
    """kube-scheduler has given the first up, asked again, and goes by the second answer, whether there is room still or not."""
    world = World()
    world.create(0, 60)
    assert await world.ask(0) == ["a", "b"]
    newer = world.offers.ledger.of("uid-0")
    for room in (100, 10):
        world.cache.put(make.longhorn_node("a", room), make.longhorn_node("b", room))
        with pytest.raises(CallerGoneError):
            await world.decide(0, gone)
        assert world.offers.ledger.of("uid-0") is newer
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_an_offer_ends_with_its_pod() -> None:
    """Deleted before it was decided."""
    world = World()
    world.create(0, 60)
    await world.ask(0)
    await world.settle()
    world.cache.remove(db(0))
    await world.assert_clean()
    assert world.waits("false") == 1


@virtually
async def test_an_offer_ends_one_second_after_its_pod_was_declared_unschedulable() -> None:
    """No decision followed."""
    world = World()
    world.create(0, 60)
    await world.ask(0)
    await asyncio.sleep(3)
    world.nominate(0, "", reason="Unschedulable", message="other nodes")
    await asyncio.sleep(0.9)
    assert world.offered(0) == ["a", "b"]
    await asyncio.sleep(0.2)
    await world.assert_clean()


@virtually
async def test_an_offer_lives_a_minute_at_most() -> None:
    """Whatever happened to kube-scheduler."""
    world = World()
    world.create(0, 60)
    await world.ask(0)
    await asyncio.sleep(59.9)
    assert world.offered(0) == ["a", "b"]
    await asyncio.sleep(0.2)
    await world.assert_clean()


@virtually
async def test_after_a_take_over_a_nomination_counts_as_an_offer() -> None:
    """It is all that is left of what the predecessor answered."""
    world = World()
    world.create(0, 60)
    world.nominate(0, "a")
    await world.offers.adopt(math.inf)
    assert world.offered(0) == ["a"]
    world.create(1, 60)
    assert await world.ask(1) == ["b"]
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_a_pod_that_names_what_is_not_there_is_an_error_and_no_offer() -> None:
    """As without reservations."""
    world = World()
    with pytest.raises(ResolutionError, match="data-7"):
        await world.decide(7)
    await world.assert_clean()


@virtually
async def test_a_new_leader_waits_for_what_its_predecessor_answered_to_become_visible() -> None:
    """The pod shows what was decided 2 s later."""
    world = World()
    world.create(0, 60)
    taking_over = asyncio.create_task(world.offers.adopt(0.0))
    await asyncio.sleep(2)
    assert not taking_over.done()
    world.nominate(0, "b")
    await taking_over
    assert world.loop.time() < 2.5
    assert world.offered(0) == ["b"]
    world.offers.clear()
    await world.assert_clean()


@pytest.mark.parametrize(
    ("undisturbed", "expected"), [(0.0, SETTLING_SECONDS), (3.0, SETTLING_SECONDS - 3), (60.0, 0.0)]
)
def test_a_pod_nothing_is_heard_of_is_waited_for_until_5_s_after_the_last_answer(
    undisturbed: float, expected: float
) -> None:
    """Nobody may have been asked about it."""

    async def scenario() -> None:
        world = World()
        world.create(0, 60)
        await world.offers.adopt(undisturbed)
        assert world.loop.time() == pytest.approx(expected)

    run(scenario())


@virtually
async def test_nothing_is_waited_for_where_no_pod_is_undecided() -> None:
    """A cluster at rest is taken over at once."""
    world = World()
    world.cache.put(make.claim("data-0", 60), db(0, node="a"))
    await world.offers.adopt(0.0)
    assert world.loop.time() == 0


@virtually
async def test_an_object_that_no_watch_has_brought_is_looked_for_without_holding_others_up() -> None:
    """While the API server is slow, another pod is answered about."""
    world = World()
    world.create(0, 30)
    world.cache.put(db(1))
    world.cache.elsewhere["default/data-1"] = make.claim("data-1", 30)
    world.cache.slowness = 1.5
    slow = asyncio.create_task(world.ask(1))
    await asyncio.sleep(0.1)
    assert await world.ask(0) == ["a", "b"]
    assert world.loop.time() < 0.2
    assert await slow == ["a"]
    assert world.loop.time() == pytest.approx(1.5)
    world.offers.clear()
    await world.assert_clean()


class Restless(FakeCache):
    """A cluster in which something happens just when a decision has been worked out."""

    def __init__(self, *objects: Object | list[Object]) -> None:
        super().__init__(*objects)
        self.happens: list[Object] = []
        self.calls, self.every = 0, 4

    def memory(self) -> Memory:
        """Some calls show the next change."""
        self.calls += 1
        if self.happens and self.calls % self.every == 0:
            self.put(self.happens.pop(0))
        return super().memory()


@virtually
async def test_a_node_that_fills_up_while_it_is_decided_about_is_not_offered() -> None:
    """The decision is made again on the newer view."""
    world = World(cache=Restless(cluster()))
    world.create(0, 60)
    cache = world.cache
    assert isinstance(cache, Restless)
    cache.happens = [make.longhorn_node("a", 10)]
    assert await world.ask(0) == ["b"]
    assert cache.happens == []
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_nodes_that_do_not_stop_changing_are_left_out() -> None:
    """What is offered was decided about as it is."""
    world = World(cache=Restless(cluster()))
    world.create(0, 60)
    cache = world.cache
    assert isinstance(cache, Restless)
    cache.every = 1
    cache.happens = [make.longhorn_node("a", 100 + number) for number in range(100)]
    decision = await world.decide(0)
    assert {reason.name for reason in decision.reasons} <= {"ROOM", "WAITING"}
    assert decision.reasons[0].name == "WAITING"
    cache.happens = []
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_a_pod_whose_volumes_may_go_anywhere_is_followed_too() -> None:
    """Until a node is selected its volume counts on every node; then it is derived."""
    world = World()
    world.cache.put(make.storage_class("far", dataLocality="disabled"))
    world.cache.put(make.claim("data-0", 60, storage_class="far"), db(0))
    assert await world.ask(0) == ["a", "b"]
    world.create(1, 60)
    asking = asyncio.create_task(world.ask(1))
    assert await asking == []
    assert world.loop.time() == pytest.approx(LONGEST_WAIT)
    raw = make.claim("data-0", 60, storage_class="far")
    raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    world.cache.put(raw)
    await world.assert_clean()


def kept(number: int, size: int, node: str) -> list[Object]:
    """A bound claim of a pod with a healthy replica."""
    return [
        make.claim(f"data-{number}", size, bound=True),
        make.persistent_volume(f"data-{number}"),
        make.volume(f"vol-data-{number}", size),
        make.replica(f"r-{number}", f"vol-data-{number}", node, size=size),
    ]


@virtually
async def test_what_is_kept_on_a_node_already_does_not_count_in_an_offer() -> None:
    """60 of 100Gi are the pod's own replica there; its second volume of 30Gi is what will come."""
    world = World()
    world.cache.put(*kept(0, 60, "a"), make.claim("more", 30), make.pod("data-0", "more", name="db-0", uid="uid-0"))
    world.cache.put(make.longhorn_node("b", 10))
    asked = make.as_pod(make.pod("data-0", "more", name="db-0", uid="uid-0"))
    assert fits(await world.verbs.filter(asked, NODES, here)) == ["a"]
    world.create(1, 30)
    assert await world.ask(1) == []
    world.create(2, 10)
    assert await world.ask(2) == ["a"] or await world.ask(2) == ["b"]
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_an_offer_and_the_demand_that_came_of_it_are_one() -> None:
    """A pod that is asked about again when its claim is bound: its volume counts once, by whatever name."""
    world = World()
    world.create(0, 40)
    world.select(0, 40, "a")
    assert await world.ask(0) == ["a", "b"]
    bound = make.claim("data-0", 40, bound=True)
    bound["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    persistent = make.persistent_volume("data-0", uid="uid-data-0")
    persistent["metadata"]["creationTimestamp"] = "2026-01-01T00:00:05Z"
    pending = db(0)
    pending["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
    world.cache.put(pending, bound, persistent, make.volume("vol-data-0", 40))
    world.create(1, 60)
    assert await world.ask(1) == ["a"] or world.offered(1) == ["b"]
    decision = await world.decide(1)
    assert decision.reasons[0].name in {"ROOM", "NOT_OFFERED"}
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_a_pod_that_asks_again_and_fits_nowhere_loses_its_earlier_offer() -> None:
    """Others get the room when it is there again."""
    world = World()
    world.create(0, 60)
    await world.ask(0)
    world.cache.put(make.longhorn_node("a", 10), make.longhorn_node("b", 10))
    assert await world.ask(0) == []
    assert world.offered(0) == []
    world.cache.put(make.longhorn_node("a", 100), make.longhorn_node("b", 100))
    world.create(1, 60)
    assert await world.ask(1) == ["a", "b"]
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_an_offer_made_the_moment_the_last_one_ends_is_followed() -> None:
    """kube-scheduler's first back-off is as long as what a declared pod has left."""
    world = World()
    world.create(0, 60)
    await world.ask(0)
    await world.settle()
    world.nominate(0, "", reason="Unschedulable", message="no")
    await world.settle()
    world.loop.call_later(1.0, lambda: None)
    await asyncio.sleep(1.0)
    assert await world.ask(0) == ["a", "b"]
    world.select(0, 60, "a")
    await world.assert_clean()


@virtually
async def test_an_answer_that_is_refused_at_the_last_moment_leaves_no_offer() -> None:
    """kube-scheduler gets a 503."""
    world = World()
    world.create(0, 60)

    async def refused() -> bool:
        raise UnavailableError("not the leader any more")

    with pytest.raises(UnavailableError):
        await world.offers.filter(make.as_pod(db(0)), NODES, refused)
    await world.assert_clean()


@virtually
async def test_an_answer_begun_in_an_earlier_lead_makes_no_offer() -> None:
    """What was forgotten meanwhile must not come back."""
    world = World(cache=Forgetful(cluster()))
    world.create(0, 60)
    cache = world.cache
    assert isinstance(cache, Forgetful)
    cache.forget = world.offers.clear
    with pytest.raises(UnavailableError):
        await world.ask(0)
    await world.assert_clean()


class Forgetful(FakeCache):
    """A lead that is lost while a pod is decided about."""

    def __init__(self, *objects: Object | list[Object]) -> None:
        super().__init__(*objects)
        self.forget: Callable[[], None] | None = None
        self.calls = 0

    def memory(self) -> Memory:
        """The fourth call is in the middle of an evaluation."""
        self.calls += self.forget is not None
        if self.forget is not None and self.calls == 4:
            self.forget()
        return super().memory()


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.story: list[str] = []

    def asked(self, pod: Pod) -> None:
        """A question."""
        self.story.append(f"{pod.name} asked")

    def refused(self, pod: Pod, candidates: Sequence[str]) -> None:
        """A refusal."""
        self.story.append(f"{pod.name} refused on {' '.join(candidates)}")

    def decided(self, pod: Pod, node: str, offered_at: float) -> None:
        """A decision."""
        self.story.append(f"{pod.name} goes to {node}, offered at {offered_at:g} s")


@virtually
async def test_what_becomes_of_pods_is_told() -> None:
    """Asked, refused, decided."""
    world, listener = World(), Listener()
    world.offers.tell(listener, listener)
    world.create(0, 60)
    world.create(1, 160)
    await asyncio.sleep(3)
    await world.ask(0)
    await world.ask(1)
    world.select(0, 60, "b")
    await world.assert_clean()
    assert listener.story == ["db-0 asked", "db-1 asked", "db-1 refused on a b", "db-0 goes to b, offered at 3 s"]


@virtually
async def test_a_pod_that_has_no_node_left_is_not_told_as_refused() -> None:
    """A policy has barred them all: no change of Longhorn's objects would let the pod on any."""
    world, listener = World(), Listener()
    world.offers.tell(listener, listener)
    world.create(0, 60)
    decision = await world.offers.filter(make.as_pod(db(0)), [], here)
    assert not decision.reasons
    assert listener.story == ["db-0 asked"]
    await world.assert_clean()


@virtually
async def test_before_handing_over_offers_settle() -> None:
    """By a decision, or by age."""
    world = World()
    world.create(0, 60)
    await world.ask(0)
    settling = asyncio.create_task(world.offers.settled())
    await asyncio.sleep(2)
    assert not settling.done()
    world.select(0, 60, "a")
    await settling
    assert world.loop.time() == pytest.approx(2)
    await world.assert_clean()


@virtually
async def test_handing_over_waits_5_s_at_most() -> None:
    """Whatever was decided is visible by then; a successor that is told so need not wait again."""
    world = World()
    world.create(0, 60)
    await world.ask(0)
    await world.offers.settled()
    assert world.loop.time() == pytest.approx(SETTLING_SECONDS)
    world.offers.clear()
    await world.assert_clean()


@virtually
async def test_a_pod_is_not_gone_because_the_cache_still_has_its_predecessor() -> None:
    """A StatefulSet's pod bears its predecessor's name; the watch is behind kube-scheduler."""
    world = World()
    world.create(0, 60)
    before = db(0)
    before["metadata"]["uid"] = "uid-of-its-predecessor"
    world.cache.put(before)
    await world.ask(0)
    await world.settle()
    assert world.offered(0) == ["a", "b"]
    world.cache.put(db(0))
    await world.settle()
    assert world.offered(0) == ["a", "b"]
    world.cache.put(before)
    await world.assert_clean()


@virtually
async def test_taking_over_leaves_out_a_nominated_pod_whose_claim_is_missing() -> None:
    """One such pod must not keep the new leader from answering about all others."""
    world = World()
    world.nominate(7, "a")
    world.create(0, 60)
    world.nominate(0, "b")
    await world.offers.adopt(math.inf)
    assert (world.offered(7), world.offered(0)) == ([], ["b"])
    world.offers.clear()
    await world.assert_clean()
