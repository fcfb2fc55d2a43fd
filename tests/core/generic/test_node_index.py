"""The index of nodes keeps up with any number of changes."""

from scheduler_core.caches import MAX_STEPS
from tests.worlds.policy_rules import node, pod, state


def test_changes_beyond_a_chain_are_read() -> None:
    cluster = state([node("a"), node("b")])
    assert cluster.node_infos() == [cluster.nodes["a"], cluster.nodes["b"]]
    for number in range(2 * MAX_STEPS + 10):
        cluster = cluster.with_pod(pod(f"web-{number % 7}", "a" if number % 2 else "b"))
    assert cluster.node_infos() == [cluster.nodes["a"], cluster.nodes["b"]]
    cluster = cluster.without_node("a")
    assert cluster.node_infos(["a", "b"]) == [None, cluster.nodes["b"]]
