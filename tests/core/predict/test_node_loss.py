"""Whether a node is safe to lose, and why not."""

import random
from typing import Any

import pytest

from scheduler_core.predict.node_loss import NodeLossOutcome, predict_node_loss
from scheduler_core.predict.prediction_input import Situation
from tests.builders import claim, persistent_volume, pod, replica, volume
from tests.worlds.predicted_clusters import OPTIONS, node, owned_pod, running, situation


def loss(start: Situation, name: str = "a", orders: int = 4) -> NodeLossOutcome:
    chooses = [random.Random(seed).randrange for seed in range(orders)]  # noqa: S311
    return predict_node_loss(start.cluster, name, OPTIONS, chooses)


def test_pods_without_claims_are_not_decided_about() -> None:
    objects = [node("a", listed={"db-0-a": 30}), node("b"), node("c"), running("db-0", "a")]
    web = [owned_pod(name="web-0", node="a"), owned_pod(name="web-1")]
    choices: list[list[int]] = []
    for start in (situation(*objects), situation(*objects, web)):
        counts: list[int] = []

        def choose(count: int, counts: list[int] = counts) -> int:
            counts.append(count)
            return 0

        assert predict_node_loss(start.cluster, "a", OPTIONS, [choose]).pods == 1
        choices.append(counts)
    assert choices[0] == choices[1]


def test_a_node_is_safe_to_lose_where_pods_and_replicas_find_room() -> None:
    outcome = loss(
        situation(node("a", listed={"db-0-a": 30}), node("b", listed={"db-0-b": 30}), node("c"), running("db-0", "a", replicas=["a", "b"]))
    )  # fmt: skip
    assert (outcome.safe, outcome.reason, outcome.pods, outcome.volumes, outcome.orders) == (True, "", 1, 1, 4)


def test_a_volume_with_all_replicas_on_the_node_loses_its_data() -> None:
    outcome = loss(situation(node("a", listed={"db-0-a": 30}), node("b"), running("db-0", "a")))
    assert not outcome.safe
    assert outcome.problems == {"volume vol-data-db-0 loses its data": 4}


def test_a_replica_without_room_is_a_problem() -> None:
    start = situation(
        node("a", listed={"db-0-a": 30}),
        node("b", listed={"db-0-b": 30}),
        node("c", 20),
        running("db-0", "b", replicas=["a", "b"], locality="disabled"),
    )
    outcome = loss(start)
    assert list(outcome.problems) == [outcome.reason]
    assert outcome.reason.startswith("volume vol-data-db-0 lacks a replica: ")
    assert loss(start, "c").safe


def test_a_pod_without_a_node_is_a_problem() -> None:
    cordoned = node("b", listed={"db-0-b": 30})
    cordoned[0]["spec"] = {"unschedulable": True}
    start = situation(node("a", listed={"db-0-a": 30}), cordoned, running("db-0", "a", replicas=["a", "b"]))
    assert "pod default/db-0 finds no node: node is unschedulable (1 node)" in loss(start).problems


def test_a_pod_that_nothing_creates_again_is_a_problem_if_it_has_volumes() -> None:
    objects = running("db-0", "b", replicas=["a", "b"], locality="disabled")
    bare: list[Any] = [pod(name="bare", node="b", phase="Running"), pod("data-db-0", name="solo", node="b", phase="Running")]  # fmt: skip
    start = situation(node("a"), node("b"), node("c"), objects, bare)
    assert "nothing creates pod default/solo again" in loss(start, "b").problems
    assert not any("bare" in text for text in loss(start, "b").problems)


@pytest.mark.parametrize(("places", "safe"), [(["a", "b"], True), (["a"], False)])
def test_a_detached_volume_must_keep_a_replica(places: list[str], safe: bool) -> None:
    objects = [
        claim("data", 10, bound=True),
        persistent_volume("data", uid="uid-data"),
        volume("vol-data", 10, numberOfReplicas=len(places)),
        *(replica(f"r-{place}", "vol-data", place, size=10) for place in places),
    ]
    assert loss(situation(node("a"), node("b"), objects)).safe is safe
