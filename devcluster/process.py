"""A supervised child process: its log file and its readiness.

It can be stopped, killed, paused and restarted.

Children run in their own session, so that Ctrl-C reaches only the parent, which stops them in order. They are killed with the parent
however it ends (see `parent_death.py`). Linux ties that to the thread that forked them, so one thread forks all of them, and lives as
long as the interpreter.
"""

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
from urllib.parse import urlsplit

from devcluster.errors import ProcessError

Ready = Callable[["Process"], bool]
"""Whether a process is ready; called repeatedly, returns within about a second and does not raise."""

READY_TIMEOUT = 60.0
STOP_TIMEOUT = 10.0
_POLL_INTERVAL = 0.05
_PROBE_TIMEOUT = 1.0
_LOG_TAIL_LINES = 15
_PARENT_DEATH = Path(__file__).with_name("parent_death.py")
# Another cluster's credentials; and without byte code each start of a program would take a second longer.
_DROPPED_VARIABLES = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "PYTHONDONTWRITEBYTECODE")

_forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="devcluster-fork")


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without proxies and credentials, for a child. Through a proxy a scheduler would not reach an
    extender on this machine. With another cluster's credentials a program without ``--kubeconfig`` would change that cluster
    instead of failing.
    """
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.lower().endswith("_proxy") and key not in _DROPPED_VARIABLES
    }
    return {**inherited, **(extra or {})}


def with_parent_death(argv: Sequence[str]) -> list[str]:
    """Wraps a command line: the program is killed with its parent (`parent_death.py`)."""
    return [sys.executable, "-I", "-S", str(_PARENT_DEATH), str(os.getpid()), *argv]


def _wait_for_forks() -> None:
    """Waits until all requested forks are done. One thread makes them in turn, and the fork of an interrupted caller is made, too."""
    _forker.submit(lambda: None).result()


class Process:
    """One program: each start has the same arguments and log file."""

    def __init__(  # noqa: PLR0913 # each says one thing about the process
        self,
        name: str,
        argv: Sequence[str | os.PathLike[str]],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        ready: Ready | None = None,
        ready_timeout: float = READY_TIMEOUT,
        stop_timeout: float = STOP_TIMEOUT,
    ) -> None:
        self.name = name
        self.argv = [os.fspath(argument) for argument in argv]
        self.log = log
        self.env = dict(env or {})
        self._ready = ready
        self._ready_timeout = ready_timeout
        self._stop_timeout = stop_timeout
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._paused = False
        self._stop_requested = False

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        return self._require_running().pid

    @property
    def returncode(self) -> int | None:
        """The exit code of the last run, negative for a signal. None while the process runs, or if it never ran."""
        return None if self._child is None else self._child.poll()

    @property
    def crashed(self) -> bool:
        """Whether it ended without `stop` or `kill`."""
        return self.returncode is not None and not self._stop_requested

    def start(self, *, wait: bool = True) -> None:
        """Starts the process and, with `wait`, waits until it is ready.

        Raises:
            ProcessError: it runs already, ended, or was not ready in time (then it is stopped)
        """
        if self.running:
            raise ProcessError(f"{self.name} is running already, with process id {self.pid}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._paused = self._stop_requested = False
        _forker.submit(self._fork).result()
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Waits until the process is ready.

        Raises:
            ProcessError: it ended, or was not ready in time (then it is stopped); with the last lines of its log
        """
        deadline = time.monotonic() + self._ready_timeout
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
                raise ProcessError(f"{self.name} was not ready within {self._ready_timeout:g} s; {tail}")
            time.sleep(_POLL_INTERVAL)

    def stop(self, *, seconds: float | None = None) -> None:
        """Stops the process, paused or not: SIGTERM, then SIGKILL.

        Args:
            seconds: the time from SIGTERM to SIGKILL; None: the process's own
        """
        _wait_for_forks()
        if self._child is None:
            return
        try:
            self._end(signal.SIGTERM)
            self.resume()
            self._child.wait(self._stop_timeout if seconds is None else seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        except BaseException:  # Ctrl-C: the caller is in a hurry, but the process must not go on
            self.kill()
            raise

    def kill(self) -> None:
        """Ends the process and its children by SIGKILL, as a crash would."""
        _wait_for_forks()
        if self._child is not None:
            self._end(signal.SIGKILL)
            self._child.wait()

    def pause(self) -> None:
        """Freezes the process (SIGSTOP). Its connections stay open and silent, as on a stalled machine."""
        self._require_running()
        self._signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        if self._paused and self.running:
            self._signal(signal.SIGCONT)
        self._paused = False

    def restart(self, *, wait: bool = True) -> None:
        self.stop()
        self.start(wait=wait)

    def log_text(self) -> str:
        """The log since the last start."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        last = self.log_text().splitlines()[-lines:]
        return "\n".join([f"the end of {self.log}:" if last else f"{self.log} is empty", *last])

    def _fork(self) -> None:
        """Starts and stores the child: an interrupted caller can stop it, too."""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(  # noqa: S603 # an argument list, no shell
                with_parent_death(self.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(self.env),
                start_new_session=True,
            )

    def _require_running(self) -> subprocess.Popen[bytes]:
        if self._child is None or not self.running:
            raise ProcessError(f"{self.name} does not run; its log is {self.log}")
        return self._child

    def _end(self, number: signal.Signals) -> None:
        if self.running:
            self._stop_requested = True
            self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        """Signals the child's whole session, and no other process. The group's id belongs to the child until its exit code has
        been read.
        """
        if self._child is not None and self._child.poll() is None:
            os.killpg(self._child.pid, number)


def http_ok(url: str, context: ssl.SSLContext | None = None, accept: Callable[[bytes], bool] = lambda _: True) -> Ready:
    """A readiness probe: a GET is answered with 200 and an acceptable body.

    Args:
        url: http or https
        context: which certificates to trust
        accept: whether a body means that the process is ready; does not raise
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port
    path = parts.path or "/"

    def probe(_: Process) -> bool:
        connection = (
            http.client.HTTPSConnection(host, port, timeout=_PROBE_TIMEOUT, context=context)
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=_PROBE_TIMEOUT)
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


def log_has(text: str) -> Ready:
    def probe(process: Process) -> bool:
        return text in process.log_text()

    return probe
