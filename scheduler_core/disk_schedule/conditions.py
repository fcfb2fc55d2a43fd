"""Conditions: their types and reasons, and how one is set."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from scheduler_core.model.kube import Condition

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
PLACE_CONTRADICTED: Final = "PlaceContradicted"
EXPANSION_PENDING: Final = "ExpansionPending"
EXPANSION_GRANTED: Final = "ExpansionGranted"
EXPANSION_REJECTED: Final = "ExpansionRejected"


def with_condition(conditions: tuple[Condition, ...], wanted: Condition, now: str) -> tuple[Condition, ...]:
    """The conditions with one set, in its place; its time is kept unless its status changes. Others' stay as they are."""
    known = next((entry for entry in conditions if entry.type == wanted.type), None)
    since = known.last_transition_time if known and known.status == wanted.status else ""
    wanted = replace(wanted, last_transition_time=since or now)
    if known is None:
        return (*conditions, wanted)
    return tuple(
        wanted if entry is known else entry for entry in conditions if entry is known or entry.type != wanted.type
    )


def without_condition(conditions: tuple[Condition, ...], kind: str) -> tuple[Condition, ...]:
    """The conditions without one type."""
    return tuple(entry for entry in conditions if entry.type != kind)


def says(known: Condition | None, wanted: Condition) -> bool:
    """Whether a condition says what is wanted, its time apart."""
    return known is not None and replace(known, last_transition_time="") == replace(wanted, last_transition_time="")
