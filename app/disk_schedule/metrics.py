"""Prometheus metrics of the DiskSchedule controllers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import Counter as CounterMetric
from prometheus_client import Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.disk_schedule.disk_controller import over_allocated
from app.disk_schedule.watches import ControllerCache
from app.runtime.metrics import BEHIND_HELP, PREFIX, process_registry
from app.runtime.work_queue import Requeue
from scheduler_core.model.disk_schedule import RequestKind

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_PENDING: Final = "pending"
_STATES: Final = (_PENDING, "scheduled", "rejected")


class _DiskScheduleCollector(Collector):
    """Collects metrics from the cached DiskSchedules during the scrape, on the event loop that owns the cache."""

    def __init__(self, cache: ControllerCache, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """Yields the metrics; called by Prometheus's registry."""
        schedules = self._cache.schedules.readable()
        yield GaugeMetricFamily(
            f"{PREFIX}_disk_over_allocations",
            "Disks on which more is held than is available",
            value=sum(1 for each in schedules.values() if over_allocated(each)),
        )
        counts: Counter[tuple[RequestKind, str]] = Counter()
        for schedule in schedules.values():
            for kind in RequestKind:
                allocations = schedule.status.allocations(kind)
                for name in schedule.spec.requests(kind):
                    counts[kind, allocations[name].state.value if name in allocations else _PENDING] += 1
        requests = GaugeMetricFamily(
            f"{PREFIX}_disk_schedule_requests", "Requests for room on disks", labels=["kind", "state"]
        )
        for kind in RequestKind:
            for state in _STATES:
                requests.add_metric([kind.value.replace(" ", "_"), state], counts[kind, state])
        yield requests
        unreadable = self._cache.unreadable()
        broken = GaugeMetricFamily(
            f"{PREFIX}_disk_schedule_unreadable_objects", "Objects that cannot be read", labels=["kind"]
        )
        behind = GaugeMetricFamily(
            f"{PREFIX}_disk_schedule_cache_behind_seconds",
            BEHIND_HELP,
            labels=["kind"],
        )
        now = self._clock()
        for label, status in self._cache.statuses.items():
            behind.add_metric([label], status.behind(now))
            broken.add_metric([label], unreadable[label])
        yield behind
        yield broken


class ControllerMetrics:
    """This process's metrics, in a registry of their own, and the observer of the work queues."""

    def __init__(self) -> None:
        self.registry = process_registry()
        self._depth = Gauge(
            f"{PREFIX}_disk_schedule_queue_depth",
            "Keys that are due or in work",
            ["controller"],
            registry=self.registry,
        )
        self._retries = CounterMetric(
            f"{PREFIX}_disk_schedule_retries",
            "Keys to be looked at again: conflict (somebody was faster), waiting (something is refused), failed",
            ["controller", "why"],
            registry=self.registry,
        )
        self._duration = Histogram(
            f"{PREFIX}_disk_schedule_reconcile_duration_seconds",
            "Time to look at one key, its calls included",
            ["controller"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._working = Gauge(
            f"{PREFIX}_disk_schedule_working", "1 while this process reconciles, 0 otherwise", registry=self.registry
        )

    def expect(self, controllers: Iterable[str]) -> None:
        """Initialises the metrics of some controllers with 0."""
        for name in controllers:
            self._depth.labels(controller=name).set(0)
            for why in Requeue:
                self._retries.labels(controller=name, why=why.value)
            self._duration.labels(controller=name)

    def watch(self, cache: ControllerCache, clock: Callable[[], float]) -> None:
        self.registry.register(_DiskScheduleCollector(cache, clock))

    def depth(self, controller: str, keys: int) -> None:
        self._depth.labels(controller=controller).set(keys)

    def note_retry(self, controller: str, why: Requeue) -> None:
        self._retries.labels(controller=controller, why=why.value).inc()

    def note_reconciliation(self, controller: str, seconds: float) -> None:
        self._duration.labels(controller=controller).observe(seconds)

    def working(self, *, now: bool) -> None:
        self._working.set(now)
