"""Outstanding offers: nodes returned to kube-scheduler for a pod whose placement has not been observed yet.

All other demand is derived from the cluster. An offer cannot be derived: between the answer to kube-scheduler and the
first sign of its decision no object shows anything. So the ledger is the only stored state, and a pure state machine:
`step(ledger, event, now)` returns the next ledger and its outcomes: which offers ended or narrowed, and why. Times are
seconds on the caller's clock, which does not go back. Offers that are due by then end before the event is applied, so it
does not matter how many `Tick` events came in between; a caller that is about to read offers sends one.

**A nomination to an offered node narrows the offer to it**, and is a decision: the offer then stands for as long as the nomination does.
kube-scheduler writes a nomination at once, and the rest up to minutes later. Once the nomination is withdrawn, or the pod is declared
unschedulable, the offer ends after `UNSCHEDULABLE_GRACE_PERIOD`.

**A hold** is an offer with a priority: nodes where preemption may make room for the pod (`/preempt`). It counts against pods of at most
this priority. The nomination that preemption writes, together with PodScheduled=False, narrows it. Then it stands for as long as the
nomination does, at most `HOLD_LIFETIME`: victims may take long to end. A condition without a nomination may be that of an earlier attempt,
so a nomination within `UNSCHEDULABLE_GRACE_PERIOD` keeps the hold.

**One offer per pod**, by UID; it counts on all of its nodes. Facts that are final for a UID (bound, finished, being
deleted, gone) end its offer, however late they arrive. Facts that may change (nomination, condition, a claim's selected
node) are compared with those recorded when the offer was made, so an old fact that arrives again is ignored. Versions
say more, where both sides have one: an observation of the pod at a version up to the newest accounted for is late or
repeated, and ignored. The following cases cannot be distinguished, and are left to the offer's lifetime or to derived demand:

- Without versions, or if kube-scheduler itself wrote late, an "unschedulable" of an earlier attempt looks like one of this
  attempt: the offer ends `UNSCHEDULABLE_GRACE_PERIOD` later, its decision perhaps still under way.
- A failed attempt that leaves the condition unchanged writes nothing; its offer ends with the next request for the pod, or
  by age.
- A nomination together with the PodScheduled=False of an earlier attempt is a decision: kube-scheduler runs preemption only if no node
  was left, and then writes a new condition, unless that has the very same text.
- A selected node that was recorded before, removed and chosen again looks like the old one: the offer stays in addition to
  the demand derived from it. A different one that arrives late looks new.
- Nothing is kept about pods without an offer: `Offered` after `PodGone` makes one. So the caller offers only for pods that
  the view shows as pending.

Cost: O(log n), except for making, narrowing and ending an offer of up to `MAX_INDEXED_NODES` nodes, which are indexed one by
one, and for looking at all offers once one of them may have to end by itself (`Ledger.due`). Wider offers are not indexed: indexing 5,000 nodes takes longer than deciding about them. They are a plain list, which
is short: the n-th offer has about 1/n of the nodes (`decide/offered_nodes.py`), so of N nodes about N / `MAX_INDEXED_NODES`
offers are wide.

Between two waves of a burst no offer may be outstanding for a moment. The next pod is not alone then, although it looks so: `RecentOffers`
remembers the size of the burst.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from msgspec import structs
from rpds import HashTrieMap, HashTrieSet

from scheduler_core.caches import ChangeLog
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
    Withdrawn,
)
from scheduler_core.structs import Struct, replace

# At kube-scheduler's default client limits a decision shows up to 9 s after the answer.
PERIOD = 10.0


class RecentOffers(Struct, frozen=True):
    """The count of offers in the current period and the one before, as an immutable value."""

    period_start: float = -math.inf  # when the current period began, in seconds
    in_period: int = 0  # the offers of the current period
    in_last_period: int = 0  # the offers of the period before

    def count(self, now: float) -> int:
        """The offers of at least the last `PERIOD` seconds, and at most twice that."""
        elapsed = now - self.period_start
        if elapsed < PERIOD:
            return self.in_period + self.in_last_period
        return self.in_period if elapsed < 2 * PERIOD else 0

    def add(self, now: float) -> "RecentOffers":
        """Returns the count with one more offer, made at `now`."""
        elapsed = now - self.period_start
        if elapsed < PERIOD:
            return RecentOffers(self.period_start, self.in_period + 1, self.in_last_period)
        if elapsed < 2 * PERIOD:
            return RecentOffers(self.period_start + PERIOD, 1, self.in_period)
        return RecentOffers(now, 1)


MAX_INDEXED_NODES = 200
_NO_NODES: frozenset[str] = frozenset()
_BY_AGE = attrgetter("made_at", "uid")


@dataclass(frozen=True, slots=True)
class Ledger:
    """The outstanding offers, as an immutable value; a new ledger is empty. Only `step` makes the next ledger."""

    time: float = -math.inf  # the latest time that `step` was called with; an earlier one counts as this
    offers_made: int = 0  # how many offers were ever made; the newest has this number
    offers: "HashTrieMap[str, Offer]" = field(default_factory=HashTrieMap)  # by pod UID
    # By node, the UIDs of its offers, except for the wide ones.
    uids_by_node: "HashTrieMap[str, HashTrieSet[str]]" = field(default_factory=HashTrieMap)
    # UID and nodes of the offers that have more than `MAX_INDEXED_NODES`, oldest first.
    wide_offers: tuple[tuple[str, frozenset[str]], ...] = ()
    # The UIDs of the offers with volumes that may go anywhere, oldest first.
    uids_with_unplaced_volumes: tuple[str, ...] = ()
    due: float = field(default=NEVER, compare=False)  # no offer ends by itself before; see `next_end`
    narrowed: "HashTrieSet[str]" = field(default_factory=HashTrieSet)  # the UIDs of narrowed offers
    holds: "HashTrieSet[str]" = field(default_factory=HashTrieSet)  # the UIDs of holds
    # How many offers were made lately while others competed: none, unless in a burst.
    recent: RecentOffers = field(default_factory=RecentOffers)
    changelog: ChangeLog = field(default_factory=ChangeLog, compare=False)  # which nodes' offers have changed

    @property
    def outstanding(self) -> int:
        return len(self.offers)

    @property
    def next_end(self) -> float:
        """When the next offer ends by itself, `NEVER` without offers. Looks at every offer."""
        return min((offer.ends_at for offer in self.offers.values()), default=NEVER)

    def offer_of(self, uid: str) -> Offer | None:
        return self.offers.get(uid)

    def competing_offers(self, uid: str) -> int:
        undecided = len(self.offers) - len(self.narrowed)
        own = uid in self.offers and uid not in self.narrowed
        without_nodes = sum(1 for key in self.uids_with_unplaced_volumes if key != uid and not self.offers[key].nodes)
        return undecided - own - without_nodes

    def offers_on(self, node: str) -> tuple[Offer, ...]:
        offers = [self.offers[uid] for uid in self.uids_by_node.get(node) or ()]
        offers += [self.offers[uid] for uid, nodes in self.wide_offers if node in nodes]
        return tuple(sorted(offers, key=_BY_AGE) if len(offers) > 1 else offers)

    def holds_below(self, priority: int) -> Iterator[Offer]:
        """Returns the holds that do not count against a pod of this priority."""
        return (self.offers[uid] for uid in self.holds if not self.offers[uid].counts_against(priority))

    @property
    def with_unplaced_volumes(self) -> tuple[Offer, ...]:
        return tuple(self.offers[uid] for uid in self.uids_with_unplaced_volumes)

    def oldest_first(self) -> tuple[Offer, ...]:
        return tuple(sorted(self.offers.values(), key=_BY_AGE))


def step(ledger: Ledger, event: Event, now: float) -> tuple[Ledger, tuple[Outcome, ...]]:
    """Returns the ledger after an event, and the event's outcomes in the order in which they happened, ties by UID."""
    now = max(now, ledger.time)
    ledger = replace(ledger, time=now)
    expired: tuple[Outcome, ...] = ()
    if ledger.due <= now:
        ended = [offer for offer in ledger.offers.values() if offer.ends_at <= now]
        for offer in sorted(ended, key=attrgetter("ends_at", "uid")):
            ledger, outcomes = _end_offer(ledger, offer.uid, offer.end_kind)
            expired += outcomes
        ledger = replace(ledger, due=ledger.next_end)
    ledger, outcomes = _apply(ledger, event)
    return ledger, expired + outcomes


def offer_width(fitting_nodes: int, competing_offers: int) -> int:
    """How many of the fitting nodes to offer: with n competing offers 1 of n + 1, rounded down, but at least one."""
    # Alone, kube-scheduler's scoring decides. Wide offers would block each other, and one of a single node is an exact reservation.
    return min(fitting_nodes, max(1, fitting_nodes // (competing_offers + 1)))


def _apply(ledger: Ledger, event: Event) -> tuple[Ledger, tuple[Outcome, ...]]:
    match event:
        case Offered(pod):
            kind, node = _terminal_outcome(pod) or (OutcomeKind.REPLACED, "")
            ledger, outcomes = _end_offer(ledger, pod.uid, kind, node)
            return _add_offer(ledger, event), outcomes
        case OffersRestored() if not ledger.offers:
            for restored in sorted(event.offers, key=attrgetter("made_at", "number")):
                ledger = _put_offer(ledger, restored.later(ledger.time))
            return replace(ledger, offers_made=max(ledger.offers_made, event.offers_made)), ()
        case ObservedPod():
            return _observe_pod(ledger, event)
        # A node that was selected before the offer is left of an earlier attempt, and decides nothing.
        case NodeSelected(uid, node) if (offer := ledger.offer_of(uid)) and node not in ("", offer.selected_node):
            return _end_offer(ledger, uid, OutcomeKind.DECIDED, node)
        case PodGone(uid):
            return _end_offer(ledger, uid, OutcomeKind.GONE)
        # The pod may have been answered once more since, and that caller is still there.
        case Withdrawn(uid, number) if (offer := ledger.offer_of(uid)) and offer.number == number:
            return _end_offer(ledger, uid, OutcomeKind.WITHDRAWN)
        case LeadershipLost():
            outcomes = tuple(Outcome(offer, OutcomeKind.DROPPED, ledger.time) for offer in ledger.oldest_first())
            # Numbers go on: a withdrawal from before must not name an offer of a later leadership.
            return Ledger(time=ledger.time, offers_made=ledger.offers_made), outcomes
        case _:
            return ledger, ()


def _terminal_outcome(pod: ObservedPod) -> tuple[OutcomeKind, str] | None:
    if pod.node_name:
        return OutcomeKind.DECIDED, pod.node_name
    return (OutcomeKind.GONE, "") if pod.ended else None


def _observe_pod(ledger: Ledger, pod: ObservedPod) -> tuple[Ledger, tuple[Outcome, ...]]:
    offer = ledger.offer_of(pod.uid)
    if offer is None:
        return ledger, ()
    if terminal := _terminal_outcome(pod):
        kind, node = terminal
        return _end_offer(ledger, pod.uid, kind, node)
    if 0 < pod.version <= offer.version:
        return ledger, ()
    chosen = offer.is_choice_of(pod)
    unschedulable_since = offer.unschedulable_since
    if chosen and offer.priority is not None:
        # A condition that was observed before the nomination is that of an earlier attempt.
        unschedulable_since = None
    elif unschedulable_since is None and offer.fails_with(pod):
        unschedulable_since = ledger.time
    after = replace(offer, version=max(offer.version, pod.version), unschedulable_since=unschedulable_since)
    if not chosen or (offer.narrowed and len(offer.nodes) == 1):
        return _put_offer(ledger, after, offer), ()
    narrowed_at = ledger.time if offer.narrowed_at is None else offer.narrowed_at
    after = replace(after, nodes=frozenset((pod.nominated_node,)), narrowed_at=narrowed_at)
    outcome = Outcome(offer, OutcomeKind.NARROWED, ledger.time, pod.nominated_node)
    return _put_offer(ledger, after, offer), (outcome,)


def _add_offer(ledger: Ledger, offered: Offered) -> Ledger:
    pod = offered.pod
    if not (offered.nodes or offered.unplaced_volumes) or not pod.uid or _terminal_outcome(pod):
        return ledger
    # kube-scheduler looks at the nominated node first. If it chooses that node again, it writes nothing. Preemption may choose another.
    nominated = frozenset((pod.nominated_node,))
    narrowed = offered.nodes == nominated or (offered.priority is not None and nominated <= offered.nodes)
    offer = Offer(
        **structs.asdict(offered),
        made_at=ledger.time,
        number=ledger.offers_made + 1,
        version=pod.version,
        narrowed_at=ledger.time if narrowed else None,
    )
    recent = ledger.recent.add(ledger.time) if ledger.competing_offers(pod.uid) else ledger.recent
    return replace(_put_offer(ledger, offer), offers_made=offer.number, recent=recent)


def _put_offer(ledger: Ledger, offer: Offer, before: Offer | None = None) -> Ledger:
    """Adds an offer, or puts it in the place of what it was before."""
    uid = offer.uid
    unplaced = (uid,) if before is None and offer.unplaced_volumes else ()
    ledger = replace(
        ledger,
        offers=ledger.offers.insert(uid, offer),
        due=min(ledger.due, offer.ends_at),
        narrowed=ledger.narrowed.insert(uid) if offer.narrowed else ledger.narrowed,
        holds=ledger.holds if offer.priority is None else ledger.holds.insert(uid),
        uids_with_unplaced_volumes=(*ledger.uids_with_unplaced_volumes, *unplaced),
    )
    return _reindex(ledger, uid, _NO_NODES if before is None else before.nodes, offer.nodes)


def _end_offer(ledger: Ledger, uid: str, kind: OutcomeKind, node: str = "") -> tuple[Ledger, tuple[Outcome, ...]]:
    offer = ledger.offer_of(uid)
    if offer is None:
        return ledger, ()
    uids_with_unplaced_volumes = ledger.uids_with_unplaced_volumes
    if offer.unplaced_volumes:
        uids_with_unplaced_volumes = tuple(key for key in uids_with_unplaced_volumes if key != uid)
    ledger = replace(
        ledger,
        offers=ledger.offers.remove(uid),
        narrowed=ledger.narrowed.discard(uid),
        holds=ledger.holds.discard(uid),
        uids_with_unplaced_volumes=uids_with_unplaced_volumes,
    )
    at = min(ledger.time, offer.ends_at)  # an offer that is due ends when it was due
    return _reindex(ledger, uid, offer.nodes, _NO_NODES), (Outcome(offer, kind, at, node),)


def _reindex(ledger: Ledger, uid: str, old: frozenset[str], new: frozenset[str]) -> Ledger:
    if old is new:
        return ledger
    wide_offers = ledger.wide_offers
    if len(old) > MAX_INDEXED_NODES:
        wide_offers = tuple(entry for entry in wide_offers if entry[0] != uid)
    if len(new) > MAX_INDEXED_NODES:
        wide_offers = (*wide_offers, (uid, new))
    uids_by_node = ledger.uids_by_node
    for node in old if len(old) <= MAX_INDEXED_NODES else ():
        uids = uids_by_node[node].remove(uid)
        uids_by_node = uids_by_node.insert(node, uids) if uids else uids_by_node.remove(node)
    for node in new if len(new) <= MAX_INDEXED_NODES else ():
        uids_by_node = uids_by_node.insert(node, (uids_by_node.get(node) or HashTrieSet()).insert(uid))
    changelog = ledger.changelog.append(old | new)
    return replace(ledger, wide_offers=wide_offers, uids_by_node=uids_by_node, changelog=changelog)
