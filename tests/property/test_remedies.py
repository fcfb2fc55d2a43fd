"""Every remedy works, and no cheaper one exists, by brute force on random clusters."""

from random import Random

from hypothesis import given, strategies as st

from scheduler_core.predict.pod_decision import PodDecider
from scheduler_core.predict.remedies import Trials
from scheduler_core.predict.remedy import Step, move_step, step_changes
from scheduler_core.structs import replace
from tests.examples import examples
from tests.worlds.predicted_clusters import OPTIONS, every_move
from tests.worlds.remedies import World, draw_world, every_step, full_worlds, waiting, worlds


def cost_of(step: Step) -> tuple[bool, int, int]:
    """Settings, which have no size, come before space, and that before moves; then bytes, then tags count."""
    return step.move is not None, step.size, len(step.tags)


@examples(50)
@given(worlds() | full_worlds())
def test_every_remedy_works_and_no_byte_is_superfluous(world: World) -> None:
    """The commands are applied, and the decision is made anew."""
    assert not (world.fits and world.remedies)
    for remedy in world.remedies:
        assert world.works(remedy), remedy.text
        if remedy.size and remedy.move is None:
            assert not world.fits_after(replace(remedy, size=remedy.size - 1)), remedy.text


@examples(50)
@given(worlds())
def test_remedies_come_in_the_order_of_their_cost(world: World) -> None:
    costs = [cost_of(remedy) for remedy in world.remedies]
    assert costs == sorted(costs)
    assert [cost_of(remedy) for remedy in world.find(1)] == costs[:1]


@examples(50)
@given(worlds() | full_worlds())
def test_no_single_step_is_cheaper_than_the_first_remedy(world: World) -> None:
    """All steps on all nodes and disks are tried. They have several sizes below the least one, or all the space there is."""
    first = next(iter(world.find(1)), None)
    if world.fits:
        return
    sizes: set[int | None] = {None}
    if first is not None and first.size and first.move is None:
        sizes = {first.size - 1, first.size * 2 // 3, first.size // 3}
    steps = dict.fromkeys(step for size in sizes for step in every_step(world.cluster, size))
    for step in (*steps, *map(move_step, every_move(world.cluster))):
        if first is None or cost_of(step) < cost_of(first):
            assert not world.works(step), step


@examples(60)
@given(worlds(elsewhere=0.0) | worlds(elsewhere=1.0) | full_worlds(), st.randoms(use_true_random=False))
def test_a_trial_decides_as_if_no_other_had_been_made(world: World, chance: Random) -> None:
    """Each is compared with a plain decision, made without what earlier ones left in caches."""
    steps = [*every_step(world.cluster, None)]
    chance.shuffle(steps)
    trials = Trials(waiting(world.cluster), world.cluster, OPTIONS, 10_000)
    for step in steps[:12]:
        objects, node = step_changes(world.cluster, step)
        cluster = world.cluster.update(objects)
        if node is not None:
            cluster = cluster.with_scheduling(cluster.scheduling.with_node(node))
        plain = bool(PodDecider(OPTIONS).decide(waiting(cluster), cluster, lambda _: 0).node)
        # The second time, no node changes.
        assert (trials.fits(step), trials.fits(step)) == (plain, plain), step


def test_a_reserve_smaller_than_the_volume_may_suffice_where_another_pods_volume_takes_the_space() -> None:
    world = draw_world(Random(779), elsewhere=0.0)  # noqa: S311 # repeatable, not secret
    (remedy,) = world.find(1)
    assert remedy.text == "reserve 5Gi less on disk n0/disk-2 (5Gi instead of 10Gi)"
