"""Why a disk grants nothing, in words for a volume's condition."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_core.disk_schedule.conditions import OVER_ALLOCATED, SCHEDULABLE
from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.model.kube import condition


def trouble(schedules: Mapping[str, DiskSchedule], uuid: str) -> str:
    """What is wrong with a disk whatever is asked of it, as a sentence; "" if it lacks room and nothing else."""
    schedule = schedules.get(uuid)
    if schedule is None:
        return f"no node lists disk {uuid}"
    found = condition(schedule.status.conditions, SCHEDULABLE)
    return "" if found.status != "False" or found.reason == OVER_ALLOCATED else found.message


def disk_name(schedules: Mapping[str, DiskSchedule], uuid: str) -> str:
    """The disk's name; its UUID if it is gone."""
    return schedules[uuid].spec.disk if uuid in schedules else uuid
