"""Spreading, as far as the recorded decisions of Kubernetes 1.1 do not show it: see test_vectors."""

import pytest

from scheduler_core.model.constraints import LabelSelector, Operator, Requirement
from scheduler_core.model.generic import Controller
from tests.worlds.policy_rules import node, pod, scores, service, state, web


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


def test_spreading_counts_finished_pods_and_deleted_nodes() -> None:
    pods = [web("x", "gone"), web("y", "gone", finished=True), web("z", "a", finished=True)]
    assert scores("ServiceSpreadingPriority", web(), state([node("a"), node("b")], pods)) == [5, 10]


def test_spreading_counts_a_pod_of_two_services_once() -> None:
    services = [service("one"), service("two"), service("three", tier="front")]
    pods = [web("x", "a"), pod("y", "b", labels={"tier": "front"}), pod("z", "b", labels={"tier": "front"})]
    cluster = state([node("a"), node("b")], pods, services)
    assert scores("ServiceSpreadingPriority", pod(labels={"app": "web", "tier": "front"}), cluster) == [5, 0]
