"""Each classic priority, formula by formula."""

import pytest

from scheduler_core.model.constraints import LabelSelector, Operator, Requirement
from scheduler_core.model.generic import Controller
from scheduler_core.model.kube import Pod
from tests.worlds.policy_rules import node, pod, scores, service, state, web

RACKS = [node("a1", rack="a"), node("a2", rack="a"), node("b1", rack="b"), node("u")]


@pytest.mark.parametrize(
    ("cpu", "memory", "score"),
    [
        pytest.param(0, 0, 10, id="empty"),
        pytest.param(500, 500, 5, id="half"),
        pytest.param(1, 0, 9, id="each share is cut off, then the mean"),
        pytest.param(999, 0, 5, id="hardly any CPU"),
        pytest.param(1000, 1000, 0, id="full"),
        pytest.param(1001, 0, 5, id="one exceeded counts 0, the other still counts"),
    ],
)
def test_least_requested_gives_the_free_share_in_tenths(cpu: int, memory: int, score: int) -> None:
    cluster = state([node("a", cpu=1000, memory=1000)], [pod("x", "a", cpu=cpu // 5, memory=memory // 5)])
    new_pod = pod(cpu=cpu - cpu // 5, memory=memory - memory // 5)
    assert scores("LeastRequestedPriority", new_pod, cluster) == [score]


@pytest.mark.parametrize(
    ("cpu", "memory", "score"),
    [
        pytest.param(500, 500, 10, id="even"),
        pytest.param(900, 0, 1, id="uneven"),
        pytest.param(800, 600, 7, id="as doubles have it; exactly it would be 8"),
        pytest.param(1000, 0, 0, id="one is full"),
        pytest.param(1500, 1500, 0, id="both are exceeded"),
    ],
)
def test_balanced_resource_allocation(cpu: int, memory: int, score: int) -> None:
    cluster = state([node("a", cpu=1000, memory=1000)])
    assert scores("BalancedResourceAllocation", pod(cpu=cpu, memory=memory), cluster) == [score]


def test_a_node_without_capacity_is_the_worst() -> None:
    cluster = state([node("a", cpu=0, memory=0)])
    assert scores("LeastRequestedPriority", pod(), cluster) == [0]
    assert scores("BalancedResourceAllocation", pod(), cluster) == [0]


def test_priorities_assume_requests_for_containers_without_them() -> None:
    cluster = state([node("a", cpu=1000, memory=1000)])
    assert scores("LeastRequestedPriority", pod(nonzero_cpu=100, nonzero_memory=100), cluster) == [9]


@pytest.mark.parametrize("kind", ["ReplicationController", "ReplicaSet", "StatefulSet"])
def test_selector_spread_counts_pods_of_the_pods_controllers(kind: str) -> None:
    cluster = state([node("a"), node("b")], [web("x", "a"), web("y", "a"), web("z", "b")], [])
    cluster = cluster.with_controller(Controller(kind, "shop", "web", LabelSelector(frozenset({("app", "web")}))))
    assert scores("SelectorSpreadPriority", web(), cluster) == [0, 5]
    assert scores("ServiceSpreadingPriority", web(), cluster) == [10, 10]
    without = cluster.without_controller(kind, "shop", "web")
    assert scores("SelectorSpreadPriority", web(), without) == [10, 10]


def test_selector_spread_counts_a_pod_of_service_and_controller_once() -> None:
    labels = {"app": "web", "tier": "x"}
    requirement = Requirement("tier", Operator.IN, frozenset({"x"}))
    controller = Controller("ReplicaSet", "shop", "web", LabelSelector(frozenset(), (requirement,)))
    pods = [
        pod("both", "a", labels=labels),
        web("service", "a"),
        pod("controller", "b", labels={"tier": "x"}),
        pod("elsewhere", "b", labels=labels, namespace="other"),
    ]
    cluster = state([node("a"), node("b")], pods).with_controller(controller)
    assert scores("SelectorSpreadPriority", pod(labels=labels), cluster) == [0, 5]
    # The controller does not select this pod, so only the service counts.
    assert scores("SelectorSpreadPriority", web(), cluster) == [0, 10]


@pytest.mark.parametrize("selector", [None, LabelSelector()], ids=["absent", "empty"])
def test_a_controller_without_a_selector_selects_nothing(selector: LabelSelector | None) -> None:
    """As in Kubernetes."""
    cluster = state([node("a"), node("b")], [web("x", "a")], [])
    cluster = cluster.with_controller(Controller("ReplicaSet", "shop", "web", selector))
    assert scores("SelectorSpreadPriority", web(), cluster) == [10, 10]


def test_spreading_compares_with_the_fullest_node() -> None:
    pods = [web(f"x{i}", "a") for i in range(7)] + [web(f"y{i}", "b") for i in range(3)]
    cluster = state([node("a"), node("b"), node("c")], pods)
    assert scores("ServiceSpreadingPriority", web(), cluster) == [0, 5, 10]


def test_spreading_counts_finished_pods_and_deleted_nodes() -> None:
    pods = [web("x", "gone"), web("y", "gone", finished=True), web("z", "a", finished=True)]
    assert scores("ServiceSpreadingPriority", web(), state([node("a"), node("b")], pods)) == [5, 10]


def test_spreading_counts_a_pod_of_two_services_once() -> None:
    services = [service("one"), service("two"), service("three", tier="front")]
    pods = [web("x", "a"), pod("y", "b", labels={"tier": "front"}), pod("z", "b", labels={"tier": "front"})]
    cluster = state([node("a"), node("b")], pods, services)
    assert scores("ServiceSpreadingPriority", pod(labels={"app": "web", "tier": "front"}), cluster) == [5, 0]


@pytest.mark.parametrize("others", [[], [pod("x", "a", labels={"app": "db"})], [web("x", "a", namespace="other")]])
def test_spreading_gives_ten_without_pods_of_the_service(others: list[Pod]) -> None:
    assert scores("ServiceSpreadingPriority", web(), state([node("a")], others)) == [10]


def test_a_pod_without_service_is_not_spread() -> None:
    services = [service(app="db")]
    cluster = state([node("a", rack="a")], [web("x", "a")], services)
    assert scores("ServiceSpreadingPriority", web(), cluster) == [10]
    assert scores("serviceAntiAffinity", web(), cluster, labels=("rack",)) == [10]


def test_anti_affinity_is_relative_to_all_pods_of_the_service() -> None:
    cluster = state(RACKS, [web("x", "a1"), web("y", "a2"), web("z", "b1")])
    assert scores("serviceAntiAffinity", web(), cluster, labels=("rack",)) == [3, 3, 6, 0]


def test_pods_on_nodes_without_the_label_count_in_the_total() -> None:
    """So both racks have higher scores."""
    cluster = state(RACKS, [web("x", "a1"), web("y", "u")])
    assert scores("serviceAntiAffinity", web(), cluster, labels=("rack",)) == [5, 5, 10, 0]


def test_anti_affinity_scores_the_label_alone_before_the_first_pod() -> None:
    cluster = state([*RACKS, node("v", rack="")])
    assert scores("serviceAntiAffinity", web(), cluster, labels=("rack",)) == [10, 10, 10, 0, 10]


def test_anti_affinity_counts_pods_of_the_first_service_only() -> None:
    services = [service("one"), service("two", tier="front")]
    cluster = state(RACKS, [web("x", "a1"), pod("y", "b1", labels={"tier": "front"})], services)
    new_pod = pod(labels={"app": "web", "tier": "front"})
    assert scores("serviceAntiAffinity", new_pod, cluster, labels=("rack",)) == [0, 0, 10, 0]


@pytest.mark.parametrize(("presence", "expected"), [(True, [10, 10, 10, 0]), (False, [0, 0, 0, 10])])
def test_label_preference_gives_ten_or_nothing(presence: bool, expected: list[int]) -> None:
    """With `presence` nodes with the label get 10, otherwise nodes without it."""
    assert scores("labelPreference", pod(), state(RACKS), labels=("rack",), presence=presence) == expected


def test_equal_priority_gives_one() -> None:
    assert scores("EqualPriority", pod(), state(RACKS)) == [1, 1, 1, 1]
