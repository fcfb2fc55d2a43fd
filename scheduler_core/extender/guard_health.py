"""Whether the placement guard is asked about every placement, and whether its answers are used.

Data flow: each answer to the API server → remembered for a minute → the watch shows the replica with a disk → the place is compared with
the answers → confirmed, bypassed or tampered, and the next state. The API server admits a placement without the guard if that does not
answer in time, and notes that in its audit log alone: the watch is the only witness.

Only an update that gives an existing replica its first disk is something that the guard must have been asked about. A replica that the
watch shows with a disk from the start may be a restore, which is created with its disk, or a placement whose earlier event was missed
(after a relist, or between two views). Its generation tells the first from the second as long as its spec was never changed. In all other
cases it counts as bypassed: a needless fallback to safer packing costs some nodes until the next confirmed placement, while a bypass
that goes unnoticed would break the promise.

A placement that was refused for its shape must not be noted as answered: it went past the guard, and is counted as bypassed once seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from rpds import HashTrieMap

from scheduler_core.model.longhorn import Replica
from scheduler_core.model.replica_placement import Placement

# As long as an allowance takes space that no watch has shown. A placement that was not written by then was given up.
ANSWER_LIFETIME: Final = 60.0
# Every client that reaches the webhook's port can make up placements.
MAX_ANSWERS: Final = 10_000
# Longhorn tries a placement four times before it waits for the next event.
_MAX_ANSWERS_PER_REPLICA: Final = 8


class GuardState(StrEnum):
    """What may be relied on. The value is a metric's label.

    UNPROVEN: no placement was confirmed since this process leads, or since one was bypassed. PROVEN: the last ones were confirmed.
    TAMPERED: what the guard wrote was found half changed; final until a process leads anew.
    """

    UNPROVEN = "unproven"
    PROVEN = "proven"
    TAMPERED = "tampered"


class Observation(StrEnum):
    """What the watch showed about one placement. The value is a metric's label.

    CONFIRMED: it is as the guard answered. BYPASSED: the guard was not asked, or its answer was not used. TAMPERED: the guard's change is
    there in part only.
    """

    CONFIRMED = "confirmed"
    BYPASSED = "bypassed"
    TAMPERED = "tampered"


@dataclass(frozen=True, slots=True)
class _Answer:
    """One answer: the place that Longhorn wanted, and the place that was to be written."""

    wanted: Placement
    written: Placement
    at: float


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers of the last minute by replica.

    There are two generations, so that forgetting costs nothing: the older one is dropped as a whole.
    """

    recent: HashTrieMap[str, tuple[_Answer, ...]] = field(default_factory=HashTrieMap)
    older: HashTrieMap[str, tuple[_Answer, ...]] = field(default_factory=HashTrieMap)
    recent_since: float = -math.inf

    def of(self, replica: str, now: float) -> tuple[_Answer, ...]:
        """Returns the answers about a replica that still count, oldest first."""
        answers = self.recent.get(replica) or self.older.get(replica) or ()
        return tuple(answer for answer in answers if now - answer.at < ANSWER_LIFETIME)

    def put(self, answer: _Answer) -> _Answers:
        """Returns the answers with one more."""
        replica = answer.wanted.replica
        answers = (*self.of(replica, answer.at), answer)[-_MAX_ANSWERS_PER_REPLICA:]
        if answer.at - self.recent_since < ANSWER_LIFETIME and len(self.recent) < MAX_ANSWERS:
            return replace(self, recent=self.recent.insert(replica, answers))
        empty: HashTrieMap[str, tuple[_Answer, ...]] = HashTrieMap()
        return _Answers(empty.insert(replica, answers), self.recent, answer.at)

    def without(self, replica: str) -> _Answers:
        """Returns the answers without those about a replica."""
        return replace(self, recent=self.recent.discard(replica), older=self.older.discard(replica))


@dataclass(frozen=True, slots=True)
class GuardHealth:
    """The guard's health at one time; each event makes the next value.

    Times are the caller's seconds, which never go back.

    Attributes:
        unproven_since: since when no earlier answer proves anything: the lead began, or a placement was seen to be bypassed
        state: what may be relied on
    """

    unproven_since: float
    state: GuardState = GuardState.UNPROVEN
    _answers: _Answers = field(default_factory=_Answers)

    @property
    def remembered(self) -> int:
        """Number of entries of replicas with answers, at most twice `MAX_ANSWERS`."""
        return len(self._answers.recent) + len(self._answers.older)

    def with_answer(self, wanted: Placement, written: Placement, now: float) -> GuardHealth:
        """Notes an answer, whether it changed the placement or not; never one of a dry run."""
        return replace(self, _answers=self._answers.put(_Answer(wanted, written, now)))

    def observe(self, before: Replica | None, after: Replica, now: float) -> tuple[GuardHealth, Observation | None]:
        """Compares a replica that a watch has shown with what was answered.

        Args:
            before: the replica as the watch had shown it last, None if it had not
            after: the replica as the watch shows it now
            now: when

        Returns:
            the next value, and the observation; None if this is no placement that the guard must have been asked about
        """
        answers = self._answers.of(after.name, now)
        if not _is_placement(before, after, answered=bool(answers)):
            return self, None
        observation = _compare(answers, after)
        since = self.unproven_since
        state = self.state
        if observation is not Observation.CONFIRMED:
            since = now
            state = GuardState.TAMPERED if observation is Observation.TAMPERED else GuardState.UNPROVEN
        # An answer from before the last bypass does not show that the guard is asked again.
        elif any(_is_at(answer.written, after) and answer.at >= since for answer in answers):
            state = GuardState.PROVEN
        if self.state is GuardState.TAMPERED:
            state = GuardState.TAMPERED
        return GuardHealth(since, state, self._answers.without(after.name)), observation


def _is_placement(before: Replica | None, after: Replica, *, answered: bool) -> bool:
    """Whether a replica got its first disk by an update."""
    if not after.disk_id or (before is not None and before.disk_id):
        return False
    # A CREATE with a disk is a restore; its generation is 1 until the spec is changed.
    return before is not None or answered or after.generation != 1


def _compare(answers: tuple[_Answer, ...], replica: Replica) -> Observation:
    if any(_is_at(answer.written, replica) for answer in answers):
        return Observation.CONFIRMED
    if any(_is_at(answer.wanted, replica) for answer in answers):
        return Observation.BYPASSED
    # A refused write is tried again with a new choice, about which the guard may not have been asked.
    whole = (replica.node_label, replica.disk_label) == (replica.node_id, replica.disk_id)
    changed_disks = {uuid for answer in answers if answer.wanted != answer.written for uuid in _disks(answer)}
    chosen_anew = whole and replica.disk_id not in changed_disks
    return Observation.BYPASSED if chosen_anew or not changed_disks else Observation.TAMPERED


def _disks(answer: _Answer) -> tuple[str, str]:
    return answer.wanted.disk, answer.written.disk


def _is_at(placement: Placement, replica: Replica) -> bool:
    """Whether a replica has exactly a placement's fields and labels."""
    return (
        (replica.node_id, replica.node_label) == (placement.node, placement.node)
        and (replica.disk_id, replica.disk_label) == (placement.disk, placement.disk)
        and replica.disk_path == placement.disk_path
    )
