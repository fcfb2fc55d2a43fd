"""A packing problem as plain numbers: volume sizes, eligible disks, disk capacities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackingProblem:
    """A packing problem, or an independent component of one."""

    sizes: Sequence[int]  # bytes of each volume, positive
    masks: Sequence[int]  # the disks each volume may use, as a bit mask; never empty
    capacities: Sequence[int]  # bytes free on each disk, not negative

    @property
    def slack(self) -> int:
        """Bytes that stay free in any packing."""
        return sum(self.capacities) - sum(self.sizes)

    @property
    def is_restricted(self) -> bool:
        return len(set(self.masks)) > 1

    def admissible(self, disk: int) -> list[int]:
        return [volume for volume, mask in enumerate(self.masks) if mask >> disk & 1]

    def restrict(self, volumes: Sequence[int], disks: Sequence[int]) -> PackingProblem:
        """Keeps only these volumes and disks, renumbered in order."""
        masks = [
            sum([1 << index for index, disk in enumerate(disks) if self.masks[volume] >> disk & 1])
            for volume in volumes
        ]
        return PackingProblem(
            [self.sizes[volume] for volume in volumes], masks, [self.capacities[disk] for disk in disks]
        )
