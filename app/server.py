"""uvicorn, set up for kube-scheduler: one process, and connections that outlive its idle ones."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import uvicorn
import uvloop
from fastapi import FastAPI

# Go's HTTP client keeps idle connections for 90 s and does not repeat a POST that meets a closing server.
KEEP_ALIVE_SECONDS: Final = 120
SHUTDOWN_SECONDS: Final = 20


def config(app: FastAPI) -> uvicorn.Config:
    """How the application is served."""
    return uvicorn.Config(
        app,
        http="httptools",
        loop="uvloop",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def serve_snapshot(app: FastAPI, listener: socket.socket, beside: Callable[[], Awaitable[None]] | None = None) -> None:
    """Serves until a signal ends it; what goes on `beside` ends with it."""
    # What was loaded lives as long as the process; the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(app, listener, beside))


async def _serve(app: FastAPI, listener: socket.socket, beside: Callable[[], Awaitable[None]] | None) -> None:
    server = uvicorn.Server(config(app))
    going_on = asyncio.ensure_future(beside()) if beside else None
    try:
        await server.serve(sockets=[listener])
    finally:
        if going_on is not None:
            going_on.cancel()
            await asyncio.gather(going_on, return_exceptions=True)


def exit_quietly() -> None:
    """Uvicorn raises the signal that stopped it once more after a clean shutdown; that is no failure."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
