"""Strategies: what each of them leads to on clusters where they differ."""

import random
from functools import partial

import pytest

from scheduler_core.decide.decision import Packing
from scheduler_core.errors import CoreError
from scheduler_core.model import kube
from scheduler_core.model.verdict import Reason
from scheduler_core.predict.cluster_additions import Workload, scale
from scheduler_core.predict.predicted_cluster import StatusChange, hide_changes, list_replica, show_change, with_disk
from scheduler_core.predict.predicted_replicas import Choose, next_step
from scheduler_core.values import replace
from tests.builders import claim, persistent_volume, replica, storage_class, volume
from tests.worlds.generated_cluster import (
    AT_ONCE,
    GIBIBYTE,
    VOLUME_SIZES,
    add_pods,
    disks_of,
    draw_cluster,
    draw_volume_sizes,
    play_seeds,
    play_strategy,
    with_pods,
)
from tests.worlds.paced_timeline import Pace
from tests.worlds.predicted_clusters import after, node, owned_pod, running, situation
from tests.worlds.strategies import Spread, StrategyName, StrategyRun, compare_strategies, move_replica, summarize_runs

NONE = StrategyName.NONE
PROPOSAL = StrategyName.PROPOSAL
CAPACITY = StrategyName.CAPACITY
GUARDED = StrategyName.GUARDED
EVERY = pytest.mark.parametrize("name", StrategyName)


def nodes_of(result: StrategyRun) -> list[str]:
    return sorted(result.end.nodes.values())


@EVERY
def test_a_pod_with_plenty_of_room_is_placed(name: StrategyName) -> None:
    result = play_strategy(with_pods({"a": [100], "b": [100]}, [30]), name)
    assert (result.placed, result.misplaced, result.overbooked) == (1, frozenset(), {})
    assert result.last_placement == 10


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


def test_a_current_status_misplaces_instead() -> None:
    results = play_seeds(with_pods({"a": [100], "b": [100]}, [60], [60]), NONE, AT_ONCE)
    assert not any(result.overbooked for result in results)
    assert {len(result.misplaced) for result in results if len({*nodes_of(result)}) == 1} == {1}


def test_the_proposal_keeps_a_node_until_its_status_lists_the_replica() -> None:
    start = with_pods({"a": [100]}, [30], [30], [30])
    pace = Pace(lag=40, binding=5)
    proposal = play_strategy(start, PROPOSAL, pace=pace)
    capacity = play_strategy(start, CAPACITY, pace=pace)
    assert (proposal.placed, capacity.placed) == (3, 3)
    assert capacity.last_placement == 7
    # The second pod is decided no earlier than 45 steps after the first one, and so is the third.
    assert proposal.last_placement >= 2 * 45 + 5


def test_the_proposal_decides_one_pod_at_a_time() -> None:
    start = with_pods({name: [100] for name in "abcd"}, [60], [60], [60], [60])
    assert play_strategy(start, PROPOSAL, pace=Pace(lag=10, binding=20)).last_placement == 4 * 20
    assert play_strategy(start, CAPACITY, pace=Pace(lag=10, binding=20)).last_placement == 3 + 20


def test_a_reservation_ends_at_its_timeout() -> None:
    start = with_pods({"a": [100]}, [30], [30])
    pace = Pace(lag=100_000, binding=0, reservation_timeout=50)
    result = play_strategy(start, PROPOSAL, pace=pace)
    assert result.placed == 2
    assert 50 <= result.last_placement < 100
    assert play_strategy(start, PROPOSAL, pace=replace(pace, reservation_timeout=90)).last_placement >= 90


def test_a_pod_that_is_bound_late_reserves_nothing() -> None:
    start = with_pods({"a": [100], "b": [100]}, [60], [60])
    late = Pace(lag=10, binding=200, scheduling_timeout=110)
    places = {tuple(nodes_of(result)) for result in play_seeds(start, PROPOSAL, late)}
    assert places == {("a", "a"), ("a", "b"), ("b", "b")}
    assert any(result.misplaced for result in play_seeds(start, PROPOSAL, late))
    in_time = replace(late, scheduling_timeout=300)
    assert {tuple(nodes_of(result)) for result in play_seeds(start, PROPOSAL, in_time)} == {("a", "b")}


def test_stale_safe_packing_waits_for_the_status() -> None:
    """It refuses the node of two disks, whatever the lag, and says that it always will."""
    start = with_pods({"two": [100, 100]}, [60, 60])
    result = play_strategy(start, CAPACITY, packing=Packing.STALE_SAFE)
    assert list(result.reasons) == [Reason.NEVER_SAFE.text]
    assert any(play_seeds(start, CAPACITY, packing=Packing.AUTO)[seed].overbooked for seed in range(20))


@pytest.mark.parametrize(("disks", "sizes"), [((100, 100), (60, 60)), ((100, 60), (50, 100))])
@pytest.mark.parametrize("pace", [Pace(), AT_ONCE])
def test_the_guard_keeps_longhorn_to_a_packing(disks: tuple[float, ...], sizes: tuple[float, ...], pace: Pace) -> None:
    """Wherever Longhorn would place the volumes, each of them gets its disk.

    Without it some run goes wrong.
    """
    start = with_pods({"a": disks}, sizes)
    guarded = play_seeds(start, GUARDED, pace)
    assert {result.placed for result in guarded} == {1}
    assert not any(result.overbooked or result.misplaced or result.end.stuck for result in guarded)
    assert {len({each.disk_id for each in result.end.cluster.snapshot.replicas.values()}) for result in guarded} == {2}
    capacity = play_seeds(start, CAPACITY, pace)
    wrong = any(result.overbooked or result.misplaced or result.end.stuck for result in capacity)
    assert wrong is not (disks == (100, 100) and pace is AT_ONCE)


def test_a_replica_moves_with_its_data() -> None:
    start = situation(disks_of("a", 100, 100), running("db-0", "a", 30))
    raw = start.cluster.snapshot.replicas["db-0-a"]
    placed = start.cluster.update({("replicas", raw.name): replace(raw, disk_id="a-disk-1", disk_path="/data/1/")})
    nodes = placed.snapshot.longhorn_nodes
    first = replace(nodes["a"].disks[0], storage_available=70 * GIBIBYTE)
    placed = placed.update(
        {("longhorn_nodes", "a"): list_replica(placed, with_disk(nodes["a"], first), first, raw.name, raw.size)}
    )
    moved = move_replica(placed, placed.snapshot.replicas[raw.name], "a-disk-2")
    old, new = moved.snapshot.longhorn_nodes["a"].disks
    replica_after = moved.snapshot.replicas[raw.name]
    assert (replica_after.disk_id, replica_after.disk_path) == ("a-disk-2", "/data/2/")
    assert (old.storage_scheduled, dict(old.scheduled_replicas)) == (0, {})
    assert (new.storage_scheduled, dict(new.scheduled_replicas)) == (raw.size, {raw.name: raw.size})
    assert old.storage_available > 99 * GIBIBYTE
    assert 69 * GIBIBYTE < new.storage_available <= 70 * GIBIBYTE
    assert move_replica(placed, placed.snapshot.replicas[raw.name], "b-disk-1") is placed


@EVERY
def test_a_stateful_set_creates_one_pod_after_the_other(name: StrategyName) -> None:
    """Each pod waits for the one before it, even for ever."""
    template = kube.ClaimSpec("longhorn", 60 * GIBIBYTE, ("ReadWriteOnce",))
    first = kube.Pod("default", "web-0", volumes=(kube.ClaimVolume("data", "data-web-0", template),))
    workload = Workload("StatefulSet", "default", "web", first, in_order=True)
    start = after(situation(disks_of("a", 100)), partial(scale, workload=workload, count=4))
    result = play_strategy(start, name, pace=AT_ONCE)
    assert result.placed == 1
    assert "the pod before it does not run" in result.reasons
    assert [key[1] for key in result.end.nodes] == ["web-0", "web-1"][: len(result.end.nodes)]


def test_a_new_volume_without_data_locality_is_never_misplaced() -> None:
    start = situation(node("a", 10), node("b"), storage_class("anywhere", dataLocality="disabled"))
    start = add_pods(start, [[30 * GIBIBYTE]], "anywhere")
    results = play_seeds(start, NONE)
    assert {tuple(nodes_of(result)) for result in results} == {("a",), ("b",)}
    assert not any(result.misplaced for result in results)


def test_disks_that_were_overbooked_before_do_not_count() -> None:
    full = node("a", 100, listed={"old-a": 150})
    start = situation(full, running("old", "a", 150))
    start = add_pods(start, [[1 * GIBIBYTE]])
    assert play_strategy(start, NONE).overbooked == {}


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


def test_the_summary_has_the_least_the_median_and_the_most() -> None:
    results = play_seeds(with_pods({"a": [100], "b": [100]}, [60], [60]), NONE, AT_ONCE)
    figures = summarize_runs(NONE, 2, results)
    assert Spread.of([3, 1, 2, 9]) == Spread(1, 2, 9)
    assert figures.misplaced == Spread.of([len(result.misplaced) for result in results])
    assert (figures.misplaced.least, figures.misplaced.most) == (0, 1)
    assert (figures.placed.median, figures.waiting.median) == (2, 0)


def test_every_strategy_gets_the_pods_in_the_same_order() -> None:
    asked: list[str] = []

    def order(purpose: str) -> Choose:
        asked.append(purpose)
        return random.Random(purpose).randrange  # noqa: S311

    compared = compare_strategies(with_pods({"a": [100], "b": [100]}, [60], [60]), [order])
    assert (compared.nodes, compared.pods, compared.orders) == (2, 2, 1)
    assert [figures.name for figures in compared.strategies] == [*StrategyName]
    assert asked == ["arrival", "choices"] * len(StrategyName)


def test_a_generated_cluster_has_the_capacity_that_is_asked_for() -> None:
    cluster = draw_cluster(50, 20_000 * GIBIBYTE, random.Random(1).randrange)  # noqa: S311
    disks = [disk for entry in cluster.longhorn_nodes.values() for disk in entry.disks]
    assert len(cluster.nodes) == len(cluster.longhorn_nodes) == 50
    assert 19_900 < sum(disk.storage_maximum for disk in disks) / GIBIBYTE < 20_100
    assert len({disk.uuid for disk in disks}) == len(disks)
    assert cluster == draw_cluster(50, 20_000 * GIBIBYTE, random.Random(1).randrange)  # noqa: S311
    assert cluster != draw_cluster(50, 20_000 * GIBIBYTE, random.Random(2).randrange)  # noqa: S311


def test_generated_pods_have_their_number_of_volumes() -> None:
    sizes = draw_volume_sizes(40, 3, random.Random(1).randrange)  # noqa: S311
    assert {len(each) for each in sizes} == {3}
    assert {size for each in sizes for size in each} == {*VOLUME_SIZES}


def test_generated_pods_need_a_class_of_longhorn() -> None:
    start = situation(node("a"))
    classes = start.cluster.snapshot.storage_classes
    gone = start.cluster.update({("storage_classes", name): None for name in classes})
    with pytest.raises(CoreError, match="there is no StorageClass of Longhorn"):
        add_pods(replace(start, cluster=gone), [[GIBIBYTE]])


@EVERY
def test_claims_that_are_bound_already_keep_their_volumes(name: StrategyName) -> None:
    existing = [claim("data-db-0", 30, bound=True), persistent_volume("data-db-0", uid="uid-data-db-0")]
    existing += [volume("vol-data-db-0", 30, numberOfReplicas=1), replica("r", "vol-data-db-0", "a", size=30)]
    start = situation(node("a", listed={"r": 30}), node("b"), owned_pod("data-db-0", name="db-0"), existing)
    places = {tuple(nodes_of(result)) for result in play_seeds(start, name)}
    assert places == ({("a",), ("b",)} if name is NONE else {("a",)})
