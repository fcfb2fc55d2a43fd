"""How many pods of a template fit: numbers, limit and refusals."""

import random

from scheduler_core.model import generic
from scheduler_core.predict.cluster_additions import Workload
from scheduler_core.predict.pod_headroom import (
    Headroom,
    HeadroomOrder,
    closest_node,
    fill_with_pods,
    summarize_headroom,
)
from scheduler_core.predict.prediction_input import Situation
from tests.builders import claim
from tests.worlds.predicted_clusters import OPTIONS, node, owned_pod, situation, workload


def headroom(start: Situation, template: Workload, *, orders: int = 5) -> Headroom:
    """The headroom of a cluster."""
    results = [
        fill_with_pods(start.cluster, template, OPTIONS, random.Random(seed).randrange, 100)  # noqa: S311
        for seed in range(orders)
    ]
    return summarize_headroom(results, 100)


def test_headroom_is_what_every_order_reaches() -> None:
    orders = [HeadroomOrder(("a", "a", "b")), HeadroomOrder(("a", "b"))]
    result = summarize_headroom(orders, 3)
    assert (result.least, result.most, dict(result.nodes)) == (2, 3, {"a": (1, 2), "b": (1, 1)})
    assert (result.tightest, result.limit_reached) == (orders[1], False)


def test_no_node_is_the_closest_where_kube_scheduler_refuses_each() -> None:
    start = situation(node("a", 100))
    cordoned = start.cluster.scheduling.nodes["a"].node
    scheduling = start.cluster.scheduling.with_node(
        generic.Node(cordoned.name, labels=cordoned.labels, unschedulable=True)
    )

    closed = Situation(start.cluster.with_scheduling(scheduling))
    result = headroom(closed, workload(200))
    assert result.least == 0
    assert result.tightest.refused is not None
    assert result.refusals == {"node is unschedulable (1 node)": 5}
    assert closest_node(result.tightest.refused, OPTIONS) is None


def test_pods_that_wait_come_first() -> None:
    waiting = [owned_pod("data-db-0", name="db-0"), claim("data-db-0", 60)]
    assert headroom(situation(node("a", 100), waiting), workload(40)).least == 1
    assert headroom(situation(node("a", 100)), workload(40)).least == 2


def test_every_pod_has_its_own_ephemeral_volume() -> None:
    result = headroom(situation(node("a", 100)), workload(40, ephemeral=True))
    assert result.least == 2
    refused = result.tightest.refused
    assert refused is not None
    assert {name for _, name in refused.cluster.snapshot.claims} == {"web-0-data", "web-1-data"}
