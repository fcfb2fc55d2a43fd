"""Whether outdated status may lead Longhorn to overbook a disk of a node (`packing/stale_safe.py`).

This turns a profile and requirements into numbers: per disk the free bytes, and those that Longhorn's status reports. The two differ by
what is promised and not in `storageScheduled` yet: placements in flight and requested growth. It only counts, so it needs no budget.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_core.evaluation.disk_profile import Profile
from scheduler_core.evaluation.fit import AllowedDisks, allowed_masks, optional_items
from scheduler_core.packing import stale_safe as stale_safe_packing
from scheduler_core.packing.items import Items
from scheduler_core.packing.stale_safe import (
    MeetingDisk,
    NewVolumes,
    Overbooking,
    UnplacedVolumes,
    find_overbooking,
)
from scheduler_core.volumes.requirements import Requirements


def stale_safe(required: Requirements, profile: Profile) -> bool:
    """Returns whether no outdated status leads Longhorn to overbook a disk. The answer is only meaningful for a profile
    that fits. Then it implies order safety.
    """
    if not required.sizes:
        return True
    if required.uniform:
        return new_volumes(required).stale_safe(profile.free, profile.reported)
    return overbooking(required, profile) is None


def new_volumes(required: Requirements, *others: Items) -> NewVolumes:
    """Returns uniform volumes, with those of others, as they may meet on a disk."""
    optional = required.optional_items
    return NewVolumes(
        required.items, *others, optional=Items([optional.sizes[index] for index in optional.on_one_disk])
    )


def overbooking(required: Requirements, profile: Profile, allowed: AllowedDisks | None = None) -> Overbooking | None:
    """Returns a disk that cannot take all volumes that may meet on it, None if there is none."""
    # By the oldest status the disk could take each volume alone. The indexes of optional replicas follow those of the
    # required volumes.
    volumes, disks, indexes = _meeting_volumes(required, profile, allowed)
    meeting = find_overbooking(volumes, disks)
    return meeting and Overbooking(meeting.disk, tuple(indexes[index] for index in meeting.volumes))


def missing_bytes(required: Requirements, profile: Profile, allowed: AllowedDisks | None = None) -> Sequence[int]:
    """Returns the least bytes that each open disk lacks for stale safety, in order."""
    # Empty for volumes that bring data, for which more space left to schedule does not suffice.
    if required.classes.rewrites:
        return ()
    volumes, disks, _ = _meeting_volumes(required, profile, allowed)
    return stale_safe_packing.missing_bytes(volumes, disks)


def _meeting_volumes(
    required: Requirements, profile: Profile, allowed: AllowedDisks | None
) -> tuple[UnplacedVolumes, Sequence[MeetingDisk], Sequence[int]]:
    rewrites = required.classes.rewrites
    disks = [
        MeetingDisk(free, reported, headroom if rewrites else None, copies)
        for free, reported, headroom, copies in zip(
            profile.free, profile.reported, profile.headroom, profile.copies, strict=True
        )
    ]
    masks = allowed_masks(required, profile, allowed)
    optional = optional_items(required, profile, allowed)
    first = len(masks)
    # Replicas of one volume that no disk takes together are alike.
    indexes = (*range(first), *(first + index for index in optional.on_one_disk))
    volumes = (*required.volumes, *required.optional_replicas)
    open_disks = (*masks, *(optional.allowed or ()))
    unplaced = UnplacedVolumes(
        sizes=[volumes[index].volume.size for index in indexes],
        written=[volumes[index].volume.actual_size for index in indexes],
        images=[volumes[index].volume.backing_image for index in indexes],
        allowed=[open_disks[index] for index in indexes],
        optional=len(indexes) - first,
    )
    return unplaced, disks, indexes


def without_stale_safe(required: Requirements, profiles: Sequence[Profile]) -> list[Profile]:
    """Returns the profiles that are not stale-safe, in order."""
    new = new_volumes(required) if required.uniform and required.sizes else None
    if new is not None:
        return [profile for profile in profiles if not new.stale_safe(profile.free, profile.reported)]
    return [profile for profile in profiles if not stale_safe(required, profile)]
