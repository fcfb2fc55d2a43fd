"""What the volume, replica and backing image controllers decide, case by case."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from scheduler_core.convert import disk_schedule as convert
from scheduler_core.disk_schedule import backing_images, volumes
from scheduler_core.disk_schedule.backing_images import ImageDecision, ImageSnapshot
from scheduler_core.disk_schedule.replica_release import changed_names, release_replica
from scheduler_core.disk_schedule.volumes import VolumeDecision, VolumeSnapshot
from scheduler_core.disk_schedule.writes import (
    AssignReplica,
    ChangeCopies,
    RemoveFinalizer,
    SetReplicaSize,
    SetRequirement,
    SetVolumeCondition,
    Write,
)
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.model.disk_schedule import (
    Allocation,
    AllocationState,
    BackingImageCopies,
    DiskSchedule,
    DiskScheduleSpec,
    DiskScheduleStatus,
    RequestKind,
)
from scheduler_core.model.kube import Condition
from scheduler_core.model.longhorn import (
    BEST_EFFORT,
    FILESYSTEM,
    STRICT_LOCAL,
    BackingImage,
    Disk,
    Node,
    Replica,
    Volume,
)
from scheduler_core.model.snapshot import Snapshot

NOW = "2026-01-01T00:00:00Z"
READY = (Condition("Ready", "True"), Condition("Schedulable", "True"))
Entry = tuple[int, Allocation | None]


def yes(size: int) -> Allocation:
    """Granted."""
    return Allocation(AllocationState.SCHEDULED, size)


def no(held: int = 0) -> Allocation:
    """Rejected."""
    return Allocation(AllocationState.REJECTED, held)


def node(name: str, available: int = 100) -> Node:
    """A node with one disk of that many bytes; its UUID is the node's name in capitals."""
    disk = Disk(
        "disk",
        uuid=name.upper(),
        path="/data",
        allow_scheduling=True,
        spec_type=FILESYSTEM,
        storage_maximum=10_000,
        storage_available=available + 2500,  # Longhorn keeps 25 % of the maximum
        conditions=READY,
    )
    return Node(name, allow_scheduling=True, conditions=READY, disks=(disk,))


def schedule(name: str, kind: RequestKind = RequestKind.REPLICA, **entries: Entry) -> DiskSchedule:
    """A node's DiskSchedule with requests and answers; 2,500 bytes are held by somebody else."""
    asked: dict[str, int | None] = {key: size for key, (size, _) in entries.items()}
    answers = {key: answer for key, (_, answer) in entries.items() if answer is not None}
    other = {"other": yes(2500)}
    if kind is RequestKind.REPLICA:
        spec, status = (
            DiskScheduleSpec("disk", name, replicas={**asked, "other": 2500}),
            DiskScheduleStatus(replicas={**answers, **other}),
        )
    else:
        spec = DiskScheduleSpec("disk", name, replicas={"other": 2500}, backing_images=asked)
        status = DiskScheduleStatus(replicas=other, backing_images=answers)
    return DiskSchedule(name.upper(), spec, status)


def at(name: str, size: int = 50, *, ran: bool = False, number: int = 0, **more: Any) -> Replica:
    """A replica on a node's disk, "" for none."""
    healthy = "2026-01-01T00:00:00Z" if ran else ""
    return Replica(f"r{number}", "v", size, name, name.upper(), healthy_at=healthy, **more)


def decide(
    replicas: list[Replica],
    schedules: list[DiskSchedule],
    *,
    size: int = 50,
    condition: Condition | None = None,
    nodes: dict[str, Node] | None = None,
    others: tuple[Replica, ...] = (),
    copied: tuple[BackingImage, ...] = (),
    **volume: Any,
) -> VolumeDecision:
    """A decision about the volume `v` in a cluster of the nodes a and b, beside others' replicas and copied images."""
    found = Snapshot(
        longhorn_nodes=nodes or {name: node(name) for name in "ab"},
        replicas={each.name: each for each in (*others, *replicas)},
        backing_images={each.name: each for each in copied},
    )
    cluster = Cluster.of(found, datetime(2026, 1, 1, tzinfo=UTC))
    known = {entry.name: entry for entry in schedules}
    return volumes.decide_volume(
        VolumeSnapshot(cluster, Volume("v", size, len(replicas), **volume), tuple(replicas), known, condition), NOW
    )


def ask(disk: str, size: int, name: str = "r0", *, stray: bool = False) -> SetRequirement:
    """A request for a replica."""
    return SetRequirement(disk, RequestKind.REPLICA, name, size, stray=stray)


def objects(decision: VolumeDecision) -> list[Write]:
    """The writes but for the condition."""
    return [write for write in decision.writes if not isinstance(write, SetVolumeCondition)]


def message(decision: VolumeDecision) -> str:
    """The message of the condition that is reported first."""
    report = decision.writes[0]
    assert isinstance(report, SetVolumeCondition)
    return report.condition.message


def reason(decision: VolumeDecision) -> str:
    """The reason of the condition that is reported first."""
    report = decision.writes[0]
    assert isinstance(report, SetVolumeCondition)
    return report.condition.reason


def test_a_new_replica_is_noted_on_a_disk_before_room_is_asked_for() -> None:
    """The other way round a request would leak when the controller is killed in between. The disk with most room is asked."""
    decision = decide([at("")], [schedule("a", x=(20, None)), schedule("b")])
    assert objects(decision) == [AssignReplica("r0", "b", "B", "/data"), ask("B", 50)]
    assert (reason(decision), decision.ready, decision.requeue) == ("AllocationPending", frozenset(), False)


def test_a_pending_request_only_waits() -> None:
    """Nothing may start, nothing is asked twice."""
    decision = decide([at("a")], [schedule("a", r0=(50, None)), schedule("b")])
    assert (objects(decision), decision.ready) == ([], frozenset())


def test_a_rejected_replica_that_never_ran_moves_to_another_disk() -> None:
    """The request is withdrawn first, then the place changes, then the other disk is asked."""
    decision = decide([at("a")], [schedule("a", r0=(50, no())), schedule("b")])
    assert objects(decision) == [ask("A", 0), AssignReplica("r0", "b", "B", "/data"), ask("B", 50)]


def test_a_rejected_replica_without_another_disk_gives_up_its_place_and_says_so() -> None:
    """Somebody has to look again: no watch brings the room."""
    decision = decide([at("a")], [schedule("a", r0=(50, no())), schedule("b", x=(90, None))])
    assert objects(decision) == [ask("A", 0), AssignReplica("r0")]
    assert (reason(decision), decision.requeue) == ("NoDiskWithRoom", True)


def test_a_rejected_replica_with_data_stays_and_asks_on() -> None:
    """It is reported; moving it would lose the data."""
    decision = decide([at("a", ran=True)], [schedule("a", r0=(50, no())), schedule("b")])
    assert objects(decision) == []
    assert (reason(decision), decision.ready, decision.requeue) == ("AllocationRejected", frozenset(), True)


def test_a_granted_replica_may_start_and_the_condition_is_true() -> None:
    """Once it says so, nothing is written any more."""
    decision = decide([at("a")], [schedule("a", r0=(50, yes(50))), schedule("b")])
    assert decision.writes == (SetVolumeCondition(Condition("DiskAllocation", "True", last_transition_time=NOW)),)
    assert decision.ready == {"r0"}
    known = Condition("DiskAllocation", "True", last_transition_time="earlier")
    assert decide([at("a")], [schedule("a", r0=(50, yes(50)))], condition=known).writes == ()


@pytest.mark.parametrize("entry", [{}, {"r0": (20, yes(20))}])
def test_a_placed_replica_that_does_not_ask_for_its_size_does(entry: dict[str, Entry]) -> None:
    """A controller was killed before it asked, Longhorn had no DiskSchedules before, or somebody edited the request."""
    assert objects(decide([at("a", ran=True)], [schedule("a", RequestKind.REPLICA, **entry)])) == [ask("A", 50)]


def test_a_disk_that_no_node_lists_is_left_by_a_replica_that_never_ran() -> None:
    """It will get no DiskSchedule. A replica with data waits for it."""
    assert objects(decide([at("gone")], [schedule("b")])) == [AssignReplica("r0", "b", "B", "/data"), ask("B", 50)]
    assert objects(decide([at("gone", ran=True)], [schedule("b")])) == []


def test_a_listed_disk_whose_disk_schedule_is_not_there_yet_is_waited_for() -> None:
    """Node sync creates it, at the first start beside the volume controller; no watch tells the volume, so it looks again."""
    decision = decide([at("a")], [schedule("b")])
    assert objects(decision) == []
    assert (reason(decision), decision.ready, decision.requeue) == ("AllocationPending", frozenset(), True)


def test_a_request_on_a_disk_that_is_not_the_replicas_is_withdrawn() -> None:
    """It is marked stray: the caller reads the Replica once more before."""
    decision = decide([at("a")], [schedule("a", r0=(50, yes(50))), schedule("b", r0=(50, yes(50)))])
    assert objects(decision) == [ask("B", 0, stray=True)]


def test_replicas_that_are_deleted_or_wait_for_an_attachment_are_left_alone() -> None:
    """The replica controller releases; a strict-local volume without a node has no place to choose."""
    assert objects(decide([at("a", deleting=True)], [schedule("a", r0=(50, yes(50)))])) == []
    assert decide([at("a")], [schedule("a")], deleting=True) == VolumeDecision()
    both = [schedule("a"), schedule("b", x=(20, None))]
    assert objects(decide([at("")], both, data_locality=STRICT_LOCAL)) == []
    attached = decide([at("")], both, data_locality=STRICT_LOCAL, node_id="b")
    assert objects(attached) == [AssignReplica("r0", "b", "B", "/data"), ask("B", 50)]


@pytest.mark.parametrize("locality", [BEST_EFFORT, STRICT_LOCAL])
def test_what_waits_for_an_attachment_says_so(locality: str) -> None:
    """It is not room that it waits for, as yet. One whose place is known does wait for room."""
    idle = decide([at("")], [schedule("a")], data_locality=locality)
    assert reason(idle) == "AllocationPending"
    assert message(idle) == "waiting for the volume to be attached, then for room for replica r0"
    both = decide([at(""), at("a", number=1)], [schedule("a", r1=(50, None))], data_locality=locality)
    assert message(both) == "waiting for room for replica r1"


UNREADY = Condition("Schedulable", "False", "DiskNotReady", "Disk disk on node a has Ready False")
FULL = Condition(
    "Schedulable", "False", "OverAllocated", "Disk disk is over-allocated on node a: 2 are scheduled, 1 are"
)


def sick(found: DiskSchedule, condition: Condition = UNREADY) -> DiskSchedule:
    """A DiskSchedule whose disk grants nothing."""
    return replace(found, status=replace(found.status, conditions=(condition,)))


def test_a_replica_with_data_that_is_refused_tells_why() -> None:
    """Room is not the only thing that may be missing."""
    room = "the disk has no room for 50 for replica r0, which has data there"
    known = schedule("a", r0=(50, no()))
    assert message(decide([at("a", ran=True)], [known])) == room
    assert message(decide([at("a", ran=True)], [sick(known, FULL)])) == room
    told = "it cannot grant 50 for replica r0, which has data there"
    assert message(decide([at("a", ran=True)], [sick(known)])) == f"{UNREADY.message}: {told}"
    assert message(decide([at("gone", ran=True)], [])) == f"no node lists disk GONE: {told}"


def test_a_place_whose_node_is_not_its_disks_is_told_and_left_as_it_is() -> None:
    """Somebody edited it, or the disk was moved: what is held stays held, what runs goes on, and it is looked at again."""
    replica = replace(at("b", ran=True), disk_id="A")
    decision = decide([replica], [schedule("a", r0=(50, yes(50))), schedule("b")])
    assert objects(decision) == []
    assert (reason(decision), decision.ready, decision.requeue) == ("PlaceContradicted", frozenset({"r0"}), True)
    assert message(decision) == "replica r0 is said to be on node b, but its disk A is on node a"


def test_a_replica_without_a_size_gets_one_when_it_is_placed() -> None:
    """Without one it would always seem to have the volume's size."""
    decision = decide([at("", 0)], [schedule("a")])
    assert objects(decision) == [SetReplicaSize("r0", 50), AssignReplica("r0", "a", "A", "/data"), ask("A", 50)]


def test_a_replica_without_a_size_takes_part_in_an_expansion() -> None:
    """What is asked for it is its size: it neither grows alone nor is left out."""
    replicas = [at("a", 0, ran=True), GROWING[1]]
    decision = decide(replicas, [schedule("a", r0=(50, yes(50))), schedule("b", r1=(50, yes(50)))], size=80)
    assert objects(decision) == [SetReplicaSize("r0", 50), ask("A", 80), ask("B", 80, "r1")]
    assert reason(decision) == "ExpansionPending"


def moved(*ready: str) -> dict[str, Node]:
    """Disk A, listed by the nodes a and b; ready where told."""
    entry = node("a").disks[0]
    return {
        name: replace(node(name), disks=(replace(entry, conditions=READY if name in ready else ()),)) for name in "ab"
    }


@pytest.mark.parametrize("there", ["", "a"], ids=["new", "refused"])
def test_a_disk_that_two_nodes_list_is_one_only_where_its_disk_schedule_says(there: str) -> None:
    """Its controller judges by that node: asked at the other, it would refuse, and be chosen again."""
    replica = replace(at(there), disk_id="A" if there else "")
    refused: dict[str, Entry] = {"r0": (50, no())} if there else {}
    known = [schedule("a", RequestKind.REPLICA, **refused)]
    decision = decide([replica], known, nodes=moved("b"))
    assert not [write for write in decision.writes if isinstance(write, AssignReplica) and write.disk]
    assert (reason(decision), decision.requeue) == ("NoDiskWithRoom", True)
    settled = decide([at("")], [schedule("a")], nodes=moved("a", "b"))
    assert objects(settled) == [AssignReplica("r0", "a", "A", "/data"), ask("A", 50)]


def test_a_newcomer_leaves_the_room_of_what_is_there_and_has_not_asked_yet() -> None:
    """Served by name, it might be granted first, and a replica that runs be left with nothing."""
    old = Replica("z", "other", 60, "b", "B", healthy_at=NOW)
    both = [schedule("a", x=(40, yes(40))), schedule("b")]
    assert objects(decide([at("")], both, others=(old,))) == [AssignReplica("r0", "a", "A", "/data"), ask("A", 50)]
    asked = [schedule("a", x=(40, yes(40))), schedule("b", z=(30, None))]
    assert objects(decide([at("")], asked, others=(replace(old, size=30),)))[0] == AssignReplica(
        "r0", "b", "B", "/data"
    )
    gone = replace(old, deleting=True)
    assert objects(decide([at("")], both, others=(gone,)))[0] == AssignReplica("r0", "b", "B", "/data")
    copied = BackingImage("i", disks=("B",), real_size=60)
    assert objects(decide([at("")], both, copied=(copied,)))[0] == AssignReplica("r0", "a", "A", "/data")


GROWING = [at("a", ran=True), at("b", ran=True, number=1)]
PENDING = Condition("DiskAllocation", "False", "ExpansionPending", "waiting for all disks to answer for 80 per replica")
REJECTED = Condition(
    "DiskAllocation", "False", "ExpansionRejected", "the volume cannot grow to 80: no room on disk disk on node b"
)


def grow(a: Entry, b: Entry, condition: Condition | None = PENDING) -> VolumeDecision:
    """A volume of 50 bytes with two replicas that is to have 80."""
    return decide(GROWING, [schedule("a", r0=a), schedule("b", r1=b)], size=80, condition=condition)


def test_an_expansion_asks_every_disk_before_any_size_is_written() -> None:
    """The condition goes first, so that the direction is known after a kill."""
    decision = grow((50, yes(50)), (50, yes(50)), None)
    assert decision.writes == (
        SetVolumeCondition(replace(PENDING, last_transition_time=NOW)),
        ask("A", 80),
        ask("B", 80, "r1"),
    )


@pytest.mark.parametrize("b", [(80, yes(50)), (50, no(50))], ids=["no answer yet", "an answer to an earlier question"])
def test_an_expansion_is_held_until_every_disk_has_answered(b: Entry) -> None:
    """Granted or rejected: both wait for the last answer, and the replicas go on with the size they have."""
    for a in ((80, yes(80)), (80, no(50))):
        assert objects(grow(a, b)) == []
        assert grow(a, b).ready == {"r0", "r1"}


def test_an_expansion_that_all_disks_granted_writes_the_sizes() -> None:
    """First the condition says that there is no way back."""
    decision = grow((80, yes(80)), (80, yes(80)))
    assert objects(decision) == [SetReplicaSize("r0", 80), SetReplicaSize("r1", 80)]
    assert reason(decision) == "ExpansionGranted"


def test_an_expansion_that_one_disk_rejected_is_rolled_back_and_reported() -> None:
    """Every disk is asked for the old size again; the condition names the disk."""
    decision = grow((80, yes(80)), (80, no(50)))
    assert objects(decision) == [ask("A", 50), ask("B", 50, "r1")]
    report = decision.writes[0]
    assert isinstance(report, SetVolumeCondition)
    assert report.condition.reason == "ExpansionRejected"
    assert report.condition.message == "the volume cannot grow to 80: no room on disk disk on node b"
    assert decision.requeue


@pytest.mark.parametrize("b", [(50, no()), (50, None)], ids=["refused", "not answered yet"])
@pytest.mark.parametrize("a", [(50, yes(50)), (80, yes(80))], ids=["not asked yet", "granted"])
def test_an_expansion_asks_a_disk_that_does_not_hold_the_old_size_either(a: Entry, b: Entry) -> None:
    """What its other disks granted is no growth of the volume."""
    decision = grow(a, b, None)
    assert objects(decision) == [*([ask("A", 80)] if a[0] == 50 else []), ask("B", 80, "r1")]
    assert reason(decision) == "ExpansionPending"
    assert decision.ready == {"r0"}


def test_an_expansion_is_refused_by_a_disk_that_does_not_even_hold_the_old_size() -> None:
    """Nothing grows, not even a replica without a place; the disk is named, and stays asked for the old size."""
    known = [schedule("a", r0=(80, yes(80))), schedule("b", r1=(80, no()))]
    decision = decide([*GROWING, at("", number=2)], known, size=80, condition=PENDING)
    assert not [write for write in decision.writes if isinstance(write, SetReplicaSize)]
    assert objects(decision)[:2] == [ask("A", 50), ask("B", 50, "r1")]
    report = decision.writes[0]
    assert isinstance(report, SetVolumeCondition)
    assert report.condition.message == "the volume cannot grow to 80: no room on disk disk on node b"
    assert decision.requeue


@pytest.mark.parametrize("b", [(50, no()), (50, None)], ids=["refused", "not answered yet"])
def test_a_rolled_back_expansion_rests_while_a_disk_does_not_hold_the_old_size(b: Entry) -> None:
    """It is tried again once that disk has granted it."""
    assert grow((50, yes(50)), b, REJECTED).writes == ()
    assert grow((50, yes(50)), b, REJECTED).requeue


def test_an_expansion_is_refused_by_a_disk_that_is_gone() -> None:
    """It can neither be asked nor answer, and a replica has data there."""
    replicas = [GROWING[0], at("gone", ran=True, number=1)]
    decision = decide(replicas, [schedule("a", r0=(80, yes(80)))], size=80, condition=PENDING)
    assert objects(decision) == [ask("A", 50)]
    report = decision.writes[0]
    assert isinstance(report, SetVolumeCondition)
    assert report.condition.message == "the volume cannot grow to 80: no node lists disk GONE"


def test_an_expansion_waits_for_the_disk_schedule_of_a_listed_disk() -> None:
    """What is not there cannot be asked yet."""
    decision = decide(GROWING, [schedule("a", r0=(80, yes(80)))], size=80, condition=PENDING)
    assert (decision.writes, decision.requeue) == ((), True)


def test_an_expansion_lets_a_replica_that_never_ran_find_its_place_first() -> None:
    """Its disk is asked for what it needs as it is: refused more, it would leave a disk that has room for it."""
    replicas = [GROWING[0], at("b", number=1)]
    decision = decide(replicas, [schedule("a", r0=(80, yes(80))), schedule("b", r1=(50, None))], size=80)
    assert (objects(decision), reason(decision)) == ([], "ExpansionPending")


def test_a_rolled_back_expansion_is_tried_again_only_when_every_disk_would_grant_it() -> None:
    """Until then it rests, and the condition stays."""
    assert grow((50, yes(50)), (50, yes(50)), REJECTED).writes[1:] == (ask("A", 80), ask("B", 80, "r1"))
    full = [schedule("a", r0=(50, yes(50))), schedule("b", r1=(50, yes(50)), x=(45, yes(45)))]
    resting = decide(GROWING, full, size=80, condition=REJECTED)
    assert (resting.writes, resting.requeue) == ((), True)


def test_another_wish_that_does_not_fit_either_names_the_disks_without_room() -> None:
    """Nothing is asked for it, because it would be refused: by room on b, and by the state of a."""
    held = [schedule("a", r0=(50, yes(50))), schedule("b", r1=(50, yes(50)), x=(45, yes(45)))]
    other = decide(GROWING, held, size=70, condition=REJECTED)
    assert (objects(other), message(other)) == ([], "the volume cannot grow to 70: no room on disk disk on node b")
    both = decide(GROWING, [sick(schedule("a", r0=(80, no(50)))), held[1]], size=70, condition=REJECTED)
    assert message(both) == f"the volume cannot grow to 70: no room on disk disk on node b; {UNREADY.message}"


def test_another_wish_waits_until_the_disks_hold_the_old_size_again() -> None:
    """Nobody refuses it as yet."""
    decision = decide(
        GROWING, [schedule("a", r0=(50, yes(80))), schedule("b", r1=(50, yes(50)))], size=70, condition=REJECTED
    )
    assert message(decision) == "the volume cannot grow to 70: its disks are asked for the old size first"


def test_a_roll_back_goes_on_after_a_kill() -> None:
    """The condition says which way it went."""
    assert objects(grow((50, yes(80)), (80, no(50)), REJECTED)) == [ask("B", 50, "r1")]


def test_a_granted_expansion_goes_on_after_a_kill() -> None:
    """One size was written, the other follows; the first is not asked about again."""
    granted = replace(PENDING, reason="ExpansionGranted", message="all disks granted 80 per replica")
    replicas = [at("a", 80, ran=True), GROWING[1]]
    schedules = [schedule("a", r0=(80, yes(80))), schedule("b", r1=(80, yes(80)))]
    assert objects(decide(replicas, schedules, size=80, condition=granted)) == [SetReplicaSize("r1", 80)]


def test_an_expansion_that_was_called_off_gives_the_bytes_back() -> None:
    """The volume's size is the old one again."""
    decision = decide(GROWING, [schedule("a", r0=(80, yes(80))), schedule("b", r1=(80, no(50)))], condition=PENDING)
    assert objects(decision) == [ask("A", 50), ask("B", 50, "r1")]


def test_a_replica_without_a_place_just_takes_the_new_size() -> None:
    """It holds nothing that could grow."""
    decision = decide([at("")], [schedule("a"), schedule("b", x=(20, None))], size=80)
    assert SetReplicaSize("r0", 80) in decision.writes


def test_a_replica_releases_on_deletion_only_and_its_finalizer_goes_last() -> None:
    """Alive it withdraws nothing; when it is gone a request left behind is stray."""
    known = {"A": schedule("a", r0=(50, yes(50))), "B": schedule("b")}
    assert release_replica("r0", at("a"), known) == ()
    assert release_replica("r0", at("a", deleting=True), known) == (
        ask("A", 0),
        RemoveFinalizer(RequestKind.REPLICA, "r0"),
    )
    assert release_replica("r0", at("", deleting=True), {}) == (RemoveFinalizer(RequestKind.REPLICA, "r0"),)
    assert release_replica("r0", None, known) == (ask("A", 0, stray=True),)


def test_only_replicas_whose_answer_changed_wake_their_volumes() -> None:
    """Backing images are another map and never do."""
    before, after = {"a": yes(1), "b": no(), "c": yes(1)}, {"a": yes(1), "b": yes(2), "d": no()}
    assert changed_names(before, after) == {"b", "c", "d"}


def image(*wanted: str, **more: Any) -> BackingImageCopies:
    """A backing image of 50 bytes."""
    return BackingImageCopies("i", **{"size": 50, "wanted_disks": frozenset(wanted), **more})


def copies(
    image: BackingImageCopies, *schedules: DiskSchedule, needed: str = "", candidates: str = "AB"
) -> ImageDecision:
    """A decision about a backing image in a cluster of the nodes a and b."""
    known, nodes = {entry.name: entry for entry in schedules}, {name: node(name) for name in "ab"}
    return backing_images.decide_image(ImageSnapshot(image, known, nodes, frozenset(needed), tuple(candidates)))


def test_a_further_copy_leaves_room_for_a_replica_from_before_the_disk_schedules() -> None:
    """It will be asked for, and by name it might come after the copy."""
    known = {"A": schedule("a"), "B": schedule("b")}
    nodes, crowded = {name: node(name) for name in "ab"}, {"A": 51}
    decision = backing_images.decide_image(ImageSnapshot(image(), known, nodes, frozenset(), ("A", "B"), crowded))
    assert ChangeCopies("i", ("B",)) in decision.writes


def held(name: str, *entry: Any) -> DiskSchedule:
    """A node's DiskSchedule with a request for the image, or none."""
    return schedule(name, RequestKind.BACKING_IMAGE, **({"i": entry} if entry else {}))


def want(disk: str, size: int, *, stray: bool = False) -> SetRequirement:
    """A request for the image."""
    return SetRequirement(disk, RequestKind.BACKING_IMAGE, "i", size, stray=stray)


@pytest.mark.parametrize(
    ("decision", "writes", "ready"),
    [
        pytest.param(
            copies(image(), held("a"), held("b")),
            (ChangeCopies("i", ("A",)), want("A", 50)),
            "",
            id="noted, then asked for",
        ),
        pytest.param(copies(image("A"), held("a"), held("b")), (want("A", 50),), "", id="noted before a kill"),
        pytest.param(copies(image("A"), held("a", 50, None), held("b")), (), "", id="pending"),
        pytest.param(copies(image("A"), held("a", 50, yes(50)), held("b")), (), "A", id="granted"),
        pytest.param(
            copies(image("A"), held("a", 50, no()), held("b")),
            (want("A", 0), ChangeCopies("i", ("B",), ("A",)), want("B", 50)),
            "",
            id="rejected, tried on another disk",
        ),
        pytest.param(
            copies(image("A", copy_states={"A": "ready"}), held("a", 50, no()), held("b")),
            (),
            "",
            id="rejected, but it is there",
        ),
        pytest.param(
            copies(image("A"), held("a", 50, no()), held("b"), needed="A"),
            (),
            "",
            id="rejected, but a replica needs it",
        ),
        pytest.param(
            copies(image("A", copy_states={"A": "ready"}), held("a", 50, yes(50)), held("b"), needed="B"),
            (ChangeCopies("i", ("B",)), want("B", 50)),
            "A",
            id="a replica needs it elsewhere",
        ),
        pytest.param(
            copies(image("A", min_copies=2), held("a", 50, yes(50)), held("b")),
            (ChangeCopies("i", ("B",)), want("B", 50)),
            "A",
            id="too few copies",
        ),
        pytest.param(
            copies(image("A"), held("a", 50, yes(50)), held("b", 50, yes(50))),
            (want("B", 0, stray=True),),
            "A",
            id="a request left behind",
        ),
        pytest.param(
            copies(image(copy_states={"B": "ready"}), held("a"), held("b")),
            (want("B", 50),),
            "",
            id="a copy nobody wanted counts",
        ),
        pytest.param(copies(image("A", size=0), held("a"), held("b")), (), "A", id="the first copy tells the size"),
        pytest.param(
            copies(image("A", copy_states={"B": "ready"}, deleting=True), held("a", 50, yes(50)), held("b", 50, no())),
            (want("A", 0), want("B", 0), RemoveFinalizer(RequestKind.BACKING_IMAGE, "i")),
            "",
            id="deleted: spec and status disks",
        ),
    ],
)
def test_backing_images(decision: ImageDecision, writes: tuple[Write, ...], ready: str) -> None:
    """One case per row."""
    assert (decision.writes, decision.ready) == (writes, frozenset(ready))


def test_a_copy_leaves_a_disk_without_disk_schedule_only_if_no_node_lists_it() -> None:
    """Node sync creates it for a listed disk; until then it is looked at again."""
    assert copies(image("A"), held("b")) == ImageDecision(requeue=True)
    assert copies(image("GONE"), held("b")).writes == (ChangeCopies("i", ("B",), ("GONE",)), want("B", 50))


def test_a_backing_image_without_a_disk_with_room_looks_again_later() -> None:
    """No watch brings the room."""
    decision = copies(image(), schedule("a", x=(90, None)), schedule("b", x=(90, None)))
    assert decision == ImageDecision(requeue=True)


def test_objects_are_read_and_written_with_all_that_others_wrote() -> None:
    """Volume, Replica and BackingImage keep what is not decided here."""
    volume = {"metadata": {"name": "v"}, "status": {"state": "attached", "conditions": [{"type": "Scheduled"}]}}
    written = convert.with_volume_condition(json.dumps(volume).encode(), PENDING)
    assert written["status"]["conditions"][0] == {"type": "Scheduled"}
    assert written["status"]["state"] == "attached"
    assert convert.volume_condition(json.dumps(written).encode(), "DiskAllocation") == PENDING
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
