"""The guard's health: what it concludes from what the watch shows."""

import pytest

from scheduler_core.guard.placement_guard import GuardState, Observation, next_state, observe_placement
from scheduler_core.model.longhorn import Replica
from scheduler_core.structs import replace

CONFIRMED = Observation.CONFIRMED
BYPASSED = Observation.BYPASSED
TAMPERED = Observation.TAMPERED
UNPLACED = Replica("r", "vol", 10)
ON_A = replace(
    UNPLACED, node_id="n", disk_id="a", disk_path="/a/", node_label="n", disk_label="a", reviewed_place="n/a/a/"
)


@pytest.mark.parametrize(
    ("replica", "observation"),
    [
        pytest.param(ON_A, CONFIRMED, id="as answered"),
        pytest.param(replace(ON_A, reviewed_place=""), BYPASSED, id="no answer was written"),
        pytest.param(replace(ON_A, reviewed_place="", disk_label=""), BYPASSED, id="no answer, and no label"),
        pytest.param(replace(ON_A, disk_path="/b/"), TAMPERED, id="the old path"),
        pytest.param(replace(ON_A, disk_label="b"), TAMPERED, id="the old label"),
        pytest.param(replace(ON_A, node_label=""), TAMPERED, id="without the label of the node"),
        pytest.param(replace(ON_A, disk_id="b"), TAMPERED, id="the old disk with the new label"),
        pytest.param(replace(ON_A, reviewed_place="n/b/b/"), BYPASSED, id="placed again, unasked"),
        pytest.param(replace(ON_A, reviewed_place="m/a/a/"), BYPASSED, id="placed again on another node"),
    ],
)
def test_a_placement_is_compared_with_what_was_answered(replica: Replica, observation: Observation) -> None:
    assert observe_placement(UNPLACED, replica) is observation


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(UNPLACED, UNPLACED, id="still without a disk"),
        pytest.param(None, UNPLACED, id="created"),
        pytest.param(ON_A, ON_A, id="placed before"),
        pytest.param(ON_A, replace(ON_A, node_id="m"), id="its disk moved to another node"),
        pytest.param(
            None, replace(ON_A, reviewed_place="", spec_is_original=True), id="created with its disk: a restore"
        ),
    ],
)
def test_other_changes_of_replicas_say_nothing(before: Replica | None, after: Replica) -> None:
    assert observe_placement(before, after) is None


def test_a_replica_first_seen_with_a_disk_and_no_answer_counts_as_bypassed() -> None:
    """It may be a restore that was changed since; a bypass must not go unnoticed."""
    assert observe_placement(None, replace(ON_A, reviewed_place="")) is BYPASSED


@pytest.mark.parametrize("original", [False, True])
def test_a_replica_first_seen_with_a_disk_is_compared_with_its_answer(original: bool) -> None:
    assert observe_placement(None, replace(ON_A, spec_is_original=original)) is CONFIRMED


@pytest.mark.parametrize(
    ("state", "observation", "after"),
    [
        ("unproven", "confirmed", "proven"),
        ("unproven", "bypassed", "unproven"),
        ("proven", "confirmed", "proven"),
        ("proven", "bypassed", "unproven"),
        ("proven", "tampered", "tampered"),
        ("tampered", "confirmed", "tampered"),
        ("tampered", "bypassed", "tampered"),
    ],
)
def test_the_last_placement_decides_what_may_be_relied_on(state: str, observation: str, after: str) -> None:
    assert next_state(GuardState(state), Observation(observation)) == after
