"""A new volume: precheck, placement of all replicas, and the Scheduled condition."""

from typing import Any

from scheduler_core.longhorn.new_volume_placement import DEGRADED_ALLOWED, VolumeOutcome, create_volume
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import GIB, cluster, disk, node, volume

STRICT = {"allow-volume-creation-with-degraded-availability": "false"}
THREE_NODES = (node("n1"), node("n2"), node("n3"))


def outcomes(*nodes: lh.Node, settings: dict[str, str] | None = None, **volume_fields: Any) -> list[VolumeOutcome]:
    possible = create_volume(cluster(*nodes, settings=settings), volume(**volume_fields))
    return sorted(possible, key=lambda outcome: outcome.placements)


def single_outcome(*nodes: lh.Node, settings: dict[str, str] | None = None, **volume_fields: Any) -> VolumeOutcome:
    (outcome,) = outcomes(*nodes, settings=settings, **volume_fields)
    return outcome


def test_each_node_gets_one_replica() -> None:
    outcome = single_outcome(*THREE_NODES)
    assert outcome.placements == (("n1", "d1"), ("n2", "d1"), ("n3", "d1"))
    assert (outcome.replicas, outcome.unscheduled, outcome.scheduled.status) == (3, 0, True)


def test_every_choice_among_ties_is_an_outcome() -> None:
    """Two replicas may be on any two of three equal nodes."""
    possible = outcomes(*THREE_NODES, number_of_replicas=2)
    assert [[place[0] for place in outcome.placements] for outcome in possible] == [
        ["n1", "n2"],
        ["n1", "n3"],
        ["n2", "n3"],
    ]


def test_outcomes_that_depend_on_chance_are_marked() -> None:
    view = cluster(node("n1"), node("n2", disk(storage_scheduled=50 * GIB)))
    assert list(create_volume(view, volume(number_of_replicas=2)).values()) == [False]
    assert set(create_volume(cluster(*THREE_NODES), volume(number_of_replicas=2)).values()) == {True}


def test_fewer_nodes_than_replicas_is_allowed_when_detached() -> None:
    outcome = single_outcome(node("n1"), node("n2"))
    assert (len(outcome.placements), outcome.unscheduled) == (2, 1)
    assert (outcome.scheduled.status, outcome.scheduled.message) == (True, DEGRADED_ALLOWED)


def test_fewer_nodes_than_replicas_fail_if_the_setting_forbids_it() -> None:
    """The reason is general, because anti-affinity reports none."""
    scheduled = single_outcome(node("n1"), node("n2"), settings=STRICT).scheduled
    assert (scheduled.reason, scheduled.message) == ("ReplicaSchedulingFailure", "replica scheduling failed")


def test_a_missing_replica_of_an_attached_volume_is_a_failure() -> None:
    assert not single_outcome(node("n1"), node("n2"), current_node_id="n1").scheduled.status


def test_the_precheck_creates_no_replica_without_a_candidate() -> None:
    nodes = (node("n1", disk(spec_type="block")), node("n2", disk(storage_scheduled=100 * GIB)))
    outcome = single_outcome(*nodes)
    assert (outcome.replicas, outcome.placements) == (0, ())
    assert outcome.scheduled.message == "precheck new replica failed: disks are unavailable; insufficient storage"


def test_a_precheck_without_reasons_blames_the_disks() -> None:
    message = single_outcome(node("n1"), node_selector=("ssd",)).scheduled.message
    assert message == "precheck new replica failed: disks are unavailable"


def test_the_precheck_ignores_anti_affinity() -> None:
    assert single_outcome(node("n1")).replicas == 3


def test_a_volume_with_data_locality_waits_for_its_attachment() -> None:
    for locality in ("best-effort", "strict-local"):
        outcome = single_outcome(*THREE_NODES, data_locality=locality)
        assert (outcome.placements, outcome.unscheduled, outcome.scheduled.status) == ((), 3, True)


def test_best_effort_takes_the_attached_node_first() -> None:
    """The second replica may be on either other node."""
    possible = outcomes(*THREE_NODES, data_locality="best-effort", node_id="n2", number_of_replicas=2)
    assert {outcome.placements[0][0] for outcome in possible} | {outcome.placements[1][0] for outcome in possible} == {
        "n1",
        "n2",
        "n3",
    }
    assert all(("n2", "d1") in outcome.placements for outcome in possible)


def test_strict_local_is_bound_to_the_attached_node() -> None:
    full = node("n1", disk(storage_scheduled=100 * GIB))
    fields: dict[str, Any] = {"data_locality": "strict-local", "number_of_replicas": 1, "node_id": "n1"}
    outcome = single_outcome(full, node("n2"), **fields)
    assert outcome.placements == ()
    assert outcome.scheduled.reason == "LocalReplicaSchedulingFailure"


def test_replicas_are_placed_one_by_one() -> None:
    """A replica may take the only disk that a later one could have used."""
    nodes = (node("n1", disk("d1", storage_scheduled=85 * GIB), disk("d2", storage_scheduled=80 * GIB), zone="a"),)
    possible = outcomes(*nodes, settings={"replica-soft-anti-affinity": "true"}, number_of_replicas=2)
    assert {len(outcome.placements) for outcome in possible} == {2}
