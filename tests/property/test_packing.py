"""The packing search against brute force that shares no code and no idea with it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cooperative import run_to_end
from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.packing.feasible import assign, fits, fits_many
from scheduler_core.packing.items import Items

Question = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]


def brute_force(sizes: Sequence[int], free: Sequence[int], allowed: Sequence[int] | None) -> bool:
    """Try every disk for every volume, in the order given."""

    @cache
    def place(volume: int, left: tuple[int, ...]) -> bool:
        if volume == len(sizes):
            return True
        return any(
            place(volume + 1, (*left[:disk], room - sizes[volume], *left[disk + 1 :]))
            for disk, room in enumerate(left)
            if sizes[volume] <= room and (allowed is None or allowed[volume] >> disk & 1)
        )

    return place(0, tuple(free))


@st.composite
def questions(draw: st.DrawFn, most_volumes: int = 8, most_disks: int = 4) -> Question:
    """Sizes with zeros and duplicates; free bytes at random, or from a packing that is known, give or take a little."""
    disks = draw(st.integers(1, most_disks))
    sizes = tuple(draw(st.lists(st.integers(0, draw(st.sampled_from([2, 6, 20, 100]))), max_size=most_volumes)))
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


def ask(question: Question) -> PackingAnswer:
    """The answer with a whole budget."""
    sizes, free, allowed = question
    return fits(Items(sizes), free, allowed, Budget())


@settings(max_examples=600, deadline=None)
@given(questions())
def test_fits_says_what_brute_force_says(question: Question) -> None:
    """Never a wrong answer, and none missing at this size."""
    assert ask(question) is (PackingAnswer.YES if brute_force(*question) else PackingAnswer.NO)


@settings(max_examples=300, deadline=None)
@given(questions())
def test_assign_agrees_with_fits_and_its_plan_holds(question: Question) -> None:
    """A plan where there is one: allowed disks only, none overfull."""
    sizes, free, allowed = question
    plan = assign(Items(sizes), free, allowed, Budget())
    answer = ask(question)

    if isinstance(plan, PackingAnswer):
        assert plan is answer
        assert plan is PackingAnswer.NO
        return
    assert answer is PackingAnswer.YES
    left = list(free)
    for volume, disk in enumerate(plan):
        left[disk] -= sizes[volume]
        assert allowed is None or allowed[volume] >> disk & 1
    assert all(left[disk] >= 0 for disk in plan)


@settings(max_examples=200, deadline=None)
@given(questions(), st.data())
def test_more_free_space_never_turns_yes_into_no(question: Question, data: st.DataObject) -> None:
    """Room is never in the way."""
    sizes, free, allowed = question
    more = tuple(room + data.draw(st.integers(0, 5)) for room in free)

    if ask(question) is PackingAnswer.YES:
        assert ask((sizes, more, allowed)) is PackingAnswer.YES


@settings(max_examples=200, deadline=None)
@given(questions(), st.randoms(use_true_random=False))
def test_the_order_of_volumes_and_disks_does_not_matter(question: Question, random: Random) -> None:
    """Names and positions decide nothing."""
    sizes, free, allowed = question
    volumes, disks = list(range(len(sizes))), list(range(len(free)))
    random.shuffle(volumes)
    random.shuffle(disks)
    masks = None
    if allowed is not None:
        masks = tuple(sum(1 << at for at, disk in enumerate(disks) if allowed[v] >> disk & 1) for v in volumes)

    assert ask((tuple(sizes[v] for v in volumes), tuple(free[d] for d in disks), masks)) is ask(question)


@settings(max_examples=150, deadline=None)
@given(questions(), st.sampled_from([2, 3, 1 << 21, 1_000_003]))
def test_the_unit_does_not_matter(question: Question, unit: int) -> None:
    """Bytes, 2 MiB blocks or odd multiples: the same answer, also with free bytes that no volume can use."""
    sizes, free, allowed = question
    scaled = tuple(size * unit for size in sizes)

    assert ask((scaled, tuple(room * unit for room in free), allowed)) is ask(question)
    assert ask((scaled, tuple(room * unit + unit - 1 for room in free), allowed)) is ask(question)


@settings(max_examples=150, deadline=None)
@given(st.lists(questions(most_volumes=5), min_size=1, max_size=5))
def test_many_nodes_are_answered_as_one(asked: list[Question]) -> None:
    """The same items against many profiles give what each profile alone gives."""
    items = Items(asked[0][0])
    same_masks = [allowed for sizes, _, allowed in asked if allowed is None or len(sizes) == len(items)]
    profiles = [free for sizes, free, allowed in asked if allowed is None or len(sizes) == len(items)]

    answers = run_to_end(fits_many(items, profiles, Budget(), same_masks))

    assert answers == [fits(items, free, allowed, Budget()) for free, allowed in zip(profiles, same_masks, strict=True)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(1, 500), min_size=1, max_size=5), min_size=2, max_size=7), st.data())
def test_a_known_packing_without_slack_is_never_denied(contents: list[list[int]], data: st.DataObject) -> None:
    """Larger than brute force can check: disks filled to the last byte by construction."""
    sizes = data.draw(st.permutations([size for disk in contents for size in disk]))
    free = tuple(sum(disk) for disk in contents)

    assert fits(Items(sizes), free, None, Budget()) is not PackingAnswer.NO


@settings(max_examples=100, deadline=None)
@given(questions(), st.integers(0, 60))
def test_a_small_budget_makes_answers_missing_but_never_wrong(question: Question, steps: int) -> None:
    """Whatever the search was doing when its steps ended, it claims nothing it does not know."""
    sizes, free, allowed = question
    answer = fits(Items(sizes), free, allowed, Budget(steps))

    assert answer is PackingAnswer.UNDECIDED or answer is ask(question)
