"""A DiskSchedule's answers to requests, and the conditions of a disk that may grant some."""

from __future__ import annotations

from typing import Final

from scheduler_core.model.disk_schedule import Allocation, AllocationState
from scheduler_core.model.kube import Condition

READY: Final = (Condition("Ready", "True"), Condition("Schedulable", "True"))


def grant(size: int) -> Allocation:
    return Allocation(AllocationState.SCHEDULED, size)


def rejection(held: int = 0) -> Allocation:
    """The answer to a request that is rejected; `held` bytes stay held."""
    return Allocation(AllocationState.REJECTED, held)
