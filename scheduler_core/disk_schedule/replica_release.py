"""The replica controller's decision, which is on deletion only; and who has to look again when answers change."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_core.disk_schedule.writes import Finalize, Require, Write
from scheduler_core.model.disk_schedule import Allocations, DiskSchedule, Kind
from scheduler_core.model.longhorn import Replica


def released(name: str, replica: Replica | None, schedules: Mapping[str, DiskSchedule]) -> tuple[Write, ...]:
    """What a replica that is being deleted, or does not exist, must give back; nothing for any other.

    The finalizer goes last, so that a replica with a request is never forgotten half-way. A request for a replica that does not exist
    comes from a volume controller that was about to ask when the replica went; it is `stray` (see `Require`).
    """
    if replica is not None and not replica.deleting:
        return ()
    found = tuple(
        Require(uuid, Kind.REPLICA, name, 0, stray=replica is None)
        for uuid, schedule in sorted(schedules.items())
        if name in schedule.spec.replicas
    )
    return found if replica is None else (*found, Finalize(Kind.REPLICA, name))


def changed(before: Allocations, after: Allocations) -> frozenset[str]:
    """The names whose answer differs: their volumes (or backing images) look again, all others do not."""
    return frozenset(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
