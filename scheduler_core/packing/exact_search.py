"""Exact search, and minimum bin slack, which finds a packing of many volumes where there are too many patterns to search among.

The search gives whole patterns to disks, and remembers dead ends.

* *Slack.* The bytes that will stay free in total are certain from the start, so every disk must be filled to within
  what is left of them, less what the other disks cannot help wasting.
* *Dominance.* If a remaining volume also fits into a pattern, moving it there leaves every other disk no
  worse, so patterns with such a gap need no attempt. (The volume stays in every pattern it was in: nothing is swapped
  out, which is what would make the argument wrong for a volume that is being branched on.)
* *Symmetry.* Volumes of one item class and disks of one disk class are counted, not distinguished; states are
  remembered by these counts.

Minimum bin slack (Gupta and Ho) fills disks one by one, as full as possible. With dozens of volumes there are also so many full patterns that
some choice among them nearly always leaves a remainder that fits. The search packs the remainder. Only successes count: a failure proves
nothing.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from math import gcd

from scheduler_core.packing.budget import Budget, OutOfStepsError
from scheduler_core.packing.patterns import (
    MAX_EQUAL_ITEMS,
    ItemClass,
    PatternLimits,
    Patterns,
    enumerate_patterns,
    field_layout,
    packed_bits,
)
from scheduler_core.structs import Struct

# The search descends one disk at a time, so Python's recursion limit bounds them; no real node comes near.
_MAX_DISKS = 200


class PackingProblem(Struct, frozen=True):
    """A packing problem, or an independent component of one."""

    sizes: Sequence[int]  # bytes of each volume, positive
    masks: Sequence[int]  # the disks each volume may use, as a bit mask; never empty
    capacities: Sequence[int]  # bytes free on each disk, not negative

    @property
    def slack(self) -> int:
        return sum(self.capacities) - sum(self.sizes)

    def admissible(self, disk: int) -> list[int]:
        return [volume for volume, mask in enumerate(self.masks) if mask >> disk & 1]

    def restrict(self, volumes: Sequence[int], disks: Sequence[int]) -> "PackingProblem":
        """Keeps only these volumes and disks, renumbered in order."""
        masks = [
            sum([1 << index for index, disk in enumerate(disks) if self.masks[volume] >> disk & 1])
            for volume in volumes
        ]
        return PackingProblem(
            [self.sizes[volume] for volume in volumes], masks, [self.capacities[disk] for disk in disks]
        )


class DiskClass(Struct, frozen=True):
    """Disks that have the same possible patterns."""

    capacity: int  # the sum of the fullest pattern
    start: int  # the range of their patterns' numbers
    end: int  # the range of their patterns' numbers
    admitted: int  # the item classes they take, as a bit mask
    disks: tuple[int, ...]  # the disks, by index


# A disk class and the pattern that one of its disks gets, by number.
PatternChoice = tuple[int, int]


class PatternSearch:
    """One run of the depth-first search over patterns."""

    def __init__(
        self, item_classes: Sequence[ItemClass], disk_classes: Sequence[DiskClass], patterns: Patterns, budget: Budget
    ) -> None:
        self.item_classes = item_classes
        self.disk_classes = disk_classes
        self.patterns = patterns
        self.budget = budget
        self.ascending = sorted(range(len(item_classes)), key=lambda index: item_classes[index].size)
        self.masks = [field.mask for field in patterns.fields]
        self.dead_ends: set[int] = set()
        self.patterns_of = [(1 << disk_class.end) - (1 << disk_class.start) for disk_class in disk_classes]
        # By pattern, shift and mask of an item class's count, and the patterns with fewer of its volumes.
        self.filters: dict[int, list[tuple[int, int, list[int]]]] = {}
        self.key_bits = sum(len(disk_class.disks) for disk_class in disk_classes).bit_length()
        self.node_cost = 2 + (len(item_classes) + 3 * len(disk_classes)) * (4 + len(patterns.sums) // 1000) // 32
        self.path: list[PatternChoice] = []

    def solve(self) -> list[PatternChoice] | None:
        """A pattern for each disk used, or None when no packing exists."""
        remaining = sum(
            field.one * len(item_class.members)
            for item_class, field in zip(self.item_classes, self.patterns.fields, strict=True)
        )
        counts = [len(disk_class.disks) for disk_class in self.disk_classes]
        slack = sum(disk_class.capacity * len(disk_class.disks) for disk_class in self.disk_classes)
        slack -= sum(item_class.size * len(item_class.members) for item_class in self.item_classes)
        return self.path if slack >= 0 and self._place(self.patterns.all_patterns, remaining, counts, slack) else None

    def _place(self, possible: int, remaining: int, counts: list[int], slack: int) -> bool:
        if not remaining:
            return True
        key = remaining
        for count in counts:
            key = key << self.key_bits | count
        if key in self.dead_ends:
            return False
        self.budget.charge(self.node_cost)
        windows = self._windows(possible, counts, slack)
        if windows is not None:
            for disk_class, pattern in self._branches(windows, remaining):
                if self._leaves_usable_gap(disk_class, pattern, remaining):
                    continue
                self.path.append((disk_class, pattern))
                counts[disk_class] -= 1
                waste = self.disk_classes[disk_class].capacity - self.patterns.sums[pattern]
                left = remaining - self.patterns.packed[pattern]
                placed = self._place(self._narrow(possible, pattern, left), left, counts, slack - waste)
                counts[disk_class] += 1
                if placed:
                    return True
                self.path.pop()
        self.dead_ends.add(key)
        return False

    def _windows(self, possible: int, counts: list[int], slack: int) -> list[tuple[int, int]] | None:
        # None when a class has no pattern left, or when even the fullest patterns waste more than the slack.
        sums = self.patterns.sums
        fullest: list[tuple[int, int, int]] = []
        for disk_class, count in enumerate(counts):
            if count:
                reachable = possible & self.patterns_of[disk_class]
                if not reachable:
                    return None
                max_sum = sums[reachable.bit_length() - 1]
                slack -= (self.disk_classes[disk_class].capacity - max_sum) * count
                fullest.append((disk_class, reachable, max_sum))
        if slack < 0:
            return None
        windows = []
        for disk_class, reachable, max_sum in fullest:
            low = bisect_left(
                sums, max_sum - slack, self.disk_classes[disk_class].start, self.disk_classes[disk_class].end
            )
            windows.append((disk_class, reachable >> low << low))
        return windows

    def _branches(self, windows: list[tuple[int, int]], remaining: int) -> Iterator[PatternChoice]:
        """Choices for the most constrained disk or item class; any packing contains exactly one of them."""
        fewest, disk_class, window = min((window.bit_count(), disk_class, window) for disk_class, window in windows)
        if fewest == 1:
            return _choices(disk_class, window)
        union = 0
        for _, patterns in windows:
            union |= patterns
        containing = self.patterns.containing
        rarest = -1
        for item_class, mask in enumerate(self.masks):
            if remaining & mask:
                count = (union & containing[item_class]).bit_count()
                if not count:
                    return iter(())
                if count < fewest:
                    fewest = count
                    rarest = item_class
        if rarest < 0:
            return _choices(disk_class, window)
        return (
            choice for disk_class, patterns in windows for choice in _choices(disk_class, patterns & containing[rarest])
        )

    def _leaves_usable_gap(self, disk_class: int, pattern: int, remaining: int) -> bool:
        candidate = self.disk_classes[disk_class]
        waste = candidate.capacity - self.patterns.sums[pattern]
        left = remaining - self.patterns.packed[pattern]
        for item_class in self.ascending:
            if self.item_classes[item_class].size > waste:
                return False
            if candidate.admitted >> item_class & 1 and left & self.masks[item_class]:
                return True
        return False

    def _narrow(self, possible: int, pattern: int, left: int) -> int:
        """Patterns still possible once `pattern` is taken. `left` is what then remains."""
        filters = self.filters.get(pattern)
        # Cached, because the same pattern is tried often.
        if filters is None:
            packed = self.patterns.packed[pattern]
            filters = self.filters[pattern] = [
                (field.shift, (1 << field.width) - 1, with_fewer)
                for field, with_fewer in zip(self.patterns.fields, self.patterns.with_fewer, strict=True)
                if field.count(packed)
            ]
        for shift, mask, with_fewer in filters:
            possible &= with_fewer[(left >> shift & mask) + 1]
        return possible


def _choices(disk_class: int, patterns: int) -> Iterator[PatternChoice]:
    while patterns:
        pattern = patterns.bit_length() - 1
        patterns ^= 1 << pattern
        yield disk_class, pattern


def search(problem: PackingProblem, limits: PatternLimits, budget: Budget) -> list[int] | None:
    """Returns a disk for every volume, or None when no packing exists."""
    slack = problem.slack
    if slack < 0:
        return None
    if len(problem.capacities) > _MAX_DISKS:
        raise OutOfStepsError
    item_classes = group_into_classes(problem)
    fields = field_layout(item_classes)
    # Disks that admit the same item classes share one table of patterns.
    groups: dict[int, list[int]] = {}
    for disk in range(len(problem.capacities)):
        admitted = sum([1 << index for index, item_class in enumerate(item_classes) if item_class.disks >> disk & 1])
        groups.setdefault(admitted, []).append(disk)
    tables: list[list[int]] = []
    for admitted, disks in groups.items():
        inside = [pair for index, pair in enumerate(zip(item_classes, fields, strict=True)) if admitted >> index & 1]
        ranges = [(max(0, problem.capacities[disk] - slack), problem.capacities[disk]) for disk in disks]
        table = enumerate_patterns(inside, packed_bits(fields), ranges, limits, budget)
        if not table:
            return None
        tables.append(table)
    if sum(map(len, tables)) > limits.max_complete:
        raise OutOfStepsError
    patterns = Patterns(item_classes, fields, tables)
    disk_classes = _disk_classes(groups, problem.capacities, patterns)
    choices = PatternSearch(item_classes, disk_classes, patterns, budget).solve() if disk_classes else None
    if choices is None:
        return None
    assignment = [-1] * len(problem.sizes)
    unused_disks = [list(disk_class.disks) for disk_class in disk_classes]
    waiting = [list(item_class.members) for item_class in item_classes]
    for disk_class, pattern in choices:
        disk = unused_disks[disk_class].pop()
        for index, field in enumerate(fields):
            for _ in range(field.count(patterns.packed[pattern])):
                assignment[waiting[index].pop()] = disk
    return assignment


def _disk_classes(groups: dict[int, list[int]], capacities: Sequence[int], patterns: Patterns) -> list[DiskClass]:
    disk_classes: list[DiskClass] = []
    for (admitted, disks), (start, end) in zip(groups.items(), patterns.segments, strict=True):
        by_end: dict[int, list[int]] = {}
        for disk in disks:
            by_end.setdefault(bisect_right(patterns.sums, capacities[disk], start, end), []).append(disk)
        if start in by_end:
            return []
        disk_classes += [
            DiskClass(patterns.sums[last - 1], start, last, admitted, tuple(members))
            for last, members in by_end.items()
        ]
    return disk_classes


def group_into_classes(problem: PackingProblem) -> list[ItemClass]:
    """Groups interchangeable volumes, largest first."""
    members: dict[tuple[int, int], list[int]] = {}
    for volume, key in enumerate(zip(problem.sizes, problem.masks, strict=True)):
        members.setdefault(key, []).append(volume)
    ordered = sorted(members.items(), key=lambda item: (-item[0][0], item[0][1]))
    return [
        ItemClass(size, mask, tuple(volumes[start : start + MAX_EQUAL_ITEMS]))
        for (size, mask), volumes in ordered
        for start in range(0, len(volumes), MAX_EQUAL_ITEMS)
    ]


# Sums are bits of an integer, which in bytes would have terabits. A larger unit may miss a packing, but never invents one.
_MAX_BITS = 1 << 20
_REMAINDER_LIMITS = PatternLimits(max_partial=12_000, max_complete=4_000)
_STEPS_PER_REMAINDER = 4_000
_BITS_PER_STEP = 1 << 14

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


def _strategies(problem: PackingProblem) -> list[tuple[Order, Order]]:
    """Orders of disks and volumes, the preferred volumes last."""
    smallest_first = sorted(range(len(problem.capacities)), key=lambda disk: problem.capacities[disk])
    fewest_volumes_first = sorted(smallest_first, key=lambda disk: len(problem.admissible(disk)))
    largest_last = sorted(
        range(len(problem.sizes)), key=lambda volume: (problem.sizes[volume], -problem.masks[volume].bit_count())
    )
    most_restricted_last = sorted(largest_last, key=lambda volume: -problem.masks[volume].bit_count())
    # No order suits all problems, and each is tried quickly: one that packs everything saves the search.
    disk_orders = [smallest_first, smallest_first[::-1]]
    volume_orders = [largest_last]
    if len(set(problem.masks)) > 1:
        disk_orders = [fewest_volumes_first, *disk_orders]
        volume_orders = [most_restricted_last, *volume_orders]
    combined = [(disks, volumes) for volumes in volume_orders for disks in disk_orders]
    return [*combined, (smallest_first, largest_last[::-1])]


def _fill_disks(problem: PackingProblem, disks: Order, volumes: Order, budget: Budget) -> list[int]:
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
