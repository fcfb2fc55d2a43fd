"""Whether placement succeeds even if Longhorn sees none of its latest placements.

Longhorn checks a disk against `storageScheduled` in its status, and the status follows a placement by up to seconds. So
volumes that are placed within that time may each find room on a disk that cannot take all of them. Order safety does
not cover this: there, each placement is seen by the next.

Data flow: each disk → the volumes that it could take alone by the oldest status, before anything in flight → these
*meet* on the disk → do they fit there together?

The check is exact. If all volumes that meet on a disk fit together, no placement ever takes away room that another
volume needs, so every volume that has a disk at first always has that disk. If they do not, Longhorn may place all of
them there by the oldest status. So a set that packs and that is stale-safe is also order-safe: no search is needed.
All sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.packing.items import Items

_NO_COPIES: Final[tuple[tuple[str, int], ...]] = ()
_NO_ITEMS: Final = Items(())


@dataclass(frozen=True, slots=True)
class MeetingDisk:
    """A disk on which volumes may meet."""

    free: int  # bytes that are left to promise
    reported: int  # the same by the oldest status: bytes in flight are still free in it
    headroom: int | None = None  # bytes that rebuilds may not use up, None if no volume brings data
    # (backing image, real size) of the images that must be copied here first.
    copies: tuple[tuple[str, int], ...] = _NO_COPIES


@dataclass(frozen=True, slots=True)
class UnplacedVolumes:
    """Volumes that will be placed soon."""

    sizes: Sequence[int]  # bytes of each
    written: Sequence[int]  # bytes that the rebuild of each writes, 0 for a new volume
    images: Sequence[str]  # the backing image of each, "" for none
    allowed: Sequence[int]  # for each the bit mask of the disks that are open to it
    optional: int = 0  # how many of them, the last ones, may also be placed elsewhere


@dataclass(frozen=True, slots=True)
class Overbooking:
    """Volumes that may all be placed on a disk that lacks the room for them."""

    disk: int  # its index
    volumes: tuple[int, ...]  # their indexes


def find_overbooking(volumes: UnplacedVolumes, disks: Sequence[MeetingDisk]) -> Overbooking | None:
    """Returns the first disk that outdated status may overbook, or None if the volumes are stale-safe, provided that
    they pack. A disk that takes only optional volumes does not matter.
    """
    for index, disk in enumerate(disks):
        meeting = _meeting(volumes, index, disk)
        if meeting and not _fit_together(volumes, meeting, disk):
            return Overbooking(index, tuple(meeting))
    return None


def missing_bytes(volumes: UnplacedVolumes, disks: Sequence[MeetingDisk]) -> list[int]:
    """Returns the least bytes by which each disk would have to be larger, so that the volumes are stale-safe. A larger
    disk may be met by more volumes. Only sizes count: the volumes must bring no data.
    """
    missing: list[int] = []
    for index, disk in enumerate(disks):
        extra = 0
        while True:
            larger = replace(disk, free=disk.free + extra, reported=disk.reported + extra)
            meeting = _meeting(volumes, index, larger)
            lacking = _bytes_together(volumes, meeting, larger) - larger.free
            if not meeting or lacking <= 0:
                break
            extra += lacking
        missing.append(extra)
    return missing


def _meeting(volumes: UnplacedVolumes, index: int, disk: MeetingDisk) -> list[int]:
    """Returns the volumes that meet on a disk; none if only optional ones do."""
    meeting = [
        volume
        for volume, (size, written) in enumerate(zip(volumes.sizes, volumes.written, strict=True))
        # Those that Longhorn would place here by the oldest status.
        if volumes.allowed[volume] >> index & 1
        and size <= disk.reported
        and (disk.headroom is None or written < disk.headroom)
    ]
    return meeting if meeting and meeting[0] < len(volumes.sizes) - volumes.optional else []


def _fit_together(volumes: UnplacedVolumes, meeting: Sequence[int], disk: MeetingDisk) -> bool:
    if _bytes_together(volumes, meeting, disk) > disk.free:
        return False
    return disk.headroom is None or sum([volumes.written[volume] for volume in meeting]) < disk.headroom


def _bytes_together(volumes: UnplacedVolumes, meeting: Sequence[int], disk: MeetingDisk) -> int:
    size = sum([volumes.sizes[volume] for volume in meeting])
    if disk.copies:
        images = {volumes.images[volume] for volume in meeting}
        size += sum([image_size for image, image_size in disk.copies if image in images])
    return size


class NewVolumes:
    """New volumes that may use any disk. Their stale safety takes a comparison or a look-up per disk. They come in one
    or more parts, such as those of the pod and those of other pods, none of them empty. `optional` ones may also be
    placed elsewhere.
    """

    __slots__ = ("_largest", "_parts", "_smallest", "_total")

    def __init__(self, *parts: Items, optional: Items = _NO_ITEMS) -> None:
        self._parts = (*parts, optional) if optional else parts
        self._total = sum([items.total for items in self._parts])
        self._largest = max([items.largest for items in self._parts])
        self._smallest = min([items.descending[-1] for items in parts])

    def stale_safe(self, free: Sequence[int], reported: Sequence[int]) -> bool:
        """Whether the volumes are stale-safe on disks, as `find_overbooking` would say. `reported` are the free bytes
        by the oldest status.
        """
        for disk_free, disk_reported in zip(free, reported, strict=True):
            # All volumes fit, or none that must be placed goes here, however overbooked the disk is.
            if disk_free >= self._total or disk_reported < self._smallest:
                continue
            if disk_reported >= self._largest:
                return False
            if sum([items.bytes_up_to(disk_reported) for items in self._parts]) > disk_free:
                return False
        return True
