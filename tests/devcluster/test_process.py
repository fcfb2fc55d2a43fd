"""A supervised process: readiness, ends of every kind, and that it never outlives its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devcluster.errors import ProcessError
from devcluster.process import Process, Ready, _forker, child_environment, http_ok, logged

Make = Callable[..., Process]
UP = logged("up")
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
GOODBYE = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); " + SLEEP


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes processes that run a Python program; they are killed after the test."""
    made: list[Process] = []

    def python(program: str, *, ready: Ready = UP, ready_seconds: float = 20.0) -> Process:
        argv = [sys.executable, "-I", "-S", "-c", program]
        made.append(Process("it", argv, tmp_path / "it.log", ready=ready, ready_timeout=ready_seconds))
        return made[-1]

    yield python
    for process in made:
        process.kill()


def state(pid: int) -> str:
    """Linux's letter for what a process does; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether it holds within a generous time."""
    deadline = time.monotonic() + 20
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def test_it_is_ready_when_it_has_logged_so(make: Make) -> None:
    """Not when it was forked."""
    process = make("import time; time.sleep(0.2); " + SLEEP)
    process.start()
    assert process.log_text() == "up\n"


@pytest.mark.parametrize("accepted", [True, False])
def test_it_is_ready_when_its_port_answers_as_expected(make: Make, accepted: bool) -> None:
    """With 200, over HTTP, and a body that means ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = (
        f"import http.server as s; s.HTTPServer(('127.0.0.1', {port}), s.SimpleHTTPRequestHandler).serve_forever()"
    )
    probe = http_ok(f"http://127.0.0.1:{port}/", accept=lambda body: (b"<html" in body) is accepted)
    process = make(program, ready=probe, ready_seconds=20.0 if accepted else 1.0)
    if accepted:
        process.start()
    else:
        with pytest.raises(ProcessError, match="not ready"):
            process.start()
    assert process.running is accepted


def test_one_that_ends_early_shows_its_last_words(make: Make, tmp_path: Path) -> None:
    """And where all of them are."""
    process = make("raise SystemExit('no such flag')", ready=logged("never"))
    with pytest.raises(
        ProcessError, match=rf"ended with code 1 before it was ready; the end of {tmp_path}/it.log:\nno such flag"
    ):
        process.start()


def test_one_that_is_never_ready_is_stopped(make: Make) -> None:
    """The caller gets an error, not a half-started process."""
    process = make(SLEEP, ready=logged("never"), ready_seconds=0.2)
    with pytest.raises(ProcessError, match=r"not ready within 0\.2 s"):
        process.start()
    assert not process.running


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """As every other failure to start."""
    process = Process("it", ["/nowhere/program"], tmp_path / "it.log", ready=logged("never"))
    with pytest.raises(ProcessError, match="cannot run /nowhere/program: No such file"):
        process.start()


def test_stop_asks_first(make: Make) -> None:
    """The process ends by its own code."""
    process = make(GOODBYE)
    process.start()
    process.stop()
    assert process.returncode == 3


def test_stop_kills_one_that_does_not_listen(make: Make) -> None:
    """After the bound."""
    process = make(STUBBORN)
    process.start()
    process.stop(seconds=0.1)
    assert process.returncode == -signal.SIGKILL


def test_a_paused_process_can_be_stopped(make: Make) -> None:
    """It goes on only to end."""
    process = make(GOODBYE)
    process.start()
    process.pause()
    process.stop()
    assert process.returncode == 3


def test_pause_freezes_and_resume_goes_on(make: Make) -> None:
    """As Linux sees it: T is stopped."""
    process = make(SLEEP)
    process.start()
    process.pause()
    assert eventually(lambda: state(process.pid) == "T")
    process.resume()
    assert eventually(lambda: state(process.pid) == "S")


def test_restart_waits_for_the_new_one_and_keeps_the_old_log(make: Make) -> None:
    """An old "up" in the log is no readiness."""
    process = make(SLEEP)
    process.start()
    first = process.pid
    process.restart()
    assert process.pid != first
    assert (process.log_text(), process.log.read_text()) == ("up\n", "up\nup\n")


def test_only_an_end_of_its_own_is_a_crash(make: Make) -> None:
    """One that was stopped did as it was told."""
    stopped, crashing = make(GOODBYE), make("pass", ready=None)
    stopped.start()
    stopped.stop()
    crashing.start(wait=False)
    assert eventually(lambda: crashing.crashed)
    assert not stopped.crashed


def test_starting_twice_is_refused(make: Make) -> None:
    """The first would be forgotten and run on."""
    process = make(SLEEP)
    process.start()
    with pytest.raises(ProcessError, match="running already"):
        process.start()


def test_kill_takes_its_children_along(make: Make) -> None:
    """As when a container is killed."""
    process = make(f"import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid); {SLEEP}")
    process.start()
    child = int(process.log_text().split()[0])
    process.kill()
    assert eventually(lambda: state(child) in ("", "Z"))


def test_it_outlives_the_thread_that_started_it(make: Make) -> None:
    """Linux ties a child to the thread that forked it; that must not be the caller's."""
    process = make(SLEEP)
    thread = threading.Thread(target=process.start)
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert process.running


def test_one_that_is_being_forked_when_its_starter_is_interrupted_is_stopped(make: Make) -> None:
    """Ctrl-C while the fork is under way: the child is known as soon as there is one."""

    def interrupt(*_: object) -> None:
        raise InterruptedError

    process = make(SLEEP)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        _forker.submit(time.sleep, 3)  # what is before it in the queue
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(InterruptedError):
            process.start()
    finally:
        signal.signal(signal.SIGUSR1, before)
    process.stop()
    assert process.returncode is not None


def test_an_interrupted_stop_leaves_nothing_running(make: Make) -> None:
    """Ctrl-C while it is waited for: then it is not asked any more."""

    def interrupt(*_: object) -> None:
        raise InterruptedError

    process = make(STUBBORN)
    process.start()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(InterruptedError):
            process.stop()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert process.returncode == -signal.SIGKILL


def test_it_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    """No orphan, although the parent could not clean up."""
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
    assert eventually(lambda: state(int(done.stdout)) in ("", "Z"))


def test_children_are_not_led_to_proxies_or_other_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the environment is theirs."""
    for name in ("HTTPS_PROXY", "no_proxy", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.setenv(name, "elsewhere")
    assert child_environment({"MORE": "1"}).items() >= {"MORE": "1", "PATH": os.environ["PATH"]}.items()
    assert "elsewhere" not in child_environment().values()
