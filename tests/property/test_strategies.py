"""What every run of every strategy keeps, on random clusters. Pods, lags and seeds are random, too."""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from scheduler_core.decide.decision import Packing
from scheduler_core.model.generic import PodKey
from scheduler_core.predict.prediction_input import Situation
from tests.examples import examples
from tests.worlds.generated_cluster import play_strategy, with_pods
from tests.worlds.paced_timeline import Pace
from tests.worlds.strategies import StrategyName

_DISK_SIZES = (50, 100, 160)
_VOLUME_SIZES = (10, 20, 40, 60)


@dataclass(frozen=True)
class World:
    """A random cluster with pods, and how its runs go."""

    start: Situation
    pace: Pace
    seed: int


@st.composite
def worlds(draw: st.DrawFn, volumes: int = 3) -> World:
    """One to four nodes of one to three disks, and pods. There are up to eight pods of some volumes, and a lag of 0 to 30 steps."""
    chance = random.Random(draw(st.integers(0, 2**32)))  # noqa: S311
    nodes = {
        f"n{number}": [chance.choice(_DISK_SIZES) for _ in range(chance.randint(1, 3))]
        for number in range(chance.randint(1, 4))
    }
    pods = [
        [chance.choice(_VOLUME_SIZES) for _ in range(chance.randint(1, volumes))] for _ in range(chance.randint(1, 8))
    ]
    pace = Pace(lag=draw(st.sampled_from((0, 0, 1, 5, 30))), binding=draw(st.sampled_from((0, 3, 20))))
    return World(with_pods(nodes, *pods), pace, chance.randrange(1000))


names = st.sampled_from(StrategyName)
# A run takes up to a tenth of a second.
few = examples(40)


@few
@given(worlds(), names)
def test_the_counts_are_those_of_the_objects_in_the_end(world: World, name: StrategyName) -> None:
    """Placed pods, stuck pods and overbooked disks are counted again; a volume away from its pod was misplaced when it was new. However
    long the status lagged, it lists exactly the replicas that exist.
    """
    result = play_strategy(world.start, name, world.seed, world.pace)
    cluster = result.end.cluster
    snapshot = cluster.snapshot
    with_data = {replica.volume for replica in snapshot.replicas.values() if replica.node_id and replica.healthy_at}
    complete: set[PodKey] = set()
    for key, node in result.end.nodes.items():
        volumes = {volume.name for volume in cluster.volumes_of(snapshot.pods[key])}
        if node and volumes <= with_data:
            complete.add(key)
        for volume in volumes:
            places = {replica.node_id for replica in cluster.state.view.replicas_of(volume)}
            assert not places or node in places or volume in result.misplaced
    assert result.placed == len(complete)
    assert {*result.end.stuck} == {*result.end.nodes} - complete
    sums = Counter[str]()
    for replica in snapshot.replicas.values():
        sums[replica.disk_id] += replica.size
    for longhorn_node in snapshot.longhorn_nodes.values():
        for disk in longhorn_node.disks:
            over = sums[disk.uuid] - disk.storage_maximum
            assert over <= result.overbooked.get((longhorn_node.name, disk.name), 0)
            assert disk.storage_scheduled == sum(disk.scheduled_replicas.values()) == sums[disk.uuid]


@few
@given(worlds(), names)
def test_a_current_status_overbooks_nothing(world: World, name: StrategyName) -> None:
    """Longhorn itself keeps to its limits, whatever the strategy."""
    current = Pace(lag=0, binding=world.pace.binding)
    assert play_strategy(world.start, name, world.seed, current).overbooked == {}


@few
@given(worlds())
def test_order_safe_packing_misplaces_nothing_on_a_current_status(world: World) -> None:
    """Every pod that gets a node runs with its data there."""
    current = Pace(lag=0, binding=world.pace.binding)
    result = play_strategy(world.start, StrategyName.CAPACITY, world.seed, current, Packing.ORDER_SAFE)
    assert (result.misplaced, result.end.stuck) == (frozenset(), {})


@pytest.mark.parametrize(
    ("name", "packing"),
    [
        pytest.param(StrategyName.CAPACITY, Packing.STALE_SAFE, id="stale-safe packing"),
        pytest.param(StrategyName.GUARDED, Packing.AUTO, id="the guard, though every node with a packing is offered"),
    ],
)
@few
@given(worlds())
def test_nothing_is_overbooked_misplaced_or_stuck_on_any_status(
    name: StrategyName, packing: Packing, world: World
) -> None:
    result = play_strategy(world.start, name, world.seed, world.pace, packing)
    assert (result.overbooked, result.misplaced, result.end.stuck) == ({}, frozenset(), {})


@few
@given(worlds(volumes=1))
def test_pods_of_one_volume_do_not_meet_by_the_proposal(world: World) -> None:
    """Its reservations keep such pods apart while no time-out ends. So each one gets the space that its decision found."""
    pace = Pace(world.pace.lag, world.pace.binding, scheduling_timeout=10_000, reservation_timeout=10_000)
    result = play_strategy(world.start, StrategyName.PROPOSAL, world.seed, pace)
    assert (result.overbooked, result.misplaced, result.end.stuck) == ({}, frozenset(), {})
