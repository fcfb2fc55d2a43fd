"""How candidates of a local cluster are started with the placement guard."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from devcluster.stack import Stack, StackOptions


@pytest.mark.parametrize("mode", [pytest.param("", id="without the guard"), pytest.param("enforce", id="with it")])
def test_candidate_keeps_its_port_of_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """A candidate that is started again is called where the EndpointSlice says; without the guard it has no such port."""
    stack = Stack(tmp_path, StackOptions(placement_guard=mode))
    started: list[list[str]] = []
    monkeypatch.setattr("devcluster.stack.start_extender", lambda *arguments, **_: started.append(arguments[4]))
    try:
        for name in ("extender-1", "extender-1", "extender-2"):
            stack.start_candidate(name)
    finally:
        stack.stop()
    guard = [dict(pairwise(arguments)) for arguments in started]
    first, again, other = (arguments.get("--placement-guard-port") for arguments in guard)
    assert [arguments.get("--placement-guard") for arguments in guard] == [mode or None] * 3
    assert (first is not None) is bool(mode)
    assert first == again
    assert (first != other) is bool(mode)
