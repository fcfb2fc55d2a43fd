"""Replicas and copies that are on a disk before they request space: nobody takes their bytes."""

import json
from typing import Any

import pytest

from scheduler_core.convert import disk_schedule as convert
from scheduler_core.disk_schedule.allocation import Limit, allocate, taken_bytes
from scheduler_core.disk_schedule.disk_space import disk_space
from scheduler_core.disk_schedule.occupancy import NO_OCCUPANTS, DiskOccupancy, Occupant, occupancy_by_disk
from scheduler_core.disk_schedule.reconcile import (
    Create,
    Recreate,
    allocation_events,
    new_schedule,
    reconcile,
    sync_disks,
)
from scheduler_core.model.disk_schedule import (
    FINALIZER,
    Adoption,
    Allocation,
    BackingImageCopies,
    DiskSchedule,
    DiskScheduleSpec,
    DiskScheduleStatus,
)
from scheduler_core.model.longhorn import Disk, Node, Replica, Volume
from scheduler_core.structs import replace
from tests.worlds.disk_schedules import READY, grant, rejection

NOW = "2026-01-01T00:00:00Z"
RUNNING = Occupant(20)
NEW = Occupant(20, has_data=False)
CREATE = Create("u", "disk", "n")


def node(available: int = 100) -> Node:
    return Node("n", disks=(Disk("disk", uuid="u", storage_available=available, conditions=READY),))


@pytest.mark.parametrize(
    ("requested", "held", "occupants", "after"),
    [
        pytest.param(
            {"a": 20, "z": 20}, {}, {"z": RUNNING}, {"a": rejection(), "z": grant(20)}, id="data before a lower name"
        ),
        pytest.param(
            {"a": 20}, {}, {"z": RUNNING}, {"a": rejection()}, id="data that requests nothing yet is reserved"
        ),
        pytest.param(
            {"a": 30},
            {"a": grant(10)},
            {"z": RUNNING},
            {"a": rejection(10)},
            id="a growth takes nothing that is reserved",
        ),
        pytest.param(
            {"a": 20, "z": 30},
            {},
            {"z": RUNNING},
            {"a": rejection(), "z": grant(30)},
            id="a growth with data is served",
        ),
        pytest.param({"a": 20, "z": 20}, {}, {"z": NEW}, {"a": grant(20), "z": rejection()}, id="no data: by name"),
        pytest.param(
            {"a": 20, "b": 20},
            {},
            {"a": RUNNING, "b": RUNNING},
            {"a": grant(20), "b": rejection()},
            id="two with data and room for one: by name",
        ),
        pytest.param(
            {"y": 5, "z": 40},
            {},
            {"z": Occupant(40)},
            {"y": rejection(), "z": rejection()},
            id="what data lacks stays reserved although it is refused",
        ),
        pytest.param(
            {"y": 20, "z": 10},
            {},
            {"z": RUNNING},
            {"y": rejection(), "z": grant(10)},
            id="what data lacks stays reserved although its request is for less",
        ),
    ],
)
def test_occupants_with_data_come_first_as_in_this_table(
    requested: dict[str, int | None],
    held: dict[str, Allocation],
    occupants: dict[str, Occupant],
    after: dict[str, Allocation],
) -> None:
    limit = Limit(30)
    occupancy = DiskOccupancy(replicas=occupants)
    status = allocate(DiskScheduleSpec(replicas=requested), DiskScheduleStatus(replicas=held), limit, occupancy)
    assert status.replicas == after
    occupancy = DiskOccupancy(backing_images=occupants)
    spec = DiskScheduleSpec(backing_images=requested)
    assert allocate(spec, DiskScheduleStatus(backing_images=held), limit, occupancy).backing_images == after


@pytest.mark.parametrize(
    ("replicas", "images", "held", "limit", "answers"),
    [
        pytest.param({"r": 2}, {"i": 30}, 0, 25, (rejection(), rejection()), id="room for the replica alone: none"),
        pytest.param({"r": 2}, {"i": 30}, 0, 31, (rejection(), rejection()), id="room for the image alone: none"),
        pytest.param({"r": 2}, {"i": 30}, 0, 32, (grant(2), grant(30)), id="room for both"),
        pytest.param({"r": 2}, {}, 0, 100, (None, None), id="the image has no request yet"),
        pytest.param({}, {"i": 30}, 0, 100, (None, None), id="the replica has no request yet"),
        pytest.param(
            {"q": 9, "r": 2}, {"i": 30}, 0, 33, (grant(2), grant(30)), id="the larger replica is refused alone"
        ),
        pytest.param({"r": 2}, {"i": 30, "other": 5}, 30, 37, (grant(2), grant(30)), id="the image is there already"),
    ],
)
def test_a_replica_and_its_backing_image_are_granted_together_or_not_at_all(
    replicas: dict[str, int | None],
    images: dict[str, int | None],
    held: int,
    limit: int,
    answers: tuple[Allocation | None, Allocation | None],
) -> None:
    occupants = {name: Occupant(size, has_data=False, backing_image="i") for name, size in (("q", 9), ("r", 2))}
    occupancy = DiskOccupancy({name: occupants[name] for name in {*replicas, "r"}})
    before = DiskScheduleStatus(backing_images={"i": grant(held)} if held else {})
    status = allocate(DiskScheduleSpec(replicas=replicas, backing_images=images), before, Limit(limit), occupancy)
    assert (status.replicas.get("r"), status.backing_images.get("i")) == answers
    assert (status.replicas.get("q"), status.backing_images.get("other")) == (
        rejection() if "q" in replicas else None,
        grant(5) if "other" in images else None,
    )


def test_a_replica_with_data_does_not_wait_for_its_backing_image() -> None:
    spec = DiskScheduleSpec(replicas={"r": 20}, backing_images={"i": None})
    occupancy = DiskOccupancy({"r": Occupant(20, has_data=True, backing_image="i")})
    status = allocate(spec, DiskScheduleStatus(), Limit(100), occupancy)
    assert status.replicas == {"r": grant(20)}
    assert allocate(spec, status, Limit(100), occupancy) == status


def test_what_occupants_lack_counts_as_taken() -> None:
    schedule = DiskSchedule(
        "u",
        DiskScheduleSpec("disk", "n", {"held": 20, "refused": 20, "new": 20}),
        DiskScheduleStatus({"held": grant(20), "refused": rejection(), "new": rejection()}),
    )
    occupants = {"held": RUNNING, "refused": RUNNING, "new": NEW, "unrequested": NEW, "silent": Occupant(5)}
    assert taken_bytes(schedule, DiskOccupancy(occupants)) == 20 + 20 + 20 + 5
    assert disk_space(schedule, node(100), DiskOccupancy(occupants)).free == 35


def occupancy_of(*replicas: Replica, volume: Volume | None = None, images: Any = ()) -> DiskOccupancy:
    volumes = {"v": volume} if volume else {}
    return occupancy_by_disk(replicas, volumes, images).get("u", NO_OCCUPANTS)


def test_occupants_are_the_placed_objects() -> None:
    placed = Replica("r", "v", 0, "n", "u")
    volume = Volume("v", 7, backing_image="i")
    assert occupancy_of(placed, volume=volume).replicas == {"r": Occupant(7, has_data=False, backing_image="i")}
    assert occupancy_of(replace(placed, current_state="running"), volume=volume).replicas == {"r": Occupant(7)}
    for none in (replace(placed, deleting=True), replace(placed, disk_id=""), replace(placed, node_id="")):
        assert occupancy_of(none, volume=volume) == NO_OCCUPANTS
    assert occupancy_of(placed) == NO_OCCUPANTS, "its size is not known"
    image = BackingImageCopies("i", 9, wanted_disks=frozenset("u"), copy_states={"u": "pending"})
    assert occupancy_of(images=[image]).backing_images == {"i": Occupant(9, has_data=False)}
    copied = replace(image, wanted_disks=frozenset(), copy_states={"u": "ready"})
    assert occupancy_of(images=[copied]).backing_images == {"i": Occupant(9)}
    assert occupancy_of(images=[replace(image, deleting=True), replace(image, size=0)]) == NO_OCCUPANTS


def test_a_disk_schedule_is_created_with_the_requests_of_all_that_is_there() -> None:
    occupancy = DiskOccupancy({"old": RUNNING, "new": NEW}, {"i": Occupant(9)})
    schedule = new_schedule(CREATE, occupancy)
    assert schedule.spec == DiskScheduleSpec("disk", "n", {"new": 20, "old": 20}, {"i": 9})
    body = convert.new_disk_schedule("longhorn-system", schedule)
    assert convert.read_disk_schedule(json.dumps(body).encode()) == schedule
    status = reconcile(schedule, node(30), NOW).status
    assert status is not None
    assert (status.replicas, status.backing_images) == ({"new": rejection(), "old": grant(20)}, {"i": grant(9)})


def test_a_successor_keeps_requests_and_grants_even_beyond_the_limit() -> None:
    spec = DiskScheduleSpec("disk", "n", {"a": 30, "b": 20, "left": 20}, {"i": 9})
    status = DiskScheduleStatus(
        {"a": rejection(20), "b": grant(20), "left": grant(20)}, {"i": grant(9)}, storage_available=100
    )
    before = DiskSchedule("u", spec, status)
    occupancy = DiskOccupancy({"a": RUNNING, "b": NEW}, {"i": Occupant(9, has_data=False)})
    schedule = new_schedule(CREATE, occupancy, before)
    assert schedule.spec == DiskScheduleSpec("disk", "n", {"a": 30, "b": 20}, {"i": 9})
    after = reconcile(schedule, node(5), NOW).status
    assert after is not None
    assert (after.replicas, after.backing_images) == ({"a": rejection(20), "b": grant(20)}, {"i": grant(9)})
    assert after.storage_scheduled == 49


def test_adopted_grants_are_the_start_of_the_first_decision_only() -> None:
    adoption = Adoption({"a": 20})
    schedule = DiskSchedule("u", DiskScheduleSpec("disk", "n", {}), adoption=adoption)
    status = reconcile(schedule, node(5), NOW).status
    assert status is not None
    again = replace(schedule, status=status, spec=DiskScheduleSpec("disk", "n", {"a": 20}))
    assert (reconcile(again, node(5), NOW).status or status).replicas == {"a": rejection()}


@pytest.mark.parametrize(
    "annotation", ["no json", "[]", '{"replicas": 5}', '{"replicas": {"a": -1}}', '{"backingImages": {"a": "5"}}']
)
def test_an_adoption_that_cannot_be_read_is_a_fault_and_disturbs_nothing_else(annotation: str) -> None:
    body = convert.new_disk_schedule("longhorn-system", DiskSchedule("u", DiskScheduleSpec("disk", "n", {"a": 5})))
    body["metadata"]["annotations"] = {convert.ADOPTION_ANNOTATION: annotation}
    schedule = convert.read_disk_schedule(json.dumps(body).encode())
    assert isinstance(schedule, DiskSchedule)
    assert (schedule.adoption, len(schedule.faults), schedule.spec.replicas) == (Adoption(), 1, {"a": 5})


def test_a_disk_schedule_that_is_deleted_although_its_disk_is_there_is_let_go() -> None:
    deleted = DiskSchedule("u", DiskScheduleSpec("disk", "n", {"a": 5}), finalizers=(FINALIZER,), deleting=True)
    assert sync_disks([node()], {"u": deleted}).changes == (Recreate(deleted),)
    assert sync_disks([node()], {"u": replace(deleted, finalizers=("other",))}).changes == ()
    assert sync_disks([], {"u": deleted}).changes == ()


def test_the_events_of_a_status_name_what_was_granted_rejected_and_released() -> None:
    spec = DiskScheduleSpec("disk", "n", {"a": 30, "b": 20, "c": 9}, {"i": 9})
    before = DiskScheduleStatus({"a": grant(20), "c": rejection(), "gone": grant(5)})
    status = DiskScheduleStatus(
        {"a": rejection(20), "b": grant(20), "c": rejection()},
        {"i": grant(9)},
        storage_scheduled=49,
        storage_available=50,
    )
    events = allocation_events(DiskSchedule("u", spec, before), status)
    assert [(event.reason, event.message, event.normal) for event in events] == [
        ("Granted", "9 for backing image i, 20 for replica b; 49 of 50 are held", True),
        ("Rejected", "10 more for replica a; 49 of 50 are held", False),
        ("Released", "5 of replica gone; 49 of 50 are held", True),
    ]
    assert allocation_events(DiskSchedule("u", spec, status), status) == ()
