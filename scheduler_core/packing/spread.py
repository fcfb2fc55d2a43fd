"""Whether the replicas fit the disks together, if those of one volume share no domain (a node, a zone or a disk).

Without such volumes and without copies this is the question of `feasible.py`, which also answers it without domains and copies first: what
does not pack then does not pack at all. Otherwise each replica goes to the disk with the most bytes left, which often succeeds at once. If
that fails, a search places the volumes one after the other, the largest first, and remembers the states from which the remaining volumes did
not fit. All sizes are bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from scheduler_core.packing.budget import Budget, OutOfStepsError, PackingAnswer
from scheduler_core.packing.feasible import MAX_STEPS_PER_INSTANCE, fits
from scheduler_core.packing.items import Items
from scheduler_core.structs import Struct

SHARED = -1


class ReplicaGroup(Struct, frozen=True, order=True):
    """The replicas of one volume that need a place."""

    size: int  # bytes of each replica
    masks: tuple[int, ...]  # the disks that each replica may use, as a bit mask; equal masks stand next to each other
    # By disk, the domain that at most one of the replicas may use; SHARED where any number may.
    domains: tuple[int, ...]
    # By disk, bytes that the first replica of this `image` takes there in addition; empty for none.
    copies: tuple[int, ...] = ()
    image: str = ""  # replicas of groups with the same image share its copies


def fits_spread(groups: Sequence[ReplicaGroup], free: tuple[int, ...], budget: Budget) -> PackingAnswer:
    """Whether all replicas fit into the disks' free bytes; UNDECIDED when the budget ends first."""
    gave_up = budget.gave_up
    plain = not any(
        any(group.copies) or (len(group.masks) > 1 and any(domain != SHARED for domain in group.domains))
        for group in groups
    )
    if not plain and _fits_greedily(groups, free, budget):
        return PackingAnswer.YES
    replicas = sorted(((group.size, mask) for group in groups for mask in group.masks), reverse=True)
    answer = PackingAnswer.NO
    if all(mask for _, mask in replicas):
        answer = fits(Items([size for size, _ in replicas]), free, tuple(mask for _, mask in replicas), budget)
    if answer is not PackingAnswer.NO and not plain:
        answer = _search(groups, free, budget)
    # A question that several searches left undecided counts once.
    budget.gave_up = gave_up + (answer is PackingAnswer.UNDECIDED)
    return answer


def _largest_first(groups: Sequence[ReplicaGroup]) -> list[ReplicaGroup]:
    return sorted(groups, key=lambda group: (-group.size, sum(map(int.bit_count, group.masks))))


def _fits_greedily(groups: Sequence[ReplicaGroup], free: Sequence[int], budget: Budget) -> bool:
    """Whether all replicas fit if each one goes to the disk with the most bytes left; False proves nothing."""
    # The largest come first, and of one volume those that may use the fewest disks.
    left = list(free)
    # For each image, the bit mask of the disks that were given a copy.
    copied: dict[str, int] = {}
    for group in _largest_first(groups):
        used: set[int] = set()
        for mask in sorted(set(group.masks), key=int.bit_count):
            # The steps are left to the search if they do not suffice here.
            if budget.left < len(left):
                return False
            budget.spend(len(left))
            if not _place_on_emptiest(group, mask, left, copied, used):
                return False
    return True


def _place_on_emptiest(group: ReplicaGroup, mask: int, left: list[int], copied: dict[str, int], used: set[int]) -> bool:
    """Places replicas of a group on the disks of a mask, and updates the bytes left."""
    # `copied` has the disks that were given a copy, by image, and `used` the domains of the group's replicas.
    remaining = group.masks.count(mask)
    heap = [(_bytes_on(group, disk, copied) - left[disk], disk) for disk in range(len(left)) if mask >> disk & 1]
    heapify(heap)
    while remaining and heap:
        overflow, disk = heappop(heap)
        domain = group.domains[disk]
        if overflow > 0:
            return False
        if domain in used:
            continue
        size = _bytes_on(group, disk, copied)
        left[disk] -= size
        if size > group.size:
            copied[group.image] = copied.get(group.image, 0) | 1 << disk
        remaining -= 1
        if domain == SHARED:
            heappush(heap, (_bytes_on(group, disk, copied) - left[disk], disk))
        else:
            used.add(domain)
    return not remaining


def _bytes_on(group: ReplicaGroup, disk: int, copied: Mapping[str, int]) -> int:
    """Returns the bytes that one more replica takes on a disk."""
    # `copied` has the disks that were given a copy, by image, as bit masks.
    if not group.copies or copied.get(group.image, 0) >> disk & 1:
        return group.size
    return group.size + group.copies[disk]


def _search(groups: Sequence[ReplicaGroup], free: tuple[int, ...], budget: Budget) -> PackingAnswer:
    # Each order finds placements that the other one misses within its steps.
    for descending in (True, False):
        portion = budget.portion(MAX_STEPS_PER_INSTANCE // 2)
        order = sorted(range(len(free)), key=free.__getitem__, reverse=descending)
        try:
            return PackingAnswer.YES if _Search(groups, free, order, portion).place_groups() else PackingAnswer.NO
        except OutOfStepsError:
            continue
        finally:
            budget.take_back([portion])
    return PackingAnswer.UNDECIDED


class _Search:
    def __init__(
        self, groups: Sequence[ReplicaGroup], free: tuple[int, ...], order: Sequence[int], budget: Budget
    ) -> None:
        self._groups = _largest_first(groups)
        # For each kind of group, the last one of it: equal groups have places or have none alike.
        self._last_of_kind = sorted({group: number for number, group in enumerate(self._groups)}.values())
        self._order = order
        # Disks with equal traits differ in what is free on them alone.
        self._traits = [
            tuple(
                (
                    tuple(mask >> disk & 1 for mask in group.masks),
                    group.copies[disk] if group.copies else 0,
                    # One value for all disks that are alone in their domain. Any number of replicas may use a SHARED one.
                    domain
                    if group.domains.count(domain := group.domains[disk]) > 1 or domain == SHARED
                    else SHARED - 1,
                )
                for group in self._groups
            )
            for disk in range(len(free))
        ]
        self._free = list(free)
        self._budget = budget
        # For each image, the bit mask of the disks that were given a copy.
        self._copied: dict[str, int] = {}
        # States, with the number of the next group, from which the remaining groups did not fit.
        self._failed: set[object] = set()

    def place_groups(self, number: int = 0) -> bool:
        """Whether all groups from this one on fit."""
        if number == len(self._groups):
            return True
        state = (number, tuple(self._free), tuple(sorted(self._copied.items())))
        if state in self._failed:
            return False
        self._budget.charge(len(self._free))
        remaining = [self._groups[last] for last in self._last_of_kind if last >= number]
        if all(self._has_places(group) for group in remaining) and self._place_replica(number, 0, 0, set()):
            return True
        self._failed.add(state)
        return False

    def _has_places(self, group: ReplicaGroup) -> bool:
        self._budget.charge(len(self._free))
        union = 0
        for mask in set(group.masks):
            union |= mask
        disks = [
            disk
            for disk in self._order
            if union >> disk & 1 and _bytes_on(group, disk, self._copied) <= self._free[disk]
        ]
        domains = {group.domains[disk] for disk in disks}
        return bool(disks) and (SHARED in domains or len(domains) >= len(group.masks))

    def _place_replica(self, number: int, replica: int, start: int, used: set[int]) -> bool:
        group = self._groups[number]
        if replica == len(group.masks):
            return self.place_groups(number + 1)
        if replica and group.masks[replica] != group.masks[replica - 1]:
            start = 0
        # The order of equal replicas does not matter, so they are placed in the order of the disks.
        for position, disk in self._choices(group, replica, start, used):
            domain = group.domains[disk]
            size = _bytes_on(group, disk, self._copied)
            earlier_copies = self._copied.get(group.image)
            self._free[disk] -= size
            if size > group.size:
                self._copied[group.image] = (earlier_copies or 0) | 1 << disk
            fits = self._place_replica(number, replica + 1, position, used | {domain} - {SHARED})
            self._free[disk] += size
            if earlier_copies is None:
                self._copied.pop(group.image, None)
            else:
                self._copied[group.image] = earlier_copies
            if fits:
                return True
        return False

    def _choices(self, group: ReplicaGroup, replica: int, start: int, used: set[int]) -> Iterator[tuple[int, int]]:
        tried: set[object] = set()
        for position in range(start, len(self._order)):
            disk = self._order[position]
            if not group.masks[replica] >> disk & 1 or group.domains[disk] in used:
                continue
            self._budget.charge(1)
            if _bytes_on(group, disk, self._copied) > self._free[disk]:
                continue
            alike = (self._free[disk], self._traits[disk], tuple(m >> disk & 1 for m in self._copied.values()))
            if alike not in tried:
                tried.add(alike)
                yield position, disk
