"""What the stack makes of nodes, candidates, ends of processes and this machine's address."""

import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from devcluster import programs
from devcluster.stack import Stack, disk_statuses
from devcluster.watch import describe_end, is_external_end


@pytest.mark.parametrize(
    ("node", "disks"),
    [
        pytest.param({}, {}, id="no status"),
        pytest.param({"status": None}, {}, id="null status"),
        pytest.param({"status": {}}, {}, id="no disks"),
        pytest.param({"status": {"diskStatus": None}}, {}, id="null disks"),
        pytest.param({"status": {"diskStatus": {"a": {"x": 1}}}}, {"a": {"x": 1}}, id="disks"),
    ],
)
def test_node_without_measured_disks_has_none(node: dict[str, Any], disks: dict[str, Any]) -> None:
    assert disk_statuses(node) == disks


def test_candidate_keeps_its_port_of_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that is started again is called where the EndpointSlice says."""
    stack = Stack(tmp_path)
    started: list[list[str]] = []
    monkeypatch.setattr("devcluster.stack.start_extender", lambda *arguments, **_: started.append(arguments[4]))
    names = ("extender-1", "extender-1", "extender-2")
    try:
        for name in names:
            stack.start_candidate(name)
        ports = [stack.guard_port(name) for name in names]
    finally:
        stack.stop()
    assert [dict(pairwise(arguments))["--placement-guard-port"] for arguments in started] == list(map(str, ports))
    assert ports[0] == ports[1] != ports[2]


def test_the_address_in_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It helps machines without a route to another network."""
    monkeypatch.setenv("DEVCLUSTER_ADDRESS", "10.254.0.1")
    assert programs.primary_address() == "10.254.0.1"


@pytest.mark.parametrize(
    ("code", "words", "from_outside"),
    [
        (0, "ended with code 0", True),
        (1, "ended with code 1", False),
        (-signal.SIGKILL, "was ended by SIGKILL", True),
        (-signal.SIGTERM, "was ended by SIGTERM", True),
        (-signal.SIGSEGV, "was ended by SIGSEGV", False),
        (-200, "was ended by signal 200", False),
    ],
)
def test_an_end_is_described_in_words(code: int, words: str, from_outside: bool) -> None:
    """An end from outside restarts a candidate; any other end is a crash."""
    assert describe_end(code) == words
    assert is_external_end(code) is from_outside
