"""The allocation rule: which requests of a DiskSchedule are granted, and which bytes count on the disk.

After `allocate` the sum of everything held exceeds `storageAvailable` only if it did before: then nothing is granted,
and nothing is taken back either, because the bytes may be written. A rejected request is decided again each time.

Requests come from objects that have data on the disk (`occupancy`), and from newcomers. The bytes that an object with data
lacks are reserved: no newcomer and no growth gets them, whether the object has requested them already or not. A new replica
and the backing image that it needs on the disk are granted together, or neither is.
"""

from collections.abc import Sequence

from scheduler_core.disk_schedule.occupancy import NO_OCCUPANTS, DiskOccupancy
from scheduler_core.model.disk_schedule import (
    Allocation,
    Allocations,
    AllocationState,
    DiskSchedule,
    DiskScheduleSpec,
    DiskScheduleStatus,
    RequestKind,
    Requests,
)
from scheduler_core.model.quantity import MAX_BYTES
from scheduler_core.structs import Struct, replace

_Key = tuple[RequestKind, str]
_HOLDS_NOTHING = Allocation(AllocationState.REJECTED, 0)


class Limit(Struct, frozen=True):
    """How much may be granted on a disk."""

    available: int | None  # storageAvailable in bytes; None if it is not known: then requests stay as they are
    # Why every request is refused, whatever its size, as a condition's reason; "" if requests may be granted.
    reason: str = ""
    message: str = ""  # the same as a sentence
    # Whether requests stay as they are although there is a reason, because a successor decides soon.
    deferred: bool = False

    @property
    def undecided(self) -> bool:
        """Whether requests stay as they are: neither granted nor rejected."""
        return self.deferred or (self.available is None and not self.reason)

    def grants(self, held: int, additional: int) -> bool:
        return not self.reason and self.available is not None and held + additional <= self.available


def allocate(
    spec: DiskScheduleSpec, status: DiskScheduleStatus, limit: Limit, occupancy: DiskOccupancy = NO_OCCUPANTS
) -> DiskScheduleStatus:
    """Decides which requests are granted and returns the next status. First, withdrawn requests are released and
    smaller requests shrink. Then requests are served one by one: those of occupants with data, up to the size they
    have; those that hold something and want to grow; then the others. Within each, backing images come before replicas,
    then names decide. Each is granted as a whole if the total, and what occupants with data lack, then still is at most
    `limit.available`, and rejected otherwise: a rejected growth keeps what it holds. A size that cannot be read is
    rejected the same way. A new replica whose backing image has no request on this disk yet stays pending. The
    conditions stay as they are.
    """
    draft = _Draft(spec, status, limit, occupancy)
    unsatisfied = [
        (kind, name)
        for kind in RequestKind
        for name, size in sorted(spec.requests(kind).items(), key=lambda request: request[0])
        if size is None or size > draft.size((kind, name))
    ]
    for kind, name in sorted(unsatisfied, key=lambda key: (not draft.restores(key), draft.size(key) == 0)):
        draft.serve(kind, name)
    status = status.with_allocations(
        lambda kind: {
            name: draft.held[kind, name] for name in sorted(name for each, name in draft.held if each is kind)
        }
    )
    return replace(status, storage_scheduled=min(draft.total, MAX_BYTES))


class _Draft:
    def __init__(
        self, spec: DiskScheduleSpec, status: DiskScheduleStatus, limit: Limit, occupancy: DiskOccupancy
    ) -> None:
        self.held: dict[_Key, Allocation] = {}  # the allocations by kind and name
        for kind in RequestKind:
            for name, size in spec.requests(kind).items():
                entry = status.allocations(kind).get(name)
                if entry is not None and size != 0:
                    if size is not None and entry.size >= size:
                        entry = Allocation(AllocationState.SCHEDULED, size)
                    self.held[kind, name] = entry
        self.total = sum(entry.size for entry in self.held.values())  # the sum of all that is held, in bytes
        # Bytes that occupants with data do not hold yet, by kind and name.
        self.lacking = {
            (kind, name): occupant.size - self.size((kind, name))
            for kind in RequestKind
            for name, occupant in occupancy.occupants(kind).items()
            if occupant.has_data and occupant.size > self.size((kind, name))
        }
        self._spec = spec
        self._limit = limit
        self._occupancy = occupancy

    def size(self, key: _Key) -> int:
        return self.held.get(key, _HOLDS_NOTHING).size

    def restores(self, key: _Key) -> bool:
        size = self._spec.requests(key[0])[key[1]]
        return key in self.lacking and size is not None and size <= self.size(key) + self.lacking[key]

    def serve(self, kind: RequestKind, name: str) -> None:
        key = (kind, name)
        size = self._spec.requests(kind)[name]
        if size is None:
            self._reject(key)
        elif self._limit.undecided or self.size(key) >= size:
            return
        elif kind is RequestKind.BACKING_IMAGE:
            self._serve_image(key)
        elif self._may_decide_replica(name):
            self._grant_together([key])

    def _serve_image(self, key: _Key) -> None:
        """Grants a new copy together with a replica that waits for it, or alone if none does."""
        waiting: list[str] = []
        if not self.size(key) and key not in self.lacking:
            waiting = sorted(
                name
                for name, occupant in self._occupancy.replicas.items()
                if occupant.waits_for == key[1] and not self.size((RequestKind.REPLICA, name))
            )
        requests = [name for name in waiting if self._spec.replicas.get(name)]
        if waiting and not requests:
            return
        choices = [[key, (RequestKind.REPLICA, name)] for name in requests] or [[key]]
        if not any(self._grant_together(choice) for choice in choices):
            self._reject(key)

    def _may_decide_replica(self, replica: str) -> bool:
        """Whether a replica's request can be decided as far as its backing image is concerned."""
        key = (RequestKind.REPLICA, replica)
        occupant = self._occupancy.replicas.get(replica)
        if occupant is None or not occupant.waits_for or self.size(key):
            return True
        image = (RequestKind.BACKING_IMAGE, occupant.waits_for)
        if self.size(image):
            return True
        if image in self.held:
            # The image is refused here, and so is the replica.
            self._reject(key)
        return False

    def _grant_together(self, keys: Sequence[_Key]) -> bool:
        sizes = {key: self._spec.requests(key[0])[key[1]] or 0 for key in keys}
        growth = {key: size - self.size(key) for key, size in sizes.items()}
        reserved = 0
        if not all(map(self.restores, keys)):
            reserved = sum(self.lacking.values())
            reserved -= sum(min(self.lacking.get(key, 0), additional) for key, additional in growth.items())
        granted = self._limit.grants(self.total + reserved, sum(growth.values()))
        for key, size in sizes.items():
            if not granted:
                self._reject(key)
                continue
            self.total += growth[key]
            self.held[key] = Allocation(AllocationState.SCHEDULED, size)
            # A request may ask for less than its occupant needs: what it lacks then stays reserved.
            if self.lacking.get(key, 0) > growth[key]:
                self.lacking[key] -= growth[key]
            else:
                self.lacking.pop(key, None)
        return granted

    def _reject(self, key: _Key) -> None:
        self.held[key] = Allocation(AllocationState.REJECTED, self.size(key))


def claims(requests: Requests, allocations: Allocations) -> dict[str, int]:
    return {
        name: claim(requests.get(name), allocations.get(name)) for name in sorted(requests.keys() | allocations.keys())
    }


def claim(size: int | None, entry: Allocation | None) -> int:
    """Returns the bytes of one name that count against the disk."""
    # `size` is the requested size, None without a request that can be read; `entry` is its allocation.
    if entry is None:
        return size or 0
    return entry.size if size is None or entry.state is AllocationState.REJECTED else max(entry.size, size)


def claimed_bytes(schedule: DiskSchedule) -> int:
    return sum(
        sum(claims(schedule.spec.requests(kind), schedule.status.allocations(kind)).values()) for kind in RequestKind
    )


def taken_bytes(schedule: DiskSchedule, occupancy: DiskOccupancy) -> int:
    """Returns the bytes of a disk that a newcomer cannot get. They are what is held or pending, what occupants with
    data lack, and what the other occupants will yet request. A new request that was rejected counts 0: its replica is
    about to leave.
    """
    lacking = 0
    for kind in RequestKind:
        requests = schedule.spec.requests(kind)
        allocations = schedule.status.allocations(kind)
        for name, occupant in occupancy.occupants(kind).items():
            if occupant.has_data or (name not in requests and name not in allocations):
                lacking += max(0, occupant.size - claim(requests.get(name), allocations.get(name)))
    return claimed_bytes(schedule) + lacking
