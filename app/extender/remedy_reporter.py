"""Looks for changes that make waiting pods fit, on demand, for one pod at a time, and only while no decision runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from app.decisions.evaluator import Evaluator
from app.extender.requested_results import RequestedResults
from app.runtime.decision_thread import Urgency
from app.schemas.pod_explanation import RemedyAnswer
from app.schemas.remedies_answer import remedy_answer
from scheduler_core.errors import CoreError
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import FilterOptions
from scheduler_core.extender.planning.remedies import find_remedies
from scheduler_core.extender.what_if.predicted_cluster import cluster_without_scheduling
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import NamespacedName

MAX_REMEDIES: Final = 3
# Each takes about 1 ms in a cluster of 100 nodes.
_MAX_DECISIONS: Final = 300
_MAX_PODS: Final = 1000


class RemedyReporter:
    """Owner of the latest remedies of waiting pods.

    Args:
        read: returns the current state, whose maps are persistent
        namespace: Longhorn's, for commands
    """

    def __init__(self, evaluator: Evaluator, read: Callable[[], ClusterState], namespace: str) -> None:
        self._namespace = namespace
        self._evaluator = evaluator
        self._read = read
        self._remedies: RequestedResults[NamespacedName, tuple[RemedyAnswer, ...]] = RequestedResults(
            "remedies for the status page", self._find, lambda: evaluator.view.version, _MAX_PODS
        )

    async def remedies(self, pods: Sequence[Pod], wait: float) -> list[tuple[RemedyAnswer, ...] | None]:
        """Returns what makes each pod fit, the cheapest first; None for a pod that is still being worked on. At most
        `wait` seconds pass. Remedies may be those of an earlier state until the next ones are there.
        """
        return await self._remedies.request([(pod.namespace, pod.name) for pod in pods], wait)

    async def _find(self, key: NamespacedName) -> tuple[RemedyAnswer, ...]:
        pod = self._evaluator.view.snapshot.pods.get(key)
        if pod is None:
            return ()
        try:
            return await self._evaluator.run(
                partial(self._search, pod, self._read(), self._evaluator.options), Urgency.BACKGROUND
            )
        except CoreError:
            # The page of the pod says why nothing can be decided about it.
            return ()

    def _search(self, pod: Pod, state: ClusterState, options: FilterOptions) -> tuple[RemedyAnswer, ...]:
        cluster = cluster_without_scheduling(state)
        search = find_remedies(pod, cluster, options, MAX_REMEDIES, _MAX_DECISIONS)
        return tuple(remedy_answer(cluster, remedy, self._namespace) for remedy in search.remedies)
