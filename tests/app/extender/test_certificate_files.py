"""The certificate files of `serve`: what is used, what is refused, and what callers see of a change."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.extender.certificates import CertificateError, CertificateFiles
from app.extender.metrics import Metrics
from app.runtime.probes import PREFIX
from app.settings import TlsFiles
from devcluster.pki import CertificateAuthority, CertificatePair
from tests.worlds.tls import SERVER_HOST, MountedSecret, shake_hands_in_memory

YEAR = timedelta(days=366)
KEYLESS = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"


class World:
    """A mounted Secret with a server's certificate, and a client of the same authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = CertificateAuthority.create(folder / "authority", "first")
        self.server = self.authority.server("server", [SERVER_HOST])
        self.client = self.authority.client("kube-scheduler")
        self.secret = MountedSecret(folder / "secret")
        self.secret.write_pair(self.server, self.authority)
        self.metrics = Metrics()
        self.now = datetime.now(UTC)  # the time that the program reads

    def read(self) -> CertificateFiles:
        return CertificateFiles(self.secret.files, self.metrics, lambda: self.now)

    def reload(self, files: CertificateFiles) -> list[str]:
        """Reads the files again; returns what was logged."""
        with capture_logs() as lines:
            asyncio.run(files.check())
        return [f"{line['log_level']}: {line.get('problem', '')}" for line in lines]

    def metric(self, name: str, **labels: str) -> float:
        value = self.metrics.registry.get_sample_value(f"{PREFIX}_{name}", labels)
        assert value is not None, name
        return value

    def caller(self, pair: CertificatePair | None) -> ssl.SSLContext:
        """A caller's TLS, with a certificate or without."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.authority.bundle)
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_caller_with_a_certificate_of_the_authority_is_let_in(world: World) -> None:
    assert shake_hands_in_memory(world.read().context, world.caller(world.client), SERVER_HOST) == "TLSv1.3"


@pytest.mark.parametrize("shown", ["no certificate", "one of another authority", "the server's own"])
def test_other_callers_are_refused_in_the_handshake(world: World, shown: str) -> None:
    other = CertificateAuthority.create(world.folder / "other", "first").client("kube-scheduler")
    pairs = {"no certificate": None, "one of another authority": other, "the server's own": world.server}
    error = "PEER_DID_NOT_RETURN_A_CERTIFICATE" if pairs[shown] is None else "CERTIFICATE_VERIFY_FAILED"
    with pytest.raises(ssl.SSLError, match=error):
        shake_hands_in_memory(world.read().context, world.caller(pairs[shown]), SERVER_HOST)


def test_without_authorities_every_caller_is_let_in(world: World) -> None:
    files = TlsFiles(world.secret.files.certificate, world.secret.files.private_key)
    context = CertificateFiles(files, world.metrics, lambda: world.now).context
    assert shake_hands_in_memory(context, world.caller(None), SERVER_HOST) == "TLSv1.3"


def only_version(caller: ssl.SSLContext, version: ssl.TLSVersion) -> ssl.SSLContext:
    caller.set_ciphers("ALL:@SECLEVEL=0")
    caller.minimum_version = version
    caller.maximum_version = version
    return caller


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_tls_before_1_2_is_refused(world: World) -> None:
    with pytest.raises(ssl.SSLError):
        shake_hands_in_memory(
            world.read().context, only_version(world.caller(world.client), ssl.TLSVersion.TLSv1_1), SERVER_HOST
        )


def test_tls_1_2_is_accepted(world: World) -> None:
    caller = only_version(world.caller(world.client), ssl.TLSVersion.TLSv1_2)
    assert shake_hands_in_memory(world.read().context, caller, SERVER_HOST) == "TLSv1.2"


def test_a_replaced_certificate_is_used_and_its_end_is_shown(world: World) -> None:
    files = world.read()
    before = world.metric("tls_certificate_expiry_timestamp_seconds")
    successor = CertificateAuthority.create(world.folder / "successor", "second")
    world.secret.write_pair(world.server, world.authority, successor)
    assert world.reload(files) == ["info: "]
    newcomer = successor.client("kube-scheduler")
    for pair in (world.client, newcomer):
        assert shake_hands_in_memory(files.context, world.caller(pair), SERVER_HOST) == "TLSv1.3"
    world.secret.write_pair(world.authority.server("renewed", [SERVER_HOST]), successor)
    world.reload(files)
    assert shake_hands_in_memory(files.context, world.caller(newcomer), SERVER_HOST) == "TLSv1.3"
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands_in_memory(files.context, world.caller(world.client), SERVER_HOST)
    assert world.metric("tls_certificate_expiry_timestamp_seconds") >= before > world.now.timestamp()
    assert world.metric("tls_reloads_total", result="loaded") == 2


def test_unchanged_files_change_nothing(world: World) -> None:
    files = world.read()
    context = files.context
    world.secret.write_pair(world.server, world.authority)
    assert world.reload(files) == []
    assert files.context is context


BAD = {
    "no certificate": ({"tls.crt": b"none"}, "tls.crt holds no certificate in PEM form that can be read"),
    "no key": ({"tls.key": KEYLESS}, "tls.key holds no private key in PEM form without a password"),
    "another key": ({"tls.key": b"CLIENT"}, "tls.crt"),
    "no authority": ({"ca.crt": b""}, "ca.crt holds no certificate in PEM form that can be read"),
}


@pytest.mark.parametrize(("changes", "problem"), BAD.values(), ids=BAD)
def test_a_bad_file_keeps_the_certificate_before_and_is_counted_once(
    world: World, changes: dict[str, bytes], problem: str
) -> None:
    files = world.read()
    context = files.context
    good = {name: (world.secret.folder / name).read_bytes() for name in ("tls.crt", "tls.key", "ca.crt")}
    replaced = {key: world.client.key.read_bytes() if text == b"CLIENT" else text for key, text in changes.items()}
    world.secret.write({**good, **replaced})
    (line,) = world.reload(files)
    assert line.startswith("error: ")
    assert problem in line
    assert "c2VjcmV0" not in line
    assert world.reload(files) == []
    assert files.context is context
    assert world.metric("tls_reloads_total", result="refused") == 1


def test_a_missing_file_keeps_the_certificate_before(world: World) -> None:
    """A Secret that lost a key, for example."""
    files = world.read()
    (world.secret.folder / "tls.key").unlink()
    (line,) = world.reload(files)
    assert line == f"error: {world.secret.files.private_key}: cannot be read: No such file or directory"
    assert shake_hands_in_memory(files.context, world.caller(world.client), SERVER_HOST) == "TLSv1.3"


def test_an_expired_certificate_does_not_replace_a_valid_one(world: World) -> None:
    """No caller would accept it."""
    files = world.read()
    world.now += YEAR
    world.secret.write_pair(world.authority.server("late", [SERVER_HOST]), world.authority)
    (line,) = world.reload(files)
    assert "error: the serving certificate expired at" in line


def test_a_certificate_that_becomes_valid_later_is_used_then(world: World) -> None:
    """The clock of whoever signed it was ahead; until then it is refused once."""
    files = world.read()
    before = files.context
    world.now -= timedelta(days=1)
    world.secret.write_pair(world.authority.server("early", [SERVER_HOST]), world.authority)
    (line,) = world.reload(files)
    assert "error: the serving certificate is not valid before" in line
    assert (world.reload(files), files.context) == ([], before)
    world.now += timedelta(days=1)
    world.reload(files)
    assert files.context is not before
    assert world.metric("tls_reloads_total", result="refused") == 1


def test_callers_are_shut_out_although_the_servers_certificate_has_expired(world: World) -> None:
    files = world.read()
    world.now += YEAR
    world.secret.write_pair(world.server, CertificateAuthority.create(world.folder / "other", "other"))
    world.reload(files)
    with pytest.raises(ssl.SSLError):
        shake_hands_in_memory(files.context, world.caller(world.client), SERVER_HOST)


def test_an_authority_that_another_one_signed_is_trusted(world: World) -> None:
    intermediate = CertificateAuthority.create(world.folder / "intermediate", "second", issuer=world.authority)
    world.secret.write_pair(world.server, intermediate)
    caller = world.caller(intermediate.client("kube-scheduler"))
    assert shake_hands_in_memory(world.read().context, caller, SERVER_HOST) == "TLSv1.3"


def test_an_expired_certificate_is_no_reason_not_to_start(world: World) -> None:
    world.now += YEAR
    with capture_logs() as lines:
        world.read()
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("error", "no caller accepts the serving certificate")
    ]
    assert world.metric("tls_certificate_expiry_timestamp_seconds") < world.now.timestamp()


def test_files_that_cannot_be_used_prevent_the_start(world: World) -> None:
    world.secret.write({"tls.crt": b""})
    with pytest.raises(CertificateError, match=r"secret/tls\.key: cannot be read|tls\.crt holds no certificate"):
        world.read()


def test_files_that_change_while_they_are_read_are_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a certificate could be taken together with the key of its successor."""
    files = world.read()
    successor = world.authority.server("successor", [SERVER_HOST])
    reads: list[str] = []

    def read(path: str) -> bytes | str:
        content = Path(path).read_bytes()
        reads.append(path)
        if len(reads) == 1:
            world.secret.write_pair(successor, world.authority)
        return content

    monkeypatch.setattr("app.extender.certificates.read_content", read)
    assert world.reload(files) == ["info: "]
    assert world.metric("tls_reloads_total", result="refused") == 0
