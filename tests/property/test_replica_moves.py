"""Every replica move leaves each volume complete, on random clusters. Its targets are what Longhorn may choose."""

from functools import partial

from hypothesis import given

from scheduler_core.longhorn.space import scheduling_limit
from scheduler_core.predict.predicted_replicas import apply_move, holds_data, next_step
from scheduler_core.structs import replace
from tests.property.test_what_if import World, worlds
from tests.worlds.predicted_clusters import after, every_move


def pick(number: int, count: int) -> int:
    return min(number, count - 1)


@given(worlds())
def test_a_move_keeps_every_volume_complete_and_no_disk_too_full(world: World) -> None:
    cluster = after(world.start, *world.changes).cluster
    for move in every_move(cluster):
        volume = cluster.snapshot.volumes[move.volume]
        for target in move.targets:
            moved = apply_move(cluster, move, target)
            replicas = moved.state.view.replicas_of(move.volume)
            assert sum(holds_data(moved, replica) for replica in replicas) == volume.number_of_replicas
            others = {*cluster.snapshot.replicas} - {move.replica}
            assert {name: moved.snapshot.replicas.get(name) for name in others} == {
                name: cluster.snapshot.replicas[name] for name in others
            }
            (new,) = (replica for replica in replicas if replica.name not in cluster.snapshot.replicas)
            place = moved.disk_of(new)
            assert place is not None
            assert (place[0].name, place[1].name) == target != move.origin
            assert place[1].storage_scheduled <= scheduling_limit(place[1], moved.state.view.settings)


@given(worlds())
def test_the_targets_are_what_longhorn_does_with_one_more_replica(world: World) -> None:
    """Some choices of Longhorn lead to each, and to nothing else. The number of replicas was raised before."""
    cluster = after(world.start, *world.changes).cluster
    for move in every_move(cluster):
        volume = cluster.snapshot.volumes[move.volume]
        raised = replace(volume, number_of_replicas=volume.number_of_replicas + 1)
        during = cluster.update({("volumes", volume.name): raised})
        reached = set()
        for number in range(len(move.targets)):
            step = next_step(during, volume.name, partial(pick, number))
            names = {*step.cluster.snapshot.replicas} - {*cluster.snapshot.replicas}
            (place,) = (step.cluster.disk_of(step.cluster.snapshot.replicas[name]) for name in names)
            assert place is not None
            reached.add((place[0].name, place[1].name))
        assert reached == {*move.targets}
