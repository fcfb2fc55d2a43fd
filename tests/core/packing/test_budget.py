"""A request's budget: counted steps, fair shares, and a record of giving up."""

import pytest
from hypothesis import given, strategies as st

from scheduler_core.packing.budget import Budget, OutOfStepsError, PackingAnswer, Portions, share_fairly


@pytest.mark.parametrize(
    ("steps", "enough", "left"),
    [
        pytest.param(4, True, 6, id="within"),
        pytest.param(10, True, 0, id="everything"),
        # A search that could not afford a step cannot afford a smaller one afterwards.
        pytest.param(11, False, 0, id="more than is left"),
    ],
)
def test_steps_are_spent_as_long_as_there_are_enough(steps: int, enough: bool, left: int) -> None:
    budget = Budget(10)
    assert (budget.spend(steps), budget.left) == (enough, left)


def test_charging_more_than_is_left_ends_the_search() -> None:
    with pytest.raises(OutOfStepsError):
        Budget(3).charge(4)


@pytest.mark.parametrize("parts", [0, 1, 3, 7, 100], ids=lambda parts: f"{parts} parts")
def test_shares_are_equal_and_their_unused_steps_and_give_ups_come_back(parts: int) -> None:
    budget = Budget(100)
    shares = budget.shares(parts)
    assert [share.left for share in shares] == [100 // parts if parts else 0] * parts
    for share in shares[:1]:
        share.spend(1)
        share.gave_up += 1
    budget.take_back(shares)
    assert (budget.left, budget.gave_up) == (100 - min(parts, 1), min(parts, 1))


@pytest.mark.parametrize(("steps", "requested", "expected"), [(90, 30, 30), (90, 200, 90), (-5, 1, 0)])
def test_a_portion_never_exceeds_what_is_left(steps: int, requested: int, expected: int) -> None:
    budget = Budget(steps)
    assert (budget.portion(requested).left, budget.left) == (expected, max(0, steps) - expected)


class Searches:
    """Searches that need a number of steps each, in requests that go on with what earlier ones left undecided."""

    def __init__(self, **needed: int) -> None:
        self._needed = needed
        self._tried: dict[str, int] = {}
        self._undecided = list(needed)
        self.given: list[tuple[str, int]] = []  # (instance, steps) of each search of the last request, in order

    def decided(self, steps: int) -> set[str]:
        """The instances that a request with so many steps decides."""
        self.given = []
        portions = Portions(first=10, most=1_000)
        answers = share_fairly(self._undecided, self._solve, portions, Budget(steps), self._tried)
        self._undecided = [name for name, answer in answers.items() if answer is PackingAnswer.UNDECIDED]
        return set(answers) - set(self._undecided)

    def _solve(self, instance: str, budget: Budget) -> PackingAnswer:
        self.given.append((instance, budget.left))
        enough = budget.spend(self._needed[instance])
        return PackingAnswer.YES if enough else PackingAnswer.UNDECIDED


def test_undecided_instances_share_equally_what_the_first_portions_leave() -> None:
    searches = Searches(easy=4, a=60, b=50)
    assert searches.decided(124) == {"easy", "b"}
    assert searches.given == [("easy", 10), ("a", 10), ("b", 10), ("a", 50), ("b", 50)]


def test_a_search_is_repeated_with_many_times_its_steps_or_not_at_all() -> None:
    """Shares that hardly exceed what did not suffice would be wasted on all of them."""
    searches = Searches(a=100, b=100, c=100)
    assert searches.decided(147) == {"a"}
    assert searches.given[3:] == [("a", 117)]


def test_the_next_request_goes_on_with_what_was_tried_least() -> None:
    searches = Searches(a=100, b=100, c=100, d=100, e=100)
    assert searches.decided(50) == set()
    assert [searches.decided(139) for _ in range(2)] == [{"a"}, {"b"}]


def test_every_instance_gets_its_turn_although_some_are_never_decided() -> None:
    searches = Searches(**{f"endless-{number}": 10**9 for number in range(5)}, last=150)
    assert any("last" in searches.decided(200) for _ in range(10))


def test_a_search_that_the_greatest_portion_did_not_decide_is_not_repeated() -> None:
    """It would take as long again, without an answer."""
    searches = Searches(endless=10**9)
    for _ in range(4):
        searches.decided(10_000)
    assert searches.given == []


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=12), st.integers(1_000, 5_000))
def test_repeated_requests_decide_everything_that_the_greatest_portion_can(needed: list[int], steps: int) -> None:
    searches = Searches(**{f"i{number}": need for number, need in enumerate(needed)})
    decided = set[str]()
    for _ in range(5 * len(needed)):
        decided |= searches.decided(steps)
    assert len(decided) == len(needed)


def test_an_instance_that_took_many_steps_in_vain_comes_after_those_that_took_few() -> None:
    searches = Searches(a=10**9, b=100, c=100, d=100, e=100)
    assert searches.decided(50) == set()
    assert searches.decided(139) == set()
    assert searches.decided(199) == {"b"}
    assert searches.given[0][0] == "b"


def test_a_small_budget_lets_one_instance_go_on() -> None:
    searches = Searches(a=150)
    assert searches.decided(100) == set()
    assert searches.decided(160) == {"a"}
