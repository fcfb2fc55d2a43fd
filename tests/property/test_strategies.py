"""What every run of every strategy keeps, on random clusters. Pods, lags and seeds are random, too."""

import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.decide.decision import Packing
from scheduler_core.predict.situation import Situation
from tests.examples import examples
from tests.worlds.generated_cluster import play_strategy, with_pods
from tests.worlds.paced_timeline import Pace
from tests.worlds.strategies import StrategyName, StrategyRun

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


def _bytes_by_disk(result: StrategyRun) -> dict[str, int]:
    sums: dict[str, int] = {}
    for replica in result.end.cluster.snapshot.replicas.values():
        sums[replica.disk_id] = sums.get(replica.disk_id, 0) + replica.size
    return sums


@few
@given(worlds(), names)
def test_the_counts_are_those_of_the_objects(world: World, name: StrategyName) -> None:
    """Placed pods, stuck pods and overbooked disks are counted again. The objects in the end are counted."""
    result = play_strategy(world.start, name, world.seed, world.pace)
    snapshot = result.end.cluster.snapshot
    with_data = {replica.volume for replica in snapshot.replicas.values() if replica.node_id and replica.healthy_at}
    complete = {
        key
        for key, node in result.end.nodes.items()
        if node and {volume.name for volume in result.end.cluster.volumes_of(snapshot.pods[key])} <= with_data
    }
    assert result.placed == len(complete)
    assert {*result.end.stuck} == {*result.end.nodes} - complete
    sums = _bytes_by_disk(result)
    overbooked = {
        (node.name, disk.name): sums[disk.uuid] - disk.storage_maximum
        for node in snapshot.longhorn_nodes.values()
        for disk in node.disks
        if sums.get(disk.uuid, 0) > disk.storage_maximum
    }
    assert {*overbooked} <= {*result.overbooked}
    assert all(over <= result.overbooked[place] for place, over in overbooked.items())


@few
@given(worlds(), names)
def test_a_remote_volume_was_misplaced(world: World, name: StrategyName) -> None:
    """A volume away from its pod in the end was misplaced. It was placed elsewhere when it was new."""
    result = play_strategy(world.start, name, world.seed, world.pace)
    for key, node in result.end.nodes.items():
        for volume in result.end.cluster.volumes_of(result.end.cluster.snapshot.pods[key]):
            places = {replica.node_id for replica in result.end.cluster.state.view.replicas_of(volume.name)}
            assert not places or node in places or volume.name in result.misplaced


@few
@given(worlds(), names)
def test_the_status_shows_everything_in_the_end(world: World, name: StrategyName) -> None:
    """However long it lagged, it lists exactly the replicas that exist."""
    result = play_strategy(world.start, name, world.seed, world.pace)
    sums = _bytes_by_disk(result)
    for node in result.end.cluster.snapshot.longhorn_nodes.values():
        for disk in node.disks:
            assert disk.storage_scheduled == sum(disk.scheduled_replicas.values()) == sums.get(disk.uuid, 0)


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


@few
@given(worlds())
def test_stale_safe_packing_does_no_wrong_on_any_status(world: World) -> None:
    """Nothing is overbooked, misplaced or stuck, however far the status is behind."""
    result = play_strategy(world.start, StrategyName.CAPACITY, world.seed, world.pace, Packing.STALE_SAFE)
    assert (result.overbooked, result.misplaced, result.end.stuck) == ({}, frozenset(), {})


@few
@given(worlds())
def test_the_guard_does_no_wrong_on_any_status(world: World) -> None:
    """Nothing is overbooked, misplaced or stuck. That is so though every node with a packing is offered."""
    result = play_strategy(world.start, StrategyName.GUARDED, world.seed, world.pace)
    assert (result.overbooked, result.misplaced, result.end.stuck) == ({}, frozenset(), {})


@few
@given(worlds(volumes=1))
def test_pods_of_one_volume_do_not_meet_by_the_proposal(world: World) -> None:
    """Its reservations keep such pods apart while no time-out ends. So each one gets the space that its decision found."""
    pace = Pace(world.pace.lag, world.pace.binding, scheduling_timeout=10_000, reservation_timeout=10_000)
    result = play_strategy(world.start, StrategyName.PROPOSAL, world.seed, pace)
    assert (result.overbooked, result.misplaced, result.end.stuck) == ({}, frozenset(), {})
