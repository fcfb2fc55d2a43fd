"""What Prometheus is told. Names and labels of the filter histogram are those of Longhorn's scheduler-extender proposal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client import Counter as CounterMetric
from prometheus_fastapi_instrumentator import Instrumentator, metrics

from scheduler_core.verdict import Reason

PREFIX: Final = "longhorn_scheduler_extender"
# From half a millisecond, what a small cluster takes, to kube-scheduler's own time-out in the proposal.
BUCKETS: Final = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class Metrics:
    """This process's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.filter_duration = Histogram(
            f"{PREFIX}_filter_duration_seconds",
            "Time from request decode to response sent",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._verdicts = CounterMetric(
            f"{PREFIX}_verdicts", "Nodes judged by /filter, by reason", ["reason"], registry=self.registry
        )
        self._requests = CounterMetric(
            f"{PREFIX}_filter_requests",
            "Pods asked about, by result: fits (on some node), refused (on all), error (nothing decided)",
            ["result"],
            registry=self.registry,
        )
        self._gave_up = CounterMetric(
            f"{PREFIX}_packing_gave_up",
            "Searches, for a packing or for order safety, that ran out of their budget; the answer is then no",
            registry=self.registry,
        )
        for reason in Reason:
            self._verdicts.labels(reason=reason.name.lower())
        for result in ("fits", "refused", "error"):
            self._requests.labels(result=result)

    def decided(self, reasons: Iterable[Reason], gave_up: int) -> Counter[Reason]:
        """Counts one answer of /filter; returns how often each reason occurred."""
        counted = Counter(reasons)
        for reason, count in counted.items():
            self._verdicts.labels(reason=reason.name.lower()).inc(count)
        fits = any(reason.fits for reason in counted)
        self._requests.labels(result="fits" if fits else "refused").inc()
        if gave_up:
            self._gave_up.inc(gave_up)
        return counted

    def undecided(self) -> None:
        """Counts one question of /filter that could not be decided."""
        self._requests.labels(result="error").inc()

    def instrument(self, app: FastAPI) -> None:
        """Adds the HTTP metrics of every route, and GET /metrics."""
        instrumentator = Instrumentator(
            excluded_handlers=["/metrics", "/healthz", "/readyz"],
            registry=self.registry,
        )
        instrumentator.add(metrics.default(latency_lowr_buckets=BUCKETS, registry=self.registry))
        instrumentator.instrument(app)
        instrumentator.expose(app, include_in_schema=True, tags=["operation"])
