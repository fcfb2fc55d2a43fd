"""Every remedy works, and no cheaper one exists, by brute force on random clusters."""

from random import Random

import pytest
from hypothesis import given, strategies as st

from scheduler_core.predict.pod_decision import PodDecider
from scheduler_core.predict.remedies import Trials
from scheduler_core.predict.remedy import Intervention, Step, move_step, step_changes
from scheduler_core.structs import replace
from tests.examples import examples
from tests.worlds.predicted_clusters import OPTIONS, every_move
from tests.worlds.remedies import World, draw_world, every_step, full_worlds, waiting, worlds


@examples(50)
@given(worlds() | full_worlds())
def test_every_remedy_works_and_no_byte_is_superfluous(world: World) -> None:
    """The commands are applied, and the decision is made anew."""
    assert not (world.fits and world.remedies)
    for remedy in world.remedies:
        assert world.works(remedy), remedy.text
        if remedy.cost.intervention is Intervention.SPACE:
            assert not world.fits_after(replace(remedy, size=remedy.size - 1)), remedy.text


@examples(50)
@given(worlds())
def test_remedies_come_in_the_order_of_their_cost(world: World) -> None:
    costs = [remedy.cost for remedy in world.remedies]
    assert costs == sorted(costs)
    assert [remedy.cost for remedy in world.find(1)] == costs[:1]


@examples(50)
@given(worlds() | full_worlds())
def test_no_single_step_is_cheaper_than_the_first_remedy(world: World) -> None:
    """All steps on all nodes and disks are tried. They have several sizes below the least one, or all the space there is."""
    cost = next((remedy.cost for remedy in world.find(1)), None)
    if world.fits:
        return
    sizes: set[int | None] = {None}
    if cost is not None and cost.intervention is Intervention.SPACE:
        sizes = {cost.size - 1, cost.size * 2 // 3, cost.size // 3}
    steps = dict.fromkeys(step for size in sizes for step in every_step(world.cluster, size))
    for step in (*steps, *map(move_step, every_move(world.cluster))):
        if cost is None or step.cost < cost:
            assert not world.works(step), step


@examples(100)
@given(worlds(elsewhere=0.0) | worlds(elsewhere=1.0) | full_worlds(), st.randoms(use_true_random=False))
def test_deciding_about_the_changed_node_alone_finds_the_same(world: World, chance: Random) -> None:
    """Each trial is compared with a plain decision about every node, made without what earlier ones left in caches."""
    steps = [*every_step(world.cluster, None)]
    chance.shuffle(steps)
    if not world.fits:
        _compare_with_plain_decisions(world, steps[:12])


@pytest.mark.parametrize("seed", [5444, 7187, 10547])
def test_what_a_step_does_for_another_pods_volume_counts_although_the_trial_before_made_it_too(seed: int) -> None:
    """The volume gets room on its node, and then counts on no other."""
    world = draw_world(Random(seed), elsewhere=0.0)  # noqa: S311 # repeatable, not secret
    _compare_with_plain_decisions(world, [*every_step(world.cluster, None)])


def test_a_reserve_smaller_than_the_volume_may_suffice_where_another_pods_volume_takes_the_space() -> None:
    world = draw_world(Random(779), elsewhere=0.0)  # noqa: S311 # repeatable, not secret
    (remedy,) = world.find(1)
    assert remedy.text == "reserve 5Gi less on disk n0/disk-2 (5Gi instead of 10Gi)"


def _compare_with_plain_decisions(world: World, steps: list[Step]) -> None:
    trials = Trials(waiting(world.cluster), world.cluster, OPTIONS, 10_000)
    for step in steps:
        objects, node = step_changes(world.cluster, step)
        cluster = world.cluster.update(objects)
        if node is not None:
            cluster = cluster.with_scheduling(cluster.scheduling.with_node(node))
        plain = bool(PodDecider(OPTIONS).decide(waiting(cluster), cluster, lambda _: 0).node)
        # The second time, no node changes.
        assert (trials.fits(step), trials.fits(step)) == (plain, plain), step
