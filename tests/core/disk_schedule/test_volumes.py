"""The decisions of the volume, replica and backing image controllers, case by case."""

import json
import re
from collections.abc import Callable, Mapping
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
from tests.worlds.timeline import rows

NOW = "2026-01-01T00:00:00Z"
Entry = tuple[int | None, ds.Allocation | None]


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
    """A node's DiskSchedule with requests, None for none, and answers; another replica holds 2,500 bytes."""
    requests: dict[str, int | None] = {key: size for key, (size, _) in entries.items() if size is not None}
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
    images: tuple[lh.BackingImage, ...] = (),
    unreadable_nodes: Mapping[str, NodeLookup] = MappingProxyType({}),
    created: str = "",
    **volume: Any,
) -> VolumeDecision:
    """Decides about the volume `v` in a cluster of the nodes a and b; `images` are copied backing images."""
    objects = Snapshot(
        longhorn_nodes=nodes or {name: node(name) for name in "ab"},
        replicas={entry.name: entry for entry in replicas},
        backing_images={entry.name: entry for entry in images},
    )
    cluster = Cluster.of(objects, datetime(2026, 1, 1, tzinfo=UTC))
    schedules_by_uuid = {entry.name: entry for entry in schedules}
    described = lh.Volume("v", size, len(replicas), **volume)
    copies = [ds.BackingImageCopies(each.name, each.real_size, wanted_disks=frozenset(each.disks)) for each in images]
    occupancy = occupancy_by_disk(replicas, {"v": described}, copies)
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


UNREADY = Condition("Schedulable", "False", "DiskNotReady", "Disk disk on node a has Ready False")
FULL = Condition(
    "Schedulable", "False", "OverAllocated", "Disk disk is over-allocated on node a: 2 are scheduled, 1 are"
)


def close_disk(schedule: ds.DiskSchedule, condition: Condition = UNREADY) -> ds.DiskSchedule:
    return replace(schedule, status=replace(schedule.status, conditions=(condition,)))


PENDING = Condition("DiskAllocation", "False", "ExpansionPending", "waiting for all disks to answer for 80 per replica")
CANNOT_GROW = "the volume cannot grow to 80: no room on disk disk on node b (50 left, 30 more needed)"
CONDITIONS = {
    "True": Condition("DiskAllocation", "True"),
    "ExpansionPending": PENDING,
    "ExpansionGranted": replace(PENDING, reason="ExpansionGranted", message="all disks granted 80 per replica"),
    "ExpansionRejected": replace(PENDING, reason="ExpansionRejected", message=CANNOT_GROW),
}


def entry(text: str) -> Entry:
    """A request and its answer: `50?` is pending, `50+50` granted, `50-0` rejected; `+50` holds bytes without a request."""
    size, answer, held = re.fullmatch(r"(\d*)([?+-])(\d*)", text).groups()  # type: ignore[union-attr] # a row that does not match is wrong
    answers = {"?": None, "+": grant(int(held or 0)), "-": rejection(int(held or 0))}
    return int(size) if size else None, answers[answer]


def decide_row(state: str) -> VolumeDecision:
    """Decides from words: replicas (`r0@a` on node a, `*` with data, `:80` with another size), DiskSchedules (`A[r0=50?]`, `!` if the
    disk is not ready) and arguments of `decide`.
    """
    replicas: list[lh.Replica] = []
    schedules: list[ds.DiskSchedule] = []
    options: dict[str, Any] = {}
    for word in state.split():
        if match := re.fullmatch(r"r(\d)@(\w*)(\*?):?(\d*)", word):
            number, place, data, size = match.groups()
            replicas.append(replica_on(place, int(size or 50), has_data=bool(data), number=int(number)))
        elif match := re.fullmatch(r"([A-Z])(!?)\[(.*)\]", word):
            name, unready, requests = match.groups()
            entries = dict(each.split("=") for each in requests.split(",") if each)
            disk = schedule(name.lower(), ds.RequestKind.REPLICA, **{key: entry(text) for key, text in entries.items()})
            schedules.append(close_disk(disk) if unready else disk)
        else:
            key, value = word.split("=")
            parsers: dict[str, Callable[[str], Any]] = {"size": int, "condition": CONDITIONS.__getitem__}
            options[key] = parsers.get(key, str)(value)
    return decide(replicas, schedules, **options)


def outcome(decision: VolumeDecision) -> str:
    """The reason that is written (`-` for no condition), the other writes in order, who may start, and whether it is decided again."""
    words = ["-"]
    for write in decision.writes:
        match write:
            case SetVolumeCondition(condition):
                assert write is decision.writes[0], "the direction of an expansion must be known after a kill"
                words = [condition.reason or condition.status]
            case AssignReplica(name, place, disk, path):
                words.append(f"{name}>{place}:{disk}{path}")
            case SetReplicaSize(name, size):
                words.append(f"{name}={size}")
            case SetRequirement(disk, _, name, size):
                words.append(f"{disk}.{name}={size}")
            case _:
                words.append(str(write))
    words += [f"ready={','.join(sorted(decision.ready))}"] if decision.ready else []
    return " ".join([*words, "again"] if decision.requeue else words)


ROWS = {
    # In the opposite order a request would leak if the controller is killed in between.
    "the disk with most room is assigned before the request": "r0@ A[x=20?] B[] -> AllocationPending r0>b:B/data B.r0=50",
    "a pending request is waited for": "r0@a A[r0=50?] B[] -> AllocationPending again",
    # No watch event follows from free space.
    "rejected without another disk: the place is lost": "r0@a A[r0=50-0] B[x=90?] -> NoDiskWithRoom r0>: again",
    # Moving it would lose the data.
    "rejected with data: place and request stay": "r0@a* A[r0=50-0] B[] -> AllocationRejected again",
    "granted": "r0@a A[r0=50+50] B[] -> True ready=r0",
    "granted, and reported already": "r0@a A[r0=50+50] condition=True -> - ready=r0",
    "no node lists the disk": "r0@gone B[] -> AllocationPending r0>b:B/data B.r0=50",
    "no node lists the disk, with data": "r0@gone* B[] -> AllocationRejected again",
    "a listed disk without DiskSchedule is waited for": "r0@a B[] -> AllocationPending again",
    # The answer looks like a grant, so the replica could start before its request is written again.
    "an old answer is not released yet": "r0@ A[r0=+50] B[x=60+60] -> NoDiskWithRoom again",
    "an old answer is released": "r0@ A[] B[x=60+60] -> AllocationPending r0>a:A/data A.r0=50",
    "detached": "r0@ A[] B[x=20?] data_locality=strict-local -> AllocationPending",
    "attached": "r0@ A[] B[x=20?] data_locality=strict-local node_id=b -> AllocationPending r0>b:B/data B.r0=50",
    # Otherwise it would always seem to have the volume's size.
    "a replica without a size gets one": "r0@:0 A[] -> AllocationPending r0=50 r0>a:A/data A.r0=50",
    "a place without a request and room is given up": "r0@a A[x=60+60] B[] -> AllocationPending r0>b:B/data B.r0=50",
    "a place without a request and room, with data": "r0@a* A[x=60+60] B[] -> AllocationPending A.r0=50",
    # Most volumes are placed within a second.
    "new, to be placed": "r0@ A[] created=2025-12-31T23:59:58Z -> - r0>a:A/data A.r0=50",
    "new, waiting": "r0@a A[r0=50?] created=2025-12-31T23:59:58Z -> - again",
    "new, without replicas": "A[] created=2025-12-31T23:59:58Z -> - again",
    "placing takes long": "r0@ A[] created=2025-12-31T23:59:57Z -> AllocationPending r0>a:A/data A.r0=50",
    "waiting takes long": "r0@a A[r0=50?] created=2025-12-31T23:59:57Z -> AllocationPending again",
    "replicas take long": "A[] created=2025-12-31T23:59:57Z -> True",
    "created by a clock that is ahead": "r0@ A[] created=2026-01-01T01:00:00Z -> AllocationPending r0>a:A/data A.r0=50",
    "new and allocated": "r0@a A[r0=50+50] created=2026-01-01T00:00:00Z -> True ready=r0",
    "new without a disk": "r0@ A[x=90+90] created=2026-01-01T00:00:00Z -> NoDiskWithRoom again",
    "new and detached": "r0@ A[] data_locality=strict-local created=2026-01-01T00:00:00Z -> AllocationPending",
}
GROWTH = {
    "every disk is asked": "A[r0=50+50] B[r1=50+50] -> ExpansionPending A.r0=80 B.r1=80 ready=r0,r1",
    "without a size before": "r0@a*:0 r1@b* A[r0=50+50] B[r1=50+50] -> ExpansionPending r0=50 A.r0=80 B.r1=80 ready=r0,r1",
    "one granted, one open": "A[r0=80+80] B[r1=80+50] condition=ExpansionPending -> - ready=r0,r1",
    "one granted, one with the answer to an earlier request": "A[r0=80+80] B[r1=50-50] condition=ExpansionPending -> - ready=r0,r1",
    "one rejected, one open": "A[r0=80-50] B[r1=80+50] condition=ExpansionPending -> - ready=r0,r1",
    "one rejected, one with the answer to an earlier request": "A[r0=80-50] B[r1=50-50] condition=ExpansionPending -> - ready=r0,r1",
    "all granted": "A[r0=80+80] B[r1=80+80] condition=ExpansionPending -> ExpansionGranted r0=80 r1=80 ready=r0,r1",
    "one rejected": "A[r0=80+80] B[r1=80-50] condition=ExpansionPending -> ExpansionRejected A.r0=50 B.r1=50 ready=r0,r1 again | the volume cannot grow to 80: no room on disk disk on node b (50 left, 30 more needed)",
    # Otherwise the grants of the other disks would not let the volume grow.
    "a disk refuses the old size": "A[r0=50+50] B[r1=50-0] -> ExpansionPending A.r0=80 B.r1=80 ready=r0 again",
    "a disk refuses the old size, another granted": "A[r0=80+80] B[r1=50-0] -> ExpansionPending B.r1=80 ready=r0 again",
    "a disk has not answered for the old size": "A[r0=50+50] B[r1=50?] -> ExpansionPending A.r0=80 B.r1=80 ready=r0 again",
    "a disk has not answered for the old size, another granted": "A[r0=80+80] B[r1=50?] -> ExpansionPending B.r1=80 ready=r0 again",
    "a disk that does not hold the old size rejects": "r0@a* r1@b* r2@ A[r0=80+80] B[r1=80-0] condition=ExpansionPending -> ExpansionRejected A.r0=50 B.r1=50 ready=r0 again | the volume cannot grow to 80: no room on disk disk on node b (50 left, 30 more needed)",
    "rolled back, a disk refuses the old size": "A[r0=50+50] B[r1=50-0] condition=ExpansionRejected -> - ready=r0 again",
    "rolled back, a disk has not answered": "A[r0=50+50] B[r1=50?] condition=ExpansionRejected -> - ready=r0 again",
    "a disk is gone": "r0@a* r1@gone* A[r0=80+80] condition=ExpansionPending -> ExpansionRejected A.r0=50 ready=r0 again | the volume cannot grow to 80: no node lists disk GONE",
    "a listed disk has no DiskSchedule": "A[r0=80+80] condition=ExpansionPending -> - ready=r0 again",
    # Refused more than its present size, it would leave a disk that has room for it.
    "a replica without data gets a place first": "r0@a* r1@b A[r0=80+80] B[r1=50?] -> ExpansionPending ready=r0 again",
    "rolled back, every disk would grant it": "A[r0=50+50] B[r1=50+50] condition=ExpansionRejected -> ExpansionPending A.r0=80 B.r1=80 ready=r0,r1",
    "rolled back, a disk is still full": "A[r0=50+50] B[r1=50+50,x=45+45] condition=ExpansionRejected -> ExpansionRejected ready=r0,r1 again | the volume cannot grow to 80: no room on disk disk on node b (5 left, 30 more needed)",
    "a second size that does not fit either": "A[r0=50+50] B[r1=50+50,x=45+45] size=70 condition=ExpansionRejected -> ExpansionRejected ready=r0,r1 again | the volume cannot grow to 70: no room on disk disk on node b (5 left, 20 more needed)",
    "a second size, and a disk that is not ready": "A![r0=80-50] B[r1=50+50,x=45+45] size=70 condition=ExpansionRejected -> ExpansionRejected A.r0=50 ready=r0,r1 again | the volume cannot grow to 70: Disk disk on node a has Ready False; no room on disk disk on node b (5 left, 20 more needed)",
    "a second size, before the old one is held": "A[r0=50+80] B[r1=50+50] size=70 condition=ExpansionRejected -> ExpansionRejected ready=r0,r1 again | the volume cannot grow to 70: its disks are asked for the old size first",
    "a kill while rolling back": "A[r0=50+80] B[r1=80-50] condition=ExpansionRejected -> - B.r1=50 ready=r0,r1 again",
    "a kill while writing the sizes": "r0@a*:80 r1@b* A[r0=80+80] B[r1=80+80] condition=ExpansionGranted -> - r1=80 ready=r0,r1",
}


@pytest.mark.parametrize("row", rows(ROWS))
def test_a_volume_is_decided_as_in_this_table(row: str) -> None:
    state, expected = row.split(" -> ")
    assert outcome(decide_row(state)) == expected


@pytest.mark.parametrize("row", rows(GROWTH))
def test_a_volume_grows_as_in_this_table(row: str) -> None:
    """It grows from 50 to 80; its replicas have data on the nodes a and b. Before every disk has granted that, no size is written."""
    state, _, expected = row.partition(" -> ")
    expected, _, text = expected.partition(" | ")
    decision = decide_row(("" if "@" in state else "r0@a* r1@b* ") + ("" if " size=" in state else "size=80 ") + state)
    assert outcome(decision) == expected
    assert not text or message(decision) == text


TO_A = [AssignReplica("r0", "a", "A", "/data"), request("A", 50)]
TO_B = [AssignReplica("r0", "b", "B", "/data"), request("B", 50)]


def test_replicas_that_are_deleted_get_no_writes() -> None:
    assert object_writes(decide([replica_on("a", deleting=True)], [schedule("a", r0=(50, grant(50)))])) == []
    assert decide([replica_on("a")], [schedule("a")], deleting=True) == VolumeDecision()


@pytest.mark.parametrize("locality", [lh.BEST_EFFORT, lh.STRICT_LOCAL])
def test_the_message_says_whether_a_volume_waits_for_its_attachment(locality: str) -> None:
    idle = decide([replica_on("")], [schedule("a")], data_locality=locality)
    assert reason(idle) == "AllocationPending"
    assert message(idle) == "waiting for the volume to be attached, then for room for replica r0"
    both = decide([replica_on(""), replica_on("a", number=1)], [schedule("a", r1=(50, None))], data_locality=locality)
    assert message(both) == "waiting for 50 for replica r1 on disk disk on node a"


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


def test_a_disk_that_moved_is_not_used_on_a_node_that_its_disk_schedule_does_not_name_yet() -> None:
    moved = replace(node("a").disks[0], name="moved")
    nodes = {"a": replace(node("a"), allow_scheduling=False)}
    nodes["b"] = replace(node("b"), disks=(*node("b").disks, moved))
    decision = decide([replica_on("")], [schedule("a"), schedule("b", x=(20, None))], nodes=nodes)
    assert object_writes(decision) == TO_B


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


def image_schedule(name: str, *entry: Any) -> ds.DiskSchedule:
    return schedule(name, ds.RequestKind.BACKING_IMAGE, **({"i": entry} if entry else {}))


def decide_image_row(state: str) -> str:
    """Decides from words: the image (`i@AB` is wanted on A and B), DiskSchedules (`A[50?]`), and what else differs. Returns what is written
    of the image (`+A` and `-A`), requests, the disks it may be copied to, and whether it is decided again.
    """
    fields: dict[str, Any] = {}
    schedules: list[ds.DiskSchedule] = []
    needed = wanted = ""
    for word in state.split():
        if match := re.fullmatch(r"([A-Z])\[(.*)\]", word):
            schedules.append(image_schedule(match[1].lower(), *(entry(match[2]) if match[2] else ())))
        elif match := re.fullmatch(r"i@(\w*)", word):
            wanted = match[1]
        else:
            key, value = word.split("=")
            if key == "needed":
                needed = value
            else:
                fields[key] = {"copy_states": dict.fromkeys(value, "ready")}.get(key) or int(value)
    decision = decide_image(image(*wanted, **fields), *schedules, needed=needed)
    words: list[str] = []
    for write in decision.writes:
        match write:
            case ChangeCopies("i", added, removed):
                words += [f"+{uuid}" for uuid in added] + [f"-{uuid}" for uuid in removed]
            case SetRequirement(disk, ds.RequestKind.BACKING_IMAGE, "i", size):
                words.append(f"{disk}={size}")
            case RemoveFinalizer(ds.RequestKind.BACKING_IMAGE, "i"):
                words.append("finalizer")
            case _:
                words.append(str(write))
    words += [f"ready={','.join(sorted(decision.ready))}"] if decision.ready else []
    return " ".join([*words, "again"] if decision.requeue else words)


IMAGES = {
    "chosen, then requested": "i@ A[] B[] -> +A A=50",
    "chosen before a kill": "i@A A[] B[] -> A=50",
    "pending": "i@A A[50?] B[] ->",
    "granted": "i@A A[50+50] B[] -> ready=A",
    "rejected, moved to another disk": "i@A A[50-0] B[] -> +B -A B=50",
    "rejected, but copied already": "i@A copy_states=A A[50-0] B[] -> again",
    "rejected, but a replica needs it": "i@A A[50-0] B[] needed=A -> again",
    "a replica needs it elsewhere": "i@A copy_states=A A[50+50] B[] needed=B -> +B B=50 ready=A",
    "too few copies": "i@A min_copies=2 A[50+50] B[] -> +B B=50 ready=A",
    "a request on a disk that the image has left": "i@A A[50+50] B[50+50] -> B=0 ready=A",
    "a replica needs it where an old answer is not released yet": "i@A copy_states=A A[50+50] B[+50] needed=B -> ready=A",
    "chosen again only after an old answer is released": "i@ A[+50] -> again",
    "a copy outside the spec counts": "i@ copy_states=B A[] B[] -> B=50",
    "the size is unknown before the first copy": "i@A size=0 A[] B[] -> ready=A again",
    "deleted: spec and status disks": "i@A copy_states=B deleting=1 A[50+50] B[50-0] -> A=0 B=0 finalizer",
    # Node sync creates that of a listed disk; until then the decision is repeated.
    "a listed disk has no DiskSchedule": "i@A B[] -> again",
    "no node lists the disk": "i@Z B[] -> +B -Z B=50",
}


@pytest.mark.parametrize("row", rows(IMAGES))
def test_backing_images_are_decided_as_in_this_table(row: str) -> None:
    state, _, expected = row.partition(" ->")
    assert decide_image_row(state) == expected.strip()


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
