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
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import Contenders


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
    return StatusSources(
        StatusReporter(evaluator, contenders),
        drains=DrainReporter(evaluator, read),
        remedies=RemedyReporter(evaluator, read, namespace),
        node_losses=lambda: losses.latest,
        losses_seconds_left=lambda: losses.seconds_left,
    )
