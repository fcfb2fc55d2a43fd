"""How often a packing that exists is missed, because Longhorn places volumes one by one on disks of its own choice.

Random tight nodes of two to four disks with two to five new volumes, on which a packing exists; Longhorn's own balance
rule picks the disks. These are the figures of docs/order-safety.md.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from scheduler_core.longhorn.disk_choice import Candidate, choices
from scheduler_core.model.longhorn import Disk, Node
from scheduler_core.packing.answer import Answer
from scheduler_core.packing.budget import Budget
from scheduler_core.packing.feasible import Load, fits
from scheduler_core.packing.order_safe import order_safe

GI = 1024**3
NODES = 3_000


@dataclass
class Tally:
    """What became of the nodes."""

    nodes: int = 0
    unlucky: int = 0
    random_failed: int = 0
    safe: int = 0
    safe_failed: int = 0


def run() -> str:
    """Simulates all nodes and returns the figures."""
    chance = random.Random(17)  # noqa: S311 # repeatable, not secret
    tally = Tally()
    while tally.nodes < NODES:
        sizes = [chance.randrange(5, 100) * GI for _ in range(chance.randint(2, 5))]
        room = sum(sizes) * chance.uniform(1.0, 1.4)
        cuts = sorted(chance.random() for _ in range(chance.randint(1, 3)))
        free = tuple(int(room * (high - low)) for low, high in zip([0, *cuts], [*cuts, 1], strict=True))
        if fits(Load(sizes), free, None, Budget()) is Answer.YES:
            _count(tally, sizes, free, chance)
    return "\n".join(
        [
            f"\norders: {tally.nodes} tight nodes on which a packing exists, disks picked by Longhorn's balance rule",
            f"  a random order fails on         {tally.random_failed / tally.nodes:>7.1%}",
            f"  some order fails on             {tally.unlucky / tally.nodes:>7.1%}",
            f"  called order-safe               {tally.safe / tally.nodes:>7.1%}, of which some order fails on {tally.safe_failed}",
        ]
    )


def _count(tally: Tally, sizes: Sequence[int], free: tuple[int, ...], chance: random.Random) -> None:
    orders = set(permutations(sizes))
    unlucky = any(not _always(order, free) for order in orders)
    safe = order_safe(Load(sizes), None, free, None, None, Budget()).answer is Answer.YES
    tally.nodes += 1
    tally.unlucky += unlucky
    tally.random_failed += not _once(chance.sample(sizes, len(sizes)), free, chance)
    tally.safe += safe
    tally.safe_failed += safe and unlucky


def _always(order: Sequence[int], free: tuple[int, ...]) -> bool:
    """Whether an order succeeds whatever Longhorn picks among equals."""
    if not order:
        return True
    picks = _picks(order[0], free)
    return bool(picks) and all(_always(order[1:], _without(free, pick, order[0])) for pick in picks)


def _once(order: Sequence[int], free: tuple[int, ...], chance: random.Random) -> bool:
    for size in order:
        picks = _picks(size, free)
        if not picks:
            return False
        free = _without(free, chance.choice(picks), size)
    return True


def _picks(size: int, free: tuple[int, ...]) -> list[int]:
    """The disks the balance rule may choose; all that is free is usable, for nothing has been written."""
    node = Node("n1")
    candidates = [
        Candidate(node, Disk(str(index), str(index), storage_maximum=room, storage_available=room))
        for index, room in enumerate(free)
        if size <= room
    ]
    return [int(choice.candidate.disk.name) for choice in choices(candidates, size)] if candidates else []


def _without(free: tuple[int, ...], pick: int, size: int) -> tuple[int, ...]:
    return tuple(room - size * (index == pick) for index, room in enumerate(free))


if __name__ == "__main__":
    print(run())
