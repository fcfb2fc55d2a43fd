"""How many pods of a template fit: numbers, limit and refusals."""

import random

from scheduler_core.model import generic, kube
from scheduler_core.predict.cluster_additions import Workload
from scheduler_core.predict.pod_headroom import (
    Headroom,
    HeadroomOrder,
    closest_node,
    fill_with_pods,
    summarize_headroom,
)
from scheduler_core.predict.prediction_input import Situation
from tests.builders import GI, claim
from tests.worlds.predicted_clusters import OPTIONS, node, owned_pod, situation


def template(size: float, *, ephemeral: bool = False) -> Workload:
    """A StatefulSet whose pods have one claim of `size` Gi."""
    spec = kube.ClaimSpec(storage_class="longhorn", request=int(size * GI), access_modes=("ReadWriteOnce",))
    mount = kube.ClaimVolume("data", "web-0-data" if ephemeral else "data-web-0", spec, ephemeral=ephemeral)
    pod = kube.Pod("default", "web-0", volumes=(mount,))
    return Workload("StatefulSet", "default", "web", pod)


def headroom(start: Situation, workload: Workload, *, orders: int = 5) -> Headroom:
    """The headroom of a cluster."""
    results = [
        fill_with_pods(start.cluster, workload, OPTIONS, random.Random(seed).randrange, 100)  # noqa: S311
        for seed in range(orders)
    ]
    return summarize_headroom(results, 100)


def test_pods_fit_until_every_disk_is_full() -> None:
    result = headroom(situation(node("a", 100), node("b", 60)), template(40))
    assert (result.least, result.most, dict(result.nodes)) == (3, 3, {"a": (2, 2), "b": (1, 1)})
    assert result.refusals == {"insufficient Longhorn storage (2 nodes)": 5}
    assert not result.limit_reached


def test_headroom_is_what_every_order_reaches() -> None:
    orders = [HeadroomOrder(("a", "a", "b")), HeadroomOrder(("a", "b"))]
    result = summarize_headroom(orders, 3)
    assert (result.least, result.most, dict(result.nodes)) == (2, 3, {"a": (1, 2), "b": (1, 1)})
    assert (result.tightest, result.limit_reached) == (orders[1], False)


def test_the_closest_node_lacks_the_fewest_bytes() -> None:
    result = headroom(situation(node("a", 60), node("b", 75)), template(40))
    refused = result.tightest.refused
    assert refused is not None
    assert refused.key == ("default", "web-2")
    closest = closest_node(refused, OPTIONS)
    assert closest is not None
    assert (closest.node, closest.missing) == ("b", 5 * GI)


def test_nodes_that_kube_scheduler_refuses_are_named_if_no_other_is_left() -> None:
    start = situation(node("a", 100))
    cordoned = start.cluster.scheduling.nodes["a"].node
    scheduling = start.cluster.scheduling.with_node(
        generic.Node(cordoned.name, labels=cordoned.labels, unschedulable=True)
    )

    closed = Situation(start.cluster.with_scheduling(scheduling))
    result = headroom(closed, template(1))
    assert result.least == 0
    assert result.tightest.refused is not None
    closest = closest_node(result.tightest.refused, OPTIONS)
    assert closest is not None
    assert (closest.node, closest.detail) == ("a", "NodeUnschedulable")


def test_pods_that_wait_come_first() -> None:
    waiting = [owned_pod("data-db-0", name="db-0"), claim("data-db-0", 60)]
    assert headroom(situation(node("a", 100), waiting), template(40)).least == 1
    assert headroom(situation(node("a", 100)), template(40)).least == 2


def test_new_pods_bear_unused_names() -> None:
    start = situation(node("a", 100), owned_pod(name="web-0", node="a"))
    refused = headroom(start, template(80)).tightest.refused
    assert refused is not None
    assert refused.key[1] == "web-2"


def test_every_pod_has_its_own_ephemeral_volume() -> None:
    result = headroom(situation(node("a", 100)), template(40, ephemeral=True))
    assert result.least == 2
    refused = result.tightest.refused
    assert refused is not None
    assert {name for _, name in refused.cluster.snapshot.claims} == {"web-0-data", "web-1-data"}
