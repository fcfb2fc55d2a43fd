"""Works out what the status page shows, without delaying kube-scheduler. Everything runs where no
decision waits, and once for all readers: numbers of all nodes once for each state, at most once in `MIN_AGE` seconds.
The rows of waiting pods, the drains of nodes and the remedies of pods take longer: they are worked out once they are asked for, one of
each kind at a time, and a page shows those that there are.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from app.evaluator import Evaluator, no_contenders
from app.extender.node_loss_prediction import NodeLosses
from app.runtime.decision_thread import Urgency
from app.schemas.remedies_answer import RemedyAnswer, remedy_answer
from app.settings import DEFAULT_NAMESPACE
from scheduler_core import errors
from scheduler_core.caches import LruMap
from scheduler_core.decide.decision import Contenders, Decision
from scheduler_core.decide.explain import Explanation, explain_part
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.generic.predicates import UNSCHEDULABLE
from scheduler_core.model import kube, snapshot
from scheduler_core.monitor import report
from scheduler_core.predict import cluster_changes, predicted_cluster, timeline
from scheduler_core.predict.prediction import Prediction, predict
from scheduler_core.predict.prediction_input import Situation
from scheduler_core.predict.remedies import find_remedies
from scheduler_core.structs import Struct

if TYPE_CHECKING:  # the Kubernetes client takes a second to import; a snapshot file needs none
    from app.kube.reflector import CacheStatus

log = structlog.get_logger("status")

MIN_AGE = 1.0
# A page has 50 ms. In a small cluster most results are there by then; a page that lacks rows is loaded again after a second.
_WAIT = 0.02
MAX_REMEDIES = 3
# What `cluster_without_scheduling` has, and what it has not: `serve` watches what its own decisions read.
COMPARED = (
    "space and tags of disks",
    "Longhorn's rules for replicas and volumes",
    "cordoned nodes",
    "pods without a controller",
    "Longhorn's node-drain-policy",
)
NOT_COMPARED = (
    "CPU and memory",
    "taints",
    "node selectors and affinity",
    "topology spread",
    "host ports",
    "PodDisruptionBudgets of workloads",
)
_ORDERS = 5
# Each takes about 1 ms in a cluster of 100 nodes.
_MAX_DECISIONS = 300
_MAX_PODS = 1000
_MAX_DRAINS = 16
_Key = TypeVar("_Key", bound=Hashable)
_Result = TypeVar("_Result")


class ExplainedDecision(Struct, frozen=True):
    """The decision about one pod, and the explanation of some nodes."""

    state: ClusterState
    decision: Decision
    texts: Mapping[str, str]  # the reason of every node, the closest node first; cordoned nodes come last
    explanation: Explanation  # of the nodes that are shown and not cordoned, in their order


class DrainReport(Struct, frozen=True):
    """What the drain of a node leads to."""

    node: str
    prediction: Prediction | None = None  # None if there is none
    problem: str = ""  # why there is none


class RequestedResults(Generic[_Key, _Result]):
    """Owner of the results of one kind, worked out one at a time, those for the keys of the latest request first.

    Args:
        evaluator: has the state that results depend on; a result of an earlier one is replaced when it is asked for
        name: of the task
        compute: works out a result
        capacity: how many results are kept
    """

    def __init__(
        self, evaluator: Evaluator, name: str, compute: Callable[[_Key], Awaitable[_Result]], capacity: int
    ) -> None:
        self._evaluator = evaluator
        self._name = name
        self._compute = compute
        self._results: LruMap[_Key, tuple[int, _Result]] = LruMap(capacity)
        self._requested: Sequence[_Key] = ()
        self._task: asyncio.Task[None] | None = None

    async def request(self, keys: Sequence[_Key], wait: float = _WAIT) -> list[_Result | None]:
        """Returns the latest results as soon as all are there, at most after `wait` seconds; None for one that is still
        being worked out.
        """
        if not all(map(self._is_current, keys)):
            self._requested = keys
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._work(), name=self._name)
            await asyncio.wait((self._task,), timeout=wait)
        entries = [self._results.get(key) for key in keys]
        return [None if entry is None else entry[1] for entry in entries]

    def _is_current(self, key: _Key) -> bool:
        entry = self._results.get(key)
        return entry is not None and entry[0] == self._evaluator.view.version

    async def _work(self) -> None:
        while self._requested:
            keys = self._requested
            self._requested = ()
            for key in keys:
                if self._requested:
                    break
                if self._is_current(key):
                    continue
                version = self._evaluator.view.version
                try:
                    self._results.put(key, (version, await self._compute(key)))
                except Exception:
                    # A page shows that the result is not there.
                    log.exception("a result is missing", task=self._name, key=str(key))


class StatusReporter:
    """Owner of the latest report, and of the latest rows of waiting pods, drains and remedies.

    Args:
        read: returns the current state; its maps are persistent
        contenders: returns the demand and offers of other pods
        namespace: Longhorn's, for commands
    """

    def __init__(
        self,
        evaluator: Evaluator,
        read: Callable[[], ClusterState],
        contenders: Callable[[], Contenders] = no_contenders,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        self._evaluator = evaluator
        self._read = read
        self._contenders = contenders
        self._namespace = namespace
        self._version: int | None = None
        self._report = report.StatusReport()
        self._made_at = -MIN_AGE
        self._lock = asyncio.Lock()
        self._rows = RequestedResults(evaluator, "rows of waiting pods", self._work_out_row, _MAX_PODS)
        self._drains = RequestedResults(evaluator, "drains for the status page", self._predict_drain, _MAX_DRAINS)
        self._remedies = RequestedResults(evaluator, "remedies for the status page", self._find_remedies, _MAX_PODS)

    @property
    def state(self) -> ClusterState:
        return self._evaluator.state

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Runs a computation, in the middle of which decisions go first."""
        return await self._evaluator.run(work, Urgency.EXPLANATION)

    async def status_report(self) -> report.StatusReport:
        """Returns the report of a state, at most `MIN_AGE` seconds old."""
        async with self._lock:
            state = self._evaluator.state
            if state.view.version != self._version and monotonic() - self._made_at >= MIN_AGE:
                self._report = await self.run(partial(report.status_report, state))
                self._version = state.view.version
                self._made_at = monotonic()
            return self._report

    async def waiting_rows(self, pods: Sequence[kube.Pod]) -> list[report.WaitingRow | None]:
        """Returns the rows of some waiting pods, None for one that is still being worked out. A row may be that of an
        earlier state until the next one is there.
        """
        return await self._rows.request([(pod.namespace, pod.name) for pod in pods])

    async def _work_out_row(self, key: snapshot.NamespacedName) -> report.WaitingRow | None:
        state = self._evaluator.state
        pod = state.view.snapshot.pods.get(key)
        if pod is None:
            return None
        options = self._evaluator.options
        contenders = self._evaluator.explained(self._contenders())
        return await self.run(lambda: report.waiting_row(pod, state, options, contenders, cordoned_nodes(state)))

    async def drain(self, node: str) -> DrainReport | None:
        (drain_report,) = await self._drains.request((node,))
        return drain_report

    async def _predict_drain(self, node: str) -> DrainReport:
        state = self._read()
        options = self._evaluator.options

        def work() -> Prediction:
            before = Situation(predicted_cluster.cluster_without_scheduling(state))
            after = cluster_changes.drain(before, (node,))
            # A seed is reproducible, not secret.
            chances = [random.Random(f"0/{number}").randrange for number in range(_ORDERS)]  # noqa: S311
            return predict(before, after, [timeline.run_order(after, options, chance) for chance in chances])

        try:
            return DrainReport(node, await self._evaluator.run(work, Urgency.BACKGROUND))
        except errors.CoreError as error:
            return DrainReport(node, problem=str(error))

    async def remedies(self, pods: Sequence[kube.Pod], wait: float) -> list[tuple[RemedyAnswer, ...] | None]:
        """Returns what makes each pod fit, the cheapest first; None for a pod that is still being worked on. At most
        `wait` seconds pass. Remedies may be those of an earlier state until the next ones are there.
        """
        return await self._remedies.request([(pod.namespace, pod.name) for pod in pods], wait)

    async def _find_remedies(self, key: snapshot.NamespacedName) -> tuple[RemedyAnswer, ...]:
        pod = self._evaluator.view.snapshot.pods.get(key)
        if pod is None:
            return ()
        state = self._read()
        options = self._evaluator.options

        def find() -> tuple[RemedyAnswer, ...]:
            cluster = predicted_cluster.cluster_without_scheduling(state)
            search = find_remedies(pod, cluster, options, MAX_REMEDIES, _MAX_DECISIONS)
            return tuple(remedy_answer(cluster, remedy, self._namespace) for remedy in search.remedies)

        try:
            return await self._evaluator.run(find, Urgency.BACKGROUND)
        except errors.CoreError:
            # The page of the pod says why nothing can be decided about it.
            return ()

    async def explain(self, pod: kube.Pod, select: Callable[[Mapping[str, str]], Sequence[str]]) -> ExplainedDecision:
        """Decides about a pod on every node, and explains some: `select` returns those of all nodes, given with their
        reasons, the closest first. Raises a ResolutionError if an object the pod names does not exist or contradicts
        it.
        """
        state = self._evaluator.state
        options = self._evaluator.options
        contenders = self._evaluator.explained(self._contenders())

        def work() -> ExplainedDecision:
            refused = cordoned_nodes(state)
            nodes = report.candidate_nodes(state.view)
            admitted = [name for name in nodes if name not in refused]
            decision = filter_nodes(pod, admitted, state, options, contenders)
            reasons = dict(zip(decision.candidates, decision.reasons, strict=True))
            texts = {name: reasons[name].text for name in report.sort_candidates(state.view, decision)}
            texts |= {name: refused[name] for name in nodes if name in refused}
            return ExplainedDecision(state, decision, texts, explain_part(pod, decision, select(texts), state, options))

        return await self.run(work)


class StatusSources(Struct, frozen=True):
    """What the pages read."""

    reporter: StatusReporter
    losses: NodeLosses
    # Returns the status of every cache of the live cluster; none for a snapshot file.
    caches: "Callable[[], Mapping[str, CacheStatus]]" = dict
    identity: str = ""  # of this process; "" for a snapshot file
    now: Callable[[], datetime] = partial(datetime.now, UTC)


def cordoned_nodes(state: ClusterState) -> Mapping[str, str]:
    """Returns the nodes that take no pod without a toleration, each with the reason that kube-scheduler gives."""
    nodes = state.view.snapshot.nodes.values()
    return {node.name: UNSCHEDULABLE for node in nodes if node.unschedulable}
