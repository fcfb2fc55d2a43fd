"""Proofs that volumes do not fit, each cheaper than a search. No proof rules out a packing that exists."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Final

from scheduler_core.packing.problem import PackingProblem

# Sums are kept as bits of one integer; beyond this many bits a shift would cost more than the search it saves.
_MAX_BITS: Final = 1 << 17
# The proofs try every size and every pair of restrictions; where that would take too long, they are left to the search.
_MAX_SIZES: Final = 64
_MAX_MASKS: Final = 32


def too_many_items(sizes: Sequence[int], capacities: Sequence[int]) -> bool:
    """Whether counting whole units proves infeasibility.

    The volumes do not fit if sum of size // unit > sum of capacity // unit. Rounding each disk down to units loses what
    volumes of about that size cannot use: with the unit just above half a disk it counts "one per disk". The count can
    change at units around every size, and around a half, a third and a quarter of every disk.
    """
    biggest = max(sizes)
    distinct = set(sizes)
    units = {size + offset for size in distinct for offset in (0, 1)} if len(distinct) <= _MAX_SIZES else set()
    units.update(capacity // parts + 1 for capacity in set(capacities) for parts in (1, 2, 3, 4))
    for unit in units:
        if unit <= biggest and sum([size // unit for size in sizes]) > sum(
            [capacity // unit for capacity in capacities]
        ):
            return True
    return False


def some_class_overflows(problem: PackingProblem) -> bool:
    """Whether volumes confined to some disks overflow them. The sets tried are each restriction that occurs and, by
    their bytes alone, the union of any two of them.
    """
    masks = sorted(set(problem.masks))
    all_disks = 0
    bytes_by_mask: dict[int, int] = {}
    for size, mask in zip(problem.sizes, problem.masks, strict=True):
        bytes_by_mask[mask] = bytes_by_mask.get(mask, 0) + size
        all_disks |= mask
    if len(masks) > _MAX_MASKS:
        return too_many_items(problem.sizes, _capacities_of(problem, all_disks))
    for disks in {first | second for first in masks for second in masks}:
        confined = sum([size for mask, size in bytes_by_mask.items() if not mask & ~disks])
        if confined > sum(_capacities_of(problem, disks)):
            return True
    return any(
        too_many_items(
            [size for size, mask in zip(problem.sizes, problem.masks, strict=True) if not mask & ~disks],
            _capacities_of(problem, disks),
        )
        for disks in {*masks, all_disks}
    )


def _capacities_of(problem: PackingProblem, disks: int) -> list[int]:
    return [capacity for disk, capacity in enumerate(problem.capacities) if disks >> disk & 1]


def with_reachable_capacities(problem: PackingProblem) -> PackingProblem:
    """Cuts each capacity down to its largest reachable sum. Bytes above that sum stay free in every packing, so nothing
    is lost, and every bound gets sharper. Sizes and capacities are divided by the sizes' common divisor on the way.
    """
    unit = gcd(*problem.sizes)
    sizes = [size // unit for size in problem.sizes]
    capacities = [capacity // unit for capacity in problem.capacities]
    limit = max(capacities)
    if limit <= _MAX_BITS:
        sums_by_sizes: dict[tuple[int, ...], int] = {}
        for disk, capacity in enumerate(capacities):
            admitted = tuple([sizes[volume] for volume in problem.admissible(disk)])
            if admitted not in sums_by_sizes:
                sums_by_sizes[admitted] = _sum_bits(admitted, limit)
            # The highest sum among those up to the capacity.
            capacities[disk] = (sums_by_sizes[admitted] & ((2 << capacity) - 1)).bit_length() - 1
    return PackingProblem(sizes, problem.masks, capacities)


def _sum_bits(sizes: Sequence[int], limit: int) -> int:
    """Subset sums up to the limit, one bit each."""
    within_limit = (2 << limit) - 1
    sums = 1
    for size in sizes:
        sums |= sums << size & within_limit
    return sums
