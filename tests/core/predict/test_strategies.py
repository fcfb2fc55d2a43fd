"""Strategies: what each of them leads to on clusters where they differ."""

import pytest

from scheduler_core.predict.predicted_cluster import StatusChange, hide_changes, show_change
from scheduler_core.predict.predicted_replicas import next_step
from scheduler_core.structs import replace
from tests.worlds.generated_cluster import AT_ONCE, GIBIBYTE, disks_of, play_seeds, play_strategy, with_pods
from tests.worlds.paced_timeline import Pace
from tests.worlds.predicted_clusters import running, situation
from tests.worlds.strategies import StrategyName, StrategyRun

NONE = StrategyName.NONE
PROPOSAL = StrategyName.PROPOSAL
CAPACITY = StrategyName.CAPACITY
GUARDED = StrategyName.GUARDED


def nodes_of(result: StrategyRun) -> list[str]:
    return sorted(result.end.nodes.values())


@pytest.mark.parametrize(("name", "has_node"), [(NONE, True), (PROPOSAL, False), (CAPACITY, False), (GUARDED, False)])
def test_volumes_that_fit_only_one_by_one(name: StrategyName, has_node: bool) -> None:
    result = play_strategy(with_pods({"a": [100]}, [60, 60]), name, pace=AT_ONCE)
    assert result.placed == 0
    assert bool(result.end.nodes) is has_node
    assert bool(result.end.stuck) is has_node
    assert list(result.reasons) == ([] if has_node else ["insufficient Longhorn storage for all volumes together"])


def test_the_order_of_placement_misplaces_what_the_proposal_packs() -> None:
    """The small volume may take the large disk.

    50Gi and 100Gi fit on 100Gi and 60Gi otherwise; `capacity` sends the pod elsewhere.
    """
    start = with_pods({"tight": [100, 60], "wide": [100, 100]}, [50, 100])
    proposal = play_seeds(start, PROPOSAL, AT_ONCE)
    assert any(result.misplaced for result in proposal)
    assert {node for result in proposal for node in nodes_of(result)} == {"tight", "wide"}
    capacity = play_seeds(start, CAPACITY, AT_ONCE)
    assert not any(result.misplaced for result in capacity)
    assert {node for result in capacity for node in nodes_of(result)} == {"wide"}


def test_a_status_that_lags_overbooks_what_the_proposal_packs() -> None:
    """Both volumes of 60Gi may go to one disk of 100Gi.

    `capacity` takes the node with one disk for both.
    """
    start = with_pods({"two": [100, 100], "one": [200]}, [60, 60])
    proposal = play_seeds(start, PROPOSAL)
    assert any(result.overbooked for result in proposal)
    assert {place for result in proposal for place in result.overbooked} <= {("two", "disk-1"), ("two", "disk-2")}
    assert {over for result in proposal for over in result.overbooked.values()} == {20 * GIBIBYTE}
    capacity = play_seeds(start, CAPACITY)
    assert not any(result.overbooked for result in capacity)
    assert {node for result in capacity for node in nodes_of(result)} == {"one"}


@pytest.mark.parametrize(("name", "goes_wrong"), [(NONE, True), (PROPOSAL, False), (CAPACITY, False), (GUARDED, False)])
def test_two_pods_at_the_same_time(name: StrategyName, goes_wrong: bool) -> None:
    results = play_seeds(with_pods({"a": [100], "b": [100]}, [60], [60]), name)
    assert any(result.overbooked for result in results) is goes_wrong
    assert {tuple(nodes_of(result)) for result in results} == (
        {("a", "a"), ("a", "b"), ("b", "b")} if goes_wrong else {("a", "b")}
    )


def test_the_proposal_keeps_a_node_until_its_status_lists_the_replica() -> None:
    start = with_pods({"a": [100]}, [30], [30], [30])
    pace = Pace(lag=40, binding=5)
    proposal = play_strategy(start, PROPOSAL, pace=pace)
    capacity = play_strategy(start, CAPACITY, pace=pace)
    assert (proposal.placed, capacity.placed) == (3, 3)
    assert capacity.last_placement == 7
    # The second pod is decided no earlier than 45 steps after the first one, and so is the third.
    assert proposal.last_placement >= 2 * 45 + 5


def test_a_reservation_ends_at_its_timeout() -> None:
    start = with_pods({"a": [100]}, [30], [30])
    pace = Pace(lag=100_000, binding=0, reservation_timeout=50)
    result = play_strategy(start, PROPOSAL, pace=pace)
    assert result.placed == 2
    assert 50 <= result.last_placement < 100
    assert play_strategy(start, PROPOSAL, pace=replace(pace, reservation_timeout=90)).last_placement >= 90


def test_the_status_follows_all_hidden_changes() -> None:
    start = situation(disks_of("a", 100, 100), running("x", "a"), running("y", "a"))
    current = start.cluster
    lagging = start.cluster
    hidden: list[StatusChange] = []
    for name in ("vol-data-x", "vol-data-y"):
        for gone in current.state.view.replicas_of(name):
            current = current.update({("replicas", gone.name): None})
            lagging = lagging.update({("replicas", gone.name): None})
    for name in ("vol-data-x", "vol-data-y"):
        before = lagging
        step = next_step(lagging, name, lambda _: 0)
        assert step.changed
        lagging, changes = hide_changes(before, step.cluster)
        assert lagging.snapshot.longhorn_nodes == start.cluster.snapshot.longhorn_nodes
        hidden += changes
    assert len(hidden) == 2
    for change in reversed(hidden):
        lagging = show_change(lagging, change)
    listed = {
        name: size
        for disk in lagging.snapshot.longhorn_nodes["a"].disks
        for name, size in disk.scheduled_replicas.items()
    }
    assert listed == {each.name: each.size for each in lagging.snapshot.replicas.values()}
    scheduled = [disk.storage_scheduled for disk in lagging.snapshot.longhorn_nodes["a"].disks]
    assert sum(scheduled) == sum(listed.values()) == 60 * GIBIBYTE
