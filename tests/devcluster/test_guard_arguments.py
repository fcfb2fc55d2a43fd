"""Where candidates of a local cluster serve the placement guard."""

from itertools import pairwise
from pathlib import Path

import pytest

from devcluster.stack import Stack


def test_candidate_keeps_its_port_of_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that is started again is called where the EndpointSlice says."""
    stack = Stack(tmp_path)
    started: list[list[str]] = []
    monkeypatch.setattr("devcluster.stack.start_extender", lambda *arguments, **_: started.append(arguments[4]))
    try:
        for name in ("extender-1", "extender-1", "extender-2"):
            stack.start_candidate(name)
        ports = [stack.guard_port(name) for name in ("extender-1", "extender-1", "extender-2")]
    finally:
        stack.stop()
    assert [dict(pairwise(arguments))["--placement-guard-port"] for arguments in started] == [
        str(port) for port in ports
    ]
    assert ports[0] == ports[1] != ports[2]
