"""How often Longhorn misses a packing that exists.

It places volumes one by one on disks of its own choice. Random tight nodes of two to four disks with two to five new volumes, on
which a packing exists; Longhorn's own balance rule chooses the disks. These are the figures of docs/packing.md.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from scheduler_core.longhorn.placement import DiskCandidate, possible_choices
from scheduler_core.model.longhorn import Disk, Node
from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.packing.feasible import fits
from scheduler_core.packing.items import Items
from scheduler_core.packing.order_safe import new_volumes_stale_safe, order_safe

GI = 1024**3
NODES = 3_000


@dataclass
class Tally:
    """Counts of simulated nodes by outcome."""

    nodes: int = 0
    unlucky: int = 0  # some order fails
    random_failed: int = 0  # a random order failed
    safe: int = 0  # proven order-safe
    safe_failed: int = 0  # proven order-safe, but some order fails
    overbooked: int = 0  # a random order on the first status overbooked a disk
    stale_safe: int = 0  # proven stale-safe
    stale_safe_failed: int = 0  # proven stale-safe, but the random order overbooked a disk


def run() -> str:
    """Simulates all nodes and returns the figures."""
    chance = random.Random(17)  # noqa: S311 # repeatable, not secret
    tally = Tally()
    while tally.nodes < NODES:
        sizes = [chance.randrange(5, 100) * GI for _ in range(chance.randint(2, 5))]
        total = sum(sizes) * chance.uniform(1.0, 1.4)
        cuts = sorted(chance.random() for _ in range(chance.randint(1, 3)))
        free = tuple(int(total * (high - low)) for low, high in zip([0, *cuts], [*cuts, 1], strict=True))
        if fits(Items(sizes), free, None, Budget()) is PackingAnswer.YES:
            _count(tally, sizes, free, chance)
    return "\n".join(
        [
            f"\norders: {tally.nodes} tight nodes on which a packing exists, disks picked by Longhorn's balance rule",
            f"  a random order fails on         {tally.random_failed / tally.nodes:>7.1%}",
            f"  some order fails on             {tally.unlucky / tally.nodes:>7.1%}",
            f"  called order-safe               {tally.safe / tally.nodes:>7.1%}, of which some order fails on {tally.safe_failed}",
            f"  outdated status overbooks on    {tally.overbooked / tally.nodes:>7.1%}",
            f"  called stale-safe               {tally.stale_safe / tally.nodes:>7.1%}, of which it overbooks {tally.stale_safe_failed}",
        ]
    )


def _count(tally: Tally, sizes: Sequence[int], free: tuple[int, ...], chance: random.Random) -> None:
    orders = set(permutations(sizes))
    unlucky = any(not _always_succeeds(order, free) for order in orders)
    safe = order_safe(Items(sizes), None, free, None, None, Budget()).answer is PackingAnswer.YES
    tally.nodes += 1
    tally.unlucky += unlucky
    tally.random_failed += not _succeeds_once(chance.sample(sizes, len(sizes)), free, chance)
    tally.safe += safe
    tally.safe_failed += safe and unlucky
    descending = sorted(free, reverse=True)
    stale_safe = new_volumes_stale_safe(Items(sizes), Items(()), descending, descending)
    # Random numbers of its own, so that the other figures do not depend on this one.
    overbooked = _overbooks(sizes, free, random.Random(tally.nodes))  # noqa: S311 # repeatable, not secret
    tally.overbooked += overbooked
    tally.stale_safe += stale_safe
    tally.stale_safe_failed += stale_safe and overbooked


def _always_succeeds(order: Sequence[int], free: tuple[int, ...]) -> bool:
    """Whether an order succeeds whatever Longhorn chooses among equal disks."""
    if not order:
        return True
    disks = _possible_disks(order[0], free)
    return bool(disks) and all(_always_succeeds(order[1:], _after_placing(free, disk, order[0])) for disk in disks)


def _succeeds_once(order: Sequence[int], free: tuple[int, ...], chance: random.Random) -> bool:
    for size in order:
        disks = _possible_disks(size, free)
        if not disks:
            return False
        free = _after_placing(free, chance.choice(disks), size)
    return True


def _overbooks(sizes: Sequence[int], free: tuple[int, ...], chance: random.Random) -> bool:
    left = list(free)
    for size in sizes:
        left[chance.choice(_possible_disks(size, free))] -= size
    return min(left) < 0


def _possible_disks(size: int, free: tuple[int, ...]) -> list[int]:
    """Returns the disks that the balance rule may choose. No bytes are written yet."""
    node = Node("n1")
    candidates = [
        DiskCandidate(node, Disk(str(index), str(index), storage_maximum=disk_free, storage_available=disk_free))
        for index, disk_free in enumerate(free)
        if size <= disk_free
    ]
    return [int(choice.candidate.disk.name) for choice in possible_choices(candidates, size)] if candidates else []


def _after_placing(free: tuple[int, ...], disk: int, size: int) -> tuple[int, ...]:
    return tuple(disk_free - size * (index == disk) for index, disk_free in enumerate(free))
