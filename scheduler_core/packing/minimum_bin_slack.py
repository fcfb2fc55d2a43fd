"""Minimum bin slack (Gupta and Ho), for many volumes: it fills disks one by one, as full as possible.

With dozens of volumes there are too many patterns to search among, but also so many full ones that some choice among
them nearly always leaves a remainder that fits. An exact search packs the remainder. Only successes count: a failure
proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd
from typing import Final

from scheduler_core.packing.budget import Budget, OutOfStepsError
from scheduler_core.packing.exact_search import PackingProblem, search
from scheduler_core.packing.patterns import PatternLimits

_MAX_BITS: Final = 1 << 20
_REMAINDER_LIMITS: Final = PatternLimits(max_partial=12_000, max_complete=4_000)
_STEPS_PER_REMAINDER: Final = 4_000
_BITS_PER_STEP: Final = 1 << 14

Order = Sequence[int]


def minimum_bin_slack(problem: PackingProblem, budget: Budget) -> list[int] | None:
    """Returns a disk per volume. None proves nothing: no strategy found a packing, or the budget ended."""
    for disks, volumes in _strategies(problem):
        try:
            assignment = _fill_disks(problem, disks, volumes, budget)
            if min(assignment) >= 0 or _repair(problem, disks, assignment, budget):
                return assignment
        except OutOfStepsError:
            return None
    return None


def _strategies(problem: PackingProblem) -> Iterator[tuple[Order, Order]]:
    """Orders of disks and volumes, the preferred volumes last."""
    smallest_first = sorted(range(len(problem.capacities)), key=lambda disk: problem.capacities[disk])
    fewest_volumes_first = sorted(smallest_first, key=lambda disk: len(problem.admissible(disk)))
    largest_last = sorted(
        range(len(problem.sizes)),
        key=lambda volume: (problem.sizes[volume], -problem.masks[volume].bit_count()),
    )
    most_restricted_last = sorted(largest_last, key=lambda volume: -problem.masks[volume].bit_count())
    disk_orders = [smallest_first, smallest_first[::-1]]
    volume_orders = [largest_last]
    if problem.is_restricted:
        disk_orders = [fewest_volumes_first, *disk_orders]
        volume_orders = [most_restricted_last, *volume_orders]
    for volumes in volume_orders:
        for disks in disk_orders:
            yield disks, volumes
    yield smallest_first, largest_last[::-1]


def _fill_disks(problem: PackingProblem, disks: Order, volumes: Order, budget: Budget) -> list[int]:
    """Fills disks in order; volumes left over get -1."""
    assignment = [-1] * len(problem.sizes)
    for disk in disks:
        admitted = [volume for volume in volumes if assignment[volume] < 0 and problem.masks[volume] >> disk & 1]
        if not admitted:
            continue
        sizes = [problem.sizes[volume] for volume in admitted]
        capacity = problem.capacities[disk]
        unit = max(gcd(*sizes), -(-capacity // _MAX_BITS))
        budget.charge(5 + len(admitted) * (1 + capacity // unit // _BITS_PER_STEP))
        for index in fullest_subset(sizes, capacity, unit):
            assignment[admitted[index]] = disk
    return assignment


def _repair(problem: PackingProblem, disks: Order, assignment: list[int], budget: Budget) -> bool:
    """Repacks the last disks with the volumes left over."""
    # Each round empties one more of the disks filled last, which hold the worst fitting volumes.
    for count in range(2, len(disks) + 1):
        emptied = disks[-count:]
        volumes = [volume for volume, disk in enumerate(assignment) if disk < 0 or disk in emptied]
        remainder = problem.restrict(volumes, emptied)
        if not all(remainder.masks):
            continue
        portion = budget.portion(_STEPS_PER_REMAINDER)
        try:
            packing = search(remainder, _REMAINDER_LIMITS, portion)
        # With more disks the search would only become larger.
        except OutOfStepsError:
            return False
        finally:
            budget.take_back([portion])
        if packing is not None:
            for volume, index in zip(volumes, packing, strict=True):
                assignment[volume] = emptied[index]
            return True
    return False


def fullest_subset(sizes: Sequence[int], capacity: int, unit: int) -> list[int]:
    """Positions of volumes that fill the capacity best. Takes the last ones where there is a choice. Sums are bits of
    an integer, one for each multiple of the unit. Sizes that are no multiples are rounded up, which may leave a gap but
    never overfills.
    """
    limit = capacity // unit
    units = [-(-size // unit) for size in sizes]
    within_limit = (2 << limit) - 1
    # reachable[n]: the sums of subsets of the first n volumes.
    reachable = [1]
    for size in units:
        reachable.append(reachable[-1] | reachable[-1] << size & within_limit if size <= limit else reachable[-1])
    target = reachable[-1].bit_length() - 1
    chosen = []
    for position in range(len(units) - 1, -1, -1):
        size = units[position]
        if size <= target and reachable[position] >> target - size & 1:
            chosen.append(position)
            target -= size
    return chosen
