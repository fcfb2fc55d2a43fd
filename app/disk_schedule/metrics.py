"""What Prometheus is told of the DiskSchedule controllers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.disk_schedule.disk_controller import over_allocated
from app.disk_schedule.watches import Watches
from app.extender.metrics import PREFIX
from app.runtime.work_queue import Again
from scheduler_core.model.disk_schedule import Kind

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_PENDING: Final = "pending"
_STATES: Final = (_PENDING, "scheduled", "rejected")


class _Disks(Collector):
    """What the DiskSchedules say, counted when Prometheus asks, on the event loop that keeps what is watched."""

    def __init__(self, watches: Watches, clock: Callable[[], float]) -> None:
        self._watches = watches
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """One sample per number."""
        schedules = self._watches.schedules.readable()
        yield GaugeMetricFamily(
            f"{PREFIX}_disk_over_allocations",
            "Disks on which more is held than is available",
            value=sum(1 for each in schedules.values() if over_allocated(each)),
        )
        counts: Counter[tuple[Kind, str]] = Counter()
        for schedule in schedules.values():
            for kind in Kind:
                answers = schedule.status.of(kind)
                for name in schedule.spec.of(kind):
                    counts[kind, answers[name].state.value if name in answers else _PENDING] += 1
        requests = GaugeMetricFamily(
            f"{PREFIX}_disk_schedule_requests", "Requests for room on disks", labels=["kind", "state"]
        )
        for kind in Kind:
            for state in _STATES:
                requests.add_metric([kind.value.replace(" ", "_"), state], counts[kind, state])
        yield requests
        unreadable = Counter(kind for kind, _, _ in self._watches.unreadable())
        broken = GaugeMetricFamily(
            f"{PREFIX}_disk_schedule_unreadable_objects", "Objects that cannot be read", labels=["kind"]
        )
        behind = GaugeMetricFamily(
            f"{PREFIX}_disk_schedule_cache_behind_seconds",
            "How long the cache may have been behind: cut off, or silent for longer than bookmarks take",
            labels=["kind"],
        )
        now = self._clock()
        for label, standing in self._watches.standings.items():
            behind.add_metric([label], standing.behind(now))
            broken.add_metric([label], unreadable[label])
        yield behind
        yield broken


class ControllerMetrics:
    """This process's metrics, in a registry of their own; also the queues' watcher."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
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
        """Shows 0 for what has not happened yet."""
        for name in controllers:
            self._depth.labels(controller=name).set(0)
            for why in Again:
                self._retries.labels(controller=name, why=why.value)
            self._duration.labels(controller=name)

    def watch(self, watches: Watches, clock: Callable[[], float]) -> None:
        """Adds what the DiskSchedules say."""
        self.registry.register(_Disks(watches, clock))

    def depth(self, controller: str, keys: int) -> None:
        """So many keys are due or in work."""
        self._depth.labels(controller=controller).set(keys)

    def retried(self, controller: str, why: Again) -> None:
        """A key is to be looked at again after a pause."""
        self._retries.labels(controller=controller, why=why.value).inc()

    def reconciled(self, controller: str, seconds: float) -> None:
        """A key was looked at."""
        self._duration.labels(controller=controller).observe(seconds)

    def working(self, *, now: bool) -> None:
        """Whether this process reconciles."""
        self._working.set(now)
