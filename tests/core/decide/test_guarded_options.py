"""What changes while the placement guard is proven.

Node `tight` has disks of 100 and 60: a volume of 50 on the larger one leaves none for one of 100. Node `even` takes both anywhere.
"""

import pytest

from scheduler_core.decide.decision import FilterOptions, Packing
from tests import builders as make
from tests.builders import Object

POD = make.pod("small", "large")
CLUSTER: list[Object] = [
    make.storage_class(),
    make.claim("small", 50),
    make.claim("large", 100),
    make.longhorn_node("tight", {"one": make.disk(100), "two": make.disk(60)}),
    make.longhorn_node("even", {"one": make.disk(200), "two": make.disk(200)}),
]


@pytest.mark.parametrize(
    ("packing", "expected"),
    [
        (Packing.AUTO, ["even", "tight"]),
        (Packing.EXACT, ["even", "tight"]),
        (Packing.ORDER_SAFE, ["even"]),
        (Packing.STALE_SAFE, ["even"]),
    ],
)
def test_auto_offers_every_node_with_a_packing(packing: Packing, expected: list[str]) -> None:
    options = FilterOptions(packing=packing)
    assert make.fitting(make.explained(POD, CLUSTER, options=options.with_guard())) == expected
    unguarded = make.fitting(make.explained(POD, CLUSTER, options=options))
    assert unguarded == (["even"] if packing is Packing.AUTO else expected)


@pytest.mark.parametrize(("node", "expected"), [("tight", True), ("even", False)])
def test_a_node_that_the_guard_makes_safe_says_so(node: str, expected: bool) -> None:
    explanation = make.explained(POD, CLUSTER, nodes=[node], options=FilterOptions().with_guard())
    [verdict] = explanation.verdicts
    assert ("the placement guard keeps Longhorn to a plan like this one" in verdict.detail) is expected
    assert bool(verdict.counter_example) is expected
