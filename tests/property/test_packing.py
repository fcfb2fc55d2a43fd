"""The packing search, compared with trying every disk for every volume."""

from collections.abc import Sequence
from functools import cache

from hypothesis import given, strategies as st

from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.packing.feasible import assign, fits, fits_many
from scheduler_core.packing.items import Items
from tests.examples import examples

Problem = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]


def brute_force(sizes: Sequence[int], free: Sequence[int], allowed: Sequence[int] | None) -> bool:
    """Tries every disk for every volume, in the given order."""

    @cache
    def place(volume: int, remaining: tuple[int, ...]) -> bool:
        if volume == len(sizes):
            return True
        return any(
            place(volume + 1, (*remaining[:disk], room - sizes[volume], *remaining[disk + 1 :]))
            for disk, room in enumerate(remaining)
            if sizes[volume] <= room and (allowed is None or allowed[volume] >> disk & 1)
        )

    return place(0, tuple(free))


def holds(sizes: Sequence[int], free: Sequence[int], allowed: Sequence[int] | None, assignment: Sequence[int]) -> bool:
    """Whether each volume has a disk that it may use, and none of these disks is overfilled."""
    remaining = list(free)
    for volume, disk in enumerate(assignment):
        remaining[disk] -= sizes[volume]
    admitted = all(allowed is None or allowed[volume] >> disk & 1 for volume, disk in enumerate(assignment))
    return len(assignment) == len(sizes) and admitted and all(remaining[disk] >= 0 for disk in assignment)


@st.composite
def problems(draw: st.DrawFn, max_volumes: int = 8, *, positive: bool = False) -> Problem:
    """Sizes with duplicates, and zeros unless `positive`; free bytes at random, or about those of a known packing."""
    disks = draw(st.integers(1, 4))
    ranges = [(1, 4), (1, 12), (5, 12), (20, 60)] if positive else [(0, 2), (0, 6), (0, 20), (0, 100)]
    lowest, highest = draw(st.sampled_from(ranges))
    sizes = tuple(draw(st.lists(st.integers(lowest, highest), min_size=lowest and 1, max_size=max_volumes)))
    everywhere = (1 << disks) - 1
    masks = st.lists(st.integers(1, everywhere), min_size=len(sizes), max_size=len(sizes)).map(tuple)
    allowed: tuple[int, ...] | None = draw(st.one_of(st.none(), masks))
    if draw(st.booleans()):
        return sizes, tuple(draw(st.lists(st.integers(-3, 60), min_size=disks, max_size=disks))), allowed
    free = [0] * disks
    for volume, size in enumerate(sizes):
        usable = [disk for disk in range(disks) if allowed is None or allowed[volume] >> disk & 1]
        free[draw(st.sampled_from(usable))] += size
    for disk in range(disks):
        free[disk] += draw(st.sampled_from([0, 0, 0, 1, -1, 2]))
    return sizes, tuple(free), allowed


def pack(problem: Problem) -> PackingAnswer:
    sizes, free, allowed = problem
    return fits(Items(sizes), free, allowed, Budget())


@examples(400)
@given(problems())
def test_fits_and_assign_agree_with_trying_everything(problem: Problem) -> None:
    """No answer is wrong, and none of this size is missing. A plan uses allowed disks only and overfills none."""
    sizes, free, allowed = problem
    answer = PackingAnswer.YES if brute_force(*problem) else PackingAnswer.NO
    assert pack(problem) is answer
    plan = assign(Items(sizes), free, allowed, Budget())
    assert plan is answer if isinstance(plan, PackingAnswer) else holds(sizes, free, allowed, plan)
    assert isinstance(plan, PackingAnswer) is (answer is PackingAnswer.NO)


@examples(75)
@given(problems(), st.sampled_from([2, 3, 1 << 21, 1_000_003]))
def test_the_unit_does_not_matter(problem: Problem, unit: int) -> None:
    """Bytes, 2 MiB blocks or odd multiples get the same answer, with or without a remainder."""
    sizes, free, allowed = problem
    scaled = tuple(size * unit for size in sizes)

    assert pack((scaled, tuple(room * unit for room in free), allowed)) is pack(problem)
    assert pack((scaled, tuple(room * unit + unit - 1 for room in free), allowed)) is pack(problem)


@examples(75)
@given(st.lists(problems(max_volumes=5), min_size=1, max_size=5))
def test_each_of_many_nodes_gets_the_answer_it_gets_alone(variants: list[Problem]) -> None:
    items = Items(variants[0][0])
    same_masks = [allowed for sizes, _, allowed in variants if allowed is None or len(sizes) == len(items)]
    profiles = [free for sizes, free, allowed in variants if allowed is None or len(sizes) == len(items)]

    answers = fits_many(items, profiles, Budget(), same_masks)

    assert answers == [fits(items, free, allowed, Budget()) for free, allowed in zip(profiles, same_masks, strict=True)]


@examples(100)
@given(st.lists(st.lists(st.integers(1, 500), min_size=1, max_size=5), min_size=2, max_size=7), st.data())
def test_a_known_packing_without_slack_is_never_denied(contents: list[list[int]], data: st.DataObject) -> None:
    """These are larger than brute force can check: the disks are exactly full by construction."""
    sizes = data.draw(st.permutations([size for disk in contents for size in disk]))
    free = tuple(sum(disk) for disk in contents)

    assert fits(Items(sizes), free, None, Budget()) is not PackingAnswer.NO


@examples(100)
@given(problems(), st.integers(0, 60))
def test_a_small_budget_makes_answers_missing_but_never_wrong(problem: Problem, steps: int) -> None:
    sizes, free, allowed = problem
    answer = fits(Items(sizes), free, allowed, Budget(steps))

    assert answer is PackingAnswer.UNDECIDED or answer is pack(problem)
