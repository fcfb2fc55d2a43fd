"""Ports nobody else takes: not another cluster that starts at the same moment, and not an outgoing connection later.

A port is claimed by a lock on a file named after it, which is removed when the port is given back, so the claim holds while nothing listens (an API server being restarted) and
ends with the process that made it, however that ends. Ports from which the system takes those of outgoing connections are left out,
because such a connection could occupy the API server's port during its restart.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from devcluster.errors import DevClusterError

_LOWEST: Final = 20_000
_FEWEST: Final = 1_000
_OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def candidates(outgoing: str) -> range:
    """The ports to choose from, given the system's range for outgoing connections as two numbers.

    Those below it; if it starts too low for that, all the same ones: a collision is then possible, but rare.
    """
    low = outgoing.split()[:1]
    end = int(low[0]) if low and low[0].isdigit() else 32_768
    return range(_LOWEST, end if end >= _LOWEST + _FEWEST else 32_768)


class Ports:
    """The ports of one cluster, claimed until `release`."""

    def __init__(self, locks: Path | None = None) -> None:
        self._locks = locks or Path(tempfile.gettempdir()) / f"devcluster-ports-{os.getuid()}"
        self._claims: dict[int, int] = {}

    def take(self) -> int:
        """A port on which nothing listens and which no other cluster of this user has claimed.

        Raises:
            DevClusterError: there is none
        """
        self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        choice = candidates(_OUTGOING.read_text() if _OUTGOING.exists() else "")
        first = secrets.randbelow(len(choice))
        for port in _rotated(choice, first):
            if self._claim(port):
                return port
        raise DevClusterError(f"no free port from {choice.start} to {choice.stop - 1}; {self._locks} holds the claims")

    def release(self) -> None:
        """Gives all ports back."""
        while self._claims:
            self._give_back(*self._claims.popitem())

    def _claim(self, port: int) -> bool:
        if port in self._claims:
            return False
        claim = os.open(self._file(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(claim)
            return False
        if not self._still_there(
            port, claim
        ):  # whoever gave it back removed it before the lock was ours: it claims nothing
            os.close(claim)
            return False
        if not _nobody_listens(port):
            self._give_back(port, claim)
            return False
        self._claims[port] = claim
        return True

    def _give_back(self, port: int, claim: int) -> None:
        """Removes the file while it is locked, so that nobody else's is removed."""
        self._file(port).unlink(missing_ok=True)
        os.close(claim)

    def _still_there(self, port: int, claim: int) -> bool:
        try:
            return os.path.samestat(self._file(port).stat(), os.fstat(claim))
        except FileNotFoundError:
            return False

    def _file(self, port: int) -> Path:
        return self._locks / str(port)


def _rotated(choice: range, first: int) -> Sequence[int]:
    return [*choice[first:], *choice[:first]]


def _nobody_listens(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
