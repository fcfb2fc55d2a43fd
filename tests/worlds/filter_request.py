"""Callers of /filter, and the nodes that a decision offers them."""

from __future__ import annotations

from scheduler_core.decide.decision import Decision


async def caller_waits() -> bool:
    """The caller waits for its answer: it has not hung up."""
    return False


async def caller_hung_up() -> bool:
    return True


def fitting_nodes(decision: Decision) -> list[str]:
    return [name for name, reason in zip(decision.candidates, decision.reasons, strict=True) if reason.fits]
