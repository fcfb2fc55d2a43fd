"""Stopping a cluster stops all of it, whatever goes wrong on the way. Without the control plane: these are other processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import DevCluster, Process, logged


class Unstoppable(Process):
    """Fails when it is asked to stop, and ends all the same when killed."""

    error: BaseException = RuntimeError("it fails")

    def stop(self, *, seconds: float | None = None) -> None:  # noqa: ARG002 # as Process.stop
        """Raises what the test says."""
        raise self.error


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    """One that holds its folder and a port, and runs three processes; the second and third do not stop."""
    made = DevCluster(tmp_path / "c")
    made._lock = made._directories.occupy()
    made.free_port()
    for name, kind in (("first", Process), ("second", Unstoppable), ("third", Unstoppable)):
        program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
        argv = [sys.executable, "-I", "-S", "-c", program]
        log = made.logs / f"{name}.log"
        made.processes[name] = kind(name, argv, log, ready=logged("up"), stop_timeout=0.3)
        made.processes[name].start()
    processes = list(made.processes.values())
    yield made
    for process in processes:
        process.kill()


def test_what_fails_to_stop_keeps_nothing_else_from_it(cluster: DevCluster, tmp_path: Path) -> None:
    """The rest is stopped, ports and folder are free; the first error, of the last started, is raised."""
    first, _, third = cluster.processes.values()
    third.error = OSError("this one was first")  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="this one was first"):
        cluster.stop()
    assert not first.running
    assert cluster._ports._claims == {}
    again = DevCluster(tmp_path / "c")
    again._lock = again._directories.occupy()
    again.stop()
    cluster.stop()


def test_from_an_interruption_on_nobody_is_waited_for(cluster: DevCluster) -> None:
    """The second Ctrl-C: everything is killed, and it goes on to whoever called."""
    everybody = list(cluster.processes.values())
    everybody[2].error = KeyboardInterrupt()  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        cluster.stop()
    assert [process.returncode for process in everybody] == [-9, -9, -9]
    assert cluster._lock is None
