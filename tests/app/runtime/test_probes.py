"""The probes of a program that serves nothing else."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Gauge

from app.runtime.probes import Health, UnavailableError, probe_application
from tests.worlds.service import http_client

pytestmark = pytest.mark.anyio


def readiness_of(problem: str) -> Health:
    """Well without a problem.

    Raises:
        UnavailableError: there is a problem
    """
    if problem:
        raise UnavailableError(problem)
    return Health(status="ok")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_get_and_head_are_answered(path: str) -> None:
    """A kubelet sends GET, some load balancers HEAD."""
    async with http_client(probe_application(lambda: readiness_of(""), CollectorRegistry())) as client:
        assert (await client.get(path)).status_code == 200
        assert (await client.head(path)).status_code == 200


async def test_a_problem_is_the_body_of_503() -> None:
    """The process is alive none the less."""
    async with http_client(probe_application(lambda: readiness_of("no cluster"), CollectorRegistry())) as client:
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"error": "no cluster"})
        assert (await client.get("/healthz")).status_code == 200


async def test_metrics_are_those_of_the_registry() -> None:
    """In Prometheus' text format."""
    registry = CollectorRegistry()
    Gauge("answer", "An example.", registry=registry).set(42)
    async with http_client(probe_application(lambda: readiness_of(""), registry)) as client:
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "answer 42.0" in answer.text
