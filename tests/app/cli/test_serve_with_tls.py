"""`longhorn-extender serve` with TLS as a whole process: limits and signals as without it, and bad input."""

import http.client
import json
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.runtime.connections import MAX_CONNECTIONS
from app.runtime.http_protocol import MAX_HEAD_BYTES
from devcluster.http_check import http_request
from devcluster.pki import CertificateAuthority
from tests.builders import write_list
from tests.worlds.command_line import Run
from tests.worlds.service import by_names, db_pod, small_cluster
from tests.worlds.tls import SERVER_HOST, TlsProcess, serve_with_tls

REQUEST = json.dumps(by_names(db_pod())).encode()
FITTING = ["node-1", "node-3"]


@dataclass(frozen=True)
class TlsService:
    """A process that serves by TLS, and a caller with a certificate."""

    process: TlsProcess
    caller: ssl.SSLContext

    def connect(self) -> ssl.SSLSocket:
        connection = socket.create_connection(("127.0.0.1", self.process.running.port), timeout=20)
        return self.caller.wrap_socket(connection, server_hostname=SERVER_HOST)

    def ask(self, connection: ssl.SSLSocket, body: bytes = REQUEST, *headers: str) -> http.client.HTTPResponse:
        """POSTs to /filter on a connection; returns the answer's head."""
        lines = ["POST /filter HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers, "", ""]
        connection.sendall("\r\n".join(lines).encode() + body)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer


@pytest.fixture
def service(tmp_path: Path) -> Iterator[TlsService]:
    """The process, and a caller with its certificate."""
    with serve_with_tls(tmp_path, "--max-body", "1Mi") as process:
        caller = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        caller.load_verify_locations(process.authority.bundle)
        caller.load_cert_chain(process.caller.certificate, process.caller.key)
        yield TlsService(process, caller)


@pytest.mark.e2e
def test_a_connection_serves_many_requests(service: TlsService) -> None:
    with closing(service.connect()) as connection:
        for _ in range(20):
            assert json.loads(service.ask(connection).read())["NodeNames"] == FITTING


@pytest.mark.e2e
def test_the_limits_of_heads_and_bodies_hold(service: TlsService) -> None:
    with closing(service.connect()) as connection:
        assert service.ask(connection, REQUEST, f"X: {'x' * MAX_HEAD_BYTES}").status == 431
    with closing(service.connect()) as connection:
        assert service.ask(connection, b" " * (1 << 20) + REQUEST).status == 413


@pytest.mark.e2e
def test_callers_that_only_connect_leave_room_for_one_with_a_certificate(service: TlsService) -> None:
    """Although they are more than there may be, and have the same address."""
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", service.process.running.port), timeout=20))
        connection = stack.enter_context(closing(service.connect()))
        assert service.ask(connection).status == 200
        assert http_request(f"http://127.0.0.1:{service.process.probe_port}/healthz") == (200, {"status": "ok"})


@pytest.mark.e2e
def test_a_signal_ends_the_service_cleanly_with_an_open_connection(service: TlsService) -> None:
    with closing(service.connect()) as connection:
        service.ask(connection).read()
        service.process.running.process.send_signal(signal.SIGTERM)
        _, errors = service.process.running.process.communicate(timeout=20)
        assert (service.process.running.process.returncode, "Traceback" in errors) == (0, False)


@pytest.mark.smoke
@pytest.mark.e2e
def test_a_renewed_certificate_needs_no_restart(service: TlsService, tmp_path: Path) -> None:
    successor = CertificateAuthority.create(tmp_path / "successor", "successor")
    pair = successor.client("renewed")
    with closing(service.connect()) as former:
        service.process.secret.write_pair(successor.server("server", [SERVER_HOST]), successor)
        service.caller.load_verify_locations(successor.bundle)
        service.caller.load_cert_chain(pair.certificate, pair.key)
        until_answered(service)
        assert service.ask(former).status == 200


def until_answered(service: TlsService) -> None:
    """Returns once a caller with the present certificate gets an answer."""
    deadline = time.monotonic() + 20
    while True:
        try:
            with closing(service.connect()) as connection:
                assert service.ask(connection).status == 200
                return
        except OSError:
            assert time.monotonic() < deadline, "the renewed certificate is not used"
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--tls-cert-file", "server.crt"], "go together"),
        (["--tls-private-key-file", "server.key"], "go together"),
        (["--client-ca-file", "ca.crt"], "go together"),
        (["--tls-cert-file", "none", "--tls-private-key-file", "server.key"], "none: cannot be read"),
        (["--tls-cert-file", "server.crt", "--tls-private-key-file", "client.key"], "client.key is not the key of"),
        (["--tls-cert-file", "server.key", "--tls-private-key-file", "server.key"], "holds no certificate"),
        (["--probe-port", "65536"], "--probe-port"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, run: Run, flags: list[str], problem: str) -> None:
    authority = CertificateAuthority.create(tmp_path)
    authority.server("server", [SERVER_HOST])
    authority.client("client")
    snapshot = write_list(tmp_path, small_cluster())
    paths = [flag if flag.startswith("-") or flag.isdigit() else str(tmp_path / flag) for flag in flags]
    result = run("serve", "--snapshot", snapshot, "--port", "0", *paths)
    assert (result.code, result.out, problem in result.err) == (2, "", True)
    assert result.err.count("\n") == 1
