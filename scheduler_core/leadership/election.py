"""Who answers kube-scheduler: leader election on a Lease, as a pure state machine, and the proof that there is one leader.

Data flow: `plan(state, now, stamp)` says what to do next (read, create, replace, wait); the driver does it and tells what
came of it as an event; `step(state, event)` is the next state. Times are seconds on the candidate's own clock, which must
never stand still while others' run; wall-clock texts are written for people and never compared.

**The fence.** A candidate may answer only while its clock is before `leading_until`, which is the time at which its last
accepted *replace* was sent, plus `renew_deadline`. It never has to hear that it lost: a process that hangs, is stopped
(SIGSTOP), sleeps with its machine or cannot reach the API server finds the fence closed by the clock alone.

**Why two fences are never open at once.** A replace carries uid and resourceVersion, so it is accepted only if the Lease
is still the version it was based on. A candidate that does not hold the Lease replaces a version only

- after it has seen that very version unchanged for at least its own `lease_duration` on its own clock, or
- if the version is a release (no holder, a duration of `RELEASED_SECONDS`), which its writer sends after closing its fence.

Let B's taking be accepted, based on version v which B first saw at o, and sent at s ≥ o + lease_duration. Let w be a replace of
A, accepted too, sent at t. Either w became a version up to v: then t ≤ o, and A's fence, t + renew_deadline, closes before
s. Or w came after B's taking: then w is based on what B wrote or on something later, which A does not hold and must
itself wait for. In between nothing is possible: any write between would have changed the version, and B's been refused.
The rule tolerates clocks that run at different rates, up to the two periods' difference over their sum: a fifth.

A version counts as A's own (`held`), so that A need not wait, only where no B can have taken the Lease before:

- it is the version that A's own replace was answered with: nobody wrote since;
- it bears, letter by letter, a replace of A whose answer was lost, read within `renew_deadline` of its sending: whoever
  takes it over must first see it unchanged for longer than that;
- it was read while A's fence was open and names A or nobody: by the above nobody can have taken the Lease before then.
  So the leader repairs what somebody edited; if another holder is named, it steps down at once.

An identity alone proves nothing (somebody may write any name into a Lease), and must be unique to one process.
Creating the Lease never opens or extends a fence, because a create is based on no version: a deleted Lease may have had a
leader a moment ago. The new Lease, without holder, is waited for like any other; the very first start of an installation
therefore takes `lease_duration`. Durations that others wrote can lengthen a wait, up to `LONGEST_LEASE`, never shorten it: somebody
may have edited them. What an edit can break is only this: imitating a release exactly while a leader is alive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.errors import CoreError

LEASE_NAME: Final = "longhorn-scheduler-extender"
LONGEST_LEASE: Final = 60.0
RELEASED_SECONDS: Final = 1
NEVER: Final = math.inf
_LONG_AGO: Final = -math.inf
_FOLLOW_SECONDS: Final = 0.5
_MOST_TRANSITIONS: Final = 2**31 - 1  # the API's field is an int32
_ATTEMPTS: Final = 16


@dataclass(frozen=True, slots=True)
class ElectionTiming:
    """The three periods of client-go's leaderelection, in seconds, with its defaults.

    All candidates should be given the same ones; during a change of them the longer `lease_duration` counts.

    Attributes:
        lease_duration: how long a follower must see the Lease unchanged before it takes it over
        renew_deadline: how long after sending its last accepted renewal a leader may still answer
        retry_period: how often a leader renews, and the longest pause after a failure

    Raises:
        CoreError: not lease_duration > renew_deadline > retry_period > 0, or lease_duration over `LONGEST_LEASE`
    """

    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        if not LONGEST_LEASE >= self.lease_duration > self.renew_deadline > self.retry_period > 0:
            raise CoreError(
                f"leader election: expected {LONGEST_LEASE:g} >= lease duration > renew deadline > retry period > 0 "
                f"seconds, got {self.lease_duration:g}, {self.renew_deadline:g} and {self.retry_period:g}"
            )

    @property
    def call_timeout(self) -> float:
        """How long one call may take: half the deadline, so that a hung renewal leaves time for another."""
        return self.renew_deadline / 2

    @property
    def follow_period(self) -> float:
        """How often a follower reads the Lease, so that a release is noticed well within 2 s: one small GET each time."""
        return min(_FOLLOW_SECONDS, self.retry_period)


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What a Lease says.

    Attributes:
        holder: identity of the candidate that holds it, "" for nobody
        duration: whole seconds it promises to renew in; 0 if it says nothing
        acquired: wall-clock text of the taking, for people; "" if absent
        renewed: wall-clock text of the last renewal, for people; "" if absent
        transitions: how often it was taken
        resource_version: the version it was read at; a replace with this record is based on it
    """

    holder: str = ""
    duration: int = 0
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0
    resource_version: str = ""

    @property
    def released(self) -> bool:
        """Whether its holder gave it up, so that nobody needs to wait."""
        return not self.holder and self.duration == RELEASED_SECONDS

    def says_the_same_as(self, other: LeaseRecord) -> bool:
        """Whether both were written by the same write: equal but for the version."""
        return replace(self, resource_version=other.resource_version) == other


@dataclass(frozen=True, slots=True)
class Read:
    """Get the Lease. Answer with `LeaseRead`, `LeaseAbsent` or `CallFailed`."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create the Lease. Answer with `LeaseRead` of what was created, `Conflicted` if it exists, or `CallFailed`."""

    record: LeaseRecord


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the Lease with this record, at its `resource_version` and the uid read with it.

    Answer with `Replaced`, `Conflicted` (also if it is gone), or `CallFailed` with the attempt.
    """

    record: LeaseRecord


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before `until`, `NEVER` for as long as nothing is asked of this candidate."""

    until: float


Action = Read | Create | Replace | Wait


@dataclass(frozen=True, slots=True)
class LeaseRead:
    """The Lease was read, or created, as this record; `at` is when the answer came."""

    record: LeaseRecord
    at: float


@dataclass(frozen=True, slots=True)
class LeaseAbsent:
    """There is no Lease."""

    at: float


@dataclass(frozen=True, slots=True)
class Replaced:
    """A replace planned (so not sent before) `sent` was accepted and answered with this record."""

    record: LeaseRecord
    sent: float
    at: float


@dataclass(frozen=True, slots=True)
class Conflicted:
    """A write was refused because the Lease had changed, appeared or gone; `chance` is a random number in [0, 1)."""

    at: float
    chance: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """A replace whose fate is unknown: it may have been accepted, or still be under way."""

    record: LeaseRecord
    sent: float


@dataclass(frozen=True, slots=True)
class CallFailed:
    """A call brought no answer, or another refusal; `attempt` if it was a replace. `chance` is a random number in [0, 1)."""

    at: float
    chance: float
    attempt: Attempt | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whether this candidate shall compete; if not, it stops leading now and releases what it holds."""

    wanted: bool
    at: float


Event = LeaseRead | LeaseAbsent | Replaced | Conflicted | CallFailed | Wanted


@dataclass(frozen=True, slots=True)
class Candidate:
    """One process's state in the election.

    Attributes:
        identity: unique to this process, not only to its pod
        leading_until: the fence: it may answer only while its clock is before this
        term: grows with each taking of the lead
        answered_until: until when others, or this candidate itself before, may have answered before the last taking
        seen: the Lease as last read or written; None if it is absent or was not read yet
        seen_since: when `seen` was first read at this version
        held: whether `seen` is this candidate's own, see the module's text
        current: whether `seen` is what the last call found, so that a write may be based on it
        act_at: when to act next
        attempts: its replaces based on `seen` whose fate is unknown
        failures: calls in a row that led nowhere
    """

    identity: str
    timing: ElectionTiming
    wanted: bool = True
    leading_until: float = _LONG_AGO
    term: int = 0
    answered_until: float = _LONG_AGO
    seen: LeaseRecord | None = None
    seen_since: float = _LONG_AGO
    held: bool = False
    current: bool = False
    act_at: float = _LONG_AGO
    attempts: tuple[Attempt, ...] = ()
    failures: int = 0

    @property
    def holder(self) -> str:
        """Who holds the Lease as far as known, "" for nobody."""
        return self.seen.holder if self.seen is not None else ""

    def leading(self, now: float) -> bool:
        """Whether it may answer at this time."""
        return now < self.leading_until


def plan(state: Candidate, now: float, stamp: str) -> Action:
    """What to do next; `stamp` is the wall clock in RFC 3339 with microseconds, written into the Lease for people."""
    if now < state.act_at:
        return Wait(state.act_at)
    if not state.current:
        return Read()
    seen = state.seen
    seconds = math.ceil(state.timing.lease_duration)
    if seen is None:
        mine = LeaseRecord(state.identity, seconds, stamp, stamp)
        return Create(mine if state.leading(now) else replace(mine, holder=""))
    if not state.wanted:
        return Replace(replace(seen, holder="", duration=RELEASED_SECONDS, renewed=stamp))
    renewal = replace(seen, holder=state.identity, duration=seconds, renewed=stamp)
    if state.leading(now):
        return Replace(renewal if renewal.acquired else replace(renewal, acquired=stamp))
    transitions = seen.transitions + 1 if 0 <= seen.transitions < _MOST_TRANSITIONS else 0
    return Replace(replace(renewal, acquired=stamp, transitions=transitions))


def step(state: Candidate, event: Event) -> Candidate:
    """The state after an event."""
    match event:
        case LeaseRead():
            return _read(state, event)
        case LeaseAbsent(at):
            # Not wanted: whatever was held is gone with the Lease.
            return replace(
                state, seen=None, held=False, attempts=(), current=True, act_at=at if state.wanted else NEVER
            )
        case Replaced():
            return _replaced(state, event)
        case Conflicted(at, chance):
            pause = _pause(state, chance) if state.failures else 0.0
            return replace(state, current=False, failures=state.failures + 1, act_at=at + pause)
        case CallFailed(at, chance, attempt):
            attempts = state.attempts
            if attempt is not None and attempt.record.holder == state.identity:
                attempts = (*attempts, attempt)[-_ATTEMPTS:]
            pause = _pause(state, chance)
            return replace(state, current=False, attempts=attempts, failures=state.failures + 1, act_at=at + pause)
        case Wanted(wanted, at):
            return _wanted(state, at, wanted=wanted)


def _read(state: Candidate, event: LeaseRead) -> Candidate:
    record, at = event.record, event.at
    unchanged = state.seen is not None and state.seen.resource_version == record.resource_version
    since = state.seen_since if unchanged else at
    held = _is_own(state, record, at, unchanged=unchanged)
    state = replace(
        state, seen=record, seen_since=since, held=held, attempts=state.attempts if unchanged else (), current=held
    )
    if held:
        return replace(state, act_at=at)
    stepped_down = replace(state, leading_until=_LONG_AGO)
    if not state.wanted:
        return replace(stepped_down, act_at=NEVER)
    if record.released or at >= since + _patience(state.timing, record):
        return replace(stepped_down, current=True, act_at=at)
    return replace(stepped_down, failures=0, act_at=at + state.timing.follow_period)


def _is_own(state: Candidate, record: LeaseRecord, at: float, *, unchanged: bool) -> bool:
    if unchanged and state.held:
        return True
    if any(
        attempt.record.says_the_same_as(record) and at < attempt.sent + state.timing.renew_deadline
        for attempt in state.attempts
    ):
        return True
    return state.leading(at) and record.holder in {"", state.identity}


def _patience(timing: ElectionTiming, record: LeaseRecord) -> float:
    return max(timing.lease_duration, min(record.duration, LONGEST_LEASE))


def _replaced(state: Candidate, event: Replaced) -> Candidate:
    record, at = event.record, event.at
    answered_until = _answered_until(state)
    state = replace(state, seen=record, seen_since=at, held=bool(record.holder), current=True, attempts=(), failures=0)
    if not record.holder:
        return replace(state, current=False, act_at=at if state.wanted else NEVER)
    if not state.wanted:
        return replace(state, act_at=at)
    until = event.sent + state.timing.renew_deadline
    won = at < until and not state.leading(at)
    return replace(
        state,
        leading_until=until,
        term=state.term + won,
        answered_until=answered_until if won else state.answered_until,
        act_at=max(at, event.sent + state.timing.retry_period),
    )


def _answered_until(state: Candidate) -> float:
    """The latest time at which somebody may have answered whose Lease is taken now; who released it answered nothing after."""
    if state.seen is None or state.seen.released:
        return state.leading_until
    return max(state.leading_until, state.seen_since + state.timing.renew_deadline)


def _wanted(state: Candidate, at: float, *, wanted: bool) -> Candidate:
    if wanted == state.wanted:
        return state
    if wanted:
        return replace(state, wanted=True, current=False, act_at=at)
    may_hold = state.held or bool(state.attempts)
    return replace(
        state,
        wanted=False,
        leading_until=_LONG_AGO,
        current=state.current and state.held,
        act_at=at if may_hold else NEVER,
    )


def _pause(state: Candidate, chance: float) -> float:
    longest = state.timing.retry_period
    return min(longest, longest / 4 * 2.0 ** min(state.failures, 8)) * (0.5 + chance / 2)
