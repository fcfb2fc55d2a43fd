"""The HTTP side of the controllers: /healthz, /readyz and /metrics; and what a signal does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import structlog
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.disk_schedule.lifecycle import DiskSchedules

log = structlog.get_logger("controllers")


def application(problem: Callable[[], str], registry: CollectorRegistry) -> Starlette:
    """What a kubelet and Prometheus ask. Ready means that this process could reconcile, not that it leads."""

    async def healthz(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        trouble = problem()
        return JSONResponse({"error": trouble}, status_code=503) if trouble else JSONResponse({"status": "ok"})

    async def metrics(_request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)])


class Server(uvicorn.Server):
    """Serves until a signal, then has the controllers end and gives up the Lease; a second signal ends it at once."""

    def __init__(self, app: Starlette, service: DiskSchedules) -> None:
        super().__init__(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, server_header=False))
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn for SIGINT and SIGTERM."""
        if self._draining is not None or self.should_exit:
            super().handle_exit(sig, frame)
            return
        # A signal may come while the loop sleeps; only this way of calling wakes it.
        self._loop.call_soon_threadsafe(self._drain, sig, frame)

    def _drain(self, sig: int, frame: FrameType | None) -> None:
        self._draining = self._loop.create_task(self._service.drain())
        self._draining.add_done_callback(lambda done: self._drained(done, sig, frame))

    def _drained(self, task: asyncio.Task[None], sig: int, frame: FrameType | None) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the Lease was not given up; it runs out by itself", exc_info=error)
        super().handle_exit(sig, frame)


async def serve(service: DiskSchedules, app: Starlette, listener: socket.socket) -> BaseException | None:
    """Serves and reconciles until a signal; why it ended otherwise, None after a signal."""
    server = Server(app, service)

    def ended(_task: asyncio.Task[None]) -> None:
        server.should_exit = True

    running = asyncio.create_task(service.run(), name="service")
    running.add_done_callback(ended)
    try:
        await server.serve(sockets=[listener])
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return None if running.cancelled() else running.exception()
