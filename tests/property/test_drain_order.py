"""Orders of drains on small random clusters. They are checked against every permutation and against `what-if`."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import permutations

from hypothesis import given, strategies as st

from scheduler_core.predict.cluster_changes import drain, set_setting
from scheduler_core.predict.drain_order import maintain_node
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.prediction import predict
from scheduler_core.predict.prediction_input import Situation
from scheduler_core.predict.timeline import run_order
from tests.builders import Object, pod
from tests.core.predict.test_drain_order import NONE, blocked, choose, names, order_of
from tests.examples import examples
from tests.worlds.predicted_clusters import OPTIONS, after, draw_cluster, owned_pod, situation

POLICIES = ("block-if-contains-last-replica", "always-allow", "block-for-eviction", "allow-if-replica-is-stopped")
COURSES = 2


@dataclass(frozen=True)
class World:
    """A random cluster, which is full enough that some drains fail."""

    start: Situation
    nodes: tuple[str, ...]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Two to four nodes, and few pods without volumes. A node has at most one pod more than the nodes could swap."""
    chance = random.Random(draw(st.integers(0, 2**32)))  # noqa: S311
    nodes = tuple(f"n{number}" for number in range(chance.randint(2, 4)))
    sizes = {name: chance.choice((60, 80, 100)) for name in nodes}
    longhorn_nodes, pods = draw_cluster(chance, sizes, most_pods=5, volumes=(10, 20, 30, 40), share=0.7)
    others: list[Object] = []
    if chance.random() < 0.2:
        others.append(pod(name="bare", node=chance.choice(nodes), phase="Running"))
    if chance.random() < 0.3:
        others.append(owned_pod(name="web-0", node=chance.choice(nodes), owner="ReplicaSet"))
    policy = partial(set_setting, name="node-drain-policy", value=chance.choice(POLICIES))
    return World(after(situation(longhorn_nodes, *pods.values(), others), policy), nodes)


def _drain_counts(world: World) -> Callable[[tuple[str, ...]], int]:
    """Returns a function: how many nodes of an order are drained in a row. It is the least number of all courses."""

    # Orders begin alike: the clusters in between are kept.
    @cache
    def drain(order: tuple[str, ...], course: int) -> PredictedCluster | None:
        if not order:
            return run_order(Situation(world.start.cluster), OPTIONS, choose(course, "")).cluster
        cluster = drain(order[:-1], course)
        if cluster is None:
            return None
        result = maintain_node(cluster, order[-1], NONE, OPTIONS, choose(course, order[-1]))
        return None if result.problems else result.cluster

    def count(order: tuple[str, ...]) -> int:
        parts = [order[:length] for length in range(1, len(order) + 1)]
        return min(sum(drain(part, course) is not None for part in parts) for course in range(COURSES))

    return count


@examples(25)
@given(worlds())
def test_the_search_finds_what_every_permutation_finds(world: World) -> None:
    """It is as long as the longest of all orders. Blocked nodes are in none."""
    order = order_of(world.start, *world.nodes, courses=COURSES)
    count = _drain_counts(world)
    best = max(map(count, permutations(world.nodes)))
    assert order.exhaustive
    assert len(order.steps) == best
    assert order.complete == (best == len(world.nodes))
    assert {*names(order), *(entry.node for entry in order.failed)} == {*world.nodes}
    for name in blocked(order):
        assert not any(count((*each, name)) > len(each) for each in permutations(names(order)))


@examples(25)
@given(worlds())
def test_what_if_predicts_that_every_drain_of_the_order_fits(world: World) -> None:
    """Each drain finishes, and all of its pods are placed. It begins in the cluster that the drains before left."""
    order = order_of(world.start, *world.nodes, courses=COURSES)
    for course in range(COURSES):
        cluster: PredictedCluster = run_order(Situation(world.start.cluster), OPTIONS, choose(course, "")).cluster
        for name in names(order):
            start = Situation(cluster)
            drained = drain(start, nodes=(name,))
            result = run_order(drained, OPTIONS, choose(course, name))
            prediction = predict(start, drained, [result])
            assert [outcome.finished for outcome in prediction.drains] == [1]
            assert all(outcome.placed for outcome in prediction.pods if outcome.left == name)
            cluster = maintain_node(cluster, name, NONE, OPTIONS, choose(course, name)).cluster


@examples(25)
@given(worlds())
def test_a_maintenance_ends_with_the_node_as_it_was(world: World) -> None:
    """It is open, and its status lists its replicas. No replica on it has failed."""
    for name in world.nodes:
        result = maintain_node(world.start.cluster, name, NONE, OPTIONS, choose(0, name))
        if result.problems:
            continue
        view = result.cluster.state.view
        before = world.start.cluster.snapshot
        assert view.snapshot.nodes[name] == before.nodes[name]
        assert view.snapshot.longhorn_nodes[name].conditions == before.longhorn_nodes[name].conditions
        assert not any(each.failed_at for each in view.snapshot.replicas.values())
        for disk in view.snapshot.longhorn_nodes[name].disks:
            on_disk = {each.name: each.size for each in view.indexes.replicas_by_disk.get(disk.uuid) or ()}
            assert dict(disk.scheduled_replicas) == on_disk
