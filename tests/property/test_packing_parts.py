"""Each idea of the packing search on its own against brute force: the ladder above would hide one that is never wrong alone."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler_core.packing.bounds import some_class_overflows, too_many, with_usable_rooms
from scheduler_core.packing.budget import Budget
from scheduler_core.packing.exact_search import search
from scheduler_core.packing.greedy import attempts, best_fit_succeeds, worst_fit_succeeds
from scheduler_core.packing.minimum_bin_slack import fullest, refill
from scheduler_core.packing.patterns import Limits
from scheduler_core.packing.presolve import DoesNotFitError, components, opened, put_back, set_aside_small
from scheduler_core.packing.subproblem import Part

PLENTY = Limits(looked_at=10**6, kept=10**6)


def packs(part: Part) -> bool:
    """Brute force: every disk for every volume."""

    @cache
    def place(volume: int, left: tuple[int, ...]) -> bool:
        if volume == len(part.sizes):
            return True
        size = part.sizes[volume]
        return any(
            place(volume + 1, (*left[:disk], room - size, *left[disk + 1 :]))
            for disk, room in enumerate(left)
            if size <= room and part.masks[volume] >> disk & 1
        )

    return place(0, tuple(part.rooms))


def holds(part: Part, picked: list[int]) -> bool:
    """Whether a plan is one."""
    left = list(part.rooms)
    for volume, disk in enumerate(picked):
        left[disk] -= part.sizes[volume]
    return min(left) >= 0 and all(mask >> disk & 1 for mask, disk in zip(part.masks, picked, strict=True))


@st.composite
def parts(draw: st.DrawFn, most_volumes: int = 8, *, planted: bool | None = None) -> Part:
    """Positive sizes; half of the time rooms that a known packing fills to the last byte, give or take a little."""
    disks = draw(st.integers(1, 4))
    lowest, highest = draw(st.sampled_from([(1, 4), (1, 12), (5, 12), (20, 60)]))
    sizes = draw(st.lists(st.integers(lowest, highest), min_size=1, max_size=most_volumes))
    masks = [(1 << disks) - 1] * len(sizes)
    if draw(st.booleans()):
        masks = draw(st.lists(st.integers(1, (1 << disks) - 1), min_size=len(sizes), max_size=len(sizes)))
    if planted is None and draw(st.booleans()):
        return Part(sizes, masks, draw(st.lists(st.integers(0, 60), min_size=disks, max_size=disks)))
    rooms = [0] * disks
    for size, mask in zip(sizes, masks, strict=True):
        rooms[draw(st.sampled_from([disk for disk in range(disks) if mask >> disk & 1]))] += size
    if planted is None:
        rooms = [max(0, room + draw(st.sampled_from([0, 0, 1, -1]))) for room in rooms]
    return Part(sizes, masks, rooms)


@settings(max_examples=500, deadline=None)
@given(parts())
def test_the_exact_search_alone_is_exact(part: Part) -> None:
    """Without reductions, greedy attempts and proofs before it."""
    picked = search(part, PLENTY, Budget(10**9))

    assert (picked is not None) == packs(part)
    assert picked is None or holds(part, picked)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(3, 14), min_size=1, max_size=4), min_size=4, max_size=7), st.data())
def test_the_exact_search_finds_known_packings_through_its_dead_ends(
    contents: list[list[int]], data: st.DataObject
) -> None:
    """Tight and of few sizes: many states are met again, and only truly equal ones may share a verdict."""
    sizes = data.draw(st.permutations([size for disk in contents for size in disk]))
    rooms = [sum(disk) + data.draw(st.sampled_from([0, 0, 0, 1])) for disk in contents]
    part = Part(sizes, [(1 << len(rooms)) - 1] * len(sizes), rooms)

    picked = search(part, PLENTY, Budget(10**6))

    assert picked is not None
    assert holds(part, picked)


@pytest.mark.parametrize(
    ("sizes", "rooms"),
    [
        ([11, 15, 9, 7, 6], [15, 15, 11, 11]),
        ([3, 5, 7, 3, 9, 5], [10, 6, 9, 8]),
        ([8, 25, 12, 8, 12, 11, 3], [15, 32, 10, 28]),
        ([8, 8, 10, 5, 4, 6, 6, 13, 8, 20], [12, 12, 22, 24, 20]),
    ],
    ids=lambda value: "-".join(map(str, value)),
)
def test_a_dead_end_is_one_only_with_the_same_disks_left(sizes: list[int], rooms: list[int]) -> None:
    """The same volumes come back with other disks to go to; remembering the volumes alone would deny these packings."""
    part = Part(sizes, [(1 << len(rooms)) - 1] * len(sizes), rooms)

    picked = search(part, PLENTY, Budget())

    assert picked is not None
    assert holds(part, picked)


@settings(max_examples=300, deadline=None)
@given(parts(planted=True))
def test_no_proof_rules_out_a_known_packing(part: Part) -> None:
    """Proofs say "does not fit" or nothing."""
    assert not some_class_overflows(part)
    if not part.restricted:
        assert not too_many(part.sizes, part.rooms)


@settings(max_examples=300, deadline=None)
@given(parts())
def test_cutting_rooms_to_what_sums_can_reach_changes_no_answer(part: Part) -> None:
    """Bytes no sum of volumes reaches stay free in every packing."""
    assert packs(with_usable_rooms(part)) == packs(part)


@settings(max_examples=200, deadline=None)
@given(parts())
def test_greedy_attempts_only_claim_packings_that_hold(part: Part) -> None:
    """A success is a proof."""
    assert all(holds(part, picked) for picked in attempts(part) if picked is not None)
    if not part.restricted and part.masks[0] == (1 << len(part.rooms)) - 1:
        descending = sorted(part.sizes, reverse=True)
        assert packs(part) or not best_fit_succeeds(descending, part.rooms)
        assert packs(part) or not worst_fit_succeeds(descending, part.rooms)


@settings(max_examples=300, deadline=None)
@given(parts())
def test_placing_forced_volumes_changes_no_answer(part: Part) -> None:
    """What only one disk can take goes there in every packing."""
    try:
        case = opened(part.sizes, part.masks, part.rooms)
    except DoesNotFitError:
        assert not packs(part)
        return
    rest = Part(case.sizes, case.masks, case.rooms).narrowed(case.waiting, range(len(part.rooms)))

    assert min(case.rooms) >= 0
    assert packs(rest) == packs(part)


@settings(max_examples=300, deadline=None)
@given(parts())
def test_small_volumes_set_aside_always_find_room_afterwards(part: Part) -> None:
    """Whatever packing of the others is found, they fit beside it."""
    try:
        case = opened(part.sizes, part.masks, part.rooms)
    except DoesNotFitError:
        return
    aside = set_aside_small(case)
    rest = Part(case.sizes, case.masks, case.rooms).narrowed(case.waiting, range(len(part.rooms)))
    assert packs(rest) == packs(part)
    picked = search(rest, PLENTY, Budget(10**9)) if rest.sizes else []
    assume(picked is not None)
    for volume, disk in zip(case.waiting, picked or [], strict=True):
        case.picked[volume] = disk
        case.rooms[disk] -= case.sizes[volume]
    put_back(case, aside)

    assert holds(part, case.picked)


@settings(max_examples=200, deadline=None)
@given(parts())
def test_components_share_no_disk_and_leave_nobody_out(part: Part) -> None:
    """Each is a question of its own."""
    try:
        case = opened(part.sizes, part.masks, part.rooms)
    except DoesNotFitError:
        return
    groups = components(case)
    areas = [{disk for volume in group for disk in range(4) if case.masks[volume] >> disk & 1} for group in groups]

    assert sorted(volume for group in groups for volume in group) == case.waiting
    assert sum(map(len, areas)) == len(set().union(*areas))


@settings(max_examples=200, deadline=None)
@given(parts(most_volumes=12))
def test_refilling_only_claims_packings_that_hold(part: Part) -> None:
    """Filling disks one by one and repairing the rest ends in a plan or in nothing."""
    picked = refill(part, Budget(20_000))

    assert picked is None or holds(part, picked)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(0, 80))
def test_the_fullest_fill_is_the_fullest(sizes: list[int], room: int) -> None:
    """No subset of the volumes comes closer to the room without exceeding it."""
    chosen = fullest(sizes, room, 1)
    sums = {0}
    for size in sizes:
        sums |= {total + size for total in sums}

    assert len(set(chosen)) == len(chosen)
    assert sum(sizes[at] for at in chosen) == max(total for total in sums if total <= room)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(0, 80), st.integers(2, 9))
def test_a_coarser_unit_never_overfills(sizes: list[int], room: int, unit: int) -> None:
    """Rounding sizes up may leave a gap, nothing worse."""
    assert sum(sizes[at] for at in fullest(sizes, room, unit)) <= room
