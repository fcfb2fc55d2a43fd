"""Order safety: what is safe, what is not and why, and what deciding may cost."""

import pytest

from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.packing.items import Items
from scheduler_core.packing.order_safe import Safety, order_safe, order_safe_many

YES = PackingAnswer.YES
NO = PackingAnswer.NO

SPACE_CASES = [
    pytest.param((), (5,), None, YES, id="no volumes"),
    pytest.param((5,), (5,), None, YES, id="one volume, exactly full"),
    pytest.param((5,), (4,), None, NO, id="one volume that fits nowhere"),
    pytest.param((5,), (), None, NO, id="no disks"),
    pytest.param((0,), (-1,), None, NO, id="an empty volume on an overbooked disk"),
    pytest.param((3, 3), (6,), None, YES, id="one disk that holds all"),
    pytest.param((4, 3), (6,), None, NO, id="one disk that does not hold all"),
    pytest.param((5, 5), (9, 9), None, YES, id="one per disk, whichever comes first"),
    pytest.param((5, 4), (5, 4), None, NO, id="the smaller one may take the larger disk"),
    pytest.param((5, 4), (5, 5), None, YES, id="each disk takes either"),
    pytest.param((5, 3, 3), (7, 6), None, NO, id="a small one on each disk"),
    pytest.param((5, 3, 3), (8, 6), None, YES, id="blocking both disks would take three small ones"),
    pytest.param((50, 80), (100, 100), None, YES, id="the small one leaves the other disk alone"),
    pytest.param((50, 80), (100, 79), None, NO, id="only one disk is large enough"),
    pytest.param((5, 5), (9, 9), (0b11, 0b01), NO, id="the free one may take the confined one's disk"),
    pytest.param((5, 4), (9, 3), (0b01, 0b01), YES, id="confined together, room for both"),
    pytest.param((5, 5), (9, 9), (0b10, 0b01), YES, id="confined apart"),
    pytest.param((1, 1, 1, 9), (10, 10, 10), None, YES, id="small ones do not reach the threshold of any disk"),
    pytest.param((1, 1, 1, 9), (9, 9, 9), None, NO, id="one byte on each disk is enough"),
]


@pytest.mark.parametrize(("sizes", "free", "allowed", "expected"), SPACE_CASES)
def test_a_node_is_safe_if_no_order_and_no_choice_of_disks_fails(
    sizes: tuple[int, ...], free: tuple[int, ...], allowed: tuple[int, ...] | None, expected: PackingAnswer
) -> None:
    assert order_safe(Items(sizes), None, free, None, allowed, Budget()).answer is expected


@pytest.mark.parametrize(
    ("sizes", "free", "allowed", "expected"), [case for case in SPACE_CASES if case.values[2] is None]
)
def test_each_of_many_nodes_gets_the_answer_it_gets_alone(
    sizes: tuple[int, ...], free: tuple[int, ...], allowed: None, expected: PackingAnswer
) -> None:
    roomy = tuple(room + 10**12 for room in free) or (10**12,)

    assert order_safe_many(Items(sizes), [free, roomy, free], Budget()) == [expected, YES, expected]


@pytest.mark.parametrize(
    ("required", "headroom", "expected"),
    [
        pytest.param((0, 0), (1, 1), YES, id="new volumes need some headroom only"),
        pytest.param((0, 0), (0, 1), YES, id="a disk without headroom takes none, the other takes both"),
        pytest.param((0, 0), (0, 0), NO, id="no headroom at all"),
        pytest.param((3, 3), (4, 4), YES, id="each writes less than a disk's headroom"),
        pytest.param((3, 3), (3, 3), NO, id="writing all of the headroom is too much"),
        pytest.param((3, 3), (4, 3), NO, id="the second finds the only disk's headroom gone"),
        pytest.param((3, 3), (7, 0), YES, id="one disk takes both and keeps a byte"),
        pytest.param((3, 3), (6, 0), NO, id="one disk takes both but keeps nothing"),
        pytest.param(None, (1, 1), YES, id="unknown writing is none"),
    ],
)
def test_bytes_that_a_rebuild_writes_are_gone_for_the_next(
    required: tuple[int, ...] | None, headroom: tuple[int, ...], expected: PackingAnswer
) -> None:
    assert order_safe(Items((5, 5)), required, (100, 100), headroom, None, Budget()).answer is expected


def test_headroom_that_would_be_used_up_exactly_cannot_be_used_to_block() -> None:
    confined = 0b01
    free = 0b11

    safety = order_safe(Items((5, 1, 1)), (1, 3, 3), (100, 100), (6, 100), (confined, free, free), Budget())

    assert safety.answer is YES


def test_a_counter_example_lists_the_placed_volumes_and_the_one_without_a_disk() -> None:
    safety = order_safe(Items((5, 4)), None, (5, 4), None, None, Budget())

    assert safety == Safety(NO, ((1, 0), (0, None)))


def test_a_volume_without_any_disk_is_a_counter_example_by_itself() -> None:
    assert order_safe(Items((5, 9)), None, (8, 8), None, None, Budget()) == Safety(NO, ((1, None),))


def test_without_steps_a_hard_node_is_undecided_and_counted() -> None:
    budget = Budget(0)

    safety = order_safe(Items((7, 6, 5, 4, 3, 2)), None, (14, 13, 11), None, None, budget)

    assert safety == Safety(PackingAnswer.UNDECIDED)
    assert budget.gave_up == 1


def test_plenty_of_room_needs_no_budget() -> None:
    assert order_safe(Items((50, 30, 20)), None, (100, 100), None, None, Budget(0)).answer is YES


def test_many_nodes_do_not_depend_on_their_order() -> None:
    items = Items([97, 96, 95, 94, 93, 92, 91, 90, 61, 60, 59, 58, 57, 56, 55, 54])
    profiles = [(300 + i, 310 - i, 320, 330) for i in range(60)]

    forward = order_safe_many(items, profiles, Budget(2_000))

    assert forward == order_safe_many(items, profiles[::-1], Budget(2_000))[::-1]
