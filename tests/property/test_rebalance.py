"""Every plan of replica moves leads to what it says. That is so whatever Longhorn chooses, and no plan of fewer moves does the same."""

import random
from collections.abc import Iterator
from functools import partial

from hypothesis import given, strategies as st

from scheduler_core.cluster.view import View
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.model.generic import PodKey
from scheduler_core.monitor.capacity_report import CapacityReport, LargestVolumes
from scheduler_core.predict.cluster_additions import scale
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.predicted_replicas import Choose, ReplicaMove, apply_move, next_step
from scheduler_core.predict.prediction_input import Situation
from scheduler_core.predict.replica_moves import Baseline, Rebalance, find_moves, largest_volume_goal, waiting_pods_goal
from scheduler_core.structs import replace
from tests.builders import GI
from tests.examples import examples
from tests.property.test_what_if import worlds
from tests.worlds.predicted_clusters import OPTIONS, after, every_move, play, workload

CLASS = "longhorn"
ORDERS = 3
Plan = tuple[tuple[ReplicaMove, ...], tuple[PredictedCluster, ...]]


@st.composite
def situations(draw: st.DrawFn, *, pods: int = 0) -> Situation:
    """A random cluster in which all volumes are healthy. `pods` new ones wait, most of them too large to fit."""
    start = draw(worlds()).start
    if not pods:
        return start
    size = largest_volume(start.cluster) // GI + draw(st.sampled_from((-10, 1, 5, 10, 20)))
    return after(start, partial(scale, workload=workload(max(1, size)), count=pods))


def choices() -> list[Choose]:
    """The choices of some orders."""
    return [random.Random(seed).randrange for seed in range(ORDERS)]  # noqa: S311


def largest_volume(cluster: PredictedCluster) -> int:
    view = View.of(cluster.snapshot, cluster.state.view.cluster.now)
    return CapacityReport.of(ClusterState.of(view), with_disks=False).largest_volumes[CLASS]


def placed_pods(start: Situation, cluster: PredictedCluster) -> list[frozenset[PodKey]]:
    """The pods that are placed in each order."""
    results = play(replace(start, cluster=cluster), ORDERS)
    return [frozenset(key for key in result.nodes if key not in result.stuck) for result in results]


def find_largest(start: Situation, moves: int, size: int | None = None) -> Rebalance:
    baseline = Baseline.of(start, OPTIONS)
    return find_moves(largest_volume_goal(start.cluster, CLASS, size), baseline, moves)


def find_pods(start: Situation, moves: int) -> Rebalance:
    baseline = Baseline.of(start, OPTIONS)
    return find_moves(waiting_pods_goal(start, OPTIONS, choices), baseline, moves)


def outcomes(start: PredictedCluster, result: Rebalance) -> list[PredictedCluster]:
    """Every cluster that the plan may lead to, move by move. Longhorn offers the moves."""
    clusters = [start]
    for move in result.plan.moves if result.plan is not None else ():
        following = []
        for cluster in clusters:
            (current,) = (each for each in every_move(cluster) if each.replica == move.replica)
            assert {*current.targets} <= {*move.targets}
            following += [apply_move(cluster, current, target) for target in current.targets]
        clusters = following
    return clusters


def plans(start: PredictedCluster, length: int) -> Iterator[Plan]:
    """Every sequence of so many moves, with every cluster after it. The moved replicas exist at the start."""
    if not length:
        yield (), (start,)
        return
    for moves, clusters in plans(start, length - 1):
        offered = [{move.replica: move for move in every_move(cluster)} for cluster in clusters]
        for name in sorted(start.snapshot.replicas):
            if all(name in by_name for by_name in offered):
                following = tuple(
                    apply_move(cluster, by_name[name], target)
                    for cluster, by_name in zip(clusters, offered, strict=True)
                    for target in by_name[name].targets
                )
                yield (*moves, offered[0][name]), following


def is_worse(before: PredictedCluster, cluster: PredictedCluster) -> bool:
    """Whether a volume is smaller, or Longhorn's next step differs. The step places a local replica that could not be
    placed before, or the reverse.
    """
    unsettled = [
        volume.name
        for volume in before.snapshot.volumes.values()
        if volume.data_locality == "best-effort"
        and volume.current_node_id not in {replica.node_id for replica in before.state.view.replicas_of(volume.name)}
    ]
    steps = [next_step(each, name, lambda _: 0).changed for name in unsettled for each in (before, cluster)]
    return largest_volume(cluster) < largest_volume(before) or steps[::2] != steps[1::2]


@given(situations(), st.integers(1, 2))
def test_the_largest_volume_is_as_large_as_the_plan_says(start: Situation, moves: int) -> None:
    """In the worst case exactly so large, and larger than before."""
    result = find_largest(start, moves)
    sizes = [largest_volume(cluster) for cluster in outcomes(start.cluster, result)]
    assert min(sizes) == result.value
    assert result.before == largest_volume(start.cluster)
    assert (result.plan is None) == (result.value == result.before)


@examples(40)
@given(situations())
def test_no_plan_of_fewer_or_equal_moves_is_better(start: Situation) -> None:
    result = find_largest(start, 2)
    assert result.exhausted_moves == (1 if result.plan is not None and len(result.plan.moves) == 1 else 2)
    for length in (1, 2):
        values = [
            (min(largest_volume(cluster) for cluster in clusters), -sum(move.copied_bytes for move in moves))
            for moves, clusters in plans(start.cluster, length)
            if not any(is_worse(start.cluster, cluster) for cluster in clusters)
        ]
        best = max(values, default=(0, 0))
        if best[0] > result.before:
            assert result.plan is not None
            assert (len(result.plan.moves), result.value, -result.plan.copied_bytes) == (length, *best)
            return
    assert result.plan is None


@given(situations(), st.integers(1, 150))
def test_a_size_is_reached_or_there_is_no_plan(start: Situation, size: int) -> None:
    """A plan that would only come closer is none."""
    result = find_largest(start, 2, size * GI)
    sizes = [largest_volume(cluster) for cluster in outcomes(start.cluster, result)]
    assert result.reached == (min(sizes) >= size * GI)
    assert result.reached or result.plan is None


@examples(40)
@given(situations(pods=2))
def test_the_waiting_pods_fit_after_the_plan(start: Situation) -> None:
    """As many as it says are placed in every order. Those that always fitted before are among them."""
    result = find_pods(start, 2)
    before = placed_pods(start, start.cluster)
    placed = [keys for cluster in outcomes(start.cluster, result) for keys in placed_pods(start, cluster)]
    assert result.before == min(len(keys) for keys in before)
    assert result.value == min(len(keys) for keys in placed)
    assert all(keys >= frozenset.intersection(*before) for keys in placed)


@examples(40)
@given(situations(pods=1))
def test_no_single_move_makes_the_pod_fit_if_no_plan_says_so(start: Situation) -> None:
    """Every move is tried. Of those that help, the one with the fewest bytes is the plan."""
    result = find_pods(start, 1)
    if result.before:
        assert result.plan is None
        return
    copied = [
        moves[0].copied_bytes
        for moves, clusters in plans(start.cluster, 1)
        if all(all(placed_pods(start, cluster)) for cluster in clusters)
        and not any(is_worse(start.cluster, cluster) for cluster in clusters)
    ]
    assert result.exhausted_moves == 1
    assert (result.plan is not None) == bool(copied)
    assert result.plan is None or result.plan.copied_bytes == min(copied)


@given(situations())
def test_the_sizes_after_a_move_are_those_of_the_whole_cluster(start: Situation) -> None:
    """Looking at the changed nodes alone is enough."""
    largest = LargestVolumes(start.cluster.state.view)
    for move in every_move(start.cluster):
        for target in move.targets:
            cluster = apply_move(start.cluster, move, target)
            assert largest.after(cluster.state.view, {move.origin.node, target.node})[CLASS] == largest_volume(cluster)
