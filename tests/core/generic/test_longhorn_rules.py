"""Longhorn's rules in the generic scheduler."""

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from scheduler_core.generic.cycle_state import DiskFacts, LonghornFacts, NodeFacts, ScoreInputs
from scheduler_core.generic.policy import EXTENDER_POLICY
from scheduler_core.generic.predicates import NOT_EVALUATED
from scheduler_core.generic.scheduler import prioritize_names
from scheduler_core.model.verdict import Reason
from tests.worlds.policy_rules import decide, failed, node, pod, scores, state

NODES = state([node(name) for name in "abcd"])
PRIORITIES = (
    "LonghornDataLocality",
    "LonghornOrderSafe",
    "LonghornStaleSafe",
    "LonghornBalancedDisks",
    "LonghornLeastFragmentation",
)


def disks(*limits_and_free: tuple[int, int]) -> list[DiskFacts]:
    """Disks of these limits and free bytes."""
    return [DiskFacts(limit, free) for limit, free in limits_and_free]


def score_inputs(disk_facts: Sequence[DiskFacts]) -> ScoreInputs:
    inputs = NodeFacts(Reason.ROOM, disks=tuple(disk_facts)).score_inputs
    assert inputs is not None
    return inputs


def facts(*nodes: NodeFacts, total: int = 100) -> LonghornFacts:
    return LonghornFacts(dict(zip("abcd", nodes, strict=False)), total)


def test_volume_fit_is_the_filter_s_decision_with_its_reason() -> None:
    longhorn_facts = facts(NodeFacts(Reason.ROOM), NodeFacts(Reason.INSUFFICIENT_STORAGE), NodeFacts(Reason.HOME))
    assert failed("LonghornVolumeFit", pod(), NODES, longhorn=longhorn_facts) == {
        "b": Reason.INSUFFICIENT_STORAGE.text,
        "d": NOT_EVALUATED,
    }


def test_data_locality_is_the_share_of_bytes_on_the_node() -> None:
    longhorn_facts = facts(*(NodeFacts(Reason.ROOM, replica_bytes=replica_bytes) for replica_bytes in (100, 59, 101)))
    assert scores("LonghornDataLocality", pod(), NODES, longhorn=longhorn_facts) == [10, 5, 10, 0]


def test_without_volumes_every_node_has_all_data() -> None:
    """So the priority makes no difference."""
    assert scores("LonghornDataLocality", pod(), NODES, longhorn=facts(total=0)) == [10, 10, 10, 10]


def test_a_stale_safe_node_gets_ten_and_any_other_nothing() -> None:
    longhorn_facts = facts(
        NodeFacts(Reason.ROOM, order_safe=True, stale_safe=True),
        NodeFacts(Reason.ROOM, order_safe=True),
        NodeFacts(Reason.HOME, order_safe=True, stale_safe=True),
    )
    assert scores("LonghornStaleSafe", pod(), NODES, longhorn=longhorn_facts) == [10, 0, 10, 0]


def test_an_order_safe_node_gets_ten_and_any_other_nothing() -> None:
    longhorn_facts = facts(
        NodeFacts(Reason.ROOM, order_safe=True), NodeFacts(Reason.ROOM), NodeFacts(Reason.HOME, order_safe=True)
    )
    assert scores("LonghornOrderSafe", pod(), NODES, longhorn=longhorn_facts) == [10, 0, 10, 0]


@pytest.mark.parametrize("priority", PRIORITIES)
def test_a_node_that_does_not_fit_gets_zero(priority: str) -> None:
    full = NodeFacts(
        Reason.INSUFFICIENT_STORAGE, order_safe=True, stale_safe=True, replica_bytes=100, disks=tuple(disks((10, 10)))
    )
    assert scores(priority, pod(), NODES, longhorn=facts(full)) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("disk_facts", "score"),
    [
        pytest.param(disks(), 10, id="no disk"),
        pytest.param(disks((100, 0)), 10, id="one disk"),
        pytest.param(disks((100, 50), (10, 5)), 10, id="equal shares of unequal disks"),
        pytest.param(disks((100, 100), (100, 0)), 0, id="one full, one empty"),
        pytest.param(disks((100, 50), (100, 49)), 9, id="a hundredth of a difference costs a point"),
        pytest.param(disks((100, 50), (100, 30), (100, 40)), 8, id="the two extremes count"),
        pytest.param(disks((100, 50), (0, 0)), 10, id="a disk without limit is left out"),
        pytest.param(disks((100, -20), (100, 0)), 10, id="over-allocated counts as full"),
        pytest.param(disks((100, 120), (100, 100)), 10, id="more free than the limit counts as empty"),
        pytest.param(disks((3, 1), (30, 7)), 9, id="a third less seven thirtieths is one tenth, not a little more"),
        pytest.param(disks((10000, 5000), (10000, 4999)), 9, id="a difference below a thousandth is one"),
    ],
)
def test_balanced_disks(disk_facts: Sequence[DiskFacts], score: int) -> None:
    assert score_inputs(disk_facts).balance == score


@given(st.lists(st.tuples(st.integers(0, 2**50), st.integers(-(2**50), 2**50)), min_size=1, max_size=5))
def test_balanced_disks_is_the_documented_formula(limits_and_free: list[tuple[int, int]]) -> None:
    shares = [Fraction(max(0, min(free, limit)), limit) for limit, free in limits_and_free if limit]
    difference = max(shares) - min(shares) if shares else Fraction(0)
    assert score_inputs(disks(*limits_and_free)).balance == 10 - math.ceil(10 * difference)


@pytest.mark.parametrize(
    ("disk_facts", "score"),
    [
        pytest.param(disks(), 10, id="no disk"),
        pytest.param(disks((100, 0), (100, 0)), 10, id="no free bytes"),
        pytest.param(disks((100, 40)), 10, id="all on one disk"),
        pytest.param(disks((100, 40), (100, 0)), 10, id="the other is full"),
        pytest.param(disks((100, 40), (100, 40)), 5, id="in two halves"),
        pytest.param(disks((100, 20), (100, 10)), 6, id="two thirds on one"),
        pytest.param(disks((100, 20), (100, -10)), 10, id="negative free bytes count as none"),
    ],
)
def test_least_fragmentation(disk_facts: Sequence[DiskFacts], score: int) -> None:
    assert score_inputs(disk_facts).largest_share == score


def test_the_extender_policy_prefers_data_then_safety_then_even_disks() -> None:
    even = tuple(disks((10, 5), (10, 5)))
    uneven = tuple(disks((10, 9), (10, 1)))
    longhorn_facts = facts(
        NodeFacts(Reason.ROOM, order_safe=True, stale_safe=True, replica_bytes=60, disks=uneven),
        NodeFacts(Reason.ROOM, order_safe=True, stale_safe=True, disks=uneven),
        NodeFacts(Reason.ROOM, order_safe=True, disks=even),
        NodeFacts(Reason.ROOM, disks=even),
    )
    answer = prioritize_names(pod(), "abcd", NODES, EXTENDER_POLICY, longhorn_facts)
    assert answer == {"a": 7, "b": 4, "c": 3, "d": 1}


def test_without_facts_a_policy_with_longhorn_s_rules_refuses_every_node() -> None:
    decision = decide(pod(), NODES, EXTENDER_POLICY)
    assert (decision.node, decision.count_by_reason()) == ("", {NOT_EVALUATED: 4})
