"""Where things are in a cluster's folder, and which folders may be used as one."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from devcluster.errors import ConfigError

_MARK: Final = ".devcluster"


@dataclass(frozen=True, slots=True)
class Layout:
    """The folder of one cluster: everything in it belongs to the cluster, and is gone at its next start."""

    directory: Path

    @property
    def logs(self) -> Path:
        """A log file per process, and the API server's audit log."""
        return self.directory / "logs"

    @property
    def audit_log(self) -> Path:
        """One JSON object a line, per call to the API server."""
        return self.logs / "audit.log"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.directory / "pki"

    @property
    def kubeconfigs(self) -> Path:
        """The kubeconfig files of everybody but the administrator."""
        return self.directory / "kubeconfigs"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.directory / "kubeconfig"

    @property
    def config(self) -> Path:
        """The processes' configuration files."""
        return self.directory / "config"

    @property
    def etcd(self) -> Path:
        """The cluster's state."""
        return self.directory / "etcd"

    @property
    def kubectl_cache(self) -> Path:
        """What kubectl keeps: apart, because it caches by server address, and ports are used again."""
        return self.directory / "kubectl-cache"

    def occupy(self) -> int:
        """Takes the folder, empties it of a former cluster, and returns the open lock, to be closed when the cluster is gone.

        Raises:
            ConfigError: another cluster runs in it, or it holds something else
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = self.directory / _MARK
        if not mark.exists() and any(self.directory.iterdir()):
            raise ConfigError(f"{self.directory} holds other files; name an empty or a new folder for the cluster")
        lock = os.open(mark, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ConfigError(f"another cluster runs in {self.directory}; stop it or name another folder") from None
        for path in (self.logs, self.pki, self.kubeconfigs, self.config, self.etcd, self.kubectl_cache):
            shutil.rmtree(path, ignore_errors=True)
        for path in (self.logs, self.pki, self.kubeconfigs, self.config, self.etcd):
            path.mkdir(mode=0o700)
        return lock
