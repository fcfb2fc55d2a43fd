"""Whether the placement guard is asked about every placement, and whether its answers are used.

Data flow: the guard writes the place that it allowed into an annotation of the replica, in the same patch → a watch shows the replica
with its first disk → the place is compared with the annotation → confirmed, bypassed or tampered, and the next state. So every process
sees what any process answered. The API server admits a placement without an answer if none comes in time, and notes that in its audit
log alone: the object is the only witness.

Only an update that gives an existing replica its first disk is something that the guard must have been asked about. A replica that the
watch shows with a disk from the start may be a restore, which is created with its disk, or a placement whose earlier event was missed
(after a relist, or between two views). Its generation tells the first from the second as long as its spec was never changed. In all other
cases it counts as bypassed: a needless fallback to safer packing costs some nodes until the next confirmed placement, while a bypass
that goes unnoticed would break the promise.
"""

from __future__ import annotations

from enum import StrEnum

from scheduler_core.model.longhorn import Replica


class GuardState(StrEnum):
    """What may be relied on. The value is a metric's label.

    UNPROVEN: no placement was confirmed since this process started, or since one was bypassed. PROVEN: the last ones were confirmed.
    TAMPERED: what the guard wrote was found half changed; final until the process starts again.
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


_NEXT_STATE = {
    Observation.CONFIRMED: GuardState.PROVEN,
    Observation.BYPASSED: GuardState.UNPROVEN,
    Observation.TAMPERED: GuardState.TAMPERED,
}


def observe_placement(before: Replica | None, after: Replica) -> Observation | None:
    """Compares a replica that a watch has shown with what was answered; returns None if this is no placement that the
    guard must have been asked about.

    Args:
        before: the replica as the watch had shown it last, None if it had not
        after: the replica as the watch shows it now
    """
    if not after.disk_id or (before is not None and before.disk_id):
        return None
    # A CREATE with a disk is a restore; its generation is 1 until the spec is changed.
    if before is None and not after.reviewed_place and after.generation == 1:
        return None
    whole = (after.node_label, after.disk_label) == (after.node_id, after.disk_id)
    if whole and after.reviewed_place == after.place:
        return Observation.CONFIRMED
    # Another disk than the one answered, but all of it: a placement about which the guard was not asked.
    chosen_anew = whole and not after.reviewed_place.startswith(f"{after.node_id}/{after.disk_id}/")
    return Observation.BYPASSED if chosen_anew or not after.reviewed_place else Observation.TAMPERED


def next_state(state: GuardState, observation: Observation) -> GuardState:
    """Returns what may be relied on after an observation."""
    return state if state is GuardState.TAMPERED else _NEXT_STATE[observation]
