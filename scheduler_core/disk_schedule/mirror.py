"""What a DiskSchedule would say of a disk whose Longhorn allocates by itself: observed, never decided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from scheduler_core.disk_schedule.reconcile import NodeRead, described, limit_of
from scheduler_core.model.disk_schedule import Allocation, DiskSchedule, Kind, Spec, State, Status
from scheduler_core.model.longhorn import BackingImage, Replica
from scheduler_core.model.quantity import MAX_BYTES

_Named = TypeVar("_Named", Replica, BackingImage)


def mirrored(schedule: DiskSchedule, replicas: Iterable[Replica], images: Iterable[BackingImage]) -> Spec:
    """The spec that names what is on the disk: every replica object placed there, every backing image to be there."""
    return replace(
        schedule.spec,
        replicas={each.name: each.size for each in _named(replicas) if each.disk_id == schedule.name and each.size},
        backing_images={
            each.name: each.real_size for each in _named(images) if schedule.name in each.disks and each.real_size
        },
    )


def observed(schedule: DiskSchedule, node: NodeRead, now: str) -> Status | None:
    """The status beside a mirrored spec: everything counts as scheduled, whatever the limit. None if it says so already.

    More than storageAvailable is an over-allocation: condition Schedulable is False with reason OverAllocated.
    """
    held = {
        kind: {name: Allocation(State.SCHEDULED, size) for name, size in sorted(schedule.spec.of(kind).items()) if size}
        for kind in Kind
    }
    total = sum(entry.size for entries in held.values() for entry in entries.values())
    status = replace(
        schedule.status,
        replicas=held[Kind.REPLICA],
        backing_images=held[Kind.BACKING_IMAGE],
        storage_scheduled=min(total, MAX_BYTES),
    )
    status = described(schedule, status, limit_of(schedule, node), now)
    return None if status == schedule.status else status


def _named(values: Iterable[_Named]) -> list[_Named]:
    return sorted(values, key=lambda each: each.name)
