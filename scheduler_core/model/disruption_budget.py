"""PodDisruptionBudgets: how many pods must stay healthy during evictions."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_core.model.constraints import LabelSelector


@dataclass(frozen=True, slots=True)
class PodCount:
    """A number of pods, or a percentage of those that are expected."""

    value: int
    percent: bool = False

    def of(self, expected: int) -> int:
        """Returns the number of pods, rounded up (intstr.GetScaledValueFromIntOrPercent)."""
        return -(-self.value * expected // 100) if self.percent else self.value


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget.

    Attributes:
        selector: which pods of its namespace it is about; None for none
        min_available, max_unavailable: of these at most one is set
        expected_pods: how many pods their controllers should have, as the disruption controller counted; None if it has not
            counted since the budget changed
        sync_failure: why the disruption controller cannot count, "" if it can
        evicts_unhealthy: whether pods that are not ready may always be evicted (unhealthyPodEvictionPolicy AlwaysAllow)
    """

    namespace: str
    name: str
    selector: LabelSelector | None = None
    min_available: PodCount | None = None
    max_unavailable: PodCount | None = None
    expected_pods: int | None = None
    sync_failure: str = ""
    evicts_unhealthy: bool = False

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def counts_controllers(self) -> bool:
        """Whether the expected pods are those that controllers should have, and not the pods that exist."""
        return self.max_unavailable is not None or (self.min_available is not None and self.min_available.percent)

    def desired_healthy(self, expected: int) -> int:
        """Returns how many of the expected pods must stay healthy (getExpectedPodCount)."""
        if self.max_unavailable is not None:
            return max(0, expected - self.max_unavailable.of(expected))
        return self.min_available.of(expected) if self.min_available is not None else 0
