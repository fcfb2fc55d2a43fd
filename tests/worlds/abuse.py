"""A service under abuse: the real process, its memory and turns, and the calls that it has to answer meanwhile."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

from tests.builders import write_list
from tests.worlds.service import by_names, db_pod, small_cluster
from tests.worlds.turn_probe import read_longest_turn, reset_longest_turn

MIB = 1024**2
MEMORY_LIMIT = 384 * MIB
FITTING = ["node-1", "node-3"]
_PATIENCE = 20.0
_ATTEMPTS = 3
_REQUEST = json.dumps(by_names(db_pod()))


@dataclass
class AbusedService:
    """A process that serves the small cluster within `MEMORY_LIMIT`."""

    process: subprocess.Popen[bytes]
    port: int
    turns: Path
    log: Path
    host: str = "127.0.0.1"

    def dial(self, source: str = "") -> socket.socket:
        """A new connection, from another address of the loopback network if asked."""
        bind = (source, 0) if source else None
        return socket.create_connection((self.host, self.port), timeout=_PATIENCE, source_address=bind)

    def get(self, path: str) -> str:
        return self._ask("GET", path)

    def filter(self, request: str = _REQUEST) -> list[str]:
        """The nodes that kube-scheduler is answered."""
        names = json.loads(self._ask("POST", "/filter", request))["NodeNames"]
        assert isinstance(names, list)
        return names

    def _ask(self, method: str, path: str, body: str | None = None) -> str:
        """The answer over a new connection."""
        connection = HTTPConnection(self.host, self.port, timeout=_PATIENCE)
        connection.request(method, path, body)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        assert answer.status == 200, text
        return text

    def metric(self, name: str) -> float:
        match = re.search(rf"^longhorn_scheduler_extender_{re.escape(name)} (\S+)$", self.get("/metrics"), re.MULTILINE)
        assert match is not None, name
        return float(match[1])

    @property
    def peak_memory(self) -> int:
        """The most resident memory so far, in bytes."""
        return self._status("VmHWM")

    @property
    def memory(self) -> int:
        """Resident memory now, in bytes."""
        return self._status("VmRSS")

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def longest_turn(self, attempt: Callable[[], None], limit: float) -> float:
        """The longest turn of the event loop during an attempt, in seconds of CPU time. Up to three attempts are made
        to stay below the limit: on a machine with too much work a turn takes several times as long.
        """
        longest: list[float] = []
        while len(longest) < _ATTEMPTS and min(longest, default=limit) >= limit:
            reset_longest_turn(self.turns)
            attempt()
            longest.append(read_longest_turn(self.turns))
        assert min(longest) > 0, "no turn was measured"
        return min(longest)

    def _status(self, key: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
        assert match is not None, text
        return int(match[1]) * 1024


@contextmanager
def abused_service(
    folder: Path,
    *options: str,
    stdout: int | None = None,
    before: Callable[[], None] | None = None,
    host: str = "127.0.0.1",
) -> Iterator[AbusedService]:
    """Runs the service on a free port; `before` is called in the new process."""
    snapshot = write_list(folder, small_cluster())
    turns = folder / "turns"
    log = folder / "log"
    command = ["serve", "--snapshot", snapshot, "--port", "0", "--memory-limit", "256Mi", "--log-format", "json"]
    with ExitStack() as stack:
        target = stack.enter_context(log.open("wb")) if stdout is None else stdout
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.worlds.turn_probe", str(turns), *command, *options],
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=subprocess.PIPE,
            preexec_fn=before,  # noqa: PLW1509 # no thread runs that holds a lock
        )
        assert process.stderr is not None
        try:
            welcome = re.search(rb":(\d+) ", process.stderr.readline())
            assert welcome is not None, process.stderr.read()
            while read_longest_turn(turns) < 0:
                time.sleep(0.05)
            yield AbusedService(process, int(welcome[1]), turns, log, host)
        finally:
            process.kill()
            process.wait()
            process.stderr.close()


@dataclass
class Calls:
    """What happened to the calls of a probe and of kube-scheduler during abuse."""

    answered: int = 0
    problems: list[str] = field(default_factory=list)


@contextmanager
def regular_calls(service: AbusedService) -> Iterator[Calls]:
    """Calls /healthz and /filter over new connections, again and again, during the block."""
    calls = Calls()
    ended = threading.Event()

    def call() -> None:
        while True:
            try:
                service.get("/healthz")
                assert service.filter() == FITTING
            except (OSError, AssertionError) as error:
                calls.problems.append(repr(error))
            else:
                calls.answered += 1
            if ended.wait(0.05):
                return

    thread = threading.Thread(target=call, name="regular calls", daemon=True)
    thread.start()
    try:
        yield calls
    finally:
        ended.set()
        thread.join()


def send_until_refused(connection: socket.socket, first: bytes, piece: bytes, most: int) -> int:
    """Sends `first`, then `piece` again and again until the server stops it; returns the bytes sent."""
    sent = 0
    with suppress(OSError):
        connection.sendall(first)
        while sent < most:
            connection.sendall(piece)
            sent += len(piece)
    return sent


def receive(connection: socket.socket) -> bytes:
    """The first part of an answer; nothing if the connection was reset."""
    try:
        return connection.recv(1 << 16)
    except OSError:
        return b""


def receive_all(connection: socket.socket) -> bytes:
    """Everything until the server ends the connection."""
    received = b""
    while part := receive(connection):
        received += part
    return received
