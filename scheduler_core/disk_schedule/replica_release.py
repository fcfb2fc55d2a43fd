"""Releases what a deleted replica held.

It also names the objects to reconcile when allocations change.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_core.disk_schedule.writes import RemoveFinalizer, SetRequirement, Write
from scheduler_core.model.disk_schedule import Allocations, DiskSchedule, RequestKind
from scheduler_core.model.longhorn import Replica


def release_replica(name: str, replica: Replica | None, schedules: Mapping[str, DiskSchedule]) -> tuple[Write, ...]:
    """Returns the writes that release a deleted replica.

    The replica is being deleted or does not exist; there are no writes for any other replica. The finalizer is removed last,
    so that a replica never disappears while it has a request. A request for a replica that does not exist comes from a volume
    controller that was about to write it when the replica was deleted; it is `stray` (see `writes.SetRequirement`).
    """
    if replica is not None and not replica.deleting:
        return ()
    withdrawals = tuple(
        SetRequirement(uuid, RequestKind.REPLICA, name, 0, stray=replica is None)
        for uuid, schedule in sorted(schedules.items())
        if name in schedule.spec.replicas
    )
    return withdrawals if replica is None else (*withdrawals, RemoveFinalizer(RequestKind.REPLICA, name))


def changed_names(before: Allocations, after: Allocations) -> frozenset[str]:
    """Returns the names whose allocation differs.

    Only their volumes (or backing images) are reconciled.
    """
    return frozenset(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
