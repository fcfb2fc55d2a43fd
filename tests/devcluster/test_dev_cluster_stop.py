"""Stopping a cluster stops all of it, whatever fails on the way.

Other processes stand in for the control plane.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import DevCluster, Process, log_has


class Unstoppable(Process):
    """A process whose `stop` fails; a kill ends it."""

    error: BaseException = RuntimeError("it fails")

    def stop(self, *, seconds: float | None = None) -> None:  # noqa: ARG002 # as Process.stop
        """Raises the error that the test sets."""
        raise self.error


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    """A cluster with a folder, a port and three processes.

    The second and the third process cannot be stopped.
    """
    cluster = DevCluster(tmp_path / "c")
    cluster._lock = cluster._directories.occupy()
    cluster.free_port()
    for name, kind in (("first", Process), ("second", Unstoppable), ("third", Unstoppable)):
        program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
        argv = [sys.executable, "-I", "-S", "-c", program]
        log = cluster.logs / f"{name}.log"
        cluster.processes[name] = kind(name, argv, log, ready=log_has("up"), stop_timeout=0.3)
        cluster.processes[name].start()
    processes = list(cluster.processes.values())
    yield cluster
    for process in processes:
        process.kill()


def test_a_process_that_cannot_be_stopped_does_not_keep_the_others(cluster: DevCluster, tmp_path: Path) -> None:
    """Ports and folder are free; the first error is raised.

    That is the error of the process that was started last.
    """
    first, _, third = cluster.processes.values()
    third.error = OSError("this one was first")  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="this one was first"):
        cluster.stop()
    assert not first.running
    assert cluster._ports._claims == {}
    successor = DevCluster(tmp_path / "c")
    successor._lock = successor._directories.occupy()
    successor.stop()
    cluster.stop()


def test_an_interruption_kills_all_processes_at_once(cluster: DevCluster) -> None:
    """The second Ctrl-C reaches the caller."""
    processes = list(cluster.processes.values())
    processes[2].error = KeyboardInterrupt()  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        cluster.stop()
    assert [process.returncode for process in processes] == [-9, -9, -9]
    assert cluster._lock is None
