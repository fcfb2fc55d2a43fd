"""Works out what the status page shows, without delaying kube-scheduler.

Everything runs in slices, only while no decision runs, and once for all readers: numbers of all nodes once for each state, at most once in
`MIN_AGE` seconds. The rows of waiting pods take longer, so a task works them out; a page shows those that there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

import structlog

from app.decisions.evaluator import Evaluator, no_contenders
from scheduler_core.cooperative import Cooperative
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import Contenders, Decision
from scheduler_core.extender.explain import Explanation, explain_part
from scheduler_core.extender.filter import filter_nodes
from scheduler_core.extender.status.candidate_order import sort_candidates
from scheduler_core.extender.status.report import StatusReport, status_report
from scheduler_core.extender.status.waiting_rows import WaitingRow, candidate_nodes, waiting_row
from scheduler_core.generic.current_predicates import UNSCHEDULABLE
from scheduler_core.lru import LruMap
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import NamespacedName

log = structlog.get_logger("status")

MIN_AGE: Final = 1.0
# In a small cluster the rows are there by then, so that the first page is complete.
_ROWS_WAIT: Final = 0.25
_MAX_ROWS: Final = 1000


@dataclass(frozen=True, slots=True)
class PodDecision:
    """The decision about one pod, and the explanation of some nodes.

    Attributes:
        names: every node, the closest first
        explanation: of the nodes that are shown, in their order
        refused: nodes that kube-scheduler refuses by itself, with its reasons
    """

    state: ClusterState
    decision: Decision
    names: Sequence[str]
    explanation: Explanation
    refused: Mapping[str, str]


class StatusReporter:
    """Owner of the latest report and of the rows of waiting pods.

    Args:
        contenders: returns the demand and offers of other pods
        clock: returns seconds
    """

    def __init__(
        self,
        evaluator: Evaluator,
        contenders: Callable[[], Contenders] = no_contenders,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._evaluator = evaluator
        self._contenders = contenders
        self._clock = clock
        self._version: int | None = None
        self._report = StatusReport()
        self._made_at = -MIN_AGE
        self._lock = asyncio.Lock()
        self._rows: LruMap[NamespacedName, tuple[int, WaitingRow]] = LruMap(_MAX_ROWS)
        self._wanted: Sequence[Pod] = ()
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> ClusterState:
        """The current state."""
        return self._evaluator.state

    async def report(self) -> StatusReport:
        """Returns the report of a state that is at most `MIN_AGE` seconds old."""
        async with self._lock:
            state = self._evaluator.state
            if state.view.version != self._version and self._clock() - self._made_at >= MIN_AGE:
                self._report = await self._evaluator.run_between_decisions(status_report(state))
                self._version = state.view.version
                self._made_at = self._clock()
            return self._report

    async def waiting_rows(self, pods: Sequence[Pod]) -> list[WaitingRow | None]:
        """Returns the rows of some waiting pods; None for a row that is still being worked out.

        A row may be that of an earlier state, until the next one is there.
        """
        self._wanted = pods
        state = self._evaluator.state
        if any(self._row(pod, state) is None for pod in pods) and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._work_out_rows(), name="rows of waiting pods")
        if self._task is not None and not self._task.done():
            await asyncio.wait((self._task,), timeout=_ROWS_WAIT)
        return [entry[1] if (entry := self._rows.get((pod.namespace, pod.name))) else None for pod in pods]

    def _row(self, pod: Pod, state: ClusterState) -> WaitingRow | None:
        """Returns a pod's row of this state."""
        entry = self._rows.get((pod.namespace, pod.name))
        return entry[1] if entry is not None and entry[0] == state.view.version and entry[1].pod is pod else None

    async def _work_out_rows(self) -> None:
        """Works out the rows that are wanted; those that a later page wants come next."""
        begun: Sequence[Pod] = ()
        try:
            while begun is not self._wanted:
                begun = self._wanted
                for pod in begun:
                    state = self._evaluator.state
                    if self._row(pod, state) is None:
                        row = await self._evaluator.run_between_decisions(self._waiting_row(pod, state))
                        self._rows.put((pod.namespace, pod.name), (state.view.version, row))
        except Exception:
            # The page shows that the rows are not there.
            log.exception("rows of waiting pods are missing")

    def _waiting_row(self, pod: Pod, state: ClusterState) -> Cooperative[WaitingRow]:
        return waiting_row(pod, state, self._evaluator.options, self._contenders(), cordoned_nodes(state))

    async def explain(self, pod: Pod, select: Callable[[Sequence[str]], Sequence[str]]) -> PodDecision:
        """Decides about a pod on every node, and explains the nodes that `select` returns of all, the closest first.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
        """
        return await self._evaluator.run_between_decisions(self._explain(pod, select))

    def _explain(self, pod: Pod, select: Callable[[Sequence[str]], Sequence[str]]) -> Cooperative[PodDecision]:
        state = self._evaluator.state
        options = self._evaluator.options
        refused = cordoned_nodes(state)
        nodes = candidate_nodes(state.view)
        admitted = [name for name in nodes if name not in refused]
        decision = yield from filter_nodes(pod, admitted, state, options, self._contenders())
        names = [*sort_candidates(state.view, decision), *(name for name in nodes if name in refused)]
        yield
        explanation = yield from explain_part(pod, decision, select(names), state, options)
        return PodDecision(state, decision, names, explanation, refused)


def cordoned_nodes(state: ClusterState) -> Mapping[str, str]:
    """Returns the nodes that kube-scheduler refuses every pod without a toleration, with its reason."""
    nodes = state.view.snapshot.nodes.values()
    return {node.name: UNSCHEDULABLE for node in nodes if node.unschedulable}
