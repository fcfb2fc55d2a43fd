"""The index of nodes keeps up with any number of changes."""

from __future__ import annotations

from scheduler_core.generic.node_index import _MAX_CHAIN
from tests.worlds.policy_rules import node, pod, state


def test_changes_beyond_a_chain_are_read() -> None:
    """A state that was not read for thousands of changes, and every state after it."""
    cluster = state([node("a"), node("b")])
    assert cluster.node_infos() == [cluster.nodes["a"], cluster.nodes["b"]]
    for number in range(2 * _MAX_CHAIN + 10):
        cluster = cluster.with_pod(pod(f"web-{number % 7}", "a" if number % 2 else "b"))
    assert cluster.node_infos() == [cluster.nodes["a"], cluster.nodes["b"]]
    cluster = cluster.without_node("a")
    assert cluster.node_infos(["a", "b"]) == [None, cluster.nodes["b"]]


def test_a_chain_is_bounded() -> None:
    """It does not keep every change since the start."""
    cluster = state([node("a")])
    for number in range(3 * _MAX_CHAIN):
        cluster = cluster.with_node(node("a", cpu=number))
    length = 0
    change = cluster.changes
    while change.previous is not None:
        change = change.previous
        length += 1
    assert length <= _MAX_CHAIN
