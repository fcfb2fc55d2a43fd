"""Can other volumes shut a volume out of every disk? That is all that order safety is about.

Whatever the order and whoever picks the disks, a volume fails exactly when some of the others lie on its disks so that
none has room for it. Which of them came first does not matter: what lies on a disk is possible in some order if its
sizes sum to at most the free bytes and what it writes stays below the headroom, because both sums only grow. So instead
of orders we look for *blocking fills*, one for each disk, made of different volumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_core.packing.budget import Budget, OutOfStepsError

_FILLS_PER_STEP: Final = 10
# The search descends one gate at a time, so Python's recursion limit bounds them; no real node comes near.
_MOST_GATES: Final = 200


@dataclass(frozen=True, slots=True)
class Sort:
    """Volumes that are interchangeable: `size` and `written` bytes each, the `disks` they may use as a bit mask."""

    size: int
    written: int
    disks: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gate:
    """A disk as seen by the volume that is to be shut out.

    It is shut once at least `shut_size` bytes are assigned or `shut_written` bytes written. Before, at most `free` may
    be assigned, and less than `headroom` written. A disk that nothing can shut by writing has `shut_written` above
    what can be written.
    """

    disk: int
    free: int
    headroom: int
    shut_size: int
    shut_written: int


@dataclass(frozen=True, slots=True)
class Siege:
    """The question: can the volumes of `sorts`, `counts` of each, shut all the gates?"""

    sorts: tuple[Sort, ...]
    counts: tuple[int, ...]
    gates: tuple[Gate, ...]


Fill = tuple[int, ...]
Sized = tuple[int, int]


def too_few(siege: Siege) -> bool:
    """Whether counting proves that the gates cannot all be shut.

    The cost of a gate is measured in bytes assigned or written, whichever is the smaller share of all there is; a
    volume pays with the larger. A gate also costs at least one volume.
    """
    size = sum([sort.size * count for sort, count in zip(siege.sorts, siege.counts, strict=True)])
    written = sum([sort.written * count for sort, count in zip(siege.sorts, siege.counts, strict=True)])
    if sum(siege.counts) < len(siege.gates):
        return True
    if not written:
        return sum([gate.shut_size for gate in siege.gates]) > size
    price = sum([min(gate.shut_size * written, gate.shut_written * size) for gate in siege.gates])
    purse = sum(
        [
            max(sort.size * written, sort.written * size) * count
            for sort, count in zip(siege.sorts, siege.counts, strict=True)
        ]
    )
    return price > purse


def probe(siege: Siege, budget: Budget) -> list[Fill] | None:
    """Blocking fills found by taking volumes in a fixed order; None proves nothing.

    Gates that need little, or much, go first. On each, volumes are added largest first, smallest first, or those that
    write most first, until it is shut.

    Raises:
        OutOfStepsError: the budget ended first
    """
    gates = sorted(range(len(siege.gates)), key=lambda at: siege.gates[at].shut_size)
    largest = range(len(siege.sorts))
    orders: list[Sequence[int]] = [largest, largest[::-1]]
    if any(sort.written for sort in siege.sorts):
        orders.append(sorted(largest, key=lambda at: -siege.sorts[at].written))
    for order in orders:
        for sequence in (gates, gates[::-1]):
            budget.charge(len(gates) + len(order) // 2)
            left = list(siege.counts)
            fills: dict[int, Fill] = {}
            for at in sequence:
                fill = _greedy_fill(siege, siege.gates[at], order, left)
                if fill is None:
                    break
                fills[at] = fill
            if len(fills) == len(gates):
                return [fills[at] for at in range(len(gates))]
    return None


def _greedy_fill(siege: Siege, gate: Gate, order: Sequence[int], left: list[int]) -> Fill | None:
    """Volumes in `order` until the gate is shut; takes them off `left`. None when it stays open."""
    fill = [0] * len(left)
    size = written = 0
    for at in order:
        sort = siege.sorts[at]
        if not sort.disks >> gate.disk & 1:
            continue
        while fill[at] < left[at] and size + sort.size <= gate.free and written + sort.written < gate.headroom:
            fill[at] += 1
            size += sort.size
            written += sort.written
            if size >= gate.shut_size or written >= gate.shut_written:
                for used, count in enumerate(fill):
                    left[used] -= count
                return tuple(fill)
    return None


def shut_out(siege: Siege, budget: Budget) -> list[Fill] | None:
    """A blocking fill for every gate (how many of each sort), or None when there is no way to shut them all.

    Only minimal fills matter: a fill that still blocks without one of its volumes would only take that from others.

    Raises:
        OutOfStepsError: the budget ended first, or there are far too many gates
    """
    if len(siege.gates) > _MOST_GATES:
        raise OutOfStepsError
    pack = _Packer(siege.counts)
    by_gate: list[list[Sized]] = []
    for gate in siege.gates:
        fills = _minimal_fills(siege, gate, pack, budget)
        if not fills:
            return None
        by_gate.append(fills)
    sequence = sorted(range(len(by_gate)), key=lambda at: len(by_gate[at]))
    total = sum([sort.size * count for sort, count in zip(siege.sorts, siege.counts, strict=True)])
    chosen = _disjoint([by_gate[at] for at in sequence], pack, total, budget)
    if chosen is None:
        return None
    found = dict(zip(sequence, chosen, strict=True))
    return [pack.counts(found[at]) for at in range(len(by_gate))]


class _Packer:
    """Counts of each sort in one integer, with a guard bit above each field: one subtraction compares them all."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.width = max(counts, default=0).bit_length() + 1
        self.length = len(counts)
        self.guards = sum(1 << (at + 1) * self.width - 1 for at in range(len(counts)))
        self.everything = self.guards | sum(count << at * self.width for at, count in enumerate(counts))

    def one(self, at: int) -> int:
        """A single volume of a sort."""
        return 1 << at * self.width

    def counts(self, packed: int) -> Fill:
        """The counts, unpacked."""
        field = (1 << self.width - 1) - 1
        return tuple([packed >> at * self.width & field for at in range(self.length)])


def _minimal_fills(siege: Siege, gate: Gate, pack: _Packer, budget: Budget) -> list[Sized]:
    """The ways to shut a gate, (bytes, packed counts), those that take the fewest bytes first.

    Volumes are added largest first and the last one added shuts the gate, so every minimal fill is among them.
    """
    size_to_come, written_to_come = _reserves(siege, gate)
    partial = [(0, 0, 0)]
    done: list[Sized] = []
    for at, (sort, count) in enumerate(zip(siege.sorts, siege.counts, strict=True)):
        if not sort.disks >> gate.disk & 1 or not count:
            continue
        budget.charge(1 + len(partial) * (2 + count) // 3)
        size_to_come -= sort.size * count
        written_to_come -= sort.written * count
        grown: list[tuple[int, int, int]] = []
        one = pack.one(at)
        for size, written, packed in partial:
            for number in range(count + 1):
                total, wrote = size + sort.size * number, written + sort.written * number
                if number and (total > gate.free or wrote >= gate.headroom):
                    break
                if total >= gate.shut_size or wrote >= gate.shut_written:
                    done.append((total, packed + one * number))
                    break
                if total + size_to_come >= gate.shut_size or wrote + written_to_come >= gate.shut_written:
                    grown.append((total, wrote, packed + one * number))
        partial = grown
    done.sort()
    return done


def _reserves(siege: Siege, gate: Gate) -> tuple[int, int]:
    """The bytes that all volumes allowed on the gate's disk would assign and write."""
    able = [(sort, count) for sort, count in zip(siege.sorts, siege.counts, strict=True) if sort.disks >> gate.disk & 1]
    return sum([sort.size * count for sort, count in able]), sum([sort.written * count for sort, count in able])


def _disjoint(by_gate: list[list[Sized]], pack: _Packer, total: int, budget: Budget) -> list[int] | None:
    """One fill for each gate so that no volume is used twice; depth first, remembering what was left in dead ends.

    `total` is what all volumes together have in bytes: a fill may not take so much that the gates still to come,
    by their smallest fills, could not be paid for.
    """
    chosen: list[int] = []
    dead: set[tuple[int, int]] = set()
    guards = pack.guards
    to_come = [0]
    for fills in reversed(by_gate):
        to_come.append(to_come[-1] + fills[0][0])
    to_come.reverse()

    def descend(depth: int, left: int, purse: int) -> bool:
        if depth == len(by_gate):
            return True
        if (depth, left) in dead:
            return False
        budget.charge(1 + len(by_gate[depth]) // _FILLS_PER_STEP)
        affordable = purse - to_come[depth + 1]
        for size, fill in by_gate[depth]:
            if size > affordable:
                break
            rest = left - fill
            if rest & guards == guards:
                chosen.append(fill)
                if descend(depth + 1, rest, purse - size):
                    return True
                chosen.pop()
        dead.add((depth, left))
        return False

    return chosen if descend(0, pack.everything, total) else None
