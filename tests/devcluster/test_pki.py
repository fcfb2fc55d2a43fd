"""Certificates work in a real handshake, and keys are private."""

import socket
import ssl
import threading
from pathlib import Path

import pytest

from devcluster.pki import CertificateAuthority, CertificatePair, SigningKey


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    folder = tmp_path / "pki"
    folder.mkdir(mode=0o755)
    return CertificateAuthority.create(folder)


def handshake(
    authority: CertificateAuthority, server: CertificatePair, client: CertificatePair, name: str
) -> dict[str, str]:
    """The client's subject, as the server reads it in a handshake."""
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.bundle)
    serving.verify_mode = ssl.CERT_REQUIRED
    serving.load_cert_chain(server.certificate, server.key)
    asking = ssl.create_default_context(cafile=authority.bundle)
    asking.load_cert_chain(client.certificate, client.key)
    subject: dict[str, str] = {}

    def serve(end: socket.socket) -> None:
        with end, serving.wrap_socket(end, server_side=True) as connection:
            fields = (connection.getpeercert() or {})["subject"]
            subject.update({field[0][0]: field[0][1] for field in fields})

    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(theirs,))
    thread.start()
    with ours, asking.wrap_socket(ours, server_hostname=name) as connection:
        connection.recv(1)
    thread.join()
    return subject


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "kubernetes.default.svc"])
def test_the_api_server_is_trusted_under_its_names(authority: CertificateAuthority, name: str) -> None:
    subject = handshake(authority, authority.server("server"), authority.client("admin", ["system:masters"]), name)
    assert subject == {"commonName": "admin", "organizationName": "system:masters"}


def test_only_their_owner_can_read_the_keys(authority: CertificateAuthority) -> None:
    SigningKey.create(authority.folder)
    authority.client("system:kube-scheduler")
    modes = {path.stat().st_mode & 0o777 for path in authority.folder.glob("*.key")}
    assert (modes, authority.folder.stat().st_mode & 0o777) == ({0o600}, 0o700)


def test_the_authoritys_key_is_not_stored(authority: CertificateAuthority) -> None:
    """No certificate can be issued once the cluster runs."""
    assert [path.name for path in authority.folder.iterdir()] == ["ca.crt"]
