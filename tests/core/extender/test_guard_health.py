"""The guard's health: what it concludes from its answers and from what the watch shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.extender import guard_health
from scheduler_core.extender.guard_health import ANSWER_LIFETIME, GuardHealth, GuardState, Observation
from scheduler_core.model.longhorn import Replica
from scheduler_core.model.replica_placement import Placement

CONFIRMED = Observation.CONFIRMED
BYPASSED = Observation.BYPASSED
TAMPERED = Observation.TAMPERED
ON_A = Placement("r", "vol", 10, "n", "a", "/a/")
ON_B = Placement("r", "vol", 10, "n", "b", "/b/")
UNPLACED = Replica("r", "vol", 10)


def _at(placement: Placement, **fields: str | int) -> Replica:
    """The replica with a place, as the watch shows it."""
    place = {"node_id": placement.node, "disk_id": placement.disk, "disk_path": placement.disk_path}
    labels = {"node_label": placement.node, "disk_label": placement.disk}
    values: dict[str, object] = {**place, **labels, "generation": 2, **fields}
    return replace(UNPLACED, name=placement.replica, **values)  # type: ignore[arg-type] # each field has its type


def _changed(now: float = 1.0) -> GuardHealth:
    """After an answer that moved the replica from disk a to disk b."""
    return GuardHealth(0.0).with_answer(ON_A, ON_B, now)


@pytest.mark.parametrize(
    ("written", "replica", "observation", "state"),
    [
        pytest.param(ON_A, _at(ON_A), CONFIRMED, "proven", id="left, and as Longhorn wanted"),
        pytest.param(ON_B, _at(ON_B), CONFIRMED, "proven", id="changed, and as answered"),
        pytest.param(ON_B, _at(ON_A), BYPASSED, "unproven", id="changed, but as Longhorn wanted: answered too late"),
        pytest.param(ON_B, _at(ON_B, disk_path="/a/"), TAMPERED, "tampered", id="the old path"),
        pytest.param(ON_B, _at(ON_B, disk_label="a"), TAMPERED, "tampered", id="the old label"),
        pytest.param(ON_B, _at(ON_B, node_label=""), TAMPERED, "tampered", id="without the label of the node"),
        pytest.param(ON_B, _at(ON_A, disk_path="/b/"), TAMPERED, "tampered", id="the new path alone"),
        pytest.param(ON_B, _at(ON_A, disk_label="c"), TAMPERED, "tampered", id="a label of neither"),
        pytest.param(ON_B, _at(ON_B, disk_id="c"), TAMPERED, "tampered", id="a disk of neither with the new label"),
        pytest.param(
            ON_B, _at(replace(ON_A, disk="c", disk_path="/c/")), BYPASSED, "unproven", id="placed again, unasked"
        ),
        pytest.param(
            ON_B, _at(replace(ON_A, node="m", disk="d")), BYPASSED, "unproven", id="placed again on another node"
        ),
        pytest.param(ON_A, _at(ON_A, disk_label=""), BYPASSED, "unproven", id="left, and found otherwise"),
    ],
)
def test_a_placement_is_compared_with_what_was_answered(
    written: Placement, replica: Replica, observation: Observation, state: str
) -> None:
    """Disk, path and both labels."""
    health, observed = GuardHealth(0.0).with_answer(ON_A, written, 1.0).observe(UNPLACED, replica, 2.0)
    assert (observed, health.state.value) == (observation, state)


def test_a_new_leader_proves_nothing() -> None:
    """Its Service may lead to its predecessor still."""
    assert GuardHealth(0.0).state is GuardState.UNPROVEN


def test_a_placement_without_an_answer_was_bypassed() -> None:
    """The API server gave up waiting, or found no endpoint."""
    health, observation = _proven().observe(UNPLACED, _at(ON_A), 5.0)
    assert (observation, health.state) == (BYPASSED, GuardState.UNPROVEN)


def _proven() -> GuardHealth:
    other = replace(ON_A, replica="r-0")
    health, _ = GuardHealth(0.0).with_answer(other, other, 1.0).observe(replace(UNPLACED, name="r-0"), _at(other), 2.0)
    assert health.state is GuardState.PROVEN
    return health


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(UNPLACED, UNPLACED, id="still without a disk"),
        pytest.param(None, UNPLACED, id="created"),
        pytest.param(_at(ON_A), _at(ON_A), id="placed before"),
        pytest.param(_at(ON_A), _at(replace(ON_A, node="m")), id="its disk moved to another node"),
        pytest.param(None, _at(ON_A, generation=1), id="created with its disk: a restore"),
    ],
)
def test_other_changes_of_replicas_say_nothing(before: Replica | None, after: Replica) -> None:
    """The guard need not be asked about them."""
    proven = _proven()
    assert proven.observe(before, after, 5.0) == (proven, None)


@pytest.mark.parametrize("generation", [0, 2])
def test_a_replica_first_seen_with_a_disk_and_no_answer_counts_as_bypassed(generation: int) -> None:
    """It may be a restore that was changed since; a bypass must not go unnoticed."""
    health, observation = _proven().observe(None, _at(ON_A, generation=generation), 5.0)
    assert (observation, health.state) == (BYPASSED, GuardState.UNPROVEN)


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_a_replica_first_seen_with_a_disk_is_compared_with_its_answer(generation: int) -> None:
    """It was created and placed between two views."""
    health, observation = _changed().observe(None, _at(ON_B, generation=generation), 2.0)
    assert (observation, health.state) == (CONFIRMED, GuardState.PROVEN)


def test_an_answer_from_before_a_bypass_proves_nothing() -> None:
    """The watch shows the confirmed placement later than the bypassed one."""
    health, _ = _changed(1.0).observe(replace(UNPLACED, name="r-1"), _at(replace(ON_A, replica="r-1")), 2.0)
    health, observation = health.observe(UNPLACED, _at(ON_B), 3.0)
    assert (observation, health.state) == (CONFIRMED, GuardState.UNPROVEN)


def test_the_next_answer_after_a_bypass_proves_the_guard_again() -> None:
    """It is asked again."""
    health, _ = _proven().observe(UNPLACED, _at(ON_A), 5.0)
    later = replace(ON_A, replica="r-2")
    health, _ = health.with_answer(later, later, 6.0).observe(replace(UNPLACED, name="r-2"), _at(later), 7.0)
    assert health.state is GuardState.PROVEN


def test_tampered_is_final() -> None:
    """Until a process leads anew."""
    health, _ = _changed().observe(UNPLACED, _at(ON_B, disk_label="a"), 2.0)
    later = replace(ON_A, replica="r-2")
    health, observation = health.with_answer(later, later, 6.0).observe(replace(UNPLACED, name="r-2"), _at(later), 7.0)
    assert (observation, health.state) == (CONFIRMED, GuardState.TAMPERED)
    health, observation = health.observe(UNPLACED, _at(ON_A), 8.0)
    assert (observation, health.state) == (BYPASSED, GuardState.TAMPERED)


def test_each_attempt_of_a_placement_may_be_the_one_that_was_written() -> None:
    """The API server refuses a conflicting write, and Longhorn chooses again."""
    again = replace(ON_A, disk="c", disk_path="/c/")
    health = _changed(1.0).with_answer(again, again, 2.0)
    assert health.observe(UNPLACED, _at(ON_B), 3.0)[1] is CONFIRMED
    assert health.observe(UNPLACED, _at(again), 3.0)[1] is CONFIRMED
    assert health.observe(UNPLACED, _at(ON_A), 3.0)[1] is BYPASSED


def test_a_placement_is_compared_once() -> None:
    """A replica of the same name that is placed again later was not answered about."""
    health, _ = _changed().observe(UNPLACED, _at(ON_B), 2.0)
    assert health.remembered == 0
    assert health.observe(UNPLACED, _at(ON_B), 3.0)[1] is BYPASSED


@pytest.mark.parametrize(("after", "observation"), [(ANSWER_LIFETIME - 0.1, CONFIRMED), (ANSWER_LIFETIME, BYPASSED)])
def test_an_answer_counts_for_a_minute(after: float, observation: Observation) -> None:
    """Whatever else is answered meanwhile."""
    health = _changed(1.0)
    for second in range(2, int(after), 7):
        other = replace(ON_A, replica=f"r-{second}")
        health = health.with_answer(other, other, float(second))
    assert health.observe(UNPLACED, _at(ON_B), 1.0 + after)[1] is observation


def test_answers_that_lead_nowhere_are_forgotten() -> None:
    """Longhorn gave the placement up."""
    health = GuardHealth(0.0)
    for second in range(1000):
        lost = replace(ON_A, replica=f"r-{second}")
        health = health.with_answer(lost, lost, float(second))
    assert health.remembered <= 2 * ANSWER_LIFETIME


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if placements are made up."""
    monkeypatch.setattr(guard_health, "MAX_ANSWERS", 10)
    health = GuardHealth(0.0)
    for number in range(100):
        forged = replace(ON_A, replica=f"r-{number}")
        health = health.with_answer(forged, forged, 1.0)
    health = health.with_answer(ON_A, ON_A, 1.0)
    for _ in range(8):
        health = health.with_answer(ON_A, ON_B, 1.0)
    assert health.remembered <= 20
    assert health.observe(UNPLACED, _at(ON_A), 1.0)[1] is Observation.BYPASSED


class _Model:
    """The same rules over a plain list of all answers."""

    def __init__(self) -> None:
        self.answers: list[tuple[Placement, Placement, float]] = []
        self.state = "unproven"
        self.since = 0.0

    def seen(self, replica: str, disk: str, now: float) -> str:
        """Notes a placement on a disk, whose fields and labels agree."""
        own = [entry for entry in self.answers if entry[0].replica == replica and now - entry[2] < ANSWER_LIFETIME]
        self.answers = [entry for entry in self.answers if entry[0].replica != replica]
        confirming = [at for _, written, at in own if written.disk == disk]
        if not confirming:
            self.state = "unproven"
            self.since = now
            return "bypassed"
        if any(at >= self.since for at in confirming):
            self.state = "proven"
        return "confirmed"


events = st.tuples(
    st.sampled_from(("answered", "seen")),
    st.sampled_from(("r-1", "r-2", "r-3")),
    st.sampled_from("ab"),
    st.sampled_from("ab"),
    st.sampled_from((0.0, 0.5, 20.0, 59.0, 61.0, 200.0)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(events, max_size=25))
def test_the_state_follows_answers_and_observations(history: list[tuple[str, str, str, str, float]]) -> None:
    """Whatever is answered, seen and forgotten in which order."""
    health = GuardHealth(0.0)
    model = _Model()
    places = {"a": ON_A, "b": ON_B}
    now = 0.0
    for kind, replica, wanted, written, seconds in history:
        now += seconds
        if kind == "answered":
            answer = (replace(places[wanted], replica=replica), replace(places[written], replica=replica))
            health = health.with_answer(*answer, now)
            model.answers.append((*answer, now))
        else:
            place = replace(places[written], replica=replica)
            health, observation = health.observe(replace(UNPLACED, name=replica), _at(place), now)
            assert observation is not None
            assert observation.value == model.seen(replica, written, now)
        assert (health.state.value, health.unproven_since) == (model.state, model.since)
