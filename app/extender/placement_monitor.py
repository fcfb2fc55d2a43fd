"""Monitors how pods fare after the decision: whether Longhorn places their volumes, which it misplaces, and which disks
it overbooks.

    kube-scheduler has decided for a pod that had an offer → its volumes are followed → Longhorn lists them on the node: placed
                                                             → the pod is gone, is bound elsewhere, or it takes too long: not placed
    every second → those pods are checked
                 → a new report on all demand (`scheduler_core/monitor/demand_monitor.py`)
    a watch delivers a replica with its disk → the moment is noted → with the next report on demand comes one on overbooked disks
                                                                     (`scheduler_core/monitor/overbooking_monitor.py`)

Only the leader does any of it, between `adopt` and `clear`, or two processes would count the same misplacement. A new
leader counts the misplaced volumes that are still new once more, because the previous leader's counts are not recorded
anywhere. It counts no disk that was overbooked before.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from functools import partial

import structlog

from app.evaluator import Evaluator, StateSource
from app.extender.metrics import Metrics, Outstanding
from app.runtime import decision_thread, wait_at_most
from scheduler_core import errors
from scheduler_core.cluster.view import View
from scheduler_core.decide import decision, offered_nodes
from scheduler_core.evaluation.contention import Contention
from scheduler_core.model import kube, longhorn
from scheduler_core.monitor import demand_monitor, overbooking_monitor
from scheduler_core.offers.ledger import Ledger
from scheduler_core.structs import Struct
from scheduler_core.volumes.decided_pods import decided_node, unlisted_volumes

log = structlog.get_logger("placements")

# In a burst demand changes all the time, and each round makes a state of the cluster and evaluates every changed node.
INTERVAL = 1.0
# Longhorn tries again every 30 s to place a replica that did not fit.
MAX_PLACEMENT_SECONDS = 300.0
# A log line names this many volumes; their number is logged too.
_MAX_VOLUMES_LOGGED = 50


class _FollowEnd(Enum):
    """How following a pod ends; the value is logged."""

    PLACED = "placed"
    GONE = "gone"
    ELSEWHERE = "elsewhere"
    LATE = "late"


class _FollowedPod(Struct):
    """A pod whose volumes Longhorn is to place; times are seconds of the clock."""

    pod: kube.Pod  # as it was at the decision
    node: str  # the node that was decided
    offered_at: float  # when the pod was offered nodes
    decided_at: float  # when the decision was seen
    seen: bool = False  # whether a view had the pod; a pod that no view had yet is not gone


class Placements:
    """Owner of the reports on placements and overbooked disks, and of the followed pods."""

    def __init__(
        self,
        cache: StateSource,
        evaluator: Evaluator,
        contenders: Callable[[], decision.Contenders],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._evaluator = evaluator
        self._contenders = contenders
        self._metrics = metrics
        self._clock = clock
        # The latest reports; empty before the first ones, and while another process leads.
        self.report = demand_monitor.PlacementReport()
        self.overbookings = overbooking_monitor.OverbookingReport()
        self._deliveries: dict[tuple[str, str], float] = {}
        self._contention = Contention()
        self._followed_pods: dict[str, _FollowedPod] = {}
        self._leads = False
        self._adopted = asyncio.Event()

    @property
    def followed(self) -> int:
        return len(self._followed_pods)

    def outstanding(self, *, offers: int, waiting: int, oldest_wait: float) -> Outstanding:
        """Returns the numbers for Prometheus, with those of the caller: offers, waiting pods, and how long the oldest
        of them has waited.
        """
        report = self.report
        return Outstanding(
            demands={source.name.lower(): count for source, count in report.by_source.items()},
            offers=offers,
            hopeless_demands=len(report.hopeless),
            misplaced_volumes=len(report.misplaced),
            overbooked_disks=len(self.overbookings.overbooked),
            stuck_pods=len(report.stuck),
            waiting_pods=waiting,
            oldest_waiting_pod_seconds=oldest_wait,
        )

    def adopt(self) -> None:
        self._leads = True
        self._adopted.set()

    def clear(self) -> None:
        """Forgets everything: another process leads."""
        self._leads = False
        # No followed pod is counted: this process does not see their end.
        self._followed_pods.clear()
        self._deliveries.clear()
        self.report = demand_monitor.PlacementReport()
        self.overbookings = overbooking_monitor.OverbookingReport()

    def note_decision(self, pod: kube.Pod, node: str, offered_at: float) -> None:
        """Follows a pod that kube-scheduler has decided a node for; the same decision again changes nothing, another
        node starts over.
        """
        earlier = self._followed_pods.get(pod.uid)
        if earlier is not None and earlier.node != node:
            self._end_following(earlier, _FollowEnd.ELSEWHERE)
        if earlier is None or earlier.node != node:
            self._followed_pods[pod.uid] = _FollowedPod(pod, node, offered_at, self._clock())

    def note_delivery(self, _before: object | None, replica: object | None) -> None:
        """Notes when a watch first delivers a replica with its disk; called for every change of a replica."""
        if self._leads and isinstance(replica, longhorn.Replica) and replica.disk_id:
            self._deliveries.setdefault((replica.name, replica.disk_id), self._clock())

    async def run(self) -> None:
        """Checks and reports until cancelled."""
        while True:
            self._adopted.clear()
            if self._leads:
                await self._check_followed_pods()
                await self._update_report()
                await self.update_overbookings()
            # The first report of a leader comes at once: what is overbooked then is not new.
            await wait_at_most(self._adopted, INTERVAL)

    async def _check_followed_pods(self) -> None:
        turns = decision_thread.Turns(self._clock)
        view = self._cache.state().view
        for followed in list(self._followed_pods.values()):
            # In another turn the pod may have been decided again, or all may have been cleared.
            if self._followed_pods.get(followed.pod.uid) is followed:
                end = self._follow_end(followed, view)
                if end is not None:
                    self._end_following(followed, end)
            await turns.end_if_due()

    async def _update_report(self) -> None:
        contenders = self._contenders()
        contention = self._contention
        ledger = Ledger()
        if isinstance(contenders, decision.Competing):
            contention = contenders.contention
            ledger = contenders.ledger
        previous = self.report
        required = self._evaluator.options.require_best_effort
        update = partial(
            previous.update, self._cache.state(), contention, ledger, self._clock(), require_best_effort=required
        )
        report = await self._evaluator.run(update)
        cleared = self.report is not previous or not self._leads
        if cleared:
            return
        self.report = report
        for entry in report.new_misplacements:
            self._metrics.misplacements.inc()
            log.warning(
                "misplaced", pod=entry.pod, volume=entry.volume, wanted=entry.node, replicas_on=list(entry.replicas_on)
            )

    async def update_overbookings(self) -> None:
        """Makes the next report on overbooked disks, and counts and logs what is new in it."""
        if not self._leads:
            return
        deliveries = self._deliveries
        self._deliveries = {}
        previous = self.overbookings
        report = await self._evaluator.run(
            partial(previous.update, self._cache.state().view, deliveries, self._clock())
        )
        cleared = self.overbookings is not previous or not self._leads
        if cleared:
            return
        self.overbookings = report
        for entry in report.new_overbookings:
            self._metrics.overbookings.inc()
            log.warning(
                "overbooked",
                node=entry.node,
                disk=entry.disk,
                volumes=list(entry.volumes[:_MAX_VOLUMES_LOGGED]),
                volume_count=len(entry.volumes),
                bytes_over=entry.bytes_over,
                within_ms=entry.milliseconds,
            )

    def _follow_end(self, followed: _FollowedPod, view: View) -> _FollowEnd | None:
        current = offered_nodes.current_pod(followed.pod, view)
        if current is not None and decided_node(current, view) not in ("", followed.node):
            return _FollowEnd.ELSEWHERE
        required = self._evaluator.options.require_best_effort
        try:
            if not unlisted_volumes(followed.pod, followed.node, view, require_best_effort=required):
                return _FollowEnd.PLACED
        except errors.ResolutionError as error:
            log.debug("cannot tell yet what is awaited", pod=followed.pod.key, problem=str(error))
        gone = followed.seen if current is None else not current.live
        followed.seen |= current is not None
        if gone:
            return _FollowEnd.GONE
        late = self._clock() >= followed.decided_at + MAX_PLACEMENT_SECONDS
        return _FollowEnd.LATE if late else None

    def _end_following(self, followed: _FollowedPod, end: _FollowEnd) -> None:
        del self._followed_pods[followed.pod.uid]
        now = self._clock()
        seconds = now - followed.decided_at
        placed = end is _FollowEnd.PLACED
        self._metrics.node_reservation(seconds, listed=placed)
        write = log.warning if end is _FollowEnd.LATE else log.info
        write(
            "placed" if placed else "not placed",
            **({} if placed else {"became": end.value}),
            pod=followed.pod.key,
            uid=followed.pod.uid,
            node=followed.node,
            s=round(seconds, 3),
            since_offer_s=round(now - followed.offered_at, 3),
        )
