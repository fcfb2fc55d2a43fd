"""The stand-alone scheduler as a process: connections, signals, and what Prometheus and a kubelet ask."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic

import structlog
import uvicorn
import uvloop
from fastapi import FastAPI, Response

from app.kube.client import KubeClient
from app.kube.cluster_cache import ClusterCache
from app.kube.reflector import Timing
from app.runtime.elector import Elector
from app.scheduler.event_recorder import Recorder
from app.scheduler.lifecycle import LEASE, SchedulerService
from app.scheduler.longhorn_cache import LiveLonghorn
from app.scheduler.metrics import SchedulerMetrics
from app.scheduler.scheduler import GenericScheduler, Setup
from app.server import config
from scheduler_core.extender.filter import Options
from scheduler_core.leadership.election import ElectionTiming

log = structlog.get_logger("process")


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Where the cluster is, and who this is there.

    Attributes:
        namespace: where the Lease is, and Longhorn
        lease: the Lease's name
        options: how Longhorn's rules decide
    """

    identity: str
    namespace: str
    kubeconfig: str | None
    context: str | None
    timing: ElectionTiming
    options: Options
    lease: str = LEASE


def run_scheduler(
    setup: Setup, options: ProcessOptions, listener: socket.socket | None, connected: Callable[[], None]
) -> None:
    """Schedules until a signal; `connected` is called once there is a cluster to talk to.

    Raises:
        ConnectError: there is no cluster to talk to
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(setup, options, listener, connected))


async def _run(
    setup: Setup, options: ProcessOptions, listener: socket.socket | None, connected: Callable[[], None]
) -> None:
    client = await KubeClient.connect(options.kubeconfig, options.context)
    try:
        connected()
        metrics = SchedulerMetrics()
        service = _service(client, setup, options, metrics)
        tasks = [asyncio.create_task(service.run(), name="service")]
        if listener is not None:
            server = _Quiet(config(_application(service, metrics)))
            tasks.append(asyncio.create_task(server.serve(sockets=[listener]), name="server"))
        await _until_told(service, tasks)
    finally:
        await client.close()


async def _until_told(service: SchedulerService, tasks: list[asyncio.Task[None]]) -> None:
    """Runs until a signal, then ends in order; a second signal ends at once, and so does a task that fails."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    signalled = asyncio.create_task(_first(told), name="signal")
    try:
        await asyncio.wait({signalled, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        if signalled.done():
            told.clear()
            await _hand_over(service, told, tasks)
    finally:
        ended = [task for task in tasks if task.done()]
        for task in (signalled, *tasks):
            task.cancel()
        await asyncio.gather(signalled, *tasks, return_exceptions=True)
    failures = [error for task in ended if not task.cancelled() and (error := task.exception()) is not None]
    for error in failures:
        log.error("the scheduler has failed", exc_info=error)
    if failures:
        sys.exit(1)


async def _hand_over(service: SchedulerService, told: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    log.info("handing over")
    hurried = asyncio.create_task(_first(told), name="second signal")
    draining = asyncio.create_task(service.drain(), name="hand over")
    await asyncio.wait({hurried, draining, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in (hurried, draining):
        task.cancel()
    _, outcome = await asyncio.gather(hurried, draining, return_exceptions=True)
    if isinstance(outcome, Exception):
        log.error("handing over failed; the Lease runs out by itself", exc_info=outcome)


async def _first(told: asyncio.Event) -> None:
    await told.wait()


def _service(client: KubeClient, setup: Setup, options: ProcessOptions, metrics: SchedulerMetrics) -> SchedulerService:
    timing = Timing(monotonic, random.uniform)

    async def connect() -> KubeClient:
        return await KubeClient.connect(options.kubeconfig, options.context)

    def now() -> datetime:
        return datetime.now(UTC)

    elector = Elector(connect, options.identity, options.namespace, options.timing, lease=options.lease)
    recorder = Recorder(client, setup.name, elector.identity, monotonic, now)

    def longhorn() -> LiveLonghorn:
        cache = ClusterCache(client, options.namespace, timing, now, setup.stale_after)
        return LiveLonghorn(cache, options.options, now)

    scheduler = GenericScheduler(client, setup, timing, elector.leading, recorder, metrics, longhorn)
    return SchedulerService(scheduler, elector, metrics)


class _Quiet(uvicorn.Server):
    """A server that leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _application(service: SchedulerService, metrics: SchedulerMetrics) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz(response: Response) -> dict[str, str]:
        problem = service.problem
        if problem:
            response.status_code = 503
            return {"error": f"not ready: {problem}"}
        return {"status": "ok", "role": "leader" if service.leading else "follower"}

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app
