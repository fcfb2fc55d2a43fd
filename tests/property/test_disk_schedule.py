"""The allocation rule against a model that tries every set of requests that might be granted, and against itself."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.disk_schedule.accounting import account
from scheduler_core.disk_schedule.allocation import Limit, allocate, claimed_bytes, would_grant
from scheduler_core.disk_schedule.requests import set_requirement
from scheduler_core.model.disk_schedule import (
    Allocation,
    AllocationState,
    DiskSchedule,
    DiskScheduleSpec,
    DiskScheduleStatus,
    RequestKind,
)
from scheduler_core.model.longhorn import Disk, Replica

NAMES = st.sampled_from("abcde")
SIZES = st.integers(0, 12)
REQUESTS = st.dictionaries(NAMES, st.none() | SIZES)
ANSWERS = st.dictionaries(NAMES, st.builds(Allocation, st.sampled_from(AllocationState), SIZES))
SPECS = st.builds(DiskScheduleSpec, replicas=REQUESTS, backing_images=REQUESTS)
STATUSES = st.builds(DiskScheduleStatus, replicas=ANSWERS, backing_images=ANSWERS)
LIMITS = st.builds(Limit, st.none() | st.integers(-5, 60), st.sampled_from(["", "", "", "DiskPressure"]))


def entries(status: DiskScheduleStatus) -> dict[tuple[RequestKind, str], Allocation]:
    """All answers under one key."""
    return {(kind, name): entry for kind in RequestKind for name, entry in status.allocations(kind).items()}


def asked(spec: DiskScheduleSpec) -> dict[tuple[RequestKind, str], int | None]:
    """All requests under one key."""
    return {(kind, name): size for kind in RequestKind for name, size in spec.requests(kind).items()}


def modelled(
    spec: DiskScheduleSpec, status: DiskScheduleStatus, limit: Limit
) -> dict[tuple[RequestKind, str], Allocation]:
    """The rule by brute force: of all sets of requests that fit together, the one that serves the first, then the second, and so on."""
    wanted, before = {key: size for key, size in asked(spec).items() if size != 0}, entries(status)
    result = {key: before[key] for key in wanted if key in before}
    for key, size in wanted.items():
        if size is not None and key in before and before[key].size >= size:
            result[key] = Allocation(AllocationState.SCHEDULED, size)
    held = {key: result[key].size if key in result else 0 for key in wanted}
    more = {key: size - held[key] for key, size in wanted.items() if size is not None and size > held[key]}
    turns = sorted(more, key=lambda key: (held[key] == 0, key[0] is RequestKind.REPLICA, key[1]))
    room = -1 if limit.available is None or limit.reason else limit.available - sum(held.values())
    granted = next(
        some
        for some in itertools.product((True, False), repeat=len(turns))  # those that serve the first come first
        if not any(some) or sum(more[key] for key, yes in zip(turns, some, strict=True) if yes) <= room
    )
    decided = limit.available is not None or limit.reason
    for key, yes in zip(turns, granted, strict=True):
        if decided:
            result[key] = (
                Allocation(AllocationState.SCHEDULED, held[key] + more[key])
                if yes
                else Allocation(AllocationState.REJECTED, held[key])
            )
    return result | {
        key: Allocation(AllocationState.REJECTED, held[key]) for key, size in wanted.items() if size is None
    }


@given(SPECS, STATUSES, LIMITS)
def test_allocation_is_what_the_model_says(spec: DiskScheduleSpec, status: DiskScheduleStatus, limit: Limit) -> None:
    """Entry by entry, and the total is their sum."""
    after = allocate(spec, status, limit)
    assert entries(after) == modelled(spec, status, limit)
    assert after.storage_scheduled == sum(entry.size for entry in entries(after).values())


@given(SPECS, STATUSES, LIMITS)
def test_nothing_is_granted_beyond_the_limit_and_nothing_held_is_taken_back(
    spec: DiskScheduleSpec, status: DiskScheduleStatus, limit: Limit
) -> None:
    """Whoever gets more keeps the total within the limit; whoever asks on keeps what he holds, up to what he asks."""
    after, before = allocate(spec, status, limit), entries(status)
    more = [key for key, entry in entries(after).items() if entry.size > (before[key].size if key in before else 0)]
    assert not more or (limit.available is not None and after.storage_scheduled <= limit.available)
    for key, size in asked(spec).items():
        if key in before and size != 0:
            kept = before[key].size if size is None else min(size, before[key].size)
            assert entries(after)[key].size >= kept


@given(SPECS, STATUSES, st.integers(0, 60))
def test_what_is_refused_does_not_fit_in_what_is_left(
    spec: DiskScheduleSpec, status: DiskScheduleStatus, available: int
) -> None:
    """No bytes lie idle that somebody asks for."""
    after = allocate(spec, status, Limit(available))
    for key, entry in entries(after).items():
        size = asked(spec)[key]
        if size is not None and entry.state is AllocationState.REJECTED:
            assert after.storage_scheduled + size - entry.size > available


@given(SPECS, STATUSES, LIMITS)
def test_allocating_again_changes_nothing(spec: DiskScheduleSpec, status: DiskScheduleStatus, limit: Limit) -> None:
    """A controller that is woken for nothing writes nothing."""
    once = allocate(spec, status, limit)
    assert allocate(spec, once, limit) == once


@given(SPECS, STATUSES, LIMITS)
def test_the_order_of_the_maps_does_not_matter(
    spec: DiskScheduleSpec, status: DiskScheduleStatus, limit: Limit
) -> None:
    """Equal objects get equal answers, in equal order."""

    def turned(values: Mapping[str, int | None]) -> dict[str, int | None]:
        return dict(reversed(list(values.items())))

    other = replace(spec, replicas=turned(spec.replicas), backing_images=turned(spec.backing_images))
    first, second = allocate(spec, status, limit), allocate(other, status, limit)
    assert list(entries(first).items()) == list(entries(second).items())


@given(SPECS, STATUSES, st.integers(0, 60), st.integers(1, 12))
def test_what_would_be_granted_is_granted_beside_everything_pending(
    spec: DiskScheduleSpec, status: DiskScheduleStatus, available: int, size: int
) -> None:
    """Once the disk has decided the requests that are there, one for which it has room gets it, whatever is held or pending."""
    limit = Limit(available)
    schedule = DiskSchedule("u", spec, allocate(spec, status, limit))
    if would_grant(schedule, limit, size):
        spec = set_requirement(spec, RequestKind.REPLICA, "A", size)  # sorts before all others
        after = allocate(spec, schedule.status, limit)
        assert after.replicas["A"] == Allocation(AllocationState.SCHEDULED, size)


@given(
    SPECS,
    STATUSES,
    st.dictionaries(NAMES, SIZES),
    st.dictionaries(NAMES, SIZES),
    st.dictionaries(NAMES, SIZES),
    st.integers(0, 60),
)
def test_counting_never_counts_a_name_twice_nor_forgets_what_a_disk_schedule_holds(  # noqa: PLR0917
    spec: DiskScheduleSpec,
    status: DiskScheduleStatus,
    listed: dict[str, int],
    placed: dict[str, int],
    images: dict[str, int],
    available: int,
) -> None:
    """Per name at least what the DiskSchedule claims and at most the largest of all three sizes counts."""
    late = {name: size for name, size in placed.items() if name not in listed}
    disk = Disk(
        "d",
        uuid="u",
        storage_available=available,
        storage_scheduled=sum(listed.values()) + sum(images.values()),
        scheduled_replicas=listed,
        scheduled_backing_images=images,
    )
    schedule = DiskSchedule("u", spec, status)
    found = account(disk, schedule, [Replica(name, "v", size) for name, size in late.items()])
    total = disk.storage_scheduled + found.uncounted
    most: dict[tuple[RequestKind, str], int] = {}
    for kind, seen in ((RequestKind.REPLICA, {**late, **listed}), (RequestKind.BACKING_IMAGE, images)):
        for name in seen.keys() | spec.requests(kind).keys() | status.allocations(kind).keys():
            answer = status.allocations(kind).get(name)
            sizes = (seen.get(name, 0), spec.requests(kind).get(name) or 0, answer.size if answer else 0)
            most[kind, name] = max(sizes)
    assert claimed_bytes(schedule) <= total <= sum(most.values())
    assert available - sum(most.values()) <= found.free <= available - claimed_bytes(schedule)
