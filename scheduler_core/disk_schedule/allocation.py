"""The allocation rule: which requests of a DiskSchedule are granted.

It also says which bytes count on the disk. After `allocate` the sum of everything held exceeds `storageAvailable` only
if it did before: then nothing is granted, and nothing is taken back either, because the bytes may be written. A
rejected request is decided again each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.model.disk_schedule import (
    Allocation,
    Allocations,
    AllocationState,
    DiskSchedule,
    DiskScheduleSpec,
    DiskScheduleStatus,
    RequestKind,
    Requests,
)
from scheduler_core.model.quantity import MAX_BYTES

_Key = tuple[RequestKind, str]
_HOLDS_NOTHING: Final = Allocation(AllocationState.REJECTED, 0)


@dataclass(frozen=True, slots=True)
class Limit:
    """How much may be granted on a disk.

    Attributes:
        available: storageAvailable in bytes; None if it is not known: then requests stay as they are
        reason: why every request is refused, whatever its size, as a condition's reason; "" if requests may be granted
        message: the same as a sentence
    """

    available: int | None
    reason: str = ""
    message: str = ""

    def grants(self, held: int, additional: int) -> bool:
        """Whether `additional` bytes may be granted on top of `held` bytes."""
        return not self.reason and self.available is not None and held + additional <= self.available


def allocate(spec: DiskScheduleSpec, status: DiskScheduleStatus, limit: Limit) -> DiskScheduleStatus:
    """Decides which requests are granted and returns the next status.

    First, withdrawn requests are released and smaller requests shrink. Then requests are served one by one: those that hold
    something and want to grow, then the others; backing images before replicas, since a replica may need one; then by name.
    Each is granted as a whole if the total then still is at most `limit.available`, and rejected otherwise: a rejected growth
    keeps what it holds. A size that cannot be read is rejected the same way. The conditions stay as they are.
    """
    held = dict(_current_allocations(spec, status))
    total = sum(entry.size for entry in held.values())
    for kind, name in _unsatisfied_requests(spec, held):
        size = spec.requests(kind)[name]
        current = held.get((kind, name), _HOLDS_NOTHING)
        rejected = Allocation(AllocationState.REJECTED, current.size)
        if size is None:
            held[kind, name] = rejected
        elif limit.available is not None or limit.reason:
            granted = limit.grants(total, size - current.size)
            total += size - current.size if granted else 0
            held[kind, name] = Allocation(AllocationState.SCHEDULED, size) if granted else rejected
    return replace(
        status,
        replicas=_allocations_of(held, RequestKind.REPLICA),
        backing_images=_allocations_of(held, RequestKind.BACKING_IMAGE),
        storage_scheduled=min(total, MAX_BYTES),
    )


def _current_allocations(spec: DiskScheduleSpec, status: DiskScheduleStatus) -> Iterable[tuple[_Key, Allocation]]:
    """Yields the current allocations without what was withdrawn.

    A smaller request shrinks its allocation.
    """
    for kind in RequestKind:
        for name, size in spec.requests(kind).items():
            entry = status.allocations(kind).get(name)
            if entry is None or size == 0:
                continue
            if size is not None and entry.size >= size:
                entry = Allocation(AllocationState.SCHEDULED, size)
            yield (kind, name), entry


def _unsatisfied_requests(spec: DiskScheduleSpec, held: dict[_Key, Allocation]) -> list[_Key]:
    """Returns requests for more than is held, as they are served."""
    requests = [
        (kind, name)
        for kind in RequestKind
        for name, size in sorted(spec.requests(kind).items(), key=lambda request: request[0])
        if size is None or size > held.get((kind, name), _HOLDS_NOTHING).size
    ]
    return sorted(requests, key=lambda key: held.get(key, _HOLDS_NOTHING).size == 0)


def _allocations_of(held: dict[_Key, Allocation], kind: RequestKind) -> Allocations:
    return {name: held[kind, name] for name in sorted(name for each, name in held if each is kind)}


def claims(requests: Requests, allocations: Allocations) -> dict[str, int]:
    """Returns the bytes that count against the disk, by name.

    They are what is held or may still be granted: a pending request and a pending growth count in full, a rejected request
    only what it holds: 0 if it is new. A withdrawn request counts until it is released.
    """
    return {
        name: claim(requests.get(name), allocations.get(name)) for name in sorted(requests.keys() | allocations.keys())
    }


def claim(size: int | None, entry: Allocation | None) -> int:
    """Returns the bytes of one name that count against the disk.

    `size` is the requested size, None without a request that can be read; `entry` is its allocation.
    """
    if entry is None:
        return size or 0
    return entry.size if size is None or entry.state is AllocationState.REJECTED else max(entry.size, size)


def claimed_bytes(schedule: DiskSchedule) -> int:
    """Returns the sum of `claims` of a disk."""
    return sum(
        sum(claims(schedule.spec.requests(kind), schedule.status.allocations(kind)).values()) for kind in RequestKind
    )


def would_grant(schedule: DiskSchedule, limit: Limit, additional: int) -> bool:
    """Whether a disk has space for `additional` bytes.

    Everything held or pending counts. Only the DiskSchedule controller grants the space.
    """
    return not schedule.deleting and limit.grants(claimed_bytes(schedule), additional)
