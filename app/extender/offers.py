"""`reservation: capacity`: nobody waits for a lock; what other pods will take is packed jointly with the pod that is asked about.

    question → evaluate beside the cluster's derived demand and the offers outstanding → offer some of the nodes that fit → answer
    the pod is bound, or a claim of it has a selected node → the offer ends: it is derived demand from then on
    nothing fits only because of what is offered to others → wait for one of them to be decided, shortly → refuse as WAITING

The ledger is the only state, and one lock makes evaluating and offering one step; it is held neither while waiting nor during
I/O. Everything else is read off the cluster at each question, so there is nothing to rebuild after a fail-over but the
nominations `adopt` finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from app.decisions.evaluator import Scheduling
from app.decisions.state_source import LiveView
from app.extender.availability import CallerGoneError, HungUp, UnavailableError
from app.extender.metrics import Metrics
from scheduler_core.convert.snapshot_kinds import Key
from scheduler_core.evaluation.contention import Joint, Own
from scheduler_core.evaluation.equivalence_cache import Standing
from scheduler_core.extender.filter import Decision, Others
from scheduler_core.extender.offer import adoptions, current_of, news, offer_of, overtaken, seen, undecided, without
from scheduler_core.extender.settings import ExtenderSettings
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import Reason
from scheduler_core.offers.ledger import (
    Became,
    Dropped,
    Event,
    Ledger,
    Offered,
    Outcome,
    TimePassed,
    Withdrawn,
    step,
)
from scheduler_core.packing.budget import STEPS_PER_REQUEST, Budget
from scheduler_core.volumes.resolve import MissingObjectError

log = structlog.get_logger("offers")

# kube-scheduler's loop is single: a long wait stops the whole cluster.
LONGEST_WAIT: Final = 0.25
# kube-scheduler says what it decided within 3.2 s in a burst of 200 pods, at its default client limits.
SETTLING_SECONDS: Final = 5.0
_LOOK_AGAIN_SECONDS: Final = 0.1
# A cluster that changes faster than a pod can be decided about is decided about as it was, without the nodes that changed.
_MOST_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class _Answer:
    """A decision, the number of the offer made for it (0 for none), and whether waiting may change it."""

    decision: Decision
    number: int = 0
    waiting: bool = False


class Asked(Protocol):
    """Who wants to know which pods are refused (`app.extender.nudger`)."""

    def asked(self, pod: Pod) -> None:
        """A question about the pod has come."""

    def refused(self, pod: Pod, candidates: Sequence[str]) -> None:
        """None of these nodes was offered to the pod."""


class Decided(Protocol):
    """Who wants to know what kube-scheduler decides (`app.extender.placements`)."""

    def decided(self, pod: Pod, node: str, offered_at: float) -> None:
        """kube-scheduler has chosen a node for a pod that was offered some at this time."""


class Offers:
    """Owner of the ledger."""

    def __init__(
        self,
        cache: LiveView,
        scheduling: Scheduling,
        settings: Callable[[], ExtenderSettings],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._scheduling = scheduling
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._ledger = Ledger()
        self._joint = Joint()
        self._standing = Standing()
        self._lock = asyncio.Lock()
        self._followers: dict[str, tuple[Pod, asyncio.Task[None]]] = {}
        self._generation = 0  # of leads: an answer begun in an earlier one makes no offer
        self._asked: Asked | None = None
        self._decided: Decided | None = None
        self._settled = asyncio.Event()

    def tell(self, asked: Asked | None = None, decided: Decided | None = None) -> None:
        """Sets who is told what becomes of pods from now on."""
        self._asked, self._decided = asked, decided

    @property
    def ledger(self) -> Ledger:
        """The offers outstanding now."""
        self._apply(TimePassed())
        return self._ledger

    @property
    def outstanding(self) -> int:
        """How many offers there were when anything last happened; may be asked from any thread."""
        return self._ledger.outstanding

    def others(self) -> Others:
        """What counts beside a pod that is asked about now; nothing if reservations are switched off."""
        if self._settings().node_reservation_timeout <= 0:
            return Others()
        return Others(demands=self._cache.demands(), ledger=self.ledger, joint=self._joint, standing=self._standing)

    def reserved(self) -> frozenset[str]:
        """No node as a whole is."""
        return frozenset()

    async def filter(self, pod: Pod, candidates: Sequence[str], hung_up: HungUp) -> Decision:
        """Decides about a pod beside all others, and offers it some of the nodes that fit.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
            CallerGoneError: the caller did not wait
        """
        if not pod.volumes:
            return await self._scheduling.filter(pod, candidates)
        if self._asked is not None:
            self._asked.asked(pod)
        until = self._clock() + min(self._settings().pod_scheduling_timeout, LONGEST_WAIT)
        while True:
            answer = await self._looked_up(pod, candidates, hung_up)
            left = until - self._clock()
            if not answer.waiting or left <= 0:
                break
            await self._some_settle(left)
            if await hung_up():
                raise CallerGoneError
        if answer.number:
            await self._unless_gone(pod, answer.number, hung_up)
        # Who has no node left before Longhorn's rules are asked gains nothing by a change of Longhorn's objects.
        if self._asked is not None and candidates and not any(reason.fits for reason in answer.decision.reasons):
            self._asked.refused(pod, candidates)
        return answer.decision

    async def _unless_gone(self, pod: Pod, number: int, hung_up: HungUp) -> None:
        """Takes an offer back that the caller will not be told of, whatever keeps it from that."""
        told = False
        try:
            told = not await hung_up()
        finally:
            if not told:
                self._apply(Withdrawn(pod.uid, number))
        if not told:
            raise CallerGoneError

    async def adopt(self, undisturbed: float) -> None:
        """Counts the nominations of pods a predecessor answered about as offers of that node.

        Returns once every pod it may have answered about has shown what became of it, or `SETTLING_SECONDS` after its last answer.
        """
        if self._settings().node_reservation_timeout <= 0:
            return
        until = self._clock() + SETTLING_SECONDS - undisturbed
        waiting = undecided(self._cache.memory().view)
        while waiting and self._clock() < until:
            await asyncio.sleep(min(_LOOK_AGAIN_SECONDS, until - self._clock()))
            waiting &= undecided(self._cache.memory().view)
        for pod, event in adoptions(self._cache.memory().view):
            self._apply(event)
            self._follow(pod)
        await self._look_around()

    async def _look_around(self) -> None:
        """Looks at every node, or the first question would have to."""
        others, memory = self.others(), self._cache.memory()
        if others.demands is not None:
            nobody, names = Own("", frozenset()), tuple(memory.view.cluster.nodes)
            look = self._joint.besides(memory, others.demands, others.ledger, names, nobody, Budget(STEPS_PER_REQUEST))
            await self._scheduling.run(look)

    async def settled(self) -> None:
        """Returns once no offer is outstanding, or after `SETTLING_SECONDS`: what was decided is visible by then."""
        until = self._clock() + SETTLING_SECONDS
        while self.ledger.outstanding and self._clock() < until:
            await self._some_settle(min(self._ledger.next_end, until) - self._clock())

    def clear(self) -> None:
        """Forgets everything: somebody else leads."""
        self._generation += 1
        self._apply(Dropped())
        followers = list(self._followers.values())
        self._followers.clear()
        for _, task in followers:
            task.cancel()

    async def _looked_up(self, pod: Pod, candidates: Sequence[str], hung_up: HungUp) -> _Answer:
        """An answer from a view that has what the pod names; what goes away meanwhile is looked for again."""
        tries = 0
        while True:
            await self._scheduling.look(pod)
            try:
                return await self._answer(pod, candidates, hung_up)
            except MissingObjectError:
                tries += 1
                if tries == _MOST_TRIES:
                    raise

    async def _answer(self, pod: Pod, candidates: Sequence[str], hung_up: HungUp) -> _Answer:
        async with self._lock:
            generation = self._generation
            decision, others = await self._judged(pod, candidates)
            if generation != self._generation:
                raise UnavailableError("the lead was lost while the pod was decided about")
            if await hung_up():  # kube-scheduler may have asked again meanwhile, and go by that answer's offer
                raise CallerGoneError
            if others.joint is None or not (decision.takes_space or decision.prefers_space or decision.roaming):
                if self._ledger.of(pod.uid) is not None:
                    self._apply(Offered(seen(pod), frozenset()))
                return _Answer(decision, waiting=Reason.WAITING in decision.reasons)
            event, answered = offer_of(pod, decision, self._cache.memory().view, self._ledger.competing(pod.uid))
            self._apply(event)
            offer = self._ledger.of(pod.uid)
            if offer is not None:
                log.info(
                    "offered", pod=pod.key, uid=pod.uid, nodes=len(offer.nodes), beside=self._ledger.outstanding - 1
                )
            self._follow(pod)
        return _Answer(answered, offer.number if offer else 0)

    async def _judged(self, pod: Pod, candidates: Sequence[str]) -> tuple[Decision, Others]:
        """A decision that holds for the view as it is when it is done, and what it counted."""
        tries = 0
        while True:
            view, others = self._cache.memory().view, self.others()
            decision = await self._scheduling.filter_unassisted(pod, candidates, others)
            changed = overtaken(decision, (view, others), (self._cache.memory().view, self.others()))
            tries += 1
            if not changed or tries == _MOST_TRIES:
                return without(decision, changed), others

    async def _some_settle(self, seconds: float) -> None:
        self._settled.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._settled.wait()
        except TimeoutError:
            return

    def _apply(self, event: Event) -> None:
        self._ledger, outcomes = step(self._ledger, event, self._clock())
        if outcomes:
            self._tell(outcomes)
            self._settled.set()

    def _tell(self, outcomes: tuple[Outcome, ...]) -> None:
        for outcome in outcomes:
            offer, seconds = outcome.offer, outcome.at - outcome.offer.made_at
            log.info(
                "offer",
                became=outcome.became.value,
                pod=f"{offer.pod.namespace}/{offer.pod.name}",
                uid=offer.uid,
                node=outcome.node,
                nodes=len(offer.nodes),
                ms=round(seconds * 1000, 1),
            )
            if outcome.became is not Became.NARROWED:
                self._ended(outcome, seconds)

    def _ended(self, outcome: Outcome, seconds: float) -> None:
        became = outcome.became
        self._metrics.offer_ended(became.value)
        self._metrics.pod_scheduling_wait(seconds, scheduled=became is Became.DECIDED)
        uid = outcome.offer.uid
        pod, follower = self._followers.get(uid, (None, None))
        if follower is not None and became is not Became.REPLACED:
            del self._followers[uid]  # at once: the pod may be asked about before the task has ended
            follower.cancel()
        if pod is not None and self._decided is not None and became is Became.DECIDED:
            self._decided.decided(pod, outcome.node, outcome.offer.made_at)

    def _follow(self, pod: Pod) -> None:
        """Tells the ledger what the cluster says of a pod, until its offer has ended."""
        if pod.uid in self._followers or self._ledger.of(pod.uid) is None:
            return
        task = asyncio.create_task(self._following(pod))
        self._followers[pod.uid] = pod, task
        task.add_done_callback(lambda done: self._followed(pod.uid, done))

    def _followed(self, uid: str, task: asyncio.Task[None]) -> None:
        if uid in self._followers and self._followers[uid][1] is task:
            del self._followers[uid]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("following a pod failed", uid=uid, exc_info=error)

    async def _following(self, pod: Pod) -> None:
        keys: list[tuple[str, Key]] = [("pods", (pod.namespace, pod.name))]
        keys += [("claims", (pod.namespace, volume.claim)) for volume in pod.volumes]
        known = False
        with self._cache.listening(*keys) as changed:
            while self._ledger.of(pod.uid) is not None:
                view = self._cache.memory().view
                for event in news(pod, view, known=known):
                    self._apply(event)
                known |= current_of(pod, view) is not None
                try:
                    async with asyncio.timeout(self._left(pod.uid)):
                        await changed.wait()
                except TimeoutError:
                    self._apply(TimePassed())
                changed.clear()

    def _left(self, uid: str) -> float:
        """Seconds until the pod's offer ends by itself."""
        offer = self._ledger.of(uid)
        return max(0.0, offer.ends_at - self._clock()) if offer else 0.0
