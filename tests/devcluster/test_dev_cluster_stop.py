"""Stopping a cluster stops all of it, whatever fails on the way. Other processes stand in for the control plane."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.dev_cluster import DevCluster
from devcluster.process import Process, log_has


class Unstoppable(Process):
    """A process whose `stop` fails; a kill ends it."""

    error: BaseException = RuntimeError("it fails")

    def stop(self, *, seconds: float | None = None) -> None:  # noqa: ARG002 # as Process.stop
        raise self.error


class Occupant(DevCluster):
    """A cluster that has its folder, but no control plane."""

    def start(self) -> None:
        self._lock = self._directories.occupy()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DevCluster]:
    """A cluster with a folder, a port and three processes. The second and the third process cannot be stopped."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cluster = Occupant(tmp_path / "c")
    cluster.start()
    cluster.free_port()
    assert claimed_ports(tmp_path)
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


def claimed_ports(folder: Path) -> list[Path]:
    return list((folder / f"devcluster-ports-{os.getuid()}").iterdir())


def test_a_process_that_cannot_be_stopped_does_not_keep_the_others(cluster: DevCluster, tmp_path: Path) -> None:
    first, _, third = cluster.processes.values()
    third.error = OSError("this one was first")  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="this one was first"):
        cluster.stop()
    assert not first.running
    assert claimed_ports(tmp_path) == []
    successor = Occupant(tmp_path / "c")
    successor.start()
    successor.stop()
    cluster.stop()


def test_an_interruption_kills_all_processes_at_once(cluster: DevCluster, tmp_path: Path) -> None:
    processes = list(cluster.processes.values())
    processes[2].error = KeyboardInterrupt()  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        cluster.stop()
    assert [process.returncode for process in processes] == [-9, -9, -9]
    Occupant(tmp_path / "c").start()
