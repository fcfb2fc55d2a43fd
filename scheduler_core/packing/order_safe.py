"""Whether every order of placing the volumes succeeds, whichever eligible disk Longhorn picks at each step.

Longhorn places volumes one at a time, in map order, on a disk its own score prefers; the extender controls neither. A
node where a packing exists may still lose a pod to an unlucky order. A node is safe when no volume can be blocked on
all of its disks by other volumes (`blocking`); where one can, the others and their disks are the counter-example. All
sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_core.packing.blocking import (
    BlockingClass,
    BlockingPattern,
    BlockingProblem,
    TargetDisk,
    find_blocking_set,
    greedy_blocking_set,
    too_small_to_block,
)
from scheduler_core.packing.budget import Budget, OutOfStepsError, PackingAnswer
from scheduler_core.packing.items import NO_OPTIONAL_ITEMS, Items, OptionalItems

# No single node may take longer than this, even when the request has more steps left: about 4 ms.
MAX_STEPS_PER_NODE: Final = 2_400


@dataclass(frozen=True, slots=True)
class Safety:
    """Whether every placement order succeeds, and an order that fails."""

    answer: PackingAnswer  # YES: every order succeeds. NO: some order fails. UNDECIDED: the budget ended
    # With NO, an order that fails: (volume, disk) for each volume placed, then (volume, None) for the volume that finds
    # no disk.
    counter_example: tuple[tuple[int, int | None], ...] = ()


_SAFE: Final = Safety(PackingAnswer.YES)
_UNDECIDED: Final = Safety(PackingAnswer.UNDECIDED)


def order_safe(  # noqa: PLR0913, PLR0917 -- the two space rules take two arguments each
    items: Items,
    required: tuple[int, ...] | None,
    free: tuple[int, ...],
    headroom: tuple[int, ...] | None,
    allowed: tuple[int, ...] | None,
    budget: Budget,
    optional: OptionalItems = NO_OPTIONAL_ITEMS,
) -> Safety:
    """Whether every order and choice of disks succeeds.

    A volume may go to a disk its `allowed` mask has (None: any) when its size is at most what is left of `free` and,
    where `headroom` is given, `required` is less than what is left of that; both are then subtracted. `required` is
    what a rebuild really writes, None or 0 for a new volume, which writes nothing yet. `optional` replicas may take
    room at any time; one without a disk is skipped. In a counter-example their indexes follow those of the items.
    """
    total = items.total + sum(optional.sizes)
    if not items or (headroom is None and allowed is None and counting_proves_safe(free, total, items.largest)):
        return _SAFE
    # Without `headroom` no volume counts as writing, so what is set here is never used up.
    headrooms = headroom if headroom is not None else (1 + items.total,) * len(free)
    written = required if required is not None and headroom is not None else (0,) * len(items)
    every_disk = ((1 << len(free)) - 1,)
    masks = allowed if allowed is not None else every_disk * len(items)
    if optional.sizes:
        written += optional.written if headroom is not None else (0,) * len(optional.sizes)
        masks += optional.allowed if optional.allowed is not None else every_disk * len(optional.sizes)
    classes = _group_into_classes(items, optional, written, masks)
    portion = budget.portion(MAX_STEPS_PER_NODE)
    try:
        portion.charge(len(masks))
        return _decide(classes, free, headrooms, portion)
    except OutOfStepsError:
        portion.gave_up += 1
        return _UNDECIDED
    finally:
        budget.take_back([portion])


def counting_proves_safe(free: Iterable[int], total: int, largest: int) -> bool:
    """Whether counting proves that no placement order fails; False proves nothing.

    The proof holds for new volumes that may use any disk: one or more, of `total` bytes together, the largest of
    `largest` bytes. To block a volume of s bytes, each disk that could take it must lose at least free - s + 1. The
    largest volume is the first for which the others might suffice: a smaller one needs more on every disk. Optional
    replicas count in `total`, not in `largest`.
    """
    needed = 0
    for capacity in free:
        if capacity >= largest:
            needed += capacity - largest + 1
    return needed > total - largest


def _decide(
    classes: tuple[BlockingClass, ...], free: tuple[int, ...], headroom: tuple[int, ...], budget: Budget
) -> Safety:
    """Looks for a blocking set for each undominated class."""
    # One class that can be blocked decides, even where other searches ran out of steps.
    problems = [
        (blocked, _blocking_problem(classes, blocked, free, headroom)) for blocked in _undominated_classes(classes)
    ]
    open_problems = [
        (blocked, problem) for blocked, problem in problems if not problem.targets or not too_small_to_block(problem)
    ]
    safety = _SAFE
    for find in (greedy_blocking_set, find_blocking_set):
        for blocked, problem in open_problems:
            try:
                patterns = find(problem, budget)
            except OutOfStepsError:
                safety = _UNDECIDED
                continue
            if patterns is not None:
                return _counter_example(blocked, problem, patterns)
    budget.gave_up += safety is _UNDECIDED
    return safety


def _undominated_classes(classes: Sequence[BlockingClass]) -> list[int]:
    """Classes that no other dominates and that are not optional; only these need searching."""
    # A class dominates another if it is at least as large, writes at least as much and may use no other disks. What blocks a volume blocks
    # one that dominates it: where the dominating one lies on a disk, swap the two; the disk gains only the difference of their sizes, and
    # likewise for writing.
    undominated: list[int] = []
    # Classes are sorted by size, so a class can only be dominated by an earlier one.
    for index, candidate in enumerate(classes):
        if not candidate.optional and not any(
            classes[other].written >= candidate.written and not classes[other].disks & ~candidate.disks
            for other in undominated
        ):
            undominated.append(index)
    return undominated


def _group_into_classes(
    items: Items, optional: OptionalItems, written: Sequence[int], masks: Sequence[int]
) -> tuple[BlockingClass, ...]:
    sizes = items.sizes + optional.sizes
    # None: must be placed. Otherwise optional; replicas that share no disk are a class for each volume.
    spread = (None,) * len(items) + optional.spread
    members: dict[tuple[int, int, int, int | None], list[int]] = {}
    for volume, key in enumerate(zip(sizes, written, masks, spread, strict=True)):
        members.setdefault(key, []).append(volume)
    # Sorting is stable: items come before equal optional replicas.
    ordered = sorted(members.items(), key=lambda item: (-item[0][0], -item[0][1], item[0][2].bit_count(), item[0][2]))
    return tuple(
        [
            BlockingClass(
                size,
                writes,
                mask,
                tuple(volumes),
                most_per_disk=len(volumes) if volume is None or volume < 0 else 1,
                optional=volume is not None,
            )
            for (size, writes, mask, volume), volumes in ordered
        ]
    )


def _blocking_problem(
    classes: tuple[BlockingClass, ...], blocked: int, free: Sequence[int], headroom: Sequence[int]
) -> BlockingProblem:
    volume = classes[blocked]
    targets = [
        TargetDisk(disk, free[disk], headroom[disk], free[disk] - volume.size + 1, headroom[disk] - volume.written)
        for disk in range(len(free))
        if volume.disks >> disk & 1 and volume.size <= free[disk] and volume.written < headroom[disk]
    ]
    target_mask = sum([1 << target.disk for target in targets])
    counts = tuple(
        [
            len(blocking_class.members) - (index == blocked) if blocking_class.disks & target_mask else 0
            for index, blocking_class in enumerate(classes)
        ]
    )
    return BlockingProblem(classes, counts, tuple(targets))


def _counter_example(blocked: int, problem: BlockingProblem, patterns: Sequence[BlockingPattern]) -> Safety:
    waiting = [list(blocking_class.members) for blocking_class in problem.classes]
    last = waiting[blocked].pop()
    placed: list[tuple[int, int | None]] = []
    for target, pattern in zip(problem.targets, patterns, strict=True):
        for index, count in enumerate(pattern):
            placed += [(waiting[index].pop(0), target.disk) for _ in range(count)]
    return Safety(PackingAnswer.NO, (*placed, (last, None)))
