"""`longhorn-extender decisions` of a process with TLS, which asks its callers for a certificate."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from devcluster.pki import CertificateAuthority, CertificatePair
from devcluster.ports import Ports
from tests.worlds.command_line import Run
from tests.worlds.service import serve_snapshot
from tests.worlds.tls import SERVER_HOST, MountedSecret


@dataclass(frozen=True)
class TlsService:
    """A process that serves a snapshot by TLS, and the files of a caller."""

    url: str
    authority: CertificateAuthority
    caller: CertificatePair
    stranger: CertificateAuthority

    @property
    def files(self) -> dict[str, str]:
        """The options that this process needs."""
        return {
            "--url": self.url,
            "--ca-file": str(self.authority.bundle),
            "--cert-file": str(self.caller.certificate),
            "--key-file": str(self.caller.key),
            "--server-name": SERVER_HOST,
        }


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsService]:
    """The small cluster, served by TLS to callers with a certificate."""
    folder = tmp_path_factory.mktemp("tls")
    authority = CertificateAuthority.create(folder / "authority")
    stranger = CertificateAuthority.create(folder / "stranger", "stranger")
    secret = MountedSecret(folder / "secret")
    secret.write_pair(authority.server("server", [SERVER_HOST]), authority)
    files = secret.files
    ports = Ports()
    options = ["--tls-cert-file", files.certificate, "--tls-private-key-file", files.private_key]
    options += ["--client-ca-file", files.client_ca, "--probe-port", str(ports.take())]
    with serve_snapshot(folder, *options) as running:
        yield TlsService(f"https://127.0.0.1:{running.port}", authority, authority.client("administrator"), stranger)
    ports.release()


def words(options: dict[str, str]) -> list[str]:
    return [word for option in options.items() for word in option]


def test_a_caller_with_a_certificate_gets_decisions(service: TlsService, run: Run) -> None:
    result = run("decisions", *words(service.files), "-o", "json")
    assert (result.code, result.err) == (0, "")
    assert result.answer["kind"] == "DecisionList"


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        pytest.param(["--ca-file"], "certificate verify failed", id="unknown authority"),
        pytest.param(["--server-name"], "IP address mismatch", id="another name"),
        pytest.param(["--cert-file", "--key-file"], "it may require a certificate", id="no certificate"),
    ],
)
def test_every_option_is_needed(service: TlsService, run: Run, missing: list[str], problem: str) -> None:
    options = {name: value for name, value in service.files.items() if name not in missing}
    result = run("decisions", *words(options))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert problem in result.err


def test_a_certificate_of_another_authority_has_no_answer(service: TlsService, run: Run) -> None:
    other = service.stranger.client("stranger")
    options = service.files | {"--cert-file": str(other.certificate), "--key-file": str(other.key)}
    result = run("decisions", *words(options))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "or another one: docs/tls.md" in result.err


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        pytest.param("--ca-file", "holds no certificate", id="authority"),
        pytest.param("--key-file", "are no certificate and its key", id="key"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    service: TlsService, run: Run, tmp_path: Path, option: str, problem: str
) -> None:
    file = tmp_path / "empty"
    file.write_text("")
    result = run("decisions", *words(service.files | {option: str(file)}))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert f"{option} {file}" in result.err
    assert problem in result.err
