"""Mirrors a disk whose Longhorn allocates by itself into a DiskSchedule: observed, never decided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from scheduler_core.disk_schedule.reconcile import NodeLookup, describe_status, limit_of
from scheduler_core.model.disk_schedule import (
    Allocation,
    AllocationState,
    DiskSchedule,
    DiskScheduleSpec,
    DiskScheduleStatus,
    RequestKind,
)
from scheduler_core.model.longhorn import BackingImage, Replica
from scheduler_core.model.quantity import MAX_BYTES

_Named = TypeVar("_Named", Replica, BackingImage)


def mirror_spec(
    schedule: DiskSchedule, replicas: Iterable[Replica], images: Iterable[BackingImage]
) -> DiskScheduleSpec:
    """Returns the spec that requests what is on the disk: every Replica object placed there, and every backing image
    with the disk in its spec.
    """
    return replace(
        schedule.spec,
        replicas={each.name: each.size for each in _by_name(replicas) if each.disk_id == schedule.name and each.size},
        backing_images={
            each.name: each.real_size for each in _by_name(images) if schedule.name in each.disks and each.real_size
        },
    )


def mirror_status(schedule: DiskSchedule, node: NodeLookup, now: str) -> DiskScheduleStatus | None:
    """Returns the next status of a mirrored spec, if it differs. Everything counts as scheduled, whatever the limit.
    More than storageAvailable is an over-allocation: condition Schedulable is False with reason OverAllocated.
    """
    held = {
        kind: {
            name: Allocation(AllocationState.SCHEDULED, size)
            for name, size in sorted(schedule.spec.requests(kind).items())
            if size
        }
        for kind in RequestKind
    }
    total = sum(entry.size for entries in held.values() for entry in entries.values())
    status = replace(
        schedule.status,
        replicas=held[RequestKind.REPLICA],
        backing_images=held[RequestKind.BACKING_IMAGE],
        storage_scheduled=min(total, MAX_BYTES),
    )
    status = describe_status(schedule, status, limit_of(schedule, node), now)
    return None if status == schedule.status else status


def _by_name(objects: Iterable[_Named]) -> list[_Named]:
    return sorted(objects, key=lambda each: each.name)
