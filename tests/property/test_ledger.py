"""The ledger while events are repeated, reordered, delayed and dropped, compared with a model without indexes.

Pods have a true state, which changes in versions. Any change is delivered at any time, any number of times or never, with its version or
without. Pods are filtered at will, callers hang up, time jumps, leadership is lost and won. For each offer the model keeps everything that
was observed since, and evaluates all of it again after every event.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from random import Random
from typing import Any

from hypothesis import given, strategies as st

from scheduler_core.offers.handover_record import RecordHead, decode_record, encode_record, unschedulable_digest
from scheduler_core.offers.ledger import MAX_INDEXED_NODES, Ledger, step
from scheduler_core.offers.outstanding_offer import (
    NEVER,
    Event,
    LeadershipLost,
    NodeSelected,
    ObservedPod,
    Offer,
    Offered,
    OffersRestored,
    Outcome,
    OutcomeKind,
    PodGone,
    Tick,
    Withdrawn,
)
from scheduler_core.structs import replace
from tests.examples import examples

LETTERS = "abcde"
ALL_LETTERS = frozenset(LETTERS)
NUMBERED = frozenset(f"n{number}" for number in range(MAX_INDEXED_NODES))
ALL_NODES = ALL_LETTERS | NUMBERED
SLOTS = range(3)
NODE_CHOICES = ["a", "b", "c", "n0", "elsewhere", ""]
CONDITIONS = ["", "no", "still no"]
JUMPS = [0.0, 0.1, 0.5, 0.9, 1.0, 1.1, -3.0, 7.0, 30.0, 59.0, 60.0, 300.0]


@dataclass
class OfferHistory:
    """An offer as the model sees it: how it began, and everything observed of its pod since."""

    event: Offered
    at: float
    number: int
    observations: list[tuple[float, ObservedPod]] = field(default_factory=list)

    def offer(self) -> Offer:
        """The offer that follows from the history."""
        pod = self.event.pod
        hold = self.event.priority is not None
        nodes = self.event.nodes
        version = pod.version
        narrowed_at = None
        unschedulable_since = None
        if pod.nominated_node in nodes and (hold or len(nodes) == 1):
            narrowed_at = self.at
        for at, observed in self.observations:
            if observed.version and observed.version <= version:
                continue
            version = max(version, observed.version)
            condition_is_new = observed.unschedulable not in ("", pod.unschedulable)
            nominated = observed.nominated_node in nodes
            if hold:
                failed = not nominated and (condition_is_new or narrowed_at is not None)
                decided = nominated
            else:
                failed = condition_is_new or (narrowed_at is not None and not nominated)
                decided = nominated and observed.nominated_node != pod.nominated_node and not condition_is_new
            if hold and decided:
                unschedulable_since = None
            elif failed and unschedulable_since is None:
                unschedulable_since = at
            if decided and (narrowed_at is None or len(nodes) > 1):
                nodes = frozenset({observed.nominated_node})
                narrowed_at = at if narrowed_at is None else narrowed_at
        return Offer(
            pod=pod,
            nodes=nodes,
            volumes=self.event.volumes,
            selected_node=self.event.selected_node,
            made_at=self.at,
            number=self.number,
            version=version,
            unschedulable_since=unschedulable_since,
            narrowed_at=narrowed_at,
            unplaced_volumes=self.event.unplaced_volumes,
            priority=self.event.priority,
        )

    def end(self) -> tuple[float, OutcomeKind]:
        """When the offer ends by itself, and how."""
        offer = self.offer()
        ends: list[tuple[float, OutcomeKind]] = []
        if offer.narrowed_at is None:
            ends.append((self.at + 60.0, OutcomeKind.EXPIRED))
        elif offer.priority is not None or (offer.pod.unschedulable and offer.pod.nominated_node in offer.nodes):
            ends.append((offer.narrowed_at + 600.0, OutcomeKind.EXPIRED))
        if offer.unschedulable_since:
            ends.append((offer.unschedulable_since + 1.0, OutcomeKind.UNSCHEDULABLE))
        return min(ends, key=itemgetter(0), default=(math.inf, OutcomeKind.EXPIRED))


@dataclass
class Model:
    """All offers and all outcomes, after a sequence of events."""

    histories: dict[str, OfferHistory] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    offers_made: int = 0
    now: float = -math.inf

    def step(self, at: float, event: Event) -> None:
        """Ends what is due, then applies an event."""
        self.now = max(self.now, at)
        ends = [(*history.end(), uid) for uid, history in self.histories.items()]
        due = [(end, uid, kind) for end, kind, uid in ends if end <= self.now]
        for end, uid, kind in sorted(due, key=itemgetter(0, 1)):
            self.end(uid, kind, end)
        self.apply(event)

    def end(self, uid: str, kind: OutcomeKind, at: float, node: str = "") -> None:
        self.outcomes.append(Outcome(self.histories.pop(uid).offer(), kind, at, node))

    def begin(self, event: Offered) -> None:
        if (event.nodes or event.unplaced_volumes) and not event.pod.node_name and not event.pod.ended:
            self.offers_made += 1
            self.histories[event.pod.uid] = OfferHistory(event, self.now, self.offers_made)

    def apply(self, event: Event) -> None:
        """Applies an event."""
        histories = self.histories
        match event:
            case Offered(pod):
                self.observe(replace(pod, version=0), final_only=True)
                if pod.uid in histories:
                    self.end(pod.uid, OutcomeKind.REPLACED, self.now)
                self.begin(event)
            case ObservedPod():
                self.observe(event)
            case NodeSelected(uid, node) if uid in histories and node not in ("", histories[uid].event.selected_node):
                self.end(uid, OutcomeKind.DECIDED, self.now, node)
            case PodGone(uid) if uid in histories:
                self.end(uid, OutcomeKind.GONE, self.now)
            case Withdrawn(uid, number) if uid in histories and histories[uid].number == number:
                self.end(uid, OutcomeKind.WITHDRAWN, self.now)
            case LeadershipLost():
                for uid in sorted(histories, key=lambda uid: (histories[uid].at, uid)):
                    self.end(uid, OutcomeKind.DROPPED, self.now)
            case _:
                pass

    def observe(self, pod: ObservedPod, *, final_only: bool = False) -> None:
        """Applies an observed pod; with `final_only` only its binding and its end."""
        history = self.histories.get(pod.uid)
        if history is None:
            return
        if pod.node_name:
            self.end(pod.uid, OutcomeKind.DECIDED, self.now, pod.node_name)
        elif pod.ended:
            self.end(pod.uid, OutcomeKind.GONE, self.now)
        elif not final_only:
            before = history.offer()
            history.observations.append((self.now, pod))
            if history.offer().nodes != before.nodes or history.offer().narrowed != before.narrowed:
                self.outcomes.append(Outcome(before, OutcomeKind.NARROWED, self.now, pod.nominated_node))


class World:
    """Three pod names, one leader with its ledger, and everything that is asserted of the ledger."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.model = Model()
        self.now = 1000.0
        self.outcomes: list[Outcome] = []
        self.version = 0
        self.events_sent = 0
        self.pods_created = len(SLOTS)
        self.pods = [ObservedPod(f"uid-{slot}", "default", f"web-{slot}") for slot in SLOTS]
        self.previous_pods = list(self.pods)
        self.undelivered: list[Event] = []

    def send(self, event: Event) -> None:
        """Applies an event to the ledger and to the model, and asserts what holds for every step."""
        self.events_sent += 1
        ticked = step(self.ledger, Tick(), self.now)[0]
        ledger, outcomes = step(self.ledger, event, self.now)
        if not isinstance(event, Offered):
            assert step(ledger, event, self.now) == (ledger, ()), "a repeated event changes nothing"
        assert step(ticked, event, self.now)[0] == ledger, "the number of ticks does not matter"
        self.ledger = ledger
        self.outcomes += outcomes
        self.model.step(self.now, event)

    def change(self, slot: int, **fields: Any) -> None:
        self.version += 1
        self.previous_pods[slot] = self.pods[slot]
        self.pods[slot] = replace(self.pods[slot], version=self.version, **fields)
        self.undelivered.append(self.pods[slot])

    def offer(self, slot: int, random: Random, *, priority: int | None) -> None:
        """Answers kube-scheduler, whose copy of the pod may be one change behind; with a priority holds room."""
        pod = self.pods[slot]
        nodes = random_nodes(random)
        selected = random.choice(["", "", "a"]) if priority is None else ""
        if random.random() < 0.1 and self.previous_pods[slot].uid == pod.uid:
            pod = self.previous_pods[slot]
        unplaced = (f"{pod.name}-unplaced",) if slot else ()
        self.send(Offered(pod, nodes, (f"{pod.name}-{len(nodes)}",), selected, unplaced, priority))

    def select_node(self, slot: int, node: str) -> None:
        self.undelivered.append(NodeSelected(self.pods[slot].uid, node))

    def bind(self, slot: int, node: str) -> None:
        if not self.pods[slot].node_name:
            self.change(slot, node_name=node)

    def delete(self, slot: int) -> None:
        """Deletes a pod and creates another with its name."""
        self.change(slot, ended=True)
        self.undelivered.append(PodGone(self.pods[slot].uid))
        pod = ObservedPod(f"uid-{self.pods_created}", "default", f"web-{slot}")
        self.pods[slot] = pod
        self.previous_pods[slot] = pod
        self.pods_created += 1

    def deliver(self, back: int, *, without_version: bool) -> None:
        """Delivers a change: the latest, or one that is `back` changes older, maybe once more."""
        if self.undelivered:
            event = self.undelivered[max(0, len(self.undelivered) - 1 - back)]
            self.send(replace(event, version=0) if without_version and isinstance(event, ObservedPod) else event)

    def hang_up(self, slot: int, back: int) -> None:
        """Withdraws one of the latest offers."""
        self.send(Withdrawn(self.pods[slot].uid, self.ledger.offers_made - back))

    def wait(self, seconds: float) -> None:
        """Lets time jump, even back; the ledger is ticked with the next event."""
        self.now += seconds

    def wait_for_next_end(self, *, early: bool) -> None:
        """Lets time pass until an offer ends, or until the last moment before."""
        end = self.ledger.next_end
        if end < NEVER:
            self.now = max(self.now, math.nextafter(end, -math.inf) if early else end)
        self.send(Tick())

    def lose_leadership(self) -> None:
        self.send(LeadershipLost())
        assert self.ledger == Ledger(time=self.ledger.time, offers_made=self.ledger.offers_made)

    def hand_over(self) -> None:
        """A new leader restores what the previous one recorded; the model does not notice. It is left out if an age
        cannot be subtracted from the time exactly.
        """
        self.send(Tick())
        ledger = self.ledger
        times = [
            time
            for offer in ledger.offers.values()
            for time in (offer.made_at, offer.narrowed_at, offer.unschedulable_since)
        ]
        if any(time is not None and ledger.time - (ledger.time - time) != time for time in times):
            return
        record = decode_record(encode_record(ledger, RecordHead("leader", 1), ledger.time).data)
        assert len(record.offers) == ledger.outstanding
        restored = []
        for recorded in record.offers:
            offer = ledger.offers[recorded.offered.pod.uid]
            digest = unschedulable_digest(offer.pod.unschedulable)
            assert recorded.offered.pod == replace(offer.pod, unschedulable=digest)
            restored.append(
                replace(recorded.offered, pod=offer.pod, volumes=offer.volumes, unplaced_volumes=offer.unplaced_volumes)
            )
        event = OffersRestored(tuple(restored), record.offers_made)
        self.ledger = step(Ledger(), event, ledger.time)[0]

    def check(self) -> None:
        self.assert_equals_model()
        self.assert_indexes_match_offers()
        self.assert_next_end_is_exact()

    def assert_equals_model(self) -> None:
        assert dict(self.ledger.offers) == {uid: history.offer() for uid, history in self.model.histories.items()}
        assert self.outcomes == self.model.outcomes
        assert self.ledger.offers_made == self.model.offers_made

    def assert_indexes_match_offers(self) -> None:
        """No offer is missing or left behind in an index; the oldest comes first."""
        offers = sorted(self.ledger.offers.values(), key=lambda offer: (offer.made_at, offer.uid))
        assert self.ledger.oldest_first() == tuple(offers)
        assert all(uid == offer.uid for uid, offer in self.ledger.offers.items())
        assert self.ledger.outstanding == len(offers)
        expected: dict[str, set[str]] = {}
        for offer in offers:
            for node in offer.nodes if len(offer.nodes) <= MAX_INDEXED_NODES else ():
                expected.setdefault(node, set()).add(offer.uid)
        assert {node: set(uids) for node, uids in self.ledger.uids_by_node.items()} == expected
        assert dict(self.ledger.wide_offers) == {
            offer.uid: offer.nodes for offer in offers if len(offer.nodes) > MAX_INDEXED_NODES
        }
        for node in (*LETTERS, "n0", f"n{MAX_INDEXED_NODES - 1}", "elsewhere", "nowhere"):
            assert self.ledger.offers_on(node) == tuple(offer for offer in offers if node in offer.nodes)
        for pod in self.pods:
            others = [offer for offer in offers if offer.uid != pod.uid and offer.nodes and not offer.narrowed]
            assert self.ledger.competing_offers(pod.uid) == len(others)
        assert set(self.ledger.narrowed) == {offer.uid for offer in offers if offer.narrowed}
        assert set(self.ledger.holds) == {offer.uid for offer in offers if offer.priority is not None}
        by_number = sorted(offers, key=lambda offer: offer.number)
        assert self.ledger.with_unplaced_volumes == tuple(offer for offer in by_number if offer.unplaced_volumes)

    def assert_next_end_is_exact(self) -> None:
        """No offer ends by itself before it, one ends at it, and with time all do that are undecided."""
        end = self.ledger.next_end
        assert end == min((offer.ends_at for offer in self.ledger.offers.values()), default=NEVER)
        if end < NEVER:
            assert step(self.ledger, Tick(), math.nextafter(end, -math.inf))[1] == ()
            outcomes = step(self.ledger, Tick(), end)[1]
            assert outcomes
            assert all(outcome.at == end for outcome in outcomes)
        later = self.ledger.time + 1000.0
        standing = {uid: offer for uid, offer in self.ledger.offers.items() if offer.ends_at == NEVER}
        ledger, outcomes = step(self.ledger, Tick(), later)
        assert dict(ledger.offers) == standing, "only decided offers stand for ever"
        assert len(outcomes) == self.ledger.outstanding - len(standing)


def random_nodes(random: Random) -> frozenset[str]:
    """Sets on both sides of the index limit, often the very same one."""
    letters = frozenset(random.sample(LETTERS, random.randrange(6)))
    return random.choice([letters, letters, ALL_LETTERS, letters | NUMBERED, ALL_NODES])


Action = Callable[[World, int, Random], None]
# What may happen, and how often relative to the other actions.
ACTIONS: list[tuple[float, Action]] = [
    (6, lambda world, slot, random: world.offer(slot, random, priority=None)),
    (3, lambda world, slot, random: world.change(slot, nominated_node=random.choice(NODE_CHOICES))),
    (2, lambda world, slot, random: world.change(slot, unschedulable=random.choice(CONDITIONS))),
    (1, lambda world, slot, random: world.select_node(slot, random.choice(NODE_CHOICES))),
    (0.3, lambda world, slot, random: world.bind(slot, random.choice(NODE_CHOICES) or "a")),
    (0.5, lambda world, slot, _: world.delete(slot)),
    (9, lambda world, _, random: world.deliver(0, without_version=random.random() < 0.3)),
    (4, lambda world, _, random: world.deliver(random.randrange(7), without_version=random.random() < 0.3)),
    (0.5, lambda world, slot, random: world.hang_up(slot, random.randrange(4))),
    (2, lambda world, _, random: world.wait(random.choice(JUMPS))),
    (4, lambda world, _, random: world.wait(random.choice(JUMPS[:4]))),
    (1, lambda world, _, random: world.wait_for_next_end(early=random.random() < 0.5)),
    (3, lambda world, slot, random: world.offer(slot, random, priority=random.randrange(2))),
    (0.3, lambda world, _slot, _random: world.lose_leadership()),
    (1, lambda world, *_: world.hand_over()),
]


@examples(250)
@given(st.integers(0, 2**32))
def test_the_ledger_equals_the_model_after_long_random_histories(seed: int) -> None:
    """Each history has its own mixture of frequent and rare actions, so that rare orders occur."""
    random = Random(seed)  # noqa: S311 # a reproducible history
    world = World()
    weights = [frequency * random.expovariate(1) for frequency, _ in ACTIONS]
    for number, (_, action) in enumerate(random.choices(ACTIONS, weights, k=80)):
        action(world, random.choice(SLOTS), random)
        if number % 2 == 0:
            world.check()
    world.check()
    assert world.outcomes == world.model.outcomes
