"""What packing may cost, and large packings; tests/property/test_packing.py compares small ones with trying everything."""

import pytest

from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.packing.feasible import assign, fits, fits_many
from scheduler_core.packing.items import Items

GI = 1 << 30
YES = PackingAnswer.YES
NO = PackingAnswer.NO

# Three of these fill a disk of 1,000 exactly; greedy attempts do not find out which.
TRIPLETS = (387, 339, 274, 411, 314, 275, 462, 261, 277, 280, 373, 347, 268, 461, 271, 297, 308, 395, 269, 315, 416, 262, 314, 424)  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "free", "allowed", "expected"),
    [
        pytest.param((), (), None, YES, id="no volumes need no disks"),
        pytest.param((0,), (), None, NO, id="an empty volume still needs a disk"),
        pytest.param((5,), (9, 4), (0b00,), NO, id="no disk allowed"),
        pytest.param((0,), (9, 4), (0b00,), NO, id="no disk allowed for an empty volume"),
    ],
)
def test_a_volume_needs_a_disk(
    sizes: tuple[int, ...], free: tuple[int, ...], allowed: tuple[int, ...] | None, expected: PackingAnswer
) -> None:
    plan = assign(Items(sizes), free, allowed, Budget())
    assert (plan if isinstance(plan, PackingAnswer) else YES) is expected
    assert fits_many(Items(sizes), [free], Budget(), [allowed]) == [expected]


def test_many_nodes_get_the_same_answers_in_any_order() -> None:
    items = Items([97, 96, 95, 94, 93, 92, 91, 90, 61, 60, 59, 58, 57, 56, 55, 54])
    profiles = [(215 + i, 215 - i, 210, 210, 190, 190) for i in range(40)]

    forward = fits_many(items, profiles, Budget(3_000))
    backward = fits_many(items, profiles[::-1], Budget(3_000))

    assert forward == backward[::-1]


def test_a_search_without_steps_is_undecided_and_counted() -> None:
    budget = Budget(0)

    answer = fits(Items(TRIPLETS), (1000,) * 8, None, budget)

    assert answer is PackingAnswer.UNDECIDED
    assert budget.gave_up == 1


def test_easy_problems_need_no_budget() -> None:
    items = Items([50, 30, 20])
    profiles = [(100,), (99,), (50, 50), (49, 51), (200, 1, 1), (40, 40, 40), (33, 33, 33)]

    assert fits_many(items, profiles, Budget(0)) == [YES, NO, YES, NO, YES, NO, NO]


def test_items_refuse_negative_sizes() -> None:
    """A negative size would make room."""
    with pytest.raises(ValueError, match="negative"):
        Items([3, -1])


def test_items_are_equal_by_their_sizes_in_order() -> None:
    assert len({Items([1, 2]), Items((1, 2)), Items([2, 1])}) == 2


def test_sixty_volumes_on_twelve_disks_are_packed_to_the_last_byte() -> None:
    sizes = [100, 50, 50, 20, 20, 20, 10, 10, 10, 5, 5, 5, 5, 2, 2, 2, 1, 1, 1, 1] * 3
    free = [160, 160, 160, 80, 80, 80, 40, 40, 40, 40, 40, 40]
    assert sum(sizes) == sum(free)

    plan = assign(Items([size * GI for size in sizes]), tuple(room * GI for room in free), None, Budget())

    assert not isinstance(plan, PackingAnswer)
    for disk, room in enumerate(free):
        assert sum(size for size, place in zip(sizes, plan, strict=True) if place == disk) == room


def test_three_hundred_equal_volumes_are_counted_not_searched() -> None:
    items = Items([7] * 300)

    assert fits(items, (700, 700, 700), None, Budget()) is YES
    assert fits(items, (706, 706, 694), None, Budget()) is NO
