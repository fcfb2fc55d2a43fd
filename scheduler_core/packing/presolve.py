"""Parts of a question that answer themselves, taken out before any search. Every step keeps the answer the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class DoesNotFitError(Exception):
    """A volume has no disk left that could take it; never leaves the package."""


@dataclass(slots=True)
class Case:
    """A question in progress: which volumes wait for a disk, what room is left, what has been decided.

    `sizes` (bytes) and `masks` (disks a volume may use) are indexed by volume, `rooms` (bytes left) by disk; `picked`
    holds the disk of each volume that is decided, -1 for those in `waiting`.
    """

    sizes: Sequence[int]
    masks: list[int]
    rooms: list[int]
    waiting: list[int]
    picked: list[int]


def opened(sizes: Sequence[int], masks: Sequence[int], free: Sequence[int]) -> Case:
    """The question with forced volumes placed: those that only one disk can take, again and again.

    Raises:
        DoesNotFitError: some volume fits no disk
    """
    case = Case(sizes, list(masks), list(free), list(range(len(sizes))), [-1] * len(sizes))
    progress = True
    while progress:
        progress = False
        for volume in list(case.waiting):
            size = sizes[volume]
            mask = case.masks[volume]
            takers = [disk for disk, room in enumerate(case.rooms) if mask >> disk & 1 and room >= size]
            if not takers:
                raise DoesNotFitError
            # A volume without bytes takes nothing from anyone, so any disk it may use is as good as another.
            if len(takers) == 1 or not size:
                _settle(case, volume, takers[0])
                progress = True
    _forget_useless_disks(case)
    return case


def _settle(case: Case, volume: int, disk: int) -> None:
    case.picked[volume] = disk
    case.rooms[disk] -= case.sizes[volume]
    case.waiting.remove(volume)


def _forget_useless_disks(case: Case) -> None:
    """Take disks that are too small for any waiting volume out of the masks, so that alike volumes look alike."""
    if not case.waiting:
        return
    smallest = min(case.sizes[volume] for volume in case.waiting)
    useful = sum(1 << disk for disk, room in enumerate(case.rooms) if room >= smallest)
    for volume in case.waiting:
        case.masks[volume] &= useful


def set_aside_small(case: Case) -> list[int]:
    """Take out volumes that will find room however the others are packed, and return them, smallest first.

    A volume of s bytes finds no disk only if each of its n disks has at most s - 1 bytes left. Its disks hold at most
    the other volumes that may use any of them; if that still leaves more than n * (s - 1) bytes, it cannot happen.
    Those set aside are placed after all others, largest first, which is the situation the argument speaks about.
    """
    aside: list[int] = []
    waiting: dict[int, int] = {}
    for volume in case.waiting:
        waiting[case.masks[volume]] = waiting.get(case.masks[volume], 0) + case.sizes[volume]
    for volume in sorted(case.waiting, key=lambda volume: case.sizes[volume]):
        size, mask = case.sizes[volume], case.masks[volume]
        rooms = [room for disk, room in enumerate(case.rooms) if mask >> disk & 1]
        others = sum([total for area, total in waiting.items() if area & mask]) - size
        if sum(rooms) - others > len(rooms) * (size - 1):
            aside.append(volume)
            case.waiting.remove(volume)
            waiting[mask] -= size
    return aside


def put_back(case: Case, aside: Sequence[int]) -> None:
    """Place the volumes that were set aside, the last one set aside first."""
    for volume in reversed(aside):
        size = case.sizes[volume]
        mask = case.masks[volume]
        case.picked[volume] = disk = next(
            disk for disk, room in enumerate(case.rooms) if mask >> disk & 1 and room >= size
        )
        case.rooms[disk] -= size


def components(case: Case) -> list[list[int]]:
    """The waiting volumes in groups that share no disk: each group is a question of its own."""
    groups: list[tuple[int, list[int]]] = []
    for volume in case.waiting:
        disks = case.masks[volume]
        members = [volume]
        apart = []
        for area, others in groups:
            if area & disks:
                disks |= area
                members = others + members
            else:
                apart.append((area, others))
        groups = [*apart, (disks, members)]
    return [sorted(members) for _, members in groups]
