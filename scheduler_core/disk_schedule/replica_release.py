"""Releases what a deleted replica held, and names the objects to reconcile when allocations change."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_core.disk_schedule.writes import RemoveFinalizer, SetRequirement, Write
from scheduler_core.model.disk_schedule import Allocations, DiskSchedule, RequestKind
from scheduler_core.model.longhorn import Replica


def release_replica(replica: Replica, schedules: Mapping[str, DiskSchedule]) -> tuple[Write, ...]:
    """Returns the writes that release a replica that is being deleted; none for any other replica. The finalizer is
    removed last, so that a replica never disappears while it has a request.
    """
    if not replica.deleting:
        return ()
    name = replica.name
    withdrawals = tuple(
        SetRequirement(uuid, RequestKind.REPLICA, name, 0)
        for uuid, schedule in sorted(schedules.items())
        if name in schedule.spec.replicas
    )
    return (*withdrawals, RemoveFinalizer(RequestKind.REPLICA, name))


def changed_names(before: Allocations, after: Allocations) -> frozenset[str]:
    """Returns the names whose allocation differs: only their volumes (or backing images) are reconciled."""
    return frozenset(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
