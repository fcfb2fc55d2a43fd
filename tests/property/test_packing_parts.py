"""Each part of the packing search on its own, compared with trying everything.

The whole search would hide a wrong part behind an earlier one that is right.
"""

from __future__ import annotations

from functools import cache
from itertools import compress, product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler_core.packing.bounds import some_class_overflows, too_many_items, with_reachable_capacities
from scheduler_core.packing.budget import Budget
from scheduler_core.packing.exact_search import search
from scheduler_core.packing.greedy import best_fit_succeeds, greedy_packings, worst_fit_succeeds
from scheduler_core.packing.items import reachable_sums
from scheduler_core.packing.minimum_bin_slack import fullest_subset, minimum_bin_slack
from scheduler_core.packing.patterns import PatternLimits
from scheduler_core.packing.presolve import DoesNotFitError, components, defer_small_items, place_deferred, place_forced
from scheduler_core.packing.problem import PackingProblem

PLENTY = PatternLimits(max_partial=10**6, max_complete=10**6)


def packs(problem: PackingProblem) -> bool:
    """Tries every disk for every volume."""

    @cache
    def place(volume: int, remaining: tuple[int, ...]) -> bool:
        if volume == len(problem.sizes):
            return True
        size = problem.sizes[volume]
        return any(
            place(volume + 1, (*remaining[:disk], room - size, *remaining[disk + 1 :]))
            for disk, room in enumerate(remaining)
            if size <= room and problem.masks[volume] >> disk & 1
        )

    return place(0, tuple(problem.capacities))


def holds(problem: PackingProblem, assignment: list[int]) -> bool:
    """Whether the assignment is a packing."""
    remaining = list(problem.capacities)
    for volume, disk in enumerate(assignment):
        remaining[disk] -= problem.sizes[volume]
    return min(remaining) >= 0 and all(mask >> disk & 1 for mask, disk in zip(problem.masks, assignment, strict=True))


@st.composite
def problems(draw: st.DrawFn, max_volumes: int = 8, *, exactly_full: bool | None = None) -> PackingProblem:
    """Positive sizes; capacities at random, or about those of a known packing."""
    disks = draw(st.integers(1, 4))
    lowest, highest = draw(st.sampled_from([(1, 4), (1, 12), (5, 12), (20, 60)]))
    sizes = draw(st.lists(st.integers(lowest, highest), min_size=1, max_size=max_volumes))
    masks = [(1 << disks) - 1] * len(sizes)
    if draw(st.booleans()):
        masks = draw(st.lists(st.integers(1, (1 << disks) - 1), min_size=len(sizes), max_size=len(sizes)))
    if exactly_full is None and draw(st.booleans()):
        return PackingProblem(sizes, masks, draw(st.lists(st.integers(0, 60), min_size=disks, max_size=disks)))
    capacities = [0] * disks
    for size, mask in zip(sizes, masks, strict=True):
        capacities[draw(st.sampled_from([disk for disk in range(disks) if mask >> disk & 1]))] += size
    if exactly_full is None:
        capacities = [max(0, room + draw(st.sampled_from([0, 0, 1, -1]))) for room in capacities]
    return PackingProblem(sizes, masks, capacities)


@settings(max_examples=500, deadline=None)
@given(problems())
def test_the_exact_search_alone_is_exact(problem: PackingProblem) -> None:
    """Without presolve, greedy packings and bounds."""
    assignment = search(problem, PLENTY, Budget(10**9))

    assert (assignment is not None) == packs(problem)
    assert assignment is None or holds(problem, assignment)


@settings(max_examples=300, deadline=None)
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
    assert holds(problem, assignment)


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
    assert holds(problem, assignment)


@settings(max_examples=300, deadline=None)
@given(problems(exactly_full=True))
def test_no_proof_rules_out_a_known_packing(problem: PackingProblem) -> None:
    """Bounds answer "does not fit" or nothing."""
    assert not some_class_overflows(problem)
    if not problem.is_restricted:
        assert not too_many_items(problem.sizes, problem.capacities)


@settings(max_examples=300, deadline=None)
@given(problems())
def test_cutting_capacities_to_reachable_sums_changes_no_answer(problem: PackingProblem) -> None:
    """Bytes that no sum of volumes reaches stay free in every packing."""
    assert packs(with_reachable_capacities(problem)) == packs(problem)


@settings(max_examples=200, deadline=None)
@given(problems())
def test_greedy_packings_are_packings(problem: PackingProblem) -> None:
    """Their success is a proof."""
    assert all(holds(problem, assignment) for assignment in greedy_packings(problem) if assignment is not None)
    if not problem.is_restricted and problem.masks[0] == (1 << len(problem.capacities)) - 1:
        descending = sorted(problem.sizes, reverse=True)
        assert packs(problem) or not best_fit_succeeds(descending, problem.capacities)
        assert packs(problem) or not worst_fit_succeeds(descending, problem.capacities)


@settings(max_examples=300, deadline=None)
@given(problems())
def test_placing_forced_volumes_changes_no_answer(problem: PackingProblem) -> None:
    """In every packing a volume with one allowed disk is on that disk."""
    try:
        partial = place_forced(problem.sizes, problem.masks, problem.capacities)
    except DoesNotFitError:
        assert not packs(problem)
        return
    remainder = PackingProblem(partial.sizes, partial.masks, partial.capacities).restrict(
        partial.unassigned, range(len(problem.capacities))
    )

    assert min(partial.capacities) >= 0
    assert packs(remainder) == packs(problem)


@settings(max_examples=300, deadline=None)
@given(problems())
def test_deferred_small_volumes_always_fit_afterwards(problem: PackingProblem) -> None:
    """Whatever packing of the other volumes is chosen."""
    try:
        partial = place_forced(problem.sizes, problem.masks, problem.capacities)
    except DoesNotFitError:
        return
    deferred = defer_small_items(partial)
    remainder = PackingProblem(partial.sizes, partial.masks, partial.capacities).restrict(
        partial.unassigned, range(len(problem.capacities))
    )
    assert packs(remainder) == packs(problem)
    assignment = search(remainder, PLENTY, Budget(10**9)) if remainder.sizes else []
    assume(assignment is not None)
    for volume, disk in zip(partial.unassigned, assignment or [], strict=True):
        partial.assignment[volume] = disk
        partial.capacities[disk] -= partial.sizes[volume]
    place_deferred(partial, deferred)

    assert holds(problem, partial.assignment)


@settings(max_examples=200, deadline=None)
@given(problems())
def test_components_share_no_disk_and_leave_no_volume_out(problem: PackingProblem) -> None:
    """Each is an independent packing problem."""
    try:
        partial = place_forced(problem.sizes, problem.masks, problem.capacities)
    except DoesNotFitError:
        return
    groups = components(partial)
    areas = [{disk for volume in group for disk in range(4) if partial.masks[volume] >> disk & 1} for group in groups]

    assert sorted(volume for group in groups for volume in group) == partial.unassigned
    assert sum(map(len, areas)) == len(set().union(*areas))


@settings(max_examples=200, deadline=None)
@given(problems(max_volumes=12))
def test_a_packing_of_minimum_bin_slack_is_one(problem: PackingProblem) -> None:
    """Filling disks one by one and repairing the remainder ends in a packing or in nothing."""
    assignment = minimum_bin_slack(problem, Budget(20_000))

    assert assignment is None or holds(problem, assignment)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(0, 80))
def test_the_fullest_subset_has_the_largest_sum_that_fits(sizes: list[int], room: int) -> None:
    """No other subset is larger without exceeding the room."""
    subset = fullest_subset(sizes, room, 1)
    sums = {0}
    for size in sizes:
        sums |= {total + size for total in sums}

    assert len(set(subset)) == len(subset)
    assert sum(sizes[index] for index in subset) == max(total for total in sums if total <= room)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(0, 80), st.integers(2, 9))
def test_a_coarser_unit_never_overfills(sizes: list[int], room: int, unit: int) -> None:
    """Rounding sizes up may only leave a gap."""
    assert sum(sizes[index] for index in fullest_subset(sizes, room, unit)) <= room


@given(st.lists(st.integers(0, 9), max_size=9))
def test_reachable_sums_are_those_of_all_subsets(sizes: list[int]) -> None:
    """Also where equal sizes are counted in groups."""
    subsets = product([False, True], repeat=len(sizes))
    assert reachable_sums(sizes) == sorted({sum(compress(sizes, chosen)) for chosen in subsets})
