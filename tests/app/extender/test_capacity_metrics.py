"""The space of disks is computed when Prometheus scrapes, and at no other time."""

from prometheus_client import generate_latest

from app.extender.metrics import Metrics
from app.runtime.probes import PREFIX
from scheduler_core.evaluation.state import ClusterState
from tests import builders as make
from tests.builders import GI

NODES = [
    make.longhorn_node("n1", {"d1": make.disk(100, scheduled=40), "d2": make.disk(50, allow=False)}),
    make.longhorn_node("n2", 80),
]


def series(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by the values of its labels, in the order of the labels' names."""
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"{PREFIX}_{name}"
    }


def test_every_disk_and_class_has_its_series() -> None:
    metrics = Metrics()
    metrics.capacity(lambda: make.state(NODES, make.storage_class()))
    assert series(metrics, "disk_free_bytes") == {
        ("d1", "n1"): 60 * GI,
        ("d2", "n1"): 50 * GI,
        ("disk-1", "n2"): 80 * GI,
    }
    assert series(metrics, "disk_open") == {("d1", "n1"): 1, ("d2", "n1"): 0, ("disk-1", "n2"): 1}
    assert series(metrics, "disk_closed") == {("d2", "n1", "no_disk"): 1}
    assert series(metrics, "largest_fitting_volume_bytes") == {("longhorn",): 80 * GI}
    assert series(metrics, "node_demand_bytes") == {("n1",): 0, ("n2",): 0}


def test_disks_can_be_left_out() -> None:
    metrics = Metrics()
    metrics.capacity(lambda: make.state(NODES, make.storage_class()), with_disks=False)
    text = generate_latest(metrics.registry).decode()
    assert f"{PREFIX}_disk_" not in text
    assert series(metrics, "largest_fitting_volume_bytes") == {("longhorn",): 80 * GI}
    assert series(metrics, "node_demand_bytes") == {("n1",): 0, ("n2",): 0}


def test_a_process_that_does_not_lead_has_no_such_series() -> None:
    """Two processes would report every disk twice."""
    metrics = Metrics()
    metrics.capacity(lambda: None)
    assert series(metrics, "disk_free_bytes") == {}
    assert series(metrics, "largest_fitting_volume_bytes") == {}


def test_the_state_is_read_once_per_scrape() -> None:
    reads: list[int] = []

    def read() -> ClusterState:
        reads.append(1)
        return make.state(NODES)

    metrics = Metrics()
    metrics.capacity(read)
    assert reads == []
    generate_latest(metrics.registry)
    assert len(reads) == 1


def test_the_time_of_the_last_request_is_known() -> None:
    metrics = Metrics()
    assert series(metrics, "last_filter_request_timestamp_seconds") == {(): 0}
    metrics.count_request("error")
    assert series(metrics, "last_filter_request_timestamp_seconds")[()] > 0


def test_counters_have_no_twin_of_their_creation_time() -> None:
    text = generate_latest(Metrics().registry).decode()
    assert "_created" not in text
    assert f'{PREFIX}_build_info{{version="' in text
