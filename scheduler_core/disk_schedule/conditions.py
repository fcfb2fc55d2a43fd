"""Conditions of DiskSchedules and volumes: their types and reasons, and why a disk grants nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.model.kube import Condition, condition

SCHEDULABLE: Final = "Schedulable"
REQUESTS_VALID: Final = "RequestsValid"
DISK_ALLOCATION: Final = "DiskAllocation"

NODE_MISSING: Final = "NodeMissing"
NODE_UNREADABLE: Final = "NodeUnreadable"
DISK_MISSING: Final = "DiskMissing"
DISK_REPLACED: Final = "DiskReplaced"
DISK_NOT_READY: Final = "DiskNotReady"
DISK_NOT_SCHEDULABLE: Final = "DiskNotSchedulable"
BEING_DELETED: Final = "BeingDeleted"
OVER_ALLOCATED: Final = "OverAllocated"
INVALID_REQUESTS: Final = "InvalidRequests"

ALLOCATION_PENDING: Final = "AllocationPending"
ALLOCATION_REJECTED: Final = "AllocationRejected"
NO_DISK: Final = "NoDiskWithRoom"
BACKING_IMAGE_MISSING: Final = "BackingImageMissing"
BACKING_IMAGE_PENDING: Final = "BackingImagePending"
UNREADABLE: Final = "Unreadable"
PLACE_CONTRADICTED: Final = "PlaceContradicted"
EXPANSION_PENDING: Final = "ExpansionPending"
EXPANSION_GRANTED: Final = "ExpansionGranted"
EXPANSION_REJECTED: Final = "ExpansionRejected"


_GONE: Final = frozenset({NODE_MISSING, DISK_MISSING, DISK_REPLACED})


def gone_disk(schedule: DiskSchedule) -> str:
    """Returns why nothing on a DiskSchedule's disk can be reached, "" if the disk exists."""
    # The node is gone, lists no such disk, or lists a different one under its name.
    schedulable = condition(schedule.status.conditions, SCHEDULABLE)
    return schedulable.message if schedulable.status == "False" and schedulable.reason in _GONE else ""


def with_condition(conditions: tuple[Condition, ...], wanted: Condition, now: str) -> tuple[Condition, ...]:
    """Returns the conditions with one set, in its place. Its transition time changes only with its status. Conditions
    of other types stay as they are.
    """
    current = next((entry for entry in conditions if entry.type == wanted.type), None)
    since = current.last_transition_time if current and current.status == wanted.status else ""
    wanted = replace(wanted, last_transition_time=since or now)
    if current is None:
        return (*conditions, wanted)
    return tuple(
        wanted if entry is current else entry for entry in conditions if entry is current or entry.type != wanted.type
    )


def without_condition(conditions: tuple[Condition, ...], kind: str) -> tuple[Condition, ...]:
    return tuple(entry for entry in conditions if entry.type != kind)


def condition_matches(current: Condition | None, wanted: Condition) -> bool:
    """Whether a condition equals the wanted one, ignoring the transition time."""
    return current is not None and replace(current, last_transition_time="") == replace(wanted, last_transition_time="")


def disk_problem(schedules: Mapping[str, DiskSchedule], uuid: str) -> str:
    """Returns why a disk grants nothing at all, as a sentence for a volume's condition; "" if only space is lacking."""
    schedule = schedules.get(uuid)
    if schedule is None:
        return f"no node lists disk {uuid}"
    schedulable = condition(schedule.status.conditions, SCHEDULABLE)
    return "" if schedulable.status != "False" or schedulable.reason == OVER_ALLOCATED else schedulable.message


def disk_name(schedules: Mapping[str, DiskSchedule], uuid: str) -> str:
    return schedules[uuid].spec.disk if uuid in schedules else uuid
