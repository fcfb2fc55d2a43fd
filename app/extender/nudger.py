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

import structlog

from app.evaluator import Evaluator, StateSource
from app.kube.client import ApiError, KubeClient
from app.kube.resources import PODS
from app.runtime.decision_thread import Turns
from scheduler_core import caches, errors
from scheduler_core.cluster.update import build_view, empty_snapshot
from scheduler_core.cluster.view import View
from scheduler_core.convert import generic, snapshot_kinds
from scheduler_core.decide import nudge_limits, offered_nodes
from scheduler_core.decide.decision import Competing, Contenders, Decision
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.model.kube import Pod
from scheduler_core.offers.ledger import Ledger
from scheduler_core.structs import Struct, field, replace
from scheduler_core.volumes.demand_index import DemandIndex
from scheduler_core.volumes.resolve import exceeds_attach_limit, missing_storage_classes, resolve

log = structlog.get_logger("nudge")

# Memory is bounded; further pods wait for kube-scheduler's own retries, up to five minutes.
MAX_REMEMBERED = 5000
_MAX_CANDIDATE_LISTS = 100
TURN_INTERVAL = 0.25
# Some space becomes free by time alone, without any event.
REVIEW_INTERVAL = 30.0
# kube-scheduler waits for answers to its own requests on the same event loop.
MAX_DECISIONS = 100
TURN_SECONDS = 0.05
# How far a watch may be behind kube-scheduler's request about a new pod.
UNSEEN_SECONDS = 60.0
CALL_SECONDS = 5.0
# Another pod of the same name has another UID, which a patch cannot change: Invalid, or Conflict.
_PERHAPS_ANOTHER_POD = (409, 422)


class RefusedPod(Struct, eq=False):
    """A pod that was refused."""

    pod: Pod  # as kube-scheduler sent it
    candidates: tuple[str, ...]  # where it was refused the last time
    since: float  # when it was refused first
    last: float
    selected_node: str = ""  # the node that its claims had selected when it was refused the last time, "" for none
    backoff: nudge_limits.NudgeBackoff = field(default_factory=nudge_limits.NudgeBackoff)  # when it may be nudged again
    # When kube-scheduler should have retried it after its last nudge; before that it gets no other nudge.
    retry_by: float = -math.inf
    nudges: int = 0  # number of its nudges
    seen: bool = False  # whether a view has had it
    pending: bool = False  # whether it is to be reviewed even if nothing changes

    @property
    def ready_at(self) -> float:
        return max(self.backoff.ready_at, self.retry_by)


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
        self._refused: dict[str, RefusedPod] = {}
        # Pods that a request names at present. If one is refused again, its age and its back-off continue.
        self._aside: caches.LruMap[str, RefusedPod] = caches.LruMap(MAX_REMEMBERED)
        # Equal lists are one object: 5,000 lists of 5,000 names would take 200 MB.
        self._candidates: caches.LruMap[tuple[str, ...], tuple[str, ...]] = caches.LruMap(_MAX_CANDIDATE_LISTS)
        self._pending = nudge_limits.PendingNudges()
        self._rate = nudge_limits.NUDGE_LIMIT
        # Nudged pods count also where pods are evaluated alone.
        self._contention = Contention()
        self._no_offers = Ledger()
        self._no_demand = DemandIndex.of(build_view(empty_snapshot(), now(), 0))
        self._round: deque[RefusedPod] = deque()
        self._unfit: set[Hashable] = set()
        self._decisions_left = 0  # in this turn
        # Of the latest round over all pods, what decisions depend on: version and ended nudges, and the offers of other pods.
        self._reviewed = (-1, -1)
        self._reviewed_offers: object = None
        self._due_at = math.inf
        self._review_at = -math.inf
        self._wake = asyncio.Event()
        self._logged_failures: set[tuple[int, str]] = set()

    def note_refusal(self, pod: Pod, candidates: Sequence[str]) -> None:
        """Remembers a pod that was refused on all these nodes, unless it has no UID, or `MAX_REMEMBERED` are older."""
        self._pending.end(pod.uid)
        earlier = self._refused.get(pod.uid)
        full = earlier is None and len(self._refused) >= MAX_REMEMBERED
        # With too many volumes no change of the cluster can help the pod.
        if not pod.uid or full or exceeds_attach_limit(pod):
            return
        now = self._clock()
        names = tuple(candidates)
        names = self._candidates.get(names) or names
        self._candidates.put(names, names)
        refusal = earlier or self._aside.pop(pod.uid) or RefusedPod(pod, names, now, now)
        refusal.pod = pod
        refusal.candidates = names
        refusal.last = now
        refusal.selected_node = self._cache.state().view.selected_node(pod)
        refusal.retry_by = -math.inf
        self._refused[pod.uid] = refusal
        self._schedule_review(refusal)
        self._wake.set()

    def note_request(self, pod: Pod) -> None:
        """Ends the pod's pending nudge, because a request names it. If the pod is offered nodes, what it takes counts
        as an offer from now on.
        """
        self._pending.end(pod.uid)
        if pod.uid in self._refused:
            self._aside.put(pod.uid, self._refused.pop(pod.uid))

    def adopt(self) -> None:
        """Remembers pods that the previous leader refused, as their conditions show, but none with a selected node.
        Every Longhorn node counts as a candidate.
        """
        view = self._cache.state().view
        nodes = tuple(sorted(view.snapshot.longhorn_nodes))
        for pod in nudge_limits.previously_refused_pods(view):
            self.note_refusal(pod, nodes)

    def clear(self) -> None:
        """Forgets everything: another process leads."""
        self._refused.clear()
        self._aside.clear()
        self._pending.clear()
        self._round.clear()
        self._logged_failures.clear()

    @property
    def waiting(self) -> tuple[nudge_limits.WaitingPod, ...]:
        """The remembered pods, the one refused first comes first."""
        now = self._clock()
        return tuple(nudge_limits.WaitingPod(each.pod, now - each.since, each.nudges) for each in self._oldest_first())

    def _oldest_first(self) -> list[RefusedPod]:
        return sorted(self._refused.values(), key=lambda refusal: (refusal.since, refusal.pod.uid))

    @property
    def remembered(self) -> int:
        """Number of remembered pods; may be read from any thread."""
        return len(self._refused)

    @property
    def oldest_wait(self) -> float:
        """Seconds since the first refusal of the pod that waits longest, 0 without one; may be read from any thread."""
        now = self._clock()
        # A copy, because another thread may add a pod meanwhile.
        return max((now - refusal.since for refusal in list(self._refused.values())), default=0.0)

    async def run(self) -> None:
        """Nudges until cancelled."""
        async with asyncio.TaskGroup() as patches:
            while True:
                await self._wake.wait()
                await asyncio.sleep(TURN_INTERVAL)
                await self._take_turn(patches)
                if not self._refused:
                    self._wake.clear()

    def _schedule_review(self, refusal: RefusedPod) -> None:
        """Reviews the pod once it may be nudged, even without changes."""
        refusal.pending = True
        self._due_at = min(self._due_at, refusal.ready_at)

    async def _take_turn(self, patches: asyncio.TaskGroup) -> None:
        turns = Turns(self._clock)
        ends_at = self._clock() + TURN_SECONDS
        self._decisions_left = MAX_DECISIONS
        self._pending.expire(self._clock())
        if not self._round:
            self._begin_round()
        while self._round and self._decisions_left and self._rate.ready_at <= self._clock() < ends_at:
            refusal = self._round.popleft()
            if self._is_current(refusal):
                await self._review(refusal, patches)
            await turns.end_if_due()

    def _is_current(self, refusal: RefusedPod) -> bool:
        return self._refused.get(refusal.pod.uid) is refusal

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
        self._round.extend(refusal for refusal in self._oldest_first() if review_all or refusal.pending)

    async def _review(self, refusal: RefusedPod, patches: asyncio.TaskGroup) -> None:
        view = self._cache.state().view
        pod = self._waiting_pod(refusal, view)
        if pod is None:
            self._pending.end(refusal.pod.uid)
            del self._refused[refusal.pod.uid]
            return
        if refusal.ready_at > self._clock():
            self._schedule_review(refusal)
            return
        refusal.pending = False
        decision = await self._fitting_decision(pod, view, refusal)
        view = self._cache.state().view
        waits_still = self._is_current(refusal) and self._waiting_pod(refusal, view) is not None
        if decision is None or not waits_still:
            return
        now = self._clock()
        self._pending.add(pod, decision, view, now)
        self._rate = self._rate.after(now)
        refusal.backoff = refusal.backoff.after(now)
        refusal.retry_by = now + nudge_limits.PENDING_NUDGE_LIFETIME
        patches.create_task(self._write(pod, refusal), name=f"nudge {pod.key}")

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

    async def _fitting_decision(self, pod: Pod, view: View, refusal: RefusedPod) -> Decision | None:
        """Returns the decision about a pod that fits some node, or None."""
        # A watch will deliver what is missing.
        if missing_storage_classes(pod, view):
            return None
        try:
            resolution = resolve(pod, view, require_best_effort=self._evaluator.options.require_best_effort)
            # A refused pod has no offer: it ended when a request named the pod.
            equivalence = None if pod.uid in self._pending else nudge_limits.equivalence_key(pod, resolution, view)
            key = None if equivalence is None else (refusal.candidates, equivalence)
            # A pod is not evaluated if an equivalent one did not fit in this round.
            if key is not None and key in self._unfit:
                return None
            self._decisions_left -= 1
            decision = await self._evaluator.decide(pod, refusal.candidates, self._contenders_with_nudges)
        except errors.ResolutionError as error:
            log.debug("cannot decide about a refused pod", pod=pod.key, uid=pod.uid, problem=str(error))
            return None
        if decision.fits:
            return decision
        # A search that gave up may end the next time.
        if key is not None and not decision.gave_up:
            self._unfit.add(key)
        return None

    def _contenders_with_nudges(self) -> Contenders:
        contenders = self._contenders()
        if isinstance(contenders, Competing):
            ledger = self._pending.add_to(contenders.ledger)
            # No later request has these contenders, so that the results are not cached.
            return replace(contenders, ledger=ledger, equivalence=EquivalenceCache())
        return Competing(self._no_demand, self._pending.add_to(self._no_offers), self._contention, EquivalenceCache())

    async def _write(self, pod: Pod, refusal: RefusedPod) -> None:
        # To the microsecond: a patch that changes nothing causes no retry.
        at = self._now().astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        try:
            patched = await self._patch(pod, at)
        except ApiError as error:
            # It is repeated after the pod's back-off; the first of its kind is logged.
            self._count("failed")
            kind = (error.status, error.reason)
            if kind not in self._logged_failures:
                self._logged_failures.add(kind)
                log.warning("cannot nudge; further failures like this are only counted", problem=str(error))
            refusal.retry_by = -math.inf
            if self._is_current(refusal):
                self._schedule_review(refusal)
            return
        self._count("patched" if patched else "gone")
        if patched:
            refusal.nudges += 1
            log.info("nudged", pod=pod.key, uid=pod.uid, waited=round(self._clock() - refusal.since, 1))
        elif self._is_current(refusal):
            self._pending.end(pod.uid)
            del self._refused[pod.uid]
