"""Searches for a blocking set, the volumes that leave another volume no disk: order safety comes down to this.

Whatever the order and the choice of disks, a volume fails exactly when some of the others lie on its disks so that
none has room for it. Which of them came first does not matter: what lies on a disk is possible in some order if its
sizes sum to at most the free bytes and what it writes stays below the headroom, because both sums only grow. So
instead of orders we look for *blocking patterns*, one for each disk, made of different volumes: together they are a
blocking set.
"""

from collections.abc import Sequence

from scheduler_core.packing.budget import Budget, OutOfStepsError
from scheduler_core.structs import Struct

_PATTERNS_PER_STEP = 10
# The search descends one target at a time, so Python's recursion limit bounds them; no real node comes near.
_MAX_TARGETS = 200


class BlockingClass(Struct, frozen=True):
    """Interchangeable volumes."""

    size: int  # bytes that each takes from a disk's free bytes
    written: int  # bytes that each takes from a disk's headroom
    disks: int  # the disks they may use, as a bit mask
    members: tuple[int, ...]  # the volumes, by index
    most_per_disk: int  # how many of them one disk takes at most
    optional: bool = False  # whether they need no disk here, and so are never blocked


class TargetDisk(Struct, frozen=True):
    """A disk that could take the volume to be blocked. It is blocked once at least `blocking_size` bytes are assigned
    or `blocking_written` bytes written. Before, at most `free` may be assigned, and less than `headroom` written. A
    disk that cannot be blocked by writing has `blocking_written` above what can be written.
    """

    disk: int
    free: int
    headroom: int
    blocking_size: int
    blocking_written: int


class BlockingProblem(Struct, frozen=True):
    """Whether volumes, `counts` of each of the `classes`, can block all `targets`."""

    classes: tuple[BlockingClass, ...]
    counts: tuple[int, ...]
    targets: tuple[TargetDisk, ...]

    @property
    def counted(self) -> list[tuple[BlockingClass, int]]:
        return list(zip(self.classes, self.counts, strict=True))


# How many volumes of each class lie on a target.
BlockingPattern = tuple[int, ...]
# The bytes of a blocking pattern, and its packed counts.
SizedPattern = tuple[int, int]


def too_small_to_block(problem: BlockingProblem) -> bool:
    """Whether counting proves that no blocking set exists. The cost of a target is measured in bytes assigned or
    written, whichever is the smaller share of all that exist; a volume contributes the larger. A target also costs at
    least one volume.
    """
    counted = problem.counted
    size = sum([blocking_class.size * count for blocking_class, count in counted])
    written = sum([blocking_class.written * count for blocking_class, count in counted])
    if sum(problem.counts) < len(problem.targets):
        return True
    if not written:
        return sum([target.blocking_size for target in problem.targets]) > size
    cost = sum([min(target.blocking_size * written, target.blocking_written * size) for target in problem.targets])
    available = sum(
        [max(blocking_class.size * written, blocking_class.written * size) * count for blocking_class, count in counted]
    )
    return cost > available


def greedy_blocking_set(problem: BlockingProblem, budget: Budget) -> list[BlockingPattern] | None:
    """Blocking patterns made greedily; None proves nothing. Targets that need little, or much, go first. On each
    target, volumes are added largest first, smallest first, or those that write most first, until it is blocked.
    """
    targets = sorted(range(len(problem.targets)), key=lambda index: problem.targets[index].blocking_size)
    # Classes are sorted by size already.
    largest_first = range(len(problem.classes))
    orders: list[Sequence[int]] = [largest_first, largest_first[::-1]]
    if any(blocking_class.written for blocking_class in problem.classes):
        orders.append(sorted(largest_first, key=lambda index: -problem.classes[index].written))
    for order in orders:
        for sequence in (targets, targets[::-1]):
            budget.charge(len(targets) + len(order) // 2)
            remaining = list(problem.counts)
            patterns: dict[int, BlockingPattern] = {}
            for index in sequence:
                pattern = _greedy_pattern(problem, problem.targets[index], order, remaining)
                if pattern is None:
                    break
                patterns[index] = pattern
            if len(patterns) == len(targets):
                return [patterns[index] for index in range(len(targets))]
    return None


def _greedy_pattern(
    problem: BlockingProblem, target: TargetDisk, order: Sequence[int], remaining: list[int]
) -> BlockingPattern | None:
    """Adds volumes in `order` until the target is blocked; None if it cannot be blocked."""
    # The pattern's volumes are subtracted from `remaining`.
    pattern = [0] * len(remaining)
    size = 0
    written = 0
    for index in order:
        blocking_class = problem.classes[index]
        if not blocking_class.disks >> target.disk & 1:
            continue
        while (
            pattern[index] < min(remaining[index], blocking_class.most_per_disk)
            and size + blocking_class.size <= target.free
            and written + blocking_class.written < target.headroom
        ):
            pattern[index] += 1
            size += blocking_class.size
            written += blocking_class.written
            if size >= target.blocking_size or written >= target.blocking_written:
                for used, count in enumerate(pattern):
                    remaining[used] -= count
                return tuple(pattern)
    return None


def find_blocking_set(problem: BlockingProblem, budget: Budget) -> list[BlockingPattern] | None:
    """A blocking pattern per target, or None when none exists. Only minimal patterns matter: one that still blocks
    without one of its volumes would only take that from others.
    """
    if len(problem.targets) > _MAX_TARGETS:
        raise OutOfStepsError
    packed = _PackedCounts(problem.counts)
    patterns_by_target: list[list[SizedPattern]] = []
    for target in problem.targets:
        patterns = _minimal_patterns(problem, target, packed, budget)
        if not patterns:
            return None
        patterns_by_target.append(patterns)
    sequence = sorted(range(len(patterns_by_target)), key=lambda index: len(patterns_by_target[index]))
    total = sum([blocking_class.size * count for blocking_class, count in problem.counted])
    chosen = _choose_disjoint([patterns_by_target[index] for index in sequence], packed, total, budget)
    if chosen is None:
        return None
    by_target = dict(zip(sequence, chosen, strict=True))
    return [packed.unpack(by_target[index]) for index in range(len(patterns_by_target))]


class _PackedCounts:
    """Counts of each class packed into one integer. A guard bit above each field lets one subtraction compare them all."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.width = max(counts, default=0).bit_length() + 1
        self.length = len(counts)
        self.guards = sum(1 << (index + 1) * self.width - 1 for index in range(len(counts)))
        self.everything = self.guards | sum(count << index * self.width for index, count in enumerate(counts))

    def one(self, index: int) -> int:
        return 1 << index * self.width

    def unpack(self, packed: int) -> BlockingPattern:
        field = (1 << self.width - 1) - 1
        return tuple([packed >> index * self.width & field for index in range(self.length)])


def _minimal_patterns(
    problem: BlockingProblem, target: TargetDisk, packed_counts: _PackedCounts, budget: Budget
) -> list[SizedPattern]:
    """Minimal patterns that block a target, smallest first."""
    admitted = [
        (index, blocking_class, count)
        for index, (blocking_class, count) in enumerate(problem.counted)
        if blocking_class.disks >> target.disk & 1 and count
    ]
    size_to_come = sum([blocking_class.size * count for _, blocking_class, count in admitted])
    written_to_come = sum([blocking_class.written * count for _, blocking_class, count in admitted])
    partial = [(0, 0, 0)]
    patterns: list[SizedPattern] = []
    # Volumes are added largest first, and the last one added blocks the target, so every minimal pattern is found.
    for index, blocking_class, count in admitted:
        budget.charge(1 + len(partial) * (2 + count) // 3)
        size_to_come -= blocking_class.size * count
        written_to_come -= blocking_class.written * count
        extended: list[tuple[int, int, int]] = []
        one = packed_counts.one(index)
        for size, written, packed in partial:
            for number in range(min(count, blocking_class.most_per_disk) + 1):
                new_size = size + blocking_class.size * number
                new_written = written + blocking_class.written * number
                if number and (new_size > target.free or new_written >= target.headroom):
                    break
                if new_size >= target.blocking_size or new_written >= target.blocking_written:
                    patterns.append((new_size, packed + one * number))
                    break
                # Keep only what the classes to come can still complete.
                if (
                    new_size + size_to_come >= target.blocking_size
                    or new_written + written_to_come >= target.blocking_written
                ):
                    extended.append((new_size, new_written, packed + one * number))
        partial = extended
    patterns.sort()
    return patterns


def _choose_disjoint(
    patterns_by_target: list[list[SizedPattern]], packed_counts: _PackedCounts, total: int, budget: Budget
) -> list[int] | None:
    """Chooses a pattern per target, using no volume twice; `total` is the bytes of all volumes together."""
    chosen: list[int] = []
    dead_ends: set[tuple[int, int]] = set()
    guards = packed_counts.guards
    to_come = [0]
    for patterns in reversed(patterns_by_target):
        to_come.append(to_come[-1] + patterns[0][0])
    to_come.reverse()

    def descend(depth: int, remaining: int, bytes_left: int) -> bool:
        if depth == len(patterns_by_target):
            return True
        if (depth, remaining) in dead_ends:
            return False
        budget.charge(1 + len(patterns_by_target[depth]) // _PATTERNS_PER_STEP)
        # What is left must suffice for the smallest patterns of the targets still to come.
        affordable = bytes_left - to_come[depth + 1]
        for size, pattern in patterns_by_target[depth]:
            if size > affordable:
                break
            remainder = remaining - pattern
            # A guard bit is cleared where the pattern needs more volumes of a class than remain.
            if remainder & guards == guards:
                chosen.append(pattern)
                if descend(depth + 1, remainder, bytes_left - size):
                    return True
                chosen.pop()
        dead_ends.add((depth, remaining))
        return False

    return chosen if descend(0, packed_counts.everything, total) else None
