"""The election's rules one by one: what is planned, when the fence opens and closes, and what counts as one's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_core.convert.coordination import lease, new_lease, update_lease
from scheduler_core.errors import CoreError, ObjectError
from scheduler_core.leadership.election import (
    NEVER,
    Action,
    Attempt,
    CallFailed,
    Candidate,
    CreateLease,
    ElectionTiming,
    Event,
    LeaseAbsent,
    LeaseRead,
    LeaseRecord,
    LeaseReplaced,
    ReadLease,
    ReplaceLease,
    ShouldCompete,
    Wait,
    WriteConflicted,
    plan,
    step,
)

ME = "me"
STAMP = "2026-01-01T00:00:00.000000Z"
OTHERS = LeaseRecord("other", 15, "then", "then", 4, "7")
MINE = LeaseRecord(ME, 15, "then", "then", 5, "8")


def after(*events: Event, state: Candidate | None = None) -> Candidate:
    """A candidate to whom all of this happened."""
    state = state or Candidate(ME, ElectionTiming())
    for event in events:
        state = step(state, event)
    return state


def leader(sent: float = 0.0) -> Candidate:
    """A candidate whose replace was sent then and accepted a little later."""
    return after(LeaseReplaced(MINE, sent, sent + 0.1))


def planned(state: Candidate, now: float) -> Action:
    """What it does then."""
    return plan(state, now, STAMP)


@pytest.mark.parametrize(
    "periods", [(10, 10, 2), (15, 2, 2), (15, 10, 0), (15, 10, -1), (float("nan"), 10, 2), (61, 10, 2), (15, 15.5, 2)]
)
def test_periods_in_the_wrong_order_are_refused(periods: tuple[float, float, float]) -> None:
    """One line that names all three."""
    with pytest.raises(CoreError, match="lease duration > renew deadline > retry period"):
        ElectionTiming(*periods)


def test_it_begins_by_reading() -> None:
    """Nothing is written before the Lease was seen."""
    assert planned(Candidate(ME, ElectionTiming()), 0.0) == ReadLease()


def test_an_absent_lease_is_created_without_holder_and_then_waited_for() -> None:
    """It may have been deleted a moment ago, under a leader."""
    state = after(LeaseAbsent(100.0))
    created = LeaseRecord("", 15, STAMP, STAMP)
    assert planned(state, 100.0) == CreateLease(created)
    state = step(state, LeaseRead(replace(created, resource_version="1"), 100.1))
    assert planned(state, 100.1) == Wait(100.6)
    state = step(state, LeaseRead(replace(created, resource_version="1"), 115.0))
    assert planned(state, 115.5) == ReadLease()
    state = step(state, LeaseRead(replace(created, resource_version="1"), 115.2))
    assert planned(state, 115.2) == ReplaceLease(LeaseRecord(ME, 15, STAMP, STAMP, 1, "1"))


def test_a_follower_looks_twice_a_second() -> None:
    """So that a release is noticed."""
    assert planned(after(LeaseRead(OTHERS, 100.0)), 100.0) == Wait(100.5)


def test_a_release_is_taken_at_once() -> None:
    """With one more transition and a new time of taking."""
    released = replace(OTHERS, holder="", duration=1)
    state = after(LeaseRead(released, 100.0))
    assert planned(state, 100.0) == ReplaceLease(LeaseRecord(ME, 15, STAMP, STAMP, 5, "7"))
    assert not state.leading(100.0)


@pytest.mark.parametrize(
    ("record", "patience"),
    [
        (OTHERS, 15),
        (replace(OTHERS, duration=0), 15),
        (replace(OTHERS, duration=1), 15),
        (replace(OTHERS, duration=-5), 15),
        (replace(OTHERS, holder=""), 15),
        (replace(OTHERS, holder="", duration=0), 15),
        (replace(OTHERS, holder="   "), 15),
        (replace(OTHERS, holder=ME), 15),
        (LeaseRecord(resource_version="7"), 15),
        (replace(OTHERS, duration=30), 30),
        (replace(OTHERS, duration=2**31 - 1), 60),
    ],
)
def test_anything_else_is_waited_for(record: LeaseRecord, patience: float) -> None:
    """Written durations lengthen the wait up to a minute and never shorten it; no name, and one's own, prove nothing."""
    state = after(LeaseRead(record, 100.0), LeaseRead(record, 99.9 + patience))
    assert isinstance(planned(state, 99.9 + patience), Wait)
    state = step(state, LeaseRead(record, 100.0 + patience))
    assert isinstance(planned(state, 100.0 + patience), ReplaceLease)


def test_a_renewed_lease_is_waited_for_anew() -> None:
    """Another version, whatever it says."""
    state = after(LeaseRead(OTHERS, 100.0), LeaseRead(replace(OTHERS, resource_version="8"), 114.0))
    assert isinstance(planned(step(state, LeaseRead(replace(OTHERS, resource_version="8"), 128.9)), 128.9), Wait)


@pytest.mark.parametrize("transitions", [2**31 - 1, -3])
def test_a_count_of_transitions_that_cannot_grow_starts_again(transitions: int) -> None:
    """The API server would refuse it, for ever."""
    released = replace(OTHERS, holder="", duration=1, transitions=transitions)
    action = planned(after(LeaseRead(released, 0.0)), 0.0)
    assert isinstance(action, ReplaceLease)
    assert action.record.transitions == 0


def test_the_fence_counts_from_sending_and_not_from_the_answer() -> None:
    """A follower may have begun to wait as soon as the write was sent."""
    state = after(LeaseReplaced(MINE, sent=100.0, at=104.0))
    assert state.leading(109.9)
    assert not state.leading(110.0)
    assert state.term == 1


def test_an_answer_that_comes_after_its_fence_opens_nothing() -> None:
    """A stopped process finds it when it is continued."""
    state = after(LeaseReplaced(MINE, sent=100.0, at=110.0))
    assert not state.leading(110.0)
    assert state.term == 0


def test_whoever_takes_over_knows_until_when_its_predecessor_may_have_answered() -> None:
    """Its last renewal was sent before it was seen; after a release nobody answered."""
    expired = after(LeaseRead(OTHERS, 100.0), LeaseRead(OTHERS, 115.0), LeaseReplaced(MINE, 115.0, 115.1))
    assert expired.answered_until == 110.0
    released = replace(OTHERS, holder="", duration=1)
    assert after(LeaseRead(released, 100.0), LeaseReplaced(MINE, 100.0, 100.1)).answered_until < 0
    assert after(LeaseReplaced(MINE, 117.0, 117.1), state=expired).answered_until == 110.0, "a renewal is no taking"


def test_a_lapsed_leader_may_have_answered_itself() -> None:
    """What it offered then is forgotten, and what came of it perhaps not seen."""
    state = after(CallFailed(9.0, 0.0), LeaseRead(MINE, 12.0), LeaseReplaced(MINE, 12.0, 12.1), state=leader(sent=0.0))
    assert state.answered_until == 10.1


def test_a_leader_renews_without_reading() -> None:
    """Once each retry period, keeping the time of taking and the transitions."""
    assert planned(leader(), 1.9) == Wait(2.0)
    assert planned(leader(), 2.0) == ReplaceLease(replace(MINE, renewed=STAMP))


def test_a_renewal_keeps_the_term() -> None:
    """Nobody else led in between."""
    state = after(LeaseReplaced(replace(MINE, resource_version="9"), 2.0, 2.1), state=leader())
    assert (state.term, state.leading_until) == (1, 12.0)


def test_a_lapsed_leader_takes_the_lease_again_as_a_new_term() -> None:
    """If nobody wrote since, without a wait."""
    state = after(CallFailed(9.0, 0.0), LeaseRead(MINE, 12.0), state=leader())
    assert not state.leading(12.0)
    assert planned(state, 12.0) == ReplaceLease(LeaseRecord(ME, 15, STAMP, STAMP, 6, "8"))
    assert step(state, LeaseReplaced(replace(MINE, resource_version="9"), 12.0, 12.1)).term == 2


def test_a_leader_that_sees_another_holder_steps_down_at_once() -> None:
    """Whoever wrote it."""
    state = after(WriteConflicted(2.0, 0.0), LeaseRead(replace(OTHERS, resource_version="9"), 2.1), state=leader())
    assert not state.leading(2.1)
    assert isinstance(planned(state, 2.1), Wait)


@pytest.mark.parametrize("record", [replace(MINE, duration=1), replace(MINE, holder=""), replace(MINE, acquired="")])
def test_a_leader_repairs_what_somebody_edited(record: LeaseRecord) -> None:
    """While its fence is open nobody can have taken the Lease."""
    edited = replace(record, resource_version="9")
    state = after(WriteConflicted(2.0, 0.0), LeaseRead(edited, 2.1), state=leader())
    acquired = record.acquired or STAMP
    assert planned(state, 2.1) == ReplaceLease(LeaseRecord(ME, 15, acquired, STAMP, 5, "9"))
    assert state.leading(9.9)


def test_after_the_fence_an_edited_lease_is_not_ones_own() -> None:
    """Somebody may have led in between."""
    edited = replace(MINE, resource_version="9")
    state = after(WriteConflicted(9.0, 0.0), LeaseRead(edited, 10.0), state=leader())
    assert isinstance(planned(state, 10.0), Wait)


def test_a_leader_creates_a_deleted_lease_again_and_the_create_extends_nothing() -> None:
    """A create is based on no version; the renewal after it extends the fence."""
    state = after(WriteConflicted(2.0, 0.0), LeaseAbsent(2.1), state=leader())
    assert planned(state, 2.1) == CreateLease(LeaseRecord(ME, 15, STAMP, STAMP))
    state = step(state, LeaseRead(LeaseRecord(ME, 15, STAMP, STAMP, 0, "20"), 2.2))
    assert state.leading_until == 10.0
    assert planned(state, 2.2) == ReplaceLease(LeaseRecord(ME, 15, STAMP, STAMP, 0, "20"))


@pytest.mark.parametrize(("read_at", "own"), [(109.9, True), (110.0, False)])
def test_a_lost_answer_is_found_again_for_as_long_as_nobody_can_have_followed(read_at: float, own: bool) -> None:
    """The Lease bears it letter by letter; reading it opens no fence, writing again does."""
    tried = replace(MINE, resource_version="7")
    state = after(LeaseRead(OTHERS, 80.0), CallFailed(105.0, 0.0, Attempt(tried, 100.0)))
    state = step(state, LeaseRead(MINE, read_at))
    assert not state.leading(read_at)
    assert isinstance(planned(state, read_at), ReplaceLease if own else Wait)


def test_an_attempt_is_forgotten_once_the_lease_has_changed() -> None:
    """It was based on another version, so it was refused."""
    tried = replace(MINE, resource_version="7")
    state = after(LeaseRead(OTHERS, 80.0), CallFailed(105.0, 0.0, Attempt(tried, 100.0)))
    state = after(LeaseRead(replace(OTHERS, resource_version="9"), 105.1), LeaseRead(MINE, 105.2), state=state)
    assert isinstance(planned(state, 105.2), Wait)


def test_disabled_it_stops_at_once_then_releases_then_rests() -> None:
    """The fence closes before the release is sent."""
    state = after(ShouldCompete(compete=False, at=1.0), state=leader())
    assert not state.leading(1.0)
    released = replace(MINE, holder="", duration=1, renewed=STAMP)
    assert planned(state, 1.0) == ReplaceLease(released)
    state = step(state, LeaseReplaced(replace(released, resource_version="9"), 1.0, 1.1))
    assert planned(state, 1e9) == Wait(NEVER)


def test_a_renewal_accepted_after_it_was_disabled_opens_nothing() -> None:
    """It was under way."""
    state = after(
        ShouldCompete(compete=False, at=2.0),
        LeaseReplaced(replace(MINE, resource_version="9"), 1.9, 2.1),
        state=leader(),
    )
    assert not state.leading(2.1)
    assert planned(state, 2.1) == ReplaceLease(
        replace(MINE, holder="", duration=1, renewed=STAMP, resource_version="9")
    )


def test_a_release_whose_answer_was_lost_is_tried_again() -> None:
    """Until the Lease says that it is not held."""
    state = after(ShouldCompete(compete=False, at=1.0), CallFailed(2.0, 0.0), state=leader())
    assert planned(state, 3.0) == ReadLease()
    assert isinstance(planned(step(state, LeaseRead(MINE, 3.1)), 3.1), ReplaceLease)
    released = replace(MINE, holder="", duration=1, resource_version="9")
    assert planned(step(state, LeaseRead(released, 3.1)), 1e9) == Wait(NEVER)


@pytest.mark.parametrize("event", [LeaseRead(OTHERS, 1.0), LeaseAbsent(1.0)])
def test_disabled_it_leaves_others_leases_alone(event: Event) -> None:
    """And rests."""
    assert planned(after(event, ShouldCompete(compete=False, at=1.1)), 1e9) == Wait(NEVER)


def test_enabled_again_it_competes_again() -> None:
    """From the beginning: by reading."""
    state = after(
        ShouldCompete(compete=False, at=1.0),
        ShouldCompete(compete=True, at=50.0),
        state=Candidate(ME, ElectionTiming()),
    )
    assert planned(state, 50.0) == ReadLease()


def test_one_conflict_is_looked_at_at_once_and_more_are_not() -> None:
    """A stranger who writes all the time must not drive it into a loop."""
    state = after(WriteConflicted(2.0, 0.5), state=leader())
    assert planned(state, 2.0) == ReadLease()
    assert isinstance(planned(step(state, WriteConflicted(2.0, 0.5)), 2.0), Wait)


@pytest.mark.parametrize("chance", [0.0, 0.999])
def test_failures_are_retried_after_growing_pauses_within_the_retry_period(chance: float) -> None:
    """Half of each pause is chance."""
    state, pauses = Candidate(ME, ElectionTiming()), []
    for _ in range(6):
        state = step(state, CallFailed(0.0, chance))
        pauses.append(state.act_at)
    assert pauses == sorted(pauses)
    assert 0.25 <= pauses[0] <= 0.5
    assert 1.0 <= pauses[-1] <= 2.0


def test_a_lease_is_read_and_written_as_kubernetes_has_it() -> None:
    """Others' labels and fields stay, the managed fields go; uid and version are what the write is conditional on."""
    raw = b"""{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "n", "namespace": "ns", "uid": "u", "resourceVersion": "8", "labels": {"a": "b"}, "managedFields": []},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "acquireTime": "then", "renewTime": "then",
                 "leaseTransitions": 5, "strategy": "x"}}"""
    assert lease(raw) == MINE
    body = update_lease(raw, replace(MINE, holder="", duration=1))
    assert body["metadata"] == {
        "name": "n",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "8",
        "labels": {"a": "b"},
    }
    assert body["spec"] == {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": "then",
        "renewTime": "then",
        "leaseTransitions": 5,
        "strategy": "x",
    }
    assert new_lease("ns", "n", MINE)["metadata"] == {"name": "n", "namespace": "ns"}


@pytest.mark.parametrize(
    "raw", [b"<html>", b"[]", b'{"metadata": {}, "spec": {"leaseDurationSeconds": "x"}}', b'{"metadata": 1}', b""]
)
def test_what_is_no_lease_is_refused(raw: bytes) -> None:
    """Something between here and the API server may answer anything."""
    with pytest.raises(ObjectError, match="Lease"):
        lease(raw)


@pytest.mark.parametrize("spec", [b"null", b"{}", b'{"holderIdentity": null, "leaseDurationSeconds": null}'])
def test_a_lease_that_says_nothing_is_read(spec: bytes) -> None:
    """As nobody's, of no duration."""
    raw = b'{"metadata": {"resourceVersion": "1"}, "spec": ' + spec + b"}"
    assert lease(raw) == LeaseRecord(resource_version="1")
