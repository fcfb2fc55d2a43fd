"""Offers: which pods were told which nodes fit, while nobody has seen what kube-scheduler made of it.

All other demand is derived from the cluster. An offer cannot be: between the answer to kube-scheduler and the first sign of
its decision no object says anything. So this is the only stored state, a pure state machine: `step(ledger, event, now)` is
the next ledger and which offers ended or narrowed, and why. Times are seconds on the caller's clock, which does not go back.
What is due by then ends before the event is looked at, so it does not matter how often a `TimePassed` came in between;
a caller that is about to read offers sends one.

**One offer per pod**, by UID; it counts on all of its nodes. What a UID never takes back (bound, finished, being deleted,
gone) ends its offer whenever it is heard. What may change (nomination, condition, a claim's selected node) is compared with
what was known when the offer was made, so an old fact heard again is no news. Versions, where both sides have one, tell
more: whatever shows the pod at a version up to the newest accounted for is late or repeated, and ignored. What cannot be
told, and is left to the offer's life or to derived demand:

- Without versions, or if kube-scheduler itself wrote late, an "unschedulable" of an earlier attempt looks like one of this
  attempt: the offer ends `GRACE` later, its decision perhaps still under way.
- A failed attempt that leaves the condition as it was writes nothing; its offer ends when the pod asks again, or by age.
- A nomination beside an old PodScheduled=False may be a decision or a preemption: it does not narrow.
- A selected node that was known before, removed and chosen again looks like the old one: the offer stays beside the
  demand derived from it. Another one that is heard late looks new.
- Nothing is kept about pods without an offer: `Offered` after `PodGone` makes one. Offer what the view shows as pending.

Cost: O(log), but for making, narrowing and ending an offer of up to `WIDE` nodes, which are indexed one by one. Wider ones
are not: indexing 5,000 nodes takes longer than deciding about them. They are a plain list, which is short: by the rule of
`width` the n-th offer has about 1/n of the nodes, so of N nodes about N / `WIDE` offers are wide.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import attrgetter
from typing import Final

from rpds import HashTrieMap, HashTrieSet

from scheduler_core.cluster.changelog import Trail
from scheduler_core.offers.ordered_set import Line

OFFER_LIFE: Final = 60.0
GRACE: Final = 1.0
NEVER: Final = math.inf
WIDE: Final = 200
_NONE: Final[frozenset[str]] = frozenset()
_AGE: Final = attrgetter("made_at", "uid")


class Became(Enum):
    """What became of an offer; all but the last end it. The value is a metric's label."""

    DECIDED = "decided"
    GONE = "gone"
    UNSCHEDULABLE = "unschedulable"
    EXPIRED = "expired"
    REPLACED = "replaced"
    WITHDRAWN = "withdrawn"
    DROPPED = "dropped"
    NARROWED = "narrowed"


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod, as a watch or kube-scheduler's request shows it.

    Attributes:
        version: grows with each change of the pod (its resourceVersion); 0 if unknown
        node_name: `spec.nodeName`
        nominated: `status.nominatedNodeName`
        unschedulable: "" unless the condition PodScheduled is False; then a text that differs whenever the condition
            does. Its last transition alone does not: kube-scheduler keeps it while only the message changes
        over: finished or being deleted
    """

    uid: str
    namespace: str = ""
    name: str = ""
    version: int = 0
    node_name: str = ""
    nominated: str = ""
    unschedulable: str = ""
    over: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """A pod was offered these nodes, and no decision was seen yet.

    Attributes:
        pod: the pod as known when the offer was made
        nodes: it counts on each of them
        volumes: what it stands for on each of them; the ledger never looks inside
        roaming: what it stands for on every node there is, because it may go anywhere
        selected: the node that the pod's claims had selected when the offer was made, "" for none
        made_at: when, in the caller's seconds
        number: which of the ledger's offers it is, for withdrawing exactly this one
        version: the newest version of the pod that is accounted for; 0 if unknown
        declared_at: when the pod was first seen to be declared unschedulable after the offer, None if it was not
        narrowed: whether a nomination said which node it will be
    """

    pod: PodSeen
    nodes: frozenset[str]
    volumes: tuple[Hashable, ...]
    selected: str
    made_at: float
    number: int
    version: int
    declared_at: float | None = None
    narrowed: bool = False
    roaming: tuple[Hashable, ...] = ()

    @property
    def uid(self) -> str:
        """Whose offer it is."""
        return self.pod.uid

    @property
    def ends_at(self) -> float:
        """When it ends by itself: it is no longer there at this time."""
        end = self.made_at + OFFER_LIFE
        return end if self.declared_at is None else min(end, self.declared_at + GRACE)


@dataclass(frozen=True, slots=True)
class Offered:
    """A pod is being told that these nodes fit, which replaces its earlier offer.

    Without nodes and roaming volumes there is no offer, nor for a pod that is bound or over, or that has no UID to be followed by.

    Attributes:
        pod: the newest that is known of it: of the request's copy and the watched one the one with the higher version
        selected: the node its claims have selected, "" for none
        roaming: see `Offer`; a pod that has nothing else to place needs no nodes here
    """

    pod: PodSeen
    nodes: frozenset[str]
    volumes: tuple[Hashable, ...] = ()
    selected: str = ""
    roaming: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True)
class Adopted:
    """A new leader finds this pod undecided: a nomination without PodScheduled=False counts as an offer of that node.

    It changes nothing for a pod that has an offer, so it may be repeated.
    """

    pod: PodSeen
    volumes: tuple[Hashable, ...] = ()
    roaming: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSelected:
    """A claim of the pod has this `volume.kubernetes.io/selected-node`, and not from the time before the pod."""

    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class PodGone:
    """There is no pod with this UID any more; another one may have its name."""

    uid: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The caller hung up before it was told of the offer with this number."""

    uid: str
    number: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing happened but time."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The lead is lost: whatever was offered is the next leader's business."""


Event = Offered | Adopted | PodSeen | NodeSelected | PodGone | Withdrawn | TimePassed | Dropped


@dataclass(frozen=True, slots=True)
class Outcome:
    """Something became of an offer.

    Attributes:
        offer: as it was before
        at: when; for an end by time when it was due, not when that was noticed
        node: the node decided for or narrowed to, else ""; one that was decided for need not have been offered
    """

    offer: Offer
    became: Became
    at: float
    node: str = ""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The offers outstanding; a new one is empty. Only `step` makes the next.

    Attributes:
        time: the latest time it was told; an earlier one counts as this
        made: how many offers were ever made; the newest has this number
        offers: by pod UID
        indexed: by node, the UIDs of its offers, but for the wide ones
        wide: UID and nodes of the offers that have more than `WIDE`, oldest first
        anywhere: the UIDs of the offers with volumes that may go anywhere, oldest first
        by_age: all UIDs, oldest offer first
        by_declaration: the UIDs declared unschedulable since their offer, earliest first
        trail: which nodes' offers have changed
    """

    time: float = -math.inf
    made: int = 0
    offers: HashTrieMap[str, Offer] = field(default_factory=HashTrieMap)
    indexed: HashTrieMap[str, HashTrieSet[str]] = field(default_factory=HashTrieMap)
    wide: tuple[tuple[str, frozenset[str]], ...] = ()
    anywhere: tuple[str, ...] = ()
    by_age: Line = field(default_factory=Line)
    by_declaration: Line = field(default_factory=Line)
    trail: Trail = field(default_factory=Trail, compare=False)

    @property
    def outstanding(self) -> int:
        """How many offers there are."""
        return len(self.offers)

    @property
    def next_end(self) -> float:
        """When the next offer ends by itself, `NEVER` if there is none."""
        # Each line is in the order in which its kind of end is due, because each kind takes equally long for all.
        firsts = (self.by_age.first, self.by_declaration.first)
        return min((self.offers[uid].ends_at for uid in firsts if uid), default=NEVER)

    def of(self, uid: str) -> Offer | None:
        """The offer of a pod."""
        return self.offers.get(uid)

    def competing(self, uid: str) -> int:
        """How many offers of nodes other pods than this have."""
        nowhere = sum(1 for other in self.anywhere if other != uid and not self.offers[other].nodes)
        return len(self.offers) - (uid in self.offers) - nowhere

    def on(self, node: str) -> tuple[Offer, ...]:
        """The offers that count on a node, oldest first, ties by UID."""
        found = [self.offers[uid] for uid in self.indexed.get(node) or ()]
        found += [self.offers[uid] for uid, nodes in self.wide if node in nodes]
        return tuple(sorted(found, key=_AGE) if len(found) > 1 else found)

    @property
    def roaming(self) -> tuple[Offer, ...]:
        """The offers with volumes that may go anywhere, oldest first."""
        return tuple(self.offers[uid] for uid in self.anywhere)

    def oldest_first(self) -> tuple[Offer, ...]:
        """All offers, ties by UID."""
        return tuple(sorted(self.offers.values(), key=_AGE))


def step(ledger: Ledger, event: Event, now: float) -> tuple[Ledger, tuple[Outcome, ...]]:
    """The ledger after an event, and what came of it, in the order it happened (ties by UID)."""
    now = max(now, ledger.time)
    ledger, ended = _without_due(replace(ledger, time=now))
    ledger, outcomes = _applied(ledger, event)
    return ledger, ended + outcomes


def width(fitting: int, competing: int) -> int:
    """How many of the fitting nodes to offer.

    Alone all of them: kube-scheduler's scoring decides. Beside n competing offers 1 of n + 1, rounded down, but at least one: wide offers
    would block each other, and one of a single node is an exact reservation. `competing` must not be negative.
    """
    return min(fitting, max(1, fitting // (competing + 1)))


def _without_due(ledger: Ledger) -> tuple[Ledger, tuple[Outcome, ...]]:
    outcomes: list[Outcome] = []
    while (at := ledger.next_end) <= ledger.time:
        offer = ledger.offers[ledger.by_age.first]
        offer = offer if offer.ends_at == at else ledger.offers[ledger.by_declaration.first]
        became = Became.EXPIRED if at == offer.made_at + OFFER_LIFE else Became.UNSCHEDULABLE
        ledger, ended = _ended(ledger, offer.uid, became)
        outcomes += ended
    return ledger, tuple(sorted(outcomes, key=attrgetter("at", "offer.uid")))


def _applied(ledger: Ledger, event: Event) -> tuple[Ledger, tuple[Outcome, ...]]:
    match event:
        case Offered(pod):
            became, node = _final(pod) or (Became.REPLACED, "")
            ledger, outcomes = _ended(ledger, pod.uid, became, node)
            return _made(ledger, event), outcomes
        case Adopted(pod) if pod.uid not in ledger.offers and pod.nominated and not pod.unschedulable:
            told = Offered(pod, frozenset((pod.nominated,)), event.volumes, roaming=event.roaming)
            return _made(ledger, told, narrowed=True), ()
        case PodSeen():
            return _seen(ledger, event)
        case NodeSelected(uid, node) if (offer := ledger.of(uid)) and node not in ("", offer.selected):
            return _ended(ledger, uid, Became.DECIDED, node)
        case PodGone(uid):
            return _ended(ledger, uid, Became.GONE)
        case Withdrawn(uid, number) if (offer := ledger.of(uid)) and offer.number == number:
            return _ended(ledger, uid, Became.WITHDRAWN)
        case Dropped():
            dropped = tuple(Outcome(offer, Became.DROPPED, ledger.time) for offer in ledger.oldest_first())
            return Ledger(time=ledger.time, made=ledger.made), dropped
        case _:
            return ledger, ()


def _final(pod: PodSeen) -> tuple[Became, str] | None:
    """Why the pod needs no offer any more and never will, and the node decided for."""
    if pod.node_name:
        return Became.DECIDED, pod.node_name
    return (Became.GONE, "") if pod.over else None


def _seen(ledger: Ledger, pod: PodSeen) -> tuple[Ledger, tuple[Outcome, ...]]:
    offer = ledger.of(pod.uid)
    if offer is None:
        return ledger, ()
    if final := _final(pod):
        return _ended(ledger, pod.uid, *final)
    if 0 < pod.version <= offer.version:
        return ledger, ()
    after = replace(offer, version=max(offer.version, pod.version))
    if offer.declared_at is None and pod.unschedulable not in ("", offer.pod.unschedulable):
        after = replace(after, declared_at=ledger.time)
    chosen = pod.nominated != offer.pod.nominated and pod.nominated in offer.nodes
    if not chosen or pod.unschedulable or offer.narrowed:
        return _changed(ledger, offer, after), ()
    after = replace(after, nodes=frozenset((pod.nominated,)), narrowed=True)
    return _changed(ledger, offer, after), (Outcome(offer, Became.NARROWED, ledger.time, pod.nominated),)


def _made(ledger: Ledger, told: Offered, *, narrowed: bool = False) -> Ledger:
    pod = told.pod
    if not (told.nodes or told.roaming) or not pod.uid or _final(pod):
        return ledger
    number = ledger.made + 1
    given, since = (told.nodes, told.volumes, told.selected), (ledger.time, number, pod.version)
    offer = Offer(pod, *given, *since, narrowed=narrowed, roaming=told.roaming)
    anywhere = (*ledger.anywhere, pod.uid) if told.roaming else ledger.anywhere
    offers, by_age = ledger.offers.insert(pod.uid, offer), ledger.by_age.joined(pod.uid)
    ledger = replace(ledger, made=number, offers=offers, by_age=by_age, anywhere=anywhere)
    return _moved(ledger, pod.uid, _NONE, offer.nodes)


def _changed(ledger: Ledger, before: Offer, after: Offer) -> Ledger:
    line = ledger.by_declaration
    by_declaration = line if after.declared_at == before.declared_at else line.joined(after.uid)
    ledger = replace(ledger, offers=ledger.offers.insert(after.uid, after), by_declaration=by_declaration)
    return _moved(ledger, after.uid, before.nodes, after.nodes)


def _ended(ledger: Ledger, uid: str, became: Became, node: str = "") -> tuple[Ledger, tuple[Outcome, ...]]:
    offer = ledger.of(uid)
    if offer is None:
        return ledger, ()
    offers, by_age, by_declaration = ledger.offers.remove(uid), ledger.by_age.left(uid), ledger.by_declaration.left(uid)
    anywhere = tuple(other for other in ledger.anywhere if other != uid) if offer.roaming else ledger.anywhere
    ledger = replace(ledger, offers=offers, by_age=by_age, by_declaration=by_declaration, anywhere=anywhere)
    at = min(ledger.time, offer.ends_at)  # what is due ends when it was due
    return _moved(ledger, uid, offer.nodes, _NONE), (Outcome(offer, became, at, node),)


def _moved(ledger: Ledger, uid: str, old: frozenset[str], new: frozenset[str]) -> Ledger:
    """With an offer found from its new nodes instead of the old."""
    if old is new:
        return ledger
    wide, indexed = ledger.wide, ledger.indexed
    if len(old) > WIDE:
        wide = tuple(entry for entry in wide if entry[0] != uid)
    if len(new) > WIDE:
        wide = (*wide, (uid, new))
    for node in old if len(old) <= WIDE else ():
        uids = indexed[node].remove(uid)
        indexed = indexed.insert(node, uids) if uids else indexed.remove(node)
    for node in new if len(new) <= WIDE else ():
        indexed = indexed.insert(node, (indexed.get(node) or HashTrieSet()).insert(uid))
    return replace(ledger, wide=wide, indexed=indexed, trail=ledger.trail.after(old | new))
