"""What the metrics of several programs share: names, buckets, a registry, and the metrics of watch caches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app import DISTRIBUTION
from app.runtime.logs import dropped_lines

if TYPE_CHECKING:  # the Kubernetes client takes a second to import; a snapshot file needs none
    from app.kube.reflector import CacheStatus

PREFIX: Final = "longhorn_scheduler_extender"
# From half a millisecond, what a small cluster takes, to kube-scheduler's own time-out in the proposal.
BUCKETS: Final = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
BEHIND_HELP: Final = "How long the cache may have been behind: cut off, or silent for longer than bookmarks take"


def process_registry() -> CollectorRegistry:
    """Returns a registry with the metrics of this process, and with the version of the program."""
    # Otherwise every counter and histogram has one more series, of the time at which it was made.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    registry.register(_LogCollector())
    build = Gauge(f"{PREFIX}_build_info", "1; the label is the version of the program", ["version"], registry=registry)
    build.labels(version(DISTRIBUTION)).set(1)
    return registry


class _LogCollector(Collector):
    """Counts of log lines, read when Prometheus scrapes."""

    def collect(self) -> Iterable[Metric]:
        help_text = "Log lines that were not written, because their reader stalls or the target fails"
        yield CounterMetricFamily(f"{PREFIX}_log_lines_dropped", help_text, value=dropped_lines())


class CacheCollector(Collector):
    """The status of each reflector, read when Prometheus scrapes."""

    def __init__(self, statuses: Callable[[], Mapping[str, CacheStatus]], clock: Callable[[], float]) -> None:
        self._statuses = statuses
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """Returns one sample per kind and metric."""
        now = self._clock()
        behind = GaugeMetricFamily(f"{PREFIX}_cache_behind_seconds", BEHIND_HELP, labels=["kind"])
        lists = CounterMetricFamily(f"{PREFIX}_cache_lists", "Complete lists of a kind", labels=["kind"])
        events = CounterMetricFamily(f"{PREFIX}_cache_events", "Watch events of a kind", labels=["kind"])
        unreadable = GaugeMetricFamily(
            f"{PREFIX}_cache_unreadable_objects", "Objects left out because they cannot be read", labels=["kind"]
        )
        for kind, status in self._statuses().items():
            behind.add_metric([kind], status.behind(now))
            lists.add_metric([kind], status.lists)
            events.add_metric([kind], status.events)
            unreadable.add_metric([kind], len(status.unreadable))
        return behind, lists, events, unreadable
