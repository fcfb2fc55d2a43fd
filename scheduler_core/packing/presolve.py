"""Presolve: simplifies a packing problem before any search. No step changes the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class DoesNotFitError(Exception):
    """No disk can take some volume; never leaves the package."""


@dataclass(slots=True)
class PartialAssignment:
    """A packing problem with some volumes placed already."""

    sizes: Sequence[int]  # bytes of each volume
    masks: list[int]  # the disks each volume may use, as a bit mask
    capacities: list[int]  # bytes left on each disk
    unassigned: list[int]  # the volumes that still have to be placed
    assignment: list[int]  # the disk of each volume, -1 until it has one


def place_forced(sizes: Sequence[int], masks: Sequence[int], free: Sequence[int]) -> PartialAssignment:
    """Places volumes that only one disk can take, repeatedly.

    Raises:
        DoesNotFitError: some volume fits no disk
    """
    partial = PartialAssignment(sizes, list(masks), list(free), list(range(len(sizes))), [-1] * len(sizes))
    progress = True
    while progress:
        progress = False
        for volume in list(partial.unassigned):
            size = sizes[volume]
            mask = partial.masks[volume]
            eligible = [
                disk for disk, capacity in enumerate(partial.capacities) if mask >> disk & 1 and capacity >= size
            ]
            if not eligible:
                raise DoesNotFitError
            # A volume without bytes takes no space from the others, so any disk it may use will do.
            if len(eligible) == 1 or not size:
                _place(partial, volume, eligible[0])
                progress = True
    _mask_out_small_disks(partial)
    return partial


def _place(partial: PartialAssignment, volume: int, disk: int) -> None:
    partial.assignment[volume] = disk
    partial.capacities[disk] -= partial.sizes[volume]
    partial.unassigned.remove(volume)


def _mask_out_small_disks(partial: PartialAssignment) -> None:
    """Removes from the masks the disks that have become too small for any unassigned volume."""
    if not partial.unassigned:
        return
    smallest = min(partial.sizes[volume] for volume in partial.unassigned)
    usable = sum(1 << disk for disk, capacity in enumerate(partial.capacities) if capacity >= smallest)
    # More volumes then have equal masks and are interchangeable.
    for volume in partial.unassigned:
        partial.masks[volume] &= usable


def defer_small_items(partial: PartialAssignment) -> list[int]:
    """Takes out the volumes that fit however the others are packed, and returns them smallest first.

    A volume of s bytes finds no disk only if each of its n disks has at most s - 1 bytes left. Its disks hold at most
    the other volumes that may use any of them; if that still leaves more than n * (s - 1) bytes, it cannot happen.
    Deferred volumes are placed after all others, largest first, which is the situation the argument is about.
    """
    deferred: list[int] = []
    bytes_by_mask: dict[int, int] = {}
    for volume in partial.unassigned:
        bytes_by_mask[partial.masks[volume]] = bytes_by_mask.get(partial.masks[volume], 0) + partial.sizes[volume]
    for volume in sorted(partial.unassigned, key=lambda volume: partial.sizes[volume]):
        size = partial.sizes[volume]
        mask = partial.masks[volume]
        capacities = [capacity for disk, capacity in enumerate(partial.capacities) if mask >> disk & 1]
        others = sum([total for other, total in bytes_by_mask.items() if other & mask]) - size
        if sum(capacities) - others > len(capacities) * (size - 1):
            deferred.append(volume)
            partial.unassigned.remove(volume)
            bytes_by_mask[mask] -= size
    return deferred


def place_deferred(partial: PartialAssignment, deferred: Sequence[int]) -> None:
    """Places the deferred volumes, the last one deferred first."""
    for volume in reversed(deferred):
        size = partial.sizes[volume]
        mask = partial.masks[volume]
        partial.assignment[volume] = disk = next(
            disk for disk, capacity in enumerate(partial.capacities) if mask >> disk & 1 and capacity >= size
        )
        partial.capacities[disk] -= size


def components(partial: PartialAssignment) -> list[list[int]]:
    """Groups of unassigned volumes that share no disk. Each group is an independent packing problem."""
    groups: list[tuple[int, list[int]]] = []
    for volume in partial.unassigned:
        disks = partial.masks[volume]
        members = [volume]
        separate = []
        for other_disks, other_members in groups:
            if other_disks & disks:
                disks |= other_disks
                members = other_members + members
            else:
                separate.append((other_disks, other_members))
        groups = [*separate, (disks, members)]
    return [sorted(members) for _, members in groups]
