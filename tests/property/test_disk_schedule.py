"""The allocation rule, compared with a model that tries every set of requests, and with itself."""

import itertools

from hypothesis import given, strategies as st

from scheduler_core.disk_schedule.allocation import Limit, allocate, claimed_bytes
from scheduler_core.disk_schedule.disk_space import account
from scheduler_core.disk_schedule.occupancy import DiskOccupancy, Occupant
from scheduler_core.disk_schedule.writes import set_requirement
from scheduler_core.model.disk_schedule import (
    Allocation,
    AllocationState,
    DiskSchedule,
    DiskScheduleSpec,
    DiskScheduleStatus,
    RequestKind,
)
from scheduler_core.model.longhorn import Disk, Replica
from tests.examples import examples

names = st.sampled_from("abcde")
sizes = st.integers(0, 12)
requests = st.dictionaries(names, st.none() | sizes)
answers = st.dictionaries(names, st.builds(Allocation, st.sampled_from(AllocationState), sizes))
specs = st.builds(DiskScheduleSpec, replicas=requests, backing_images=requests)
statuses = st.builds(DiskScheduleStatus, replicas=answers, backing_images=answers)
limits = st.builds(Limit, st.none() | st.integers(-5, 60), st.sampled_from(["", "", "", "DiskPressure"]))


def answers_by_key(status: DiskScheduleStatus) -> dict[tuple[RequestKind, str], Allocation]:
    return {(kind, name): entry for kind in RequestKind for name, entry in status.allocations(kind).items()}


def requests_by_key(spec: DiskScheduleSpec) -> dict[tuple[RequestKind, str], int | None]:
    return {(kind, name): size for kind in RequestKind for name, size in spec.requests(kind).items()}


def allocate_by_brute_force(
    spec: DiskScheduleSpec, status: DiskScheduleStatus, limit: Limit
) -> dict[tuple[RequestKind, str], Allocation]:
    """The answers, after trying every set of requests. Of all sets that fit together, the one that grants the first
    request counts, then the second, and so on.
    """
    requested = {key: size for key, size in requests_by_key(spec).items() if size != 0}
    before = answers_by_key(status)
    result = {key: before[key] for key in requested if key in before}
    for key, size in requested.items():
        if size is not None and key in before and before[key].size >= size:
            result[key] = Allocation(AllocationState.SCHEDULED, size)
    held = {key: result[key].size if key in result else 0 for key in requested}
    missing = {key: size - held[key] for key, size in requested.items() if size is not None and size > held[key]}
    order = sorted(missing, key=lambda key: (held[key] == 0, key[0] is RequestKind.REPLICA, key[1]))
    room = -1 if limit.available is None or limit.reason else limit.available - sum(held.values())
    grants = next(
        choice
        for choice in itertools.product((True, False), repeat=len(order))  # sets with the first request come first
        if not any(choice) or sum(missing[key] for key, grant in zip(order, choice, strict=True) if grant) <= room
    )
    if limit.available is not None or limit.reason:
        for key, grant in zip(order, grants, strict=True):
            state = AllocationState.SCHEDULED if grant else AllocationState.REJECTED
            result[key] = Allocation(state, held[key] + (missing[key] if grant else 0))
    unreadable = [key for key, size in requested.items() if size is None]
    return result | {key: Allocation(AllocationState.REJECTED, held[key]) for key in unreadable}


@examples(500)
@given(specs, statuses, limits)
def test_allocation_equals_the_model(spec: DiskScheduleSpec, status: DiskScheduleStatus, limit: Limit) -> None:
    after = allocate(spec, status, limit)
    model = allocate_by_brute_force(spec, status, limit)
    assert answers_by_key(after) == model
    assert list(after.replicas) == sorted(after.replicas)
    assert after.storage_scheduled == sum(entry.size for entry in answers_by_key(after).values())


@given(specs, statuses, st.integers(0, 60), st.integers(1, 12))
def test_a_request_that_would_be_granted_is_granted_next(
    spec: DiskScheduleSpec, status: DiskScheduleStatus, available: int, size: int
) -> None:
    """Whatever is held or pending, once the disk has answered the earlier requests."""
    limit = Limit(available)
    schedule = DiskSchedule("u", spec, allocate(spec, status, limit))
    if limit.grants(claimed_bytes(schedule), size):
        spec = set_requirement(spec, RequestKind.REPLICA, "A", size)  # sorts before all others
        after = allocate(spec, schedule.status, limit)
        assert after.replicas["A"] == Allocation(AllocationState.SCHEDULED, size)


@given(
    specs,
    statuses,
    st.dictionaries(names, sizes),
    st.dictionaries(names, sizes),
    st.dictionaries(names, sizes),
    st.integers(0, 60),
)
def test_each_name_counts_with_its_claim_at_least_and_its_largest_size_at_most(  # noqa: PLR0917
    spec: DiskScheduleSpec,
    status: DiskScheduleStatus,
    listed: dict[str, int],
    placed: dict[str, int],
    images: dict[str, int],
    available: int,
) -> None:
    unlisted = {name: size for name, size in placed.items() if name not in listed}
    disk = Disk(
        "d",
        uuid="u",
        storage_available=available,
        storage_scheduled=sum(listed.values()) + sum(images.values()),
        scheduled_replicas=listed,
        scheduled_backing_images=images,
    )
    schedule = DiskSchedule("u", spec, status)
    accounting = account(disk, schedule, [Replica(name, "v", size) for name, size in unlisted.items()])
    total = disk.storage_scheduled + accounting.uncounted
    largest: dict[tuple[RequestKind, str], int] = {}
    for kind, objects in ((RequestKind.REPLICA, {**unlisted, **listed}), (RequestKind.BACKING_IMAGE, images)):
        for name in objects.keys() | spec.requests(kind).keys() | status.allocations(kind).keys():
            answer = status.allocations(kind).get(name)
            sizes = (objects.get(name, 0), spec.requests(kind).get(name) or 0, answer.size if answer else 0)
            largest[kind, name] = max(sizes)
    assert claimed_bytes(schedule) <= total <= sum(largest.values())
    assert available - sum(largest.values()) <= accounting.free <= available - claimed_bytes(schedule)


occupants = st.dictionaries(
    names, st.builds(Occupant, st.integers(1, 12), st.booleans(), st.sampled_from(["", "", *"abcde"]))
)
copies = st.dictionaries(names, st.builds(Occupant, st.integers(1, 12), st.booleans()))
occupancies = st.builds(DiskOccupancy, occupants, copies)


def lacking_bytes(status: DiskScheduleStatus, occupancy: DiskOccupancy) -> int:
    """What occupants with data do not hold."""
    held = answers_by_key(status)
    return sum(
        max(0, occupant.size - (held[kind, name].size if (kind, name) in held else 0))
        for kind in RequestKind
        for name, occupant in occupancy.occupants(kind).items()
        if occupant.has_data
    )


@examples(150)
@given(specs, statuses, limits, occupancies)
def test_what_is_on_the_disk_comes_first(
    spec: DiskScheduleSpec, status: DiskScheduleStatus, limit: Limit, occupancy: DiskOccupancy
) -> None:
    """A grant that is more than an occupant with data needs leaves room for all that the others lack. A new replica is granted only with
    its image. Also where they wait for each other, allocating again changes nothing.
    """
    after = allocate(spec, status, limit, occupancy)
    assert allocate(spec, after, limit, occupancy) == after
    before = answers_by_key(status)
    for (kind, name), entry in answers_by_key(after).items():
        held = before[kind, name].size if (kind, name) in before else 0
        occupant = occupancy.occupants(kind).get(name)
        if entry.size > held and not (occupant and occupant.has_data and entry.size <= occupant.size):
            assert limit.available is not None
            assert after.storage_scheduled + lacking_bytes(after, occupancy) <= limit.available
        is_new = not held and occupant is not None and not occupant.has_data
        if kind is RequestKind.REPLICA and entry.size and is_new and occupant and occupant.backing_image:
            image = after.backing_images.get(occupant.backing_image)
            assert image
            assert image.size
