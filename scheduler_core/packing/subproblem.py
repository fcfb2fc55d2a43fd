"""Volumes and disks that have to be looked at together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A packing question, or a piece of one that is independent of the rest.

    Attributes:
        sizes: bytes of each volume, positive
        masks: the disks each volume may use, as a bit mask; never empty
        rooms: bytes free on each disk, not negative
    """

    sizes: Sequence[int]
    masks: Sequence[int]
    rooms: Sequence[int]

    @property
    def slack(self) -> int:
        """The bytes that stay free in any packing."""
        return sum(self.rooms) - sum(self.sizes)

    @property
    def restricted(self) -> bool:
        """Whether the volumes differ in what they may use."""
        return len(set(self.masks)) > 1

    def admitted(self, disk: int) -> list[int]:
        """The volumes that may use the disk."""
        return [volume for volume, mask in enumerate(self.masks) if mask >> disk & 1]

    def narrowed(self, volumes: Sequence[int], disks: Sequence[int]) -> Part:
        """Only these volumes and disks, numbered by their places in the two lists."""
        masks = [
            sum([1 << at for at, disk in enumerate(disks) if self.masks[volume] >> disk & 1]) for volume in volumes
        ]
        return Part([self.sizes[volume] for volume in volumes], masks, [self.rooms[disk] for disk in disks])
