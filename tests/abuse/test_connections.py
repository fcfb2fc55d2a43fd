"""Connections without end: the process keeps some for whoever comes next."""

import resource
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.runtime.connections import MAX_CONNECTIONS
from tests.worlds.abuse import MIB, AbusedService, abused_service, regular_calls

pytestmark = pytest.mark.e2e

FLOOD = 900


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """The test holds as many connections as it wants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted if hard < 0 else min(wanted, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"", id="silent"),
        pytest.param(b"GET / HTTP/1.1\r\n", id="head"),
        pytest.param(b"POST /filter HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", id="body"),
    ],
)
def test_a_new_connection_always_has_room(service: AbusedService, first: bytes) -> None:
    """The oldest of the caller with the most gives way."""
    before = service.memory
    ended = service.metric('connections_ended_total{reason="limit"}')
    with ExitStack() as stack, regular_calls(service) as calls:
        for _ in range(FLOOD):
            stack.enter_context(service.dial()).sendall(first)
        files = len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))
        assert files < MAX_CONNECTIONS + 64
        service.get("/healthz")
        assert service.memory - before < 32 * MIB
    assert service.metric('connections_ended_total{reason="limit"}') - ended >= FLOOD - MAX_CONNECTIONS
    assert calls.problems == []


def test_a_caller_with_few_connections_keeps_them(service: AbusedService) -> None:
    """Another address opens as many as it can; kube-scheduler's connection, older than all, stays."""
    with ExitStack() as stack:
        scheduler = stack.enter_context(service.dial("127.0.0.2"))
        for _ in range(FLOOD):
            stack.enter_context(service.dial())
        scheduler.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert scheduler.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_a_shortage_of_files_is_logged_and_counted(tmp_path: Path) -> None:
    """The process goes on answering."""

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))

    with abused_service(tmp_path, before=few_files) as service, ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(service.dial())
        while not service.metric("file_descriptors_exhausted_total"):
            assert service.process.poll() is None
        assert service.log.read_text().count("file descriptors are running out") == 1
        service.get("/healthz")
