"""Predicts drains of nodes for the status page, on demand, one at a time, and only while no decision runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.decisions.evaluator import Evaluator
from app.extender.requested_results import RequestedResults
from scheduler_core.cooperative import Cooperative
from scheduler_core.errors import CoreError
from scheduler_core.extender.decision import FilterOptions
from scheduler_core.extender.what_if.cluster_changes import Drain
from scheduler_core.extender.what_if.predicted_cluster import PredictedCluster
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
        cluster: returns the cluster as it is now
    """

    def __init__(self, evaluator: Evaluator, cluster: Callable[[], Cooperative[PredictedCluster]]) -> None:
        self._evaluator = evaluator
        self._cluster = cluster
        self._reports: RequestedResults[str, DrainReport] = RequestedResults(
            "drains for the status page", self._report, lambda: evaluator.view.version, _MAX_REPORTS
        )

    async def report(self, node: str) -> DrainReport | None:
        """Returns what a node's drain leads to, None until it is known."""
        (report,) = await self._reports.request((node,))
        return report

    async def _report(self, node: str) -> DrainReport:
        try:
            prediction = await self._evaluator.run_between_decisions(
                _predict(self._cluster(), node, self._evaluator.options)
            )
        except CoreError as error:
            return DrainReport(node, problem=str(error))
        return DrainReport(node, prediction)


def _predict(making: Cooperative[PredictedCluster], node: str, options: FilterOptions) -> Cooperative[Prediction]:
    cluster = yield from making
    return (yield from predict_drain(cluster, node, options))


def predict_drain(
    cluster: PredictedCluster, node: str, options: FilterOptions, orders: int = ORDERS
) -> Cooperative[Prediction]:
    """Returns what a node's drain leads to, over some orders.

    Raises:
        WhatIfError: there is no such node
    """
    before = Situation(cluster)
    yield
    after = yield from Drain((node,)).apply_in_steps(before)
    results: list[OrderResult] = []
    for number in range(orders):
        yield
        # A seed is reproducible, not secret.
        chance = random.Random(f"0/{number}")  # noqa: S311
        results.append((yield from run_order(after, options, chance.randrange)))
    yield
    return predict(before, after, results)
