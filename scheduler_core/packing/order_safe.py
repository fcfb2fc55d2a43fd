"""Whether every order of placing the volumes succeeds, whichever eligible disk Longhorn picks at each step.

Longhorn places volumes one at a time, in map order, on a disk its own score prefers; neither is ours to choose. A node
where a packing exists may still lose a pod to an unlucky order. A node is safe when no volume can be shut out of all its
disks by others (`cover`); where one can, the others and where they lie are the counter-example. All sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_core.packing.answer import Answer
from scheduler_core.packing.blocking import Fill, Gate, Siege, Sort, probe, shut_out, too_few
from scheduler_core.packing.budget import Budget, OutOfStepsError
from scheduler_core.packing.items import Load

# No single node may take longer than this, even when the request has more: about 4 ms.
STEPS_PER_NODE: Final = 2_400


@dataclass(frozen=True, slots=True)
class Safety:
    """YES: every order succeeds. NO: `counter_example` is an order that fails: (volume, disk) for each volume placed,
    then (volume, None) for the one that finds no disk. UNDECIDED: the budget ended.
    """

    answer: Answer
    counter_example: tuple[tuple[int, int | None], ...] = ()


_SAFE: Final = Safety(Answer.YES)
_UNDECIDED: Final = Safety(Answer.UNDECIDED)


def order_safe(  # noqa: PLR0913, PLR0917 -- the two space rules take two arguments each
    load: Load,
    required: tuple[int, ...] | None,
    free: tuple[int, ...],
    headroom: tuple[int, ...] | None,
    allowed: tuple[int, ...] | None,
    budget: Budget,
) -> Safety:
    """Whether no order and no choice of eligible disks leaves a volume without a disk.

    A volume may go to a disk its `allowed` mask has (None: any) when its size is at most what is left of `free` and,
    where `headroom` is given, `required` is less than what is left of that; both are then taken off. `required` is what
    a rebuild really writes, None or 0 for a new volume, which writes nothing yet.
    """
    if headroom is None and allowed is None and counting_says_safe(load, free):
        return _SAFE
    room = headroom if headroom is not None else (1 + load.total,) * len(free)
    writes = required if required is not None and headroom is not None else (0,) * len(load)
    sorts = _sorts(load.sizes, writes, allowed if allowed is not None else ((1 << len(free)) - 1,) * len(load))
    portion = budget.portion(STEPS_PER_NODE)
    try:
        portion.charge(len(load))
        return _examined(sorts, free, room, portion)
    except OutOfStepsError:
        portion.gave_up += 1
        return _UNDECIDED
    finally:
        budget.take_back([portion])


def counting_says_safe(load: Load, free: Sequence[int]) -> bool:
    """Whether bytes alone prove that no order fails, for new volumes that may use any disk; False proves nothing.

    To shut out a volume of s bytes, each disk that could take it must lose at least free - s + 1. The largest volume is
    the first for which the others might suffice: a smaller one needs more on every disk.
    """
    largest = load.largest
    needed = 0
    for room in free:
        if room >= largest:
            needed += room - largest + 1
    return needed > load.total - largest or not load.sizes


def _examined(sorts: tuple[Sort, ...], free: tuple[int, ...], headroom: tuple[int, ...], budget: Budget) -> Safety:
    """Look at each volume that could fail first; one that can be shut out settles it, whatever was undecided before."""
    sieges = [(target, _siege(sorts, target, free, headroom)) for target in _hardest(sorts)]
    doubtful = [(target, siege) for target, siege in sieges if not siege.gates or not too_few(siege)]
    answer = _SAFE
    for attempt in (probe, shut_out):
        for target, siege in doubtful:
            try:
                fills = attempt(siege, budget)
            except OutOfStepsError:
                answer = _UNDECIDED
                continue
            if fills is not None:
                return _counter_example(target, siege, fills)
    budget.gave_up += answer is _UNDECIDED
    return answer


def _hardest(sorts: Sequence[Sort]) -> list[int]:
    """The sorts that need to be looked at: no other is as large, writes as much and may use no disk beyond theirs.

    Whatever shuts out a volume also shuts out a harder one: if the harder one is among what lies on the disks, swap the
    two. Its disk then has more room than before, but only by the difference of their sizes, and likewise for writing.
    """
    kept: list[int] = []
    for at, sort in enumerate(sorts):
        if not any(sorts[other].written >= sort.written and not sorts[other].disks & ~sort.disks for other in kept):
            kept.append(at)
    return kept


def _sorts(sizes: Sequence[int], writes: Sequence[int], masks: Sequence[int]) -> tuple[Sort, ...]:
    """The volumes grouped into interchangeable ones: largest, most written, fewest disks first."""
    members: dict[tuple[int, int, int], list[int]] = {}
    for volume, key in enumerate(zip(sizes, writes, masks, strict=True)):
        members.setdefault(key, []).append(volume)
    ordered = sorted(members.items(), key=lambda item: (-item[0][0], -item[0][1], item[0][2].bit_count(), item[0][2]))
    return tuple([Sort(size, written, mask, tuple(volumes)) for (size, written, mask), volumes in ordered])


def _siege(sorts: tuple[Sort, ...], target: int, free: Sequence[int], headroom: Sequence[int]) -> Siege:
    """The question whether one volume of the target sort can be shut out by all other volumes."""
    volume = sorts[target]
    gates = [
        Gate(disk, free[disk], headroom[disk], free[disk] - volume.size + 1, headroom[disk] - volume.written)
        for disk in range(len(free))
        if volume.disks >> disk & 1 and volume.size <= free[disk] and volume.written < headroom[disk]
    ]
    around = sum([1 << gate.disk for gate in gates])
    counts = tuple([len(sort.members) - (at == target) if sort.disks & around else 0 for at, sort in enumerate(sorts)])
    return Siege(sorts, counts, tuple(gates))


def _counter_example(target: int, siege: Siege, fills: Sequence[Fill]) -> Safety:
    """The blocking fills written out as an order: who goes where, then the volume that finds no disk."""
    waiting = [list(sort.members) for sort in siege.sorts]
    last = waiting[target].pop()
    placed: list[tuple[int, int | None]] = []
    for gate, fill in zip(siege.gates, fills, strict=True):
        for at, count in enumerate(fill):
            placed += [(waiting[at].pop(0), gate.disk) for _ in range(count)]
    return Safety(Answer.NO, (*placed, (last, None)))
