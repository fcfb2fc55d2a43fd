"""Every remedy works, and no cheaper one exists, by brute force.

None of its steps is idle. The clusters are random.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from scheduler_core.extender.planning.remedy import Intervention, Remedy, move_step
from scheduler_core.extender.planning.replica_moves import replica_moves
from tests.worlds.remedies import World, every_step, full_worlds, worlds


@settings(max_examples=50)
@given(worlds() | full_worlds())
def test_every_remedy_works_and_no_step_or_byte_is_superfluous(world: World) -> None:
    """The commands are applied, and the decision is made anew."""
    assert not (world.fits and world.remedies)
    for remedy in world.remedies:
        assert world.works(remedy), remedy.text
        for step in remedy.steps:
            others = [each for each in remedy.steps if each is not step]
            assert not others or not world.fits_after(*others), remedy.text
            if step.intervention is Intervention.SPACE:
                less = [replace(each, size=each.size - 1) if each is step else each for each in remedy.steps]
                assert not world.fits_after(*less), remedy.text


@settings(max_examples=50)
@given(worlds())
def test_remedies_come_in_the_order_of_their_cost(world: World) -> None:
    """A search for one remedy finds one of the least cost."""
    costs = [remedy.cost for remedy in world.remedies]
    assert costs == sorted(costs)
    assert [remedy.cost for remedy in world.find(1)] == costs[:1]


@settings(max_examples=50)
@given(worlds() | full_worlds())
def test_no_single_step_is_cheaper_than_the_first_remedy(world: World) -> None:
    """All steps on all nodes and disks are tried.

    They have several sizes below the least one, or all the space there is.
    """
    cost = next((remedy.cost for remedy in world.find(1)), None)
    if world.fits:
        return
    sizes: set[int | None] = {None}
    if cost is not None and cost.steps == 1 and cost.intervention is Intervention.SPACE:
        sizes = {cost.size - 1, cost.size * 2 // 3, cost.size // 3}
    steps = [step for size in sizes for step in every_step(world.cluster, size)]
    for step in (*steps, *map(move_step, replica_moves(world.cluster))):
        remedy = Remedy((step,))
        if cost is None or remedy.cost < cost:
            assert not world.works(remedy), step


@settings(max_examples=50)
@given(worlds())
def test_where_no_remedy_is_found_no_two_steps_on_one_node_help(world: World) -> None:
    """A setting and any other step are tried.

    The other step has all the space there is.
    """
    if world.fits or world.find(1):
        return
    steps = [*every_step(world.cluster, None)]
    for first in steps:
        for second in steps:
            if first.intervention is Intervention.SETTING and first.node == second.node and first != second:
                assert not world.fits_after(first, second), (first, second)
