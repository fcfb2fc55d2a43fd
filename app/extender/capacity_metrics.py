"""Metrics of disk space, and of nodes that can be lost, computed only when Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.runtime.metrics import PREFIX
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.monitor.capacity_report import CapacityReport, DiskUsage
from scheduler_core.predict.node_loss import NodeLossOutcome

_DISK_LABELS: Final = ("node", "disk")
_DISK_SIZES: Final[tuple[tuple[str, str, Callable[[DiskUsage], int]], ...]] = (
    ("maximum", "Size of the disk", lambda usage: usage.maximum),
    ("reserved", "What Longhorn leaves to other programs", lambda usage: usage.reserved),
    ("scheduled", "Sizes of the replicas and images in Longhorn's status", lambda usage: usage.scheduled),
    (
        "promised",
        "Sizes that are not in Longhorn's status yet: placed replicas, and growth that claims request",
        lambda usage: usage.promised,
    ),
    (
        "free",
        "What replicas may still take by the rules; negative while the limit is exceeded",
        lambda usage: usage.free,
    ),
    ("written", "What files take, those of other programs included", lambda usage: usage.written),
)
_NO_DISKS: Final = CapacityReport((), {}, {})


class CapacityCollector(Collector):
    """The space of every disk, node and StorageClass.

    Args:
        read: returns the current state, None while another process reports it; it is called in another thread
        with_disks: whether each disk has series of its own
    """

    def __init__(self, read: Callable[[], ClusterState | None], *, with_disks: bool) -> None:
        self._read = read
        self._with_disks = with_disks

    def collect(self) -> Iterable[Metric]:
        """Returns one sample per disk and number."""
        state = self._read()
        report = CapacityReport.of(state, with_disks=self._with_disks) if state is not None else _NO_DISKS
        if self._with_disks:
            yield from _disk_sizes(report)
            yield from _disk_states(report)
        yield _gauge(
            "node_demand_bytes",
            "Sizes of volumes that will take room on the node and have no replica there yet",
            "node",
            report.demand,
        )
        yield _gauge(
            "largest_fitting_volume_bytes",
            "The largest new volume of the StorageClass of which some node can take a replica",
            "storage_class",
            report.largest_volumes,
        )


class NodeLossCollector(Collector):
    """Whether each node can be lost for good.

    Args:
        read: returns the outcomes that are known; it is called in another thread
    """

    def __init__(self, read: Callable[[], Mapping[str, NodeLossOutcome]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Returns one sample per node whose outcome is known."""
        yield _gauge(
            "node_safe_to_lose",
            "1 if the node can be lost for good: its pods with Longhorn volumes find other nodes, and no volume loses its data; "
            "otherwise 0",
            "node",
            {name: int(outcome.safe) for name, outcome in self._read().items()},
        )


def _gauge(name: str, help_text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", help_text, labels=[label])
    for label_value, value in values.items():
        family.add_metric([label_value], value)
    return family


def _disk_sizes(report: CapacityReport) -> Iterable[Metric]:
    for name, help_text, size_of in _DISK_SIZES:
        family = GaugeMetricFamily(f"{PREFIX}_disk_{name}_bytes", help_text, labels=_DISK_LABELS)
        for usage in report.disks:
            family.add_metric((usage.node, usage.disk), size_of(usage))
        yield family


def _disk_states(report: CapacityReport) -> Iterable[Metric]:
    open_disks = GaugeMetricFamily(
        f"{PREFIX}_disk_open", "1 if the disk takes new replicas of some size, otherwise 0", labels=_DISK_LABELS
    )
    closed_disks = GaugeMetricFamily(
        f"{PREFIX}_disk_closed",
        "1 for each disk that takes no new replica; reason says why",
        labels=(*_DISK_LABELS, "reason"),
    )
    for usage in report.disks:
        open_disks.add_metric((usage.node, usage.disk), usage.closed_by is None)
        if usage.closed_by is not None:
            closed_disks.add_metric((usage.node, usage.disk, usage.closed_by.reason.name.lower()), 1)
    yield open_disks
    yield closed_disks
