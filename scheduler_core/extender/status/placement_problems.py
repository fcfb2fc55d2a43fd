"""Bound pods without their volumes, and volumes on wrong nodes, of a state without a history."""

from __future__ import annotations

from scheduler_core.evaluation.contention import Contention
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.placement_monitor import STUCK_AFTER, PlacementReport
from scheduler_core.offers.ledger import Ledger


def placement_problems(state: ClusterState, *, require_best_effort: bool = True) -> PlacementReport:
    """Reports a state as if it had lasted for `STUCK_AFTER` seconds."""
    contention = Contention()
    report = PlacementReport()
    # The objects do not say since when a volume is missing, so a pod that was bound a moment ago is reported as stuck,
    # too, until Longhorn has placed its volumes.
    for now in (0.0, STUCK_AFTER):
        report = report.update(state, contention, Ledger(), now, require_best_effort=require_best_effort)
    return report
