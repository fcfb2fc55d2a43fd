"""`reservation: capacity`, in virtual time: which nodes are offered to which pods, and when offers end."""

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from app.evaluator import Evaluator
from app.extender.metrics import Metrics
from app.extender.nudger import Nudger
from app.extender.offer_store import OfferStore
from app.extender.offers import Offers
from app.extender.placement_monitor import Placements
from app.extender.verbs import Verbs
from app.policy import PolicyFile, PolicyInForce, SnapshotGenericState, load_plugins
from app.runtime.probes import PREFIX, HungUp, UnavailableError
from scheduler_core.decide.decision import Contenders, Decision, FilterOptions
from scheduler_core.decide.extender_settings import Enforcement, ExtenderSettings
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.model import generic
from scheduler_core.model.kube import Pod
from scheduler_core.offers.handover_record import HandoverRecord, RecordHead, decode_record, encode_record
from scheduler_core.offers.ledger import Ledger
from scheduler_core.structs import replace
from tests import builders as make
from tests.builders import Object
from tests.worlds.state_source import FakeStateSource, SlowSource, caller_waits, fitting_nodes
from tests.worlds.timeline import play, rows
from tests.worlds.two_nodes import NODES, claim_with_node, database_pod, nominated_pod, two_nodes
from tests.worlds.virtual_time import virtual_loop, virtually

SCHEDULING_WAIT = f"{PREFIX}_pod_scheduling_wait_duration_seconds"
FAR = make.storage_class("far", dataLocality="disabled")


class InterruptedEvaluator(Evaluator):
    """Lets something happen before an evaluation ends."""

    def __init__(self, cache: FakeStateSource) -> None:
        super().__init__(cache, FilterOptions())
        # Called one after the other, each at the end of one evaluation.
        self.interruptions: list[Callable[[], None]] = []

    async def decide_without_fetch(self, pod: Pod, candidates: Sequence[str], contenders: Contenders) -> Decision:
        decision = await super().decide_without_fetch(pod, candidates, contenders)
        if self.interruptions:
            self.interruptions.pop(0)()
        return decision


class RestlessStateSource(FakeStateSource):
    """A state that changes with every read."""

    def __init__(self, *objects: Object | list[Object]) -> None:
        self.changes: list[Object] = []  # the next change comes first
        super().__init__(*objects)

    def state(self) -> ClusterState:
        if self.changes:
            self.put(self.changes.pop(0))
        return super().state()


class FakeOfferStore(OfferStore):
    """Keeps the final record."""

    def __init__(self, *, fails: bool = False) -> None:
        self.final: Ledger | None = None  # the ledger that was recorded last before the end
        self._fails = fails

    def note(self, ledger: Ledger) -> None:
        """Does nothing."""

    async def write_final(self, ledger: Ledger) -> bool:
        self.final = ledger
        return not self._fails


class World:
    """Two nodes of 100 Gi; timelines play kube-scheduler and Longhorn.

    Args:
        slow: whether the API server takes a while to read a pod
        store: "" without one, "works" or "fails"
    """

    def __init__(
        self,
        *,
        scheduling_timeout: int = 5,
        reservation_timeout: int = 5,
        cache: FakeStateSource | None = None,
        slow: str = "",
        store: str = "",
    ) -> None:
        self.settings = ExtenderSettings(
            enabled=True, pod_scheduling_timeout=scheduling_timeout, node_reservation_timeout=reservation_timeout
        )
        self.cache = cache or (SlowSource if slow else FakeStateSource)(two_nodes(), FAR)
        self.metrics = Metrics()
        self.loop = virtual_loop()
        self.store = FakeOfferStore(fails=store == "fails") if store else None
        self.record: HandoverRecord | None = None
        self.journal: list[str] = []  # requests, refusals and decisions, once they are observed
        self._pods: dict[int, Object] = {}
        self._priorities: dict[int, int] = {}
        self._begin()

    def _begin(self) -> None:
        self.evaluator = InterruptedEvaluator(self.cache)
        self.offers = Offers(
            self.cache, self.evaluator, lambda: self.settings, self.metrics, self.loop.time, store=self.store
        )
        self.verbs = Verbs(self.evaluator, PolicyInForce(), decider=self.offers)

    def observe(self) -> None:
        self.offers.subscribe(cast("Nudger", self), cast("Placements", self))

    def note_request(self, pod: Pod) -> None:
        self.journal.append(f"{pod.name} requested")

    def note_refusal(self, pod: Pod, candidates: Sequence[str]) -> None:
        self.journal.append(f"{pod.name} refused on {' '.join(candidates)}")

    def note_decision(self, pod: Pod, node: str, offered_at: float) -> None:
        self.journal.append(f"{pod.name} goes to {node}, offered at {offered_at:g} s")

    def enforce(self, mode: str) -> None:
        self.settings = replace(self.settings, enforcement=Enforcement(mode))

    def fill_during_evaluation(self, node: str) -> None:
        self.evaluator.interruptions = [lambda: self.resize(node, space=10)]

    def lose_lead_during_evaluation(self) -> None:
        self.evaluator.interruptions = [self.offers.clear]

    def use_policy(self, file: Path, priority: Object, *plugins: str, gold: str = "") -> None:
        """Ranks nodes by one priority of a policy file; the node `gold` has a label gold."""
        file.write_text(json.dumps({"priorities": [priority]}))
        nodes = [generic.Node(name, labels={"gold": "yes"} if name == gold else {}) for name in NODES]
        source = SnapshotGenericState(GenericClusterState.of(nodes, [], []))
        policy = PolicyFile(str(file), load_plugins(plugins))
        self.verbs = Verbs(self.evaluator, PolicyInForce(policy, source), decider=self.offers)

    def create(
        self, number: int, size: int = 60, *, priority: int | None = None, storage_class: str = "longhorn"
    ) -> None:
        if priority is not None:
            self._priorities[number] = priority
        self.cache.put(make.claim(f"data-{number}", size, storage_class=storage_class))
        self._put_pod(number, database_pod(number))

    def create_unseen(self, *numbers: int, of: str = "claim") -> None:
        """Creates pods and their claims, of which no watch has delivered the pod, or the claim."""
        for number in numbers:
            objects = {"pod": database_pod(number), "claim": make.claim(f"data-{number}", 60)}
            unseen = objects.pop(of)
            self.cache.elsewhere[f"default/{unseen['metadata']['name']}"] = unseen
            self.cache.put(*objects.values())

    def create_claim(self, number: int) -> None:
        self.cache.put(make.claim(f"data-{number}", 60))

    def forget_claim(self, number: int) -> None:
        self.cache.remove(make.claim(f"data-{number}", 60))

    def _put_pod(self, number: int, raw: Object) -> None:
        if number in self._priorities:
            raw["spec"]["priority"] = self._priorities[number]
        self._pods[number] = raw
        self.cache.put(raw)

    def resize(self, *names: str, space: int) -> None:
        """Leaves so many Gi on each of these nodes."""
        self.cache.put(*(make.longhorn_node(name, space) for name in names))

    def select(self, number: int, node: str, size: int = 60, *, storage_class: str = "longhorn") -> None:
        """Selects a node for a pod's claim, as kube-scheduler does; Longhorn has not provisioned it yet."""
        claim = make.claim(f"data-{number}", size, storage_class=storage_class)
        claim["metadata"]["annotations"] = claim_with_node(number, node)["metadata"]["annotations"]
        self.cache.put(claim)

    def nominate(self, number: int, node: str = "", **condition: Any) -> None:
        self._put_pod(number, nominated_pod(number, node, **condition))

    def refuse(self, number: int, node: str = "", *, message: str = "no") -> None:
        """Declares a pod unschedulable; preemption may have nominated a node."""
        self.nominate(number, node, reason="Unschedulable", message=message)

    def bind(self, number: int, node: str) -> None:
        self.cache.put(database_pod(number, node=node))

    def finish(self, number: int) -> None:
        self.cache.put(database_pod(number, phase="Failed"))

    def show(self, number: int, uid: str = "") -> None:
        self.cache.put(database_pod(number, uid=uid))

    def delete(self, number: int) -> None:
        self.cache.remove(database_pod(number))

    async def decide(
        self, number: int, nodes: Sequence[str] = NODES, hung_up: HungUp = caller_waits, uid: str = ""
    ) -> Decision:
        raw = self._pods.get(number) or database_pod(number)
        return await self.decide_pod(database_pod(number, uid=uid) if uid else raw, nodes, hung_up)

    async def decide_pod(self, raw: Object, nodes: Sequence[str] = NODES, hung_up: HungUp = caller_waits) -> Decision:
        return (await self.verbs.filter(make.as_pod(raw), nodes, hung_up)).decision

    async def filter(self, number: int, *nodes: str, uid: str = "") -> list[str]:
        """Sends /filter for the pod of this number; returns the nodes that fit."""
        return fitting_nodes(await self.decide(number, nodes or NODES, uid=uid))

    async def filter_nowhere(self, number: int) -> list[str]:
        return [reason.name for reason in (await self.decide(number, [])).reasons]

    async def filter_nominated(self, number: int, node: str) -> list[str]:
        return fitting_nodes(await self.decide_pod(nominated_pod(number, node), [node]))

    async def filter_and_hang_up(self, number: int, *, after: int = 0) -> None:
        """As `filter`; the caller has hung up by the check after so many."""
        checks = count()

        async def has_hung_up() -> bool:
            return next(checks) >= after

        await self.decide(number, hung_up=has_hung_up)

    async def filter_together(self, *numbers: int) -> list[list[str]]:
        return list(await asyncio.gather(*(self.filter(number) for number in numbers)))

    async def reasons(self, number: int, *nodes: str) -> list[str]:
        """Sends /filter for the pod of this number; returns the reason for each node."""
        return [reason.name for reason in (await self.decide(number, nodes or NODES)).reasons]

    async def preempt(self, number: int, *nodes: str) -> list[str]:
        """Sends /preempt for the pod of this number; returns the nodes that fit."""
        raw = self._pods.get(number) or database_pod(number)
        return fitting_nodes(await self.verbs.preempt(make.as_pod(raw), nodes))

    def offer(self, number: int) -> list[str]:
        offer = self.offers.observed_ledger().offer_of(f"uid-{number}")
        return sorted(offer.nodes) if offer else []

    def offer_number(self, number: int) -> int:
        offer = self.offers.observed_ledger().offer_of(f"uid-{number}")
        return offer.number if offer else 0

    def outstanding(self) -> int:
        return self.offers.observed_ledger().outstanding

    def ended_offers(self, scheduled: str) -> float:
        """How many offers have ended with a decision ("true"), or without ("false")."""
        labels = {"pod_scheduled": scheduled}
        return self.metrics.registry.get_sample_value(f"{SCHEDULING_WAIT}_count", labels) or 0.0

    async def adopt(self, undisturbed: float) -> None:
        """Takes over, so many seconds after the previous leader's last answer."""
        await self.offers.adopt(undisturbed, self.record)

    def handed_over(self) -> list[str]:
        """The pods of the final record; "no record" without one."""
        final = self.store.final if self.store is not None else None
        return ["no record"] if final is None else sorted(final.offers) or ["no offer"]

    def restart(self, *, killed: str = "") -> None:
        head = RecordHead("leader", 1, final=not killed)
        self.record = decode_record(encode_record(self.offers.observed_ledger(), head, self.loop.time()).data)
        self.offers.clear()
        self._begin()

    def idle(self) -> None:
        assert self.offers.observed_ledger().outstanding == 0
        assert self.cache.listeners == {}

    async def end(self) -> None:
        """Loses the lead, and asserts that nothing is left behind."""
        assert self.evaluator.interruptions == []
        self.offers.clear()
        for _ in range(5):
            await asyncio.sleep(0)
        self.idle()
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


TIMELINES = """
# A request is answered with an offer.
a pod without competitors is offered every node that fits
    # kube-scheduler's scoring decides, and the request does not wait.
    0 create 0 40; filter 0 -> a b; offer 0 -> a b
in a burst each pod is offered the nodes with most free space
    # Where an offer would leave no room for as much again, one node of two is offered.
    0 create 0 30; create 1 30; create 2 30; filter 0 -> a b; filter 1 -> a; filter 2 -> b
    0 reasons 1 -> ROOM NOT_OFFERED
simultaneous requests never get the same space
    # No node of 100 Gi is offered to two of four pods of 60 Gi. While another pod waits for its turn, an offer has no more nodes
    # than that pod can spare.
    0 create 0; create 1; create 2; create 3; filter_together 0 1 2 3 -> waits
    0.05 select 0 a
    0.249 offer 1 -> b
    0.251 answer filter_together 0 1 2 3 -> a b none none
a second request replaces the pod's own offer
    # Retries and one-node probes of the same pod do not compete with its offer.
    0 create 0; filter 0 -> a b; filter 0 -> a b; filter 0 a -> a; offer 0 -> a; filter 0 -> a b; outstanding -> 1
with a node-reservation time-out of 0 nothing is offered
    # Every pod is evaluated alone.
    0 world reservation_timeout=0
    0 create 0; create 1; filter 0 -> a b; filter 1 -> a b; idle
a pod whose claim does not exist is an error and gets no offer
    # It is an error without reservations, too.
    0 filter 7 -> MissingObjectError data-7; idle
fetching a missing object does not hold up other requests
    # While the API server is slow, another pod is answered.
    0 create 0 30; create_unseen 1; set cache.fetch_seconds=1.5; filter 1 -> waits
    0.1 filter 0 -> a b
    1.499 offer 0 -> a b
    1.501 answer filter 1 -> a
a pod whose volumes may go anywhere gets an offer too
    # Its volume counts on every node until one is selected, and as demand afterwards.
    0 create 0 60 storage_class=far; filter 0 -> a b; create 1; filter 1 -> waits
    0.251 answer filter 1 -> none; select 0 a storage_class=far; idle
a pod that fits nowhere at its second request loses its offer
    # Other pods get the space when it is free again.
    0 create 0; filter 0 -> a b; resize a b space=10; filter 0 -> none; offer 0 -> none
    0 resize a b space=200; create 1; filter 1 -> a b
nothing is offered to a pod that does not exist
    # Requests about made-up pods would otherwise take the space of real ones.
    0 create_claim 0; filter 0 -> a b; offer 0 -> none; cache.fetched -> default/db-0
nothing is held at a preemption for a pod that does not exist
    0 create_claim 0; preempt 0 a -> a; outstanding -> 0
nothing is offered to a pod of another UID
    # The pod of this name is a later one.
    0 create 0; filter 0 uid=made-up -> a b; outstanding -> 0
a pod that the state has is not read again
    # No request to the API server is on the way of a decision.
    0 create 0; filter 0 -> a b; cache.fetched -> none
a request waits briefly for the decision about an offer
    # The first pod is decided 100 ms after the second request.
    0 create 0; filter 0 -> a b; create 1; filter 1 -> waits
    0.1 select 0 a; answer filter 1 -> b
a request that waited in vain is refused as waiting
    # kube-scheduler's only loop must not be blocked for longer.
    0 create 0; filter 0 -> a b; create 1; reasons 1 -> waits
    0.249 outstanding -> 1
    0.2499 offer 0 -> a b
    0.2501 answer reasons 1 -> WAITING WAITING
with a pod-scheduling time-out of 0 no request waits
    # The second pod is refused at once.
    0 world scheduling_timeout=0
    0 create 0; filter 0 -> a b; create 1; filter 1 -> none
a caller that has hung up leaves no offer
    # kube-scheduler's time-out ended before the answer.
    0 create 0; filter_and_hang_up 0 -> CallerGoneError; idle
a caller that hangs up once its offer is made leaves no offer
    0 create 0; filter_and_hang_up 0 after=1 -> CallerGoneError; idle
a late request of a caller that hung up leaves a newer offer alone
    # kube-scheduler acts on the answer to its newer request.
    0 create 0; filter 0 -> a b; offer_number 0 -> 1
    0 resize a b space=100; filter_and_hang_up 0 -> CallerGoneError; offer_number 0 -> 1
    0 resize a b space=10; filter_and_hang_up 0 -> CallerGoneError; offer_number 0 -> 1; offer 0 -> a b
a node that fills up during the evaluation is not offered
    0 create 0; fill_during_evaluation a; filter 0 -> b
an evaluation that began in an earlier lead makes no offer
    0 create 0; lose_lead_during_evaluation; filter 0 -> UnavailableError lead was lost; outstanding -> 0
requests, refusals and decisions are observed
    0 observe; create 0; create 1 160
    3 filter 0 -> a; filter 1 -> none; select 0 b
    4 journal -> db-0 requested db-1 requested db-1 refused on a b db-0 goes to b, offered at 3 s
a request without candidates is not observed as a refusal
    # It has no offer either.
    0 observe; create 0; filter_nowhere 0 -> none; journal -> db-0 requested
while refusals are only observed no pod counts as refused
    # kube-scheduler gets every node, so that there is nothing to retry; enforcing takes effect with the next request.
    0 observe; create 1 160; enforce observe; filter 1 -> none; enforce enforce; filter 1 -> none
    0 journal -> db-1 requested db-1 requested db-1 refused on a b
# An offer ends with its reason.
a decision turns an offer into demand
    # The other node is free again at once.
    0 create 0; filter 0 -> a b; create 1; select 0 a; offer 0 -> none; ended_offers true -> 1
    0 reasons 1 -> SPOKEN_FOR ROOM
a nomination narrows an offer unless it comes from preemption
    # Preemption nominates with the condition PodScheduled=False, for nodes that were never evaluated.
    0 create 0; filter 0 -> a b; refuse 0 b; offer 0 -> a b; nominate 0; nominate 0 a; offer 0 -> a
a nomination counts for as long as it stands
    # In a large burst kube-scheduler's other writes are more than a minute behind.
    0 create 0; filter 0 -> a b; create 1; nominate 0 a
    600 reasons 1 -> SPOKEN_FOR ROOM
an offer ends when its pod is deleted
    # kube-scheduler has not decided by then.
    0 create 0; filter 0 -> a b; delete 0; idle; ended_offers false -> 1
an offer ends one second after its pod was declared unschedulable
    # No decision followed.
    0 create 0; filter 0 -> a b
    3 refuse 0
    3.9 offer 0 -> a b
    4.1 idle
an offer lives a minute at most
    # kube-scheduler may have failed.
    0 create 0; filter 0 -> a b
    59.9 offer 0 -> a b
    60.1 idle
a wide offer that replaces a decided one expires
    # Its watcher waited for no time at all.
    0 create 0; filter 0 -> a b; nominate 0 a; filter 0 -> a b
    100 outstanding -> 0
a predecessor of the same name does not end the offer
    # A StatefulSet's new pod has the name of the old pod, which the watch may still show.
    0 create 0; create_unseen 0 of=pod; show 0 uid=uid-of-its-predecessor; filter 0 -> a b; offer 0 -> a b
    0 show 0; offer 0 -> a b; show 0 uid=uid-of-its-predecessor; idle
an offer of a pod that no view shows ends
    # A nomination would keep it for ever; the pod was deleted before its watch showed it.
    0 create_unseen 0 of=pod; filter_nominated 0 a -> a; offer 0 -> a
    61 offer 0 -> none; idle
# Offers outlive a change of the leader.
after a take-over a nomination is demand
    # Nothing else shows the previous leader's answer.
    0 create 0; nominate 0 a; adopt inf -> none; create 1; reasons 1 -> SPOKEN_FOR ROOM
a new leader waits until the previous leader's decisions are visible
    # The pod shows its decision 2 s later.
    0 create 0; adopt 0 -> waits
    2 answer adopt 0 -> waits; nominate 0 b
    2.5 answer adopt 0 -> none
a new leader waits for an undecided pod until 5 s after the last answer
    # There may have been no request for it.
    0 create 0; adopt 0 -> waits
    4.999 answer adopt 0 -> waits
    5.001 answer adopt 0 -> none
a new leader counts the 3 s since the last answer
    # The previous leader may have answered then.
    0 create 0; adopt 3 -> waits
    1.999 answer adopt 3 -> waits
    2.001 answer adopt 3 -> none
a new leader does not wait a minute after the last answer
    # What was decided is visible.
    0 create 0; adopt 60 -> none
a new leader does not wait if no pod is undecided
    # A cluster at rest is taken over at once.
    0 create 0; bind 0 a; adopt 0 -> none
a new leader restores recorded offers at once
    # They count, narrow and end as if the leader had not changed: a final record makes waiting unnecessary.
    0 create 0; filter 0 -> a b
    20 restart; adopt inf -> none; offer 0 -> a b
    59.9 offer 0 -> a b
    60.1 offer 0 -> none
a killed leader's offers are restored with at least their age
    # The time since it may have answered last has passed; the wait for what it did not record stays.
    0 create 0; filter 0 -> a b; restart killed=yes; adopt 4 -> waits
    0.999 answer adopt 4 -> waits
    1.001 answer adopt 4 -> none; offer 0 -> a b
    55.9 offer 0 -> a b
    56.1 idle
the offer of a pod that is bound meanwhile is not restored
    # What followed from it is visible.
    0 create 0; filter 0 -> a b; restart; bind 0 a; adopt inf -> none; offer 0 -> none
the offer of a pod whose name another pod has meanwhile is not restored
    0 create 0; filter 0 -> a b; restart; show 0 uid=other; adopt inf -> none; offer 0 -> none
the offer of a pod that has finished meanwhile is not restored
    0 create 0; filter 0 -> a b; restart; finish 0; adopt inf -> none; offer 0 -> none
the offer of a pod that is decided meanwhile is not restored
    0 create 0; filter 0 -> a b; restart; select 0 a; adopt inf -> none; offer 0 -> none
restoring fetches what no watch has delivered
    # Without its claim the offer could not be restored.
    0 create_unseen 0; filter 0 -> a b; restart; forget_claim 0; adopt inf -> none; offer 0 -> a b
an unchanged condition does not end a restored offer
    # A digest suffices to recognise it; another one ends the offer after a second.
    0 create 0; nominate 0 status=False message=no_space; filter 0 -> a b; restart; adopt inf -> none
    5 offer 0 -> a b; nominate 0 status=False message=still_no_space
    5.9 offer 0 -> a b
    6.1 offer 0 -> none
draining waits until offers have ended
    # They end by a decision or by age; then a successor may answer at once.
    0 adopt inf -> none; create 0; filter 0 -> a b; offers.settle -> waits
    2 answer offers.settle -> waits; select 0 a; answer offers.settle -> yes; idle
draining waits 5 s at most
    # If an offer is open then that no successor can know, the Lease must run out.
    0 adopt inf -> none; create 0; filter 0 -> a b; offers.settle -> waits
    4.999 answer offers.settle -> waits
    5.001 answer offers.settle -> no
draining waits for an accepted request whose pod is looked for
    # Its offer is handed over with the others.
    0 world slow=yes store=works
    0 adopt inf -> none; create_unseen 0 of=pod; filter 0 -> waits
    0.1 offers.settle -> waits
    0.501 answer offers.settle -> yes; answer filter 0 -> a b; handed_over -> uid-0
a leader that has not adopted yet hands nothing over
    # Its own record would hide its predecessor's.
    0 world store=works
    0 offers.settle -> no; handed_over -> no record
draining records the open offers without waiting for decisions
    # The pod's decision is under way.
    0 world store=works
    0 adopt inf -> none; create 0; filter 0 -> a b; offers.settle -> yes; handed_over -> uid-0
draining answers accepted requests first
    # What they are offered is recorded, too.
    0 world store=works
    0 adopt inf -> none; create_unseen 0; set cache.fetch_seconds=1.5; filter 0 -> waits
    0.1 offers.settle -> waits
    1.501 answer offers.settle -> yes; answer filter 0 -> a b; handed_over -> uid-0
a request that takes too long for the hand-over gets no offer
    # The record is written, and must have every offer: requests have 3 s.
    0 world store=works
    0 adopt inf -> none; create_unseen 0; set cache.fetch_seconds=4; filter 0 -> waits
    0.1 offers.settle -> waits
    3.099 answer offers.settle -> waits
    3.101 answer offers.settle -> yes
    4.001 answer filter 0 -> UnavailableError; handed_over -> no offer
if the record cannot be written draining waits as without
    # The successor must not start at once.
    0 world store=fails
    0 adopt inf -> none; create 0; filter 0 -> a b; offers.settle -> waits
    4.999 answer offers.settle -> waits
    5.001 answer offers.settle -> no
# Preemption holds the room it makes.
the node that preemption makes room on is held
    # Against pods of lower or equal priority, until the nomination goes.
    0 create 1; create 0 priority=5; create 2 priority=6; preempt 0 a -> a; refuse 0 a
    120 reasons 1 -> SPOKEN_FOR ROOM; reasons 2 -> ROOM SPOKEN_FOR; refuse 0
    122 offer 0 -> none
no room is held for a pod that fits nowhere
    # Preemption is pointless there, and no victim ends.
    0 create 0 600 priority=5; preempt 0 a -> none; offer 0 -> none; idle
a hold outlives a refusal while its nomination stands
    # While victims end, kube-scheduler asks about the other nodes only.
    0 create 0 priority=5; refuse 0 a; create 1; resize b space=10; preempt 0 a -> a; filter 0 b -> none; offer 0 -> a
    0 reasons 1 -> SPOKEN_FOR INSUFFICIENT_STORAGE
what a pod of higher priority was offered comes before a hold
    # It was offered what is held for another, and a third pod must not get it, too.
    0 create 0 50 priority=5; create 2 90 priority=100; create 1 40; resize b space=10; preempt 0 a -> a
    0 filter 2 -> a; filter 1 -> waits
    0.251 answer filter 1 -> none
"""


@pytest.mark.parametrize("timeline", rows(TIMELINES))
def test_what_is_offered_to_which_pod(timeline: str) -> None:
    play(World, timeline)


@virtually
async def test_in_a_burst_each_pod_is_offered_the_nodes_with_the_highest_scores(tmp_path: Path) -> None:
    argument = {"labelPreference": {"label": "gold", "presence": True}}
    priority = {"name": "PreferGold", "weight": 10, "argument": argument}
    world = World()
    world.use_policy(tmp_path / "policy.json", priority, gold="b")
    world.resize("a", space=70)
    world.resize("b", space=60)
    for number in (0, 1):
        world.create(number, 25)
        await world.filter(number)
    assert world.offer(1) == ["b"]
    await world.end()


@virtually
async def test_a_priority_that_fails_refuses_no_pod(tmp_path: Path) -> None:
    plugin = tmp_path / "broken_priority.py"
    plugin.write_text(
        "from scheduler_core.generic.plugin_rules import PriorityPlugin\n"
        "def broken(state, argument, nodes):\n"
        "    raise ValueError('no score')\n"
        "PRIORITIES = [PriorityPlugin('Broken', broken)]\n"
    )
    world = World()
    world.use_policy(tmp_path / "policy.json", {"name": "Broken", "weight": 1}, str(plugin))
    for number in (0, 1):
        world.create(number, 30)
        await world.filter(number)
    assert world.offer(1) == ["a"]
    await world.end()


@virtually
async def test_nodes_that_do_not_stop_changing_are_left_out() -> None:
    cache = RestlessStateSource(two_nodes())
    world = World(cache=cache)
    world.create(0, 60)
    cache.changes = [make.longhorn_node("a", 100 + number) for number in range(100)]
    decision = await world.decide(0)
    assert cache.changes
    assert {reason.name for reason in decision.reasons} <= {"ROOM", "WAITING"}
    assert decision.reasons[0].name == "WAITING"
    cache.changes = []
    await world.end()


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
    await world.end()


@virtually
async def test_an_offer_and_the_demand_of_the_same_volume_count_once() -> None:
    world = World()
    world.create(0, 40)
    world.select(0, "a", 40)
    assert await world.filter(0) == ["a", "b"]
    bound = make.claim("data-0", 40, bound=True)
    bound["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    persistent = make.persistent_volume("data-0", uid="uid-data-0")
    persistent["metadata"]["creationTimestamp"] = "2026-01-01T00:00:05Z"
    pending = database_pod(0)
    pending["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
    world.cache.put(pending, bound, persistent, make.volume("vol-data-0", 40))
    world.create(1, 60)
    assert await world.filter(1) == ["a"] or world.offer(1) == ["b"]
    decision = await world.decide(1)
    assert decision.reasons[0].name in {"ROOM", "NOT_OFFERED"}
    await world.end()


@virtually
async def test_an_offer_made_the_moment_the_last_one_ends_is_watched() -> None:
    world = World()
    world.create(0, 60)
    await world.filter(0)
    await asyncio.sleep(0.001)
    world.refuse(0)
    await asyncio.sleep(0.001)
    world.loop.call_later(1.0, lambda: None)
    await asyncio.sleep(1.0)
    assert await world.filter(0) == ["a", "b"]
    world.select(0, "a")
    await world.end()


@virtually
async def test_an_answer_that_is_refused_at_the_last_moment_leaves_no_offer() -> None:
    world = World()
    world.create(0, 60)

    async def refuse() -> bool:
        raise UnavailableError("not the leader any more")

    with pytest.raises(UnavailableError):
        await world.offers.decide(make.as_pod(database_pod(0)), NODES, refuse)
    await world.end()


@virtually
async def test_restored_offers_keep_different_persistent_volumes() -> None:
    world = World(cache=FakeStateSource([*two_nodes(), *make.kept("pv-s", 20, "a"), *make.kept("pv-m", 30, "a")]))
    for number in (0, 1):
        world.create(number, 10)
        await world.filter(number)
    world.restart()
    await world.adopt(math.inf)
    offers = [world.offers.observed_ledger().offers[f"uid-{number}"] for number in (0, 1)]
    assert [getattr(volume, "persistent_volume", "") for offer in offers for volume in offer.volumes] == [
        "pv-s",
        "pv-m",
    ]
    await world.end()


@virtually
async def test_preemption_may_choose_another_node_than_before() -> None:
    world = World()
    world.create(0)
    world.refuse(0, "a")
    assert await world.preempt(0, "a", "b") == ["a", "b"]
    world.refuse(0, "b", message="no, again")
    await asyncio.sleep(2)
    assert world.offer(0) == ["b"]
    await world.end()
