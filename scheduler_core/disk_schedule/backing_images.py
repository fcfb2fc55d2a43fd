"""The backing image controller's decision: on which disks copies are wanted, asked for, and may be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_core.disk_schedule.allocation import would_grant
from scheduler_core.disk_schedule.reconcile import NodeRead, limit_of
from scheduler_core.disk_schedule.writes import Copies, Finalize, Require, Write
from scheduler_core.model.disk_schedule import DiskSchedule, ImageCopies, Kind, State
from scheduler_core.model.longhorn import Node

_NOT_STARTED = frozenset({"", "pending"})


@dataclass(frozen=True, slots=True)
class ImageSight:
    """What a decision about a backing image reads.

    Attributes:
        needed: UUIDs of disks with replicas that use the image: a copy must be there, so it is asked for until it is granted
        candidates: UUIDs of disks that Longhorn's rules (tags, eviction, readiness) allow for further copies, best first
        schedules: all DiskSchedules, by disk UUID
        nodes: the Longhorn nodes, by name; one that cannot be read may list any disk
        unasked: by disk UUID, the bytes of what is there already and will yet be asked for
    """

    image: ImageCopies
    schedules: Mapping[str, DiskSchedule]
    nodes: Mapping[str, NodeRead] = field(default_factory=dict[str, NodeRead])
    needed: frozenset[str] = frozenset()
    candidates: Sequence[str] = ()
    unasked: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class ImageDecision:
    """What to do about a backing image: writes in order, the disks it may be copied to, and whether to look again later."""

    writes: tuple[Write, ...] = ()
    ready: frozenset[str] = frozenset()
    waiting: bool = False


def decided(sight: ImageSight) -> ImageDecision:
    """What to write for a backing image.

    The disks are the union of spec and status: a copy that is on a disk occupies it, wanted or not. A copy that was
    rejected before it began is dropped, unless a replica needs it there, and tried on another disk. A DiskSchedule that is
    being deleted is not asked for more; the one that follows it is. While the size is not known nothing can be asked for: one
    copy is made without, because only that tells the size.
    """
    image = sight.image
    if image.deleting:
        return ImageDecision((*_withdrawn(sight, frozenset(sight.schedules)), Finalize(Kind.BACKING_IMAGE, image.name)))
    disks = image.wanted | image.found.keys() | sight.needed
    strays = _withdrawn(sight, sight.schedules.keys() - disks, stray=True)
    added = tuple(sorted(sight.needed - image.wanted))
    if image.size <= 0:
        first = tuple(sight.candidates[:1]) if not disks else ()
        return ImageDecision((*strays, *_copies(image, added or first)), frozenset(sorted(disks)[:1]), waiting=True)
    refused = frozenset(uuid for uuid in image.wanted - sight.needed if _leaves(sight, uuid))
    short = max(1, image.copies) - len(disks - refused)
    more = tuple(uuid for uuid in sight.candidates if uuid not in disks and _would(sight, uuid))[: max(0, short)]
    asked = sorted({*(disks - refused), *more})
    return ImageDecision(
        writes=(
            *strays,
            *_withdrawn(sight, refused),
            *_copies(image, (*added, *more), tuple(sorted(refused))),
            *(
                Require(uuid, Kind.BACKING_IMAGE, image.name, image.size)
                for uuid in asked
                if _can_be_asked(sight, uuid)
            ),
        ),
        ready=frozenset(uuid for uuid in disks - refused if _granted(sight, uuid)),
        waiting=len(more) < short or any(_unwatched(sight, uuid) for uuid in asked),
    )


def _copies(image: ImageCopies, added: tuple[str, ...], dropped: tuple[str, ...] = ()) -> tuple[Write, ...]:
    return (Copies(image.name, added, dropped),) if added or dropped else ()


def _withdrawn(sight: ImageSight, disks: frozenset[str] | set[str], *, stray: bool = False) -> tuple[Write, ...]:
    name = sight.image.name
    return tuple(
        Require(uuid, Kind.BACKING_IMAGE, name, 0, stray=stray)
        for uuid in sorted(disks)
        if uuid in sight.schedules and name in sight.schedules[uuid].spec.backing_images
    )


def _leaves(sight: ImageSight, uuid: str) -> bool:
    """Whether a copy that has not begun cannot be where it is wanted."""
    if sight.image.found.get(uuid, "") not in _NOT_STARTED:
        return False
    if uuid not in sight.schedules:
        return not any(_may_list(node, uuid) for node in sight.nodes.values())
    return sight.schedules[uuid].deleting or _rejected(sight, uuid)


def _may_list(node: NodeRead, uuid: str) -> bool:
    """Whether node sync will create the disk's DiskSchedule, or has and a cache has yet to show it."""
    if isinstance(node, Node):
        return any(disk.uuid == uuid and disk.in_status for disk in node.disks)
    return node is not None


def _can_be_asked(sight: ImageSight, uuid: str) -> bool:
    """Whether a disk is to be asked for another size than it is; not for more while its DiskSchedule is to become empty."""
    schedule, size = sight.schedules.get(uuid), sight.image.size
    if schedule is None:
        return False
    asked = schedule.spec.backing_images.get(sight.image.name)
    return asked != size and not (schedule.deleting and (asked or 0) < size)


def _unwatched(sight: ImageSight, uuid: str) -> bool:
    """Whether what a copy waits for wakes nobody: room on its disk, or a DiskSchedule that is not there yet."""
    schedule = sight.schedules.get(uuid)
    if schedule is None:
        return True
    return _rejected(sight, uuid) or (schedule.deleting and not _granted(sight, uuid))


def _rejected(sight: ImageSight, uuid: str) -> bool:
    schedule, name = sight.schedules[uuid], sight.image.name
    answer = schedule.status.backing_images.get(name)
    return answer is not None and answer.state is State.REJECTED and name in schedule.spec.backing_images


def _granted(sight: ImageSight, uuid: str) -> bool:
    schedule = sight.schedules.get(uuid)
    answer = schedule.status.backing_images.get(sight.image.name) if schedule else None
    return answer is not None and answer.size >= sight.image.size


def _would(sight: ImageSight, uuid: str) -> bool:
    schedule = sight.schedules.get(uuid)
    if schedule is None:
        return False
    size = sight.image.size + sight.unasked.get(uuid, 0)
    return would_grant(schedule, limit_of(schedule, sight.nodes.get(schedule.spec.node)), size)
