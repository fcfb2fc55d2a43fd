"""The authority of a cluster: keys are private, and its own is stored nowhere."""

from pathlib import Path

import pytest

from devcluster.pki import CertificateAuthority, SigningKey


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    folder = tmp_path / "pki"
    folder.mkdir(mode=0o755)
    return CertificateAuthority.create(folder)


def test_only_their_owner_can_read_the_keys(authority: CertificateAuthority) -> None:
    SigningKey.create(authority.folder)
    authority.client("system:kube-scheduler")
    modes = {path.stat().st_mode & 0o777 for path in authority.folder.glob("*.key")}
    assert (modes, authority.folder.stat().st_mode & 0o777) == ({0o600}, 0o700)


def test_the_authoritys_key_is_not_stored(authority: CertificateAuthority) -> None:
    """No certificate can be issued once the cluster runs."""
    assert [path.name for path in authority.folder.iterdir()] == ["ca.crt"]
