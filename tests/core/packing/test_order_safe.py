"""Order safety: counter-examples, and what deciding may cost; tests/property/test_order_safe.py compares with every order."""

from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.packing.items import Items
from scheduler_core.packing.order_safe import Safety, order_safe, order_safe_many

YES = PackingAnswer.YES
NO = PackingAnswer.NO


def test_headroom_that_would_be_used_up_exactly_cannot_be_used_to_block() -> None:
    confined = 0b01
    free = 0b11

    safety = order_safe(Items((5, 1, 1)), (1, 3, 3), (100, 100), (6, 100), (confined, free, free), Budget())

    assert safety.answer is YES


def test_a_volume_without_any_disk_is_a_counter_example_by_itself() -> None:
    assert order_safe(Items((5,)), None, (), None, None, Budget()) == Safety(NO, ((0, None),))
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
