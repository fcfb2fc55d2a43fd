"""The election's rules one by one: the planned actions, the fence, and what counts as one's own Lease."""

import pytest

from scheduler_core.convert.leadership import lease, new_lease, update_lease
from scheduler_core.errors import CoreError, ObjectError
from scheduler_core.leadership.election import (
    NEVER,
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
    step,
)
from scheduler_core.structs import replace
from tests.worlds.election import IDENTITY, OTHER_LEASE, OWN_LEASE, TIMESTAMP, candidate_after, leader, next_action


@pytest.mark.parametrize(
    "periods", [(10, 10, 2), (15, 2, 2), (15, 10, 0), (15, 10, -1), (float("nan"), 10, 2), (61, 10, 2), (15, 15.5, 2)]
)
def test_periods_in_the_wrong_order_are_refused(periods: tuple[float, float, float]) -> None:
    with pytest.raises(CoreError, match="lease duration > renew deadline > retry period"):
        ElectionTiming(*periods)


def test_a_candidate_begins_by_reading() -> None:
    assert next_action(Candidate(IDENTITY, ElectionTiming()), 0.0) == ReadLease()


def test_an_absent_lease_is_created_without_holder_and_then_waited_for() -> None:
    """It may have been deleted a moment ago, while it had a leader."""
    candidate = candidate_after(LeaseAbsent(100.0))
    created = LeaseRecord("", 15, TIMESTAMP, TIMESTAMP)
    assert next_action(candidate, 100.0) == CreateLease(created)
    candidate = step(candidate, LeaseRead(replace(created, resource_version="1"), 100.1))
    assert next_action(candidate, 100.1) == Wait(100.1 + 0.2)
    candidate = step(candidate, LeaseRead(replace(created, resource_version="1"), 115.0))
    assert next_action(candidate, 115.5) == ReadLease()
    candidate = step(candidate, LeaseRead(replace(created, resource_version="1"), 115.2))
    assert next_action(candidate, 115.2) == ReplaceLease(LeaseRecord(IDENTITY, 15, TIMESTAMP, TIMESTAMP, 1, "1"))


def test_a_follower_reads_five_times_a_second() -> None:
    """So it soon notices a release."""
    assert next_action(candidate_after(LeaseRead(OTHER_LEASE, 100.0)), 100.0) == Wait(100.2)


def test_a_released_lease_is_taken_at_once() -> None:
    released = replace(OTHER_LEASE, holder="", duration=1)
    candidate = candidate_after(LeaseRead(released, 100.0))
    taken = LeaseRecord(IDENTITY, 15, TIMESTAMP, TIMESTAMP, 5, "7")
    assert next_action(candidate, 100.0) == ReplaceLease(taken)
    assert not candidate.leading(100.0)


@pytest.mark.parametrize(
    ("record", "wait"),
    [
        (OTHER_LEASE, 15),
        (replace(OTHER_LEASE, duration=0), 15),
        (replace(OTHER_LEASE, duration=1), 15),
        (replace(OTHER_LEASE, duration=-5), 15),
        (replace(OTHER_LEASE, holder=""), 15),
        (replace(OTHER_LEASE, holder="", duration=0), 15),
        (replace(OTHER_LEASE, holder="   "), 15),
        (replace(OTHER_LEASE, holder=IDENTITY), 15),
        (LeaseRecord(resource_version="7"), 15),
        (replace(OTHER_LEASE, duration=30), 30),
        (replace(OTHER_LEASE, duration=2**31 - 1), 60),
    ],
)
def test_a_lease_that_is_not_released_is_waited_for(record: LeaseRecord, wait: float) -> None:
    candidate = candidate_after(LeaseRead(record, 100.0), LeaseRead(record, 99.9 + wait))
    assert isinstance(next_action(candidate, 99.9 + wait), Wait)
    candidate = step(candidate, LeaseRead(record, 100.0 + wait))
    assert isinstance(next_action(candidate, 100.0 + wait), ReplaceLease)


def test_a_new_version_restarts_the_wait() -> None:
    renewed = replace(OTHER_LEASE, resource_version="8")
    candidate = candidate_after(LeaseRead(OTHER_LEASE, 100.0), LeaseRead(renewed, 114.0))
    assert isinstance(next_action(step(candidate, LeaseRead(renewed, 128.9)), 128.9), Wait)


@pytest.mark.parametrize("transitions", [2**31 - 1, -3])
def test_a_count_of_transitions_that_cannot_grow_starts_at_zero(transitions: int) -> None:
    """The API server would refuse it, for ever."""
    released = replace(OTHER_LEASE, holder="", duration=1, transitions=transitions)
    action = next_action(candidate_after(LeaseRead(released, 0.0)), 0.0)
    assert isinstance(action, ReplaceLease)
    assert action.record.transitions == 0


def test_the_fence_counts_from_sending_and_not_from_the_answer() -> None:
    """A follower may have begun to wait as soon as the write was sent."""
    candidate = candidate_after(LeaseReplaced(OWN_LEASE, sent=100.0, at=104.0))
    assert candidate.leading(109.9)
    assert not candidate.leading(110.0)
    assert candidate.term == 1


def test_an_answer_that_arrives_after_its_fence_opens_nothing() -> None:
    candidate = candidate_after(LeaseReplaced(OWN_LEASE, sent=100.0, at=110.0))
    assert not candidate.leading(110.0)
    assert candidate.term == 0


def test_a_new_leader_knows_until_when_its_predecessor_may_have_answered() -> None:
    expired = candidate_after(
        LeaseRead(OTHER_LEASE, 100.0), LeaseRead(OTHER_LEASE, 115.0), LeaseReplaced(OWN_LEASE, 115.0, 115.1)
    )
    assert expired.answered_until == 110.0
    released = replace(OTHER_LEASE, holder="", duration=1)
    assert candidate_after(LeaseRead(released, 100.0), LeaseReplaced(OWN_LEASE, 100.0, 100.1)).answered_until < 0
    renewed = candidate_after(LeaseReplaced(OWN_LEASE, 117.0, 117.1), candidate=expired)
    assert renewed.answered_until == 110.0, "a renewal is no take-over"


def test_a_new_leader_knows_the_lease_as_it_was_before() -> None:
    for before in (OTHER_LEASE, replace(OTHER_LEASE, holder="", duration=1)):
        led = candidate_after(
            LeaseRead(before, 100.0), LeaseRead(before, 115.0), LeaseReplaced(OWN_LEASE, 115.0, 115.1)
        )
        assert led.predecessor == before
        renewed = candidate_after(LeaseReplaced(OWN_LEASE, 117.0, 117.1), candidate=led)
        assert renewed.predecessor == before, "a renewal is no take-over"


def test_a_lapsed_leader_is_its_own_predecessor() -> None:
    candidate = candidate_after(
        CallFailed(9.0, 0.0),
        LeaseRead(OWN_LEASE, 12.0),
        LeaseReplaced(OWN_LEASE, 12.0, 12.1),
        candidate=leader(sent=0.0),
    )
    assert candidate.answered_until == 10.1


def test_a_leader_renews_without_reading() -> None:
    assert next_action(leader(), 1.9) == Wait(2.0)
    assert next_action(leader(), 2.0) == ReplaceLease(replace(OWN_LEASE, renewed=TIMESTAMP))


def test_a_renewal_keeps_the_term() -> None:
    renewed = LeaseReplaced(replace(OWN_LEASE, resource_version="9"), 2.0, 2.1)
    candidate = candidate_after(renewed, candidate=leader())
    assert (candidate.term, candidate.leading_until) == (1, 12.0)


def test_a_lapsed_leader_takes_the_lease_again_as_a_new_term() -> None:
    candidate = candidate_after(CallFailed(9.0, 0.0), LeaseRead(OWN_LEASE, 12.0), candidate=leader())
    assert not candidate.leading(12.0)
    taken = LeaseRecord(IDENTITY, 15, TIMESTAMP, TIMESTAMP, 6, "8")
    assert next_action(candidate, 12.0) == ReplaceLease(taken)
    assert step(candidate, LeaseReplaced(replace(OWN_LEASE, resource_version="9"), 12.0, 12.1)).term == 2


def test_a_leader_that_reads_a_different_holder_steps_down_at_once() -> None:
    read = LeaseRead(replace(OTHER_LEASE, resource_version="9"), 2.1)
    candidate = candidate_after(WriteConflicted(2.0, 0.0), read, candidate=leader())
    assert not candidate.leading(2.1)
    assert isinstance(next_action(candidate, 2.1), Wait)


@pytest.mark.parametrize(
    "record", [replace(OWN_LEASE, duration=1), replace(OWN_LEASE, holder=""), replace(OWN_LEASE, acquired="")]
)
def test_a_leader_repairs_an_edited_lease(record: LeaseRecord) -> None:
    edited = replace(record, resource_version="9")
    candidate = candidate_after(WriteConflicted(2.0, 0.0), LeaseRead(edited, 2.1), candidate=leader())
    acquired = record.acquired or TIMESTAMP
    assert next_action(candidate, 2.1) == ReplaceLease(LeaseRecord(IDENTITY, 15, acquired, TIMESTAMP, 5, "9"))
    assert candidate.leading(9.9)


def test_after_the_fence_an_edited_lease_is_not_ones_own() -> None:
    """Another candidate may have led in between."""
    edited = replace(OWN_LEASE, resource_version="9")
    candidate = candidate_after(WriteConflicted(9.0, 0.0), LeaseRead(edited, 10.0), candidate=leader())
    assert isinstance(next_action(candidate, 10.0), Wait)


def test_a_leader_creates_a_deleted_lease_and_the_create_extends_nothing() -> None:
    candidate = candidate_after(WriteConflicted(2.0, 0.0), LeaseAbsent(2.1), candidate=leader())
    created = LeaseRecord(IDENTITY, 15, TIMESTAMP, TIMESTAMP)
    assert next_action(candidate, 2.1) == CreateLease(created)
    candidate = step(candidate, LeaseRead(replace(created, resource_version="20"), 2.2))
    assert candidate.leading_until == 10.0
    assert next_action(candidate, 2.2) == ReplaceLease(replace(created, resource_version="20"))


@pytest.mark.parametrize(("read_at", "own"), [(109.9, True), (110.0, False)])
def test_a_replace_whose_answer_was_lost_is_recognised_within_its_fence(read_at: float, own: bool) -> None:
    attempted = replace(OWN_LEASE, resource_version="7")
    candidate = candidate_after(LeaseRead(OTHER_LEASE, 80.0), CallFailed(105.0, 0.0, Attempt(attempted, 100.0)))
    candidate = step(candidate, LeaseRead(OWN_LEASE, read_at))
    assert not candidate.leading(read_at)
    assert isinstance(next_action(candidate, read_at), ReplaceLease if own else Wait)


def test_an_attempt_is_forgotten_once_the_lease_has_changed() -> None:
    attempted = replace(OWN_LEASE, resource_version="7")
    candidate = candidate_after(
        LeaseRead(OTHER_LEASE, 80.0),
        CallFailed(105.0, 0.0, Attempt(attempted, 100.0)),
        LeaseRead(replace(OTHER_LEASE, resource_version="9"), 105.1),
        LeaseRead(OWN_LEASE, 105.2),
    )
    assert isinstance(next_action(candidate, 105.2), Wait)


def test_a_disabled_leader_stops_at_once_then_releases_then_rests() -> None:
    candidate = candidate_after(ShouldCompete(compete=False, at=1.0), candidate=leader())
    assert not candidate.leading(1.0)
    released = replace(OWN_LEASE, holder="", duration=1, renewed=TIMESTAMP)
    assert next_action(candidate, 1.0) == ReplaceLease(released)
    candidate = step(candidate, LeaseReplaced(replace(released, resource_version="9"), 1.0, 1.1))
    assert next_action(candidate, 1e9) == Wait(NEVER)


def test_a_renewal_accepted_after_disabling_opens_nothing() -> None:
    renewed = replace(OWN_LEASE, resource_version="9")
    candidate = candidate_after(
        ShouldCompete(compete=False, at=2.0), LeaseReplaced(renewed, 1.9, 2.1), candidate=leader()
    )
    assert not candidate.leading(2.1)
    released = replace(renewed, holder="", duration=1, renewed=TIMESTAMP)
    assert next_action(candidate, 2.1) == ReplaceLease(released)


def test_a_release_whose_answer_was_lost_is_retried() -> None:
    candidate = candidate_after(ShouldCompete(compete=False, at=1.0), CallFailed(2.0, 0.0), candidate=leader())
    assert next_action(candidate, 3.0) == ReadLease()
    assert isinstance(next_action(step(candidate, LeaseRead(OWN_LEASE, 3.1)), 3.1), ReplaceLease)
    released = replace(OWN_LEASE, holder="", duration=1, resource_version="9")
    assert next_action(step(candidate, LeaseRead(released, 3.1)), 1e9) == Wait(NEVER)


@pytest.mark.parametrize("event", [LeaseRead(OTHER_LEASE, 1.0), LeaseAbsent(1.0)])
def test_a_disabled_candidate_does_not_write_other_leases(event: Event) -> None:
    assert next_action(candidate_after(event, ShouldCompete(compete=False, at=1.1)), 1e9) == Wait(NEVER)


def test_a_candidate_enabled_again_competes_from_the_beginning() -> None:
    candidate = candidate_after(ShouldCompete(compete=False, at=1.0), ShouldCompete(compete=True, at=50.0))
    assert next_action(candidate, 50.0) == ReadLease()


def test_only_the_first_of_several_conflicts_is_followed_by_a_read_at_once() -> None:
    """A client that writes all the time must not drive the leader into a loop."""
    candidate = candidate_after(WriteConflicted(2.0, 0.5), candidate=leader())
    assert next_action(candidate, 2.0) == ReadLease()
    assert isinstance(next_action(step(candidate, WriteConflicted(2.0, 0.5)), 2.0), Wait)


@pytest.mark.parametrize("jitter", [0.0, 0.999])
def test_failures_are_retried_after_growing_pauses_within_the_retry_period(jitter: float) -> None:
    candidate = Candidate(IDENTITY, ElectionTiming())
    pauses = []
    for _ in range(6):
        candidate = step(candidate, CallFailed(0.0, jitter))
        pauses.append(candidate.act_at)
    assert pauses == sorted(pauses)
    assert 0.25 <= pauses[0] <= 0.5
    assert 1.0 <= pauses[-1] <= 2.0


def test_a_lease_is_read_and_written_as_kubernetes_has_it() -> None:
    raw = b"""{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "n", "namespace": "ns", "uid": "u", "resourceVersion": "8", "labels": {"a": "b"}, "managedFields": []},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "acquireTime": "then", "renewTime": "then",
                 "leaseTransitions": 5, "strategy": "x"}}"""
    assert lease(raw) == OWN_LEASE
    body = update_lease(raw, replace(OWN_LEASE, holder="", duration=1))
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
    assert new_lease("ns", "n", OWN_LEASE)["metadata"] == {"name": "n", "namespace": "ns"}


@pytest.mark.parametrize(
    "raw", [b"<html>", b"[]", b'{"metadata": {}, "spec": {"leaseDurationSeconds": "x"}}', b'{"metadata": 1}', b""]
)
def test_an_answer_that_is_no_lease_is_refused(raw: bytes) -> None:
    with pytest.raises(ObjectError, match="Lease"):
        lease(raw)


@pytest.mark.parametrize("spec", [b"null", b"{}", b'{"holderIdentity": null, "leaseDurationSeconds": null}'])
def test_a_lease_without_values_is_read(spec: bytes) -> None:
    raw = b'{"metadata": {"resourceVersion": "1"}, "spec": ' + spec + b"}"
    assert lease(raw) == LeaseRecord(resource_version="1")
