"""The exact search: give disks whole fills, most constrained disk or volume first, remembering dead ends.

It either finds a packing, or has proved that there is none, or the budget ended. Three facts keep it small:

* *Slack.* The bytes that will stay free in total are known from the start, so every disk must be filled to within
  what is left of them, less what the other disks cannot help wasting.
* *Full fills suffice.* If a volume that is still waiting also fits into a fill, moving it there leaves every other
  disk no worse, so fills with such a gap need no attempt. (The volume stays in every fill it was in: nothing is swapped
  out, which is what would make the argument wrong for a volume that is being branched on.)
* *Equals are equal.* Volumes of one kind and disks of one class are counted, not told apart; states are remembered
  by these counts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_core.packing.budget import Budget, TooManyFillsError
from scheduler_core.packing.patterns import MOST_ALIKE, Fills, Kind, Limits, bits_of, layout, table_of
from scheduler_core.packing.subproblem import Part

# The search descends one disk at a time, so Python's recursion limit bounds them; no real node comes near.
_MOST_DISKS: Final = 200


@dataclass(frozen=True, slots=True)
class DiskClass:
    """Disks that admit the same kinds and can be filled to the same sums.

    `start` and `end` bound the numbers of their fills, `room` is what the fullest of them holds, `admitted` the kinds
    they take as a bit mask.
    """

    room: int
    start: int
    end: int
    admitted: int
    disks: tuple[int, ...]


Choice = tuple[int, int]
Take = tuple[int, int, list[int]]


class FillSearch:
    """One run of the search. `solve` answers with a fill for each disk used, or None when there is none."""

    def __init__(self, kinds: Sequence[Kind], classes: Sequence[DiskClass], fills: Fills, budget: Budget) -> None:
        self.kinds = kinds
        self.classes = classes
        self.fills = fills
        self.budget = budget
        self.ascending = sorted(range(len(kinds)), key=lambda kind: kinds[kind].size)
        self.masks = [field.mask for field in fills.fields]
        self.dead: set[int] = set()
        self.reach = [(1 << cls.end) - (1 << cls.start) for cls in classes]
        self.takes: dict[int, list[Take]] = {}
        self.key_bits = sum(len(cls.disks) for cls in classes).bit_length()
        self.node_cost = 2 + (len(kinds) + 3 * len(classes)) * (4 + len(fills.sums) // 1000) // 32
        self.path: list[Choice] = []

    def solve(self) -> list[Choice] | None:
        """The (class, fill) of every disk that holds something, or None when no packing exists."""
        remaining = sum(
            field.one * len(kind.members) for kind, field in zip(self.kinds, self.fills.fields, strict=True)
        )
        counts = [len(cls.disks) for cls in self.classes]
        slack = sum(cls.room * len(cls.disks) for cls in self.classes)
        slack -= sum(kind.size * len(kind.members) for kind in self.kinds)
        return self.path if slack >= 0 and self._extend(self.fills.everything, remaining, counts, slack) else None

    def _extend(self, possible: int, remaining: int, counts: list[int], slack: int) -> bool:
        if not remaining:
            return True
        key = remaining
        for count in counts:
            key = key << self.key_bits | count
        if key in self.dead:
            return False
        self.budget.charge(self.node_cost)
        windows = self._windows(possible, counts, slack)
        if windows is not None:
            for cls, fill in self._branches(windows, remaining):
                if self._leaves_a_gap(cls, fill, remaining):
                    continue
                self.path.append((cls, fill))
                counts[cls] -= 1
                waste = self.classes[cls].room - self.fills.sums[fill]
                left = remaining - self.fills.packed[fill]
                found = self._extend(self._narrowed(possible, fill, left), left, counts, slack - waste)
                counts[cls] += 1
                if found:
                    return True
                self.path.pop()
        self.dead.add(key)
        return False

    def _windows(self, possible: int, counts: list[int], slack: int) -> list[tuple[int, int]] | None:
        """For each class with disks left, the fills that waste no more than can be afforded; None when none can."""
        sums = self.fills.sums
        tops: list[tuple[int, int, int]] = []
        for cls, count in enumerate(counts):
            if count:
                reachable = possible & self.reach[cls]
                if not reachable:
                    return None
                top = sums[reachable.bit_length() - 1]
                slack -= (self.classes[cls].room - top) * count
                tops.append((cls, reachable, top))
        if slack < 0:
            return None
        windows = []
        for cls, reachable, top in tops:
            low = bisect_left(sums, top - slack, self.classes[cls].start, self.classes[cls].end)
            windows.append((cls, reachable >> low << low))
        return windows

    def _branches(self, windows: list[tuple[int, int]], remaining: int) -> Iterator[Choice]:
        """The choices for the most constrained disk or kind: exactly one of them must be part of any packing."""
        fewest, cls, window = min((window.bit_count(), cls, window) for cls, window in windows)
        if fewest == 1:
            return _each(cls, window)
        union = 0
        for _, fills in windows:
            union |= fills
        containing = self.fills.containing
        rarest = -1
        for kind, mask in enumerate(self.masks):
            if remaining & mask:
                count = (union & containing[kind]).bit_count()
                if not count:
                    return iter(())
                if count < fewest:
                    fewest, rarest = count, kind
        if rarest < 0:
            return _each(cls, window)
        return (choice for cls, fills in windows for choice in _each(cls, fills & containing[rarest]))

    def _leaves_a_gap(self, cls: int, fill: int, remaining: int) -> bool:
        """Whether a volume that would keep waiting still fits beside the fill."""
        disk = self.classes[cls]
        waste = disk.room - self.fills.sums[fill]
        left = remaining - self.fills.packed[fill]
        for kind in self.ascending:
            if self.kinds[kind].size > waste:
                return False
            if disk.admitted >> kind & 1 and left & self.masks[kind]:
                return True
        return False

    def _narrowed(self, possible: int, fill: int, left: int) -> int:
        """The fills that are still possible once a fill is taken and `left` is what keeps waiting."""
        takes = self.takes.get(fill)
        if takes is None:
            takes = self.takes[fill] = self._takes(self.fills.packed[fill])
        for shift, mask, without in takes:
            possible &= without[(left >> shift & mask) + 1]
        return possible

    def _takes(self, packed: int) -> list[Take]:
        """For each kind in a fill, where its count is and which fills have fewer of it: kept, as it is used often."""
        return [
            (field.shift, (1 << field.width) - 1, without)
            for field, without in zip(self.fills.fields, self.fills.without, strict=True)
            if field.count(packed)
        ]


def _each(cls: int, fills: int) -> Iterator[Choice]:
    """The members of a set of fills, the fullest first."""
    while fills:
        fill = fills.bit_length() - 1
        fills ^= 1 << fill
        yield cls, fill


def search(part: Part, limits: Limits, budget: Budget) -> list[int] | None:
    """A disk for every volume, or None when there is none.

    Raises:
        TooManyFillsError: more fills than the limits allow would have to be looked at
        OutOfStepsError: the budget ended
    """
    slack = part.slack
    if slack < 0:
        return None
    if len(part.rooms) > _MOST_DISKS:
        raise TooManyFillsError
    kinds = kinds_of(part)
    fields = layout(kinds)
    groups: dict[int, list[int]] = {}
    for disk in range(len(part.rooms)):
        groups.setdefault(sum([1 << at for at, kind in enumerate(kinds) if kind.disks >> disk & 1]), []).append(disk)
    tables: list[list[int]] = []
    for admitted, disks in groups.items():
        inside = [pair for at, pair in enumerate(zip(kinds, fields, strict=True)) if admitted >> at & 1]
        ranges = [(max(0, part.rooms[disk] - slack), part.rooms[disk]) for disk in disks]
        table = table_of(inside, bits_of(fields), ranges, limits, budget)
        if not table:
            return None
        tables.append(table)
    if sum(map(len, tables)) > limits.kept:
        raise TooManyFillsError
    fills = Fills(kinds, fields, tables)
    classes = _classes(groups, part.rooms, fills)
    chosen = FillSearch(kinds, classes, fills, budget).solve() if classes else None
    return None if chosen is None else _spread(chosen, kinds, classes, fills)


def _classes(groups: dict[int, list[int]], rooms: Sequence[int], fills: Fills) -> list[DiskClass]:
    """The disks of each group by the fullest fill they can have; none at all when some disk has no fill."""
    classes: list[DiskClass] = []
    for (admitted, disks), (start, end) in zip(groups.items(), fills.segments, strict=True):
        by_end: dict[int, list[int]] = {}
        for disk in disks:
            by_end.setdefault(bisect_right(fills.sums, rooms[disk], start, end), []).append(disk)
        if start in by_end:
            return []
        classes += [
            DiskClass(fills.sums[last - 1], start, last, admitted, tuple(alike)) for last, alike in by_end.items()
        ]
    return classes


def kinds_of(part: Part) -> list[Kind]:
    """The volumes grouped into kinds, largest first."""
    members: dict[tuple[int, int], list[int]] = {}
    for volume, key in enumerate(zip(part.sizes, part.masks, strict=True)):
        members.setdefault(key, []).append(volume)
    ordered = sorted(members.items(), key=lambda item: (-item[0][0], item[0][1]))
    return [
        Kind(size, mask, tuple(volumes[start : start + MOST_ALIKE]))
        for (size, mask), volumes in ordered
        for start in range(0, len(volumes), MOST_ALIKE)
    ]


def _spread(chosen: Sequence[Choice], kinds: Sequence[Kind], classes: Sequence[DiskClass], fills: Fills) -> list[int]:
    """The disk of each volume, from the fills chosen for the classes."""
    picked = [-1] * sum(len(kind.members) for kind in kinds)
    disks = [list(cls.disks) for cls in classes]
    waiting = [list(kind.members) for kind in kinds]
    for cls, fill in chosen:
        disk = disks[cls].pop()
        for kind, field in enumerate(fills.fields):
            for _ in range(field.count(fills.packed[fill])):
                picked[waiting[kind].pop()] = disk
    return picked
