"""A supervised process: its readiness, its ends, and the end of its parent."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devcluster.errors import ProcessError
from devcluster.polling import wait_until
from devcluster.process import Process, Ready, _forker, child_environment, http_ok, log_has

Create = Callable[..., Process]
Start = Callable[[str], Process]
UP = log_has("up")
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
GOODBYE = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); " + SLEEP


@pytest.fixture
def create(tmp_path: Path) -> Iterator[Create]:
    """Creates processes that run a Python program, and kills them after the test."""
    processes: list[Process] = []

    def python(program: str, *, ready: Ready = UP, ready_seconds: float = 20.0) -> Process:
        argv = [sys.executable, "-I", "-S", "-c", program]
        processes.append(Process("it", argv, tmp_path / "it.log", ready=ready, ready_timeout=ready_seconds))
        return processes[-1]

    yield python
    for process in processes:
        process.kill()


@pytest.fixture
def start(create: Create) -> Start:
    """Creates a process, and starts it."""

    def started(program: str) -> Process:
        process = create(program)
        process.start()
        return process

    return started


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


@pytest.mark.parametrize("accepted", [True, False], ids=["ready", "never ready, so it is stopped"])
def test_a_process_is_ready_once_its_port_answers_as_expected(create: Create, accepted: bool) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = (
        f"import http.server as s; s.HTTPServer(('127.0.0.1', {port}), s.SimpleHTTPRequestHandler).serve_forever()"
    )
    probe = http_ok(f"http://127.0.0.1:{port}/", accept=lambda body: (b"<html" in body) is accepted)
    process = create(program, ready=probe, ready_seconds=20.0 if accepted else 1.0)
    if accepted:
        process.start()
    else:
        with pytest.raises(ProcessError, match="not ready within 1 s"):
            process.start()
    assert process.running is accepted


def test_a_process_that_ends_early_shows_the_end_of_its_log(create: Create, tmp_path: Path) -> None:
    process = create("raise SystemExit('no such flag')", ready=log_has("never"))
    with pytest.raises(
        ProcessError, match=rf"ended with code 1 before it was ready; the end of {tmp_path}/it.log:\nno such flag"
    ):
        process.start()


def test_the_error_for_a_missing_program_names_it(tmp_path: Path) -> None:
    process = Process("it", ["/nowhere/program"], tmp_path / "it.log", ready=log_has("never"))
    with pytest.raises(ProcessError, match="cannot run /nowhere/program: No such file"):
        process.start()


def test_stop_kills_a_process_that_ignores_sigterm(start: Start) -> None:
    process = start(STUBBORN)
    process.stop(seconds=0.1)
    assert process.returncode == -signal.SIGKILL


def test_a_paused_process_can_be_stopped(start: Start) -> None:
    process = start(GOODBYE)
    process.pause()
    process.stop()
    assert process.returncode == 3


def test_only_an_unrequested_end_is_a_crash(create: Create) -> None:
    stopped = create(GOODBYE)
    crashing = create("pass", ready=None)
    stopped.start()
    stopped.stop()
    crashing.start(wait=False)
    wait_until("the crash", lambda: crashing.crashed)
    assert not stopped.crashed


def test_starting_twice_is_refused(start: Start) -> None:
    """The first process would run on unsupervised."""
    process = start(SLEEP)
    with pytest.raises(ProcessError, match="running already"):
        process.start()


def test_kill_ends_the_children_too(start: Start) -> None:
    process = start(f"import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid); {SLEEP}")
    child = int(process.log_text().split()[0])
    process.kill()
    wait_until("its end", lambda: state(child) in ("", "Z"))


def test_a_process_outlives_the_thread_that_started_it(create: Create) -> None:
    """Linux ties a child to the thread that forks it."""
    process = create(SLEEP)
    thread = threading.Thread(target=process.start)
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert process.running


@contextmanager
def interruption(seconds: float) -> Iterator[None]:
    """SIGUSR1 raises InterruptedError after this long."""

    def interrupt(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(InterruptedError):
            yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_process_forked_during_an_interrupted_start_is_stopped(create: Create) -> None:
    process = create(SLEEP)
    _forker.submit(time.sleep, 3)  # delays the fork
    with interruption(1):
        process.start()
    process.stop()
    assert process.returncode is not None


def test_an_interrupted_stop_kills_the_process(start: Start) -> None:
    process = start(STUBBORN)
    with interruption(1):
        process.stop()
    assert process.returncode == -signal.SIGKILL


def test_a_process_dies_with_its_killed_parent(tmp_path: Path) -> None:
    program = f"""
import os, pathlib
from devcluster.process import Process
process = Process("it", ["sleep", "600"], pathlib.Path({str(tmp_path / "it.log")!r}))
process.start()
print(process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until("its end", lambda: state(int(done.stdout)) in ("", "Z"))


def test_children_inherit_no_proxies_or_other_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "no_proxy", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.setenv(name, "elsewhere")
    assert child_environment({"MORE": "1"}).items() >= {"MORE": "1", "PATH": os.environ["PATH"]}.items()
    assert "elsewhere" not in child_environment().values()
