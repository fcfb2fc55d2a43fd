"""What became of pods: whether Longhorn placed the volumes of those that were decided for, and which went wrong.

    kube-scheduler has decided for a pod that had an offer → follow it → Longhorn lists its local volumes there: placed
                                                                        → it is gone, goes elsewhere, or takes too long: not placed
    every second, and oftener while pods are followed → survey all demands (`scheduler_core/extender/placement_monitor.py`)

Only who leads does either, between `adopt` and `clear`, or two processes would count the same misplacement. A new leader counts the
misplaced volumes that it finds still fresh once more, because nobody tells it what its predecessor has counted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import structlog

from app.decisions.evaluator import Scheduling
from app.decisions.state_source import LiveView
from app.extender.metrics import Metrics, Outstanding
from scheduler_core.cluster.view import View
from scheduler_core.cooperative import Steps
from scheduler_core.errors import ResolutionError
from scheduler_core.evaluation.contention import Joint
from scheduler_core.extender.filter import Others
from scheduler_core.extender.offer import current_of
from scheduler_core.extender.placement_monitor import Survey
from scheduler_core.model.kube import Pod
from scheduler_core.volumes.pending_replicas import awaited_volumes, chosen_node

log = structlog.get_logger("placements")

LOOK_SECONDS: Final = 1.0
FOLLOW_SECONDS: Final = 0.25
# Longhorn tries again every 30 s to place a replica that found no room.
LONGEST_PLACEMENT: Final = 300.0
# A pod is looked at again when it or its node has changed, and this often in any case: its claims and replicas matter too.
_LOOK_AGAIN_SECONDS: Final = 1.0


class _Became(Enum):
    """How following a pod ends; the value is what the log says."""

    PLACED = "placed"
    GONE = "gone"
    ELSEWHERE = "elsewhere"
    LATE = "late"


@dataclass(slots=True)
class _Followed:
    """A pod whose volumes Longhorn is to place.

    Attributes:
        pod: as it was when it was decided for
        node: what was decided
        offered_at: when it was offered nodes; `decided_at`: when the decision was seen; in seconds of the clock
        seen: whether a view had the pod; one that none has had yet is not gone
        looked_at: when it was looked at last; `looked_with`: the pod and the Longhorn node as they were then
    """

    pod: Pod
    node: str
    offered_at: float
    decided_at: float
    seen: bool = False
    looked_at: float = -math.inf
    looked_with: tuple[object, object] = (None, None)

    def same_as_before(self, view: View, now: float) -> bool:
        """Whether another look would most likely find what the last one did; notes what it would look with."""
        key = (self.pod.namespace, self.pod.name)
        now_with = view.snapshot.pods.get(key), view.snapshot.longhorn_nodes.get(self.node)
        same = all(now is then for now, then in zip(now_with, self.looked_with, strict=True))
        if same and now - self.looked_at < _LOOK_AGAIN_SECONDS:
            return True
        self.looked_at, self.looked_with = now, now_with
        return False


class Placements:
    """Owner of the survey and of the pods that are followed."""

    def __init__(
        self,
        cache: LiveView,
        scheduling: Scheduling,
        others: Callable[[], Others],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._scheduling = scheduling
        self._others = others
        self._metrics = metrics
        self._clock = clock
        self._survey = Survey()
        self._joint = Joint()
        self._followed: dict[str, _Followed] = {}
        self._leads = False
        self._wake = asyncio.Event()

    @property
    def report(self) -> Survey:
        """The latest survey; an empty one before the first, and for who does not lead."""
        return self._survey

    @property
    def followed(self) -> int:
        """How many pods' volumes are still to be placed."""
        return len(self._followed)

    def outstanding(self, *, offers: int, waiting: int) -> Outstanding:
        """The numbers Prometheus asks for; `offers` and `waiting` (pods that were refused) are others' to know."""
        survey = self._survey
        return Outstanding(
            demands={source.name.lower(): count for source, count in survey.by_source.items()},
            offers=offers,
            hopeless_demands=len(survey.hopeless),
            misplaced_volumes=len(survey.misplaced),
            stuck_pods=len(survey.stuck),
            waiting_pods=waiting,
        )

    def adopt(self) -> None:
        """This process leads: from now on it looks. The view must have been filled."""
        self._leads = True
        self._wake.set()

    def clear(self) -> None:
        """Forgets everything: somebody else leads. What was followed is not counted, because nobody sees how it ends."""
        self._leads = False
        self._followed.clear()
        self._survey = Survey()

    def decided(self, pod: Pod, node: str, offered_at: float) -> None:
        """kube-scheduler has decided for a node for a pod that was offered nodes at a time of the clock.

        The same decision seen again changes nothing; another one begins anew.
        """
        earlier = self._followed.get(pod.uid)
        if earlier is not None and earlier.node != node:
            self._ended(earlier, _Became.ELSEWHERE)
        if earlier is None or earlier.node != node:
            self._followed[pod.uid] = _Followed(pod, node, offered_at, self._clock())
            self._wake.set()

    async def run(self) -> None:
        """Looks now and then until cancelled."""
        while True:
            if self._leads:
                await self._scheduling.run(self._look_after())
                await self._look_around()
            await self._rest()

    async def _rest(self) -> None:
        self._wake.clear()
        if self._followed:
            await asyncio.sleep(FOLLOW_SECONDS)
            return
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            return

    def _look_after(self) -> Steps[None]:
        """Sees how the pods that are followed fare."""
        for followed in list(self._followed.values()):
            if self._followed.get(followed.pod.uid) is followed:  # not decided anew, or cleared, during a pause
                became = self._became(followed, self._cache.memory().view)
                if became is not None:
                    self._ended(followed, became)
            yield

    async def _look_around(self) -> None:
        """Makes the next survey, and tells what is new in it."""
        others, demands, memory = self._others(), self._cache.demands(), self._cache.memory()
        joint, before = others.joint or self._joint, self._survey
        required = self._scheduling.options.require_best_effort
        steps = before.after(demands, memory, joint, others.ledger, self._clock(), require_best_effort=required)
        survey = await self._scheduling.run(steps)
        if self._survey is not before or not self._leads:
            return  # cleared meanwhile
        self._survey = survey
        for entry in survey.news:
            self._metrics.misplaced()
            log.warning(
                "misplaced", pod=entry.pod, volume=entry.volume, wanted=entry.node, replicas_on=list(entry.replicas_on)
            )

    def _became(self, followed: _Followed, view: View) -> _Became | None:
        """How following a pod ends; None if it goes on."""
        now = self._clock()
        late = _Became.LATE if now - followed.decided_at >= LONGEST_PLACEMENT else None
        if followed.same_as_before(view, now):
            return late
        current = current_of(followed.pod, view)
        if current is not None and chosen_node(current, view) not in ("", followed.node):
            return _Became.ELSEWHERE
        if self._placed(followed, view):
            return _Became.PLACED
        gone = followed.seen if current is None else not current.live
        followed.seen |= current is not None
        return _Became.GONE if gone else late

    def _placed(self, followed: _Followed, view: View) -> bool:
        required = self._scheduling.options.require_best_effort
        try:
            return not awaited_volumes(followed.pod, followed.node, view, require_best_effort=required)
        except ResolutionError as error:
            log.debug("cannot tell yet what is awaited", pod=followed.pod.key, problem=str(error))
            return False

    def _ended(self, followed: _Followed, became: _Became) -> None:
        del self._followed[followed.pod.uid]
        now = self._clock()
        seconds, placed = now - followed.decided_at, became is _Became.PLACED
        self._metrics.node_reservation(seconds, listed=placed)
        tell = log.warning if became is _Became.LATE else log.info
        tell(
            "placed" if placed else "not placed",
            **({} if placed else {"became": became.value}),
            pod=followed.pod.key,
            uid=followed.pod.uid,
            node=followed.node,
            s=round(seconds, 3),
            since_offer_s=round(now - followed.offered_at, 3),
        )
