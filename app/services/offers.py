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
from typing import Final

import structlog

from app.metrics import Metrics
from app.services.gate import CallerGoneError, HungUp
from app.services.scheduling import Scheduling
from app.services.source import LiveView
from scheduler_core.convert.registry import Key
from scheduler_core.extender_settings import ExtenderSettings
from scheduler_core.joint import Joint
from scheduler_core.ledger import (
    Became,
    Dropped,
    Event,
    Ledger,
    Outcome,
    TimePassed,
    Withdrawn,
    step,
)
from scheduler_core.model.kube import Pod
from scheduler_core.offering import adoptions, current_of, news, offer_of
from scheduler_core.verbs import Decision, Others
from scheduler_core.verdict import Reason

log = structlog.get_logger("offers")

# kube-scheduler's loop is single: a long wait stops the whole cluster.
LONGEST_WAIT: Final = 0.25


@dataclass(frozen=True, slots=True)
class _Answer:
    """A decision, the number of the offer made for it (0 for none), and whether waiting may change it."""

    decision: Decision
    number: int = 0
    waiting: bool = False


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
        self._lock = asyncio.Lock()
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._settled = asyncio.Event()

    @property
    def ledger(self) -> Ledger:
        """The offers outstanding now."""
        self._apply(TimePassed())
        return self._ledger

    def others(self) -> Others:
        """What counts beside a pod that is asked about now; nothing if reservations are switched off."""
        if self._settings().node_reservation_timeout <= 0:
            return Others()
        return Others(demands=self._cache.demands(), ledger=self.ledger, joint=self._joint)

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
        await self._scheduling.look(pod)
        until = self._clock() + min(self._settings().pod_scheduling_timeout, LONGEST_WAIT)
        while True:
            answer = await self._answer(pod, candidates)
            left = until - self._clock()
            if not answer.waiting or left <= 0:
                break
            await self._some_settle(left)
            if await hung_up():
                raise CallerGoneError
        if answer.number and await hung_up():
            self._apply(Withdrawn(pod.uid, answer.number))
            raise CallerGoneError
        return answer.decision

    async def adopt(self) -> None:
        """Counts the nominations of pods a predecessor answered about as offers of that node."""
        if self._settings().node_reservation_timeout <= 0:
            return
        for pod, event in adoptions(self._cache.memory().view):
            self._apply(event)
            self._follow(pod)

    async def settled(self) -> None:
        """Returns once no offer is outstanding."""
        while self.ledger.outstanding:
            await self._some_settle(self._ledger.next_end - self._clock())

    def clear(self) -> None:
        """Forgets everything: somebody else leads."""
        self._apply(Dropped())
        for task in list(self._followers.values()):
            task.cancel()

    async def _answer(self, pod: Pod, candidates: Sequence[str]) -> _Answer:
        async with self._lock:
            others = self.others()
            decision = await self._scheduling.filter(pod, candidates, lambda: others)
            if others.joint is None or not decision.takes_space:
                return _Answer(decision, waiting=Reason.WAITING in decision.reasons)
            view = self._cache.memory().view
            event, answered = offer_of(pod, decision, view, self._ledger.competing(pod.uid))
            self._apply(event)
            offer = self._ledger.of(pod.uid)
            self._follow(pod)
        return _Answer(answered, offer.number if offer else 0)

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
                self._metrics.pod_scheduling_wait(seconds, scheduled=outcome.became is Became.DECIDED)
                follower = self._followers.get(offer.uid)
                if follower is not None and outcome.became is not Became.REPLACED:
                    follower.cancel()

    def _follow(self, pod: Pod) -> None:
        """Tells the ledger what the cluster says of a pod, until its offer has ended."""
        if pod.uid in self._followers or self._ledger.of(pod.uid) is None:
            return
        task = asyncio.create_task(self._following(pod))
        self._followers[pod.uid] = task
        task.add_done_callback(lambda _: self._followers.pop(pod.uid, None))

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
