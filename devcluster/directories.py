"""The layout of a cluster's folder, and the checks before a folder is used as one."""

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import ConfigError

_LOCK_NAME = ".devcluster"


@dataclass(frozen=True, slots=True)
class Directories:
    """The folder of one cluster. Everything in it belongs to the cluster, and is removed at the next start."""

    directory: Path

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log: one JSON line per call."""
        return self.logs / "audit.log"

    @property
    def pki(self) -> Path:
        return self.directory / "pki"

    @property
    def kubeconfigs(self) -> Path:
        return self.directory / "kubeconfigs"

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    @property
    def config(self) -> Path:
        return self.directory / "config"

    @property
    def etcd(self) -> Path:
        return self.directory / "etcd"

    @property
    def kubectl_cache(self) -> Path:
        """The cache of kubectl. Each cluster has its own, because kubectl caches by server address, and ports are used again."""
        return self.directory / "kubectl-cache"

    def occupy(self) -> int:
        """Locks the folder and removes a previous cluster from it. Returns the open lock file, to be closed when the cluster is gone."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_file = self.directory / _LOCK_NAME
        if not lock_file.exists() and any(self.directory.iterdir()):
            raise ConfigError(f"{self.directory} holds other files; name an empty or a new folder for the cluster")
        lock = os.open(lock_file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
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
