"""Over-allocations: which disks are, and when it is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.disk_schedule.disk_controller import over_allocated
from app.kube.client import KubeClient
from scheduler_core.model.disk_schedule import DiskSchedule, Status
from scheduler_core.model.kube import Condition
from tests.worlds.controllers import World
from tests.worlds.fake_api import write_kubeconfig

FULL = {"storageScheduled": 7, "storageAvailable": 5}
FITTING = {"storageScheduled": 5, "storageAvailable": 5}


def holding(held: int, available: int | None, reason: str = "") -> DiskSchedule:
    """A DiskSchedule with a status."""
    conditions = (Condition("Schedulable", "False" if reason else "True", reason),)
    return DiskSchedule("d", status=Status(storage_scheduled=held, storage_available=available, conditions=conditions))


@pytest.mark.parametrize("reason", ["OverAllocated", "DiskPressure", "DiskNotReady", "NodeUnreadable"])
def test_a_disk_that_holds_more_than_is_available_is_over_allocated_whatever_else_is_wrong(reason: str) -> None:
    """A disk that is too full comes under pressure, and its condition says that instead."""
    assert over_allocated(holding(7, 5, reason))
    assert not over_allocated(holding(5, 5, reason))


@pytest.mark.parametrize("reason", ["NodeMissing", "DiskMissing", "DiskReplaced", "BeingDeleted"])
def test_where_nothing_may_be_granted_the_zero_that_is_available_says_nothing_about_the_disk(reason: str) -> None:
    """What is held there stays held."""
    assert not over_allocated(holding(7, 0, reason))


def test_before_the_first_decision_no_disk_is_over_allocated() -> None:
    """Nothing is known to be available, nor not to be."""
    assert not over_allocated(holding(7, None))


def test_who_begins_to_work_tells_of_over_allocations_once_and_of_their_end(tmp_path: Path) -> None:
    """Of those that were there before, too: the log of who led before may be gone. Under pressure it is no new one."""

    async def play() -> None:
        client = await KubeClient.connect(str(write_kubeconfig(tmp_path, "http://127.0.0.1:1")))
        world = World(client)
        world.schedule("full", status=FULL)
        world.schedule("fitting", status=FITTING)
        allocator = next(each for each in world.controllers if each.name == "disk-schedule")
        running = asyncio.create_task(allocator.run())
        await asyncio.sleep(0.01)
        pressure = {"type": "Schedulable", "status": "False", "reason": "DiskPressure"}
        world.schedule("full", status={**FULL, "conditions": [pressure]})
        world.schedule("full", status=FITTING)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()

    with capture_logs() as told:
        asyncio.run(play())
    where = {"uuid": "full", "node": "n", "disk": "disk-1"}
    assert told == [
        {**where, "log_level": "warning", "event": "a disk is over-allocated", "scheduled": 7, "available": 5},
        {**where, "log_level": "info", "event": "a disk is not over-allocated any more"},
    ]
