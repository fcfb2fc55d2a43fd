"""Whether every order of placing the volumes succeeds, whichever eligible disk Longhorn picks at each step.

Longhorn places volumes one at a time, in map order, on a disk its own score prefers; the extender controls neither. A
node where a packing exists may still lose a pod to an unlucky order. A node is safe when no volume can be blocked on
all of its disks by other volumes (`blocking`); where one can, the others and their disks are the counter-example. For many nodes at
once there are answers only, without counter-examples.

Then whether placement succeeds even if Longhorn sees none of its latest placements.

Longhorn checks a disk against `storageScheduled` in its status, and the status follows a placement by up to seconds. So
volumes that are placed within that time may each find room on a disk that cannot take all of them. Order safety does
not cover this: there, each placement is seen by the next.

Data flow: each disk → the volumes that it could take alone by the oldest status, before anything in flight → these
*meet* on the disk → do they fit there together?

The check is exact. If all volumes that meet on a disk fit together, no placement ever takes away room that another
volume needs, so every volume that has a disk at first always has that disk. If they do not, Longhorn may place all of
them there by the oldest status. So a set that packs and that is stale-safe is also order-safe: no search is needed.
All sizes are bytes.
"""

from bisect import bisect_left
from collections.abc import Iterable, MutableMapping, Sequence
from functools import lru_cache

from scheduler_core.packing import blocking
from scheduler_core.packing.budget import Budget, OutOfStepsError, PackingAnswer, Portions, share_fairly
from scheduler_core.packing.items import NO_OPTIONAL_ITEMS, Items, OptionalItems
from scheduler_core.structs import Struct, replace

# No single node may take longer than this, even when the request has more steps left: about 4 ms.
MAX_STEPS_PER_NODE = 2_400


class Safety(Struct, frozen=True):
    """Whether every placement order succeeds, and an order that fails."""

    answer: PackingAnswer  # YES: every order succeeds. NO: some order fails. UNDECIDED: the budget ended
    # With NO, an order that fails: (volume, disk) for each volume placed, then (volume, None) for the volume that finds
    # no disk.
    counter_example: tuple[tuple[int, int | None], ...] = ()


_SAFE = Safety(PackingAnswer.YES)
_UNDECIDED = Safety(PackingAnswer.UNDECIDED)


def order_safe(  # noqa: PLR0913, PLR0917 -- the two space rules take two arguments each
    items: Items,
    required: tuple[int, ...] | None,
    free: tuple[int, ...],
    headroom: tuple[int, ...] | None,
    allowed: tuple[int, ...] | None,
    budget: Budget,
    optional: OptionalItems = NO_OPTIONAL_ITEMS,
) -> Safety:
    """Whether every order and choice of disks succeeds. A volume may go to a disk its `allowed` mask has (None: any)
    when its size is at most what is left of `free` and, where `headroom` is given, `required` is less than what is left
    of that; both are then subtracted. `required` is what a rebuild really writes, None or 0 for a new volume, which
    writes nothing yet. `optional` replicas may take room at any time; one without a disk is skipped. In a
    counter-example their indexes follow those of the items.
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
    """Whether counting proves that no placement order fails; False proves nothing. The proof holds for new volumes that
    may use any disk: one or more, of `total` bytes together, the largest of `largest` bytes. To block a volume of s
    bytes, each disk that could take it must lose at least free - s + 1. The largest volume is the first for which the
    others might suffice: a smaller one needs more on every disk. Optional replicas count in `total`, not in `largest`.
    """
    needed = 0
    for capacity in free:
        if capacity >= largest:
            needed += capacity - largest + 1
    return needed > total - largest


def _decide(
    classes: tuple[blocking.BlockingClass, ...], free: tuple[int, ...], headroom: tuple[int, ...], budget: Budget
) -> Safety:
    # One class that can be blocked decides, even where other searches ran out of steps.
    problems = [
        (blocked, _blocking_problem(classes, blocked, free, headroom)) for blocked in _undominated_classes(classes)
    ]
    open_problems = [
        (blocked, problem)
        for blocked, problem in problems
        if not problem.targets or not blocking.too_small_to_block(problem)
    ]
    safety = _SAFE
    for find in (blocking.greedy_blocking_set, blocking.find_blocking_set):
        for blocked, problem in open_problems:
            try:
                patterns = find(problem, budget)
            except OutOfStepsError:
                safety = _UNDECIDED
                continue
            if patterns is not None:
                waiting = [list(blocking_class.members) for blocking_class in classes]
                last = waiting[blocked].pop()
                placed: list[tuple[int, int | None]] = []
                for target, pattern in zip(problem.targets, patterns, strict=True):
                    for index, count in enumerate(pattern):
                        placed += [(waiting[index].pop(0), target.disk) for _ in range(count)]
                return Safety(PackingAnswer.NO, (*placed, (last, None)))
    budget.gave_up += safety is _UNDECIDED
    return safety


def _undominated_classes(classes: Sequence[blocking.BlockingClass]) -> list[int]:
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
) -> tuple[blocking.BlockingClass, ...]:
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
            blocking.BlockingClass(
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
    classes: tuple[blocking.BlockingClass, ...], blocked: int, free: Sequence[int], headroom: Sequence[int]
) -> blocking.BlockingProblem:
    volume = classes[blocked]
    targets = [
        blocking.TargetDisk(
            disk, free[disk], headroom[disk], free[disk] - volume.size + 1, headroom[disk] - volume.written
        )
        for disk in range(len(free))
        if volume.disks >> disk & 1 and volume.size <= free[disk] and volume.written < headroom[disk]
    ]
    target_mask = sum([1 << target.disk for target in targets])
    counts = [
        len(blocking_class.members) - (index == blocked) if blocking_class.disks & target_mask else 0
        for index, blocking_class in enumerate(classes)
    ]
    return blocking.BlockingProblem(classes, tuple(counts), tuple(targets))


# Seven volumes of different sizes in addition to the largest one; eight to ten when some sizes repeat.
_MAX_PAIRS = 3_000
_PORTIONS = Portions(first=100, most=MAX_STEPS_PER_NODE)
_TABLE_DISKS = 2
# The table takes milliseconds, a search mostly a fraction of one; with competing pods nearly every node has items of
# its own.
_MIN_PROFILES_FOR_TABLE = 16


def order_safe_many(
    items: Items,
    profiles: Sequence[tuple[int, ...]],
    budget: Budget,
    tried: MutableMapping[tuple[int, ...], int] | None = None,
) -> list[PackingAnswer]:
    """`order_safe` for many nodes and unrestricted new volumes, one answer for each profile of free bytes, in order.
    Counting decides most nodes. Two greedy attempts to block the largest volume, and a table of the items' sums where
    many nodes have two disks, decide many of the others. Equal profiles are searched once, and the steps that one gets
    do not depend on the order of the profiles. `tried` has the steps that earlier calls with these items spent without
    an answer (see `share_fairly`).
    """
    if not items.sizes:
        return [PackingAnswer.YES] * len(profiles)
    # Local names, because this is the hot loop over thousands of profiles.
    largest = items.largest
    enough = items.total - largest
    yes = PackingAnswer.YES
    answers = []
    for free in profiles:
        # `counting_proves_safe`, inlined for speed.
        needed = 0
        for capacity in free:
            if capacity >= largest:
                needed += capacity - largest + 1
        answers.append(yes if needed > enough else PackingAnswer.UNDECIDED)
    undecided = [free for free, answer in zip(profiles, answers, strict=True) if answer is PackingAnswer.UNDECIDED]
    # Two greedy attempts to block the largest volume come first, then the table for two disks, then a search.
    orders = (items.descending[1:], items.descending[:0:-1])
    decided: dict[tuple[int, ...], PackingAnswer] = {}
    distinct = {tuple(sorted(free)) for free in undecided}
    for free in distinct:
        if any(_blocks_greedily(others, largest, free) for others in orders):
            decided[free] = PackingAnswer.NO
    two_disks = [free for free in distinct if len(free) == _TABLE_DISKS and free not in decided]
    pairs = _sum_pairs(items) if len(two_disks) >= _MIN_PROFILES_FOR_TABLE else None
    if pairs is not None:
        decided |= {free: PackingAnswer.NO if _can_block_two(pairs, largest, free) else yes for free in two_disks}
    ordered = sorted((free for free in distinct if free not in decided), key=lambda free: (-sum(free), free))
    decided |= share_fairly(
        ordered, lambda free, share: order_safe(items, None, free, None, None, share).answer, _PORTIONS, budget, tried
    )
    searched = iter(undecided)
    return [
        decided[tuple(sorted(next(searched)))] if answer is PackingAnswer.UNDECIDED else answer for answer in answers
    ]


def _blocks_greedily(others: Sequence[int], size: int, free: Sequence[int]) -> bool:
    """Whether greedy filling blocks a volume; False proves nothing."""
    # The others are taken in turn, disk by disk, until each disk has less than `size` bytes left.
    waiting = others
    for capacity in free:
        needed = capacity - size + 1
        if needed > 0:
            unused = []
            for other in waiting:
                # A disk that is still open has room for the largest volume, so for any other.
                if needed > 0:
                    needed -= other
                else:
                    unused.append(other)
            if needed > 0:
                return False
            waiting = unused
    return True


# Sums on the first disk, and for each of them the sums then possible on the second.
SumPairs = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


@lru_cache(maxsize=64)
def _sum_pairs(items: Items) -> SumPairs | None:
    # Only the largest volume has to be considered: what blocks a smaller one also blocks the largest (see `order_safe`).
    pairs = {(0, 0)}
    for size in items.descending[1:]:
        pairs |= {(first + size, second) for first, second in pairs} | {
            (first, second + size) for first, second in pairs
        }
        if len(pairs) > _MAX_PAIRS:
            return None
    seconds_by_first: dict[int, list[int]] = {}
    for first, second in sorted(pairs):
        seconds_by_first.setdefault(first, []).append(second)
    return tuple(seconds_by_first), tuple([tuple(seconds) for seconds in seconds_by_first.values()])


def _can_block_two(pairs: SumPairs, size: int, free: Sequence[int]) -> bool:
    # They are blocked when the others leave less than `size` bytes on each. A disk that is too small for the volume is
    # blocked already.
    firsts, seconds_by_index = pairs
    max_first = max(free[0], 0)
    min_second = max(free[1] - size + 1, 0)
    max_second = max(free[1], 0)
    index = bisect_left(firsts, max(free[0] - size + 1, 0))
    while index < len(firsts) and firsts[index] <= max_first:
        seconds = seconds_by_index[index]
        position = bisect_left(seconds, min_second)
        if position < len(seconds) and seconds[position] <= max_second:
            return True
        index += 1
    return False


class MeetingDisk(Struct, frozen=True):
    """A disk on which volumes may meet."""

    free: int  # bytes that are left to promise
    reported: int  # the same by the oldest status: bytes in flight are still free in it
    headroom: int | None = None  # bytes that rebuilds may not use up, None if no volume brings data
    # (backing image, real size) of the images that must be copied here first.
    copies: tuple[tuple[str, int], ...] = ()


class UnplacedVolumes(Struct, frozen=True):
    """Volumes that will be placed soon."""

    sizes: Sequence[int]  # bytes of each
    written: Sequence[int]  # bytes that the rebuild of each writes, 0 for a new volume
    images: Sequence[str]  # the backing image of each, "" for none
    allowed: Sequence[int]  # for each the bit mask of the disks that are open to it
    optional: int = 0  # how many of them, the last ones, may also be placed elsewhere


class Overbooking(Struct, frozen=True):
    """Volumes that may all be placed on a disk that lacks the room for them."""

    disk: int  # its index
    volumes: tuple[int, ...]  # their indexes


def find_overbooking(volumes: UnplacedVolumes, disks: Sequence[MeetingDisk]) -> Overbooking | None:
    """Returns the first disk that outdated status may overbook, or None if the volumes are stale-safe, provided that
    they pack. A disk that takes only optional volumes does not matter.
    """
    for index, disk in enumerate(disks):
        meeting = _meeting(volumes, index, disk)
        written = sum([volumes.written[volume] for volume in meeting])
        rebuilds_fit = disk.headroom is None or written < disk.headroom
        if meeting and not (rebuilds_fit and _bytes_together(volumes, meeting, disk) <= disk.free):
            return Overbooking(index, tuple(meeting))
    return None


def missing_bytes(volumes: UnplacedVolumes, disks: Sequence[MeetingDisk]) -> list[int]:
    """Returns the least bytes by which each disk would have to be larger, so that the volumes are stale-safe. A larger
    disk may be met by more volumes. Only sizes count: the volumes must bring no data.
    """
    missing: list[int] = []
    for index, disk in enumerate(disks):
        extra = 0
        while True:
            larger = replace(disk, free=disk.free + extra, reported=disk.reported + extra)
            meeting = _meeting(volumes, index, larger)
            lacking = _bytes_together(volumes, meeting, larger) - larger.free
            if not meeting or lacking <= 0:
                break
            extra += lacking
        missing.append(extra)
    return missing


def _meeting(volumes: UnplacedVolumes, index: int, disk: MeetingDisk) -> list[int]:
    """Returns the volumes that meet on a disk; none if only optional ones do."""
    meeting = [
        volume
        for volume, (size, written) in enumerate(zip(volumes.sizes, volumes.written, strict=True))
        # Those that Longhorn would place here by the oldest status.
        if volumes.allowed[volume] >> index & 1
        and size <= disk.reported
        and (disk.headroom is None or written < disk.headroom)
    ]
    return meeting if meeting and meeting[0] < len(volumes.sizes) - volumes.optional else []


def _bytes_together(volumes: UnplacedVolumes, meeting: Sequence[int], disk: MeetingDisk) -> int:
    size = sum([volumes.sizes[volume] for volume in meeting])
    if disk.copies:
        images = {volumes.images[volume] for volume in meeting}
        size += sum([image_size for image, image_size in disk.copies if image in images])
    return size


def new_volumes_stale_safe(items: Items, optional: Items, free: Sequence[int], reported: Sequence[int]) -> bool:
    """Whether new volumes that may use any disk, at least one, are stale-safe, as `find_overbooking` would say. `optional` ones may also
    be placed elsewhere. `reported` are the free bytes by the oldest status. Takes a comparison or a look-up per disk.
    """
    total = items.total + optional.total
    largest = max(items.largest, optional.largest)
    smallest = items.descending[-1]
    for disk_free, disk_reported in zip(free, reported, strict=True):
        # All volumes fit, or none that must be placed goes here, however overbooked the disk is.
        if disk_free >= total or disk_reported < smallest:
            continue
        if (
            disk_reported >= largest
            or items.bytes_up_to(disk_reported) + optional.bytes_up_to(disk_reported) > disk_free
        ):
            return False
    return True
