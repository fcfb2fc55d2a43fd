"""PodDisruptionBudgets: what the paths at the fields of `model/disruption_budget.py` do not say."""

from __future__ import annotations

from typing import Final

from scheduler_core.convert.fields import Fields
from scheduler_core.convert.meta import WireCondition
from scheduler_core.convert.selectors import label_selector
from scheduler_core.model.disruption_budget import DisruptionBudget, is_current


def _sync_failure(generation: int | None, observed_generation: int | None, entries: list[WireCondition] | None) -> str:
    current = (entries or ()) if is_current(generation, observed_generation) else ()
    return next((entry.message or "unknown" for entry in current if entry.reason == "SyncFailed"), "")


DISRUPTION_BUDGET: Final = Fields(
    "PodDisruptionBudget", DisruptionBudget, selector=label_selector, sync_failure=_sync_failure
)
