"""What Prometheus is told of the stand-alone scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from app.extender.metrics import BUCKETS
from app.policy.file import LOADED, REFUSED
from app.scheduler.event_recorder import EVENT
from app.scheduler.pod_condition import CONDITION

PREFIX: Final = "longhorn_generic_scheduler"
SCHEDULED: Final = "scheduled"
UNSCHEDULABLE: Final = "unschedulable"
ERROR: Final = "error"


class SchedulerMetrics:
    """Counts of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._attempts = Counter(
            f"{PREFIX}_attempts_total",
            "Attempts to schedule a pod, by what came of them",
            ["result"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}_decision_seconds", "Time to decide about a pod", buckets=BUCKETS, registry=self._registry
        )
        self._failures = Counter(
            f"{PREFIX}_write_failures_total",
            "Events and conditions of pods that the API server refused, or did not answer",
            ["what"],
            registry=self._registry,
        )
        self._reloads = Counter(
            f"{PREFIX}_policy_reloads_total", "Other contents of the policy file", ["result"], registry=self._registry
        )
        for result in (SCHEDULED, UNSCHEDULABLE, ERROR):
            self._attempts.labels(result)
        for what in (EVENT, CONDITION):
            self._failures.labels(what)
        for result in (LOADED, REFUSED):
            self._reloads.labels(result)

    def attempt(self, result: str) -> None:
        """An attempt has ended."""
        self._attempts.labels(result).inc()

    def write_failed(self, what: str) -> None:
        """An Event or a condition was not written."""
        self._failures.labels(what).inc()

    def policy_reloaded(self, result: str) -> None:
        """The policy file has another content."""
        self._reloads.labels(result).inc()

    def decided(self, seconds: float) -> None:
        """A decision took this long."""
        self._seconds.observe(seconds)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A number that is read whenever somebody asks."""
        Gauge(f"{PREFIX}_{name}", text, registry=self._registry).set_function(read)

    def text(self) -> bytes:
        """Everything, in Prometheus' format."""
        return generate_latest(self._registry)
