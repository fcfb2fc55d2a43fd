"""Candidates of an election: one after chosen events, and several that compete for one Lease while everything goes wrong.

`ElectionWorld` has a true time, which no candidate sees: each has a clock of its own, up to 1 % fast or slow. A call is sent,
applied and answered as separate moments, in any order, late or never; an answer may be lost although the write happened,
and a write may be applied long after its sender gave up, was stopped, or died. Users edit the Lease.
"""

from dataclasses import dataclass, field

from scheduler_core.leadership import election
from scheduler_core.structs import replace

TIMING = election.ElectionTiming()
IDENTITY = "me"
TIMESTAMP = "2026-01-01T00:00:00.000000Z"
OTHER_LEASE = election.LeaseRecord("other", 15, "then", "then", 4, "7")
OWN_LEASE = election.LeaseRecord(IDENTITY, 15, "then", "then", 5, "8")
CALM_STEP = 0.25
MAX_CALLS_AT_ONCE = 4

Call = election.ReadLease | election.CreateLease | election.ReplaceLease


def candidate_after(*events: election.Event, candidate: election.Candidate | None = None) -> election.Candidate:
    candidate = candidate or election.Candidate(IDENTITY, TIMING)
    for event in events:
        candidate = election.step(candidate, event)
    return candidate


def leader(sent: float = 0.0) -> election.Candidate:
    """A candidate that leads: its replace was sent at this time and accepted a little later."""
    return candidate_after(election.LeaseReplaced(OWN_LEASE, sent, sent + 0.1))


def next_action(candidate: election.Candidate, now: float) -> election.Action:
    return election.plan(candidate, now, TIMESTAMP)


class LeaseServer:
    """The Lease on the API server, where each accepted write makes a new version."""

    def __init__(self) -> None:
        self.lease: election.LeaseRecord | None = None
        self.history: list[election.LeaseRecord] = []
        self._version = 0

    def write(self, record: election.LeaseRecord | None) -> election.LeaseRecord | None:
        """Replaces the Lease, or deletes it."""
        self._version += 1
        self.lease = record and replace(record, resource_version=str(self._version))
        if self.lease is not None:
            self.history.append(self.lease)
        return self.lease

    def apply(self, call: Call) -> election.LeaseRecord | bool | None:
        """Answers a call with the Lease, with None if it is absent, or with False for a conflict."""
        match call:
            case election.ReadLease():
                return self.lease
            case election.CreateLease(record):
                return False if self.lease is not None else self.write(record)
            case election.ReplaceLease(record):
                if self.lease is None or self.lease.resource_version != record.resource_version:
                    return False
                return self.write(record)


@dataclass
class PendingCall:
    """A call that was sent and not answered yet."""

    call: Call
    sent: float
    applied: bool = False
    answer: election.LeaseRecord | bool | None = None


@dataclass
class Process:
    """A candidate with its clock and its pending call; a stopped process (SIGSTOP) does nothing."""

    candidate: election.Candidate
    clock_rate: float = 1.0
    clock_offset: float = 0.0
    stopped: bool = False
    pending: PendingCall | None = None


@dataclass
class ElectionWorld:
    """Processes, the API server, the calls that were given up, and the true time. `jitter` is that of the next failed call."""

    processes: list[Process]
    time: float = 0.0
    server: LeaseServer = field(default_factory=LeaseServer)
    abandoned: list[PendingCall] = field(default_factory=list)
    jitter: float = 0.5
    restarts: int = 0

    def clock(self, process: Process) -> float:
        return process.clock_offset + self.time * process.clock_rate

    def leading_processes(self) -> list[Process]:
        """The processes that may answer now; a stopped process counts, because it may have been about to."""
        return [process for process in self.processes if process.candidate.leading(self.clock(process))]

    def leaders(self) -> list[str]:
        return [process.candidate.identity for process in self.leading_processes()]

    def send(self, process: Process) -> None:
        """Sends the call that the process plans, if it plans one."""
        if process.stopped or process.pending is not None:
            return
        now = self.clock(process)
        action = election.plan(process.candidate, now, f"t{now:.6f}")
        if not isinstance(action, election.Wait):
            process.pending = PendingCall(action, now)

    def wait(self, seconds: float) -> None:
        """Lets time pass in which no process does anything."""
        self.time += seconds

    def apply(self, pending: PendingCall | None) -> None:
        if pending is not None and not pending.applied:
            pending.applied = True
            pending.answer = self.server.apply(pending.call)

    def answer(self, process: Process) -> None:
        """Lets the answer reach the process."""
        pending = process.pending
        if pending is None or not pending.applied or process.stopped:
            return
        process.pending = None
        process.candidate = election.step(process.candidate, self._event(pending, self.clock(process)))

    def time_out(self, process: Process) -> None:
        """Lets the process give up its call, which may still reach the API server."""
        pending = process.pending
        if pending is None or process.stopped:
            return
        self._abandon_call(process)
        attempt = (
            election.Attempt(pending.call.record, pending.sent)
            if isinstance(pending.call, election.ReplaceLease)
            else None
        )
        process.candidate = election.step(
            process.candidate, election.CallFailed(self.clock(process), self.jitter, attempt)
        )

    def make_call(self, process: Process) -> bool:
        """Lets one call be sent, applied and answered in no time; returns whether the process made one."""
        self.send(process)
        if process.pending is None:
            return False
        self.apply(process.pending)
        self.answer(process)
        return process.pending is None

    def apply_abandoned(self, number: int) -> None:
        """Lets a call that was given up reach the API server after all."""
        if self.abandoned:
            self.apply(self.abandoned.pop(number % len(self.abandoned)))

    def stop_or_continue(self, process: Process) -> None:
        process.stopped = not process.stopped

    def restart(self, process: Process) -> None:
        """Kills the process without a release and starts another in its place."""
        self._abandon_call(process)
        self.restarts += 1
        process.candidate = election.Candidate(f"successor-{self.restarts}", TIMING)
        process.stopped = False

    def toggle(self, process: Process) -> None:
        """Tells the process not to compete, or to compete again."""
        if not process.stopped:
            self.set_competing(process, competing=not process.candidate.competing)

    def set_competing(self, process: Process, *, competing: bool) -> None:
        process.candidate = election.step(process.candidate, election.ShouldCompete(competing, self.clock(process)))

    def run(self, seconds: float) -> None:
        """Lets time pass while every process that is not stopped makes its calls and gets its answers."""
        end = self.time + seconds
        while self.time < end:
            for process in self.processes:
                for _ in range(MAX_CALLS_AT_ONCE):
                    if not self.make_call(process):
                        break
            assert len(self.leaders()) <= 1
            self.time += CALM_STEP

    def assert_one_leader_emerges(self) -> None:
        """Asserts that one process soon leads, and stays the leader, once all processes run and compete. Soon is within
        the longest wait that a process may have begun, and some periods.
        """
        for process in self.processes:
            process.stopped = False
            self.set_competing(process, competing=True)
        wait = max(TIMING.lease_duration, min(60, self.server.lease.duration if self.server.lease else 0))
        self.run(1.02 * (wait + 2 * TIMING.retry_period) + 1)
        [leader] = self.leaders()
        for _ in range(20):
            self.run(1.0)
            assert self.leaders() == [leader]

    def edit_lease(self, holder: str | None = None, duration: int | None = None) -> None:
        """Lets a user edit the Lease, whatever its version."""
        lease = self.server.lease
        if lease is not None:
            holder = lease.holder if holder is None else holder
            self._forge(replace(lease, holder=holder, duration=lease.duration if duration is None else duration))

    def restore_lease(self, number: int) -> None:
        """Lets a user write one of the Lease's last four contents again."""
        history = self.server.history
        if history:
            self._forge(history[-1 - number % min(len(history), 4)])

    def _forge(self, lease: election.LeaseRecord) -> None:
        # Imitating a release exactly is the one edit that breaks the election.
        current = self.server.lease
        if lease.released and not (current is not None and current.released):
            lease = replace(lease, duration=election.RELEASED_SECONDS + 1)
        self.server.write(lease)

    def _abandon_call(self, process: Process) -> None:
        if process.pending is not None and not process.pending.applied:
            self.abandoned.append(process.pending)
        process.pending = None

    def _event(self, pending: PendingCall, at: float) -> election.Event:
        if pending.answer is False:
            return election.WriteConflicted(at, self.jitter)
        if not isinstance(pending.answer, election.LeaseRecord):
            return election.LeaseAbsent(at)
        if isinstance(pending.call, election.ReplaceLease):
            return election.LeaseReplaced(pending.answer, pending.sent, at)
        return election.LeaseRead(pending.answer, at)


def election_world(clocks: list[tuple[float, float]]) -> ElectionWorld:
    """A world of candidates whose clocks have these rates and offsets."""
    return ElectionWorld(
        [
            Process(election.Candidate(f"candidate-{number}", TIMING), rate, offset)
            for number, (rate, offset) in enumerate(clocks)
        ]
    )
