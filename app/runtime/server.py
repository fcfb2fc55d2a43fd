"""Serves HTTP next to a long-running service, until a signal. The first signal drains the service and then stops the
servers, the second ends the drain, and SIGINT after the first signal also cuts off open requests.

uvicorn is set up for kube-scheduler: one process, and connections that outlive its idle ones.

A TLS connection counts as a connection from its first byte on. asyncio's own servers give a connection
to its protocol after the handshake. Callers that never finish a handshake would then be without any limit.

A name of another site may lead a browser to a loopback address (DNS rebinding), and then its scripts read every answer. So only
the service's own names are answered (`BrowserRules`). A script cannot give the request another Host, or a header that begins with Sec-.
"""

import asyncio
import contextlib
import functools
import gc
import ipaddress
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Protocol, cast

import structlog
import uvicorn
import uvloop
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import escaping, settings
from app.runtime import http_protocol, wait_at_most
from app.runtime.connections import CallerLog, Connections, ServerMetrics, owner_of
from scheduler_core.structs import Struct

# Of the 30 s that a pod has to end. The rest is for the record of offers and the release of the Lease.
SHUTDOWN_SECONDS = 20
_DATE_SECONDS = 1.0


class HttpServer(Struct, frozen=True):
    """An application, and where it listens."""

    app: FastAPI
    listener: socket.socket
    # None for plain HTTP; otherwise returns what a new connection uses. Without a certificate no handshake succeeds.
    tls: Callable[[], ssl.SSLContext] | None = None
    # Returns whether idle connections are kept now; otherwise they end within about a second.
    keeps_idle: Callable[[], bool] = lambda: True
    hosts: Collection[str] | None = None  # as `BrowserRules`


class Service(Protocol):
    """What runs next to the HTTP servers."""

    async def run(self) -> None:
        """Runs until cancelled; its end, or an error, ends the process."""

    async def drain(self) -> None:
        """Finishes what was accepted, bounded, before the process ends."""

    def log_failure(self, error: BaseException) -> None:
        """Logs the error that ended the service or the server."""

    def log_drain_failure(self, error: BaseException) -> None:
        """Logs an error in `drain`."""


def run_process(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def exit_quietly() -> None:
    """Lets SIGINT and SIGTERM end the process with code 0 until `serve` handles them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))


def freeze_heap() -> None:
    # What was read of a large cluster mostly stays, and the collector would look at it again and again, 0.1 s each time.
    gc.collect()
    gc.freeze()


class _Server(uvicorn.Server):
    """A server that leaves signals to `serve`, and may speak TLS."""

    def __init__(self, server: HttpServer, connections: Connections, turns: http_protocol.ParserTurns) -> None:
        protocol = functools.partial(http_protocol.LimitedProtocol, connections, turns, server.keeps_idle)
        config = uvicorn.Config(
            BrowserRules(server.app, server.hosts),
            # uvicorn only calls it, with the arguments that follow.
            http=cast("type[asyncio.Protocol]", protocol),
            ws="none",
            loop="uvloop",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=http_protocol.KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        super().__init__(config)
        self.listener = server.listener
        self._tls = server.tls
        self._connections = connections
        self._ended = asyncio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._ended.set()

    async def main_loop(self) -> None:
        """Keeps the header Date current until `end`."""
        # uvicorn's own loop wakes up ten times a second.
        while not await self.on_tick(0):
            await wait_at_most(self._ended, _DATE_SECONDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen."""
        if self._tls is None:
            await super().startup(sockets)
            return
        await self.lifespan.startup()
        listener = TlsListener(self.listener, self._tls, self._make_protocol, self._connections)
        # uvicorn only closes them, and waits until they are closed.
        self.servers = [cast("asyncio.base_events.Server", listener)]
        self.started = True

    def _make_protocol(self) -> asyncio.Protocol:
        make = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


async def serve(service: Service, servers: Sequence[HttpServer]) -> None:
    """Runs a service and its HTTP servers until a signal.

    The signal drains the service; a second one cuts the drain short. Then all servers stop: they still answer the requests that they
    accepted, for at most `SHUTDOWN_SECONDS`, unless a signal after the first is SIGINT (uvicorn's own rule). If the service or a server
    ends by itself, there is no drain.

    If one of them ended with an error, the process exits with code 1. The limits of connections hold for all servers together; their
    metrics go to the registry that `install_metrics` gave the first application.
    """
    loop = asyncio.get_running_loop()
    signals = _Signals()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.note, number)
    running = asyncio.create_task(service.run(), name="service")
    tasks: set[asyncio.Task[None]] = {running}
    listening: list[_Server] = []
    if servers:
        connections = Connections(ServerMetrics(servers[0].app.state.registry))
        turns = http_protocol.ParserTurns()
        listening = [_Server(server, connections, turns) for server in servers]
        tasks.add(asyncio.create_task(_serve_connections(listening, connections), name="servers"))
    try:
        await _wait_for(signals.first, tasks)
        if signals.first.is_set() and not any(task.done() for task in tasks):
            draining = asyncio.create_task(service.drain(), name="drain")
            await _wait_for(signals.second, {draining, *tasks})
            draining.cancel()
            [outcome] = await asyncio.gather(draining, return_exceptions=True)
            if isinstance(outcome, Exception):
                service.log_drain_failure(outcome)
        if listening:
            for server in listening:
                server.end()
            serving = tasks - {running}
            await _wait_for(signals.interrupt, serving)
            for server in listening:
                server.force_exit = signals.interrupt.is_set()
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


async def _serve_connections(servers: Sequence[_Server], connections: Connections) -> None:
    """Serves until every server has stopped, which the end of one causes."""
    watching = asyncio.create_task(connections.watch(), name="connections")
    serving = [asyncio.create_task(server.serve([server.listener]), name="server") for server in servers]
    try:
        await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
        for server in servers:
            server.end()
        await asyncio.gather(*serving)
    finally:
        for task in (watching, *serving):
            task.cancel()
        await asyncio.gather(watching, *serving, return_exceptions=True)


class _Signals:
    """The signals that ask the process to end."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.interrupt = asyncio.Event()  # SIGINT, after the first

    def note(self, number: int) -> None:
        if not self.first.is_set():
            self.first.set()
            return
        self.second.set()
        if number == signal.SIGINT:
            self.interrupt.set()


async def _wait_for(event: asyncio.Event, tasks: set[asyncio.Task[None]]) -> None:
    """Returns once the event is set, or as soon as one of the tasks ends."""
    waiting = asyncio.create_task(event.wait(), name="signal")
    try:
        await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


log = structlog.get_logger("server")

# Kubernetes waits for a webhook for a second.
HANDSHAKE_SECONDS = 5.0
# A peer that does not confirm the end of a connection is not waited for any longer.
_SHUTDOWN_SECONDS = 2.0
# As asyncio, after an error such as too many open files.
_ACCEPT_RETRY_SECONDS = 1.0


class _Handshake:
    """A connection before the end of its handshake."""

    answering = False

    def __init__(self, accepted: socket.socket, owner: str) -> None:
        self.owner = owner
        self.aborted = False  # whether the connection was ended for another one
        self._socket = accepted

    def expiry(self, now: float) -> str:  # noqa: ARG002 # as Connection
        # The handshake has a time-out of its own.
        return ""

    def abort(self) -> None:
        """Ends the connection; the event loop owns the socket, and closes it."""
        self.aborted = True
        # The peer may have gone.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class TlsListener:
    """Accepts connections on one socket until `close`.

    Args:
        context: returns what a new connection uses; another one has another certificate
        make_protocol: returns the protocol of a connection, whose handshake is finished
    """

    def __init__(
        self,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext],
        make_protocol: Callable[[], asyncio.Protocol],
        connections: Connections,
    ) -> None:
        listener.setblocking(False)  # noqa: FBT003 # the library's name
        self._listener = listener
        self._context = context
        self._make_protocol = make_protocol
        self._connections = connections
        self._handshakes: dict[asyncio.Task[None], _Handshake] = {}
        self._accepting = asyncio.create_task(self._accept(), name="accepting TLS connections")

    def close(self) -> None:
        """Accepts no more connections, and ends those that are still in their handshake."""
        self._accepting.cancel()
        for handshake in self._handshakes.values():
            handshake.abort()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._handshakes, self._accepting, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(_ACCEPT_RETRY_SECONDS)
                continue
            handshake = _Handshake(accepted, owner_of(address[0]))
            task = asyncio.create_task(self._shake_hands(accepted, handshake), name="TLS handshake")
            self._handshakes[task] = handshake
            task.add_done_callback(self._handshakes.pop)
            self._connections.add(handshake)

    async def _shake_hands(self, accepted: socket.socket, handshake: _Handshake) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._make_protocol,
                accepted,
                ssl=self._context(),
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        except OSError as error:
            # No certificate, no TLS at the other end, too slow, or gone.
            if not handshake.aborted:
                self._connections.metrics.ended.count("handshake")
                # Callers decide how often this happens, so it is counted, and a line only for an administrator who looks for it.
                reason = error.reason if isinstance(error, ssl.SSLError) else ""
                log.debug("TLS handshake failed", client=handshake.owner, reason=reason or type(error).__name__)
        finally:
            self._connections.remove(handshake)


caller_log = CallerLog(structlog.get_logger("http"))

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_LOCALHOST = "localhost"


class BrowserRules:
    """An application whose answers only its own pages can read, and which answers HEAD as GET.

    Args:
        hosts: names in Host that are answered, besides localhost and IP addresses; None: every one, for answers that name no object
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None = None) -> None:
        self._app = app
        names = () if hosts is None else (_canonical(host) for host in hosts if not _is_address(host))
        self._hosts = None if hosts is None else {_LOCALHOST, *names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host = next((host for host in headers.getlist("host") if not self._answers_to(host)), None)
        if host is not None and settings.NO_BROWSER not in headers:
            await self._refuse(host, scope, receive, send)
            return
        if scope["method"] not in {"GET", "HEAD"}:
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer.setdefault(name, value)
            await send(message)

        # The server leaves out the body of an answer to HEAD.
        await self._app({**scope, "method": "GET"}, receive, send_with_headers)

    def _answers_to(self, host: str) -> bool:
        if self._hosts is None:
            return True
        name = _canonical(host)
        return name in self._hosts or _is_address(name)

    async def _refuse(self, host: str, scope: Scope, receive: Receive, send: Send) -> None:
        text = f"Host is {escaping.escape_invisible(host)}, which is no name of this service; see serve --allowed-host"
        client = scope.get("client")
        caller_log.warning(
            "refused request", client=owner_of(client[0]) if client else "", path=scope["path"], status=421, error=text
        )
        # The unread body must not be read as the next request.
        answer = JSONResponse({"error": text}, HTTPStatus.MISDIRECTED_REQUEST, headers={"Connection": "close"})
        await answer(scope, receive, send)


def _canonical(host: str) -> str:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.removesuffix(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
