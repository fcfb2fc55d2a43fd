"""The probes of a program, and its metrics."""

import asyncio
import threading
import time
from collections.abc import Iterable

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.bootstrap import plain_probes
from app.runtime.probes import Health, UnavailableError, install_metrics, probe_application
from scheduler_core.structs import replace
from tests.worlds.service import application, http_client, lifecycle


def well() -> Health:
    return Health(status="ok")


def unwell() -> Health:
    raise UnavailableError("no cluster")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_get_and_head_are_answered(path: str) -> None:
    async with http_client(probe_application(well, CollectorRegistry())) as client:
        assert (await client.get(path)).status_code == 200
        assert (await client.head(path)).status_code == 200


async def test_a_problem_is_the_body_of_503() -> None:
    async with http_client(probe_application(unwell, CollectorRegistry())) as client:
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"error": "no cluster"})
        assert (await client.get("/healthz")).status_code == 200


async def test_metrics_are_those_of_the_registry() -> None:
    registry = CollectorRegistry()
    Gauge("answer", "An example.", registry=registry).set(42)
    async with http_client(probe_application(well, registry)) as client:
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "answer 42.0" in answer.text


class SlowCollector(Collector):
    """A collector that takes a while, and counts how many scrapes are in it."""

    def __init__(self) -> None:
        self.prepared = 0
        self.threads: list[int] = []
        self.most_at_once = 0
        self._inside = 0

    def prepare(self) -> None:
        """Counts a preparation; in the event loop's thread."""
        self.prepared += 1
        self.threads.append(threading.get_ident())

    def collect(self) -> Iterable[Metric]:
        """Returns one sample after 20 ms: how often a scrape was prepared."""
        self._inside += 1
        self.most_at_once = max(self.most_at_once, self._inside)
        time.sleep(0.02)
        self._inside -= 1
        self.threads.append(threading.get_ident())
        return [GaugeMetricFamily("prepared", "An example.", value=self.prepared)]


async def test_one_scrape_is_rendered_at_a_time_and_in_another_thread() -> None:
    """More threads that compute would delay requests more; each scrape is prepared in the event loop."""
    registry = CollectorRegistry()
    collector = SlowCollector()
    registry.register(collector)
    app = FastAPI()
    install_metrics(app, registry, in_thread=True, prepare=collector.prepare)
    async with http_client(app) as client:
        answers = await asyncio.gather(*(client.get("/metrics") for _ in range(4)))
    assert sorted(answer.text.splitlines()[-1] for answer in answers) == [f"prepared {n}.0" for n in range(1, 5)]
    assert collector.most_at_once == 1
    own = threading.get_ident()
    assert [thread == own for thread in collector.threads] == [True, False] * 4


@pytest.mark.parametrize(
    ("problem", "status"), [("", 200), ("Replica longhorn-system/secret-volume-r-1 cannot be read", 503)]
)
async def test_the_port_for_probes_alone_names_nothing_of_the_cluster(problem: str, status: int) -> None:
    app = application()
    app.state.services = replace(app.state.services, lifecycle=lifecycle(problem))
    async with http_client(plain_probes(app)) as client:
        ready = await client.get("/readyz")
        assert (ready.status_code, "secret-volume" in ready.text) == (status, False)
        assert (await client.get("/healthz")).status_code == 200
        assert {(await client.get(path)).status_code for path in ("/state", "/metrics", "/docs", "/")} == {404}
