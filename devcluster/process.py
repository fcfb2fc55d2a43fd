"""A child process under supervision: its log file, whether it is ready, and every way to disturb it.

Children run in their own session, so that Ctrl-C reaches only the parent, which stops them in order. They die with the parent
however it ends (see leash.py); because Linux ties that to the thread that forked them, one thread that lives as long as the
interpreter forks them all.
"""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from devcluster.errors import ProcessError

Ready = Callable[["Process"], bool]
"""Asked again and again whether a process is ready; must answer within about a second and not raise."""

READY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_PROBE_SECONDS: Final = 1.0
_LOG_LINES: Final = 15
_LEASH: Final = Path(__file__).with_name("leash.py")
_FOREIGN_CLUSTER: Final = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")

_forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="devcluster-fork")


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment for a child, without what leads it elsewhere than to its own cluster.

    Proxies are left out because a scheduler would ask one for an extender on this machine; another cluster's credentials are,
    because a program without ``--kubeconfig`` must fail here, not change that cluster.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.lower().endswith("_proxy") and key not in _FOREIGN_CLUSTER
    }
    return {**kept, **(extra or {})}


def leashed(argv: Sequence[str]) -> list[str]:
    """The command line that runs this one, and dies with the thread that starts it (leash.py)."""
    return [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), *argv]


def _wait_for_forks() -> None:
    """Returns once every fork that was asked for has happened: one thread makes them in turn, and an interrupted caller's goes on."""
    _forker.submit(lambda: None).result()


class Process:
    """One program; started, stopped and started again under the same name, arguments and log file."""

    def __init__(  # noqa: PLR0913 # each says one thing about the process
        self,
        name: str,
        argv: Sequence[str | os.PathLike[str]],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        ready: Ready | None = None,
        ready_seconds: float = READY_SECONDS,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self.name = name
        self.argv = [os.fspath(argument) for argument in argv]
        self.log = log
        self.env = dict(env or {})
        self._ready = ready
        self._ready_seconds = ready_seconds
        self._stop_seconds = stop_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._paused = False
        self._meant = False

    @property
    def running(self) -> bool:
        """Whether it runs now, paused or not."""
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        """The running process's id.

        Raises:
            ProcessError: it does not run
        """
        return self._running().pid

    @property
    def returncode(self) -> int | None:
        """How the last run ended, negative for a signal; None while it runs, or if it never did."""
        return None if self._child is None else self._child.poll()

    @property
    def crashed(self) -> bool:
        """Whether it ended without having been stopped or killed here."""
        return self.returncode is not None and not self._meant

    def start(self, *, wait: bool = True) -> None:
        """Starts it and, unless told otherwise, returns when it is ready.

        Raises:
            ProcessError: it runs already, ended, or was not ready in time (then it is stopped)
        """
        if self.running:
            raise ProcessError(f"{self.name} is running already, with process id {self.pid}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._paused = self._meant = False
        _forker.submit(self._fork).result()
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Returns when the process says it is ready.

        Raises:
            ProcessError: it ended, or was not ready in time (then it is stopped); with the last lines of its log
        """
        deadline = time.monotonic() + self._ready_seconds
        while True:
            if not self.running:
                raise ProcessError(
                    f"{self.name} ended with code {self.returncode} before it was ready; {self.log_tail()}"
                )
            if self._ready is None or self._ready(self):
                return
            if time.monotonic() > deadline:
                tail = self.log_tail()
                self.stop(seconds=1)
                raise ProcessError(f"{self.name} was not ready within {self._ready_seconds:g} s; {tail}")
            time.sleep(_POLL_SECONDS)

    def stop(self, *, seconds: float | None = None) -> None:
        """Asks it to end (SIGTERM), and makes it end (SIGKILL) after its bound, or after so many seconds; paused ones too."""
        _wait_for_forks()
        if self._child is None:
            return
        try:
            self._end(signal.SIGTERM)
            self.resume()
            self._child.wait(self._stop_seconds if seconds is None else seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        except BaseException:  # Ctrl-C: whoever is asked to hurry does not leave it running
            self.kill()
            raise

    def kill(self) -> None:
        """Ends it as a crash would (SIGKILL), its own children too, and waits for that."""
        _wait_for_forks()
        if self._child is not None:
            self._end(signal.SIGKILL)
            self._child.wait()

    def pause(self) -> None:
        """Freezes it (SIGSTOP), as a stalled machine would: its connections stay open and silent.

        Raises:
            ProcessError: it does not run
        """
        self._running()
        self._signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Lets a paused process go on (SIGCONT)."""
        if self._paused and self.running:
            self._signal(signal.SIGCONT)
        self._paused = False

    def restart(self, *, wait: bool = True) -> None:
        """Stops it if it runs, and starts it again.

        Raises:
            ProcessError: as start
        """
        self.stop()
        self.start(wait=wait)

    def log_text(self) -> str:
        """What was logged since the last start."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def log_tail(self, lines: int = _LOG_LINES) -> str:
        """The end of the log and where it is, to be shown in an error."""
        last = self.log_text().splitlines()[-lines:]
        return "\n".join([f"the end of {self.log}:" if last else f"{self.log} is empty", *last])

    def _fork(self) -> None:
        """Keeps the child itself: whoever waits for this may be interrupted, and must find it all the same."""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(  # noqa: S603 # an argument list, no shell
                leashed(self.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(self.env),
                start_new_session=True,
            )

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or not self.running:
            raise ProcessError(f"{self.name} does not run; its log is {self.log}")
        return self._child

    def _end(self, number: signal.Signals) -> None:
        if self.running:
            self._meant = True
            self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        """Signals the whole session, and nobody else: the group's id is the child's until it has been waited for."""
        if self._child is not None and self._child.poll() is None:
            os.killpg(self._child.pid, number)


def http_ok(url: str, context: ssl.SSLContext | None = None, accept: Callable[[bytes], bool] = lambda _: True) -> Ready:
    """A readiness probe: GET of this URL is answered with 200 and an acceptable body.

    Args:
        url: http or https
        context: which certificates to trust
        accept: whether a body means ready; must not raise
    """
    parts = urlsplit(url)
    host, port, path = parts.hostname or "", parts.port, parts.path or "/"

    def probe(_: Process) -> bool:
        connection = (
            http.client.HTTPSConnection(host, port, timeout=_PROBE_SECONDS, context=context)
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=_PROBE_SECONDS)
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status == http.HTTPStatus.OK and accept(answer.read())
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return probe


def logged(text: str) -> Ready:
    """A readiness probe: the process has logged this text since it was started."""

    def probe(process: Process) -> bool:
        return text in process.log_text()

    return probe
