"""How candidates of a local cluster are started with the placement guard."""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster.stack import Stack, StackOptions


@pytest.mark.parametrize(
    ("mode", "count"), [pytest.param("", 0, id="without the guard"), pytest.param("enforce", 4, id="with the guard")]
)
def test_candidate_keeps_its_port_of_the_guard(tmp_path: Path, mode: str, count: int) -> None:
    """A candidate that is started again is called where the EndpointSlice says; without the guard it has no such port."""
    stack = Stack(tmp_path, StackOptions(placement_guard=mode))
    try:
        first, again, other = (stack._guard_arguments(name) for name in ("extender-1", "extender-1", "extender-2"))
    finally:
        stack.stop()
    assert len(first) == count
    assert first == again
    assert (first != other) is bool(mode)
