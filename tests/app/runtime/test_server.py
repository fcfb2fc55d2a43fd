"""`serve` with two servers on real sockets, one of them with TLS: handshakes, limits, and the order in which everything ends."""

import asyncio
import functools
import http.client
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from app.runtime import connections, server, wait_at_most
from app.runtime.probes import PREFIX
from app.runtime.server import HttpServer, serve
from devcluster.pki import CertificateAuthority
from tests.worlds.fake_api import until

LIMIT = 16
# What an event loop opens when it needs it.
FEW_FILES = 4


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class DrainingService:
    """A service that drains when a test says so."""

    def __init__(self) -> None:
        self.story: list[str] = []  # what happened, in order
        self.drained = asyncio.Event()
        self.errors: list[BaseException] = []

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def drain(self) -> None:
        self.story.append("drain begins")
        await self.drained.wait()
        self.story.append("drain ends")

    def log_failure(self, error: BaseException) -> None:
        self.errors.append(error)

    def log_drain_failure(self, error: BaseException) -> None:
        self.errors.append(error)


class World:
    """Two servers of one process: plain HTTP, and HTTPS."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = CollectorRegistry()
        self.app = FastAPI()
        self.app.state.registry = self.registry
        self.app.add_api_route("/hello", lambda: "hello")
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # of the server with TLS; without a certificate at first
        self.trust = ssl.create_default_context()  # what a client verifies certificates with
        self.keeps_idle = True  # whether the server with TLS keeps idle connections
        self.service = DrainingService()
        self.listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.plain_port, self.tls_port = (listener.getsockname()[1] for listener in self.listeners)

    serving: asyncio.Task[None]

    def issue(self, name: str) -> None:
        authority = CertificateAuthority.create(self.folder / name, f"authority of {name}")
        pair = authority.server(name)
        self.context.load_cert_chain(pair.certificate, pair.key)
        self.trust.load_verify_locations(authority.bundle)

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("localhost", self.tls_port, timeout=10, context=self.trust)

    async def get(self, connection: http.client.HTTPConnection) -> bytes:
        """GETs /hello on a connection, in another thread."""

        def call() -> bytes:
            connection.request("GET", "/hello")
            return connection.getresponse().read()

        return await asyncio.to_thread(call)

    async def get_by_tls(self) -> bytes:
        """GETs /hello on a new connection with TLS."""
        connection = self.connect()
        try:
            return await self.get(connection)
        finally:
            connection.close()

    async def get_plain(self) -> bytes:
        """GETs /hello on a new connection without TLS."""
        connection = http.client.HTTPConnection("127.0.0.1", self.plain_port, timeout=10)
        try:
            return await self.get(connection)
        finally:
            connection.close()

    async def end(self) -> None:
        """Ends the servers, which nothing but a signal may have ended."""
        self.service.drained.set()
        if not self.service.story:
            assert not self.serving.done()
            signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(self.serving, 10)
        assert self.service.errors == []

    def ended(self, reason: str) -> float:
        return self.registry.get_sample_value(f"{PREFIX}_connections_ended_total", {"reason": reason}) or 0.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The product's event loop."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A world whose servers run, ended by a signal unless the test has sent one."""
    world = World(tmp_path)
    plain, tls = world.listeners
    servers = [
        HttpServer(world.app, plain),
        HttpServer(world.app, tls, lambda: world.context, lambda: world.keeps_idle),
    ]
    world.serving = asyncio.create_task(serve(world.service, servers))
    await world.get_plain()
    yield world
    await world.end()


@pytest.fixture
def few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections.Connections.__init__, "__defaults__", (LIMIT,))


async def test_one_process_serves_with_and_without_tls(world: World) -> None:
    world.issue("first")
    assert await world.get_by_tls() == await world.get_plain() == b'"hello"'


async def test_new_connections_get_the_new_certificate(world: World) -> None:
    world.issue("first")
    with ExitStack() as stack:
        first, second = (stack.enter_context(closing(world.connect())) for _ in range(2))
        await world.get(first)
        world.issue("second")
        await world.get(second)
        assert [_subject(first), _subject(second)] == ["first", "second"]
        assert await world.get(first) == b'"hello"'


async def test_idle_connections_end_once_they_are_not_kept(world: World) -> None:
    """Until then a connection goes on; the other server's connections always do."""
    world.issue("first")
    plain = http.client.HTTPConnection("127.0.0.1", world.plain_port, timeout=10)
    with closing(world.connect()) as idle, closing(plain) as other:
        await world.get(other)
        await world.get(idle)
        await world.get(idle)
        world.keeps_idle = False
        assert await asyncio.to_thread(idle.sock.recv, 1) == b""
        await world.get(other)
    assert world.ended("idle") == 1


def _subject(connection: http.client.HTTPSConnection) -> str:
    assert isinstance(connection.sock, ssl.SSLSocket)
    certificate = connection.sock.getpeercert()
    assert certificate is not None
    subject: Any = certificate["subject"]
    return str(subject[0][0][1])


async def test_without_a_certificate_no_handshake_succeeds(world: World) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await world.get_by_tls()
    assert await world.get_plain() == b'"hello"'
    assert world.ended("handshake") == 1
    world.issue("first")
    assert await world.get_by_tls() == b'"hello"'


async def test_a_caller_without_tls_gets_no_answer(world: World) -> None:
    world.issue("first")
    with (
        capture_logs() as lines,
        closing(http.client.HTTPConnection("127.0.0.1", world.tls_port, timeout=10)) as connection,
    ):
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            await world.get(connection)
        await until("the count", lambda: world.ended("handshake") == 1)
    (line,) = [entry for entry in lines if entry["event"] == "TLS handshake failed"]
    assert (line["log_level"], line["reason"]) == ("debug", "HTTP_REQUEST")


async def test_a_handshake_that_does_not_end_is_cut_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.2)
    world.issue("first")
    with socket.create_connection(("127.0.0.1", world.tls_port), timeout=10) as silent:
        assert await asyncio.to_thread(silent.recv, 1) == b""
    assert world.ended("handshake") == 1


@pytest.mark.usefixtures("few_connections")
async def test_silent_callers_leave_room_for_others_on_both_ports(world: World) -> None:
    world.issue("first")
    files = open_files()
    with ExitStack() as stack:
        for _ in range(3 * LIMIT):
            stack.enter_context(socket.create_connection(("127.0.0.1", world.tls_port), timeout=10))
        await until("the limit", lambda: world.ended("limit") == 2 * LIMIT)
        assert await world.get_by_tls() == await world.get_plain() == b'"hello"'
        # The process has the clients' ends open, too.
        await until("the sockets' end", lambda: open_files() <= files + 4 * LIMIT + FEW_FILES)
    assert world.ended("handshake") == 0


async def test_a_caller_that_hangs_up_in_its_handshake_leaves_nothing_open(world: World) -> None:
    world.issue("first")
    files = open_files()
    for _ in range(20):
        socket.create_connection(("127.0.0.1", world.tls_port)).close()
    await until("the counts", lambda: world.ended("handshake") == 20)
    await until("the sockets' end", lambda: open_files() <= files + FEW_FILES)
    assert world.ended("handshake") == 20


async def test_both_servers_answer_until_the_service_is_drained(world: World) -> None:
    world.issue("first")
    signal.raise_signal(signal.SIGTERM)
    await until("the drain", lambda: world.service.story)
    assert await world.get_by_tls() == await world.get_plain() == b'"hello"'
    world.service.drained.set()
    for port in (world.plain_port, world.tls_port):
        await until("the port's end", functools.partial(_refuses, port))
    assert world.service.story == ["drain begins", "drain ends"]


@pytest.fixture
def in_time(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each wait of a server for its end was ended by that."""
    monkeypatch.setattr(server, "_DATE_SECONDS", 3.0)
    waits: list[bool] = []

    async def wait(event: asyncio.Event, seconds: float | None) -> bool:
        waits.append(await wait_at_most(event, seconds))
        return waits[-1]

    monkeypatch.setattr(server, "wait_at_most", wait)
    return waits


async def test_a_server_that_is_to_end_does_not_wait_for_its_next_wake_up(in_time: list[bool], world: World) -> None:
    await world.end()
    assert in_time[-2:] == [True, True]


async def test_answers_have_the_current_date(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_DATE_SECONDS", 0.1)
    url = f"http://127.0.0.1:{world.plain_port}/hello"
    dates: set[str] = set()
    async with asyncio.timeout(10):
        while len(dates) < 2:
            dates.add((await asyncio.to_thread(httpx.get, url, trust_env=False)).headers["date"])
            await asyncio.sleep(0.1)


def _refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False
