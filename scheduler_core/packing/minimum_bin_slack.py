"""For many volumes: fill disks one by one as full as they get, until an exact search can do the rest.

With dozens of volumes there are too many fills to search among, but also so many full ones that some choice among
them nearly always leaves a remainder that fits. Only successes count: a failure proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd
from typing import Final

from scheduler_core.packing.budget import Budget, OutOfStepsError
from scheduler_core.packing.exact_search import search
from scheduler_core.packing.patterns import Limits
from scheduler_core.packing.subproblem import Part

_MOST_BITS: Final = 1 << 20
_LIMITS: Final = Limits(looked_at=12_000, kept=4_000)
_STEPS_PER_REMAINDER: Final = 4_000
_BITS_PER_STEP: Final = 1 << 14

Order = Sequence[int]


def refill(part: Part, budget: Budget) -> list[int] | None:
    """A disk for every volume, or None when no strategy found a packing or the budget ended."""
    for disks, volumes in _strategies(part):
        try:
            picked = _filled(part, disks, volumes, budget)
            if min(picked) >= 0 or _repaired(part, disks, picked, budget):
                return picked
        except OutOfStepsError:
            return None
    return None


def _strategies(part: Part) -> Iterator[tuple[Order, Order]]:
    """In which order to fill the disks, and which volumes to prefer in a fill (the last of the list first)."""
    smallest = sorted(range(len(part.rooms)), key=lambda disk: part.rooms[disk])
    least_wanted = sorted(smallest, key=lambda disk: len(part.admitted(disk)))
    largest = sorted(range(len(part.sizes)), key=lambda volume: (part.sizes[volume], -part.masks[volume].bit_count()))
    pickiest = sorted(largest, key=lambda volume: -part.masks[volume].bit_count())
    for volumes in (pickiest, largest) if part.restricted else (largest,):
        for disks in (least_wanted, smallest, smallest[::-1]) if part.restricted else (smallest, smallest[::-1]):
            yield disks, volumes
    yield smallest, largest[::-1]


def _filled(part: Part, disks: Order, volumes: Order, budget: Budget) -> list[int]:
    """Fill the disks in order; volumes left over have no disk (-1)."""
    picked = [-1] * len(part.sizes)
    for disk in disks:
        admitted = [volume for volume in volumes if picked[volume] < 0 and part.masks[volume] >> disk & 1]
        if not admitted:
            continue
        sizes = [part.sizes[volume] for volume in admitted]
        room = part.rooms[disk]
        unit = max(gcd(*sizes), -(-room // _MOST_BITS))
        budget.charge(5 + len(admitted) * (1 + room // unit // _BITS_PER_STEP))
        for at in fullest(sizes, room, unit):
            picked[admitted[at]] = disk
    return picked


def _repaired(part: Part, disks: Order, picked: list[int], budget: Budget) -> bool:
    """Empty the disks filled last, one more each time, and search for a packing of theirs and what was left over.

    The disks filled last got the least fitting volumes. Widening stops where the search would become too large.
    """
    for count in range(2, len(disks) + 1):
        emptied = disks[-count:]
        volumes = [volume for volume, disk in enumerate(picked) if disk < 0 or disk in emptied]
        smaller = part.narrowed(volumes, emptied)
        if not all(smaller.masks):
            continue
        portion = budget.portion(_STEPS_PER_REMAINDER)
        try:
            found = search(smaller, _LIMITS, portion)
        except OutOfStepsError:
            return False
        finally:
            budget.take_back([portion])
        if found is not None:
            for volume, at in zip(volumes, found, strict=True):
                picked[volume] = emptied[at]
            return True
    return False


def fullest(sizes: Sequence[int], room: int, unit: int) -> list[int]:
    """Positions of volumes that fill the room as far as possible, taking the last ones where there is a choice.

    Sums are bits of an integer, one for each multiple of the unit. Sizes that are no multiples are rounded up, which
    may leave a gap but never overfills.
    """
    limit = room // unit
    units = [-(-size // unit) for size in sizes]
    within = (2 << limit) - 1
    reachable = [1]
    for size in units:
        reachable.append(reachable[-1] | reachable[-1] << size & within if size <= limit else reachable[-1])
    target = reachable[-1].bit_length() - 1
    chosen = []
    for position in range(len(units) - 1, -1, -1):
        size = units[position]
        if size <= target and reachable[position] >> target - size & 1:
            chosen.append(position)
            target -= size
    return chosen
