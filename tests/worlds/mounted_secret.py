"""A Secret as the kubelet mounts it: its files are links into a folder that one switched link names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from app.settings import TlsFiles
from devcluster.pki import CertificateAuthority, CertificatePair

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
