"""The state of the cluster, change by change."""

from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.cycle_state import CycleState
from scheduler_core.values import replace
from tests.worlds.policy_rules import GI, decide, node, pod, service, state, web


def test_a_binding_takes_space_on_its_node() -> None:
    cluster = state([node("a")])
    after = cluster.with_binding(web(cpu=100, memory=GI, ports=frozenset({80})), "a")
    after_binding = after.nodes["a"]
    assert (
        after_binding.pod_count,
        after_binding.requested_cpu,
        after_binding.requested_memory,
        after_binding.used_ports,
    ) == (1, 100, GI, frozenset({80}))
    assert cluster.nodes["a"].pod_count == 0


def test_a_deleted_pod_frees_what_it_took() -> None:
    shared = frozenset({80})
    cluster = state([node("a")], [web("x", "a", cpu=1, ports=shared), web("y", "a", cpu=2, ports=shared)])
    after = cluster.without_pod(("shop", "x"))
    assert (after.nodes["a"].requested_cpu, after.nodes["a"].used_ports) == (2, shared)
    assert after.without_pod(("shop", "y")).nodes["a"] == state([node("a")]).nodes["a"]


def test_a_finished_pod_takes_nothing_but_counts_for_its_service() -> None:
    cluster = state([node("a")], [web("x", "a", cpu=1)])
    finished = cluster.with_pod(web("x", "a", cpu=1, finished=True))
    assert (finished.nodes["a"].pod_count, finished.nodes["a"].requested_cpu) == (0, 0)
    assert CycleState(web(), finished).first_service_pods_by_node == {"a": 1}


def test_an_updated_pod_keeps_its_place_in_the_order() -> None:
    """So the first pod of a service stays the first."""
    cluster = state([node("a", zone="a"), node("b", zone="b")], [web("x", "a"), web("y", "b")])
    replaced = cluster.with_pod(web("x", "a", cpu=5))
    first = min(CycleState(web(), replaced).first_service_pods.items())[1]
    assert first.name == "x"


def test_pods_of_a_node_that_is_delivered_later_are_counted() -> None:
    after = state([], [web("x", "a", cpu=7)]).with_node(node("a"))
    assert after == state([node("a")], [web("x", "a", cpu=7)])


def test_pods_of_a_deleted_node_count_for_their_service() -> None:
    cluster = state([node("a"), node("b")], [web("x", "a")]).without_node("a")
    assert cluster.node_names == ("b",)
    assert CycleState(web(), cluster).first_service_pods_by_node == {"a": 1}
    assert not cluster.without_pod(("shop", "x")).orphaned_pods


def test_a_changed_node_keeps_its_pods() -> None:
    cluster = state([node("a")], [web("x", "a", cpu=7)])
    cordoned = cluster.with_node(replace(node("a"), unschedulable=True))
    assert (cordoned.nodes["a"].requested_cpu, cordoned.nodes["a"].node.unschedulable) == (7, True)


def test_a_service_that_is_delivered_later_selects_earlier_pods() -> None:
    pods = [web("x", "a"), web("y", "a", namespace="other"), pod("z", "a")]
    cluster = state([node("a")], pods, []).with_service(service())
    assert CycleState(web(), cluster).first_service_pods_by_node == {"a": 1}


def test_a_deleted_service_selects_no_pods() -> None:
    services = [service("one", app="web"), service("two", app="web", tier="front"), service("three", app="web")]
    cluster = state([node("a")], [web("x", "a")], services).without_service("shop", "one")
    assert [selection.service.name for selection in CycleState(web(), cluster).services] == ["three"]
    assert not cluster.without_service("shop", "two").without_service("shop", "three").services


def test_the_deletion_of_an_unknown_object_changes_nothing() -> None:
    cluster = state([node("a")], [web("x", "a")])
    assert cluster.without_pod(("shop", "gone")).without_node("gone").without_service("shop", "gone") == cluster


def test_an_unbound_pod_takes_nothing() -> None:
    cluster = state([node("a")])
    assert cluster.with_pod(web("x")) == cluster
    assert cluster.with_pod(web("x", "a")).with_pod(web("x")).nodes["a"].pod_count == 0


def test_an_empty_state_chooses_no_node() -> None:
    assert decide(pod(), GenericClusterState()).node == ""
