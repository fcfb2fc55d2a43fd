"""The headroom of random small clusters. It is checked by arithmetic, and by adding one pod after the other with `what-if`."""

import random
from collections.abc import Callable

from hypothesis import given, strategies as st

from scheduler_core.predict.pod_headroom import fill_with_pods
from scheduler_core.predict.prediction_input import Situation
from scheduler_core.predict.timeline import run_order
from tests.builders import disk, kube_node, longhorn_node
from tests.core.predict.test_pod_headroom import headroom, template
from tests.examples import examples
from tests.property.test_what_if import World, worlds
from tests.worlds.predicted_clusters import OPTIONS, situation


@examples(25)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=5), st.sampled_from((10, 33, 50)))
def test_equal_volumes_fill_every_disk(sizes: list[int], size: int) -> None:
    """Pods fit as often as their size goes into the disks. They have one volume of one replica, and fit so in every order."""
    names = [f"n{number}" for number in range(len(sizes))]
    disks = [disk(100, available=100, listed={"other": 100 - free}) for free in sizes]
    nodes = [longhorn_node(name, {"disk-1": entry}) for name, entry in zip(names, disks, strict=True)]
    result = headroom(situation(map(kube_node, names), nodes), template(size), orders=2)
    expected = sum(free // size for free in sizes)
    assert (result.least, result.most) == (expected, expected)
    per_node = {f"n{number}": (free // size,) * 2 for number, free in enumerate(sizes) if free >= size}
    assert dict(result.nodes) == per_node


def chooser(seed: int) -> Callable[[int], int]:
    """Chooses at random, and draws no number without a choice."""
    draw = random.Random(seed).randrange  # noqa: S311
    return lambda count: count - 1 if count <= 2 else draw(count)


@examples(12)
@given(worlds(), st.sampled_from((5, 20, 40)), st.integers(0, 3))
def test_what_if_places_the_same_pods_one_by_one(world: World, size: int, seed: int) -> None:
    workload = template(size)
    order = fill_with_pods(world.start.cluster, workload, OPTIONS, chooser(seed), 12)
    choose = chooser(seed)
    cluster = run_order(Situation(world.start.cluster), OPTIONS, choose).cluster
    nodes: list[str] = []
    while len(nodes) < 12:
        pod = workload.new_pod(len(nodes))
        start = Situation(cluster).with_new_pod(pod)
        result = run_order(start, OPTIONS, choose)
        if pod.namespaced_name not in result.nodes or result.stuck or result.incomplete:
            break
        nodes.append(result.nodes[pod.namespaced_name])
        cluster = result.cluster
    assert list(order.nodes) == nodes
    assert (order.refused is None) == (len(nodes) == 12)
