"""Reserves ports, against other clusters that start at the same time and against later outgoing connections. A port is claimed by
a lock on a file that is named after it and removed when the port is released. So the claim holds while no process listens (as
during a restart of the API server), and ends with the claiming process, however that ends. Ports that the system uses for
outgoing connections are left out: a connection could occupy the API server's port during its restart.
"""

import errno
import fcntl
import os
import secrets
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from devcluster.errors import DevClusterError

_MIN_PORT = 20_000
_MIN_CANDIDATES = 1_000
_OUTGOING_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def candidates(outgoing: str) -> range:
    """The ports to choose from: those below the range for outgoing connections.

    If that range starts too low, the same ports are used as without a range: a collision is then possible, but rare.

    Args:
        outgoing: the system's range as two numbers, "" if unknown
    """
    low = outgoing.split()[:1]
    end = int(low[0]) if low and low[0].isdigit() else 32_768
    return range(_MIN_PORT, end if end >= _MIN_PORT + _MIN_CANDIDATES else 32_768)


class Ports:
    """The ports of one cluster, claimed until `release`."""

    def __init__(self, locks: Path | None = None) -> None:
        self._locks = locks or Path(tempfile.gettempdir()) / f"devcluster-ports-{os.getuid()}"
        self._claims: dict[int, int] = {}

    def take(self) -> int:
        """Claims a port on which no process listens."""
        self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        choice = candidates(_OUTGOING_RANGE.read_text() if _OUTGOING_RANGE.exists() else "")
        first = secrets.randbelow(len(choice))
        for port in _rotate(choice, first):
            if self._claim(port):
                return port
        raise DevClusterError(f"no free port from {choice.start} to {choice.stop - 1}; {self._locks} holds the claims")

    def release(self) -> None:
        while self._claims:
            self._release_port(*self._claims.popitem())

    def _claim(self, port: int) -> bool:
        if port in self._claims:
            return False
        claim = os.open(self._file(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(claim)
            return False
        # The process that released the port may have removed the file before it was locked here: such a lock claims nothing.
        if not self._holds_current_file(port, claim):
            os.close(claim)
            return False
        if not _can_bind(port):
            self._release_port(port, claim)
            return False
        self._claims[port] = claim
        return True

    def _release_port(self, port: int, claim: int) -> None:
        """Removes the locked file, and then unlocks it. Because of this order the file cannot be another process's."""
        self._file(port).unlink(missing_ok=True)
        os.close(claim)

    def _holds_current_file(self, port: int, claim: int) -> bool:
        try:
            return os.path.samestat(self._file(port).stat(), os.fstat(claim))
        except FileNotFoundError:
            return False

    def _file(self, port: int) -> Path:
        return self._locks / str(port)


def _rotate(choice: range, first: int) -> Sequence[int]:
    return [*choice[first:], *choice[:first]]


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
