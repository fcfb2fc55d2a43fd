"""Each part of the packing search on its own, compared with trying everything. The whole search would hide a wrong part behind an earlier
one that is right.
"""

from collections.abc import Callable, Sequence
from itertools import compress, product

import pytest
from hypothesis import given, strategies as st

from scheduler_core.packing.budget import Budget
from scheduler_core.packing.exact_search import PackingProblem, fullest_subset, minimum_bin_slack, search
from scheduler_core.packing.feasible import pack
from scheduler_core.packing.items import reachable_sums
from scheduler_core.packing.patterns import PatternLimits
from tests.examples import examples
from tests.property.test_packing import Problem, brute_force, holds, problems as packing_problems

PLENTY = PatternLimits(max_partial=10**6, max_complete=10**6)


def parts_of(problem: PackingProblem) -> Problem:
    return tuple(problem.sizes), tuple(problem.capacities), tuple(problem.masks)


@st.composite
def problems(draw: st.DrawFn, max_volumes: int = 8) -> PackingProblem:
    sizes, free, allowed = draw(packing_problems(max_volumes, positive=True))
    masks = allowed or ((1 << len(free)) - 1,) * len(sizes)
    return PackingProblem(sizes, masks, [max(0, room) for room in free])


def search_alone(problem: PackingProblem) -> Sequence[int] | None:
    return search(problem, PLENTY, Budget(10**9))


def pack_slowly(problem: PackingProblem) -> Sequence[int] | None:
    return pack(problem.sizes, problem.masks, problem.capacities, Budget(10**9))


@pytest.mark.parametrize(
    "find",
    [
        pytest.param(search_alone, id="the exact search, without minimum bin slack and proofs"),
        pytest.param(pack_slowly, id="all parts together without the fast path, though some need none of them"),
    ],
)
@examples(250)
@given(problems())
def test_a_search_is_exact(find: Callable[[PackingProblem], Sequence[int] | None], problem: PackingProblem) -> None:
    assignment = find(problem)

    assert (assignment is not None) == brute_force(*parts_of(problem))
    assert assignment is None or holds(*parts_of(problem), assignment)


@examples(150)
@given(st.lists(st.lists(st.integers(3, 14), min_size=1, max_size=4), min_size=4, max_size=7), st.data())
def test_the_exact_search_finds_known_packings_through_its_dead_ends(
    contents: list[list[int]], data: st.DataObject
) -> None:
    """Many states recur, and only equal ones may share a result."""
    sizes = data.draw(st.permutations([size for disk in contents for size in disk]))
    capacities = [sum(disk) + data.draw(st.sampled_from([0, 0, 0, 1])) for disk in contents]
    problem = PackingProblem(sizes, [(1 << len(capacities)) - 1] * len(sizes), capacities)

    assignment = search(problem, PLENTY, Budget(10**6))

    assert assignment is not None
    assert holds(*parts_of(problem), assignment)


@pytest.mark.parametrize(
    ("sizes", "capacities"),
    [
        ([11, 15, 9, 7, 6], [15, 15, 11, 11]),
        ([3, 5, 7, 3, 9, 5], [10, 6, 9, 8]),
        ([8, 25, 12, 8, 12, 11, 3], [15, 32, 10, 28]),
        ([8, 8, 10, 5, 4, 6, 6, 13, 8, 20], [12, 12, 22, 24, 20]),
    ],
    ids=lambda value: "-".join(map(str, value)),
)
def test_a_dead_end_holds_only_for_the_same_remaining_disks(sizes: list[int], capacities: list[int]) -> None:
    """Remembering the volumes alone would deny these packings."""
    problem = PackingProblem(sizes, [(1 << len(capacities)) - 1] * len(sizes), capacities)

    assignment = search(problem, PLENTY, Budget())

    assert assignment is not None
    assert holds(*parts_of(problem), assignment)


@examples(100)
@given(problems(max_volumes=12))
def test_a_packing_of_minimum_bin_slack_is_one(problem: PackingProblem) -> None:
    """Filling disks one by one and repairing the remainder ends in a packing or in nothing."""
    assignment = minimum_bin_slack(problem, Budget(20_000))

    assert assignment is None or holds(*parts_of(problem), assignment)


@examples(100)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(0, 80), st.integers(1, 9))
def test_the_fullest_subset_has_the_largest_sum_that_fits(sizes: list[int], room: int, unit: int) -> None:
    """Rounding sizes up to a coarser unit may only leave a gap."""
    sums = {0}
    for size in sizes:
        sums |= {total + size for total in sums}
    fullest = max(total for total in sums if total <= room)
    exact, coarse = (fullest_subset(sizes, room, each) for each in (1, unit))

    assert len(set(exact)) == len(exact)
    assert sum(sizes[index] for index in exact) == fullest
    assert sum(sizes[index] for index in coarse) <= room


@given(st.lists(st.integers(0, 9), max_size=9))
def test_reachable_sums_are_those_of_all_subsets(sizes: list[int]) -> None:
    """Also where equal sizes are counted in groups."""
    subsets = product([False, True], repeat=len(sizes))
    assert reachable_sums(sizes) == sorted({sum(compress(sizes, chosen)) for chosen in subsets})
