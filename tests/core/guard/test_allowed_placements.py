"""A pod does not get a node where a placement that no watch has shown yet leaves it no space.

Disk a has 30Gi, disk b 40Gi. Volume x of another pod needs 20Gi, and the requesting pod 40Gi: it fits as long as x is on a.
"""

from collections.abc import Iterable

import pytest

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.guard.replica_steering import exclude_taken_nodes
from scheduler_core.model.longhorn import Placement
from scheduler_core.offers.ledger import Ledger
from scheduler_core.packing.budget import Budget
from tests import builders as make
from tests.builders import Object
from tests.worlds.offers import with_offer
from tests.worlds.placements import NODE, node_with_disks, placement, state_of, waiting_volume

ON_A = placement("x", 20, "a")
ON_B = placement("x", 20, "b")
X = waiting_volume("x", 20)
STEPS = 20_000


def _reason(allowances: Iterable[Placement], *objects: list[Object], size: int = 40, offers: Iterable[str] = ()) -> str:
    """The reason for the node, once these placements were allowed; other pods have offers of it."""
    claim = make.claim("new", size)
    pod = make.pod("new", name="pod-new", uid="uid-pod-new")
    disks = node_with_disks({"a": make.disk(30), "b": make.disk(40)})
    return _decide(state_of(disks, *objects, claim, pod), allowances, offers)


def _decide(state: ClusterState, allowances: Iterable[Placement], offers: Iterable[str] = ()) -> str:
    ledger = Ledger()
    for name in offers:
        ledger = with_offer(ledger, state.view, name, [NODE], 0.0)
    options = FilterOptions(packing=Packing.EXACT)
    pod = state.view.snapshot.pods["default", "pod-new"]
    decision = filter_nodes(pod, [NODE], state, options, make.competing(state, ledger))
    [reason] = exclude_taken_nodes(decision, state.view, allowances, Budget(STEPS)).reasons
    return reason.name


@pytest.mark.parametrize(("allowances", "reason"), [([], "ROOM"), ([ON_A], "ROOM"), ([ON_B], "WAITING")])
def test_the_pod_waits_where_an_allowed_placement_leaves_it_no_space(allowances: list[Placement], reason: str) -> None:
    assert _reason(allowances, X) == reason


def test_an_allowed_volume_counts_once() -> None:
    assert _reason([ON_A], X, waiting_volume("y", 10)) == "ROOM"


def test_competitors_keep_their_space() -> None:
    """With 10Gi on a, the pod's 30Gi fit on b alone, and so do those that are offered to another pod."""
    x = waiting_volume("x", 10)
    other = [make.claim("y", 30), make.pod("y", name="pod-y", uid="uid-pod-y")]
    allowances = [placement("x", 10, "a")]
    assert _reason(allowances, x, other, size=30) == "ROOM"
    assert _reason([], x, other, size=30, offers=["pod-y"]) == "ROOM"
    assert _reason(allowances, x, other, size=30, offers=["pod-y"]) == "WAITING"


def test_a_pod_that_returns_to_its_replicas_waits_for_nothing() -> None:
    old = [*make.bound("old", 40), make.replica("r-old", "vol-old", NODE, size=40, disk="b")]
    pod = make.pod("old", name="pod-new", uid="uid-pod-new")
    disks = node_with_disks({"a": make.disk(30), "b": make.disk(40, listed={"r-old": 40})})
    assert _decide(state_of(disks, X, old, pod), [ON_A]) == "HOME"


def test_a_node_that_does_not_fit_keeps_its_reason() -> None:
    assert _reason([ON_B], X, size=60) == _reason([], X, size=60)
