"""Works out what the status page shows, without delaying kube-scheduler. Everything runs where no
decision waits, and once for all readers: numbers of all nodes once for each state, at most once in `MIN_AGE` seconds.
The rows of waiting pods take longer, so a task works them out; a page shows those that there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final, TypeVar

from app.decisions.evaluator import Evaluator, no_contenders
from app.extender.requested_results import RequestedResults
from app.runtime.decision_thread import Urgency
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import Contenders, Decision, FilterOptions
from scheduler_core.extender.explain import Explanation, explain_part
from scheduler_core.extender.filter import filter_nodes
from scheduler_core.extender.status.candidate_order import sort_candidates
from scheduler_core.extender.status.report import StatusReport, status_report
from scheduler_core.extender.status.waiting_rows import WaitingRow, candidate_nodes, waiting_row
from scheduler_core.generic.current_predicates import UNSCHEDULABLE
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import NamespacedName

MIN_AGE: Final = 1.0
_MAX_ROWS: Final = 1000
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class ExplainedDecision:
    """The decision about one pod, and the explanation of some nodes."""

    state: ClusterState
    decision: Decision
    texts: Mapping[str, str]  # the reason of every node, the closest node first; cordoned nodes come last
    explanation: Explanation  # of the nodes that are shown and not cordoned, in their order


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
        self._rows: RequestedResults[NamespacedName, WaitingRow | None] = RequestedResults(
            "rows of waiting pods", self._work_out_row, lambda: evaluator.view.version, _MAX_ROWS
        )

    @property
    def state(self) -> ClusterState:
        return self._evaluator.state

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Runs a computation, in the middle of which decisions go first."""
        return await self._evaluator.run(work, Urgency.EXPLANATION)

    async def report(self) -> StatusReport:
        """Returns the report of a state, at most `MIN_AGE` seconds old."""
        async with self._lock:
            state = self._evaluator.state
            if state.view.version != self._version and self._clock() - self._made_at >= MIN_AGE:
                self._report = await self.run(partial(status_report, state))
                self._version = state.view.version
                self._made_at = self._clock()
            return self._report

    async def waiting_rows(self, pods: Sequence[Pod]) -> list[WaitingRow | None]:
        """Returns the rows of some waiting pods, None for one that is still being worked out. A row may be that of an
        earlier state until the next one is there.
        """
        return await self._rows.request([(pod.namespace, pod.name) for pod in pods])

    async def _work_out_row(self, key: NamespacedName) -> WaitingRow | None:
        state = self._evaluator.state
        pod = state.view.snapshot.pods.get(key)
        if pod is None:
            return None
        return await self.run(
            partial(_row, pod, state, self._evaluator.options, self._evaluator.explained(self._contenders()))
        )

    async def explain(self, pod: Pod, select: Callable[[Mapping[str, str]], Sequence[str]]) -> ExplainedDecision:
        """Decides about a pod on every node, and explains some: `select` returns those of all nodes, given with their
        reasons, the closest first.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
        """
        return await self.run(
            partial(
                _explain,
                pod,
                select,
                self._evaluator.state,
                self._evaluator.options,
                self._evaluator.explained(self._contenders()),
            )
        )


def _row(pod: Pod, state: ClusterState, options: FilterOptions, contenders: Contenders) -> WaitingRow | None:
    refused = cordoned_nodes(state)
    return waiting_row(pod, state, options, contenders, refused)


def _explain(
    pod: Pod,
    select: Callable[[Mapping[str, str]], Sequence[str]],
    state: ClusterState,
    options: FilterOptions,
    contenders: Contenders,
) -> ExplainedDecision:
    refused = cordoned_nodes(state)
    nodes = candidate_nodes(state.view)
    admitted = [name for name in nodes if name not in refused]
    decision = filter_nodes(pod, admitted, state, options, contenders)
    reasons = dict(zip(decision.candidates, decision.reasons, strict=True))
    texts = {name: reasons[name].text for name in sort_candidates(state.view, decision)}
    texts |= {name: refused[name] for name in nodes if name in refused}
    explanation = explain_part(pod, decision, select(texts), state, options)
    return ExplainedDecision(state, decision, texts, explanation)


def cordoned_nodes(state: ClusterState) -> Mapping[str, str]:
    """Returns the nodes that take no pod without a toleration, each with the reason that kube-scheduler gives."""
    nodes = state.view.snapshot.nodes.values()
    return {node.name: UNSCHEDULABLE for node in nodes if node.unschedulable}
