"""docs/tls.md: its scripts make certificates that both ends accept, and its kustomizations can be built."""

import asyncio
import re
import shutil
import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from app.extender.certificates import CertificateFiles
from app.extender.metrics import Metrics
from app.settings import TlsFiles
from tests.manifests.kustomize import build_own
from tests.manifests.load import CONFIGS, NAME, ROOT, by_name, documents, pod_spec, yaml_blocks
from tests.worlds.tls import client_context, shake_hands_in_memory

GUIDE = (ROOT / "docs/tls.md").read_text()
SERVER_NAME = documents(CONFIGS / "recommended-managed-tls.yaml")[0]["extenders"][0]["tlsConfig"]["serverName"]
PRINTED = "kind: KubeSchedulerConfiguration\n"


def script(name: str) -> str:
    (text,) = re.findall(rf"```sh\n# {re.escape(name)}:[^\n]*\n(.*?)```", GUIDE, re.DOTALL)
    return str(text)


def run(folder: Path, name: str) -> None:
    subprocess.run(["sh", "-c", script(name)], cwd=folder, check=True, capture_output=True, timeout=60)


def server(folder: Path, authority: str = "ca.crt") -> CertificateFiles:
    files = TlsFiles(*(str(folder / name) for name in ("server.crt", "server.key", authority)))
    return CertificateFiles(files, Metrics(), lambda: datetime.now(UTC))


def caller(folder: Path, name: str = "client") -> ssl.SSLContext:
    """kube-scheduler with the files of a folder; it applies every rule that OpenSSL has."""
    context = client_context((folder / "ca.crt").read_bytes(), strict=False)
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return context


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which both scripts ran."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    for name in ("authority.sh", "sign.sh"):
        run(tmp_path, name)
    return tmp_path


def test_the_certificates_of_the_scripts_let_kube_scheduler_in(folder: Path) -> None:
    assert shake_hands_in_memory(server(folder).context, caller(folder), SERVER_NAME) == "TLSv1.3"


def test_each_certificate_is_for_one_purpose(folder: Path) -> None:
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands_in_memory(server(folder).context, caller(folder, "server"), SERVER_NAME)


def test_the_second_script_renews_both_certificates_without_another_authority(folder: Path) -> None:
    """A running extender takes the new one, and callers with the former certificate are still let in."""
    running = server(folder)
    former = caller(folder)
    before = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes()).serial_number
    run(folder, "sign.sh")
    context = running.context
    asyncio.run(running.check())
    assert running.context is not context
    assert x509.load_pem_x509_certificate((folder / "server.crt").read_bytes()).serial_number != before
    for each in (former, caller(folder)):
        assert shake_hands_in_memory(running.context, each, SERVER_NAME) == "TLSv1.3"


def test_two_authorities_of_one_day_are_trusted_together(folder: Path, tmp_path: Path) -> None:
    """They have the same name; certificates say by which key they are signed."""
    successor = tmp_path / "successor"
    successor.mkdir()
    for name in ("authority.sh", "sign.sh"):
        run(successor, name)
    (folder / "both.crt").write_bytes(b"".join((each / "ca.crt").read_bytes() for each in (folder, successor)))
    context = server(folder, "both.crt").context
    for each in (folder, successor):
        client = caller(each)
        client.load_verify_locations(folder / "ca.crt")
        assert shake_hands_in_memory(context, client, SERVER_NAME) == "TLSv1.3"


def test_keys_are_readable_by_their_owner_only(folder: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.key")} == {0o600}


@pytest.mark.e2e
@pytest.mark.parametrize(
    "shown", [block for block in yaml_blocks("docs/tls.md") if "resources" in yaml.safe_load(block)]
)
def test_the_guides_kustomizations_can_be_built(tmp_path: Path, shown: str) -> None:
    """The extender's pods have the Secret, and a second kube-scheduler's the other one and the file that is printed."""
    built = build_own(tmp_path, shown, **{"kube-scheduler.yaml": PRINTED})
    secrets = {
        name: [
            volume["secret"]["secretName"] for volume in pod_spec(by_name(built), name)["volumes"] if "secret" in volume
        ]
        for kind, name in by_name(built)
        if kind == "Deployment"
    }
    assert secrets.items() <= {NAME: [f"{NAME}-tls"], "longhorn-scheduler": [f"{NAME}-client"]}.items()
    generated = [entry["data"] for entry in built if entry["metadata"]["name"].startswith("longhorn-scheduler-config")]
    assert generated == ([{"kube-scheduler.yaml": PRINTED}] if "longhorn-scheduler" in secrets else [])
