"""Proofs that volumes cannot fit, each cheaper than a search. None of them ever rules out a packing that exists."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Final

from scheduler_core.packing.subproblem import Part

# Sums are kept as bits of one integer; beyond this many bits a shift would cost more than the search it saves.
_MOST_BITS: Final = 1 << 17
# The proofs try every size and every pair of restrictions; so many that this takes long are left to the search.
_MOST_SIZES: Final = 64
_MOST_MASKS: Final = 32


def too_many(sizes: Sequence[int], rooms: Sequence[int]) -> bool:
    """Whether counting whole units proves that the volumes do not fit: sum of size // unit > sum of room // unit.

    Rounding each disk down to units loses what volumes of about that size cannot use: with the unit just above half
    a disk it counts "one per disk". Units around every size and around a half, a third and a quarter of every disk are
    where the count can change.
    """
    biggest = max(sizes)
    different = set(sizes)
    near = {size + offset for size in different for offset in (0, 1)} if len(different) <= _MOST_SIZES else set()
    near.update(room // parts + 1 for room in set(rooms) for parts in (1, 2, 3, 4))
    for unit in near:
        if unit <= biggest and sum([size // unit for size in sizes]) > sum([room // unit for room in rooms]):
            return True
    return False


def some_class_overflows(part: Part) -> bool:
    """Whether the volumes confined to some set of disks already prove that they do not fit there.

    The sets tried are each restriction that occurs and, by their bytes alone, the union of any two of them.
    """
    occurring = sorted(set(part.masks))
    everywhere = 0
    by_mask: dict[int, int] = {}
    for size, mask in zip(part.sizes, part.masks, strict=True):
        by_mask[mask] = by_mask.get(mask, 0) + size
        everywhere |= mask
    if len(occurring) > _MOST_MASKS:
        return too_many(part.sizes, _rooms_in(part, everywhere))
    for area in {one | other for one in occurring for other in occurring}:
        if sum([size for mask, size in by_mask.items() if not mask & ~area]) > sum(_rooms_in(part, area)):
            return True
    return any(
        too_many(
            [size for size, mask in zip(part.sizes, part.masks, strict=True) if not mask & ~area], _rooms_in(part, area)
        )
        for area in {*occurring, everywhere}
    )


def _rooms_in(part: Part, area: int) -> list[int]:
    return [room for disk, room in enumerate(part.rooms) if area >> disk & 1]


def with_usable_rooms(part: Part) -> Part:
    """The same question with each disk's room cut down to the largest sum that volumes allowed there can reach.

    Bytes above that sum stay free in every packing, so nothing is lost, and every bound gets sharper. Sizes and rooms
    are divided by the sizes' common divisor on the way.
    """
    unit = gcd(*part.sizes)
    sizes = [size // unit for size in part.sizes]
    rooms = [room // unit for room in part.rooms]
    limit = max(rooms)
    if limit <= _MOST_BITS:
        reachable: dict[tuple[int, ...], int] = {}
        for disk, room in enumerate(rooms):
            admitted = tuple([sizes[volume] for volume in part.admitted(disk)])
            if admitted not in reachable:
                reachable[admitted] = _sums(admitted, limit)
            rooms[disk] = (reachable[admitted] & ((2 << room) - 1)).bit_length() - 1
    return Part(sizes, part.masks, rooms)


def _sums(sizes: Sequence[int], limit: int) -> int:
    """The sums that subsets reach, as bits, none above the limit."""
    within = (2 << limit) - 1
    sums = 1
    for size in sizes:
        sums |= sums << size & within
    return sums
