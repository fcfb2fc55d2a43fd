"""How a decision is told: to a pod that fits nowhere, in kube-scheduler's form, equal reasons counted together."""

from __future__ import annotations

from scheduler_core.generic.scheduler import NO_NODES, Decision


def message(decision: Decision) -> str:
    """Why no node takes the pod, as one line; where nothing can be decided at all, why not, and nothing else."""
    if decision.error not in ("", NO_NODES):
        return decision.error
    nodes = len(decision.feasible) + len(decision.unavailable) + len(decision.failures)
    counts = ", ".join(f"{count} {text}" for text, count in decision.counts().items())
    if not nodes:
        return NO_NODES
    return f"0/{nodes} nodes are available: {counts}."
