"""``python -m devcluster up`` as somebody at a terminal uses it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devcluster.build import ensure_built

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.xdist_group("devcluster")]


class Terminal:
    """One run of the command in a folder of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        number = sum(1 for _ in folder.parent.glob("*.err"))
        self._out, self._err = folder.with_suffix(f".{number}.out"), folder.with_suffix(f".{number}.err")
        argv = [sys.executable, "-m", "devcluster", "up", "--directory", str(folder), "--no-prometheus", *options]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(argv, stdout=out, stderr=err)

    @property
    def said(self) -> str:
        """Standard output so far."""
        return self._out.read_text()

    @property
    def progress(self) -> str:
        """Standard error so far."""
        return self._err.read_text()

    def until(self, what: str, seconds: float = 240) -> None:
        """Waits for a line of progress."""
        deadline = time.monotonic() + seconds
        while not re.search(what, self.progress):
            assert self.process.poll() is None, self.progress
            assert time.monotonic() < deadline, self.progress
            time.sleep(0.05)

    def pids(self, program: str) -> list[int]:
        """The processes of this run whose command line names the program."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                argv = entry.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if any(f"{self.folder}/" in argument for argument in argv) and any(program in part for part in argv[:3]):
                found.append(int(entry.parent.name))
        return found


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Terminal]:
    """A run that is killed in the end, should it not have ended."""
    ensure_built()
    terminal = Terminal(folder, *options)
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether it holds within a generous time."""
    deadline = time.monotonic() + 20
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def test_it_becomes_ready_says_what_to_type_and_stops_at_ctrl_c(tmp_path: Path) -> None:
    """What it says works; a second one in the same folder is refused; nothing is left running."""
    folder = tmp_path / "c"
    with running(folder, "--nodes", "2", "--disks", "100Gi,50Gi") as terminal:
        terminal.until(r" s  ready\n")
        assert eventually(lambda: "Logs:" in terminal.said)
        assert f"export KUBECONFIG={folder}/kubeconfig" in terminal.said
        assert f"Logs: {folder}/logs" in terminal.said
        curl = re.search(r"curl -s (http://\S+/state)", terminal.said)
        assert curl is not None
        state = subprocess.run(["curl", "-s", "--noproxy", "*", curl[1]], capture_output=True, text=True, check=True)
        assert '"node-2"' in state.stdout
        assert '"disk-2"' in state.stdout
        with running(folder) as second:
            assert second.process.wait(60) == 2
            assert "another cluster runs in" in second.progress
        assert "\033" not in terminal.progress  # no colours in a file
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(60) == 0
    assert eventually(lambda: terminal.pids("") == [])


def test_a_killed_candidate_is_replaced_and_a_crash_ends_everything(tmp_path: Path) -> None:
    """The other candidate answers meanwhile; of the crash the end of the log is shown."""
    with running(tmp_path / "c", "--nodes", "1") as terminal:
        terminal.until(r" s  ready\n")
        assert eventually(lambda: "kill -9" in terminal.said)
        found = re.search(r"kill -9 (\d+) +# (\S+):", terminal.said)
        assert found is not None
        os.kill(int(found[1]), signal.SIGKILL)
        terminal.until(rf"{found[2]} was ended by SIGKILL")
        terminal.until(r"answers kube-scheduler, [\d.]+ s later")
        terminal.until(rf"{found[2]} is started again\n")
        for pid in terminal.pids("kwok"):
            os.kill(pid, signal.SIGKILL)
        assert terminal.process.wait(60) == 1
        assert "devcluster: kwok was ended by SIGKILL; the end of " in terminal.progress
    assert eventually(lambda: terminal.pids("") == [])
