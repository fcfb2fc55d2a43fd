"""Whether the volumes fit the disks together: exactly, or UNDECIDED when the budget ends first.

Callers of the package start here. Nearly all answers need no search, and take about a microsecond. A request checks thousands of disk
profiles against the same items, so whatever depends on the items alone is computed once. Everything else is searched exactly over a table
of patterns, or, where that would be too large, by filling disks one by one. All sizes are bytes.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, MutableMapping, Sequence
from functools import lru_cache, reduce
from heapq import heapify, heapreplace
from itertools import repeat
from math import gcd
from operator import itemgetter, or_

from scheduler_core.packing.budget import Budget, OutOfStepsError, PackingAnswer, Portions, share_fairly
from scheduler_core.packing.exact_search import PackingProblem, fullest_subset, minimum_bin_slack, search
from scheduler_core.packing.items import Items
from scheduler_core.packing.patterns import PatternLimits
from scheduler_core.structs import replace

FastCheck = Callable[[tuple[int, ...]], PackingAnswer]
# The subset sums take as long as a dozen greedy attempts, and with competing pods nearly every node has items of its
# own.
_CHECKS_BEFORE_SUMS = 16


@lru_cache(maxsize=64)
def fast_check(items: Items, *, with_sums: bool = True) -> FastCheck:
    """Returns a check for volumes that may use any disk. The check maps the free bytes of a node's disks to an answer.
    UNDECIDED means that a search is needed.
    """
    # A closure, because it runs for every node of the cluster and attribute look-ups were a third of its time.
    largest = items.largest
    total = items.total
    descending = items.descending
    sums: list[int] | None = None
    units: list[tuple[int, int]] = []
    checks = 0
    yes = PackingAnswer.YES
    no = PackingAnswer.NO
    undecided = PackingAnswer.UNDECIDED

    def check(free: tuple[int, ...]) -> PackingAnswer:
        nonlocal sums, units, checks
        most_free = max(free, default=-1)
        if most_free < largest:
            return yes if not descending else no
        if most_free >= total:
            return yes
        # With two disks, an overbooked one only lowers a sum that is too small already.
        usable = free if len(free) == 2 else [capacity for capacity in free if capacity > 0]
        if sum(usable) < total:
            return no
        if sums is None:
            checks += 1
            if checks <= _CHECKS_BEFORE_SUMS and _best_fit_succeeds(descending, free):
                return yes
            sums = items.subset_sums if with_sums else []
            units = [(unit, sum([size // unit for size in descending])) for unit in set(descending) if unit]
        if sums:
            # Two disks: the best packing fills the first with the largest sum it holds.
            if len(free) == 2:
                return yes if total - sums[bisect_right(sums, free[0]) - 1] <= free[1] else no
            # A disk holds at most its largest reachable sum.
            if sum([sums[bisect_right(sums, capacity) - 1] for capacity in usable]) < total:
                return no
        if _best_fit_succeeds(descending, free) or _worst_fit_succeeds(descending, free):
            return yes
        # Counted in units, each disk loses what volumes of about that size cannot use: with a unit above half a disk it counts "one per
        # disk".
        for unit, count in units:
            if sum([capacity // unit for capacity in usable]) < count:
                return no
        return undecided

    return check


def _best_fit_succeeds(descending: Sequence[int], free: Sequence[int]) -> bool:
    capacities = sorted(free)
    for size in descending:
        index = bisect_left(capacities, size)
        if index == len(capacities):
            return False
        insort(capacities, capacities.pop(index) - size)
    return True


def _worst_fit_succeeds(descending: Sequence[int], free: Sequence[int]) -> bool:
    # heapq is a min-heap: negated, the emptiest disk is on top.
    emptiest_first = [-capacity for capacity in free]
    heapify(emptiest_first)
    for size in descending:
        left = -emptiest_first[0] - size
        if left < 0:
            return False
        heapreplace(emptiest_first, -left)
    return True


@lru_cache(maxsize=256)
def fast_restricted_check(items: Items, allowed: tuple[int, ...]) -> FastCheck:
    """`fast_check` for volumes that may use only some disks; `allowed` has a mask of disks for each."""
    # What only one disk can take is subtracted from that disk at once. The answer for the rest is as exact as without
    # restrictions if no masks overlap. That is nearly always so: disks have one tag or two, and a pod's volumes come
    # from few StorageClasses.
    forced: dict[int, int] = {}
    movable: list[tuple[int, int]] = []
    for size, mask in zip(items.sizes, allowed, strict=True):
        if mask.bit_count() == 1:
            disk = mask.bit_length() - 1
            forced[disk] = forced.get(disk, 0) + size
        else:
            movable.append((size, mask))
    masks = {mask for _, mask in movable}
    overlapping = sum(masks) != reduce(or_, masks, 0)
    sizes = [size for size, _ in movable]
    movable_masks = [mask for _, mask in movable]
    # For each mask, the volumes that may use no other disks. The sums for several masks take longer than a search.
    confined = [
        (mask, fast_check(Items([size for size, other in movable if not other & ~mask]), with_sums=len(masks) == 1))
        for mask in masks
    ]

    def check(free: tuple[int, ...]) -> PackingAnswer:
        capacities = list(free)
        for disk, size in forced.items():
            capacities[disk] -= size
            if capacities[disk] < 0:
                return PackingAnswer.NO
        if overlapping and place_greedily(sizes, movable_masks, capacities, choose=min) is not None:
            return PackingAnswer.YES
        answer = PackingAnswer.UNDECIDED if overlapping else PackingAnswer.YES
        for mask, check_confined in confined:
            fits_there = check_confined(
                tuple([room if mask >> disk & 1 else -1 for disk, room in enumerate(capacities)])
            )
            if fits_there is PackingAnswer.NO:
                return fits_there
            if fits_there is PackingAnswer.UNDECIDED:
                answer = fits_there
        return answer

    return check


def place_greedily(
    sizes: Sequence[int],
    masks: Sequence[int],
    free: Sequence[int],
    choose: Callable[[list[tuple[int, int]]], tuple[int, int]],
) -> list[int] | None:
    """A disk per volume, or None, which proves nothing: the most restricted volume, then the largest, goes first."""
    # `choose` takes one of (bytes free, disk) in the order of the disks: `min` is best fit, the first one first fit.
    left = list(free)
    assignment = [-1] * len(sizes)
    for volume in sorted(range(len(sizes)), key=lambda volume: (masks[volume].bit_count(), -sizes[volume])):
        size = sizes[volume]
        mask = masks[volume]
        eligible = [(room, disk) for disk, room in enumerate(left) if room >= size and mask >> disk & 1]
        if not eligible:
            return None
        assignment[volume] = disk = choose(eligible)[1]
        left[disk] -= size
    return assignment


# Half of what an instance gets at first.
_BRIEF_STEPS = 500
# So few volumes have few patterns: their table is complete sooner than any other attempt.
_FEW_VOLUMES = 10
# So many large volumes still have a small table, however much space the others leave.
_LARGEST_VOLUMES = 12
# Sums are bits of an integer; beyond this many bits a shift would cost more than the search it saves.
_MAX_UNITS = 1 << 17
# A few thousand patterns are the search's best size, tens of thousands its last resort: each step then costs ten times
# as much and more of them are needed.
_SMALL_TABLE = PatternLimits(max_partial=30_000, max_complete=6_000)
_LARGE_TABLE = PatternLimits(max_partial=200_000, max_complete=40_000)
# No single instance may take longer than this, even when the request has more steps left: about 60 ms.
MAX_STEPS_PER_INSTANCE = _BRIEF_STEPS + 50_000
_PORTIONS = Portions(first=1_000, most=MAX_STEPS_PER_INSTANCE)

# Free bytes of each disk, and the mask of allowed disks for each volume.
Instance = tuple[tuple[int, ...], tuple[int, ...] | None]


def fits(items: Items, free: tuple[int, ...], allowed: tuple[int, ...] | None, budget: Budget) -> PackingAnswer:
    """Whether the volumes fit into the disks' free bytes."""
    # `allowed` has a bit mask of the disks each volume may use, None when every volume may use every disk. A disk that
    # is filled to the last byte is fine; one with less than nothing free takes no volume, not even an empty one.
    answer = _fast_check(items, allowed)(free)
    if answer is not PackingAnswer.UNDECIDED:
        return answer
    return _answer(items, (free, allowed), budget)


def fits_many(
    items: Items,
    profiles: Sequence[tuple[int, ...]],
    budget: Budget,
    restrictions: Sequence[tuple[int, ...] | None] | None = None,
    tried: MutableMapping[Instance, int] | None = None,
) -> list[PackingAnswer]:
    """`fits` for many nodes, one answer per disk profile, in order. `restrictions` has the `allowed` of each profile
    (None: all unrestricted), and `tried` the steps that earlier calls with these items spent without an answer (see
    `share_fairly`). Equal profiles are searched once, and the steps that one gets do not depend on the order of the
    profiles.
    """
    if restrictions is None:
        answers = list(map(fast_check(items), profiles))
    else:
        answers = [_fast_check(items, allowed)(free) for free, allowed in zip(profiles, restrictions, strict=True)]
    # Without restrictions disks are interchangeable, so sorting makes more profiles equal.
    undecided: list[Instance] = [
        (free if allowed else tuple(sorted(free)), allowed)
        for free, allowed, answer in zip(profiles, restrictions or repeat(None), answers, strict=False)
        if answer is PackingAnswer.UNDECIDED
    ]
    ordered = sorted(set(undecided), key=lambda instance: (-sum(instance[0]), instance[0], instance[1] or ()))
    searched = share_fairly(ordered, lambda instance, share: _answer(items, instance, share), _PORTIONS, budget, tried)
    instances = iter(undecided)
    return [searched[next(instances)] if answer is PackingAnswer.UNDECIDED else answer for answer in answers]


def _fast_check(items: Items, allowed: tuple[int, ...] | None) -> FastCheck:
    return fast_check(items) if allowed is None else fast_restricted_check(items, allowed)


def assign(
    items: Items, free: tuple[int, ...], allowed: tuple[int, ...] | None, budget: Budget
) -> tuple[int, ...] | PackingAnswer:
    """A disk index per volume, in the caller's order; NO or UNDECIDED where `fits` says so."""
    if _fast_check(items, allowed)(free) is PackingAnswer.NO:
        return PackingAnswer.NO
    assignment = place_greedily(items.sizes, _masks(items, free, allowed), free, choose=itemgetter(0))
    return _solve(items, free, allowed, budget) if assignment is None else tuple(assignment)


def _masks(items: Items, free: tuple[int, ...], allowed: tuple[int, ...] | None) -> Sequence[int]:
    return ((1 << len(free)) - 1,) * len(items) if allowed is None else allowed


def _answer(items: Items, instance: Instance, budget: Budget) -> PackingAnswer:
    result = _solve(items, *instance, budget)
    return result if isinstance(result, PackingAnswer) else PackingAnswer.YES


def _solve(
    items: Items, free: tuple[int, ...], allowed: tuple[int, ...] | None, budget: Budget
) -> tuple[int, ...] | PackingAnswer:
    portion = budget.portion(MAX_STEPS_PER_INSTANCE)
    try:
        portion.charge(len(items))
        assignment = pack(items.sizes, _masks(items, free, allowed), free, portion)
    except OutOfStepsError:
        budget.gave_up += 1
        return PackingAnswer.UNDECIDED
    finally:
        budget.take_back([portion])
    return PackingAnswer.NO if assignment is None else tuple(assignment)


def pack(sizes: Sequence[int], masks: Sequence[int], free: Sequence[int], budget: Budget) -> list[int] | None:
    """A disk per volume, or None if there is no packing. Searches even where the fast path decides."""
    left = list(free)
    eligible = list(masks)
    assignment = [-1] * len(sizes)
    waiting = list(range(len(sizes)))
    waiting_before = -1
    while waiting_before != len(waiting):
        waiting_before = len(waiting)
        for volume in list(waiting):
            size = sizes[volume]
            disks = [disk for disk, room in enumerate(left) if eligible[volume] >> disk & 1 and room >= size]
            if not disks:
                return None
            eligible[volume] = sum([1 << disk for disk in disks])
            # A volume without bytes takes no space from the others, so any disk it may use will do.
            if len(disks) == 1 or not size:
                assignment[volume] = disks[0]
                left[disks[0]] -= size
                waiting.remove(volume)
    problem = PackingProblem(sizes, eligible, left)
    while waiting:
        # Volumes that share disks with no others, directly or through others, are a problem of their own.
        used = eligible[waiting[0]]
        while (grown := reduce(or_, [eligible[volume] for volume in waiting if eligible[volume] & used])) != used:
            used = grown
        members = [volume for volume in waiting if eligible[volume] & used]
        disks = [disk for disk in range(len(left)) if used >> disk & 1]
        packing = _search(problem.restrict(members, disks), budget)
        if packing is None:
            return None
        for volume, index in zip(members, packing, strict=True):
            assignment[volume] = disks[index]
            waiting.remove(volume)
    return assignment


def _search(problem: PackingProblem, budget: Budget) -> list[int] | None:
    # Bytes above the largest sum that volumes reach on a disk stay free in every packing.
    unit = gcd(*problem.sizes)
    if max(problem.capacities) // unit <= _MAX_UNITS:
        capacities = []
        for disk, capacity in enumerate(problem.capacities):
            sizes = [problem.sizes[volume] for volume in problem.admissible(disk)]
            capacities.append(sum([sizes[position] for position in fullest_subset(sizes, capacity, unit)]))
        problem = replace(problem, capacities=capacities)
    if problem.slack < 0:
        return None
    # Fills disks and searches exactly in turn, each at first with less effort. With many volumes, filling disks often
    # succeeds before a table is complete.
    brief = _BRIEF_STEPS if len(problem.sizes) > _FEW_VOLUMES else 0
    for table, steps, fifths in ((_SMALL_TABLE, brief, 4), (_LARGE_TABLE, budget.left, 5)):
        portion = budget.portion(min(steps, budget.left // 2))
        packing = minimum_bin_slack(problem, portion) if portion.left else None
        budget.take_back([portion])
        if packing is not None:
            return packing
        portion = budget.portion(budget.left * fifths // 5)
        try:
            return search(problem, table, portion)
        except OutOfStepsError:
            if table is _SMALL_TABLE and _largest_do_not_fit(problem, portion):
                return None
        finally:
            budget.take_back([portion])
    raise OutOfStepsError


def _largest_do_not_fit(problem: PackingProblem, budget: Budget) -> bool:
    largest = sorted(range(len(problem.sizes)), key=lambda volume: -problem.sizes[volume])[:_LARGEST_VOLUMES]
    try:
        return search(problem.restrict(largest, range(len(problem.capacities))), _SMALL_TABLE, budget) is None
    except OutOfStepsError:
        return False
