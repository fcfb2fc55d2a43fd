"""How far one replica's allocation is: whether it is placed, requested, and granted or refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from scheduler_core.disk_schedule.conditions import (
    ALLOCATION_PENDING,
    ALLOCATION_REJECTED,
    DISK_ALLOCATION,
    gone_disk,
)
from scheduler_core.model.disk_schedule import Allocation, AllocationState, DiskSchedule
from scheduler_core.model.kube import Condition
from scheduler_core.model.longhorn import Replica, Volume
from scheduler_core.model.quantity import format_bytes


class Stage(Enum):
    """How far the allocation of a replica's current size is; `expansion` decides about growth."""

    UNPLACED = auto()
    UNREQUESTED = auto()
    PENDING = auto()
    REFUSED_NEW = auto()
    REFUSED = auto()
    ALLOCATED = auto()


@dataclass(frozen=True, slots=True)
class ReplicaAllocation:
    """A replica together with its request and allocation."""

    replica: Replica
    # The bytes it needs without growing: its own size; if it has none, what is requested for it, and before that the
    # volume's size.
    current_size: int
    stage: Stage  # how far the allocation of its current size is
    has_request: bool = False  # whether its disk's DiskSchedule has a request for it
    requested: int | None = None  # the bytes of that request, None if there is none that can be read
    allocation: Allocation | None = None  # what its disk granted or rejected, None while the request is pending
    # Why a replica that holds its bytes cannot use them: the condition of its volume; None if it can.
    obstacle: Condition | None = None

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def held(self) -> int:
        return self.allocation.size if self.allocation else 0

    @property
    def in_sync(self) -> bool:
        """Whether exactly the requested bytes are scheduled."""
        # After a rejection they are not: it may answer an earlier request.
        scheduled = self.allocation is not None and self.allocation.state is AllocationState.SCHEDULED
        return scheduled and self.held == self.requested


def replica_allocation(
    volume: Volume, replica: Replica, schedules: Mapping[str, DiskSchedule], disks: Collection[str]
) -> ReplicaAllocation:
    """Determines the stage of a replica. `disks` are the UUIDs that some node's status lists.

    REFUSED_NEW has never run, so it can go elsewhere: its request was rejected, its DiskSchedule is being deleted, there is
    none and no node lists the disk, its disk is gone, or the backing image that it needs is refused there. REFUSED is a
    rejection of a replica with data. A listed disk without a DiskSchedule is PENDING: node sync creates it, or a cache has yet
    to show it.
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
    gone = gone_disk(schedule)
    obstacle: Condition | None = None
    if requested is None or requested < current_size:
        stage = refused if schedule.deleting else Stage.UNREQUESTED
    elif allocation is not None and allocation.size >= current_size:
        stage = Stage.ALLOCATED
        obstacle = _rejection(gone) if gone else _image_obstacle(schedule, volume.backing_image)
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


def _image_obstacle(schedule: DiskSchedule, image: str) -> Condition | None:
    """Returns why a replica's backing image cannot be used on its disk, None if it can or none is needed."""
    allocation = schedule.status.backing_images.get(image)
    if not image or (allocation is not None and allocation.size > 0):
        return None
    size = schedule.spec.backing_images.get(image)
    requested = f" of {format_bytes(size)}" if size else ""
    where = f"disk {schedule.spec.disk} on node {schedule.spec.node}"
    if _refuses_image(schedule, image):
        return _rejection(f"backing image {image}{requested} is refused by {where}")
    message = f"backing image {image}{requested} has no answer from {where} yet"
    return Condition(DISK_ALLOCATION, "False", ALLOCATION_PENDING, message)


def _rejection(message: str) -> Condition:
    return Condition(DISK_ALLOCATION, "False", ALLOCATION_REJECTED, message)


def _refuses_image(schedule: DiskSchedule, image: str) -> bool:
    allocation = schedule.status.backing_images.get(image)
    refused = allocation is not None and allocation.state is AllocationState.REJECTED and not allocation.size
    return refused and image in schedule.spec.backing_images


def has_run(replica: Replica) -> bool:
    """Whether a replica may have data, because it runs or ran."""
    # A replica with data never leaves its disk for lack of space.
    return bool(replica.healthy_at or replica.failed_at) or replica.current_state not in {"", "stopped"}
