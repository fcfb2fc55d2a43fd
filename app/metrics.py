"""What Prometheus is told. Names and labels of the filter histogram are those of Longhorn's scheduler-extender proposal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Gauge, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_fastapi_instrumentator import Instrumentator, metrics

from scheduler_core.verdict import Reason

if TYPE_CHECKING:  # the Kubernetes client takes a second to import; a snapshot file needs none
    from app.kube.reflector import Standing

PREFIX: Final = "longhorn_scheduler_extender"
# From half a millisecond, what a small cluster takes, to kube-scheduler's own time-out in the proposal.
BUCKETS: Final = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip

# From what a small cluster takes to bind a pod, to the longest time-out an administrator may set.
WAIT_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 30.0, 60.0, 300.0)
_BOOLEANS: Final = ("false", "true")


class _Caches(Collector):
    """What the reflectors say of themselves, as metrics."""

    def __init__(self, standings: Callable[[], Mapping[str, Standing]], clock: Callable[[], float]) -> None:
        self._standings = standings
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """One sample per kind and metric."""
        now = self._clock()
        behind = GaugeMetricFamily(
            f"{PREFIX}_cache_behind_seconds",
            "How long the cache may have been behind: cut off, or silent for longer than bookmarks take",
            labels=["kind"],
        )
        lists = CounterMetricFamily(f"{PREFIX}_cache_lists", "Complete lists of a kind", labels=["kind"])
        events = CounterMetricFamily(f"{PREFIX}_cache_events", "Watch events of a kind", labels=["kind"])
        unreadable = GaugeMetricFamily(
            f"{PREFIX}_cache_unreadable_objects", "Objects left out because they cannot be read", labels=["kind"]
        )
        for kind, standing in self._standings().items():
            behind.add_metric([kind], standing.behind(now))
            lists.add_metric([kind], standing.lists)
            events.add_metric([kind], standing.events)
            unreadable.add_metric([kind], len(standing.unreadable))
        return behind, lists, events, unreadable


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
        self._heartbeat = Gauge(
            f"{PREFIX}_heartbeat",
            "1 while this process is the leader and answers, 0 otherwise; node is where it runs",
            ["node"],
            registry=self.registry,
        )
        self._scheduling_wait = Histogram(
            f"{PREFIX}_pod_scheduling_wait_duration_seconds",
            "Time waiting for pod spec.nodeName to be populated",
            ["pod_scheduled"],
            buckets=WAIT_BUCKETS,
            registry=self.registry,
        )
        self._node_reservation = Histogram(
            f"{PREFIX}_node_reservation_duration_seconds",
            "Time waiting for replicas to appear as scheduled on the reserved node",
            ["replicas_scheduled"],
            buckets=WAIT_BUCKETS,
            registry=self.registry,
        )
        for happened in _BOOLEANS:
            self._scheduling_wait.labels(pod_scheduled=happened)
            self._node_reservation.labels(replicas_scheduled=happened)
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

    def heartbeat(self, node: str, *, leading: bool) -> None:
        """Tells whether this process answers."""
        self._heartbeat.labels(node=node).set(leading)

    def pod_scheduling_wait(self, seconds: float, *, scheduled: bool) -> None:
        """One wait for spec.nodeName is over."""
        self._scheduling_wait.labels(pod_scheduled=_BOOLEANS[scheduled]).observe(seconds)

    def node_reservation(self, seconds: float, *, listed: bool) -> None:
        """One reservation of a node is over."""
        self._node_reservation.labels(replicas_scheduled=_BOOLEANS[listed]).observe(seconds)

    def caches(self, standings: Callable[[], Mapping[str, Standing]], clock: Callable[[], float]) -> None:
        """Adds what is known of each watch cache, read when Prometheus asks."""
        self.registry.register(_Caches(standings, clock))

    def instrument(self, app: FastAPI) -> None:
        """Adds the HTTP metrics of every route, and GET /metrics."""
        instrumentator = Instrumentator(
            excluded_handlers=["/metrics", "/healthz", "/readyz"],
            registry=self.registry,
        )
        instrumentator.add(metrics.default(latency_lowr_buckets=BUCKETS, registry=self.registry))
        instrumentator.instrument(app)
        instrumentator.expose(app, include_in_schema=True, tags=["operation"])
