"""Wires what the status page reads, from a snapshot or live cluster."""

from __future__ import annotations

from collections.abc import Callable

from app.decisions.evaluator import Evaluator
from app.extender.drain_reporter import DrainReporter
from app.extender.node_losses import NodeLosses
from app.extender.remedy_reporter import RemedyReporter
from app.extender.status_reporter import StatusReporter
from app.extender.status_sources import StatusSources
from app.settings import DEFAULT_NAMESPACE
from scheduler_core.cooperative import Cooperative
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import Contenders
from scheduler_core.extender.what_if.predicted_cluster import PredictedCluster, cluster_without_scheduling


def status_sources(
    evaluator: Evaluator,
    contenders: Callable[[], Contenders],
    read: Callable[[], ClusterState],
    losses: NodeLosses,
    namespace: str = DEFAULT_NAMESPACE,
) -> StatusSources:
    """Returns what the page reads.

    `contenders`: returns what other pods have. `read`: returns the current state, whose maps are persistent. `namespace`: Longhorn's.
    """

    def cluster() -> Cooperative[PredictedCluster]:
        # Read now: the computation must not.
        return cluster_without_scheduling(read())

    return StatusSources(
        StatusReporter(evaluator, contenders),
        drains=DrainReporter(evaluator, cluster),
        remedies=RemedyReporter(evaluator, cluster, namespace),
        node_losses=lambda: losses.latest,
        losses_seconds_left=lambda: losses.seconds_left,
    )
