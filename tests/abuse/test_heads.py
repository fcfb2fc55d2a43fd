"""Heads, trailers and chunk extensions without end: each ends its own connection, and costs next to nothing."""

from pathlib import Path

import pytest

from tests.worlds import abuse

pytestmark = pytest.mark.e2e

MOST = 48 * abuse.MIB
MEMORY = 24 * abuse.MIB
TURN = 0.02
CHUNKED = b"POST /filter HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "piece", "status"),
    [
        pytest.param(b"GET /", b"x" * 65536, 431, id="request line"),
        pytest.param(b"GET / HTTP/1.1\r\n", b"".join(b"h%04d: v\r\n" % n for n in range(5000)), 431, id="many headers"),
        pytest.param(b"GET / HTTP/1.1\r\n", b"h: " + b"v" * 4000 + b"\r\n", 431, id="large headers"),
        pytest.param(b"GET / HTTP/1.1\r\nh: ", b"v" * 65536, 431, id="one header value"),
        pytest.param(b"GET / HTTP/1.1\r\n", b"n" * 65536, 431, id="one header name"),
        pytest.param(CHUNKED + b"0\r\n", b"t: " + b"v" * 4000 + b"\r\n", 431, id="trailers"),
        pytest.param(CHUNKED + b"0\r\nt: ", b"v" * 65536, 400, id="one trailer"),
        pytest.param(CHUNKED + b"1;e=", b"v" * 65536, 400, id="chunk extension"),
        pytest.param(b"", b"GET /healthz HTTP/1.1\r\n\r\n" * 5000, 400, id="pipelined requests"),
    ],
)
def test_what_has_no_end_is_refused(service: abuse.AbusedService, first: bytes, piece: bytes, status: int) -> None:
    """The connection ends soon, with an answer unless it was reset; memory does not grow and calls are answered."""
    before = service.peak_memory

    def send() -> None:
        with abuse.regular_calls(service) as calls, service.dial() as connection:
            sent = abuse.send_until_refused(connection, first, piece, MOST)
            answer = abuse.receive(connection)
        assert sent < MOST
        assert not answer or answer.startswith((b"HTTP/1.1 %d " % status, b"HTTP/1.1 200 "))
        assert calls.problems == []

    assert service.longest_turn(send, TURN) < TURN
    assert service.peak_memory - before < MEMORY


def test_a_head_below_the_limit_is_served(service: abuse.AbusedService) -> None:
    """Its size is the limit, less a little."""
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nh: " + b"v" * 60_000 + b"\r\n\r\n"
    with service.dial() as connection:
        for start in range(0, len(head), 7000):
            connection.sendall(head[start : start + 7000])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


@pytest.mark.smoke
def test_a_head_over_the_limit_is_answered_with_431(service: abuse.AbusedService) -> None:
    """The answer says why, and the connection ends."""
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nh: " + b"v" * 66_000 + b"\r\n\r\n"
    with service.dial() as connection:
        connection.sendall(head)
        answer = abuse.receive_all(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"connection: close" in answer
    assert b"have more than 65536 bytes" in answer


def test_an_unfinished_head_is_cut_off(service: abuse.AbusedService) -> None:
    """However slowly its bytes come; a connection without a request stays."""
    before = service.metric('connections_ended_total{reason="headers"}')
    with service.dial() as idle, service.dial() as slow:
        slow.settimeout(0.5)
        slow.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(60):
            try:
                slow.sendall(b"h")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the connection stays open")
        idle.sendall(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert idle.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    assert service.metric('connections_ended_total{reason="headers"}') == before + 1


def test_nothing_of_it_is_left(service: abuse.AbusedService) -> None:
    """The process answers, and has its files back."""
    assert Path(f"/proc/{service.process.pid}").exists()
    assert service.metric("request_memory_bytes") == 0
