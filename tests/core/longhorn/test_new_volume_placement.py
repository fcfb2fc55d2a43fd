"""A new volume: precheck, placement of all replicas, and the Scheduled condition."""

from __future__ import annotations

from typing import Any

from scheduler_core.longhorn.new_volume import DEGRADED_ALLOWED, VolumeOutcome, create_volume
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import GIB, cluster, disk, node, volume

STRICT = {"allow-volume-creation-with-degraded-availability": "false"}
THREE = (node("n1"), node("n2"), node("n3"))


def outcomes(*nodes: lh.Node, settings: dict[str, str] | None = None, **asked: Any) -> list[VolumeOutcome]:
    """Every possible outcome, ordered by where the replicas are."""
    found = create_volume(cluster(*nodes, settings=settings), volume(**asked))
    return sorted(found, key=lambda outcome: outcome.placements)


def only(*nodes: lh.Node, settings: dict[str, str] | None = None, **asked: Any) -> VolumeOutcome:
    """The only possible outcome."""
    (outcome,) = outcomes(*nodes, settings=settings, **asked)
    return outcome


def test_one_replica_per_node() -> None:
    """Three replicas on three nodes, whatever the order."""
    outcome = only(*THREE)
    assert outcome.placements == (("n1", "d1"), ("n2", "d1"), ("n3", "d1"))
    assert (outcome.replicas, outcome.unscheduled, outcome.scheduled.status) == (3, 0, True)


def test_every_order_of_ties_is_an_outcome() -> None:
    """Two replicas on three equal nodes: any two of them."""
    found = outcomes(*THREE, number_of_replicas=2)
    assert [[place[0] for place in outcome.placements] for outcome in found] == [
        ["n1", "n2"],
        ["n1", "n3"],
        ["n2", "n3"],
    ]


def test_outcomes_that_depend_on_chance_are_marked() -> None:
    """Which two of three equal nodes is chance, the only two nodes are not."""
    view = cluster(node("n1"), node("n2", disk(storage_scheduled=50 * GIB)))
    assert list(create_volume(view, volume(number_of_replicas=2)).values()) == [False]
    assert set(create_volume(cluster(*THREE), volume(number_of_replicas=2)).values()) == {True}


def test_fewer_nodes_than_replicas_is_allowed_when_detached() -> None:
    """Degraded availability is allowed by default: the condition is reset to True."""
    outcome = only(node("n1"), node("n2"))
    assert (len(outcome.placements), outcome.unscheduled) == (2, 1)
    assert (outcome.scheduled.status, outcome.scheduled.message) == (True, DEGRADED_ALLOWED)


def test_unless_the_setting_forbids_it() -> None:
    """Anti-affinity alone has no reason, so the condition says the general one."""
    scheduled = only(node("n1"), node("n2"), settings=STRICT).scheduled
    assert (scheduled.reason, scheduled.message) == ("ReplicaSchedulingFailure", "replica scheduling failed")


def test_an_attached_volume_is_never_reset() -> None:
    """status.currentNodeID makes a missing replica a failure."""
    assert not only(node("n1"), node("n2"), current_node_id="n1").scheduled.status


def test_the_precheck_creates_no_replica_without_a_candidate() -> None:
    """Its message joins the reasons."""
    nodes = (node("n1", disk(spec_type="block")), node("n2", disk(storage_scheduled=100 * GIB)))
    outcome = only(*nodes)
    assert (outcome.replicas, outcome.placements) == (0, ())
    assert outcome.scheduled.message == "precheck new replica failed: disks are unavailable; insufficient storage"


def test_the_precheck_without_reasons() -> None:
    """Node tags are silent, so Longhorn blames the disks."""
    message = only(node("n1"), node_selector=("ssd",)).scheduled.message
    assert message == "precheck new replica failed: disks are unavailable"


def test_the_precheck_ignores_anti_affinity() -> None:
    """All three replica objects are made although there is one node."""
    assert only(node("n1")).replicas == 3


def test_local_data_waits_for_the_attachment() -> None:
    """Nothing is placed while a best-effort or strict-local volume has no node; yet it is Scheduled."""
    for locality in ("best-effort", "strict-local"):
        outcome = only(*THREE, data_locality=locality)
        assert (outcome.placements, outcome.unscheduled, outcome.scheduled.status) == ((), 3, True)


def test_best_effort_takes_the_attached_node_first() -> None:
    """One replica is local, the other is not."""
    found = outcomes(*THREE, data_locality="best-effort", node_id="n2", number_of_replicas=2)
    assert {outcome.placements[0][0] for outcome in found} | {outcome.placements[1][0] for outcome in found} == {
        "n1",
        "n2",
        "n3",
    }
    assert all(("n2", "d1") in outcome.placements for outcome in found)


def test_strict_local_is_bound_to_the_attached_node() -> None:
    """A full local node is a failure, with a reason of its own."""
    full = node("n1", disk(storage_scheduled=100 * GIB))
    fields: dict[str, Any] = {"data_locality": "strict-local", "number_of_replicas": 1, "node_id": "n1"}
    outcome = only(full, node("n2"), **fields)
    assert outcome.placements == ()
    assert outcome.scheduled.reason == "LocalReplicaSchedulingFailure"


def test_placement_is_greedy() -> None:
    """A replica may take the only disk that a later one could have used."""
    nodes = (node("n1", disk("d1", storage_scheduled=85 * GIB), disk("d2", storage_scheduled=80 * GIB), zone="a"),)
    found = outcomes(*nodes, settings={"replica-soft-anti-affinity": "true"}, number_of_replicas=2)
    assert {len(outcome.placements) for outcome in found} == {2}
