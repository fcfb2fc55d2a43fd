"""Predicts drains of nodes for the status page: on demand, one at a time, and only while no decision runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from app.decisions.evaluator import Evaluator
from scheduler_core.cooperative import Cooperative
from scheduler_core.errors import CoreError
from scheduler_core.extender.decision import FilterOptions
from scheduler_core.extender.what_if.cluster_changes import Drain
from scheduler_core.extender.what_if.predicted_cluster import PredictedCluster
from scheduler_core.extender.what_if.prediction import Prediction, predict
from scheduler_core.extender.what_if.seeded_order import OrderResult, run_order
from scheduler_core.extender.what_if.situation import Situation
from scheduler_core.lru import LruMap

log = structlog.get_logger("status")

ORDERS: Final = 5
_WAIT: Final = 0.25
_MAX_REPORTS: Final = 16


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What the drain of a node leads to.

    Attributes:
        version: of the view that it was predicted from
        prediction: None if there is none
        problem: why there is none
    """

    node: str
    version: int
    prediction: Prediction | None = None
    problem: str = ""


class DrainReporter:
    """Owner of the latest predictions.

    Args:
        cluster: returns the cluster as it is now

    Attributes:
        notes: what predictions do not take into account
    """

    def __init__(
        self,
        evaluator: Evaluator,
        cluster: Callable[[], Cooperative[PredictedCluster]],
        notes: Sequence[str] = (),
    ) -> None:
        self.notes = notes
        self._evaluator = evaluator
        self._cluster = cluster
        self._reports: LruMap[str, DrainReport] = LruMap(_MAX_REPORTS)
        self._wanted = ""
        self._task: asyncio.Task[None] | None = None

    async def report(self, node: str) -> DrainReport | None:
        """Returns what the drain of a node leads to; None while that is worked out.

        Of several nodes that are waited for, the one that was asked about last comes next.
        """
        report = self._reports.get(node)
        if report is not None and report.version == self._evaluator.view.version:
            return report
        self._wanted = node
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="drains for the status page")
        await asyncio.wait((self._task,), timeout=_WAIT)
        return self._reports.get(node)

    async def _work(self) -> None:
        while self._wanted:
            node = self._wanted
            self._wanted = ""
            version = self._evaluator.view.version
            try:
                prediction = await self._evaluator.run_between_decisions(self._predict(node))
                report = DrainReport(node, version, prediction)
            except CoreError as error:
                report = DrainReport(node, version, problem=str(error))
            except Exception:
                # The page says that there is no prediction.
                log.exception("a drain cannot be predicted", node=node)
                report = DrainReport(node, version, problem="the prediction failed, see the log of this process")
            self._reports.put(node, report)

    def _predict(self, node: str) -> Cooperative[Prediction]:
        cluster = yield from self._cluster()
        return (yield from predict_drain(cluster, node, self._evaluator.options))


def predict_drain(
    cluster: PredictedCluster, node: str, options: FilterOptions, orders: int = ORDERS
) -> Cooperative[Prediction]:
    """Returns what the drain of one node leads to, over some orders of events.

    Raises:
        WhatIfError: there is no such node
    """
    before = Situation(cluster)
    yield
    after = Drain((node,)).apply(before)
    results: list[OrderResult] = []
    for number in range(orders):
        yield
        # A seed is reproducible, not secret.
        chance = random.Random(f"0/{number}")  # noqa: S311
        results.append((yield from run_order(after, options, chance.randrange)))
    yield
    return predict(before, after, results)
