"""The history of an order: what it counts, and its size."""

from functools import partial
from itertools import pairwise

import pytest

from scheduler_core.predict.cluster_changes import drain, lose_nodes
from scheduler_core.predict.prediction import OrderHistory, OrderPoint
from scheduler_core.predict.prediction_input import Change, Situation
from scheduler_core.predict.timeline import OrderProgress
from tests.worlds.predicted_clusters import (
    add_labels,
    after,
    disruption_budget,
    gibibytes,
    node,
    observe,
    running,
    situation,
)


def history_of(start: Situation, *changes: Change) -> tuple[OrderPoint, ...]:
    changed = after(start, *changes)
    history = OrderHistory(changed.cluster)
    observe(changed, 0, history.observe)
    return history.points()


def test_a_move_is_seen_step_by_step() -> None:
    cluster = situation(node("a", listed={"db-0-a": 30}), node("b"), running("db-0", "a"))
    points = history_of(cluster, partial(drain, nodes=("a",)))
    assert [
        (point.waiting, point.misplaced, point.free_bytes // gibibytes(10), point.copied_bytes) for point in points
    ] == [
        (1, 0, 17, 0),  # evicted
        (1, 0, 17, 0),  # has a node
        (0, 1, 17, 0),  # its volume is attached there
        (0, 0, 14, gibibytes(30)),  # rebuilt
        (0, 0, 14, gibibytes(30)),  # the old replica is removed, which the status does not show yet
        (0, 0, 17, gibibytes(30)),  # the status shows it, and nothing is left to do
        (0, 0, 17, gibibytes(30)),  # the drain finishes
    ]
    assert [point.step for point in points] == list(range(7))


def test_a_disk_above_its_limit_is_overbooked() -> None:
    cluster = situation(node("a", 20, listed={"db-0-a": 30}), node("b"), running("db-0", "a"))
    points = history_of(cluster, partial(drain, nodes=("a",)))
    assert [points[0].overbooked, points[-1].overbooked] == [1, 0]


def test_the_disks_of_a_lost_node_are_not_free() -> None:
    points = history_of(situation(node("a"), node("b")), partial(lose_nodes, nodes=("b",)))
    assert points[-1].free_bytes == gibibytes(100)


def test_a_pod_that_a_budget_keeps_is_still_to_be_evicted() -> None:
    """It does not wait, because it runs."""
    pods = add_labels(running("web-0", "a"), app="web")
    cluster = situation(node("a", listed={"web-0-a": 30}), node("b"), pods, disruption_budget(maxUnavailable=0))
    points = history_of(cluster, partial(drain, nodes=("a",)))
    assert {(point.waiting, point.to_evict) for point in points} == {(0, 1)}


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 9, 100, 1001])
def test_a_long_history_keeps_evenly_spread_points(steps: int) -> None:
    cluster = situation(node("a")).cluster
    history = OrderHistory(cluster, limit=8)
    for number in range(steps):
        history.observe(OrderProgress(cluster, waiting=number, to_evict=0, copied_bytes=0))
    points = history.points()
    assert 1 <= len(points) <= 8
    assert [point.waiting for point in points] == [point.step for point in points]
    assert (points[0].step, points[-1].step) == (0, steps - 1)
    assert len({second.step - first.step for first, second in pairwise(points[:-1])}) <= 1
