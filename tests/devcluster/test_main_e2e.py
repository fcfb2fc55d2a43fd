"""``python -m devcluster up`` as a user at a terminal runs it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devcluster.build import ensure_built
from devcluster.polling import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


class Terminal:
    """One run of the command in a folder of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        number = sum(1 for _ in folder.parent.glob("*.err"))
        self._out = folder.with_suffix(f".{number}.out")
        self._err = folder.with_suffix(f".{number}.err")
        argv = [sys.executable, "-m", "devcluster", "up", "--directory", str(folder), "--no-prometheus", *options]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(argv, stdout=out, stderr=err)

    @property
    def output(self) -> str:
        return self._out.read_text()

    @property
    def progress(self) -> str:
        return self._err.read_text()

    def until(self, what: str, seconds: float = 240) -> None:
        """Waits for a line of progress."""
        deadline = time.monotonic() + seconds
        while not re.search(what, self.progress):
            assert self.process.poll() is None, self.progress
            assert time.monotonic() < deadline, self.progress
            time.sleep(0.05)

    def pids(self, program: str) -> list[int]:
        """The processes of this run whose command line names a program."""
        pids = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                argv = entry.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if any(f"{self.folder}/" in argument for argument in argv) and any(program in part for part in argv[:3]):
                pids.append(int(entry.parent.name))
        return pids


@contextmanager
def run_up(folder: Path, *options: str) -> Iterator[Terminal]:
    """Runs the command, and kills it in the end if it still runs."""
    ensure_built()
    terminal = Terminal(folder, *options)
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()


@pytest.mark.smoke
def test_up_prints_commands_once_ready_and_stops_at_ctrl_c(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with run_up(folder, "--nodes", "2", "--disks", "100Gi,50Gi") as terminal:
        terminal.until(r" s  ready\n")
        wait_until("the commands", lambda: "Logs:" in terminal.output)
        assert f"export KUBECONFIG={folder}/kubeconfig" in terminal.output
        assert f"Logs: {folder}/logs" in terminal.output
        curl = re.search(r"curl -s (http://\S+/state)", terminal.output)
        assert curl is not None
        state = subprocess.run(["curl", "-s", "--noproxy", "*", curl[1]], capture_output=True, text=True, check=True)
        assert '"node-2"' in state.stdout
        assert '"disk-2"' in state.stdout
        with run_up(folder) as second:
            assert second.process.wait(60) == 2
            assert "another cluster runs in" in second.progress
        assert "\033" not in terminal.progress  # no colours in a file
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(60) == 0
    wait_until("the end of all", lambda: terminal.pids("") == [])


def test_a_killed_candidate_is_restarted_and_a_crash_ends_everything(tmp_path: Path) -> None:
    with run_up(tmp_path / "c", "--nodes", "1") as terminal:
        terminal.until(r" s  ready\n")
        wait_until("the commands", lambda: "kill -9" in terminal.output)
        leader = re.search(r"kill -9 (\d+) +# (\S+):", terminal.output)
        assert leader is not None
        os.kill(int(leader[1]), signal.SIGKILL)
        terminal.until(rf"{leader[2]} was ended by SIGKILL")
        terminal.until(r"answers kube-scheduler, [\d.]+ s later")
        terminal.until(rf"{leader[2]} is started again\n")
        for pid in terminal.pids("kwok"):
            os.kill(pid, signal.SIGKILL)
        assert terminal.process.wait(60) == 1
        assert "devcluster: kwok was ended by SIGKILL; the end of " in terminal.progress
    wait_until("the end of all", lambda: terminal.pids("") == [])
