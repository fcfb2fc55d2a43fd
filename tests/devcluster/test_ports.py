"""Ports are claimed, so that clusters starting at once, or restarting their API server, never collide."""

from __future__ import annotations

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
    """One cluster's ports."""
    made = Ports(tmp_path)
    yield made
    made.release()


@pytest.fixture
def two_candidates(monkeypatch: pytest.MonkeyPatch) -> range:
    """Only two ports to choose from."""
    choice = range(candidates("").start + 7, candidates("").start + 9)
    monkeypatch.setattr("devcluster.ports.candidates", lambda _: choice)
    return choice


def test_two_clusters_get_different_ports(ports: Ports, tmp_path: Path, two_candidates: range) -> None:
    """Although nothing listens on either."""
    other = Ports(tmp_path)
    assert {ports.take(), other.take()} == set(two_candidates)
    other.release()


def test_a_port_can_be_used_by_another_cluster_after_its_release(
    ports: Ports, tmp_path: Path, two_candidates: range
) -> None:
    """Both are free again."""
    other = Ports(tmp_path)
    taken = {other.take(), other.take()}
    other.release()
    assert {ports.take(), ports.take()} == taken


def test_a_port_somebody_listens_on_is_left_out(ports: Ports, tmp_path: Path, two_candidates: range) -> None:
    """Whoever it is."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", two_candidates[0]))
        listener.listen()
        assert ports.take() == two_candidates[1]
    assert [path.name for path in tmp_path.iterdir()] == [str(two_candidates[1])]


def test_what_is_released_leaves_no_file(ports: Ports, tmp_path: Path) -> None:
    """The folder does not grow from run to run."""
    ports.take()
    ports.take()
    ports.release()
    assert list(tmp_path.iterdir()) == []


def test_a_claim_whose_file_was_removed_meanwhile_is_none(
    ports: Ports, tmp_path: Path, two_candidates: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking it somebody gave the port back: a third one would lock another file."""
    flock = fcntl.flock
    removed: list[Path] = []

    def late(claim: int, operation: int) -> None:
        if not removed:
            removed.append(next(tmp_path.iterdir()))
            removed[0].unlink()
        flock(claim, operation)

    monkeypatch.setattr("devcluster.ports.fcntl.flock", late)
    assert str(ports.take()) != removed[0].name


def test_no_free_port_is_an_error_that_says_where_the_claims_are(
    ports: Ports, tmp_path: Path, two_candidates: range
) -> None:
    """A folder of forgotten claims would be the first suspect."""
    ports.take()
    ports.take()
    with pytest.raises(DevClusterError, match=str(tmp_path)):
        ports.take()


def test_a_killed_cluster_claims_nothing(ports: Ports, tmp_path: Path, two_candidates: range) -> None:
    """The lock ends with the process, not with its clean-up."""
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
def test_ports_of_outgoing_connections_are_left_out_where_that_leaves_enough(outgoing: str, end: int) -> None:
    """One could take the API server's port during its restart."""
    assert candidates(outgoing).stop == end
