"""Writes that decisions about volumes, replicas and backing images return, and callers carry out in order; and the types and reasons
of the conditions that are written.
"""

from collections.abc import Mapping

from scheduler_core.model.disk_schedule import Allocations, DiskSchedule, DiskScheduleSpec, RequestKind, Requests
from scheduler_core.model.kube import Condition, condition
from scheduler_core.model.longhorn import Replica
from scheduler_core.structs import Struct, replace

SCHEDULABLE = "Schedulable"
REQUESTS_VALID = "RequestsValid"
DISK_ALLOCATION = "DiskAllocation"

NODE_MISSING = "NodeMissing"
NODE_UNREADABLE = "NodeUnreadable"
DISK_MISSING = "DiskMissing"
DISK_REPLACED = "DiskReplaced"
DISK_NOT_READY = "DiskNotReady"
DISK_NOT_SCHEDULABLE = "DiskNotSchedulable"
BEING_DELETED = "BeingDeleted"
OVER_ALLOCATED = "OverAllocated"
INVALID_REQUESTS = "InvalidRequests"

ALLOCATION_PENDING = "AllocationPending"
ALLOCATION_REJECTED = "AllocationRejected"
NO_DISK = "NoDiskWithRoom"
BACKING_IMAGE_MISSING = "BackingImageMissing"
BACKING_IMAGE_PENDING = "BackingImagePending"
UNREADABLE = "Unreadable"
PLACE_CONTRADICTED = "PlaceContradicted"
EXPANSION_PENDING = "ExpansionPending"
EXPANSION_GRANTED = "ExpansionGranted"
EXPANSION_REJECTED = "ExpansionRejected"


_GONE = frozenset({NODE_MISSING, DISK_MISSING, DISK_REPLACED})


def gone_disk(schedule: DiskSchedule) -> str:
    # The node is gone, lists no such disk, or lists a different one under its name.
    schedulable = condition(schedule.status.conditions, SCHEDULABLE)
    return schedulable.message if schedulable.status == "False" and schedulable.reason in _GONE else ""


def with_condition(conditions: tuple[Condition, ...], wanted: Condition, now: str) -> tuple[Condition, ...]:
    """Returns the conditions with one set, in its place. Its transition time changes only with its status. Conditions
    of other types stay as they are.
    """
    current = next((entry for entry in conditions if entry.type == wanted.type), None)
    since = current.last_transition_time if current and current.status == wanted.status else ""
    wanted = replace(wanted, last_transition_time=since or now)
    if current is None:
        return (*conditions, wanted)
    return tuple(
        wanted if entry is current else entry for entry in conditions if entry is current or entry.type != wanted.type
    )


def unallocated_condition(reason: str, message: str) -> Condition:
    """The condition of a volume that a disk, or some disks, do not serve yet."""
    return Condition(DISK_ALLOCATION, "False", reason, message)


def condition_matches(current: Condition | None, wanted: Condition) -> bool:
    return current is not None and replace(current, last_transition_time="") == replace(wanted, last_transition_time="")


def disk_problem(schedules: Mapping[str, DiskSchedule], uuid: str) -> str:
    """Returns why a disk grants nothing at all, as a sentence for a volume's condition; "" if only space is lacking."""
    schedule = schedules.get(uuid)
    if schedule is None:
        return f"no node lists disk {uuid}"
    schedulable = condition(schedule.status.conditions, SCHEDULABLE)
    return "" if schedulable.status != "False" or schedulable.reason == OVER_ALLOCATED else schedulable.message


class SetRequirement(Struct, frozen=True):
    """Request `size` bytes for `name` on a disk; 0 withdraws the request. A request is withdrawn after its object has
    left the disk, and caches of two kinds are not equally new. So the caller reads the Replica (or BackingImage) from
    the API server, after the DiskSchedule version that it is about to change, and leaves the request alone if the
    object is on this disk and not being deleted.
    """

    disk: str  # the disk's UUID, which is the DiskSchedule's name
    kind: RequestKind  # what `name` is
    name: str  # the Replica or BackingImage
    size: int  # bytes


class AssignReplica(Struct, frozen=True):
    """Write a replica's place into the Replica, "" for none, against the version that was read."""

    replica: str
    node: str = ""
    disk: str = ""
    path: str = ""


class SetReplicaSize(Struct, frozen=True):
    """Write a replica's new size, which its disk has granted, or which needs no grant without a place."""

    replica: str
    size: int


class SetVolumeCondition(Struct, frozen=True):
    """Set the volume's condition."""

    condition: Condition


class ChangeCopies(Struct, frozen=True):
    """Add and remove disks in a backing image's spec, against the version that was read."""

    image: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class RemoveFinalizer(Struct, frozen=True):
    """Remove Longhorn's finalizer from the Replica or BackingImage, once everything that it held is released."""

    kind: RequestKind
    name: str


Write = SetRequirement | AssignReplica | SetReplicaSize | SetVolumeCondition | ChangeCopies | RemoveFinalizer


def set_requirement(spec: DiskScheduleSpec, kind: RequestKind, name: str, size: int) -> DiskScheduleSpec:
    """Returns the spec with `size` bytes requested; 0 withdraws the request. The same spec object if nothing changes. A
    backing image's name is the key on every disk, because all of its copies are equally large. Raises a ValueError if
    the size is negative, which is a caller's fault and never written.
    """
    if size < 0:
        raise ValueError(f"{kind.value} {name}: a requirement of {size} bytes")
    requests = spec.requests(kind)
    if requests.get(name, 0) == size and (name in requests) == (size > 0):
        return spec
    changed: Requests = {key: value for key, value in requests.items() if key != name}
    if size:
        changed = {**changed, name: size}
    return replace(spec, replicas=changed) if kind is RequestKind.REPLICA else replace(spec, backing_images=changed)


def release_replica(replica: Replica, schedules: Mapping[str, DiskSchedule]) -> tuple[Write, ...]:
    """Returns the writes that release a replica that is being deleted; none for any other replica. The finalizer is
    removed last, so that a replica never disappears while it has a request.
    """
    if not replica.deleting:
        return ()
    name = replica.name
    withdrawals = tuple(
        SetRequirement(uuid, RequestKind.REPLICA, name, 0)
        for uuid, schedule in sorted(schedules.items())
        if name in schedule.spec.replicas
    )
    # Without the finalizer nothing would be left that says what to withdraw.
    return (*withdrawals, RemoveFinalizer(RequestKind.REPLICA, name))


def changed_names(before: Allocations, after: Allocations) -> frozenset[str]:
    """Returns the names whose allocation differs: only their volumes (or backing images) are reconciled."""
    return frozenset(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
