"""Sentences about what a new status of a DiskSchedule grants, rejects or releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scheduler_core.model.disk_schedule import AllocationState, DiskSchedule, DiskScheduleStatus, RequestKind
from scheduler_core.model.listing import join_first
from scheduler_core.model.quantity import format_bytes

GRANTED: Final = "Granted"
REJECTED: Final = "Rejected"
RELEASED: Final = "Released"


@dataclass(frozen=True, slots=True)
class AllocationEvent:
    """What happened to some requests."""

    reason: str  # GRANTED, REJECTED or RELEASED
    message: str  # names and bytes, and the disk's numbers

    @property
    def normal(self) -> bool:
        return self.reason != REJECTED


def allocation_events(schedule: DiskSchedule, status: DiskScheduleStatus) -> tuple[AllocationEvent, ...]:
    """Returns what a new status changes for the requests of a DiskSchedule."""
    held = format_bytes(status.storage_scheduled)
    limit = "" if status.storage_available is None else f" of {format_bytes(status.storage_available)}"
    return tuple(
        AllocationEvent(reason, f"{join_first(sentences, ', ')}; {held}{limit} are held")
        for reason, sentences in _changes(schedule, status).items()
        if sentences
    )


def _changes(schedule: DiskSchedule, status: DiskScheduleStatus) -> dict[str, list[str]]:
    changes: dict[str, list[str]] = {GRANTED: [], REJECTED: [], RELEASED: []}
    for kind in RequestKind:
        before = schedule.status.allocations(kind)
        after = status.allocations(kind)
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name), after.get(name)
            old_size = old.size if old else 0
            new_size = new.size if new else 0
            requested = schedule.spec.requests(kind).get(name) or 0
            if new_size > old_size:
                changes[GRANTED].append(f"{format_bytes(new_size)} for {kind.value} {name}")
            elif new_size < old_size:
                changes[RELEASED].append(f"{format_bytes(old_size - new_size)} of {kind.value} {name}")
            rejected = new is not None and new.state is AllocationState.REJECTED
            if rejected and (old is None or old.state is not AllocationState.REJECTED):
                changes[REJECTED].append(f"{format_bytes(requested - new_size)} more for {kind.value} {name}")
    return changes
