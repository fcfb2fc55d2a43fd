"""Certificates and connections of tests with TLS, and a Secret that a kubelet has mounted."""

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from app.extender.certificates import ServingPair, server_context
from app.settings import TlsFiles
from devcluster.pki import CertificateAuthority, CertificatePair
from devcluster.ports import Ports
from tests.worlds.service import SnapshotProcess, serve_snapshot


def client_context(bundle: bytes, *, strict: bool = True) -> ssl.SSLContext:
    """A client that trusts a bundle of authorities and nothing else; a strict one applies every rule that OpenSSL has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=bundle.decode())
    if strict:
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def shake_hands(serving: ServingPair, bundle: bytes, host: str) -> int:
    """Returns the serial number of the certificate that a client was shown and accepted."""
    server = server_context(serving)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_accept, args=(listener, server))
        thread.start()
        try:
            return serial_shown(listener.getsockname()[1], client_context(bundle), host)
        finally:
            thread.join()


def shake_hands_in_memory(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> str:
    """Returns the version of TLS that both ends agree on."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepting = server.wrap_bio(to_server, to_client, server_side=True)
    calling = client.wrap_bio(to_client, to_server, server_hostname=host)
    # The caller's certificate is verified last.
    for end in (calling, accepting, calling, accepting):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return str(accepting.version())


def serial_shown(port: int, client: ssl.SSLContext, host: str) -> int:
    """Returns the serial number of the certificate that a client is shown at a port of this machine, and accepts."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
        client.wrap_socket(connection, server_hostname=host) as tls,
    ):
        shown = tls.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


def _accept(listener: socket.socket, context: ssl.SSLContext) -> None:
    accepted, _ = listener.accept()
    with accepted:
        try:
            context.wrap_socket(accepted, server_side=True).close()
        except OSError:
            # The client refused the certificate, and says so itself.
            return


SERVER_HOST = "longhorn-scheduler-extender.longhorn-system.svc"


class MountedSecret:
    """A folder with the files of a Secret, which change together."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._versions = 0
        folder.mkdir()

    @property
    def files(self) -> TlsFiles:
        """The paths of the server's three files."""
        return TlsFiles(*(str(self.folder / name) for name in ("tls.crt", "tls.key", "ca.crt")))

    def write(self, data: Mapping[str, bytes]) -> None:
        """Replaces the content, as an update of the Secret does."""
        self._versions += 1
        version = self.folder / f"..{self._versions}"
        version.mkdir()
        for name, content in data.items():
            (version / name).write_bytes(content)
            link = self.folder / name
            if not link.is_symlink():
                link.symlink_to(Path("..data") / name)
        switched = self.folder / "..data_tmp"
        switched.symlink_to(version.name)
        switched.replace(self.folder / "..data")

    def write_pair(self, pair: CertificatePair, *authorities: CertificateAuthority) -> None:
        bundle = b"".join(authority.bundle.read_bytes() for authority in authorities)
        self.write({"tls.crt": pair.certificate.read_bytes(), "tls.key": pair.key.read_bytes(), "ca.crt": bundle})


@dataclass(frozen=True)
class TlsProcess:
    """A process that serves the small cluster by TLS to callers with a certificate, and what a caller has."""

    running: SnapshotProcess
    probe_port: int
    secret: MountedSecret
    authority: CertificateAuthority
    caller: CertificatePair


@contextmanager
def serve_with_tls(folder: Path, *options: str) -> Iterator[TlsProcess]:
    """Serves the small cluster meanwhile; `options` are more of the command's."""
    authority = CertificateAuthority.create(folder / "authority")
    secret = MountedSecret(folder / "secret")
    secret.write_pair(authority.server("server", [SERVER_HOST]), authority)
    files = secret.files
    ports = Ports()
    probe_port = ports.take()
    flags = ["--tls-cert-file", files.certificate, "--tls-private-key-file", files.private_key]
    flags += ["--client-ca-file", files.client_ca, "--probe-port", str(probe_port), *options]
    with serve_snapshot(folder, *flags) as running:
        yield TlsProcess(running, probe_port, secret, authority, authority.client("caller"))
    ports.release()
