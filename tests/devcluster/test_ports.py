"""Ports are claimed, so that clusters and restarts do not collide."""

import fcntl
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.errors import DevClusterError
from devcluster.ports import Ports, candidates


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[Ports]:
    own_ports = Ports(tmp_path)
    yield own_ports
    own_ports.release()


@pytest.fixture
def two_candidates(monkeypatch: pytest.MonkeyPatch) -> range:
    """The only two ports to choose from."""
    choice = range(candidates("").start + 7, candidates("").start + 9)
    monkeypatch.setattr("devcluster.ports.candidates", lambda _: choice)
    return choice


def test_two_clusters_get_different_ports_until_they_release_them(
    ports: Ports, tmp_path: Path, two_candidates: range
) -> None:
    other = Ports(tmp_path)
    first = ports.take()
    assert {first, other.take()} == set(two_candidates)
    other.release()
    assert {first, ports.take()} == set(two_candidates)


def test_a_port_in_use_is_skipped(ports: Ports, tmp_path: Path, two_candidates: range) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", two_candidates[0]))
        listener.listen()
        assert ports.take() == two_candidates[1]
    assert [path.name for path in tmp_path.iterdir()] == [str(two_candidates[1])]


def test_released_ports_leave_no_files(ports: Ports, tmp_path: Path) -> None:
    ports.take()
    ports.take()
    ports.release()
    assert list(tmp_path.iterdir()) == []


def test_a_claim_on_a_removed_file_is_void(
    ports: Ports, tmp_path: Path, two_candidates: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a third cluster could lock a new file for the same port."""
    flock = fcntl.flock
    removed: list[Path] = []

    def remove_and_lock(claim: int, operation: int) -> None:
        if not removed:
            removed.append(next(tmp_path.iterdir()))
            removed[0].unlink()
        flock(claim, operation)

    monkeypatch.setattr("devcluster.ports.fcntl.flock", remove_and_lock)
    assert str(ports.take()) != removed[0].name


def test_the_error_for_no_free_port_names_the_folder_of_claims(
    ports: Ports, tmp_path: Path, two_candidates: range
) -> None:
    """Forgotten claims would be a likely cause."""
    ports.take()
    ports.take()
    with pytest.raises(DevClusterError, match=str(tmp_path)):
        ports.take()


def test_a_killed_cluster_claims_no_port(ports: Ports, tmp_path: Path, two_candidates: range) -> None:
    program = f"""
import os, pathlib
from devcluster import ports
ports.candidates = lambda _: range({two_candidates.start}, {two_candidates.stop})
claims = ports.Ports(pathlib.Path({str(tmp_path)!r}))
claims.take(), claims.take()
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    assert {ports.take(), ports.take()} == set(two_candidates)


@pytest.mark.parametrize(
    ("outgoing", "end"),
    [
        pytest.param("32768\t60999\n", 32_768, id="the usual range"),
        pytest.param("40000 60999", 40_000, id="a narrower one"),
        pytest.param("1024 65535", 32_768, id="all ports"),
        pytest.param("", 32_768, id="unknown"),
    ],
)
def test_ports_of_outgoing_connections_are_skipped_where_enough_others_remain(outgoing: str, end: int) -> None:
    """Such a connection could take the API server's port during its restart."""
    assert candidates(outgoing).stop == end
