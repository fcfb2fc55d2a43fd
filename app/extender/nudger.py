"""Pods that /filter refused everywhere are nudged when they would fit: kube-scheduler hears of no change of Longhorn's objects.

    refused on all nodes → remembered → the view, the offers or a promise changed → decided anew, oldest first, beside all others and
    the pods nudged before → fits → nudged: one annotation, which makes kube-scheduler ask again at once → asked: forgotten

A round goes once through what is remembered, in turns: a turn is bounded in decisions and in time, and gives the event loop its own
turn every few milliseconds. Of pods that are alike only the first is decided about while it does not fit. What is
remembered is known to the leader only, and bounded. It is lost with the lead; the next leader reads most of it off the cluster (`adopt`).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Protocol

import structlog

from app.decisions.evaluator import SLICE_SECONDS, Scheduling
from app.decisions.state_source import LiveView
from app.extender.refusals import MOST_REMEMBERED, Refusal, Refusals
from app.kube.client import ApiError
from scheduler_core.cluster.update import empty_snapshot, rebuilt
from scheduler_core.cluster.view import View
from scheduler_core.demand.index import Demands
from scheduler_core.errors import ResolutionError
from scheduler_core.evaluation.contention import Joint
from scheduler_core.extender.filter import Decision, Others
from scheduler_core.extender.nudge import PROMISE_LIFE, Promises, Rate, likeness, refused_before
from scheduler_core.extender.offer import current_of
from scheduler_core.model.kube import Pod
from scheduler_core.offers.ledger import Ledger
from scheduler_core.volumes.resolve import Resolution, resolve, unseen_classes

log = structlog.get_logger("nudge")

__all__ = ["MOST_REMEMBERED", "Counter", "Nudger", "Waiting"]

LOOK_SECONDS: Final = 0.25
# Some room becomes free by time alone, without any event.
REVIEW_SECONDS: Final = 30.0
# kube-scheduler waits for answers to its own questions on the same event loop.
MOST_DECISIONS: Final = 100
TURN_SECONDS: Final = 0.05
# How far a watch may be behind kube-scheduler's question about a new pod.
UNSEEN_SECONDS: Final = 60.0

Patch = Callable[[Pod, str], Awaitable[bool]]
"""Writes the annotation with this time on the pod; whether there still is such a pod. ApiError if that cannot be done."""


class Counter(Protocol):
    """Where nudges are counted."""

    def nudged(self, result: str) -> None:
        """One nudge: ``patched``, ``gone`` (there was no such pod any more) or ``failed``."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that is remembered: for how many seconds since its first refusal, and how often it was nudged."""

    pod: Pod
    seconds: float
    nudged: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """Everything an answer depends on; two marks are the same if nothing changed in between."""

    version: int
    offers: object
    joint: object
    reserved: frozenset[str]
    promises: int

    def same(self, other: _Mark | None) -> bool:
        if other is None or self.offers is not other.offers or self.joint is not other.joint:
            return False
        return (self.version, self.reserved, self.promises) == (other.version, other.reserved, other.promises)


class _Turn:
    """What one turn may still do, and when the event loop is due."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends_at = clock() + TURN_SECONDS
        self._pause_at = clock() + SLICE_SECONDS
        self.decisions = MOST_DECISIONS

    @property
    def over(self) -> bool:
        return self.decisions <= 0 or self._clock() >= self._ends_at

    async def pause(self) -> None:
        if self._clock() >= self._pause_at:
            await asyncio.sleep(0)
            self._pause_at = self._clock() + SLICE_SECONDS


class Nudger:
    """Owner of what is remembered of refused pods.

    Args:
        cache: the live view
        scheduling: decides as for /filter
        others: what counts beside a pod now
        patch: see `Patch`
        metrics: counts nudges
        clock: monotonic seconds, the clock of the ledger in `others`
        now: the time that is written into the annotation
    """

    def __init__(  # noqa: PLR0913 # each is one thing it cannot have of its own
        self,
        cache: LiveView,
        scheduling: Scheduling,
        others: Callable[[], Others],
        patch: Patch,
        metrics: Counter,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._cache = cache
        self._scheduling = scheduling
        self._others = others
        self._patch = patch
        self._metrics = metrics
        self._clock = clock
        self._now = now
        self._refusals = Refusals()
        self._promises = Promises()
        self._rate = Rate()
        self._joint = Joint()  # where pods are judged alone, nudged ones are counted none the less
        self._no_demands = Demands.of(rebuilt(empty_snapshot(), now(), 0))
        self._no_offers = Ledger()
        self._round: deque[Refusal] = deque()
        self._unfit: set[Hashable] = set()
        self._mark: _Mark | None = None
        self._due_at = math.inf
        self._review_at = -math.inf
        self._remembered = asyncio.Event()
        self._failures: set[tuple[int, str]] = set()

    def refused(self, pod: Pod, candidates: Sequence[str]) -> None:
        """/filter refused the pod on all the nodes it was asked about."""
        self._promises.end(pod.uid)
        refusal = self._refusals.remember(pod, candidates, self._clock())
        if refusal is not None:
            self._look_at(refusal)
            self._remembered.set()

    def asked(self, pod: Pod) -> None:
        """/filter is asked about the pod, or has offered it nodes: it needs no nudge, and takes what it takes by an offer."""
        self._promises.end(pod.uid)
        self._refusals.set_aside(pod.uid)

    def adopt(self) -> None:
        """After a take-over: the pods a predecessor refused, as far as their conditions tell, may go to any Longhorn node."""
        view = self._cache.memory().view
        nodes = tuple(sorted(view.snapshot.longhorn_nodes))
        for pod in refused_before(view):
            self.refused(pod, nodes)

    def clear(self) -> None:
        """Forgets everything: somebody else leads."""
        self._refusals.clear()
        self._promises.clear()
        self._round.clear()
        self._failures.clear()

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """The pods that are remembered, the one refused first comes first."""
        now = self._clock()
        return tuple(Waiting(entry.pod, now - entry.since, entry.nudged) for entry in self._refusals.oldest_first())

    @property
    def remembered(self) -> int:
        """How many pods are; may be asked from any thread."""
        return len(self._refusals)

    async def run(self) -> None:
        """Nudges until cancelled."""
        async with asyncio.TaskGroup() as patches:
            while True:
                await self._remembered.wait()
                await asyncio.sleep(LOOK_SECONDS)
                await self._take_turn(patches)
                if not self._refusals:
                    self._remembered.clear()

    def _look_at(self, refusal: Refusal) -> None:
        """The pod is looked at as soon as it may be nudged again, whether anything changes or not."""
        refusal.pending = True
        self._due_at = min(self._due_at, refusal.ready_at)

    async def _take_turn(self, patches: asyncio.TaskGroup) -> None:
        turn = _Turn(self._clock)
        self._promises.lapse(self._clock())
        if not self._round:
            self._begin_round()
        while self._round and not turn.over and self._rate.ready_at <= self._clock():
            refusal = self._round.popleft()
            if self._refusals.has(refusal):
                await self._consider(refusal, turn, patches)
            await turn.pause()

    def _begin_round(self) -> None:
        """All pods if something changed since the last round began, or nobody looked for long; else those that are due."""
        now, mark = self._clock(), self._current_mark()
        changed = not mark.same(self._mark) or now >= self._review_at
        if not changed and now < self._due_at:
            return
        if changed:
            self._mark, self._review_at = mark, now + REVIEW_SECONDS
        self._due_at = math.inf
        self._unfit.clear()
        self._round.extend(entry for entry in self._refusals.oldest_first() if changed or entry.pending)

    def _current_mark(self) -> _Mark:
        others = self._others()
        offers = others.ledger.offers if others.joint is not None else None
        version = self._cache.memory().view.version
        return _Mark(version, offers, others.joint, others.reserved, self._promises.ended)

    async def _consider(self, refusal: Refusal, turn: _Turn, patches: asyncio.TaskGroup) -> None:
        """Nudges the pod if it fits now and may be nudged."""
        view = self._cache.memory().view
        pod = self._pod_of(refusal, view)
        if pod is None:
            self._promises.end(refusal.pod.uid)
            self._refusals.forget(refusal.pod.uid)
        elif refusal.ready_at > self._clock():
            self._look_at(refusal)
        else:
            refusal.pending = False
            decision = await self._decide(pod, view, refusal, turn)
            view = self._cache.memory().view
            if decision is not None and self._refusals.has(refusal) and self._pod_of(refusal, view) is not None:
                self._nudge(pod, view, refusal, decision, patches)

    def _pod_of(self, refusal: Refusal, view: View) -> Pod | None:
        """The pod as it is now; None if it needs no nudge any more: it is gone, bound, finished or being deleted."""
        current = current_of(refusal.pod, view)
        if current is None:
            unseen = not refusal.seen and self._clock() - refusal.last < UNSEEN_SECONDS
            return refusal.pod if unseen else None
        refusal.seen = True
        return current if current.live and not current.node_name else None

    async def _decide(self, pod: Pod, view: View, refusal: Refusal, turn: _Turn) -> Decision | None:
        """The decision about a pod if it fits somewhere; None if it does not, or one that is alike did not in this round."""
        resolution = self._resolution(pod, view)
        if resolution is None:
            return None
        # A refused pod has no offer: it ended when the pod was asked about.
        alike = None if pod.uid in self._promises else likeness(pod, resolution, view)
        key = None if alike is None else (refusal.candidates, alike)
        if key is not None and key in self._unfit:
            return None
        turn.decisions -= 1
        try:
            decision = await self._scheduling.filter(pod, refusal.candidates.names, self._beside)
        except ResolutionError as error:
            log.debug("cannot decide about a refused pod", pod=pod.key, uid=pod.uid, problem=str(error))
            return None
        if any(reason.fits for reason in decision.reasons):
            return decision
        if key is not None and not decision.gave_up:  # a search that gave up may end the next time
            self._unfit.add(key)
        return None

    def _resolution(self, pod: Pod, view: View) -> Resolution | None:
        """The pod's volumes; None if something it names is not there. Nobody is asked for it: a watch will bring it."""
        if unseen_classes(pod, view):
            return None
        try:
            return resolve(pod, view, require_best_effort=self._scheduling.options.require_best_effort)
        except ResolutionError:
            return None

    def _beside(self) -> Others:
        """What counts beside a pod now, and what nudged pods were promised."""
        others = self._others()
        if others.joint is not None:
            return replace(others, ledger=self._promises.beside(others.ledger), standing=None)
        return replace(
            others, demands=self._no_demands, ledger=self._promises.beside(self._no_offers), joint=self._joint
        )

    def _nudge(self, pod: Pod, view: View, refusal: Refusal, decision: Decision, patches: asyncio.TaskGroup) -> None:
        now = self._clock()
        self._promises.promise(pod, decision, view, now)
        self._rate = self._rate.after(now)
        refusal.pace, refusal.asked_by = refusal.pace.after(now), now + PROMISE_LIFE
        patches.create_task(self._write(pod, refusal), name=f"nudge {pod.key}")

    async def _write(self, pod: Pod, refusal: Refusal) -> None:
        # To the microsecond: an annotation that stays as it is wakes nobody.
        at = self._now().astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        try:
            patched = await self._patch(pod, at)
        except ApiError as error:
            self._failed(refusal, error)
            return
        self._metrics.nudged("patched" if patched else "gone")
        if patched:
            refusal.nudged += 1
            log.info("nudged", pod=pod.key, uid=pod.uid, waited=round(self._clock() - refusal.since, 1))
        elif self._refusals.has(refusal):
            self._promises.end(pod.uid)
            self._refusals.forget(pod.uid)

    def _failed(self, refusal: Refusal, error: ApiError) -> None:
        """It is tried again at the pod's pace; the first failure of its kind is told."""
        self._metrics.nudged("failed")
        kind = error.status, error.reason
        if kind not in self._failures:
            self._failures.add(kind)
            log.warning("cannot nudge; further failures like this are only counted", problem=str(error))
        refusal.asked_by = -math.inf
        if self._refusals.has(refusal):
            self._look_at(refusal)
