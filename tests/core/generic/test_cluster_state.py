"""The state of the cluster, change by change."""

from __future__ import annotations

from dataclasses import replace

from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.cycle_state import CycleState
from tests.worlds.policy_rules import GI, decide, node, pod, service, state, web


def test_binding_takes_from_the_node() -> None:
    """And leaves the state before as it was."""
    before = state([node("a")])
    after = before.with_binding(web(cpu=100, memory=GI, ports=frozenset({80})), "a")
    taken = after.nodes["a"]
    assert (taken.pod_count, taken.requested_cpu, taken.requested_memory, taken.used_ports) == (
        1,
        100,
        GI,
        frozenset({80}),
    )
    assert before.nodes["a"].pod_count == 0


def test_a_pod_that_is_gone_gives_back_what_it_took() -> None:
    """What others hold as well stays taken."""
    shared = frozenset({80})
    there = state([node("a")], [web("x", "a", cpu=1, ports=shared), web("y", "a", cpu=2, ports=shared)])
    left = there.without_pod(("shop", "x"))
    assert (left.nodes["a"].requested_cpu, left.nodes["a"].used_ports) == (2, shared)
    assert left.without_pod(("shop", "y")).nodes["a"] == state([node("a")]).nodes["a"]


def test_a_pod_that_finishes_takes_nothing_but_counts_for_its_service() -> None:
    """Until it is deleted."""
    there = state([node("a")], [web("x", "a", cpu=1)])
    done = there.with_pod(web("x", "a", cpu=1, finished=True))
    assert (done.nodes["a"].pod_count, done.nodes["a"].requested_cpu) == (0, 0)
    assert CycleState(web(), done).first_service_pods_by_node == {"a": 1}


def test_a_replaced_pod_keeps_its_turn() -> None:
    """So the first pod of a service stays the first."""
    there = state([node("a", zone="a"), node("b", zone="b")], [web("x", "a"), web("y", "b")])
    moved = there.with_pod(web("x", "a", cpu=5))
    first = min(CycleState(web(), moved).first_service_pods.items())[1]
    assert first.name == "x"


def test_pods_of_a_node_that_comes_later_are_counted() -> None:
    """Watches bring objects in any order."""
    late = state([], [web("x", "a", cpu=7)]).with_node(node("a"))
    assert late == state([node("a")], [web("x", "a", cpu=7)])


def test_pods_of_a_node_that_is_gone_count_for_their_service() -> None:
    """And are forgotten with themselves."""
    there = state([node("a"), node("b")], [web("x", "a")]).without_node("a")
    assert there.node_names == ("b",)
    assert CycleState(web(), there).first_service_pods_by_node == {"a": 1}
    assert not there.without_pod(("shop", "x")).orphaned_pods


def test_a_changed_node_keeps_its_pods() -> None:
    """A cordon frees nothing."""
    there = state([node("a")], [web("x", "a", cpu=7)])
    cordoned = there.with_node(replace(node("a"), unschedulable=True))
    assert (cordoned.nodes["a"].requested_cpu, cordoned.nodes["a"].node.unschedulable) == (7, True)


def test_a_service_that_comes_later_finds_its_pods() -> None:
    """Those of its namespace."""
    pods = [web("x", "a"), web("y", "a", namespace="other"), pod("z", "a")]
    there = state([node("a")], pods, []).with_service(service())
    assert CycleState(web(), there).first_service_pods_by_node == {"a": 1}


def test_a_service_that_is_gone_binds_nobody() -> None:
    """The others keep their order."""
    services = [service("one", app="web"), service("two", app="web", tier="front"), service("three", app="web")]
    there = state([node("a")], [web("x", "a")], services).without_service("shop", "one")
    assert [found.service.name for found in CycleState(web(), there).services] == ["three"]
    assert not there.without_service("shop", "two").without_service("shop", "three").services


def test_what_is_not_there_can_be_removed() -> None:
    """Late events do no harm."""
    there = state([node("a")], [web("x", "a")])
    assert there.without_pod(("shop", "gone")).without_node("gone").without_service("shop", "gone") == there


def test_an_unassigned_pod_plays_no_part() -> None:
    """Neither does one that was assigned and is not any more."""
    there = state([node("a")])
    assert there.with_pod(web("x")) == there
    assert there.with_pod(web("x", "a")).with_pod(web("x")).nodes["a"].pod_count == 0


def test_an_empty_state_decides_nothing() -> None:
    """And has no nodes."""
    assert decide(pod(), GenericClusterState()).node == ""
