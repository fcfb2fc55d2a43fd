"""DiskSchedule (longhorn.io/v1beta2): the space requested and allocated on one disk. Sizes are in bytes. Its name is
the disk's UUID. Controllers that need space write the spec; only the DiskSchedule controller writes the status.
"""

from collections.abc import Callable, Mapping
from enum import Enum

from scheduler_core.model.kube import Condition
from scheduler_core.structs import Struct, field, replace

FINALIZER = "longhorn.io"


class AllocationState(Enum):
    """The decision about a request; one that is in the spec but not in the status is pending."""

    SCHEDULED = "scheduled"
    REJECTED = "rejected"


class RequestKind(Enum):
    """A kind of object that requests space, by its word in messages. Backing images come first in every order."""

    BACKING_IMAGE = "backing image"
    REPLICA = "replica"


class Allocation(Struct, frozen=True):
    """The answer to a request, and the space it holds: a rejected growth keeps its old size, a rejected new one 0."""

    state: AllocationState
    size: int


class Fault(Struct, frozen=True):
    """What is wrong with an object."""

    field: str  # the path of the field, "" for the whole object
    problem: str  # why it cannot be used
    in_status: bool = False  # whether the field was read as if it were absent, and is written again

    def __str__(self) -> str:
        return f"{self.field} {self.problem}" if self.field else self.problem


Requests = Mapping[str, int | None]
Allocations = Mapping[str, Allocation]


class DiskScheduleSpec(Struct, frozen=True):
    """A disk, and the bytes requested on it, by name; None is a size that cannot be read."""

    disk: str = ""
    node: str = ""
    replicas: Requests = {}
    backing_images: Requests = {}

    def requests(self, kind: RequestKind) -> Requests:
        return self.replicas if kind is RequestKind.REPLICA else self.backing_images

    def with_requests(self, requests: Callable[[RequestKind], Requests]) -> "DiskScheduleSpec":
        replicas, images = map(requests, (RequestKind.REPLICA, RequestKind.BACKING_IMAGE))
        return replace(self, replicas=replicas, backing_images=images)


class DiskScheduleStatus(Struct, frozen=True):
    """The answers to the requests. `storage_scheduled` is the sum of all allocated bytes. `storage_available` is the
    limit that they were decided by, None before the first decision.
    """

    replicas: Allocations = {}
    backing_images: Allocations = {}
    storage_scheduled: int = 0
    conditions: tuple[Condition, ...] = ()
    storage_available: int | None = None

    def allocations(self, kind: RequestKind) -> Allocations:
        return self.replicas if kind is RequestKind.REPLICA else self.backing_images

    def with_allocations(self, allocations: Callable[[RequestKind], Allocations]) -> "DiskScheduleStatus":
        replicas, images = map(allocations, (RequestKind.REPLICA, RequestKind.BACKING_IMAGE))
        return replace(self, replicas=replicas, backing_images=images)


class Adoption(Struct, frozen=True):
    """What was on a disk when its DiskSchedule was created, by name. The value is the bytes that an earlier
    DiskSchedule of the disk had granted; 0 if that is not known, but there is data.
    """

    replicas: Mapping[str, int] = {}
    backing_images: Mapping[str, int] = {}

    def sizes(self, kind: RequestKind) -> Mapping[str, int]:
        return self.replicas if kind is RequestKind.REPLICA else self.backing_images


class DiskSchedule(Struct, frozen=True):
    """One DiskSchedule."""

    name: str  # the disk's UUID
    spec: DiskScheduleSpec = field(default_factory=DiskScheduleSpec)
    status: DiskScheduleStatus = field(default_factory=DiskScheduleStatus)
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    faults: tuple[Fault, ...] = ()  # fields of it that could not be read
    mirrored: bool = False  # whether it only shows what Longhorn allocates by itself
    # Whether longhorn-manager's own controller answers it (longhorn-manager pull request 4366).
    owned_by_longhorn: bool = False
    keeps_requests: bool = False  # whether requests stay although no object has their name
    # What was on the disk when this object was created; it is served first.
    adoption: Adoption = field(default_factory=Adoption)

    @property
    def decided(self) -> bool:
        allocations = any(self.status.allocations(kind) for kind in RequestKind)
        return allocations or self.status.storage_available is not None or bool(self.status.conditions)

    @property
    def empty(self) -> bool:
        return not any(self.spec.requests(kind) or self.status.allocations(kind) for kind in RequestKind)


class BackingImageCopies(Struct, frozen=True):
    """A backing image as its controller sees it."""

    name: str
    size: int = 0  # bytes of one copy (status.realSize); 0 while Longhorn does not know it
    min_copies: int = 1  # minimum number of copies (spec.minNumberOfCopies), at least 1
    wanted_disks: frozenset[str] = frozenset()  # UUIDs of the disks that shall hold a copy (spec.diskFileSpecMap)
    copy_states: Mapping[str, str] = {}  # the state of each reported copy (status.diskFileStatusMap), by disk UUID
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    faults: tuple[Fault, ...] = ()
