"""`longhorn-extender decisions` of a process with TLS, which asks its callers for a certificate."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.pki import CertificateAuthority
from tests.worlds.command_line import Run
from tests.worlds.tls import SERVER_HOST, TlsProcess, serve_with_tls


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsProcess]:
    with serve_with_tls(tmp_path_factory.mktemp("tls")) as running:
        yield running


@pytest.fixture
def files(service: TlsProcess) -> dict[str, str]:
    """The options that this process needs."""
    return {
        "--url": f"https://127.0.0.1:{service.running.port}",
        "--ca-file": str(service.authority.bundle),
        "--cert-file": str(service.caller.certificate),
        "--key-file": str(service.caller.key),
        "--server-name": SERVER_HOST,
    }


def words(options: dict[str, str]) -> list[str]:
    return [word for option in options.items() for word in option]


def test_a_caller_with_a_certificate_gets_decisions(files: dict[str, str], run: Run) -> None:
    result = run("decisions", *words(files), "-o", "json")
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
def test_every_option_is_needed(files: dict[str, str], run: Run, missing: list[str], problem: str) -> None:
    options = {name: value for name, value in files.items() if name not in missing}
    result = run("decisions", *words(options))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert problem in result.err


def test_a_certificate_of_another_authority_has_no_answer(files: dict[str, str], run: Run, tmp_path: Path) -> None:
    other = CertificateAuthority.create(tmp_path / "stranger", "stranger").client("stranger")
    options = files | {"--cert-file": str(other.certificate), "--key-file": str(other.key)}
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
    files: dict[str, str], run: Run, tmp_path: Path, option: str, problem: str
) -> None:
    file = tmp_path / "empty"
    file.write_text("")
    result = run("decisions", *words(files | {option: str(file)}))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert f"{option} {file}" in result.err
    assert problem in result.err
