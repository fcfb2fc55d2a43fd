"""PodDisruptionBudgets: wire types and their conversion to `model/disruption_budget.py`."""

from __future__ import annotations

import re
from typing import Final

from scheduler_core.convert.fields import Fields
from scheduler_core.convert.meta import Metadata, Subject, Wire, WireCondition
from scheduler_core.convert.selectors import WireLabelSelector, label_selector
from scheduler_core.errors import ObjectError
from scheduler_core.model.disruption_budget import DisruptionBudget, PodCount

_PERCENTAGE: Final = re.compile(r"([0-9]{1,4})%", re.ASCII)
_SYNC_FAILED: Final = "SyncFailed"


class _BudgetSpec(Wire):
    selector: WireLabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    unhealthy_pod_eviction_policy: str | None = None


class _BudgetStatus(Wire):
    observed_generation: int | None = None
    expected_pods: int | None = None
    conditions: list[WireCondition] | None = None


class _BudgetMetadata(Metadata):
    generation: int | None = None


class _PodDisruptionBudget(Wire):
    metadata: _BudgetMetadata
    spec: _BudgetSpec | None = None
    status: _BudgetStatus | None = None


def _disruption_budget(wire: _PodDisruptionBudget) -> DisruptionBudget:
    """A PodDisruptionBudget; a status of an earlier generation is not read.

    Raises:
        ObjectError: a number of pods is neither a number nor a percentage, or is negative
    """
    subject = Subject("PodDisruptionBudget", wire.metadata)
    spec = wire.spec or _BudgetSpec()
    status = wire.status or _BudgetStatus()
    if (status.observed_generation or 0) < (wire.metadata.generation or 0):
        status = _BudgetStatus()
    failures = (entry.message or "unknown" for entry in status.conditions or () if entry.reason == _SYNC_FAILED)
    return DisruptionBudget(
        namespace=wire.metadata.namespace or "default",
        name=wire.metadata.name,
        selector=label_selector(spec.selector),
        min_available=_pod_count(spec.min_available, subject, "spec.minAvailable"),
        max_unavailable=_pod_count(spec.max_unavailable, subject, "spec.maxUnavailable"),
        expected_pods=status.expected_pods,
        sync_failure=next(failures, ""),
        evicts_unhealthy=spec.unhealthy_pod_eviction_policy == "AlwaysAllow",
    )


def _pod_count(value: int | str | None, subject: Subject, field: str) -> PodCount | None:
    if value is None:
        return None
    if isinstance(value, int) and value >= 0:
        return PodCount(value)
    percentage = _PERCENTAGE.fullmatch(value) if isinstance(value, str) else None
    if percentage is None:
        raise ObjectError(subject.text, field, f"{value!r} is neither a number of pods nor a percentage")
    return PodCount(int(percentage[1]), percent=True)


DISRUPTION_BUDGET: Final = Fields.by_hand("PodDisruptionBudget", _PodDisruptionBudget, _disruption_budget)
