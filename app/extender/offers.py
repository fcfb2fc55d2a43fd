"""`reservation: capacity`: pods are packed with what other pods will take, and requests never block each other.

    request → evaluate together with derived demand and outstanding offers → offer some of the nodes that fit → answer
    the pod is bound, or a claim of it has a selected node → the offer ends: it is derived demand from then on
    nothing fits only because of other pods' offers → wait briefly for one of them to be decided → refuse as WAITING

The ledger is the only state, and one lock makes evaluating and offering one step. It is held neither while waiting nor
during I/O. Everything else is read off the cluster at each request. So after a fail-over there is nothing to rebuild
but the offers that the previous leader recorded, and the nominations that `adopt` finds.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from app.evaluator import Evaluator, LiveStateSource
from app.extender.metrics import Metrics
from app.extender.nudger import Nudger
from app.extender.offer_store import OfferStore
from app.extender.placement_monitor import Placements
from app.extender.pods_with_offers import WatchedPods
from app.runtime import probes, wait_at_most
from scheduler_core.decide import offered_nodes
from scheduler_core.decide.decision import NO_CONTENDERS, NO_SCORES, Competing, Contenders, Decision
from scheduler_core.decide.extender_settings import ExtenderSettings
from scheduler_core.errors import MissingObjectError, ResolutionError
from scheduler_core.evaluation.competing_volumes import NO_REQUESTER, ContentionQuery
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.model import kube, verdict
from scheduler_core.offers import outstanding_offer
from scheduler_core.offers.handover_record import HandoverRecord
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.packing.budget import STEPS_PER_REQUEST, Budget
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes.resolve import PodVolume

log = structlog.get_logger("offers")

# kube-scheduler's loop is single: a long wait stops the whole cluster.
MAX_WAIT = 0.25
# kube-scheduler shows its decision within 3.2 s in a burst of 200 pods, at its default client limits.
SETTLE_TIMEOUT = 5.0
# How long accepted requests may take once the process is to end; those that take longer are refused.
ANSWER_TIMEOUT = 3.0
# A record may have 3,000 offers, whose pods are all resolved again; the event loop must go on meanwhile.
_OFFERS_PER_TURN = 32
_RECHECK_INTERVAL = 0.1
_RESTART_INTERVAL = 1.0
# If the cluster changes faster than a pod can be decided about, the nodes that changed are left out.
_MAX_TRIES = 3


class _Answer(Struct, frozen=True):
    """A decision with its offer."""

    decision: Decision
    number: int = 0  # of the offer made for it, 0 for none
    waiting: bool = False  # whether waiting for other pods' decisions may change it


class Offers:
    """Owner of the ledger."""

    def __init__(  # noqa: PLR0913 # where it reads, what decides, what it reports to
        self,
        cache: LiveStateSource,
        evaluator: Evaluator,
        settings: Callable[[], ExtenderSettings],
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        store: OfferStore | None = None,
    ) -> None:
        self._cache = cache
        self._evaluator = evaluator
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._store = store
        self._ledger = Ledger()
        self._contention = Contention()
        self._equivalence = EquivalenceCache()
        self._lock = asyncio.Lock()
        self._watched = WatchedPods(cache, clock)
        self._watcher: asyncio.Task[None] | None = None
        # Counts leaderships: an answer that began in an earlier one makes no offer.
        self._generation = 0
        self.adopted = False  # whether this process makes the offers
        self._closed = False
        self._requests = 0
        self._no_request = asyncio.Event()
        self._no_request.set()
        self._nudger: Nudger | None = None
        self._placements: Placements | None = None
        self._outcome = asyncio.Event()

    def subscribe(self, nudger: Nudger | None = None, placements: Placements | None = None) -> None:
        """Passes requests and refusals to the one, kube-scheduler's decisions to the other."""
        self._nudger = nudger
        self._placements = placements

    def observed_ledger(self) -> Ledger:
        """Ends the offers that the clock or a watch has ended, and returns the ledger."""
        self._observe_pods()
        return self._ledger

    @property
    def outstanding(self) -> int:
        """Number of offers after the latest event; safe to read from any thread."""
        return self._ledger.outstanding

    def contenders(self) -> Contenders:
        """Returns demand and offers of other pods; none if reservations are switched off."""
        if self._settings().node_reservation_timeout <= 0:
            return NO_CONTENDERS
        ledger = self.observed_ledger()
        return Competing(self._cache.state().demand, ledger, self._contention, self._equivalence)

    def reserved_nodes(self) -> frozenset[str]:
        """Returns no node: none is reserved as a whole."""
        return frozenset()

    async def decide(
        self, pod: kube.Pod, candidates: Sequence[str], hung_up: probes.HungUp, scores: Mapping[str, int] = NO_SCORES
    ) -> Decision:
        """Decides as `Decider.decide`, and offers the pod some of the fitting nodes."""
        if not pod.volumes:
            return await self._evaluator.decide(pod, candidates)
        self._requests += 1
        self._no_request.clear()
        try:
            # No event would end the offer of a pod that does not exist.
            if not await self._evaluator.has_pod(pod):
                return await self._evaluator.decide(pod, candidates, self.contenders)
            return await self._decide_in_time(pod, candidates, hung_up, scores)
        finally:
            self._requests -= 1
            if not self._requests:
                self._no_request.set()

    async def _decide_in_time(
        self, pod: kube.Pod, candidates: Sequence[str], hung_up: probes.HungUp, scores: Mapping[str, int]
    ) -> Decision:
        if self._nudger is not None:
            self._nudger.note_request(pod)
        until = self._clock() + min(self._settings().pod_scheduling_timeout, MAX_WAIT)
        while True:
            # The answer holds the lock, under which nothing is fetched.
            answer = await self._evaluator.with_objects(
                pod, lambda: self._decide_and_offer(pod, candidates, hung_up, scores)
            )
            remaining = until - self._clock()
            if not answer.waiting or remaining <= 0:
                break
            await self._wait_for_outcome(remaining)
            await probes.check_caller(hung_up)
        if answer.number:
            try:
                await probes.check_caller(hung_up)
            except BaseException:
                self._apply(outstanding_offer.Withdrawn(pod.uid, answer.number))
                raise
        # Without candidates, no change of Longhorn's objects can help the pod. While refusals are only observed, no pod is refused.
        refused = bool(candidates) and not answer.decision.fits and not self._settings().observes
        if self._nudger is not None and refused:
            self._nudger.note_refusal(pod, candidates)
        return answer.decision

    async def preempt(self, pod: kube.Pod, candidates: Sequence[str]) -> Decision:
        """Decides where preemption could help, and holds the room there, as `Decider.preempt`."""
        if not await self._evaluator.has_pod(pod):
            return await self._evaluator.decide(pod, candidates, self.contenders)
        await self._evaluator.fetch_missing(pod)
        async with self._lock:
            decision, contenders = await self._evaluate(pod, candidates)
            if isinstance(contenders, Competing):
                # Without the hold, pods of lower priority would take the room while the victims end.
                self._apply(offered_nodes.make_hold(pod, decision, self._cache.state().view))
                hold = self._ledger.offer_of(pod.uid)
                if hold is not None:
                    log.info("held", pod=pod.key, uid=pod.uid, nodes=len(hold.nodes), priority=pod.priority)
                self._start_watching(pod)
        return decision

    async def adopt(self, undisturbed: float, record: HandoverRecord | None = None) -> None:
        """Restores the previous leader's offers; what it decided is demand. If the record may lack some offers, returns
        once the decision about every pod is visible, or `SETTLE_TIMEOUT` after the leader's last answer.
        """
        if self._settings().node_reservation_timeout > 0:
            if record is not None:
                await self._restore(record, undisturbed)
            if record is None or not (record.head.final and record.head.complete):
                until = self._clock() + SETTLE_TIMEOUT - undisturbed
                undecided = offered_nodes.undecided_pods(self._cache.state().view)
                while undecided and self._clock() < until:
                    await asyncio.sleep(min(_RECHECK_INTERVAL, until - self._clock()))
                    undecided &= offered_nodes.undecided_pods(self._cache.state().view)
            contenders = self.contenders()
            if isinstance(contenders, Competing):
                state = self._cache.state()
                budget = Budget(STEPS_PER_REQUEST)
                query = ContentionQuery(state, contenders.demand, contenders.ledger, NO_REQUESTER, budget)
                names = tuple(state.view.cluster.nodes)
                # Otherwise the first request would have to compute the competitors of every node.
                await self._evaluator.run(partial(self._contention.competitors, query, names))
        self._closed = False
        self.adopted = True

    async def _restore(self, record: HandoverRecord, undisturbed: float) -> None:
        elapsed = undisturbed if 0 < undisturbed < math.inf else 0.0
        since = self._clock()
        restored: list[tuple[kube.Pod, outstanding_offer.Offer]] = []
        volumes: list[Any] = []
        # In this order they were matched with existing PersistentVolumes.
        oldest_first = sorted(record.offers, key=lambda entry: entry.offered.number)
        for number, recorded in enumerate(oldest_first):
            if number % _OFFERS_PER_TURN == 0:
                await asyncio.sleep(0)
            pod = offered_nodes.current_pod(recorded.offered.pod, self._cache.state().view)
            if pod is None:
                continue
            try:
                entry = await self._to_restore(pod, recorded, elapsed + self._clock() - since, volumes)
            except ResolutionError as error:
                log.debug("an offer is not restored", pod=pod.key, problem=str(error))
                continue
            if entry is not None:
                restored.append((pod, entry))
                volumes += entry.volumes
        self._apply(outstanding_offer.OffersRestored(tuple(entry for _, entry in restored), record.offers_made))
        for pod, _ in restored:
            self._start_watching(pod)
        log.info("restored offers", recorded=len(record.offers), restored=self._ledger.outstanding)

    async def _to_restore(
        self, pod: kube.Pod, recorded: outstanding_offer.RecordedOffer, elapsed: float, volumes: Sequence[PodVolume]
    ) -> outstanding_offer.Offer | None:
        options = self._evaluator.options
        try:
            return offered_nodes.offer_to_restore(recorded, self._cache.state().view, elapsed, options, volumes)
        except MissingObjectError:
            await self._evaluator.fetch_missing(pod)
            return offered_nodes.offer_to_restore(recorded, self._cache.state().view, elapsed, options, volumes)

    async def settle(self) -> bool:
        """Answers accepted requests and hands the offers over; returns whether a successor may answer at once. If the
        offers cannot be recorded, waits until none is outstanding, at most for `SETTLE_TIMEOUT`.
        """
        if not self.adopted:
            # The predecessor's offers are not adopted, and a successor must not believe that there are none.
            return False
        until = self._clock() + ANSWER_TIMEOUT + SETTLE_TIMEOUT
        await wait_at_most(self._no_request, ANSWER_TIMEOUT)
        self._closed = True
        if self._store is not None and await self._store.write_final(self.observed_ledger()):
            log.info("offers handed over", offers=self._ledger.outstanding)
            return True
        until = min(until, self._clock() + SETTLE_TIMEOUT)
        while self.observed_ledger().outstanding and self._clock() < until:
            await self._wait_for_outcome(min(self._ledger.next_end, until) - self._clock())
        return not self.observed_ledger().outstanding

    def clear(self) -> None:
        """Forgets everything: another process leads."""
        self._generation += 1
        self.adopted = False
        self._apply(outstanding_offer.LeadershipLost())
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    async def _decide_and_offer(
        self, pod: kube.Pod, candidates: Sequence[str], hung_up: probes.HungUp, scores: Mapping[str, int]
    ) -> _Answer:
        async with self._lock:
            decision, contenders = await self._evaluate(pod, candidates)
            # kube-scheduler may have asked again meanwhile, and act on that answer's offer.
            await probes.check_caller(hung_up)
            if not isinstance(contenders, Competing) or not decision.needs_offer:
                offer = self._ledger.offer_of(pod.uid)
                # While victims end, kube-scheduler does not ask about the node that is held.
                if offer is not None and (offer.priority is None or decision.fits):
                    self._apply(outstanding_offer.Offered(offered_nodes.observed_pod(pod), frozenset()))
                return _Answer(decision, waiting=verdict.Reason.WAITING in decision.reasons)
            view = self._cache.state().view
            offered, answered = offered_nodes.make_offer(pod, replace(decision, scores=scores), view, self._ledger)
            self._apply(offered)
            offer = self._ledger.offer_of(pod.uid)
            if offer is not None:
                log.info(
                    "offered", pod=pod.key, uid=pod.uid, nodes=len(offer.nodes), beside=self._ledger.outstanding - 1
                )
            self._start_watching(pod)
        return _Answer(answered, offer.number if offer else 0)

    async def _evaluate(self, pod: kube.Pod, candidates: Sequence[str]) -> tuple[Decision, Contenders]:
        """Returns a decision that holds now, and the contenders that counted; the caller holds the lock."""
        generation = self._generation
        tries = 0
        while True:
            contenders = self.contenders()
            before = (self._cache.state(), contenders)
            decision = await self._evaluator.decide_without_fetch(pod, candidates, contenders)
            stale = offered_nodes.stale_nodes(decision, before, (self._cache.state(), self.contenders()))
            tries += 1
            if not stale or tries == _MAX_TRIES:
                if generation != self._generation or self._closed:
                    raise probes.UnavailableError("the lead was lost while the pod was decided about")
                return offered_nodes.exclude(decision, stale), contenders

    async def _wait_for_outcome(self, seconds: float) -> None:
        self._outcome.clear()
        with self._watched.awaiting_changes():
            await wait_at_most(self._outcome, seconds)

    def _apply(self, event: outstanding_offer.Event) -> None:
        self._update(*step(self._ledger, event, self._clock()))

    def _update(self, ledger: Ledger, outcomes: tuple[outstanding_offer.Outcome, ...]) -> None:
        self._ledger = ledger
        if self._store is not None:
            self._store.note(ledger)
        for outcome in outcomes:
            offer = outcome.offer
            log.info(
                "offer",
                became=outcome.kind.value,
                pod=f"{offer.pod.namespace}/{offer.pod.name}",
                uid=offer.uid,
                node=outcome.node,
                nodes=len(offer.nodes),
                ms=round((outcome.at - offer.made_at) * 1000, 1),
            )
            if outcome.kind is not outstanding_offer.OutcomeKind.NARROWED:
                self._on_offer_end(outcome)
        if outcomes:
            self._outcome.set()

    def _on_offer_end(self, outcome: outstanding_offer.Outcome) -> None:
        decided = outcome.kind is outstanding_offer.OutcomeKind.DECIDED
        self._metrics.offers_ended.count(outcome.kind.value)
        self._metrics.pod_scheduling_wait(outcome.at - outcome.offer.made_at, scheduled=decided)
        uid = outcome.offer.uid
        watched = self._watched.get(uid)
        # The next offer to the pod is watched from its own beginning, unless it replaced this one.
        if outcome.kind is not outstanding_offer.OutcomeKind.REPLACED or self._ledger.offer_of(uid) is None:
            self._watched.remove(uid)
        if watched is not None and self._placements is not None and decided:
            self._placements.note_decision(watched.pod, outcome.node, outcome.offer.made_at)

    def _start_watching(self, pod: kube.Pod) -> None:
        """Updates the ledger from the cluster until the pod's offer ends."""
        if self._ledger.offer_of(pod.uid) is None:
            return
        self._watched.add(pod)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch_pods(), name="offers")

    async def _watch_pods(self) -> None:
        while self._watched:
            # An offer that stands may be replaced by one that ends.
            await self._watched.wait(max(0.0, min(self._ledger.due - self._clock(), outstanding_offer.OFFER_LIFETIME)))
            self._observe_pods()
            await self._watched.gather_changes()

    def _observe_pods(self) -> None:
        """Ends offers that are due, and those to pods that have changed."""
        self._apply(outstanding_offer.Tick())
        for watched in self._watched.take_changed():
            uid = watched.pod.uid
            try:
                observation = offered_nodes.observe(
                    watched.pod, self._cache.state().view, self._ledger, self._clock(), seen=watched.seen
                )
                watched.seen = observation.seen
                self._update(observation.ledger, observation.outcomes)
            except Exception as error:
                log.error("following a pod failed", uid=uid, exc_info=error)  # noqa: TRY400 # its name in the contract
                # Nothing else would end its offer.
                asyncio.get_running_loop().call_later(_RESTART_INTERVAL, self._watched.note_change, uid)
