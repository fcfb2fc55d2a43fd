"""Nudges refused pods once they would fit: kube-scheduler sees no change of Longhorn's objects.

    refused on every node → remembered → the state, the offers or a nudge's end changed → evaluated again, the oldest pod first, together
    with all contenders and with the pods nudged before → fits → nudged: a patch of one annotation, which makes kube-scheduler retry
    the pod at once → a new request names the pod: forgotten

A round reviews all remembered pods, in turns. A turn is bounded in decisions and in time, and gives the event loop a turn every few
milliseconds. Of equivalent pods only the first is evaluated while it does not fit. Only the leader remembers pods, and a bounded number.
They are lost with the lead; the next leader reads most of them from the cluster (`adopt`).
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from datetime import UTC, datetime
from typing import Final
from weakref import WeakValueDictionary

import structlog
from msgspec import Struct, field

from app.evaluator import Evaluator, StateSource
from app.kube.client import ApiError, KubeClient
from app.kube.resources import PODS
from app.runtime.decision_thread import Turns
from scheduler_core import caches, errors, values
from scheduler_core.cluster.update import build_view, empty_snapshot
from scheduler_core.cluster.view import View
from scheduler_core.convert import generic, snapshot_kinds
from scheduler_core.decide import nudge, offered_nodes
from scheduler_core.decide.decision import Competing, Contenders, Decision
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.model.kube import Pod
from scheduler_core.offers.ledger import Ledger
from scheduler_core.volumes.demand_index import DemandIndex
from scheduler_core.volumes.resolve import Resolution, exceeds_attach_limit, missing_storage_classes, resolve

log = structlog.get_logger("nudge")

# Memory is bounded; further pods wait for kube-scheduler's own retries, up to five minutes.
MAX_REMEMBERED: Final = 5000
TURN_INTERVAL: Final = 0.25
# Some space becomes free by time alone, without any event.
REVIEW_INTERVAL: Final = 30.0
# kube-scheduler waits for answers to its own requests on the same event loop.
MAX_DECISIONS: Final = 100
TURN_SECONDS: Final = 0.05
# How far a watch may be behind kube-scheduler's request about a new pod.
UNSEEN_SECONDS: Final = 60.0
CALL_SECONDS: Final = 5.0
# Another pod of the same name has another UID, which a patch cannot change: Invalid, or Conflict.
_PERHAPS_ANOTHER_POD: Final = (409, 422)


class Candidates(Struct, frozen=True, weakref=True, eq=False):
    """The nodes a pod was refused on; equal lists are one object, so they are compared by identity."""

    names: tuple[str, ...]


class RefusedPod(Struct, eq=False):
    """A pod that was refused."""

    pod: Pod  # as kube-scheduler sent it
    candidates: Candidates  # where it was refused the last time
    since: float  # when it was refused first
    last: float
    selected_node: str = ""  # the node that its claims had selected when it was refused the last time, "" for none
    backoff: nudge.NudgeBackoff = field(default_factory=nudge.NudgeBackoff)  # when it may be nudged again
    # When kube-scheduler should have retried it after its last nudge; before that it gets no other nudge.
    retry_by: float = -math.inf
    nudges: int = 0  # number of its nudges
    seen: bool = False  # whether a view has had it
    pending: bool = False  # whether it is to be reviewed even if nothing changes

    @property
    def ready_at(self) -> float:
        return max(self.backoff.ready_at, self.retry_by)


class RefusedPods:
    """Refused pods by UID, and refused pods that a request names at present."""

    def __init__(self) -> None:
        self._refused: dict[str, RefusedPod] = {}
        self._aside: caches.LruMap[str, RefusedPod] = caches.LruMap(MAX_REMEMBERED)
        self._candidates: WeakValueDictionary[tuple[str, ...], Candidates] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._refused)

    def remember(self, pod: Pod, candidates: Sequence[str], now: float, selected_node: str = "") -> RefusedPod | None:
        """Records a refusal and returns it, None for a pod without UID, or if there are `MAX_REMEMBERED` older ones."""
        earlier = self._refused.get(pod.uid)
        if not pod.uid or (earlier is None and len(self._refused) >= MAX_REMEMBERED):
            return None
        names = tuple(candidates)
        shared = self._candidates.setdefault(names, Candidates(names))
        refusal = earlier or self._aside.pop(pod.uid) or RefusedPod(pod, shared, now, now)
        refusal.pod = pod
        refusal.candidates = shared
        refusal.last = now
        refusal.selected_node = selected_node
        refusal.retry_by = -math.inf
        self._refused[pod.uid] = refusal
        return refusal

    def set_aside(self, uid: str) -> None:
        """A request names the pod. If it is refused again, its age and its back-off continue; the `MAX_REMEMBERED` latest such pods are kept."""
        if uid in self._refused:
            self._aside.put(uid, self._refused.pop(uid))

    def forget(self, uid: str) -> None:
        """Drops a pod that no request will name again."""
        self._refused.pop(uid, None)

    def clear(self) -> None:
        self._refused.clear()
        self._aside.clear()

    def is_current(self, refusal: RefusedPod) -> bool:
        return self._refused.get(refusal.pod.uid) is refusal

    def oldest_wait(self, now: float) -> float:
        """Returns for how long the pod that was refused first waits, 0 without one."""
        # A copy, because another thread may add a pod meanwhile.
        return max((now - refusal.since for refusal in list(self._refused.values())), default=0.0)

    def oldest_first(self) -> list[RefusedPod]:
        """Returns the refused pods by their first refusal, ties by UID."""
        return sorted(self._refused.values(), key=lambda refusal: (refusal.since, refusal.pod.uid))


async def write_nudge(client: KubeClient, pod: Pod, at: str) -> bool:
    """Writes when the pod was nudged: any change of a waiting pod makes kube-scheduler retry it at once. Returns whether
    the pod still exists, not another one of the same name. Raises an ApiError if the API server refused or did not answer.
    """
    path = PODS.path(pod.namespace, pod.name)
    try:
        await client.patch(path, generic.nudge_patch(pod.uid, at), seconds=CALL_SECONDS)
    except ApiError as error:
        if error.not_found:
            return False
        if error.status not in _PERHAPS_ANOTHER_POD:
            raise
        # It may be refused for another reason than the UID: other writers keep changing the pod, for example.
        raw = await client.find(path, CALL_SECONDS)
        current = None if raw is None else snapshot_kinds.KINDS[PODS.group, PODS.kind].decode(raw)[1]
        if isinstance(current, Pod) and current.uid == pod.uid:
            raise
        return False
    return True


class _Turn(Struct):
    """The limits of one turn."""

    of_loop: Turns
    ends_at: float
    decisions_left: int = MAX_DECISIONS


class Nudger:
    """Owner of the refused pods.

    Args:
        cache: provides the current state
        evaluator: decides as for /filter
        contenders: returns what other pods have now
        patch: writes the annotation with this time, and returns whether the pod still exists, as `write_nudge` does
        count: counts one nudge: ``patched``, ``gone`` (the pod does not exist any more) or ``failed``
        clock: monotonic seconds, as the ledger in `contenders` has them
        now: the time that is written into the annotation
    """

    def __init__(  # noqa: PLR0913 # every one is a port
        self,
        cache: StateSource,
        evaluator: Evaluator,
        contenders: Callable[[], Contenders],
        patch: Callable[[Pod, str], Awaitable[bool]],
        count: Callable[[str], None],
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._cache = cache
        self._evaluator = evaluator
        self._contenders = contenders
        self._patch = patch
        self._count = count
        self._clock = clock
        self._now = now
        self._refusals = RefusedPods()
        self._pending = nudge.PendingNudges()
        self._rate = nudge.NUDGE_LIMIT
        # Nudged pods count also where pods are evaluated alone.
        self._contention = Contention()
        self._no_offers = Ledger()
        self._no_demand = DemandIndex.of(build_view(empty_snapshot(), now(), 0))
        self._round: deque[RefusedPod] = deque()
        self._unfit: set[Hashable] = set()
        # Of the latest round over all pods, what decisions depend on: version and ended nudges, and the offers of other pods.
        self._reviewed = (-1, -1)
        self._reviewed_offers: object = None
        self._due_at = math.inf
        self._review_at = -math.inf
        self._wake = asyncio.Event()
        self._logged_failures: set[tuple[int, str]] = set()

    def note_refusal(self, pod: Pod, candidates: Sequence[str]) -> None:
        """Remembers a pod that was refused on all these nodes."""
        self._pending.end(pod.uid)
        if exceeds_attach_limit(pod):
            # With so many volumes no change of the cluster can help the pod.
            return
        selected_node = self._cache.state().view.selected_node(pod)
        refusal = self._refusals.remember(pod, candidates, self._clock(), selected_node)
        if refusal is not None:
            self._schedule_review(refusal)
            self._wake.set()

    def note_request(self, pod: Pod) -> None:
        """Ends the pod's pending nudge, because a request names it. If the pod is offered nodes, what it takes counts
        as an offer from now on.
        """
        self._pending.end(pod.uid)
        self._refusals.set_aside(pod.uid)

    def adopt(self) -> None:
        """Remembers pods that the previous leader refused, as their conditions show, but none with a selected node.
        Every Longhorn node counts as a candidate.
        """
        view = self._cache.state().view
        nodes = tuple(sorted(view.snapshot.longhorn_nodes))
        for pod in nudge.previously_refused_pods(view):
            self.note_refusal(pod, nodes)

    def clear(self) -> None:
        """Forgets everything: another process leads."""
        self._refusals.clear()
        self._pending.clear()
        self._round.clear()
        self._logged_failures.clear()

    @property
    def waiting(self) -> tuple[nudge.WaitingPod, ...]:
        """The remembered pods, the one refused first comes first."""
        now = self._clock()
        return tuple(
            nudge.WaitingPod(each.pod, now - each.since, each.nudges) for each in self._refusals.oldest_first()
        )

    @property
    def remembered(self) -> int:
        """Number of remembered pods; may be read from any thread."""
        return len(self._refusals)

    @property
    def oldest_wait(self) -> float:
        """Seconds since the first refusal of the pod that waits longest, 0 without one; may be read from any thread."""
        return self._refusals.oldest_wait(self._clock())

    async def run(self) -> None:
        """Nudges until cancelled."""
        async with asyncio.TaskGroup() as patches:
            while True:
                await self._wake.wait()
                await asyncio.sleep(TURN_INTERVAL)
                await self._take_turn(patches)
                if not self._refusals:
                    self._wake.clear()

    def _schedule_review(self, refusal: RefusedPod) -> None:
        """Reviews the pod once it may be nudged, even without changes."""
        refusal.pending = True
        self._due_at = min(self._due_at, refusal.ready_at)

    async def _take_turn(self, patches: asyncio.TaskGroup) -> None:
        turn = _Turn(Turns(self._clock), self._clock() + TURN_SECONDS)
        self._pending.expire(self._clock())
        if not self._round:
            self._begin_round()
        while self._round and turn.decisions_left and self._rate.ready_at <= self._clock() < turn.ends_at:
            refusal = self._round.popleft()
            if self._refusals.is_current(refusal):
                await self._review(refusal, turn, patches)
            await turn.of_loop.end_if_due()

    def _begin_round(self) -> None:
        """Starts a round over the pods that are due, or over all pods if something changed and every `REVIEW_INTERVAL`."""
        now = self._clock()
        contenders = self._contenders()
        offers = contenders.ledger.offers if isinstance(contenders, Competing) else None
        state = (self._cache.state().view.version, self._pending.ended)
        changed = state != self._reviewed or offers is not self._reviewed_offers
        review_all = changed or now >= self._review_at
        if not review_all and now < self._due_at:
            return
        if review_all:
            self._reviewed = state
            self._reviewed_offers = offers
            self._review_at = now + REVIEW_INTERVAL
        self._due_at = math.inf
        self._unfit.clear()
        self._round.extend(refusal for refusal in self._refusals.oldest_first() if review_all or refusal.pending)

    async def _review(self, refusal: RefusedPod, turn: _Turn, patches: asyncio.TaskGroup) -> None:
        view = self._cache.state().view
        pod = self._waiting_pod(refusal, view)
        if pod is None:
            self._pending.end(refusal.pod.uid)
            self._refusals.forget(refusal.pod.uid)
        elif refusal.ready_at > self._clock():
            self._schedule_review(refusal)
        else:
            refusal.pending = False
            decision = await self._fitting_decision(pod, view, refusal, turn)
            view = self._cache.state().view
            waits_still = self._refusals.is_current(refusal) and self._waiting_pod(refusal, view) is not None
            if decision is not None and waits_still:
                self._nudge(pod, view, refusal, decision, patches)

    def _waiting_pod(self, refusal: RefusedPod, view: View) -> Pod | None:
        """Returns the pod as it is now, None if it does not wait."""
        # It was deleted, bound or ended, or its node was selected after its refusal.
        current = offered_nodes.current_pod(refusal.pod, view)
        if current is None:
            unseen = not refusal.seen and self._clock() - refusal.last < UNSEEN_SECONDS
            return refusal.pod if unseen else None
        refusal.seen = True
        selected_node = view.selected_node(current)
        if not selected_node:
            refusal.selected_node = ""
        # A node that was selected before the refusal is left of a failed binding.
        decided = current.node_name or selected_node != refusal.selected_node
        return current if current.live and not decided else None

    async def _fitting_decision(self, pod: Pod, view: View, refusal: RefusedPod, turn: _Turn) -> Decision | None:
        """Returns the decision about a pod that fits some node, or None."""
        # A pod is not evaluated if an equivalent one did not fit in this round.
        resolution = self._resolution(pod, view)
        if resolution is None:
            return None
        # A refused pod has no offer: it ended when a request named the pod.
        equivalence = None if pod.uid in self._pending else nudge.equivalence_key(pod, resolution, view)
        key = None if equivalence is None else (refusal.candidates, equivalence)
        if key is not None and key in self._unfit:
            return None
        turn.decisions_left -= 1
        try:
            decision = await self._evaluator.decide(pod, refusal.candidates.names, self._contenders_with_nudges)
        except errors.ResolutionError as error:
            log.debug("cannot decide about a refused pod", pod=pod.key, uid=pod.uid, problem=str(error))
            return None
        if decision.fits:
            return decision
        # A search that gave up may end the next time.
        if key is not None and not decision.gave_up:
            self._unfit.add(key)
        return None

    def _resolution(self, pod: Pod, view: View) -> Resolution | None:
        """Returns the pod's volumes, None if an object is missing, which a watch will deliver."""
        if missing_storage_classes(pod, view):
            return None
        try:
            return resolve(pod, view, require_best_effort=self._evaluator.options.require_best_effort)
        except errors.ResolutionError:
            return None

    def _contenders_with_nudges(self) -> Contenders:
        contenders = self._contenders()
        if isinstance(contenders, Competing):
            ledger = self._pending.add_to(contenders.ledger)
            # No later request has these contenders, so that the results are not cached.
            return values.replace(contenders, ledger=ledger, equivalence=EquivalenceCache())
        return Competing(self._no_demand, self._pending.add_to(self._no_offers), self._contention, EquivalenceCache())

    def _nudge(self, pod: Pod, view: View, refusal: RefusedPod, decision: Decision, patches: asyncio.TaskGroup) -> None:
        now = self._clock()
        self._pending.add(pod, decision, view, now)
        self._rate = self._rate.after(now)
        refusal.backoff = refusal.backoff.after(now)
        refusal.retry_by = now + nudge.PENDING_NUDGE_LIFETIME
        patches.create_task(self._write(pod, refusal), name=f"nudge {pod.key}")

    async def _write(self, pod: Pod, refusal: RefusedPod) -> None:
        # To the microsecond: a patch that changes nothing causes no retry.
        at = self._now().astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        try:
            patched = await self._patch(pod, at)
        except ApiError as error:
            self._on_failure(refusal, error)
            return
        self._count("patched" if patched else "gone")
        if patched:
            refusal.nudges += 1
            log.info("nudged", pod=pod.key, uid=pod.uid, waited=round(self._clock() - refusal.since, 1))
        elif self._refusals.is_current(refusal):
            self._pending.end(pod.uid)
            self._refusals.forget(pod.uid)

    def _on_failure(self, refusal: RefusedPod, error: ApiError) -> None:
        """Counts a failed nudge, which is repeated after the pod's back-off, and logs the first of its kind."""
        self._count("failed")
        kind = (error.status, error.reason)
        if kind not in self._logged_failures:
            self._logged_failures.add(kind)
            log.warning("cannot nudge; further failures like this are only counted", problem=str(error))
        refusal.retry_by = -math.inf
        if self._refusals.is_current(refusal):
            self._schedule_review(refusal)
