"""The decisions of the volume, replica and backing image controllers, case by case."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest

from scheduler_core.convert import disk_schedule as convert
from scheduler_core.disk_schedule import backing_images, volumes
from scheduler_core.disk_schedule.backing_images import ImageDecision, ImageSnapshot
from scheduler_core.disk_schedule.occupancy import occupancy_by_disk
from scheduler_core.disk_schedule.reconcile import NodeLookup
from scheduler_core.disk_schedule.volumes import VolumeDecision, VolumeSnapshot
from scheduler_core.disk_schedule.writes import (
    AssignReplica,
    ChangeCopies,
    RemoveFinalizer,
    SetReplicaSize,
    SetRequirement,
    SetVolumeCondition,
    Write,
    changed_names,
    release_replica,
)
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.model import disk_schedule as ds, longhorn as lh
from scheduler_core.model.kube import Condition
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.structs import replace
from tests.worlds.disk_schedules import READY, disk_spaces, grant, rejection

NOW = "2026-01-01T00:00:00Z"
Entry = tuple[int, ds.Allocation | None]


def node(name: str, available: int = 100) -> lh.Node:
    """A node with one disk of that many bytes; its UUID is the node's name in capitals."""
    disk = lh.Disk(
        "disk",
        uuid=name.upper(),
        path="/data",
        allow_scheduling=True,
        spec_type=lh.FILESYSTEM,
        storage_maximum=10_000,
        storage_available=available + 2500,  # Longhorn keeps 25 % of the maximum
        conditions=READY,
    )
    return lh.Node(name, allow_scheduling=True, conditions=READY, disks=(disk,))


def schedule(name: str, kind: ds.RequestKind = ds.RequestKind.REPLICA, **entries: Entry) -> ds.DiskSchedule:
    """A node's DiskSchedule with requests and answers; another replica holds 2,500 bytes."""
    requests: dict[str, int | None] = {key: size for key, (size, _) in entries.items()}
    answers = {key: answer for key, (_, answer) in entries.items() if answer is not None}
    held_by_another = {"other": grant(2500)}
    if kind is ds.RequestKind.REPLICA:
        spec = ds.DiskScheduleSpec("disk", name, replicas={**requests, "other": 2500})
        status = ds.DiskScheduleStatus(replicas={**answers, **held_by_another})
    else:
        spec = ds.DiskScheduleSpec("disk", name, replicas={"other": 2500}, backing_images=requests)
        status = ds.DiskScheduleStatus(replicas=held_by_another, backing_images=answers)
    return ds.DiskSchedule(name.upper(), spec, status)


def replica_on(name: str, size: int = 50, *, has_data: bool = False, number: int = 0, **fields: Any) -> lh.Replica:
    """A replica on a node's disk, "" for none; with `has_data` it was healthy."""
    healthy = "2026-01-01T00:00:00Z" if has_data else ""
    return lh.Replica(f"r{number}", "v", size, name, name.upper(), healthy_at=healthy, **fields)


def decide(
    replicas: list[lh.Replica],
    schedules: list[ds.DiskSchedule],
    *,
    size: int = 50,
    condition: Condition | None = None,
    nodes: dict[str, lh.Node] | None = None,
    others: tuple[lh.Replica, ...] = (),
    images: tuple[lh.BackingImage, ...] = (),
    unreadable_nodes: Mapping[str, NodeLookup] = MappingProxyType({}),
    created: str = "",
    **volume: Any,
) -> VolumeDecision:
    """Decides about the volume `v` in a cluster of the nodes a and b.

    `others` are replicas of other volumes, `images` are copied backing images.
    """
    objects = Snapshot(
        longhorn_nodes=nodes or {name: node(name) for name in "ab"},
        replicas={entry.name: entry for entry in (*others, *replicas)},
        backing_images={entry.name: entry for entry in images},
    )
    cluster = Cluster.of(objects, datetime(2026, 1, 1, tzinfo=UTC))
    schedules_by_uuid = {entry.name: entry for entry in schedules}
    described = lh.Volume("v", size, len(replicas), **volume)
    copies = [ds.BackingImageCopies(each.name, each.real_size, wanted_disks=frozenset(each.disks)) for each in images]
    occupancy = occupancy_by_disk((*others, *replicas), {"v": described}, copies)
    space = disk_spaces(schedules_by_uuid, {**cluster.nodes, **unreadable_nodes}, occupancy)
    snapshot = VolumeSnapshot(cluster, described, tuple(replicas), schedules_by_uuid, space, condition, created=created)
    return volumes.decide_volume(snapshot, NOW)


def request(disk: str, size: int, name: str = "r0") -> SetRequirement:
    return SetRequirement(disk, ds.RequestKind.REPLICA, name, size)


def object_writes(decision: VolumeDecision) -> list[Write]:
    return [write for write in decision.writes if not isinstance(write, SetVolumeCondition)]


def condition_of(decision: VolumeDecision) -> Condition:
    report = decision.writes[0]
    assert isinstance(report, SetVolumeCondition)
    return report.condition


def message(decision: VolumeDecision) -> str:
    return condition_of(decision).message


def reason(decision: VolumeDecision) -> str:
    return condition_of(decision).reason


TO_A = [AssignReplica("r0", "a", "A", "/data"), request("A", 50)]
TO_B = [AssignReplica("r0", "b", "B", "/data"), request("B", 50)]


def test_a_new_replica_is_assigned_to_the_disk_with_most_room_before_the_request() -> None:
    """In the opposite order a request would leak if the controller is killed in between."""
    decision = decide([replica_on("")], [schedule("a", x=(20, None)), schedule("b")])
    assert object_writes(decision) == TO_B
    assert (reason(decision), decision.ready, decision.requeue) == ("AllocationPending", frozenset(), False)


def test_a_pending_request_is_waited_for() -> None:
    decision = decide([replica_on("a")], [schedule("a", r0=(50, None)), schedule("b")])
    assert (object_writes(decision), decision.ready) == ([], frozenset())


def test_a_rejected_replica_without_another_disk_loses_its_place_and_is_reported() -> None:
    """The decision is repeated, because no watch event follows from free space."""
    decision = decide([replica_on("a")], [schedule("a", r0=(50, rejection())), schedule("b", x=(90, None))])
    assert object_writes(decision) == [AssignReplica("r0")]
    assert (reason(decision), decision.requeue) == ("NoDiskWithRoom", True)


def test_a_rejected_replica_with_data_keeps_its_place_and_request() -> None:
    """It is reported; moving it would lose the data."""
    decision = decide([replica_on("a", has_data=True)], [schedule("a", r0=(50, rejection())), schedule("b")])
    assert object_writes(decision) == []
    assert (reason(decision), decision.ready, decision.requeue) == ("AllocationRejected", frozenset(), True)


def test_a_granted_replica_may_start_and_the_condition_is_true() -> None:
    decision = decide([replica_on("a")], [schedule("a", r0=(50, grant(50))), schedule("b")])
    assert decision.writes == (SetVolumeCondition(Condition("DiskAllocation", "True", last_transition_time=NOW)),)
    assert decision.ready == {"r0"}
    current = Condition("DiskAllocation", "True", last_transition_time="earlier")
    assert decide([replica_on("a")], [schedule("a", r0=(50, grant(50)))], condition=current).writes == ()


def test_a_replica_without_data_leaves_a_disk_that_no_node_lists() -> None:
    assert object_writes(decide([replica_on("gone")], [schedule("b")])) == TO_B
    assert object_writes(decide([replica_on("gone", has_data=True)], [schedule("b")])) == []


def test_the_missing_disk_schedule_of_a_listed_disk_is_waited_for() -> None:
    decision = decide([replica_on("a")], [schedule("b")])
    assert object_writes(decision) == []
    assert (reason(decision), decision.ready, decision.requeue) == ("AllocationPending", frozenset(), True)


def test_a_replica_returns_to_a_disk_once_its_old_answer_there_is_released() -> None:
    """The answer looks like a grant, so the replica could start before its request is written again."""
    left = replace(schedule("a"), status=ds.DiskScheduleStatus(replicas={"other": grant(2500), "r0": grant(50)}))
    full = schedule("b", x=(60, grant(60)))
    assert object_writes(decide([replica_on("")], [left, full])) == []
    assert "has yet to release" in message(decide([replica_on("")], [left, full]))
    assert object_writes(decide([replica_on("")], [schedule("a"), full]))[0] == TO_A[0]


def test_replicas_that_are_deleted_or_wait_for_an_attachment_get_no_writes() -> None:
    assert object_writes(decide([replica_on("a", deleting=True)], [schedule("a", r0=(50, grant(50)))])) == []
    assert decide([replica_on("a")], [schedule("a")], deleting=True) == VolumeDecision()
    both = [schedule("a"), schedule("b", x=(20, None))]
    assert object_writes(decide([replica_on("")], both, data_locality=lh.STRICT_LOCAL)) == []
    attached = decide([replica_on("")], both, data_locality=lh.STRICT_LOCAL, node_id="b")
    assert object_writes(attached) == TO_B


@pytest.mark.parametrize("locality", [lh.BEST_EFFORT, lh.STRICT_LOCAL])
def test_the_message_says_whether_a_volume_waits_for_its_attachment(locality: str) -> None:
    idle = decide([replica_on("")], [schedule("a")], data_locality=locality)
    assert reason(idle) == "AllocationPending"
    assert message(idle) == "waiting for the volume to be attached, then for room for replica r0"
    both = decide([replica_on(""), replica_on("a", number=1)], [schedule("a", r1=(50, None))], data_locality=locality)
    assert message(both) == "waiting for 50 for replica r1 on disk disk on node a"


UNREADY = Condition("Schedulable", "False", "DiskNotReady", "Disk disk on node a has Ready False")
FULL = Condition(
    "Schedulable", "False", "OverAllocated", "Disk disk is over-allocated on node a: 2 are scheduled, 1 are"
)


def close_disk(schedule: ds.DiskSchedule, condition: Condition = UNREADY) -> ds.DiskSchedule:
    return replace(schedule, status=replace(schedule.status, conditions=(condition,)))


def test_the_message_about_a_refused_replica_with_data_has_the_reason() -> None:
    room = "disk disk on node a has 20 left, no room for 50 for replica r0, which has data there"
    refused = schedule("a", r0=(50, rejection()), x=(80, grant(80)))
    assert message(decide([replica_on("a", has_data=True)], [refused])) == room
    assert message(decide([replica_on("a", has_data=True)], [close_disk(refused, FULL)])) == room
    refusal = "it cannot grant 50 for replica r0, which has data there"
    assert message(decide([replica_on("a", has_data=True)], [close_disk(refused)])) == f"{UNREADY.message}: {refusal}"
    assert message(decide([replica_on("gone", has_data=True)], [])) == f"no node lists disk GONE: {refusal}"


def test_a_replica_on_a_node_that_is_not_its_disk_s_is_reported_and_stays() -> None:
    replica = replace(replica_on("b", has_data=True), disk_id="A")
    decision = decide([replica], [schedule("a", r0=(50, grant(50))), schedule("b")])
    assert object_writes(decision) == []
    assert (reason(decision), decision.ready, decision.requeue) == ("PlaceContradicted", frozenset({"r0"}), True)
    assert message(decision) == "replica r0 is said to be on node b, but its disk A is on node a"


def test_a_replica_without_a_size_gets_one_when_it_is_placed() -> None:
    """Otherwise it would always seem to have the volume's size."""
    decision = decide([replica_on("", 0)], [schedule("a")])
    assert object_writes(decision) == [
        SetReplicaSize("r0", 50),
        AssignReplica("r0", "a", "A", "/data"),
        request("A", 50),
    ]


def test_a_replica_without_a_size_takes_part_in_an_expansion() -> None:
    replicas = [replica_on("a", 0, has_data=True), GROWING[1]]
    decision = decide(replicas, [schedule("a", r0=(50, grant(50))), schedule("b", r1=(50, grant(50)))], size=80)
    assert object_writes(decision) == [SetReplicaSize("r0", 50), request("A", 80), request("B", 80, "r1")]
    assert reason(decision) == "ExpansionPending"


def nodes_listing_disk_a(*ready: str) -> dict[str, lh.Node]:
    """The nodes a and b, which both list disk A; it is ready on these nodes."""
    disk = node("a").disks[0]
    return {
        name: replace(node(name), disks=(replace(disk, conditions=READY if name in ready else ()),)) for name in "ab"
    }


@pytest.mark.parametrize("place", ["", "a"], ids=["new", "refused"])
def test_a_disk_that_two_nodes_list_is_used_only_on_its_disk_schedule_s_node(place: str) -> None:
    """The disk's controller would refuse it for the other node, again and again."""
    replica = replace(replica_on(place), disk_id="A" if place else "")
    refused: dict[str, Entry] = {"r0": (50, rejection())} if place else {}
    schedules = [schedule("a", ds.RequestKind.REPLICA, **refused)]
    decision = decide([replica], schedules, nodes=nodes_listing_disk_a("b"))
    assert not [write for write in decision.writes if isinstance(write, AssignReplica) and write.disk]
    assert (reason(decision), decision.requeue) == ("NoDiskWithRoom", True)
    settled = decide([replica_on("")], [schedule("a")], nodes=nodes_listing_disk_a("a", "b"))
    assert object_writes(settled) == TO_A


def test_a_new_replica_leaves_the_room_of_replicas_and_copies_without_requests() -> None:
    """Granted before one that runs, it would leave that without space."""
    old = lh.Replica("z", "other", 60, "b", "B", healthy_at=NOW)
    both = [schedule("a", x=(40, grant(40))), schedule("b")]
    assert object_writes(decide([replica_on("")], both, others=(old,))) == TO_A
    requested = [schedule("a", x=(40, grant(40))), schedule("b", z=(30, None))]
    assert object_writes(decide([replica_on("")], requested, others=(replace(old, size=30),)))[0] == TO_B[0]
    deleted = replace(old, deleting=True)
    assert object_writes(decide([replica_on("")], both, others=(deleted,)))[0] == TO_B[0]
    image = lh.BackingImage("i", disks=("B",), real_size=60)
    assert object_writes(decide([replica_on("")], both, images=(image,)))[0] == TO_A[0]


GROWING = [replica_on("a", has_data=True), replica_on("b", has_data=True, number=1)]
PENDING = Condition("DiskAllocation", "False", "ExpansionPending", "waiting for all disks to answer for 80 per replica")
REJECTED = Condition(
    "DiskAllocation",
    "False",
    "ExpansionRejected",
    "the volume cannot grow to 80: no room on disk disk on node b (50 left, 30 more needed)",
)


def decide_expansion(a: Entry, b: Entry, condition: Condition | None = PENDING) -> VolumeDecision:
    """Decides about a volume of 50 bytes with two replicas that is to have 80."""
    return decide(GROWING, [schedule("a", r0=a), schedule("b", r1=b)], size=80, condition=condition)


def test_an_expansion_requests_every_disk_before_any_size_is_written() -> None:
    """The condition is written first, so that the direction is known after a kill."""
    decision = decide_expansion((50, grant(50)), (50, grant(50)), None)
    assert decision.writes == (
        SetVolumeCondition(replace(PENDING, last_transition_time=NOW)),
        request("A", 80),
        request("B", 80, "r1"),
    )


@pytest.mark.parametrize(
    "b", [(80, grant(50)), (50, rejection(50))], ids=["no answer yet", "the answer to an earlier request"]
)
def test_an_expansion_is_held_until_every_disk_has_answered(b: Entry) -> None:
    for a in ((80, grant(80)), (80, rejection(50))):
        assert object_writes(decide_expansion(a, b)) == []
        assert decide_expansion(a, b).ready == {"r0", "r1"}


def test_an_expansion_that_all_disks_granted_writes_the_sizes() -> None:
    decision = decide_expansion((80, grant(80)), (80, grant(80)))
    assert object_writes(decision) == [SetReplicaSize("r0", 80), SetReplicaSize("r1", 80)]
    assert reason(decision) == "ExpansionGranted"


def test_an_expansion_that_one_disk_rejected_is_rolled_back_and_reported() -> None:
    decision = decide_expansion((80, grant(80)), (80, rejection(50)))
    assert object_writes(decision) == [request("A", 50), request("B", 50, "r1")]
    assert (reason(decision), message(decision)) == ("ExpansionRejected", REJECTED.message)
    assert decision.requeue


@pytest.mark.parametrize("b", [(50, rejection()), (50, None)], ids=["refused", "not answered yet"])
@pytest.mark.parametrize("a", [(50, grant(50)), (80, grant(80))], ids=["not requested yet", "granted"])
def test_an_expansion_also_requests_a_disk_that_does_not_hold_the_old_size(a: Entry, b: Entry) -> None:
    """Otherwise the grants of the other disks would not let the volume grow."""
    decision = decide_expansion(a, b, None)
    assert object_writes(decision) == [*([request("A", 80)] if a[0] == 50 else []), request("B", 80, "r1")]
    assert reason(decision) == "ExpansionPending"
    assert decision.ready == {"r0"}


def test_an_expansion_is_refused_by_a_disk_that_does_not_even_hold_the_old_size() -> None:
    schedules = [schedule("a", r0=(80, grant(80))), schedule("b", r1=(80, rejection()))]
    decision = decide([*GROWING, replica_on("", number=2)], schedules, size=80, condition=PENDING)
    assert not [write for write in decision.writes if isinstance(write, SetReplicaSize)]
    assert object_writes(decision)[:2] == [request("A", 50), request("B", 50, "r1")]
    assert message(decision) == REJECTED.message
    assert decision.requeue


@pytest.mark.parametrize("b", [(50, rejection()), (50, None)], ids=["refused", "not answered yet"])
def test_a_rolled_back_expansion_rests_while_a_disk_does_not_hold_the_old_size(b: Entry) -> None:
    assert decide_expansion((50, grant(50)), b, REJECTED).writes == ()
    assert decide_expansion((50, grant(50)), b, REJECTED).requeue


def test_an_expansion_is_refused_if_a_disk_is_gone() -> None:
    replicas = [GROWING[0], replica_on("gone", has_data=True, number=1)]
    decision = decide(replicas, [schedule("a", r0=(80, grant(80)))], size=80, condition=PENDING)
    assert object_writes(decision) == [request("A", 50)]
    assert message(decision) == "the volume cannot grow to 80: no node lists disk GONE"


def test_an_expansion_waits_for_the_disk_schedule_of_a_listed_disk() -> None:
    decision = decide(GROWING, [schedule("a", r0=(80, grant(80)))], size=80, condition=PENDING)
    assert (decision.writes, decision.requeue) == ((), True)


def test_an_expansion_lets_a_replica_without_data_get_a_place_first() -> None:
    """Refused more than its present size, it would leave a disk that has room for it."""
    replicas = [GROWING[0], replica_on("b", number=1)]
    decision = decide(replicas, [schedule("a", r0=(80, grant(80))), schedule("b", r1=(50, None))], size=80)
    assert (object_writes(decision), reason(decision)) == ([], "ExpansionPending")


def test_a_rolled_back_expansion_is_retried_once_every_disk_would_grant_it() -> None:
    """Until then nothing is written."""
    assert decide_expansion((50, grant(50)), (50, grant(50)), REJECTED).writes[1:] == (
        request("A", 80),
        request("B", 80, "r1"),
    )
    full = [schedule("a", r0=(50, grant(50))), schedule("b", r1=(50, grant(50)), x=(45, grant(45)))]
    resting = decide(GROWING, full, size=80, condition=replace(REJECTED, message=REJECTED.message.replace("50", "5")))
    assert (resting.writes, resting.requeue) == ((), True)


def test_a_second_size_that_does_not_fit_either_is_not_requested() -> None:
    schedules = [schedule("a", r0=(50, grant(50))), schedule("b", r1=(50, grant(50)), x=(45, grant(45)))]
    full = decide(GROWING, schedules, size=70, condition=REJECTED)
    assert (object_writes(full), message(full)) == (
        [],
        "the volume cannot grow to 70: no room on disk disk on node b (5 left, 20 more needed)",
    )
    both = decide(
        GROWING, [close_disk(schedule("a", r0=(80, rejection(50)))), schedules[1]], size=70, condition=REJECTED
    )
    assert message(both) == (
        f"the volume cannot grow to 70: {UNREADY.message}; no room on disk disk on node b (5 left, 20 more needed)"
    )


def test_a_second_size_waits_until_the_disks_hold_the_old_size_again() -> None:
    decision = decide(
        GROWING, [schedule("a", r0=(50, grant(80))), schedule("b", r1=(50, grant(50)))], size=70, condition=REJECTED
    )
    assert message(decision) == "the volume cannot grow to 70: its disks are asked for the old size first"


def test_a_roll_back_continues_after_a_kill() -> None:
    assert object_writes(decide_expansion((50, grant(80)), (80, rejection(50)), REJECTED)) == [request("B", 50, "r1")]


def test_a_granted_expansion_continues_after_a_kill() -> None:
    granted = replace(PENDING, reason="ExpansionGranted", message="all disks granted 80 per replica")
    replicas = [replica_on("a", 80, has_data=True), GROWING[1]]
    schedules = [schedule("a", r0=(80, grant(80))), schedule("b", r1=(80, grant(80)))]
    assert object_writes(decide(replicas, schedules, size=80, condition=granted)) == [SetReplicaSize("r1", 80)]


def test_only_a_deleted_replica_is_released_and_its_finalizer_is_removed_last() -> None:
    """Its requests go first: a finalizer that stays is removed later, a request that stays would leak."""
    schedules = {"A": schedule("a", r0=(50, grant(50))), "B": schedule("b")}
    assert release_replica(replica_on("a"), schedules) == ()
    assert release_replica(replica_on("a", deleting=True), schedules) == (
        request("A", 0),
        RemoveFinalizer(ds.RequestKind.REPLICA, "r0"),
    )
    assert release_replica(replica_on("", deleting=True), {}) == (RemoveFinalizer(ds.RequestKind.REPLICA, "r0"),)


def test_the_replicas_whose_answers_changed_are_named() -> None:
    before = {"a": grant(1), "b": rejection(), "c": grant(1)}
    after = {"a": grant(1), "b": grant(2), "d": rejection()}
    assert changed_names(before, after) == {"b", "c", "d"}


def image(*wanted_disks: str, **fields: Any) -> ds.BackingImageCopies:
    """A backing image of 50 bytes."""
    return ds.BackingImageCopies("i", **{"size": 50, "wanted_disks": frozenset(wanted_disks), **fields})


@pytest.mark.parametrize(
    ("created", "reasons"),
    [
        ("2025-12-31T23:59:58Z", []),
        ("2025-12-31T23:59:57Z", ["AllocationPending"]),
        ("2026-01-01T01:00:00Z", ["AllocationPending"]),
        ("", ["AllocationPending"]),
    ],
    ids=["new", "takes long", "by a clock that is ahead", "unknown"],
)
def test_a_new_volume_gets_no_condition_while_it_is_being_placed(created: str, reasons: list[str]) -> None:
    placed = decide([replica_on("")], [schedule("a")], created=created)
    waiting = decide([replica_on("a")], [schedule("a", r0=(50, None))], created=created)
    for decision in (placed, waiting):
        assert [write.condition.reason for write in decision.writes if isinstance(write, SetVolumeCondition)] == reasons
    assert waiting.requeue


@pytest.mark.parametrize(("created", "conditions"), [(NOW, 0), ("2025-12-31T23:59:57Z", 1)], ids=["new", "takes long"])
def test_a_new_volume_is_not_allocated_before_its_replicas_exist(created: str, conditions: int) -> None:
    decision = decide([], [schedule("a")], created=created)
    assert (len(decision.writes), decision.requeue) == (conditions, not conditions)


def test_a_new_volume_says_at_once_what_no_event_ends_soon() -> None:
    allocated = decide([replica_on("a")], [schedule("a", r0=(50, grant(50)))], created=NOW)
    full = decide([replica_on("")], [schedule("a", x=(90, grant(90)))], created=NOW)
    idle = decide([replica_on("")], [schedule("a")], data_locality="strict-local", created=NOW)
    assert [reason(each) for each in (allocated, full, idle)] == ["", "NoDiskWithRoom", "AllocationPending"]


def decide_image(
    image: ds.BackingImageCopies, *schedules: ds.DiskSchedule, needed: str = "", candidates: str = "AB"
) -> ImageDecision:
    """Decides about a backing image in a cluster of the nodes a and b."""
    schedules_by_uuid = {entry.name: entry for entry in schedules}
    nodes: dict[str, NodeLookup] = {name: node(name) for name in "ab"}
    space = disk_spaces(schedules_by_uuid, nodes, {})
    return backing_images.decide_image(
        ImageSnapshot(image, schedules_by_uuid, nodes, frozenset(needed), tuple(candidates), space)
    )


def test_a_new_copy_leaves_room_for_replicas_without_requests() -> None:
    """Their requests follow, and might be granted after that of the copy."""
    schedules = {"A": schedule("a"), "B": schedule("b")}
    nodes: dict[str, NodeLookup] = {name: node(name) for name in "ab"}
    old = lh.Replica("r", "v", 51, "a", "A", healthy_at=NOW)
    space = disk_spaces(schedules, nodes, occupancy_by_disk([old], {}, []))
    decision = backing_images.decide_image(ImageSnapshot(image(), schedules, nodes, frozenset(), ("A", "B"), space))
    assert ChangeCopies("i", ("B",)) in decision.writes


def image_schedule(name: str, *entry: Any) -> ds.DiskSchedule:
    return schedule(name, ds.RequestKind.BACKING_IMAGE, **({"i": entry} if entry else {}))


def image_request(disk: str, size: int) -> SetRequirement:
    return SetRequirement(disk, ds.RequestKind.BACKING_IMAGE, "i", size)


def with_old_answer(entry: ds.DiskSchedule) -> ds.DiskSchedule:
    return replace(entry, status=replace(entry.status, backing_images={"i": grant(50)}))


@pytest.mark.parametrize(
    ("decision", "writes", "ready"),
    [
        pytest.param(
            decide_image(image(), image_schedule("a"), image_schedule("b")),
            (ChangeCopies("i", ("A",)), image_request("A", 50)),
            "",
            id="chosen, then requested",
        ),
        pytest.param(
            decide_image(image("A"), image_schedule("a"), image_schedule("b")),
            (image_request("A", 50),),
            "",
            id="chosen before a kill",
        ),
        pytest.param(
            decide_image(image("A"), image_schedule("a", 50, None), image_schedule("b")), (), "", id="pending"
        ),
        pytest.param(
            decide_image(image("A"), image_schedule("a", 50, grant(50)), image_schedule("b")), (), "A", id="granted"
        ),
        pytest.param(
            decide_image(image("A"), image_schedule("a", 50, rejection()), image_schedule("b")),
            (ChangeCopies("i", ("B",), ("A",)), image_request("B", 50)),
            "",
            id="rejected, moved to another disk",
        ),
        pytest.param(
            decide_image(
                image("A", copy_states={"A": "ready"}), image_schedule("a", 50, rejection()), image_schedule("b")
            ),
            (),
            "",
            id="rejected, but copied already",
        ),
        pytest.param(
            decide_image(image("A"), image_schedule("a", 50, rejection()), image_schedule("b"), needed="A"),
            (),
            "",
            id="rejected, but a replica needs it",
        ),
        pytest.param(
            decide_image(
                image("A", copy_states={"A": "ready"}),
                image_schedule("a", 50, grant(50)),
                image_schedule("b"),
                needed="B",
            ),
            (ChangeCopies("i", ("B",)), image_request("B", 50)),
            "A",
            id="a replica needs it elsewhere",
        ),
        pytest.param(
            decide_image(image("A", min_copies=2), image_schedule("a", 50, grant(50)), image_schedule("b")),
            (ChangeCopies("i", ("B",)), image_request("B", 50)),
            "A",
            id="too few copies",
        ),
        pytest.param(
            decide_image(image("A"), image_schedule("a", 50, grant(50)), image_schedule("b", 50, grant(50))),
            (image_request("B", 0),),
            "A",
            id="a request on a disk that the image has left",
        ),
        pytest.param(
            decide_image(
                image("A", copy_states={"A": "ready"}),
                image_schedule("a", 50, grant(50)),
                with_old_answer(image_schedule("b")),
                needed="B",
            ),
            (),
            "A",
            id="a replica needs it where an old answer is not released yet",
        ),
        pytest.param(
            decide_image(image(), with_old_answer(image_schedule("a"))),
            (),
            "",
            id="chosen again only after an old answer is released",
        ),
        pytest.param(
            decide_image(image(copy_states={"B": "ready"}), image_schedule("a"), image_schedule("b")),
            (image_request("B", 50),),
            "",
            id="a copy outside the spec counts",
        ),
        pytest.param(
            decide_image(image("A", size=0), image_schedule("a"), image_schedule("b")),
            (),
            "A",
            id="the size is unknown before the first copy",
        ),
        pytest.param(
            decide_image(
                image("A", copy_states={"B": "ready"}, deleting=True),
                image_schedule("a", 50, grant(50)),
                image_schedule("b", 50, rejection()),
            ),
            (image_request("A", 0), image_request("B", 0), RemoveFinalizer(ds.RequestKind.BACKING_IMAGE, "i")),
            "",
            id="deleted: spec and status disks",
        ),
    ],
)
def test_backing_images_are_decided_as_in_this_table(
    decision: ImageDecision, writes: tuple[Write, ...], ready: str
) -> None:
    assert (decision.writes, decision.ready) == (writes, frozenset(ready))


def test_a_copy_leaves_a_disk_without_disk_schedule_only_if_no_node_lists_it() -> None:
    """Node sync creates that of a listed disk; until then the decision is repeated."""
    assert decide_image(image("A"), image_schedule("b")) == ImageDecision(requeue=True)
    assert decide_image(image("GONE"), image_schedule("b")).writes == (
        ChangeCopies("i", ("B",), ("GONE",)),
        image_request("B", 50),
    )


def test_the_decision_about_an_image_without_a_disk_with_room_is_repeated() -> None:
    decision = decide_image(image(), schedule("a", x=(90, None)), schedule("b", x=(90, None)))
    shortage = "no room for 1 more copy of 50: disk disk on node a has 10 left; disk disk on node b has 10 left"
    assert decision == ImageDecision(requeue=True, shortage=shortage)


def test_written_objects_keep_the_fields_of_other_controllers() -> None:
    volume = {"metadata": {"name": "v"}, "status": {"state": "attached", "conditions": [{"type": "Scheduled"}]}}
    body = convert.with_volume_condition(json.dumps(volume).encode(), PENDING)
    assert body["status"]["conditions"][0] == {"type": "Scheduled"}
    assert body["status"]["state"] == "attached"
    assert convert.volume_condition(json.dumps(body).encode(), "DiskAllocation") == PENDING
    assert convert.volume_condition(b'{"status": 5}', "DiskAllocation") is None
    replica = json.dumps({"metadata": {"name": "r0"}, "spec": {"volumeName": "v", "volumeSize": "5"}}).encode()
    assert convert.with_replica_fields(replica, place=("a", "A", "/data"))["spec"] == {
        "volumeName": "v",
        "volumeSize": "5",
        "nodeID": "a",
        "diskID": "A",
        "diskPath": "/data",
    }
    assert convert.with_replica_fields(replica, size=80)["spec"] == {"volumeName": "v", "volumeSize": "80"}
    spec = {"diskFileSpecMap": {"A": {"evictionRequested": True}, "B": {}}, "sourceType": "download"}
    raw = json.dumps({"metadata": {"name": "i"}, "spec": spec, "status": {"realSize": 50}}).encode()
    assert convert.backing_image_copies(raw) == image("A", "B")
    assert convert.with_copies(raw, ("C",), ("B",))["spec"] == {
        "diskFileSpecMap": {"A": {"evictionRequested": True}, "C": {"evictionRequested": False}},
        "sourceType": "download",
    }


@pytest.mark.parametrize(
    ("place", "labels"),
    [
        (("a", "A", "/data"), {"longhornnode": "a", "longhorndiskuuid": "A"}),
        (("", "", ""), {"longhornnode": "", "longhorndiskuuid": ""}),
        (None, {"longhornnode": "b", "longhorndiskuuid": "B"}),
    ],
    ids=["placed", "taken off", "only resized"],
)
def test_labels_of_a_replica_follow_its_place(place: tuple[str, str, str] | None, labels: dict[str, str]) -> None:
    old_labels = {"longhornvolume": "v", "longhornnode": "b", "longhorndiskuuid": "B"}
    raw = json.dumps({"metadata": {"name": "r0", "labels": old_labels}, "spec": {"volumeName": "v"}}).encode()
    body = convert.with_replica_fields(raw, place=place, size=80)
    assert body["metadata"]["labels"] == {"longhornvolume": "v", **labels}


def gone(reason: str) -> Condition:
    return Condition("Schedulable", "False", reason, f"Disk disk on node a: {reason}")


@pytest.mark.parametrize("missing", ["NodeMissing", "DiskMissing", "DiskReplaced"])
def test_a_granted_replica_leaves_a_disk_that_is_gone_unless_it_has_data(missing: str) -> None:
    dead = close_disk(schedule("a", r0=(50, grant(50))), gone(missing))
    nodes = {"b": node("b")}
    moved = decide([replica_on("a")], [dead, schedule("b")], nodes=nodes)
    assert object_writes(moved) == TO_B
    stays = decide([replica_on("a", has_data=True)], [dead, schedule("b")], nodes=nodes)
    assert object_writes(stays) == []
    assert (reason(stays), message(stays)) == ("AllocationRejected", f"Disk disk on node a: {missing}")
    assert (stays.ready, stays.requeue) == (frozenset(), True)


def test_a_place_without_request_is_given_up_if_the_disk_has_no_room_any_more() -> None:
    decision = decide([replica_on("a")], [schedule("a", x=(60, grant(60))), schedule("b")])
    assert object_writes(decision) == TO_B
    data = decide([replica_on("a", has_data=True)], [schedule("a", x=(60, grant(60))), schedule("b")])
    assert object_writes(data) == [request("A", 50)], "data stays"


IMAGE = lh.BackingImage("i", real_size=30)


def test_a_replica_goes_where_its_backing_image_fits_too() -> None:
    room = [schedule("a", x=(30, grant(30))), schedule("b")]
    decision = decide([replica_on("", 60)], room, size=60, images=(IMAGE,), backing_image="i")
    assert object_writes(decision) == [AssignReplica("r0", "b", "B", "/data"), request("B", 60)]
    full = [schedule("a", x=(30, grant(30))), schedule("b", x=(20, grant(20)))]
    nowhere = decide([replica_on("", 60)], full, size=60, images=(IMAGE,), backing_image="i")
    assert message(nowhere) == (
        "no disk can be asked for room for replica r0, which needs 60 and 30 for backing image i: "
        "disk disk on node b has 80 left; disk disk on node a has 70 left"
    )


def with_image(entry: ds.DiskSchedule, requested: int, answer: ds.Allocation | None) -> ds.DiskSchedule:
    spec = replace(entry.spec, backing_images={"i": requested})
    answers = {"i": answer} if answer else {}
    return replace(entry, spec=spec, status=replace(entry.status, backing_images=answers))


def test_a_replica_leaves_a_disk_that_refuses_its_backing_image_unless_it_has_data() -> None:
    refused = with_image(schedule("a", r0=(50, grant(50))), 30, rejection())
    moved = decide([replica_on("a")], [refused, schedule("b")], images=(IMAGE,), backing_image="i")
    assert object_writes(moved) == TO_B
    stays = decide([replica_on("a", has_data=True)], [refused, schedule("b")], images=(IMAGE,), backing_image="i")
    assert (reason(stays), message(stays)) == (
        "AllocationRejected",
        "backing image i of 30 is refused by disk disk on node a",
    )


def test_a_volume_is_allocated_only_together_with_its_backing_image() -> None:
    for answer, expected in ((grant(30), "True"), (None, "False")):
        here = with_image(schedule("a", r0=(50, grant(50))), 30, answer)
        decision = decide([replica_on("a")], [here], images=(IMAGE,), backing_image="i")
        assert condition_of(decision).status == expected


@pytest.mark.parametrize(
    ("images", "expected", "text"),
    [
        ((), "BackingImageMissing", "there is no backing image i"),
        ((lh.BackingImage("i"),), "BackingImagePending", "the size of backing image i is not known yet"),
    ],
)
def test_a_volume_whose_backing_image_is_not_known_says_so(
    images: tuple[lh.BackingImage, ...], expected: str, text: str
) -> None:
    both = [schedule("a"), schedule("b")]
    decision = decide([replica_on("")], both, images=images, backing_image="i")
    assert (object_writes(decision), reason(decision), message(decision)) == ([], expected, text)
    assert decision.requeue
    waiting = decide([replica_on("a")], [schedule("a", r0=(50, None))], images=images, backing_image="i")
    assert object_writes(waiting) == [AssignReplica("r0")]
    held = decide([replica_on("a")], [schedule("a", r0=(50, grant(50)))], images=images, backing_image="i")
    assert (object_writes(held), reason(held)) == ([], expected)


def test_the_message_without_a_disk_has_the_numbers_of_every_disk() -> None:
    other = replica_on("b", has_data=True, number=1)
    schedules = [schedule("a", x=(60, grant(60))), schedule("b", r1=(50, grant(50)))]
    decision = decide([replica_on(""), other], schedules)
    assert reason(decision) == "NoDiskWithRoom"
    assert message(decision) == (
        "no disk can be asked for room for replica r0, which needs 50: disk disk on node b has 50 left, but Longhorn's rules "
        "exclude it (tags, anti-affinity, its own limits or a node that is not ready); disk disk on node a has 40 left"
    )


@pytest.mark.parametrize("size", [50, 0], ids=["with a size", "without a size"])
def test_a_node_that_cannot_be_read_is_the_reason_if_no_other_disk_has_room(size: int) -> None:
    """It may have room."""
    fault = ds.Fault("spec.disks", "is a text")
    schedules = [schedule("a"), schedule("b", x=(60, grant(60)))]
    decision = decide([replica_on("", size)], schedules, nodes={"b": node("b")}, unreadable_nodes={"a": fault})
    assert (reason(decision), decision.requeue) == ("NodeUnreadable", True)
    assert message(decision).endswith(
        "which needs 50: disk disk on node b has 40 left; "
        "Disk disk on node a: the node cannot be read: spec.disks is a text"
    )


def test_the_message_of_a_volume_that_is_being_placed_is_written_once() -> None:
    """With every step it would differ; after some seconds it is updated."""
    for since, writes in (("2025-12-31T23:59:59Z", 0), ("2025-12-31T23:59:00Z", 1), ("unknown", 1)):
        current = Condition("DiskAllocation", "False", "AllocationPending", "waiting", since)
        decision = decide([replica_on("a")], [schedule("a", r0=(50, None))], condition=current)
        assert len(decision.writes) == writes
