"""Orders of nodes in which every drain fits.

What carries over is tested, and what is said where there is no order.
"""

import random
from functools import partial

import pytest

from scheduler_core.predict.cluster_changes import drain, permanent_blockers, set_setting
from scheduler_core.predict.drain_order import (
    DrainOrder,
    Maintenance,
    MaintenanceRequest,
    find_drain_order,
    maintain_node,
)
from scheduler_core.predict.predicted_cluster import WhatIfError
from scheduler_core.predict.predicted_replicas import Choose
from scheduler_core.predict.prediction_input import Situation
from tests.builders import GI, claim, persistent_volume, replica, volume
from tests.worlds.predicted_clusters import (
    OPTIONS,
    add_labels,
    after,
    disruption_budget,
    node,
    owned_pod,
    running,
    situation,
)

NONE: frozenset[tuple[str, str]] = frozenset()


def choose(seed: int, name: str) -> Choose:
    draw: Choose = random.Random(f"{seed}/{name}").randrange  # noqa: S311
    return draw


def order_of(start: Situation, *nodes: str, courses: int = 2, tries: int = 1000) -> DrainOrder:
    request = MaintenanceRequest(start, nodes, OPTIONS, [partial(choose, seed) for seed in range(courses)], tries)
    return find_drain_order(request)


def maintain(start: Situation, name: str) -> Maintenance:
    return maintain_node(start.cluster, name, NONE, OPTIONS, choose(0, name))


def blocked(order: DrainOrder) -> dict[str, tuple[str, ...]]:
    return {entry.node: entry.problems for entry in order.failed if entry.blocked}


def names(order: DrainOrder) -> list[str]:
    return [step.node for step in order.steps]


def test_a_node_takes_pods_again_after_its_maintenance() -> None:
    start = situation(node("a"), node("b"), owned_pod(name="web-0", node="a", owner="ReplicaSet"))
    order = order_of(start, "a", "b")
    assert (names(order), [step.pods for step in order.steps]) == (["a", "b"], [(1, 1), (1, 1)])


def test_a_replica_comes_back_with_its_node() -> None:
    start = situation(
        node("a", listed={"db-0-a": 30}),
        node("b", listed={"db-0-b": 30}),
        running("db-0", "a", replicas=["a", "b"], locality="disabled"),
    )
    result = maintain(start, "b")
    assert (result.problems, result.reduced_volumes) == ((), 1)
    snapshot = result.cluster.snapshot
    assert snapshot.volumes["vol-data-db-0"].robustness == "healthy"
    assert [each.failed_at for each in snapshot.replicas.values()] == ["", ""]
    assert names(order_of(start, "a", "b")) == ["a", "b"]


def test_a_cordoned_node_stays_cordoned() -> None:
    start = Situation(after(situation(node("a"), node("b")), partial(drain, nodes=("a",))).cluster)
    result = maintain(start, "a")
    assert result.cluster.snapshot.nodes["a"].unschedulable
    assert result.cluster.snapshot.nodes == start.cluster.snapshot.nodes
    assert result.cluster.snapshot.longhorn_nodes == start.cluster.snapshot.longhorn_nodes
    assert result.cluster.scheduling.nodes["a"] == start.cluster.scheduling.nodes["a"]


def test_what_stays_whatever_happens_blocks_a_node_in_any_order() -> None:
    objects = running("db-0", "b", replicas=["a"], locality="disabled")
    order = order_of(situation(node("a", listed={"db-0-a": 30}), node("b"), objects), "a", "b")
    problem = "a holds the last healthy replica of volume vol-data-db-0"
    assert (blocked(order), names(order), order.complete) == ({"a": (problem,)}, ["b"], False)


def test_a_step_says_what_it_copies_at_least_and_at_most() -> None:
    start = situation(
        node("a", listed={"db-0-a": 30}),
        node("b"),
        node("c"),
        running("db-0", "c", replicas=["a"], locality="disabled"),
    )
    order = order_of(
        after(start, partial(set_setting, name="node-drain-policy", value="block-for-eviction")), "a", "b", courses=6
    )
    assert [(step.node, step.copied_bytes) for step in order.steps] == [("a", (30 * GI, 30 * GI)), ("b", (0, 30 * GI))]
    assert order.complete


@pytest.mark.parametrize("used", [True, False])
def test_a_detached_volume_blocks_its_node_unless_a_pod_may_attach_it(used: bool) -> None:
    """A pod that waits may be placed in some order."""
    objects = [
        claim("data", 10, bound=True),
        persistent_volume("data", uid="uid-data"),
        volume("vol-data", 10, numberOfReplicas=2),
        replica("r-a", "vol-data", "a", size=10),
        *([owned_pod("data", name="db-0")] if used else []),
    ]
    start = situation(node("a"), node("b"), objects)
    assert bool(permanent_blockers(start.cluster, "a")) is not used


def test_a_pod_waits_for_room_that_another_drain_makes() -> None:
    start = situation(
        node("a", 60, listed={"db-0-a": 40}),
        node("b", 60, listed={"db-1-b": 30}),
        node("c", 45),
        running("db-0", "a", 40),
        running("db-1", "b", 30),
    )
    start = after(start, partial(set_setting, name="node-drain-policy", value="block-for-eviction"))
    order = order_of(start, "a", "b")
    assert (names(order), order.complete) == (["b", "a"], True)


def test_disruption_budgets_hold_up_a_drain() -> None:
    web = add_labels([owned_pod(name="web-0", node="a", owner="ReplicaSet")], ready=True, app="web")
    order = order_of(situation(node("a"), node("b"), web, disruption_budget(minAvailable=1)), "a", "b")
    assert names(order) == ["b"]
    [failed] = order.failed
    assert failed.problems == failed.first_problems
    assert len(failed.problems) == 1
    assert "PodDisruptionBudget default/web" in failed.problems[0]


def test_a_node_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(WhatIfError, match="absent"):
        order_of(situation(node("a")), "absent")
