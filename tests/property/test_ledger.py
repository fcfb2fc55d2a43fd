"""The ledger in a world that repeats, reorders, delays and drops events, against a model that knows nothing of indexes.

Pods have a true state, which changes in versions. What is heard of it is any change at any time, any number of times or
never, with its version or without. Pods are asked about at will, callers hang up, time jumps, the lead is lost and won.
The model works everything out again from the whole history, after every event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from operator import itemgetter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scheduler_core.extender.offer import roomiest
from scheduler_core.offers.ledger import (
    NEVER,
    WIDE,
    Adopted,
    Became,
    Dropped,
    Event,
    Ledger,
    NodeSelected,
    Offer,
    Offered,
    Outcome,
    PodGone,
    PodSeen,
    TimePassed,
    Withdrawn,
    step,
    width,
)

LETTERS = "abcde"
ALL_LETTERS = frozenset(LETTERS)
NUMBERED = frozenset(f"n{number}" for number in range(WIDE))
EVERY = ALL_LETTERS | NUMBERED
SLOTS = range(3)
CHOICES = ["a", "b", "c", "n0", "elsewhere", ""]
TEXTS = ["", "no", "still no"]
JUMPS = [0.0, 0.1, 0.5, 0.9, 1.0, 1.1, -3.0, 7.0, 30.0, 59.0, 60.0, 300.0]

SLOT = st.sampled_from(SLOTS)
FEW = st.frozensets(st.sampled_from(LETTERS))
MANY = FEW.map(lambda letters: letters | NUMBERED)


@dataclass
class Told:
    """What the model remembers of an offer: how it began, and all that was heard of the pod since."""

    event: Offered
    at: float
    number: int
    adopted: bool
    heard: list[tuple[float, PodSeen]] = field(default_factory=list)

    def offer(self) -> Offer:
        """The offer that comes of it."""
        pod, version, chosen, declared = self.event.pod, self.event.pod.version, "", None
        for at, seen in self.heard:
            if seen.version and seen.version <= version:
                continue
            version = max(version, seen.version)
            if seen.unschedulable and seen.unschedulable != pod.unschedulable:
                declared = at if declared is None else declared
            elif seen.unschedulable or chosen or self.adopted:
                continue
            elif seen.nominated != pod.nominated and seen.nominated in self.event.nodes:
                chosen = seen.nominated
        return Offer(
            pod,
            frozenset({chosen}) if chosen else self.event.nodes,
            self.event.volumes,
            self.event.selected,
            self.at,
            self.number,
            version,
            declared,
            narrowed=self.adopted or bool(chosen),
            roaming=self.event.roaming,
        )

    def due(self) -> tuple[float, Became]:
        """When it ends by itself, and as what."""
        declared = self.offer().declared_at
        ends = [(self.at + 60.0, Became.EXPIRED)] + ([(declared + 1.0, Became.UNSCHEDULABLE)] if declared else [])
        return min(ends, key=lambda end: end[0])


@dataclass
class Model:
    """Every offer there is, and everything that became of one, worked out from the whole history."""

    told: dict[str, Told] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    made: int = 0

    @classmethod
    def of(cls, history: Iterable[tuple[float, Event]]) -> Model:
        """Event by event."""
        model, now = cls(), -math.inf
        for at, event in history:
            now = max(now, at)
            due = [(told.due()[0], uid, told.due()[1]) for uid, told in model.told.items()]
            for end, uid, became in sorted((entry for entry in due if entry[0] <= now), key=itemgetter(0, 1)):
                model.end(uid, became, end)
            model.apply(now, event)
        return model

    def end(self, uid: str, became: Became, at: float, node: str = "") -> None:
        """An offer ends."""
        self.outcomes.append(Outcome(self.told.pop(uid).offer(), became, at, node))

    def begin(self, event: Offered, now: float, *, adopted: bool) -> None:
        """An offer is made, if the pod is one to make it for."""
        if (event.nodes or event.roaming) and not event.pod.node_name and not event.pod.over:
            self.made += 1
            self.told[event.pod.uid] = Told(event, now, self.made, adopted)

    def apply(self, now: float, event: Event) -> None:
        """What an event does."""
        match event:
            case Offered(pod):
                self.hear(now, replace(pod, version=0), final_only=True)
                if pod.uid in self.told:
                    self.end(pod.uid, Became.REPLACED, now)
                self.begin(event, now, adopted=False)
            case Adopted(pod, volumes, roaming):
                if pod.uid not in self.told and pod.nominated and not pod.unschedulable:
                    self.begin(Offered(pod, frozenset({pod.nominated}), volumes, "", roaming), now, adopted=True)
            case PodSeen():
                self.hear(now, event)
            case NodeSelected(uid, node) if uid in self.told and node not in ("", self.told[uid].event.selected):
                self.end(uid, Became.DECIDED, now, node)
            case PodGone(uid) if uid in self.told:
                self.end(uid, Became.GONE, now)
            case Withdrawn(uid, number) if uid in self.told and self.told[uid].number == number:
                self.end(uid, Became.WITHDRAWN, now)
            case Dropped():
                for uid in sorted(self.told, key=lambda uid: (self.told[uid].at, uid)):
                    self.end(uid, Became.DROPPED, now)
            case _:
                pass

    def hear(self, now: float, pod: PodSeen, *, final_only: bool = False) -> None:
        """A pod is seen."""
        told = self.told.get(pod.uid)
        if told is None:
            return
        if pod.node_name:
            self.end(pod.uid, Became.DECIDED, now, pod.node_name)
        elif pod.over:
            self.end(pod.uid, Became.GONE, now)
        elif not final_only:
            before = told.offer()
            told.heard.append((now, pod))
            if told.offer().narrowed and not before.narrowed:
                self.outcomes.append(Outcome(before, Became.NARROWED, now, pod.nominated))


class World:
    """Three names for pods, one leader, and what is asserted of it."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.now = 1000.0
        self.history: list[tuple[float, Event]] = []
        self.outcomes: list[Outcome] = []
        self.version = 0
        self.born = len(SLOTS)
        self.pods = [PodSeen(f"uid-{slot}", "default", f"web-{slot}") for slot in SLOTS]
        self.before = list(self.pods)
        self.flight: list[Event] = []

    def send(self, event: Event) -> None:
        """The ledger hears of it; so does the history. What can be said of one step is asserted here."""
        waited = step(self.ledger, TimePassed(), self.now)[0]
        ledger, outcomes = step(self.ledger, event, self.now)
        if not isinstance(event, Offered):
            assert step(ledger, event, self.now) == (ledger, ()), "an event heard twice is heard once"
        assert step(waited, event, self.now)[0] == ledger, "it does not matter how often time is told"
        for uid, offer in ledger.offers.items():
            earlier = self.ledger.of(uid)
            if earlier is not None and earlier.number == offer.number:
                assert offer.nodes <= earlier.nodes, "narrowing only shrinks"
                assert offer.made_at == earlier.made_at
                assert offer.narrowed >= earlier.narrowed
        if isinstance(event, PodGone) or (isinstance(event, PodSeen) and (event.node_name or event.over)):
            assert ledger.of(event.uid) is None, "a decided or gone pod has no offer"
        elif isinstance(event, PodSeen) and (offered := waited.of(event.uid)):
            late = 0 < event.version <= offered.version
            assert not late or ledger == waited, "what is older than the offer does nothing to it"
        self.ledger = ledger
        self.outcomes += outcomes
        self.history.append((self.now, event))

    def change(self, slot: int, pod: PodSeen) -> None:
        """A pod's true state changes; somebody may hear of it."""
        self.version += 1
        self.before[slot] = self.pods[slot]
        self.pods[slot] = replace(pod, version=self.version)
        self.flight.append(self.pods[slot])

    def ask(self, slot: int, nodes: frozenset[str], selected: str, *, behind: bool) -> None:
        """kube-scheduler asks about a pod, its copy of it perhaps a change behind."""
        pod = self.before[slot] if behind and self.before[slot].uid == self.pods[slot].uid else self.pods[slot]
        roaming = (f"{pod.name}-roaming",) if slot else ()
        self.send(Offered(pod, nodes, (f"{pod.name}-{len(nodes)}",), selected, roaming))

    def nominate(self, slot: int, node: str) -> None:
        """A decision becomes visible, or preemption's wish, or it is taken back."""
        self.change(slot, replace(self.pods[slot], nominated=node))

    def declare(self, slot: int, text: str) -> None:
        """An attempt failed, or the condition goes."""
        self.change(slot, replace(self.pods[slot], unschedulable=text))

    def select(self, slot: int, node: str) -> None:
        """A claim gets its selected node, or loses it."""
        self.flight.append(NodeSelected(self.pods[slot].uid, node))

    def bind(self, slot: int, node: str) -> None:
        """A pod gets its node."""
        if not self.pods[slot].node_name:
            self.change(slot, replace(self.pods[slot], node_name=node))

    def delete(self, slot: int) -> None:
        """A pod goes; another takes its name."""
        self.change(slot, replace(self.pods[slot], over=True))
        self.flight.append(PodGone(self.pods[slot].uid))
        self.before[slot] = self.pods[slot] = PodSeen(f"uid-{self.born}", "default", f"web-{slot}")
        self.born += 1

    def hear(self, back: int, *, anonymous: bool) -> None:
        """Something is heard: at once, late, or for the second time; maybe nobody knows how old it is."""
        if self.flight:
            event = self.flight[max(0, len(self.flight) - 1 - back)]
            self.send(replace(event, version=0) if anonymous and isinstance(event, PodSeen) else event)

    def hang_up(self, slot: int, back: int) -> None:
        """A caller goes away, of whatever offer."""
        self.send(Withdrawn(self.pods[slot].uid, self.ledger.made - back))

    def wait(self, seconds: float) -> None:
        """Time jumps, even back; the ledger is told with the next event."""
        self.now += seconds

    def sleep(self, *, early: bool) -> None:
        """Until something ends, or to the last moment before."""
        if self.ledger.outstanding:
            end = self.ledger.next_end
            self.now = max(self.now, math.nextafter(end, -math.inf) if early else end)
        self.send(TimePassed())

    def take_over(self, order: list[int]) -> None:
        """The lead is lost and won again: what the pods say is adopted, in any order."""
        self.send(Dropped())
        assert self.ledger == Ledger(time=self.ledger.time, made=self.ledger.made)
        for slot in order:
            self.adopt(slot)

    def adopt(self, slot: int) -> None:
        """One pod as it is."""
        self.send(Adopted(self.pods[slot], (self.pods[slot].name,), ("roaming",) if slot else ()))

    def check(self) -> None:
        """Everything that always holds."""
        self.is_what_the_model_says()
        self.every_offer_ends_once_and_in_time()
        self.the_index_is_the_offers()
        self.the_next_end_is_exact()

    def is_what_the_model_says(self) -> None:
        """Offers and outcomes, to the letter."""
        model = Model.of(self.history)
        assert dict(self.ledger.offers) == {uid: told.offer() for uid, told in model.told.items()}
        assert self.outcomes == model.outcomes
        assert self.ledger.made == model.made

    def every_offer_ends_once_and_in_time(self) -> None:
        """Or is still there, for 60 s, and for 1 s after it was declared unschedulable."""
        ended = [outcome.offer.number for outcome in self.outcomes if outcome.became is not Became.NARROWED]
        outstanding = [offer.number for offer in self.ledger.oldest_first()]
        assert sorted(ended + outstanding) == list(range(1, self.ledger.made + 1))
        for offer in self.ledger.offers.values():
            assert self.ledger.time < offer.made_at + 60.0
            assert offer.declared_at is None or self.ledger.time < offer.declared_at + 1.0

    def the_index_is_the_offers(self) -> None:
        """Nothing missing, nothing left behind, oldest first."""
        offers = sorted(self.ledger.offers.values(), key=lambda offer: (offer.made_at, offer.uid))
        assert self.ledger.oldest_first() == tuple(offers)
        assert all(uid == offer.uid for uid, offer in self.ledger.offers.items())
        assert self.ledger.outstanding == len(offers)
        expected: dict[str, set[str]] = {}
        for offer in offers:
            for node in offer.nodes if len(offer.nodes) <= WIDE else ():
                expected.setdefault(node, set()).add(offer.uid)
        assert {node: set(uids) for node, uids in self.ledger.indexed.items()} == expected
        assert dict(self.ledger.wide) == {offer.uid: offer.nodes for offer in offers if len(offer.nodes) > WIDE}
        for node in (*LETTERS, "n0", f"n{WIDE - 1}", "elsewhere", "nowhere"):
            assert self.ledger.on(node) == tuple(offer for offer in offers if node in offer.nodes)
        for pod in self.pods:
            others = [offer for offer in offers if offer.uid != pod.uid and offer.nodes]
            assert self.ledger.competing(pod.uid) == len(others)
        in_order = sorted(offers, key=lambda offer: offer.number)
        assert self.ledger.roaming == tuple(offer for offer in in_order if offer.roaming)

    def the_next_end_is_exact(self) -> None:
        """Nothing ends before it by itself, something ends at it, and with time everything does."""
        end = self.ledger.next_end
        assert end == min((offer.ends_at for offer in self.ledger.offers.values()), default=NEVER)
        if end < NEVER:
            assert step(self.ledger, TimePassed(), math.nextafter(end, -math.inf))[1] == ()
            outcomes = step(self.ledger, TimePassed(), end)[1]
            assert outcomes
            assert all(outcome.at == end for outcome in outcomes)
            ledger, outcomes = step(self.ledger, TimePassed(), end + 1000.0)
            assert ledger == Ledger(time=end + 1000.0, made=self.ledger.made)
            assert len(outcomes) == self.ledger.outstanding


class Offers(RuleBasedStateMachine):
    """Hypothesis looks for a short history that breaks something."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(slot=SLOT, nodes=FEW | MANY, selected=st.sampled_from(["", "a"]), behind=st.booleans())
    def ask(self, slot: int, nodes: frozenset[str], selected: str, behind: bool) -> None:
        """A pod is asked about."""
        self.world.ask(slot, nodes, selected, behind=behind)

    @rule(slot=SLOT, node=st.sampled_from(CHOICES), what=st.sampled_from(["nominate", "select", "bind", "delete"]))
    def change(self, slot: int, node: str, what: str) -> None:
        """Something changes in the cluster."""
        match what:
            case "nominate":
                self.world.nominate(slot, node)
            case "select":
                self.world.select(slot, node)
            case "bind":
                self.world.bind(slot, node or "a")
            case _:
                self.world.delete(slot)

    @rule(slot=SLOT, text=st.sampled_from(TEXTS))
    def declare(self, slot: int, text: str) -> None:
        """A condition changes."""
        self.world.declare(slot, text)

    @rule(back=st.integers(0, 6), anonymous=st.booleans())
    def hear(self, back: int, anonymous: bool) -> None:
        """Something is heard."""
        self.world.hear(back, anonymous=anonymous)

    @rule(slot=SLOT, back=st.integers(0, 3))
    def hang_up(self, slot: int, back: int) -> None:
        """A caller goes away."""
        self.world.hang_up(slot, back)

    @rule(seconds=st.sampled_from(JUMPS))
    def wait(self, seconds: float) -> None:
        """Time jumps."""
        self.world.wait(seconds)

    @rule(early=st.booleans())
    def sleep(self, early: bool) -> None:
        """Until something ends."""
        self.world.sleep(early=early)

    @rule(order=st.lists(SLOT, max_size=6), slot=SLOT, dropped=st.booleans())
    def take_over(self, order: list[int], slot: int, dropped: bool) -> None:
        """With a loss of the lead before, or without."""
        if dropped:
            self.world.take_over(order)
        else:
            self.world.adopt(slot)

    @invariant()
    def all_is_well(self) -> None:
        """After each step."""
        self.world.check()


TestOffers = Offers.TestCase
TestOffers.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def nodes_of(random: Random) -> frozenset[str]:
    """On both sides of the limit, and often the very same set."""
    letters = frozenset(random.sample(LETTERS, random.randrange(6)))
    return random.choice([letters, letters, ALL_LETTERS, letters | NUMBERED, EVERY])


MOMENTS: dict[str, tuple[float, Callable[[World, int, Random], object]]] = {
    "asks": (
        6,
        lambda world, slot, random: world.ask(
            slot, nodes_of(random), random.choice(["", "", "a"]), behind=random.random() < 0.1
        ),
    ),
    "is nominated": (3, lambda world, slot, random: world.nominate(slot, random.choice(CHOICES))),
    "is declared": (2, lambda world, slot, random: world.declare(slot, random.choice(TEXTS))),
    "selects": (1, lambda world, slot, random: world.select(slot, random.choice(CHOICES))),
    "is bound": (0.3, lambda world, slot, _: world.bind(slot, "a")),
    "is deleted": (0.5, lambda world, slot, _: world.delete(slot)),
    "is heard of": (9, lambda world, _, random: world.hear(0, anonymous=random.random() < 0.3)),
    "is heard of late": (4, lambda world, _, random: world.hear(random.randrange(6), anonymous=random.random() < 0.3)),
    "hangs up": (0.5, lambda world, slot, random: world.hang_up(slot, random.randrange(4))),
    "waits": (2, lambda world, _, random: world.wait(random.choice(JUMPS))),
    "waits a little": (4, lambda world, _, random: world.wait(random.choice(JUMPS[:4]))),
    "sleeps": (1, lambda world, _, random: world.sleep(early=random.random() < 0.5)),
    "takes over": (0.3, lambda world, _, random: world.take_over(random.sample(SLOTS, 3))),
    "is adopted": (0.5, lambda world, slot, _: world.adopt(slot)),
}


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**32))
def test_no_storm_of_events_confuses_the_ledger(seed: int) -> None:
    """Long runs, each with its own mixture of what happens often and what hardly ever: rare orders come up that way."""
    random = Random(seed)  # noqa: S311 # a reproducible storm
    world = World()
    weights = [often * random.expovariate(1) for often, _ in MOMENTS.values()]
    for number, moment in enumerate(random.choices(list(MOMENTS), weights, k=80)):
        MOMENTS[moment][1](world, random.choice(SLOTS), random)
        if number % 5 == 0:
            world.check()
    world.check()


@given(
    rooms=st.dictionaries(st.sampled_from(sorted(EVERY)), st.integers(0, 5), max_size=20),
    competing=st.integers(0, 30),
)
def test_the_width_of_an_offer(rooms: dict[str, int], competing: int) -> None:
    """Its share, the best of what fits, whatever the order."""
    fitting = [(room, name) for name, room in rooms.items()]
    count = width(len(fitting), competing)
    chosen = roomiest(fitting, count)
    assert len(chosen) == (max(1, len(rooms) // (competing + 1)) if rooms else 0)
    assert roomiest(sorted(fitting), count) == roomiest(sorted(fitting, reverse=True), count) == chosen
    ranks = {name: (-room, name) for room, name in fitting}
    left = rooms.keys() - chosen
    assert chosen <= rooms.keys()
    assert not left or max(ranks[name] for name in chosen) < min(ranks[name] for name in left)
