"""Serves HTTP next to a long-running service, until a signal.

The first signal drains the service and then stops the server, the second ends the drain, and SIGINT after the first signal also cuts off
open requests.

uvicorn is set up for kube-scheduler: one process, and connections that outlive its idle ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, Protocol, cast

import uvicorn
import uvloop
from fastapi import FastAPI

from app.runtime.connections import Connections, ServerMetrics
from app.runtime.http_protocol import KEEP_ALIVE_SECONDS, LimitedProtocol

SHUTDOWN_SECONDS: Final = 20


class Service(Protocol):
    """What runs next to the HTTP server."""

    async def run(self) -> None:
        """Runs until cancelled; its end, or an error, ends the process."""

    async def drain(self) -> None:
        """Finishes what was accepted, bounded, before the process ends."""

    def log_failure(self, error: BaseException) -> None:
        """Logs the error that ended the service or the server."""

    def log_drain_failure(self, error: BaseException) -> None:
        """Logs an error in `drain`."""


def run_process(main: Coroutine[Any, Any, None]) -> None:
    """Runs a program's main coroutine on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def exit_quietly() -> None:
    """Lets SIGINT and SIGTERM end the process with code 0 until `serve` handles them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))


def freeze_heap() -> None:
    """Exempts every existing object from garbage collection.

    What was read of a large cluster mostly stays, and the collector would look at it again and again, 0.1 s each time.
    """
    gc.collect()
    gc.freeze()


def server_config(app: FastAPI, connections: Connections) -> uvicorn.Config:
    """Returns how an application is served."""
    # uvicorn only calls it, with the arguments that follow.
    protocol = cast("type[asyncio.Protocol]", functools.partial(LimitedProtocol, connections))
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        loop="uvloop",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


class _Server(uvicorn.Server):
    """A server that leaves signals to `serve`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(service: Service, app: FastAPI | None, listener: socket.socket | None) -> None:
    """Runs a service and its HTTP server until a signal.

    The signal drains the service; a second one cuts the drain short. Then the server stops: it still answers the requests that it accepted,
    for at most `SHUTDOWN_SECONDS`, unless a signal after the first is SIGINT (uvicorn's own rule). If the service or the server ends by
    itself, there is no drain.

    If one of the two ended with an error, the process exits with code 1. Without an application or a listener there is no HTTP server.
    The server's metrics go to the registry that `install_metrics` gave the application.
    """
    loop = asyncio.get_running_loop()
    signals = _Signals()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.count, number)
    running = asyncio.create_task(service.run(), name="service")
    server: _Server | None = None
    tasks: set[asyncio.Task[None]] = {running}
    if app is not None and listener is not None:
        connections = Connections(ServerMetrics(app.state.registry))
        server = _Server(server_config(app, connections))
        tasks.add(asyncio.create_task(_serve_connections(server, connections, listener), name="server"))
    try:
        await signals.wait_for(1, tasks)
        if signals.counted and not any(task.done() for task in tasks):
            await _drain(service, signals, tasks)
        if server is not None:
            server.should_exit = True
            serving = tasks - {running}
            await signals.wait_for_interrupt(serving)
            server.force_exit = signals.interrupted
            await asyncio.wait(serving)
    finally:
        ended = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    errors = [error for task in ended if not task.cancelled() and (error := task.exception()) is not None]
    for error in errors:
        service.log_failure(error)
    if errors:
        sys.exit(1)


async def _serve_connections(server: _Server, connections: Connections, listener: socket.socket) -> None:
    watching = asyncio.create_task(connections.watch(), name="connections")
    try:
        await server.serve(sockets=[listener])
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _drain(service: Service, signals: _Signals, tasks: set[asyncio.Task[None]]) -> None:
    """Drains until that is done, a second signal comes, or a task ends."""
    draining = asyncio.create_task(service.drain(), name="drain")
    await signals.wait_for(2, {draining, *tasks})
    draining.cancel()
    [outcome] = await asyncio.gather(draining, return_exceptions=True)
    if isinstance(outcome, Exception):
        service.log_drain_failure(outcome)


class _Signals:
    """Counts the signals that ask the process to end.

    Attributes:
        counted: how many there were
        interrupted: whether one after the first was SIGINT
    """

    def __init__(self) -> None:
        self.counted = 0
        self.interrupted = False
        self._changed = asyncio.Event()

    def count(self, number: int) -> None:
        """Counts one signal."""
        self.interrupted = self.interrupted or (self.counted > 0 and number == signal.SIGINT)
        self.counted += 1
        self._changed.set()

    async def wait_for(self, signals: int, tasks: set[asyncio.Task[None]]) -> None:
        """Returns after so many signals, or as soon as one of the tasks ends."""
        await self._wait_until(lambda: self.counted >= signals, tasks)

    async def wait_for_interrupt(self, tasks: set[asyncio.Task[None]]) -> None:
        """Returns once `interrupted`, or as soon as one of the tasks ends."""
        await self._wait_until(lambda: self.interrupted, tasks)

    async def _wait_until(self, condition: Callable[[], bool], tasks: set[asyncio.Task[None]]) -> None:
        waiting = asyncio.create_task(self._wait(condition), name="signal")
        try:
            await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()
