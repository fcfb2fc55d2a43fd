"""Over-allocated disks: which are, and when it is logged."""

import asyncio

import pytest
from structlog.testing import capture_logs

from app.disk_schedule.controller_base import over_allocated
from scheduler_core.model.disk_schedule import DiskSchedule, DiskScheduleStatus
from scheduler_core.model.kube import Condition
from tests.worlds.controllers import World

FULL = {"storageScheduled": 7, "storageAvailable": 5}
FITTING = {"storageScheduled": 5, "storageAvailable": 5}


def schedule_of(scheduled: int, available: int | None, reason: str = "") -> DiskSchedule:
    conditions = (Condition("Schedulable", "False" if reason else "True", reason),)
    return DiskSchedule(
        "d", status=DiskScheduleStatus(storage_scheduled=scheduled, storage_available=available, conditions=conditions)
    )


@pytest.mark.parametrize("reason", ["OverAllocated", "DiskPressure", "DiskNotReady", "NodeUnreadable"])
def test_a_disk_with_more_scheduled_than_available_is_over_allocated_whatever_its_condition(reason: str) -> None:
    assert over_allocated(schedule_of(7, 5, reason))
    assert not over_allocated(schedule_of(5, 5, reason))


@pytest.mark.parametrize("reason", ["NodeMissing", "DiskMissing", "DiskReplaced", "BeingDeleted"])
def test_a_disk_that_may_grant_nothing_is_not_over_allocated(reason: str) -> None:
    assert not over_allocated(schedule_of(7, 0, reason))


def test_before_the_first_decision_no_disk_is_over_allocated() -> None:
    assert not over_allocated(schedule_of(7, None))


async def test_over_allocations_are_logged_once_at_the_start_and_at_their_end() -> None:
    """Earlier ones are logged, too: the previous leader's log may be lost. Pressure is no new over-allocation."""
    world = World()
    world.schedule("full", status=FULL)
    world.schedule("fitting", status=FITTING)
    allocator = next(controller for controller in world.controllers if controller.name == "disk-schedule")
    with capture_logs() as logs:
        running = asyncio.create_task(allocator.run())
        await asyncio.sleep(0.01)
        pressure = {"type": "Schedulable", "status": "False", "reason": "DiskPressure"}
        world.schedule("full", status={**FULL, "conditions": [pressure]})
        world.schedule("full", status=FITTING)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    disk = {"uuid": "full", "node": "n", "disk": "disk-1"}
    assert logs == [
        {**disk, "log_level": "warning", "event": "a disk is over-allocated", "scheduled": 7, "available": 5},
        {**disk, "log_level": "info", "event": "a disk is not over-allocated any more"},
    ]
