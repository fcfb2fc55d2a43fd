"""Longhorn's rules in the generic scheduler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.cooperative import run_to_end
from scheduler_core.generic.longhorn_rules import NOT_EVALUATED, balanced_disks_score, least_fragmentation_score
from scheduler_core.generic.policy import EXTENDER_POLICY
from scheduler_core.generic.scheduler import prioritize_names
from scheduler_core.generic.volume_facts import DiskFacts, LonghornFacts, NodeFacts
from scheduler_core.model.verdict import Reason
from tests.worlds.policy_rules import decide, failed, node, pod, scores, state

NODES = state([node(name) for name in "abcd"])
PRIORITIES = ("LonghornDataLocality", "LonghornOrderSafe", "LonghornBalancedDisks", "LonghornLeastFragmentation")


def disks(*left: tuple[int, int]) -> list[DiskFacts]:
    """Disks as (limit, free)."""
    return [DiskFacts(limit, free) for limit, free in left]


def facts(*nodes: NodeFacts, total: int = 100) -> LonghornFacts:
    """Facts of the nodes a, b, ... as far as they go."""
    return LonghornFacts(dict(zip("abcd", nodes, strict=False)), total)


def test_volume_fit_is_the_filters_decision_with_its_reason() -> None:
    """A node nobody looked at does not fit either."""
    known = facts(NodeFacts(Reason.ROOM), NodeFacts(Reason.INSUFFICIENT_STORAGE), NodeFacts(Reason.HOME))
    assert failed("LonghornVolumeFit", pod(), NODES, longhorn=known) == {
        "b": Reason.INSUFFICIENT_STORAGE.text,
        "d": NOT_EVALUATED,
    }


def test_data_locality_is_the_share_of_bytes_that_are_there() -> None:
    """Cut off, and at most all of them; a node nobody looked at has none."""
    known = facts(*(NodeFacts(Reason.ROOM, replica_bytes=kept) for kept in (100, 59, 101)))
    assert scores("LonghornDataLocality", pod(), NODES, longhorn=known) == [10, 5, 10, 0]


def test_without_volumes_every_node_has_all_the_data() -> None:
    """So the priority makes no difference."""
    assert scores("LonghornDataLocality", pod(), NODES, longhorn=facts(total=0)) == [10, 10, 10, 10]


def test_order_safety_is_all_or_nothing() -> None:
    """Proven or not."""
    known = facts(
        NodeFacts(Reason.ROOM, order_safe=True), NodeFacts(Reason.ROOM), NodeFacts(Reason.HOME, order_safe=True)
    )
    assert scores("LonghornOrderSafe", pod(), NODES, longhorn=known) == [10, 0, 10, 0]


@pytest.mark.parametrize("priority", PRIORITIES)
def test_a_node_that_does_not_fit_is_worth_nothing(priority: str) -> None:
    """Whatever else is known of it."""
    full = NodeFacts(Reason.INSUFFICIENT_STORAGE, order_safe=True, replica_bytes=100, disks=tuple(disks((10, 10))))
    assert scores(priority, pod(), NODES, longhorn=facts(full)) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("left", "score"),
    [
        pytest.param(disks(), 10, id="nothing is placed"),
        pytest.param(disks((100, 0)), 10, id="one disk"),
        pytest.param(disks((100, 50), (10, 5)), 10, id="equal shares of unequal disks"),
        pytest.param(disks((100, 100), (100, 0)), 0, id="one full, one empty"),
        pytest.param(disks((100, 50), (100, 49)), 9, id="a hundredth of a difference costs a point"),
        pytest.param(disks((100, 50), (100, 30), (100, 40)), 8, id="the two extremes count"),
        pytest.param(disks((100, 50), (0, 0)), 10, id="a disk without limit is left out"),
        pytest.param(disks((100, -20), (100, 0)), 10, id="more promised than allowed counts as full"),
        pytest.param(disks((100, 120), (100, 100)), 10, id="more free than may be promised counts as empty"),
        pytest.param(disks((3, 1), (30, 7)), 9, id="a third less seven thirtieths is one tenth, not a little more"),
        pytest.param(disks((10000, 5000), (10000, 4999)), 9, id="a difference below a thousandth is one"),
    ],
)
def test_balanced_disks(left: Sequence[DiskFacts], score: int) -> None:
    """10 less the difference of the free shares in tenths, rounded up."""
    assert balanced_disks_score(left) == score


@given(st.lists(st.tuples(st.integers(0, 2**50), st.integers(-(2**50), 2**50)), min_size=1, max_size=5))
def test_balanced_disks_is_the_documented_formula(left: list[tuple[int, int]]) -> None:
    """10 - 10 x the difference of the free shares, rounded up, in exact arithmetic."""
    shares = [Fraction(max(0, min(free, limit)), limit) for limit, free in left if limit]
    difference = max(shares) - min(shares) if shares else Fraction(0)
    assert balanced_disks_score(disks(*left)) == 10 - math.ceil(10 * difference)


@pytest.mark.parametrize(
    ("left", "score"),
    [
        pytest.param(disks(), 10, id="nothing is placed"),
        pytest.param(disks((100, 0), (100, 0)), 10, id="nothing is left"),
        pytest.param(disks((100, 40)), 10, id="all on one disk"),
        pytest.param(disks((100, 40), (100, 0)), 10, id="the other is full"),
        pytest.param(disks((100, 40), (100, 40)), 5, id="in two halves"),
        pytest.param(disks((100, 20), (100, 10)), 6, id="two thirds on one"),
        pytest.param(disks((100, 20), (100, -10)), 10, id="less than nothing counts as nothing"),
    ],
)
def test_least_fragmentation(left: Sequence[DiskFacts], score: int) -> None:
    """The part of the free bytes that is on one disk, in tenths."""
    assert least_fragmentation_score(left) == score


def test_the_extenders_default_prefers_data_then_safety_then_even_disks() -> None:
    """Half of the data outweighs even disks; an unsafe node comes last."""
    even, uneven = tuple(disks((10, 5), (10, 5))), tuple(disks((10, 9), (10, 1)))
    known = facts(
        NodeFacts(Reason.ROOM, order_safe=True, replica_bytes=60, disks=uneven),
        NodeFacts(Reason.ROOM, order_safe=True, disks=even),
        NodeFacts(Reason.ROOM, order_safe=True, disks=uneven),
        NodeFacts(Reason.ROOM, disks=even),
    )
    answer = run_to_end(prioritize_names(pod(), "abcd", NODES, EXTENDER_POLICY, known))
    assert answer == {"a": 6, "b": 6, "c": 4, "d": 2}


def test_a_policy_with_longhorns_rules_and_no_facts_lets_nothing_pass() -> None:
    """Nothing unknown is decided."""
    decision = decide(pod(), NODES, EXTENDER_POLICY)
    assert (decision.node, decision.count_by_reason()) == ("", {NOT_EVALUATED: 4})
