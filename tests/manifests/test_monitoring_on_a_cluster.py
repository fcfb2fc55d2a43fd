"""A real Prometheus scrapes the extender in a real cluster: every expression of the dashboard and of the alerts has data."""

import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from app.runtime.probes import PREFIX
from devcluster import prometheus
from devcluster.http_check import http_request
from devcluster.programs import NAMESPACE
from devcluster.stack import Stack, StackOptions
from tests.control_plane import ControlPlane
from tests.manifests.load import CONFIGS, ROOT
from tests.manifests.test_monitoring import ALERTS, dashboard_queries, selectors

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CLOSED = "east-2"
NODES = {"east-1": ["400Gi"], CLOSED: ["400Gi"], "east-3": ["400Gi"]}
# Time for a few scrapes, and for a rate.
DATA_SECONDS = 90.0


@pytest.fixture(scope="module")
def stack(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two processes of the extender and Prometheus; pods with claims, and a node that takes no replicas."""
    program = prometheus.find(None)
    if program is None:
        pytest.skip("there is no prometheus on PATH: install it, for example Debian's package")
    options = StackOptions(
        nodes=NODES,
        candidates=2,
        create_free_lease=True,
        scheduler_config=CONFIGS / "recommended-managed.yaml",
        prometheus=program,
        audit=False,
    )
    with (
        control_plane.borrow() as cluster,
        Stack(tmp_path_factory.mktemp("monitoring"), options, running=cluster) as running,
    ):
        closed = ("patch", "nodes.longhorn.io", CLOSED, "-n", NAMESPACE, "--type=merge", "-p")
        running.cluster.kubectl(*closed, '{"spec": {"allowScheduling": false}}')
        running.cluster.kubectl("apply", "-f", str(ROOT / "examples/dev/statefulset.yaml"))
        yield running


def query(stack: Stack, expression: str) -> list[Any]:
    code, answer = http_request(f"{stack.prometheus_url}/api/v1/query?query={quote(expression)}")
    assert code == 200, f"{expression}: {answer}"
    samples: list[Any] = answer["data"]["result"]
    return samples


def without_data(stack: Stack, expressions: list[str]) -> list[str]:
    """The expressions for which Prometheus returns nothing, after it had time to scrape."""
    deadline = time.monotonic() + DATA_SECONDS
    remaining = expressions
    while remaining and time.monotonic() < deadline:
        remaining = [expression for expression in remaining if not query(stack, expression)]
        time.sleep(1)
    return remaining


def test_every_panel_of_the_dashboard_has_data(stack: Stack) -> None:
    assert without_data(stack, [expression for _, expression in dashboard_queries()]) == []


def test_every_series_that_an_alert_reads_exists(stack: Stack) -> None:
    """The expression itself returns nothing while all is well."""
    assert without_data(stack, sorted({name for rule in ALERTS.values() for name in selectors(rule["expr"])})) == []


@pytest.mark.parametrize("alert", ALERTS)
def test_prometheus_evaluates_the_expression_of_an_alert(stack: Stack, alert: str) -> None:
    """A mistake in it is an error of this query."""
    samples = query(stack, ALERTS[alert]["expr"])
    assert all({"metric", "value"} <= sample.keys() for sample in samples)


def test_only_one_process_reports_a_disk(stack: Stack) -> None:
    assert without_data(stack, [f"{PREFIX}_disk_open"]) == []
    assert len({sample["metric"]["instance"] for sample in query(stack, f"{PREFIX}_disk_open")}) == 1
    assert len(query(stack, f"{PREFIX}_build_info")) == 2


def test_the_closed_node_has_its_reason(stack: Stack) -> None:
    closed = f'{PREFIX}_disk_closed{{node="{CLOSED}", reason="node_scheduling_disabled"}}'
    assert without_data(stack, [closed]) == []
    assert without_data(stack, [f'{PREFIX}_disk_open{{node="{CLOSED}"}} == 0']) == []


def test_no_series_has_a_twin_of_its_creation(stack: Stack) -> None:
    code, answer = http_request(f"{stack.prometheus_url}/api/v1/label/__name__/values")
    assert code == 200
    assert [name for name in answer["data"] if re.search(r"_created$", name)] == []
