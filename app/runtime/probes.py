"""GET /healthz, /readyz and /metrics of every program: what a kubelet and Prometheus ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, Field


class UnavailableError(Exception):
    """This process must not answer now; another process may. The text says why."""


class SwitchedOffError(UnavailableError):
    """An administrator has switched the service off; no process answers."""


class Health(BaseModel):
    """Whether the process is well."""

    status: str


class CacheHealth(Health):
    """Whether the process is well, and which objects and settings it cannot use."""

    unreadable: list[str] = []
    refused_settings: list[str] = Field(default=[], serialization_alias="refusedSettings")


class LeaderHealth(Health):
    """Whether the process is well, and whether it leads."""

    role: str


def install_probes(app: FastAPI, readiness: Callable[[], Health], model: type[Health] = Health) -> None:
    """Adds /healthz and /readyz to an application. `readiness` returns an instance of `model`, or raises
    `UnavailableError` with why the process is not ready.
    """

    async def healthz() -> Health:
        """Answers as long as the event loop turns; depends on nothing outside the process."""
        return Health(status="ok")

    async def readyz() -> Health:
        """Answers ok while the cluster's state is known well enough to decide; a snapshot's always is."""
        return readiness()

    app.add_api_route("/healthz", healthz, methods=["GET"], tags=["operation"], summary="Whether the process is alive")
    app.add_api_route(
        "/readyz",
        readyz,
        methods=["GET"],
        tags=["operation"],
        summary="Whether questions can be answered",
        response_model=model,
        # Healthy caches have nothing to add.
        response_model_exclude_defaults=True,
    )


class _MetricsResponse(Response):
    """Metrics in Prometheus' text format."""

    media_type = CONTENT_TYPE_LATEST


def install_metrics(
    app: FastAPI, registry: CollectorRegistry, *, in_thread: bool, prepare: Callable[[], None] | None = None
) -> None:
    """Adds /metrics to an application; its server's metrics are added to `registry`, too.

    Rendered in a worker thread, a large registry delays no request; then its collectors must be safe to read from any thread.
    One scrape is rendered at a time, because each thread that computes takes its turn of the interpreter from the event loop.
    `prepare` is called in the event loop before each.
    """
    rendering = asyncio.Semaphore()

    async def metrics() -> Response:
        """Endpoint that serves Prometheus metrics."""
        async with rendering:
            if prepare is not None:
                prepare()
            text = await asyncio.to_thread(generate_latest, registry) if in_thread else generate_latest(registry)
        return _MetricsResponse(text)

    app.state.registry = registry
    app.add_api_route(
        "/metrics",
        metrics,
        methods=["GET"],
        name="metrics",
        tags=["operation"],
        response_class=_MetricsResponse,
    )


def probe_application(
    readiness: Callable[[], Health], registry: CollectorRegistry | None, model: type[Health] = Health
) -> FastAPI:
    """Returns an application that has the probes only; without a registry, no metrics."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(UnavailableError)
    async def unavailable(_request: Request, error: UnavailableError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 503)

    install_probes(app, readiness, model)
    if registry is not None:
        install_metrics(app, registry, in_thread=False)
    return app
