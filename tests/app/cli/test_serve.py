"""`longhorn-extender serve` as a whole process: connections, limits, signals and start-up."""

import json
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from tests.worlds.service import EXTENDER, SnapshotProcess, by_names, by_nodes, db_pod, serve_snapshot, small_cluster

pytestmark = pytest.mark.e2e

REQUEST = json.dumps(by_names(db_pod())).encode()
FITTING = ["node-1", "node-3"]
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SnapshotProcess]:
    with serve_snapshot(tmp_path_factory.mktemp("serve"), "--max-body", "1Mi", "--log-format", "json") as service:
        yield service


def _exchange(service: SnapshotProcess, *requests: bytes) -> bytes:
    """Sends raw requests over one connection, the last of which closes it; returns all answers."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        for request in requests:
            connection.sendall(request)
        received = b""
        while chunk := connection.recv(1 << 16):
            received += chunk
    return received


def _request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


CLOSE = "Connection: close"


@pytest.mark.parametrize(
    ("bad", "status"),
    [
        pytest.param(_request("POST", "/filter", b"{"), 400, id="malformed JSON"),
        pytest.param(_request("POST", "/filter"), 400, id="empty body"),
        pytest.param(_request("POST", "/nothing", REQUEST), 404, id="unknown path with a body"),
        pytest.param(_request("POST", "/healthz", REQUEST), 405, id="wrong method with a body"),
        pytest.param(_request("POST", "/filter", b"[" * 500_000), 400, id="deep nesting"),
        pytest.param(_request("POST", "/filter", b"\xff" * 1000), 400, id="no UTF-8"),
    ],
)
def test_a_connection_stays_open_after_a_bad_request(service: SnapshotProcess, bad: bytes, status: int) -> None:
    good = _request("POST", "/filter", REQUEST, CLOSE)
    answers = _exchange(service, bad, good).split(b"HTTP/1.1 ")[1:]
    assert [int(answer[:3]) for answer in answers] == [status, 200]
    assert b'{"error":"' in answers[0]
    assert json.loads(answers[1].partition(b"\r\n\r\n")[2])["NodeNames"] == FITTING


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9504", 200),
        ("longhorn-scheduler-extender.longhorn-system.svc", 200),
        ("longhorn-scheduler-extender-placement-guard.longhorn-system.svc", 200),
        ("evil.example", 421),
    ],
)
def test_a_caller_uses_one_of_the_services_names(service: SnapshotProcess, host: str, status: int) -> None:
    request = f"GET /state HTTP/1.1\r\nHost: {host}\r\n{CLOSE}\r\n\r\n".encode()
    assert _exchange(service, request).startswith(b"HTTP/1.1 %d " % status)


def test_head_has_no_body(service: SnapshotProcess) -> None:
    head, _, body = _exchange(service, _request("HEAD", "/", b"", CLOSE)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert (b"x-frame-options: DENY" in head, body) == (True, b"")


def test_a_connection_serves_many_requests_and_large_bodies(service: SnapshotProcess) -> None:
    large = by_names(db_pod(annotations={"text": "x" * 900_000}))
    connection = service.connect()
    for request in [by_names(db_pod()), by_nodes(db_pod()), large] * 3:
        connection.request("POST", "/filter", json.dumps(request))
        answer = json.loads(connection.getresponse().read())
        assert (answer["NodeNames"] or [node["metadata"]["name"] for node in answer["Nodes"]["items"]]) == FITTING
    connection.close()


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([REQUEST], id="one chunk"),
        pytest.param([REQUEST[:1], REQUEST[1:100], REQUEST[100:]], id="three chunks"),
        pytest.param([bytes([byte]) for byte in REQUEST], id="a chunk a byte"),
    ],
)
def test_a_chunked_body_is_read(service: SnapshotProcess, pieces: list[bytes]) -> None:
    """A body may have no announced length."""
    connection = service.connect()
    connection.request("POST", "/filter", iter(pieces), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    assert json.loads(connection.getresponse().read())["NodeNames"] == FITTING
    connection.close()


CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"


@pytest.mark.parametrize(
    ("header", "body"),
    [
        pytest.param("Content-Length: 99999999999", b"", id="announced"),
        pytest.param("Transfer-Encoding: chunked", CHUNK * 16 + b"1\r\ny", id="chunked, one byte too many"),
    ],
)
def test_a_body_over_the_limit_ends_the_connection(service: SnapshotProcess, header: str, body: bytes) -> None:
    """The rest of the body could be read as the next request; a new connection works."""
    answer = _exchange(service, f"POST /filter HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n".encode() + body)
    head, _, text = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in head.lower()
    assert json.loads(text) == {"error": f"the body is larger than {LIMIT} bytes; see serve --max-body"}
    assert b"200 OK" in _exchange(service, _request("POST", "/filter", REQUEST, CLOSE))


def test_a_caller_that_hangs_up_does_not_affect_others(service: SnapshotProcess) -> None:
    with socket.create_connection(("127.0.0.1", service.port)) as connection:
        connection.sendall(_request("POST", "/filter", REQUEST)[:-10])
    assert b"200 OK" in _exchange(service, _request("POST", "/filter", REQUEST, CLOSE))


@pytest.mark.smoke
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, id="SIGTERM"), pytest.param(signal.SIGINT, id="SIGINT")]
)
def test_a_signal_ends_the_service_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with serve_snapshot(tmp_path) as service:
        connection = service.connect()
        connection.request("POST", "/filter", REQUEST)
        connection.getresponse().read()
        service.process.send_signal(number)
        output, problems = service.process.communicate(timeout=30)
        assert service.process.returncode == 0
        connection.close()
    assert "Traceback" not in output + problems
    entries = [json.loads(line) for line in output.splitlines()]
    decisions = [entry for entry in entries if entry["event"] == "filter"]
    assert [(entry["pod"], entry["fits"]) for entry in decisions] == [("default/db-0", len(FITTING))]


@pytest.mark.parametrize(
    ("second", "answers"),
    [pytest.param(signal.SIGTERM, True, id="SIGTERM"), pytest.param(signal.SIGINT, False, id="SIGINT")],
)
def test_only_a_repeated_interrupt_cuts_an_accepted_request_off(
    tmp_path: Path, second: signal.Signals, answers: bool
) -> None:
    request = _request("POST", "/filter", REQUEST, CLOSE)
    with serve_snapshot(tmp_path) as service, socket.create_connection(("127.0.0.1", service.port)) as connection:
        connection.sendall(request[:-10])
        # Answered after the first half of the request was read.
        assert b"200 OK" in _exchange(service, _request("GET", "/healthz", b"", CLOSE))
        service.process.send_signal(signal.SIGTERM)
        _wait_until_closed(service)
        service.process.send_signal(second)
        with pytest.raises(subprocess.TimeoutExpired) if answers else nullcontext():
            service.process.wait(timeout=0.5 if answers else 10)
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request[-10:])
        try:
            answer = connection.recv(65536)
        except ConnectionResetError:
            answer = b""
        assert (b"200 OK" in answer) == answers
        assert service.process.wait(timeout=30) == 0


def _wait_until_closed(service: SnapshotProcess) -> None:
    """Returns once the process accepts no connection, because the first signal has arrived."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", service.port)).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.02)
    raise AssertionError("the process still accepts connections")


@pytest.mark.smoke
def test_the_printed_curl_command_works(tmp_path: Path) -> None:
    with serve_snapshot(tmp_path, objects=[*small_cluster(), db_pod()]) as service:
        assert service.process.stderr is not None
        command = next(line for line in service.process.stderr if "curl" in line)
        _, _, url, _, body = shlex.split(command)
        assert url == f"http://127.0.0.1:{service.port}/filter"
        answer = _exchange(service, _request("POST", "/filter", body.encode(), CLOSE))
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["NodeNames"] == FITTING


def _serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([EXTENDER, "serve", *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.smoke
def test_a_port_in_use_is_an_error_of_one_line(service: SnapshotProcess, tmp_path: Path) -> None:
    file = tmp_path / "snapshot.yaml"
    file.write_text("apiVersion: v1\nkind: List\nitems: []\n")
    done = _serve("--snapshot", str(file), "--port", str(service.port))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"longhorn-extender: cannot listen on 127.0.0.1 port {service.port}: Address already in use; see --host and --port"
    )
    assert "Traceback" not in done.stderr
