"""Metrics of the stand-alone scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from app.runtime.file_content import LOADED, REFUSED
from app.runtime.metrics import BUCKETS
from app.scheduler.event_recorder import EVENT
from app.scheduler.pod_condition import CONDITION

PREFIX: Final = "longhorn_generic_scheduler"
SCHEDULED: Final = "scheduled"
UNSCHEDULABLE: Final = "unschedulable"
ERROR: Final = "error"


class SchedulerMetrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()  # has these metrics and no others
        self._attempts = Counter(
            f"{PREFIX}_attempts_total",
            "Attempts to schedule a pod, by what came of them",
            ["result"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}_decision_seconds", "Time to decide about a pod", buckets=BUCKETS, registry=self.registry
        )
        self._failures = Counter(
            f"{PREFIX}_write_failures_total",
            "Events and conditions of pods that the API server refused, or did not answer",
            ["what"],
            registry=self.registry,
        )
        self._reloads = Counter(
            f"{PREFIX}_policy_reloads_total", "Other contents of the policy file", ["result"], registry=self.registry
        )
        for result in (SCHEDULED, UNSCHEDULABLE, ERROR):
            self._attempts.labels(result)
        for kind in (EVENT, CONDITION):
            self._failures.labels(kind)
        for result in (LOADED, REFUSED):
            self._reloads.labels(result)

    def count_attempt(self, result: str) -> None:
        self._attempts.labels(result).inc()

    def count_write_failure(self, kind: str) -> None:
        self._failures.labels(kind).inc()

    def count_policy_reload(self, result: str) -> None:
        self._reloads.labels(result).inc()

    def observe_decision(self, seconds: float) -> None:
        self._seconds.observe(seconds)

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        Gauge(f"{PREFIX}_{name}", text, registry=self.registry).set_function(read)
