"""Looks for changes that make waiting pods fit, on demand, for one pod at a time, and only while no decision runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from app.decisions.evaluator import Evaluator
from app.extender.requested_results import RequestedResults
from app.schemas.pod_explanation import RemedyAnswer
from app.schemas.remedies_answer import remedy_answer
from scheduler_core.cooperative import Cooperative
from scheduler_core.errors import CoreError
from scheduler_core.extender.decision import FilterOptions
from scheduler_core.extender.planning.remedies import find_remedies
from scheduler_core.extender.what_if.predicted_cluster import PredictedCluster
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import NamespacedName

MAX_REMEDIES: Final = 3
# Each takes about 1 ms in a cluster of 100 nodes.
_MAX_DECISIONS: Final = 300
_MAX_PODS: Final = 1000


class RemedyReporter:
    """Owner of the latest remedies of waiting pods.

    Args:
        cluster: returns the cluster as it is now
        namespace: Longhorn's, for commands
    """

    def __init__(
        self, evaluator: Evaluator, cluster: Callable[[], Cooperative[PredictedCluster]], namespace: str
    ) -> None:
        self._namespace = namespace
        self._evaluator = evaluator
        self._cluster = cluster
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
            return await self._evaluator.run_between_decisions(
                self._search(pod, self._cluster(), self._evaluator.options)
            )
        except CoreError:
            # The page of the pod says why nothing can be decided about it.
            return ()

    def _search(
        self, pod: Pod, making: Cooperative[PredictedCluster], options: FilterOptions
    ) -> Cooperative[tuple[RemedyAnswer, ...]]:
        cluster = yield from making
        search = yield from find_remedies(pod, cluster, options, MAX_REMEDIES, _MAX_DECISIONS)
        return tuple(remedy_answer(cluster, remedy, self._namespace) for remedy in search.remedies)
