"""Bodies that are promised, dense, slow or never read: memory stays within the limit and kube-scheduler is answered."""

import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.worlds.abuse import (
    FITTING,
    MEMORY_LIMIT,
    MIB,
    AbusedService,
    abused_service,
    receive_all,
    regular_calls,
    send_until_refused,
)
from tests.worlds.service import db_pod

pytestmark = pytest.mark.e2e

HEAD = b"POST /filter HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"POST /filter HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
TURN = 0.02
POD = json.dumps(db_pod()).encode()


def _dial(stack: ExitStack, service: AbusedService, count: int, source: str = "") -> list[socket.socket]:
    return [stack.enter_context(service.dial(source)) for _ in range(count)]


def test_promises_cost_no_memory(service: AbusedService) -> None:
    """500 connections announce 60 MB each and send one byte."""
    before = service.peak_memory
    with ExitStack() as stack, regular_calls(service) as calls:
        for connection in _dial(stack, service, 500):
            connection.sendall(HEAD % 60_000_000 + b"{")
        assert service.filter() == FITTING
        assert service.peak_memory - before < 32 * MIB
    assert calls.problems == []
    assert calls.answered


@pytest.mark.parametrize(("connections", "sent"), [(12, 1), (50, 4), (20, 40)])
def test_bodies_that_stop_cost_what_they_sent_at_most(service: AbusedService, connections: int, sent: int) -> None:
    """Together they may want more than the limit; those of the caller that holds the most give way to kube-scheduler."""
    before = service.memory
    with ExitStack() as stack, regular_calls(service) as calls:
        # Bodies from kube-scheduler's own address would give way only after a second of silence.
        for connection in _dial(stack, service, connections, "127.0.0.2"):
            send_until_refused(connection, HEAD % (sent * MIB + 1), b" " * MIB, sent * MIB)
        assert service.filter() == FITTING
        assert service.memory - before < connections * sent * MIB * 9 // 8 + 32 * MIB
    assert service.peak_memory < MEMORY_LIMIT
    assert calls.problems == []
    assert calls.answered


@pytest.mark.smoke
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"Pod": %s, "Nodes": {"items": [%s]}}' % (POD, b",".join([b"{}"] * 9_000_000)), id="nodes"),
        pytest.param(b'{"Pod": %s, "NodeNames": [%s]}' % (POD, b",".join([b'""'] * 9_000_000)), id="names"),
        pytest.param(
            b'{"NodeNames": [], "Pod": {"metadata": {"name": "p"}, "spec": {"volumes": [%s]}}}'
            % b",".join([b"{}"] * 9_000_000),
            id="volumes",
        ),
    ],
)
def test_a_dense_body_is_refused_before_it_is_decoded(service: AbusedService, body: bytes) -> None:
    """A byte of it would become twenty of objects."""
    with service.dial() as connection:
        connection.sendall(HEAD % len(body) + body)
        answer = receive_all(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"the request needs " in answer
    assert service.peak_memory < MEMORY_LIMIT


@pytest.mark.smoke
def test_a_body_that_comes_too_slowly_is_refused(service: AbusedService) -> None:
    """The answer is 408, and the connection ends; other callers notice nothing."""
    with regular_calls(service) as calls, service.dial() as connection:
        connection.sendall(HEAD % 1_000_000 + b"{")
        answer = receive_all(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert calls.problems == []


def _in_chunks(size: int, total: int) -> bytes:
    """A body of so many bytes in chunks of one size."""
    return b"%x\r\n%s\r\n" % (size, b" " * size) * (total // size) + b"0\r\n\r\n"


@pytest.mark.parametrize("connections", [10, 100])
@pytest.mark.parametrize("size", [1, 63])
def test_small_chunks_are_refused_in_short_turns(service: AbusedService, connections: int, size: int) -> None:
    """Tens of MB arrive at once; the first 64 KiB of each body are parsed."""
    body = _in_chunks(size, 8 * MIB // connections)
    answers: list[bytes] = []

    def send() -> None:
        with ExitStack() as stack, regular_calls(service) as calls:
            sockets = _dial(stack, service, connections)
            with ThreadPoolExecutor(connections) as threads:
                answers.extend(threads.map(lambda connection: _exchange(connection, body), sockets))
        assert calls.problems == []

    before = service.peak_memory
    longest = service.longest_turn(send, TURN)
    assert longest < TURN
    assert service.peak_memory - before < 64 * MIB
    assert [answer for answer in answers if answer and b"too small: less than 64 bytes on average" not in answer] == []
    assert any(answers)


def test_chunks_of_64_bytes_are_taken(service: AbusedService) -> None:
    """The body is read to its end."""
    with service.dial() as connection:
        assert b"not JSON" in _exchange(connection, _in_chunks(64, 4 * MIB))


def _exchange(connection: socket.socket, body: bytes) -> bytes:
    """The answer to a body in chunks; nothing if the connection was reset."""
    send_until_refused(connection, CHUNKED, body, len(body))
    return receive_all(connection)


def test_a_body_of_small_pieces_costs_time_by_its_size(service: AbusedService) -> None:
    """Twice as much takes twice as long, not four times: 32 MiB take less than three times as long as 16 MiB."""
    seconds = []
    for size in (16 * MIB, 32 * MIB):
        with service.dial() as connection:
            before = service.cpu_seconds
            _exchange(connection, _in_chunks(128, size))
            seconds.append(service.cpu_seconds - before)
    assert seconds[1] < 3 * seconds[0], seconds


def test_an_answer_that_is_not_read_is_cut_off(service: AbusedService) -> None:
    """Then its memory is free again."""
    node = b'{"metadata":{"name":"n%d"},"x":"' + b"y" * MIB + b'"}'
    pod = json.dumps({"metadata": {"name": "p"}, "spec": {}}).encode()
    body = b'{"Pod":%s,"Nodes":{"items":[%s]}}' % (pod, b",".join(node % number for number in range(40)))
    with service.dial() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(HEAD % len(body) + body)
        while service.metric("request_memory_bytes") > 0:
            assert service.process.poll() is None
    assert service.metric('connections_ended_total{reason="answer"}') == 1
    assert service.peak_memory < MEMORY_LIMIT


def test_a_silent_body_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """SIGTERM ends the process in order, well before Kubernetes would kill it."""
    with abused_service(tmp_path) as service, service.dial() as connection:
        connection.sendall(HEAD % 1_000_000 + b"{")
        service.get("/healthz")
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(timeout=15) == 0
        assert b"Cancel " not in service.log.read_bytes()
