"""The product's state machines as the model of hand-overs (`hand_over_model.py`) calls them: each result is a number, and is computed once.

The election runs in steps of 7.5 seconds, the ledger's clock stands still, and the guard sees one node of two disks.
"""

from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any, NamedTuple

from scheduler_core.guard.placement_guard import GuardOutcome
from scheduler_core.leadership import election
from scheduler_core.leadership.election import Candidate, LeaseRecord
from scheduler_core.model.longhorn import Placement
from scheduler_core.offers import ledger as offers
from scheduler_core.offers.handover_record import RecordHead, decode_record, encode_record
from scheduler_core.offers.ledger import Ledger
from scheduler_core.offers.outstanding_offer import Event, OffersRestored
from scheduler_core.structs import replace
from tests import builders as make
from tests.worlds.offers import with_offer
from tests.worlds.placements import NODE, decide, node_with_disks, placement, state_of, waiting_volume

SIZES = (2, 2, 4)
DISK = 4
PODS = range(len(SIZES))
PAIR = range(2)
TICK = 7.5
_LONG_AGO = -20.0
_TIMING = election.ElectionTiming()


class Election(NamedTuple):
    """The Lease and both candidates; now is 0."""

    lease: LeaseRecord
    candidates: tuple[Candidate, Candidate]


class Record(NamedTuple):
    """What the record of offers says: its bytes, and of which lead they are."""

    data: bytes
    holder: str
    transitions: int
    final: bool


class _Table:
    """Large values by number, so that states are small and equal values are one."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: Any) -> int:
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


LEDGERS, ELECTIONS, RECORDS = _Table(), _Table(), _Table()
NO_OFFERS = LEDGERS.number(Ledger())


@cache
def step_ledger(ledger: int, *events: Event) -> int:
    """The ledger after events; its clock stands still, so that no offer ends by age."""
    value: Ledger = LEDGERS.values[ledger]
    for event in events:
        value, _ = offers.step(value, event, 0.0)
    return LEDGERS.number(value)


@cache
def offered_nodes(ledger: int) -> tuple[frozenset[int], ...]:
    found = (LEDGERS.values[ledger].offer_of(str(pod)) for pod in PODS)
    return tuple(frozenset(map(int, offer.nodes)) if offer else frozenset() for offer in found)


@cache
def encode(ledger: int, election_number: int, process: int, *, final: bool) -> int:
    transitions = ELECTIONS.values[election_number].candidates[process].observed_record.transitions
    head = RecordHead(str(process), transitions, final)
    data = encode_record(LEDGERS.values[ledger], head, 0.0).data
    return RECORDS.number(Record(data, head.holder, transitions, final))


@cache
def restore(record: int, bound: int) -> int:
    """The ledger that a successor makes of a record; pods that it sees as bound need no offer."""
    data = RECORDS.values[record].data
    found = decode_record(data) if data else None
    if found is None:
        return NO_OFFERS
    entries = tuple(entry.offered for entry in found.offers if not bound >> int(entry.offered.pod.uid) & 1)
    return step_ledger(NO_OFFERS, OffersRestored(entries, found.offers_made))


def _call(lease: LeaseRecord, candidate: Candidate, lost: str) -> tuple[LeaseRecord, Candidate]:
    """A candidate makes the calls that are due. `lost` is what the first one loses: "request", "answer" or ""."""
    while not isinstance(action := election.plan(candidate, 0.0, ""), election.Wait):
        event: election.Event
        if isinstance(action, election.ReplaceLease):
            stored = lost != "request" and action.record.resource_version == lease.resource_version
            if stored:
                lease = replace(action.record, resource_version=lease.resource_version + "+")
            event = election.LeaseReplaced(lease, 0.0, 0.0) if stored else election.WriteConflicted(0.0, 0.0)
            if lost:
                event = election.CallFailed(0.0, 0.5, election.Attempt(action.record, 0.0))
        elif lost:
            event = election.CallFailed(0.0, 0.5)
        else:
            event = election.LeaseRead(lease, 0.0)
        lost = ""
        candidate = election.step(candidate, event)
    return lease, candidate


def _normal(candidate: Candidate, lease: LeaseRecord, passed: float) -> Candidate:
    """A candidate `passed` seconds later, in the numbers that decisions can tell apart."""
    seen = candidate.observed_record
    fence = candidate.leading_until - passed
    before = candidate.predecessor
    return replace(
        candidate,
        term=min(candidate.term, 1),
        answered_until=_LONG_AGO,
        leading_until=fence if fence > 0 else _LONG_AGO,
        observed_time=max(candidate.observed_time - passed, _LONG_AGO),
        observed_record=seen and replace(seen, resource_version=str(seen.resource_version == lease.resource_version)),
        predecessor=before and replace(before, resource_version=""),
        act_at=max(candidate.act_at - passed, 0.0),
        attempts=tuple(
            replace(entry, record=replace(entry.record, resource_version=""), sent=entry.sent - passed)
            for entry in candidate.attempts
            if entry.sent - passed > -_TIMING.renew_deadline
        ),
        failures=min(candidate.failures, 1),
    )


def _number(lease: LeaseRecord, candidates: Sequence[Candidate], passed: float = 0.0) -> int:
    first, second = (_normal(candidate, lease, passed) for candidate in candidates)
    return ELECTIONS.number(Election(replace(lease, resource_version="True"), (first, second)))


@cache
def tick(number: int, silent: int, loser: int = -1, lost: str = "") -> int:
    """`TICK` seconds later: the processes that are not silent make the calls that are due."""
    lease, candidates = ELECTIONS.values[number]
    number = _number(lease, candidates, TICK)
    lease, candidates = ELECTIONS.values[number]
    after = list(candidates)
    for process in PAIR:
        if not silent >> process & 1:
            lease, after[process] = _call(lease, after[process], lost if process == loser else "")
    return _number(lease, after)


@cache
def without(number: int, dead: int) -> int:
    """The same, with nothing kept of a process that is dead."""
    lease, candidates = ELECTIONS.values[number]
    first, second = (Candidate("", _TIMING) if dead >> each & 1 else candidates[each] for each in PAIR)
    return ELECTIONS.number(Election(lease, (first, second)))


@cache
def release(number: int, process: int) -> int:
    """A process that drains gives the Lease up."""
    lease, candidates = ELECTIONS.values[number]
    after = list(candidates)
    lease, after[process] = _call(
        lease, election.step(after[process], election.ShouldCompete(compete=False, at=0.0)), ""
    )
    return _number(lease, after)


@cache
def has_led(number: int, process: int) -> bool:
    return bool(ELECTIONS.values[number].candidates[process].term)


@cache
def leaders(number: int) -> tuple[bool, ...]:
    return tuple(candidate.leading(0.0) for candidate in ELECTIONS.values[number].candidates)


class Known(NamedTuple):
    """What a process knows of one pod on a node. `base`: "" nothing, "offer", "bound"; its disk as a watch shows it, or as it was answered."""

    base: str = ""
    shown: int | None = None
    answered: int | None = None


@cache
def review(pod: int, wanted: int, known: tuple[Known, ...]) -> tuple[int, bool]:
    """The disk that the guard writes for a pod's volume that Longhorn wants on a disk of the node, and whether that keeps a plan."""
    objects: list[Any] = [node_with_disks({str(disk): make.disk(DISK) for disk in PAIR})]
    for other, fact in enumerate(known):
        name = f"v{other}"
        if fact.base == "bound":
            *volume, replica = waiting_volume(name, SIZES[other], other)
            objects.append([*volume, *([replica] if fact.shown is None else [])])
        else:
            objects.append([make.claim(name, SIZES[other]), make.pod(name, name=f"pod-{name}", uid=f"uid-pod-{name}")])
        if fact.shown is not None:
            volume_name = _volume_name(other, fact)
            if fact.base != "bound":
                objects.append(make.volume(volume_name, SIZES[other], locality="strict-local"))
            size = SIZES[other]
            objects.append(make.replica(f"r-{name}", volume_name, NODE, size=size, disk=str(fact.shown), healthy=False))
    state = state_of(*objects)
    ledger = Ledger()
    for other, fact in enumerate(known):
        if fact.base == "offer":
            ledger = with_offer(ledger, state.view, f"pod-v{other}", [NODE], 0.0)
    allowed = [_placement(other, fact, fact.answered) for other, fact in enumerate(known) if fact.answered is not None]
    decision = decide(state, _placement(pod, known[pod], wanted), allowed, ledger)
    planned = decision.outcome in {GuardOutcome.LEFT, GuardOutcome.CHANGED}
    return int(decision.allowance.disk.removeprefix(f"{NODE}-")), planned


def _placement(pod: int, fact: Known, disk: int) -> Placement:
    return replace(placement(f"v{pod}", SIZES[pod], str(disk)), volume=_volume_name(pod, fact))


def _volume_name(pod: int, fact: Known) -> str:
    """The volume's name, which follows from an unbound claim's UID."""
    return f"vol-v{pod}" if fact.base == "bound" else f"pvc-uid-v{pod}"


@cache
def readable(record: int, number: int, process: int) -> tuple[bool, bool]:
    """Whether a new leader may use a record, and whether it is the last word of the leader before it (app/extender/offer_store.py)."""
    found = RECORDS.values[record]
    predecessor = ELECTIONS.values[number].candidates[process].predecessor
    if not found.data or predecessor is None or found.transitions > predecessor.transitions:
        return False, False
    if found.transitions < predecessor.transitions:
        return True, False
    return predecessor.holder in {"", found.holder}, found.final


def settled_election() -> int:
    """Process 0 leads, and process 1 follows."""
    lease = LeaseRecord(resource_version="")
    number = _number(lease, [Candidate(str(process), _TIMING) for process in PAIR])
    while not leaders(number)[0]:
        number = tick(number, 0b10)
    return tick(tick(number, 0), 0)


def packs(pods: list[int], loads: list[int]) -> bool:
    """Whether the volumes of pods fit on a node's disks together: every assignment is tried."""
    if not pods:
        return max(loads) <= DISK
    size = SIZES[pods[0]]
    return packs(pods[1:], [loads[0] + size, loads[1]]) or packs(pods[1:], [loads[0], loads[1] + size])
