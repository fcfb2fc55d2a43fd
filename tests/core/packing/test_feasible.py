"""Whether volumes fit the disks jointly: every boundary, and that the three ways to ask agree."""

import pytest

from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.packing.feasible import assign, fits, fits_many
from scheduler_core.packing.items import Items

GI = 1 << 30
YES = PackingAnswer.YES
NO = PackingAnswer.NO

# Three of these fill a disk of 1,000 exactly; greedy attempts do not find out which.
TRIPLETS = (387, 339, 274, 411, 314, 275, 462, 261, 277, 280, 373, 347, 268, 461, 271, 297, 308, 395, 269, 315, 416, 262, 314, 424)  # fmt: skip

CASES = [
    pytest.param((), (), None, YES, id="no volumes need no disks"),
    pytest.param((), (-1,), None, YES, id="no volumes fit an overbooked disk"),
    pytest.param((0,), (), None, NO, id="an empty volume still needs a disk"),
    pytest.param((0,), (0,), None, YES, id="an empty volume fits a full disk"),
    pytest.param((0,), (-1,), None, NO, id="an empty volume does not fit an overbooked disk"),
    pytest.param((0, 0), (-1, 0), None, YES, id="empty volumes share a full disk"),
    pytest.param((5,), (5,), None, YES, id="exactly full fits"),
    pytest.param((5,), (4,), None, NO, id="one byte short does not fit"),
    pytest.param((5, 5), (9, 9), None, YES, id="one on each of two disks"),
    pytest.param((5, 5, 5), (9, 9), None, NO, id="the sum would fit but the pieces do not"),
    pytest.param((6, 5, 4, 3), (9, 9), None, YES, id="two disks filled to the last byte"),
    pytest.param((6, 6, 3, 3), (9, 9), None, YES, id="best fit decreasing fills both"),
    pytest.param((7, 5, 4, 2), (9, 9), None, YES, id="large with small"),
    pytest.param((4, 4, 4, 3, 3), (9, 9), None, NO, id="no subset sums to nine exactly"),
    pytest.param((5, 5), (100, -90), None, YES, id="an overbooked disk takes nothing away from the others"),
    pytest.param((10, 10), (15, 9), None, NO, id="the second disk is a byte too small"),
    pytest.param((3, 3, 3), (3, 3, 3), None, YES, id="one each on three disks"),
    pytest.param((3, 3, 3, 1), (4, 3, 3), None, YES, id="the smallest fills the gap"),
    pytest.param((6, 5, 5, 4, 4, 3, 3), (10, 10, 10), None, YES, id="three disks with no slack"),
    pytest.param((6, 6, 6, 6), (10, 10, 10), None, NO, id="one of a kind per disk"),
    pytest.param((5,), (9, 4), (0b10,), NO, id="the only allowed disk is too small"),
    pytest.param((5,), (9, 4), (0b00,), NO, id="no disk allowed"),
    pytest.param((0,), (9, 4), (0b00,), NO, id="no disk allowed for an empty volume"),
    pytest.param((5, 5), (9, 9), (0b01, 0b01), NO, id="both confined to one disk"),
    pytest.param((5, 5), (9, 9), (0b01, 0b11), YES, id="the free one goes elsewhere"),
    pytest.param((5, 4), (5, 4), (0b11, 0b01), NO, id="the confined one takes the other's place"),
    pytest.param((0, 9), (-1, 9), (0b01, 0b10), NO, id="an empty volume confined to an overbooked disk"),
    pytest.param((4, 4, 4), (8, 8, 8), (0b011, 0b011, 0b011), YES, id="all confined to the same two disks"),
    pytest.param((5, 5, 5), (8, 8, 8), (0b011, 0b011, 0b011), NO, id="one too many for the same two disks"),
    pytest.param((5, 5, 5), (8, 8, 8), (0b011, 0b110, 0b101), YES, id="a ring of restrictions"),
    pytest.param((5, 5, 5, 5), (8, 8, 8), (0b011, 0b110, 0b101, 0b111), NO, id="a ring with one too many"),
    pytest.param((50 * GI, 30 * GI, 20 * GI), (50 * GI, 50 * GI), None, YES, id="real sizes, exactly full"),
    pytest.param((50 * GI, 30 * GI, 20 * GI), (50 * GI, 50 * GI - 1), None, NO, id="real sizes, a byte short"),
]


@pytest.mark.parametrize(("sizes", "free", "allowed", "expected"), CASES)
def test_every_way_to_ask_is_exact_at_every_boundary(
    sizes: tuple[int, ...], free: tuple[int, ...], allowed: tuple[int, ...] | None, expected: PackingAnswer
) -> None:
    items = Items(sizes)
    assert fits(items, free, allowed, Budget()) is expected
    plan = assign(items, free, allowed, Budget())
    assert (plan if isinstance(plan, PackingAnswer) else YES) is expected
    roomy = tuple(room + 10**12 for room in free)
    assert fits_many(items, [roomy, free, free], Budget(), [allowed] * 3)[1:] == [expected] * 2


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
