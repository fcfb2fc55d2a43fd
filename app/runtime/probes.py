"""GET /healthz, /readyz and /metrics of every program: what a kubelet and Prometheus ask, and what the metrics of several
programs share. Whether requests about pods may be answered now is checked before a decision is made, and again before it is answered.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field

from app import DISTRIBUTION
from app.runtime.logs import dropped_lines

if TYPE_CHECKING:
    from app.kube.reflector import CacheStatus


PREFIX = "longhorn_scheduler_extender"
# From half a millisecond, what a small cluster takes, to kube-scheduler's own time-out in the proposal.
BUCKETS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
BEHIND_HELP = "How long the cache may have been behind: cut off, or silent for longer than bookmarks take"


def process_registry() -> CollectorRegistry:
    """Returns a registry with the metrics of this process, and with the version of the program."""
    # Otherwise every counter and histogram has one more series, of the time at which it was made.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    text = "Log lines that were not written, because their reader stalls or the target fails"
    name = f"{PREFIX}_log_lines_dropped"
    registry.register(Reading(lambda: [CounterMetricFamily(name, text, value=dropped_lines())]))
    build = Gauge(f"{PREFIX}_build_info", "1; the label is the version of the program", ["version"], registry=registry)
    build.labels(version(DISTRIBUTION)).set(1)
    return registry


class LabelledCounter:
    """A counter by one label, which shows 0 for each of its values from the beginning."""

    def __init__(self, name: str, text: str, label: str, values: Iterable[str], registry: CollectorRegistry) -> None:
        self._counter = Counter(name, text, [label], registry=registry)
        for value in values:
            self._counter.labels(value)

    def count(self, value: str, number: int = 1) -> None:
        self._counter.labels(value).inc(number)


class Reading(Collector):
    """Metrics that are read when Prometheus scrapes."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


def gauge_family(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    """Returns a gauge with a number for each sequence of its labels' values."""
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
    for label_values, number in values:
        family.add_metric(label_values, number)
    return family


def cache_metrics(statuses: "Mapping[str, CacheStatus]", now: float) -> Iterable[Metric]:
    """Returns the status of each reflector."""
    lists = CounterMetricFamily(f"{PREFIX}_cache_lists", "Complete lists of a kind", labels=["kind"])
    events = CounterMetricFamily(f"{PREFIX}_cache_events", "Watch events of a kind", labels=["kind"])
    for kind, status in statuses.items():
        lists.add_metric([kind], status.lists)
        events.add_metric([kind], status.events)
    behind = [([kind], status.behind(now)) for kind, status in statuses.items()]
    unreadable = [([kind], len(status.unreadable)) for kind, status in statuses.items()]
    text = "Objects left out because they cannot be read"
    return (
        gauge_family("cache_behind_seconds", BEHIND_HELP, ["kind"], behind),
        lists,
        events,
        gauge_family("cache_unreadable_objects", text, ["kind"], unreadable),
    )


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
        "/metrics", metrics, methods=["GET"], name="metrics", tags=["operation"], response_class=_MetricsResponse
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


Availability = Callable[[], str]
"""Returns why no request may be answered now, as one sentence; "" if requests may be answered."""


class SwitchedOff(str):
    """Why no process answers: an administrator has switched the extender off."""

    __slots__ = ()


HungUp = Callable[[], Awaitable[bool]]
"""Returns whether the caller has gone; checked before anything is promised. It may raise to refuse the request."""


class CallerGoneError(Exception):
    """The caller hung up, so nothing is decided."""

    def __init__(self) -> None:
        super().__init__("the caller hung up, nothing is decided")


# A snapshot file has no other process that answers from it.
ALWAYS_AVAILABLE: Availability = str


def check(availability: Availability) -> None:
    why = availability()
    if why:
        raise SwitchedOffError(why) if isinstance(why, SwitchedOff) else UnavailableError(why)


async def check_caller(hung_up: HungUp) -> None:
    if await hung_up():
        raise CallerGoneError
