"""A new volume: precheck, placement of all replicas, and the Scheduled condition."""

from typing import Any

from scheduler_core.longhorn.new_volume_placement import VolumeOutcome, create_volume
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


def test_outcomes_that_depend_on_chance_are_marked() -> None:
    view = cluster(node("n1"), node("n2", disk(storage_scheduled=50 * GIB)))
    assert list(create_volume(view, volume(number_of_replicas=2)).values()) == [False]
    assert set(create_volume(cluster(*THREE_NODES), volume(number_of_replicas=2)).values()) == {True}


def test_fewer_nodes_than_replicas_fail_if_the_setting_forbids_it() -> None:
    """The reason is general, because anti-affinity reports none."""
    scheduled = single_outcome(node("n1"), node("n2"), settings=STRICT).scheduled
    assert (scheduled.reason, scheduled.message) == ("ReplicaSchedulingFailure", "replica scheduling failed")


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
