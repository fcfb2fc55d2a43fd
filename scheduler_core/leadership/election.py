"""Leader election on a Lease, as a pure state machine. The proof that there is at most one leader follows below. Only
the leader answers kube-scheduler.

Data flow: `plan(state, now, timestamp)` returns the next action (read, create, replace, wait); the driver performs it and reports
the result as an event; `step(state, event)` returns the next state. Times are seconds on the candidate's own clock, which must
never stand still while others' run; wall-clock texts are written for people and never compared.

**The fence.** A candidate may answer only while its clock is before `leading_until`, which is the time at which its last
accepted *replace* was sent, plus `renew_deadline`. It never has to learn that it lost: a process that hangs, is stopped
(SIGSTOP), sleeps with its machine or cannot reach the API server finds the fence closed by the clock alone.

**Why two fences are never open at once.** A replace carries uid and resourceVersion, so it is accepted only if the Lease
is still the version it was based on. A candidate that does not hold the Lease replaces a version only

- after it has seen that very version unchanged for at least its own `lease_duration` on its own clock, or
- if the version is a release (no holder, a duration of `RELEASED_SECONDS`), which its writer sends after closing its fence.

Let B's taking be accepted, based on version v which B first saw at o, and sent at s ≥ o + lease_duration. Let w be a replace of A, accepted
too, sent at t. Either w produced a version up to v: then t ≤ o, and A's fence, t + renew_deadline, closes before s. Or w came after B's
taking: then w is based on what B wrote or on something later, which A does not hold and must itself wait for. No third case exists: any
write between would have changed the version, and the API server would have refused B's. The rule tolerates clocks that run at different
rates, up to the two periods' difference over their sum: a fifth.

A version counts as A's own (`held`), so that A need not wait, only where no B can have taken the Lease before:

- it is the version that A's own replace was answered with: nothing was written since;
- it bears, letter by letter, a replace of A whose answer was lost, read within `renew_deadline` of its sending: any
  candidate that takes it over must first see it unchanged for longer than that;
- it was read while A's fence was open and names A or no holder: by the above no candidate can have taken the Lease before
  then. So the leader repairs a manual edit; if a different holder is named, it steps down at once.

An identity alone proves nothing (any name can be edited into a Lease), and must be unique to one process.
Creating the Lease never opens or extends a fence, because a create is based on no version: a deleted Lease may have had a
leader a moment ago. The new Lease, without holder, is waited for like any other; the very first start of an installation
therefore takes `lease_duration`. Durations that others wrote can lengthen a wait, up to `MAX_LEASE_DURATION`, never shorten it:
they may be manual edits. What an edit can break is only this: imitating a release exactly while a leader is alive.
"""

import math
from functools import partial
from typing import Annotated

from scheduler_core.backoff import Backoff
from scheduler_core.errors import CoreError
from scheduler_core.structs import Struct, replace

LEASE_NAME = "longhorn-scheduler-extender"
MAX_LEASE_DURATION = 60.0
# The API refuses 0. client-go releases a Lease in the same way.
RELEASED_SECONDS = 1
NEVER = math.inf
_LONG_AGO = -math.inf
# A release is noticed at once, compared with what a successor does next, for one small GET each time.
_FOLLOW_INTERVAL = 0.2
_MAX_TRANSITIONS = 2**31 - 1  # the API's field is an int32
_MAX_ATTEMPTS = 16


class ElectionTiming(Struct, frozen=True):
    """The three periods of client-go's leaderelection, in seconds, with its defaults. All candidates should have the
    same periods; while they are being changed the longer `lease_duration` counts.

    Raises:
        CoreError: not lease_duration > renew_deadline > retry_period > 0, or lease_duration over `MAX_LEASE_DURATION`
    """

    lease_duration: float = 15.0  # how long a follower must see the Lease unchanged before it takes it over
    renew_deadline: float = 10.0  # how long after sending its last accepted renewal a leader may still answer
    retry_period: float = 2.0  # how often a leader renews, and the longest back-off after a failure

    def __post_init__(self) -> None:
        if not MAX_LEASE_DURATION >= self.lease_duration > self.renew_deadline > self.retry_period > 0:
            raise CoreError(
                f"leader election: expected {MAX_LEASE_DURATION:g} >= lease duration > renew deadline > retry period > 0 "
                f"seconds, got {self.lease_duration:g}, {self.renew_deadline:g} and {self.retry_period:g}"
            )

    @property
    def call_timeout(self) -> float:
        """Seconds for one call."""
        # Half the deadline leaves time for a second call.
        return self.renew_deadline / 2

    @property
    def follow_period(self) -> float:
        return min(_FOLLOW_INTERVAL, self.retry_period)


class LeaseRecord(Struct, frozen=True):
    """The content of a Lease."""

    holder: Annotated[str, "spec.holderIdentity"] = ""  # the identity of the candidate that holds it, "" for none
    # Whole seconds within which the holder promises to renew; 0 if absent.
    duration: Annotated[int, "spec.leaseDurationSeconds"] = 0
    acquired: Annotated[str, "spec.acquireTime"] = ""  # wall-clock text of the taking, for people; "" if absent
    renewed: Annotated[str, "spec.renewTime"] = ""  # wall-clock text of the last renewal, for people; "" if absent
    transitions: Annotated[int, "spec.leaseTransitions"] = 0  # how often it was taken
    # The version it was read at; a replace with this record is based on it.
    resource_version: Annotated[str, "metadata.resourceVersion"] = ""

    @property
    def released(self) -> bool:
        return not self.holder and self.duration == RELEASED_SECONDS


class ReadLease(Struct, frozen=True):
    """Get the Lease. Report `LeaseRead`, `LeaseAbsent` or `CallFailed`."""


class CreateLease(Struct, frozen=True):
    """Create the Lease. Report `LeaseRead`, `WriteConflicted` if one exists already, or `CallFailed`."""

    record: LeaseRecord


class ReplaceLease(Struct, frozen=True):
    """Replace the Lease, at the record's `resource_version` and the uid read with it. Report `LeaseReplaced`,
    `WriteConflicted` (also if the Lease is gone), or `CallFailed` with the attempt.
    """

    record: LeaseRecord


class Wait(Struct, frozen=True):
    """Do nothing before `until`; `NEVER`: until it shall compete again."""

    until: float


Action = ReadLease | CreateLease | ReplaceLease | Wait


class LeaseRead(Struct, frozen=True):
    """The Lease was read or created as this record; `at`: when the answer came."""

    record: LeaseRecord
    at: float


class LeaseAbsent(Struct, frozen=True):
    """The Lease does not exist."""

    at: float


class LeaseReplaced(Struct, frozen=True):
    """A replace was accepted, and answered with this record."""

    record: LeaseRecord
    sent: float  # when it was planned, so it was not sent before
    at: float


class WriteConflicted(Struct, frozen=True):
    """A write was refused because the Lease had changed, appeared or gone."""

    at: float
    jitter: float  # a random number in [0, 1)


class Attempt(Struct, frozen=True):
    """A replace without an answer: it may be accepted, or still under way."""

    record: LeaseRecord
    sent: float


class CallFailed(Struct, frozen=True):
    """A call brought no answer, or a refusal that is no conflict."""

    at: float
    jitter: float  # a random number in [0, 1)
    attempt: Attempt | None = None  # set if it was a replace


class ShouldCompete(Struct, frozen=True):
    """Whether to compete; if not, the candidate stops leading and releases its Lease."""

    compete: bool
    at: float


Event = LeaseRead | LeaseAbsent | LeaseReplaced | WriteConflicted | CallFailed | ShouldCompete


class Candidate(Struct, frozen=True):
    """One process's state in the election."""

    identity: str  # unique to this process, not only to its pod
    timing: ElectionTiming
    competing: bool = True  # whether it shall compete
    leading_until: float = _LONG_AGO  # the fence: it may answer only while its clock is before this
    term: int = 0  # grows with each taking of the lead
    # Until when a previous leader (it may be this candidate) may have answered before the last taking.
    answered_until: float = _LONG_AGO
    predecessor: LeaseRecord | None = None  # the Lease as it was before the last taking, None before the first one
    # The Lease as last read or written; None if it is absent or was not read yet.
    observed_record: LeaseRecord | None = None
    observed_time: float = _LONG_AGO  # when `observed_record` was first read at this version
    held: bool = False  # whether `observed_record` is this candidate's own, see the module's text
    current: bool = False  # whether the last call returned `observed_record`, so that a write may be based on it
    act_at: float = _LONG_AGO  # when to act next
    attempts: tuple[Attempt, ...] = ()  # its replaces based on `observed_record` whose answer was lost
    failures: int = 0  # failed or conflicting calls in a row

    @property
    def holder(self) -> str:
        return self.observed_record.holder if self.observed_record is not None else ""

    def leading(self, now: float) -> bool:
        return now < self.leading_until


def plan(state: Candidate, now: float, timestamp: str) -> Action:
    """Returns the next action. `timestamp`, the wall clock in RFC 3339, is written into the Lease for people."""
    if now < state.act_at:
        return Wait(state.act_at)
    if not state.current:
        return ReadLease()
    observed = state.observed_record
    # The API takes whole seconds. Rounded up, others wait longer than they must, never shorter.
    seconds = math.ceil(state.timing.lease_duration)
    if observed is None:
        initial = LeaseRecord(state.identity, seconds, timestamp, timestamp)
        # A create is based on no version, so it proves nothing: only a leader with an open fence may name itself.
        return CreateLease(initial if state.leading(now) else replace(initial, holder=""))
    if not state.competing:
        return ReplaceLease(replace(observed, holder="", duration=RELEASED_SECONDS, renewed=timestamp))
    renewal = replace(observed, holder=state.identity, duration=seconds, renewed=timestamp)
    if state.leading(now):
        return ReplaceLease(renewal if renewal.acquired else replace(renewal, acquired=timestamp))
    transitions = observed.transitions + 1 if 0 <= observed.transitions < _MAX_TRANSITIONS else 0
    return ReplaceLease(replace(renewal, acquired=timestamp, transitions=transitions))


def step(state: Candidate, event: Event) -> Candidate:
    """Returns the state after an event."""
    match event:
        case LeaseRead():
            return _apply_read(state, event)
        case LeaseAbsent(at):
            # A candidate that does not compete has nothing to release: what it held is gone with the Lease.
            act_at = at if state.competing else NEVER
            return replace(state, observed_record=None, held=False, attempts=(), current=True, act_at=act_at)
        case LeaseReplaced():
            return _apply_replace(state, event)
        case WriteConflicted(at, jitter):
            pause = _backoff(state, jitter) if state.failures else 0.0
            return replace(state, current=False, failures=state.failures + 1, act_at=at + pause)
        case CallFailed(at, jitter, attempt):
            attempts = state.attempts
            # The write may have been accepted although its answer was lost. A release makes nothing this candidate's own.
            if attempt is not None and attempt.record.holder == state.identity:
                attempts = (*attempts, attempt)[-_MAX_ATTEMPTS:]
            pause = _backoff(state, jitter)
            return replace(state, current=False, attempts=attempts, failures=state.failures + 1, act_at=at + pause)
        case ShouldCompete(compete, at):
            if compete == state.competing:
                return state
            if compete:
                return replace(state, competing=True, current=False, act_at=at)
            # A lost answer may have been a success, and then there is a Lease to release.
            may_hold = state.held or bool(state.attempts)
            return replace(
                state,
                competing=False,
                leading_until=_LONG_AGO,
                current=state.current and state.held,
                act_at=at if may_hold else NEVER,
            )


def _apply_read(state: Candidate, event: LeaseRead) -> Candidate:
    record = event.record
    at = event.at
    unchanged = state.observed_record is not None and state.observed_record.resource_version == record.resource_version
    observed_time = state.observed_time if unchanged else at
    # The three cases of the module's text. Records that are equal apart from the version are of the same write.
    written = any(
        replace(attempt.record, resource_version=record.resource_version) == record
        and at < attempt.sent + state.timing.renew_deadline
        for attempt in state.attempts
    )
    repaired = state.leading(at) and record.holder in {"", state.identity}
    held = (unchanged and state.held) or written or repaired
    attempts = state.attempts if unchanged else ()
    after = partial(
        replace, state, observed_record=record, observed_time=observed_time, held=held, attempts=attempts, current=held
    )
    if held:
        return after(act_at=at)
    if not state.competing:
        return after(leading_until=_LONG_AGO, act_at=NEVER)
    if record.released or at >= observed_time + max(
        state.timing.lease_duration, min(record.duration, MAX_LEASE_DURATION)
    ):
        return after(leading_until=_LONG_AGO, current=True, act_at=at)
    return after(leading_until=_LONG_AGO, failures=0, act_at=at + state.timing.follow_period)


def _apply_replace(state: Candidate, event: LeaseReplaced) -> Candidate:
    record = event.record
    at = event.at
    before = state.observed_record
    # After its release a leader answered nothing.
    predecessors_deadline = state.leading_until
    if before is not None and not before.released:
        predecessors_deadline = max(state.leading_until, state.observed_time + state.timing.renew_deadline)
    state = replace(
        state, observed_record=record, observed_time=at, held=bool(record.holder), current=True, attempts=(), failures=0
    )
    if not record.holder:
        return replace(state, current=False, act_at=at if state.competing else NEVER)
    if not state.competing:
        return replace(state, act_at=at)
    # From the sending on: a rival begins to wait when it sees the write, which may be before its answer arrives.
    leading_until = event.sent + state.timing.renew_deadline
    won = at < leading_until and not state.leading(at)
    return replace(
        state,
        leading_until=leading_until,
        term=state.term + won,
        answered_until=predecessors_deadline if won else state.answered_until,
        predecessor=before if won else state.predecessor,
        act_at=max(at, event.sent + state.timing.retry_period),
    )


def _backoff(state: Candidate, jitter: float) -> float:
    longest = state.timing.retry_period
    # With jitter, because candidates whose calls failed together would all come back at the same moment.
    return Backoff(longest / 4, longest).delay(state.failures) * (0.5 + jitter / 2)
