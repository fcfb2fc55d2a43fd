"""Each idea of the packing search on its own against brute force: the ladder above would hide one that is never wrong alone."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler_core.packing.bounds import some_class_overflows, too_many_items, with_reachable_capacities
from scheduler_core.packing.budget import Budget
from scheduler_core.packing.exact_search import search
from scheduler_core.packing.greedy import best_fit_succeeds, greedy_packings, worst_fit_succeeds
from scheduler_core.packing.minimum_bin_slack import fullest_subset, minimum_bin_slack
from scheduler_core.packing.patterns import PatternLimits
from scheduler_core.packing.presolve import DoesNotFitError, components, defer_small_items, place_deferred, place_forced
from scheduler_core.packing.subproblem import Subproblem

PLENTY = PatternLimits(max_partial=10**6, max_complete=10**6)


def packs(subproblem: Subproblem) -> bool:
    """Brute force: every disk for every volume."""

    @cache
    def place(volume: int, left: tuple[int, ...]) -> bool:
        if volume == len(subproblem.sizes):
            return True
        size = subproblem.sizes[volume]
        return any(
            place(volume + 1, (*left[:disk], room - size, *left[disk + 1 :]))
            for disk, room in enumerate(left)
            if size <= room and subproblem.masks[volume] >> disk & 1
        )

    return place(0, tuple(subproblem.capacities))


def holds(subproblem: Subproblem, assignment: list[int]) -> bool:
    """Whether a plan is one."""
    left = list(subproblem.capacities)
    for volume, disk in enumerate(assignment):
        left[disk] -= subproblem.sizes[volume]
    return min(left) >= 0 and all(mask >> disk & 1 for mask, disk in zip(subproblem.masks, assignment, strict=True))


@st.composite
def subproblems(draw: st.DrawFn, most_volumes: int = 8, *, planted: bool | None = None) -> Subproblem:
    """Positive sizes; half of the time capacities that a known packing fills to the last byte, give or take a little."""
    disks = draw(st.integers(1, 4))
    lowest, highest = draw(st.sampled_from([(1, 4), (1, 12), (5, 12), (20, 60)]))
    sizes = draw(st.lists(st.integers(lowest, highest), min_size=1, max_size=most_volumes))
    masks = [(1 << disks) - 1] * len(sizes)
    if draw(st.booleans()):
        masks = draw(st.lists(st.integers(1, (1 << disks) - 1), min_size=len(sizes), max_size=len(sizes)))
    if planted is None and draw(st.booleans()):
        return Subproblem(sizes, masks, draw(st.lists(st.integers(0, 60), min_size=disks, max_size=disks)))
    capacities = [0] * disks
    for size, mask in zip(sizes, masks, strict=True):
        capacities[draw(st.sampled_from([disk for disk in range(disks) if mask >> disk & 1]))] += size
    if planted is None:
        capacities = [max(0, room + draw(st.sampled_from([0, 0, 1, -1]))) for room in capacities]
    return Subproblem(sizes, masks, capacities)


@settings(max_examples=500, deadline=None)
@given(subproblems())
def test_the_exact_search_alone_is_exact(subproblem: Subproblem) -> None:
    """Without presolve, greedy packings and bounds before it."""
    assignment = search(subproblem, PLENTY, Budget(10**9))

    assert (assignment is not None) == packs(subproblem)
    assert assignment is None or holds(subproblem, assignment)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(3, 14), min_size=1, max_size=4), min_size=4, max_size=7), st.data())
def test_the_exact_search_finds_known_packings_through_its_dead_ends(
    contents: list[list[int]], data: st.DataObject
) -> None:
    """Tight and of few sizes: many states are met again, and only truly equal ones may share a verdict."""
    sizes = data.draw(st.permutations([size for disk in contents for size in disk]))
    capacities = [sum(disk) + data.draw(st.sampled_from([0, 0, 0, 1])) for disk in contents]
    subproblem = Subproblem(sizes, [(1 << len(capacities)) - 1] * len(sizes), capacities)

    assignment = search(subproblem, PLENTY, Budget(10**6))

    assert assignment is not None
    assert holds(subproblem, assignment)


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
def test_a_dead_end_is_one_only_with_the_same_disks_left(sizes: list[int], capacities: list[int]) -> None:
    """The same volumes come back with other disks to go to; remembering the volumes alone would deny these packings."""
    subproblem = Subproblem(sizes, [(1 << len(capacities)) - 1] * len(sizes), capacities)

    assignment = search(subproblem, PLENTY, Budget())

    assert assignment is not None
    assert holds(subproblem, assignment)


@settings(max_examples=300, deadline=None)
@given(subproblems(planted=True))
def test_no_proof_rules_out_a_known_packing(subproblem: Subproblem) -> None:
    """Proofs say "does not fit" or nothing."""
    assert not some_class_overflows(subproblem)
    if not subproblem.is_restricted:
        assert not too_many_items(subproblem.sizes, subproblem.capacities)


@settings(max_examples=300, deadline=None)
@given(subproblems())
def test_cutting_capacities_to_reachable_sums_changes_no_answer(subproblem: Subproblem) -> None:
    """Bytes no sum of volumes reaches stay free in every packing."""
    assert packs(with_reachable_capacities(subproblem)) == packs(subproblem)


@settings(max_examples=200, deadline=None)
@given(subproblems())
def test_greedy_packings_only_claim_packings_that_hold(subproblem: Subproblem) -> None:
    """A success is a proof."""
    assert all(holds(subproblem, assignment) for assignment in greedy_packings(subproblem) if assignment is not None)
    if not subproblem.is_restricted and subproblem.masks[0] == (1 << len(subproblem.capacities)) - 1:
        descending = sorted(subproblem.sizes, reverse=True)
        assert packs(subproblem) or not best_fit_succeeds(descending, subproblem.capacities)
        assert packs(subproblem) or not worst_fit_succeeds(descending, subproblem.capacities)


@settings(max_examples=300, deadline=None)
@given(subproblems())
def test_placing_forced_volumes_changes_no_answer(subproblem: Subproblem) -> None:
    """What only one disk can take goes there in every packing."""
    try:
        partial = place_forced(subproblem.sizes, subproblem.masks, subproblem.capacities)
    except DoesNotFitError:
        assert not packs(subproblem)
        return
    remainder = Subproblem(partial.sizes, partial.masks, partial.capacities).restrict(
        partial.unassigned, range(len(subproblem.capacities))
    )

    assert min(partial.capacities) >= 0
    assert packs(remainder) == packs(subproblem)


@settings(max_examples=300, deadline=None)
@given(subproblems())
def test_deferred_small_volumes_always_fit_afterwards(subproblem: Subproblem) -> None:
    """Whatever packing of the others is chosen, they still fit."""
    try:
        partial = place_forced(subproblem.sizes, subproblem.masks, subproblem.capacities)
    except DoesNotFitError:
        return
    deferred = defer_small_items(partial)
    remainder = Subproblem(partial.sizes, partial.masks, partial.capacities).restrict(
        partial.unassigned, range(len(subproblem.capacities))
    )
    assert packs(remainder) == packs(subproblem)
    assignment = search(remainder, PLENTY, Budget(10**9)) if remainder.sizes else []
    assume(assignment is not None)
    for volume, disk in zip(partial.unassigned, assignment or [], strict=True):
        partial.assignment[volume] = disk
        partial.capacities[disk] -= partial.sizes[volume]
    place_deferred(partial, deferred)

    assert holds(subproblem, partial.assignment)


@settings(max_examples=200, deadline=None)
@given(subproblems())
def test_components_share_no_disk_and_leave_no_volume_out(subproblem: Subproblem) -> None:
    """Each is an independent packing problem."""
    try:
        partial = place_forced(subproblem.sizes, subproblem.masks, subproblem.capacities)
    except DoesNotFitError:
        return
    groups = components(partial)
    areas = [{disk for volume in group for disk in range(4) if partial.masks[volume] >> disk & 1} for group in groups]

    assert sorted(volume for group in groups for volume in group) == partial.unassigned
    assert sum(map(len, areas)) == len(set().union(*areas))


@settings(max_examples=200, deadline=None)
@given(subproblems(most_volumes=12))
def test_minimum_bin_slack_only_claims_packings_that_hold(subproblem: Subproblem) -> None:
    """Filling disks one by one and repairing the remainder ends in a plan or in nothing."""
    assignment = minimum_bin_slack(subproblem, Budget(20_000))

    assert assignment is None or holds(subproblem, assignment)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(0, 80))
def test_the_fullest_subset_is_the_fullest(sizes: list[int], room: int) -> None:
    """No subset of the volumes comes closer to the room without exceeding it."""
    chosen = fullest_subset(sizes, room, 1)
    sums = {0}
    for size in sizes:
        sums |= {total + size for total in sums}

    assert len(set(chosen)) == len(chosen)
    assert sum(sizes[at] for at in chosen) == max(total for total in sums if total <= room)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(0, 80), st.integers(2, 9))
def test_a_coarser_unit_never_overfills(sizes: list[int], room: int, unit: int) -> None:
    """Rounding sizes up may leave a gap, nothing worse."""
    assert sum(sizes[at] for at in fullest_subset(sizes, room, unit)) <= room
