"""Predicts drains of nodes for the status page, on demand, one at a time, and only while no decision runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from app.decisions.evaluator import Evaluator
from app.extender.requested_results import RequestedResults
from app.runtime.decision_thread import Urgency
from scheduler_core.errors import CoreError
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import FilterOptions
from scheduler_core.extender.what_if.cluster_changes import Drain
from scheduler_core.extender.what_if.predicted_cluster import PredictedCluster, cluster_without_scheduling
from scheduler_core.extender.what_if.prediction import Prediction, predict
from scheduler_core.extender.what_if.seeded_order import OrderResult, run_order
from scheduler_core.extender.what_if.situation import Situation

ORDERS: Final = 5
# What `cluster_without_scheduling` has, and what it has not: `serve` watches what its own decisions read.
COMPARED: Final = (
    "space and tags of disks",
    "Longhorn's rules for replicas and volumes",
    "cordoned nodes",
    "pods without a controller",
    "Longhorn's node-drain-policy",
)
NOT_COMPARED: Final = (
    "CPU and memory",
    "taints",
    "node selectors and affinity",
    "topology spread",
    "host ports",
    "PodDisruptionBudgets of workloads",
)
_MAX_REPORTS: Final = 16


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What the drain of a node leads to."""

    node: str
    prediction: Prediction | None = None  # None if there is none
    problem: str = ""  # why there is none


class DrainReporter:
    """Owner of the latest predictions.

    Args:
        read: returns the current state, whose maps are persistent
    """

    def __init__(self, evaluator: Evaluator, read: Callable[[], ClusterState]) -> None:
        self._evaluator = evaluator
        self._read = read
        self._reports: RequestedResults[str, DrainReport] = RequestedResults(
            "drains for the status page", self._report, lambda: evaluator.view.version, _MAX_REPORTS
        )

    async def report(self, node: str) -> DrainReport | None:
        """Returns what a node's drain leads to, None until it is known."""
        (report,) = await self._reports.request((node,))
        return report

    async def _report(self, node: str) -> DrainReport:
        try:
            prediction = await self._evaluator.run(
                partial(_predict, self._read(), node, self._evaluator.options), Urgency.BACKGROUND
            )
        except CoreError as error:
            return DrainReport(node, problem=str(error))
        return DrainReport(node, prediction)


def _predict(state: ClusterState, node: str, options: FilterOptions) -> Prediction:
    return predict_drain(cluster_without_scheduling(state), node, options)


def predict_drain(cluster: PredictedCluster, node: str, options: FilterOptions, orders: int = ORDERS) -> Prediction:
    """Returns what a node's drain leads to, over some orders.

    Raises:
        WhatIfError: there is no such node
    """
    before = Situation(cluster)
    after = Drain((node,)).apply(before)
    results: list[OrderResult] = []
    for number in range(orders):
        # A seed is reproducible, not secret.
        chance = random.Random(f"0/{number}")  # noqa: S311
        results.append(run_order(after, options, chance.randrange))
    return predict(before, after, results)
