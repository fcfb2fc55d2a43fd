"""A request's budget: counted steps, fair shares, and a record of giving up."""

from __future__ import annotations

import pytest

from scheduler_core.packing.budget import Budget, OutOfStepsError


def test_spending_within_the_budget_succeeds_and_takes_the_steps_off() -> None:
    """Ten steps less four are six."""
    budget = Budget(10)

    assert budget.spend(4)
    assert budget.left == 6


def test_spending_everything_succeeds() -> None:
    """The last step is there to be used."""
    assert Budget(10).spend(10)


def test_spending_more_than_is_left_fails_and_leaves_nothing() -> None:
    """A search that could not afford a step cannot afford a smaller one afterwards."""
    budget = Budget(10)

    assert not budget.spend(11)
    assert not budget.spend(1)
    assert budget.left == 0


def test_charging_more_than_is_left_ends_the_search() -> None:
    """`charge` is `spend` for code that cannot go on without the steps."""
    with pytest.raises(OutOfStepsError):
        Budget(3).charge(4)


@pytest.mark.parametrize("parts", [1, 3, 7, 100], ids=lambda parts: f"{parts} parts")
def test_shares_are_equal(parts: int) -> None:
    """What one node may use does not depend on when it is asked about."""
    shares = Budget(100).shares(parts)

    assert [share.left for share in shares] == [100 // parts] * parts


def test_unused_steps_and_give_ups_come_back_from_shares() -> None:
    """After all shares are handed back, only what was used is gone."""
    budget = Budget(90)
    shares = budget.shares(3)
    shares[0].spend(10)
    shares[1].gave_up += 1

    budget.take_back(shares)

    assert (budget.left, budget.gave_up) == (80, 1)


def test_no_shares_cost_nothing() -> None:
    """A request without a hard node keeps its budget."""
    budget = Budget(90)

    assert budget.shares(0) == []
    assert budget.left == 90


@pytest.mark.parametrize(("requested", "expected"), [(30, 30), (200, 90)], ids=["enough left", "less left"])
def test_a_portion_never_exceeds_what_is_left(requested: int, expected: int) -> None:
    """It limits one search and creates no steps."""
    budget = Budget(90)

    portion = budget.portion(requested)

    assert (portion.left, budget.left) == (expected, 90 - expected)


def test_a_negative_budget_is_an_empty_one() -> None:
    """A caller that already overspent gets no search."""
    assert Budget(-5).left == 0
