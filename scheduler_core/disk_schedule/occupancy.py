"""What is on a disk according to the Replica and BackingImage objects.

A DiskSchedule records requests and grants. After a first start, or after a DiskSchedule was lost, objects are on the disk that
have not requested anything yet, and requests do not say which of them have data. So everything that promises bytes of a disk
also reads its occupancy:

    node sync      creates a DiskSchedule with the requests of all occupants, in one POST (`node_sync.new_schedule`)
    allocation     serves occupants with data first, and reserves what they lack (`allocation.allocate`)
    volumes        count what occupants lack as taken before they choose a disk (`allocation.taken_bytes`)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from scheduler_core.disk_schedule.replica_stage import has_run
from scheduler_core.model.disk_schedule import Adoption, BackingImageCopies, DiskScheduleSpec, RequestKind
from scheduler_core.model.longhorn import Replica, Volume

NOT_STARTED: Final = frozenset({"", "pending"})
"""States of a copy that has not begun."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """A replica, or a copy of a backing image, that is placed on a disk."""

    size: int  # bytes it needs there, without a growth
    has_data: bool = True  # whether it may have data there, so that it never leaves for lack of space
    backing_image: str = ""  # the backing image that a replica needs on its disk; "" for none

    @property
    def waits_for(self) -> str:
        """The backing image that must be granted together with a replica; "" if it needs none, or if it has data."""
        return "" if self.has_data else self.backing_image


@dataclass(frozen=True, slots=True)
class DiskOccupancy:
    """The occupants of one disk, by name."""

    replicas: Mapping[str, Occupant] = field(default_factory=dict[str, Occupant])
    backing_images: Mapping[str, Occupant] = field(default_factory=dict[str, Occupant])

    def occupants(self, kind: RequestKind) -> Mapping[str, Occupant]:
        return self.replicas if kind is RequestKind.REPLICA else self.backing_images

    def with_adoption(self, adoption: Adoption, spec: DiskScheduleSpec) -> DiskOccupancy:
        """The occupancy, in which the adopted objects that still request space have data. The caches of Replicas may be
        older than the DiskSchedule, which knew better when it was created.
        """
        if not adoption.replicas and not adoption.backing_images:
            return self
        return DiskOccupancy(
            self._occupants_with_adoption(RequestKind.REPLICA, adoption, spec),
            self._occupants_with_adoption(RequestKind.BACKING_IMAGE, adoption, spec),
        )

    def _occupants_with_adoption(
        self, kind: RequestKind, adoption: Adoption, spec: DiskScheduleSpec
    ) -> dict[str, Occupant]:
        occupants = dict(self.occupants(kind))
        for name in adoption.sizes(kind):
            requested = spec.requests(kind).get(name)
            if requested and (name not in occupants or not occupants[name].has_data):
                size = min(requested, occupants[name].size) if name in occupants else requested
                occupants[name] = Occupant(size)
        return occupants


NO_OCCUPANTS: Final = DiskOccupancy()


def replica_occupant(replica: Replica, volume: Volume | None) -> Occupant | None:
    """Returns a placed replica as an occupant of its disk. A replica without a size of its own needs its volume's. None
    if it is being deleted, has no place, or needs no bytes.
    """
    size = replica.size or (volume.size if volume else 0)
    if replica.deleting or not replica.disk_id or not replica.node_id or size <= 0:
        return None
    if has_run(replica):
        return Occupant(size)
    return Occupant(size, has_data=False, backing_image=volume.backing_image if volume else "")


def image_occupants(image: BackingImageCopies) -> Mapping[str, Occupant]:
    """Returns the copies of a backing image, by disk UUID; none while its size is unknown."""
    if image.deleting or image.size <= 0:
        return {}
    return {
        uuid: Occupant(image.size, has_data=image.copy_states.get(uuid, "") not in NOT_STARTED)
        for uuid in image.wanted_disks | image.copy_states.keys()
    }


def occupancy_by_disk(
    replicas: Iterable[Replica], volumes: Mapping[str, Volume], images: Iterable[BackingImageCopies]
) -> dict[str, DiskOccupancy]:
    """Returns the occupancy of each disk with occupants, by disk UUID."""
    placed_replicas: defaultdict[str, dict[str, Occupant]] = defaultdict(dict)
    placed_images: defaultdict[str, dict[str, Occupant]] = defaultdict(dict)
    for replica in replicas:
        occupant = replica_occupant(replica, volumes.get(replica.volume))
        if occupant is not None:
            placed_replicas[replica.disk_id][replica.name] = occupant
    for image in images:
        for uuid, occupant in image_occupants(image).items():
            placed_images[uuid][image.name] = occupant
    return {
        uuid: DiskOccupancy(placed_replicas.get(uuid, {}), placed_images.get(uuid, {}))
        for uuid in placed_replicas.keys() | placed_images.keys()
    }
