"""What `tests/property/test_ledger.py`, which plays whole histories of offers against a model, leaves out."""

import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from scheduler_core.decide.offered_nodes import most_free_first
from scheduler_core.offers.ledger import PERIOD, Ledger, RecentOffers, offer_width, step
from scheduler_core.offers.outstanding_offer import (
    HOLD_LIFETIME,
    NEVER,
    ObservedPod,
    Offered,
    OffersRestored,
    OutcomeKind,
)
from scheduler_core.structs import replace

OFFERED = Offered(ObservedPod("u", "default", "web-0", version=10), frozenset("abc"), volumes=("v",))


@pytest.mark.parametrize("end", [{"node_name": "b"}, {"ended": True}], ids=["bound", "finished"])
def test_a_late_binding_or_end_ends_the_offer(end: dict[str, Any]) -> None:
    """It is final, although the version is older than what the offer accounts for."""
    ledger = step(Ledger(), OFFERED, 100)[0]
    assert step(ledger, replace(OFFERED.pod, version=9, **end), 101)[0].outstanding == 0


def test_a_pod_without_a_uid_gets_no_offer() -> None:
    assert step(Ledger(), replace(OFFERED, pod=replace(OFFERED.pod, uid="")), 1) == (Ledger(time=1), ())


@pytest.mark.parametrize(
    ("priority", "counts"), [(None, [True, True, True]), (7, [True, True, False])], ids=["an offer", "a hold"]
)
def test_a_hold_counts_against_pods_of_at_most_its_priority(priority: int | None, counts: list[bool]) -> None:
    ledger = step(Ledger(), replace(OFFERED, priority=priority), 100)[0]
    assert [ledger.offers["u"].counts_against(other) for other in (-1, 7, 8)] == counts
    assert [not list(ledger.holds_below(other)) for other in (-1, 7, 8)] == counts


@pytest.mark.parametrize(("condition", "end"), [("", NEVER), ("preempting", 100 + HOLD_LIFETIME)])
def test_a_request_about_the_nominated_node_alone_makes_a_narrowed_offer(condition: str, end: float) -> None:
    """A nomination of preemption may lead nowhere."""
    nominated = replace(OFFERED.pod, nominated_node="b", unschedulable=condition)
    ledger = step(Ledger(), replace(OFFERED, pod=nominated, nodes=frozenset("b")), 100)[0]
    assert (ledger.offers["u"].narrowed, ledger.next_end) == (True, end)


def test_offers_are_restored_into_an_empty_ledger_only() -> None:
    ledger = step(Ledger(), OFFERED, 100)[0]
    other = replace(ledger.offers["u"], pod=replace(OFFERED.pod, uid="other"))
    assert set(step(ledger, OffersRestored((other,)), 101)[0].offers) == {"u"}


def test_the_page_about_offers_names_every_ending() -> None:
    page = (Path(__file__).parents[3] / "docs/reservations.md").read_text()
    assert re.findall(r"^\| ([a-z]+) \|", page, re.MULTILINE)[1:] == [
        ending.value for ending in OutcomeKind if ending is not OutcomeKind.NARROWED
    ]


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), max_size=8), st.integers(0, 9))
def test_an_offer_has_its_share_of_the_nodes_with_most_free_space(sizes: list[tuple[int, int]], competing: int) -> None:
    """Whatever the bounds and the order of the nodes."""
    count = offer_width(len(sizes), competing)
    assert count == (max(1, len(sizes) // (competing + 1)) if sizes else 0)
    free = {f"n{number}": size for number, (size, _) in enumerate(sizes)}
    bounds = [(size + excess, f"n{number}") for number, (size, excess) in enumerate(sizes)]
    for pairs in (bounds, bounds[::-1]):
        offered = [name for _, name in islice(most_free_first(pairs, lambda name, _: free[name]), count)]
        assert offered == sorted(free, key=lambda name: (-free[name], name))[:count]
    computed: list[str] = []

    def compute(name: str, bound: int) -> int:
        computed.append(name)
        return bound

    assert next(most_free_first([(9, "a"), (8, "b"), (7, "c")], compute)) == (9, "a")
    assert computed == ["a"]


@given(times=st.lists(st.floats(0, 100), max_size=30).map(sorted), wait=st.floats(0, 50))
def test_every_offer_of_the_last_period_counts_and_none_older_than_two(times: list[float], wait: float) -> None:
    recent = RecentOffers()
    for time in times:
        recent = recent.add(time)
    now = (times[-1] if times else 0.0) + wait
    at_least = sum(1 for time in times if now - time < PERIOD)
    at_most = sum(1 for time in times if now - time <= 2 * PERIOD)
    assert at_least <= recent.count(now) <= at_most
