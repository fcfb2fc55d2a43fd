"""What is on a disk according to the Replica and BackingImage objects, and how far one replica's allocation is: whether it is
placed, requested, and granted or refused.

A DiskSchedule records requests and grants. After a first start, or after a DiskSchedule was lost, objects are on the disk that
have not requested anything yet, and requests do not say which of them have data. So everything that promises bytes of a disk
also reads its occupancy:

    node sync      creates a DiskSchedule with the requests of all occupants, in one POST (`reconcile.new_schedule`)
    allocation     serves occupants with data first, and reserves what they lack (`allocation.allocate`)
    volumes        count what occupants lack as taken before they choose a disk (`allocation.taken_bytes`)
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from enum import Enum, auto

from scheduler_core.disk_schedule import writes
from scheduler_core.model import kube, longhorn, quantity
from scheduler_core.model.disk_schedule import (
    Adoption,
    Allocation,
    AllocationState,
    BackingImageCopies,
    DiskSchedule,
    DiskScheduleSpec,
    RequestKind,
)
from scheduler_core.structs import Struct


class Stage(Enum):
    """How far the allocation of a replica's current size is; `expansion` decides about growth."""

    UNPLACED = auto()
    UNREQUESTED = auto()
    PENDING = auto()
    REFUSED_NEW = auto()
    REFUSED = auto()
    ALLOCATED = auto()


class ReplicaAllocation(Struct, frozen=True):
    """A replica together with its request and allocation."""

    replica: longhorn.Replica
    # The bytes it needs without growing: its own size; if it has none, what is requested for it, and before that the
    # volume's size.
    current_size: int
    stage: Stage  # how far the allocation of its current size is
    has_request: bool = False  # whether its disk's DiskSchedule has a request for it
    requested: int | None = None  # the bytes of that request, None if there is none that can be read
    allocation: Allocation | None = None  # what its disk granted or rejected, None while the request is pending
    # Why a replica that holds its bytes cannot use them: the condition of its volume; None if it can.
    obstacle: kube.Condition | None = None

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def held(self) -> int:
        return self.allocation.size if self.allocation else 0

    @property
    def rejected(self) -> bool:
        return self.allocation is not None and self.allocation.state is AllocationState.REJECTED

    @property
    def in_sync(self) -> bool:
        """Whether exactly the requested bytes are scheduled."""
        # After a rejection they are not: it may answer an earlier request.
        scheduled = self.allocation is not None and self.allocation.state is AllocationState.SCHEDULED
        return scheduled and self.held == self.requested


def replica_allocation(
    volume: longhorn.Volume, replica: longhorn.Replica, schedules: Mapping[str, DiskSchedule], disks: Collection[str]
) -> ReplicaAllocation:
    """Determines the stage of a replica. `disks` are the UUIDs that some node's status lists. REFUSED_NEW has never
    run, so it can go elsewhere: its request was rejected, its DiskSchedule is being deleted, there is none and no node
    lists the disk, its disk is gone, or the backing image that it needs is refused there. REFUSED is a rejection of a
    replica with data. A listed disk without a DiskSchedule is PENDING: node sync creates it, or a cache has yet to show
    it.
    """
    schedule = schedules.get(replica.disk_id)
    requested = schedule.spec.replicas.get(replica.name) if schedule else None
    current_size = replica.size or min(requested or volume.size, volume.size)
    if not replica.node_id or not replica.disk_id:
        return ReplicaAllocation(replica, current_size, Stage.UNPLACED)
    has_data = has_run(replica)
    refused = Stage.REFUSED if has_data else Stage.REFUSED_NEW
    if schedule is None:
        return ReplicaAllocation(replica, current_size, Stage.PENDING if replica.disk_id in disks else refused)
    allocation = schedule.status.replicas.get(replica.name)
    gone = writes.gone_disk(schedule)
    obstacle: kube.Condition | None = None
    if requested is None or requested < current_size:
        stage = refused if schedule.deleting else Stage.UNREQUESTED
    elif allocation is not None and allocation.size >= current_size:
        stage = Stage.ALLOCATED
        obstacle = (
            writes.unallocated_condition(writes.ALLOCATION_REJECTED, gone)
            if gone
            else _image_obstacle(schedule, volume.backing_image)
        )
    else:
        rejected = allocation is not None and allocation.state is AllocationState.REJECTED
        stage = refused if rejected else Stage.PENDING
    if not has_data and (gone or _refuses_image(schedule, volume.backing_image)):
        stage = Stage.REFUSED_NEW
    return ReplicaAllocation(
        replica,
        current_size,
        stage,
        has_request=replica.name in schedule.spec.replicas,
        requested=requested,
        allocation=allocation,
        obstacle=obstacle,
    )


def _image_obstacle(schedule: DiskSchedule, image: str) -> kube.Condition | None:
    allocation = schedule.status.backing_images.get(image)
    if not image or (allocation is not None and allocation.size > 0):
        return None
    size = schedule.spec.backing_images.get(image)
    requested = f" of {quantity.format_bytes(size)}" if size else ""
    where = f"disk {schedule.spec.disk} on node {schedule.spec.node}"
    if _refuses_image(schedule, image):
        return writes.unallocated_condition(
            writes.ALLOCATION_REJECTED, f"backing image {image}{requested} is refused by {where}"
        )
    message = f"backing image {image}{requested} has no answer from {where} yet"
    return writes.unallocated_condition(writes.ALLOCATION_PENDING, message)


def _refuses_image(schedule: DiskSchedule, image: str) -> bool:
    allocation = schedule.status.backing_images.get(image)
    refused = allocation is not None and allocation.state is AllocationState.REJECTED and not allocation.size
    return refused and image in schedule.spec.backing_images


def has_run(replica: longhorn.Replica) -> bool:
    # A replica with data never leaves its disk for lack of space.
    return bool(replica.healthy_at or replica.failed_at) or replica.current_state not in {"", "stopped"}


NOT_STARTED = frozenset({"", "pending"})
"""States of a copy that has not begun."""


class Occupant(Struct, frozen=True):
    """A replica, or a copy of a backing image, that is placed on a disk."""

    size: int  # bytes it needs there, without a growth
    has_data: bool = True  # whether it may have data there, so that it never leaves for lack of space
    backing_image: str = ""  # the backing image that a replica needs on its disk; "" for none

    @property
    def waits_for(self) -> str:
        """The backing image that must be granted together with a replica; "" if it needs none, or if it has data."""
        return "" if self.has_data else self.backing_image


class DiskOccupancy(Struct, frozen=True):
    """The occupants of one disk, by name."""

    replicas: Mapping[str, Occupant] = {}
    backing_images: Mapping[str, Occupant] = {}

    def occupants(self, kind: RequestKind) -> Mapping[str, Occupant]:
        return self.replicas if kind is RequestKind.REPLICA else self.backing_images

    def with_adoption(self, adoption: Adoption, spec: DiskScheduleSpec) -> "DiskOccupancy":
        """The occupancy, in which the adopted objects that still request space have data. The caches of Replicas may be
        older than the DiskSchedule, which knew better when it was created.
        """
        if not adoption.replicas and not adoption.backing_images:
            return self
        occupants = {kind: dict(self.occupants(kind)) for kind in RequestKind}
        for kind, of_kind in occupants.items():
            for name in adoption.sizes(kind):
                requested = spec.requests(kind).get(name)
                if requested and (name not in of_kind or not of_kind[name].has_data):
                    size = min(requested, of_kind[name].size) if name in of_kind else requested
                    of_kind[name] = Occupant(size)
        return DiskOccupancy(occupants[RequestKind.REPLICA], occupants[RequestKind.BACKING_IMAGE])


NO_OCCUPANTS = DiskOccupancy()


def replica_occupant(replica: longhorn.Replica, volume: longhorn.Volume | None) -> Occupant | None:
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
    replicas: Iterable[longhorn.Replica], volumes: Mapping[str, longhorn.Volume], images: Iterable[BackingImageCopies]
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
