"""The rule: from what is asked and what is held to what is granted.

After `allocate` the sum of all that is held exceeds `storageAvailable` only if it did before: then nothing is granted,
and nothing is taken back either, because the bytes may be written. A rejected request is looked at again each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.model.disk_schedule import (
    Allocation,
    Allocations,
    DiskSchedule,
    Kind,
    Requests,
    Spec,
    State,
    Status,
)
from scheduler_core.model.quantity import MAX_BYTES

_Key = tuple[Kind, str]
_NOTHING: Final = Allocation(State.REJECTED, 0)


@dataclass(frozen=True, slots=True)
class Limit:
    """How much may be granted on a disk.

    Attributes:
        available: storageAvailable in bytes; None if it is not known: then requests stay as they are
        reason: why every request is refused, whatever its size, as a condition's reason; "" if it is not
        message: the same as a sentence
    """

    available: int | None
    reason: str = ""
    message: str = ""

    def grants(self, held: int, more: int) -> bool:
        """Whether `more` bytes may be granted where `held` bytes are."""
        return not self.reason and self.available is not None and held + more <= self.available


def allocate(spec: Spec, status: Status, limit: Limit) -> Status:
    """The next status; its conditions stay as they are.

    First what is withdrawn is released and what asks for less shrinks. Then requests are served one by one: those that
    hold something and want to grow, then the others; backing images before replicas, since a replica may need one; then by name. Each is
    granted as a whole if the total then still is at most `limit.available`, and rejected otherwise: a growth keeps what
    it holds. A size that cannot be read is rejected the same way.
    """
    held = dict(_kept(spec, status))
    total = sum(entry.size for entry in held.values())
    for kind, name in _waiting(spec, held):
        size, before = spec.of(kind)[name], held.get((kind, name), _NOTHING)
        if size is None:
            held[kind, name] = Allocation(State.REJECTED, before.size)
        elif limit.available is not None or limit.reason:
            granted = limit.grants(total, size - before.size)
            total += size - before.size if granted else 0
            held[kind, name] = Allocation(State.SCHEDULED, size) if granted else Allocation(State.REJECTED, before.size)
    return replace(
        status,
        replicas=_of(held, Kind.REPLICA),
        backing_images=_of(held, Kind.BACKING_IMAGE),
        storage_scheduled=min(total, MAX_BYTES),
    )


def _kept(spec: Spec, status: Status) -> Iterable[tuple[_Key, Allocation]]:
    """What is held already and still asked for."""
    for kind in Kind:
        for name, size in spec.of(kind).items():
            entry = status.of(kind).get(name)
            if entry is None or size == 0:
                continue
            if size is not None and entry.size >= size:
                entry = Allocation(State.SCHEDULED, size)
            yield (kind, name), entry


def _waiting(spec: Spec, held: dict[_Key, Allocation]) -> list[_Key]:
    """The requests that want more than they hold, in the order they are served."""
    waiting = [
        (kind, name)
        for kind in Kind
        for name, size in sorted(spec.of(kind).items(), key=lambda request: request[0])
        if size is None or size > held.get((kind, name), _NOTHING).size
    ]
    return sorted(waiting, key=lambda key: held.get(key, _NOTHING).size == 0)


def _of(held: dict[_Key, Allocation], kind: Kind) -> Allocations:
    return {name: held[kind, name] for name in sorted(name for each, name in held if each is kind)}


def claims(requests: Requests, allocations: Allocations) -> dict[str, int]:
    """By name, the bytes that count: what is held or may still be granted.

    A pending request and a pending growth count in full, a rejected one only what it holds: 0 for a newcomer. What is
    withdrawn counts until it is released.
    """
    return {
        name: claim(requests.get(name), allocations.get(name)) for name in sorted(requests.keys() | allocations.keys())
    }


def claim(size: int | None, entry: Allocation | None) -> int:
    """The bytes that count for one name; `size` is None if nothing readable is asked."""
    if entry is None:
        return size or 0
    return entry.size if size is None or entry.state is State.REJECTED else max(entry.size, size)


def claimed(schedule: DiskSchedule) -> int:
    """The sum of `claims` of a disk."""
    return sum(sum(claims(schedule.spec.of(kind), schedule.status.of(kind)).values()) for kind in Kind)


def would_grant(schedule: DiskSchedule, limit: Limit, more: int) -> bool:
    """Whether a disk has room for `more` bytes beside everything that is held or pending; only the controller grants it."""
    return not schedule.deleting and limit.grants(claimed(schedule), more)
