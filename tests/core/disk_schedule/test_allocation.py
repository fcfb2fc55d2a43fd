"""DiskSchedules: what is granted, what is said about it, and which objects there are."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from scheduler_core.convert import disk_schedule as convert
from scheduler_core.disk_schedule.accounting import DiskAccounting, account
from scheduler_core.disk_schedule.allocation import Limit, allocate, claimed_bytes, would_grant
from scheduler_core.disk_schedule.mirror import mirror_spec, mirror_status
from scheduler_core.disk_schedule.node_sync import Create, Delete, UpdateSpec, sync_disks
from scheduler_core.disk_schedule.reconcile import Reconciliation, limit_of, reconcile
from scheduler_core.disk_schedule.requests import set_requirement
from scheduler_core.model.disk_schedule import (
    Allocation,
    AllocationState,
    DiskSchedule,
    DiskScheduleSpec,
    DiskScheduleStatus,
    Fault,
    RequestKind,
)
from scheduler_core.model.kube import Condition, condition
from scheduler_core.model.longhorn import BackingImage, Disk, Node, Replica

GI = 1024**3
NOW = "2006-01-02T15:04:05Z"
UUID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
EXAMPLE = """
apiVersion: longhorn.io/v1beta2
kind: DiskSchedule
metadata:
  finalizers:
    - longhorn.io
  name: aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee
  namespace: longhorn-system
spec:
  name: example-disk
  nodeID: example-node
  replicas:
    r1: 53687091200
    r2: 53687091200
    r3: 536870912000
    r4: 5368709120
  backingImages:
    b1: 53687091200
    b2: 53687091200
status:
  replicas:
    r1:
      state: scheduled
      scheduledSize: 53687091200
    r2:
      state: scheduled
      scheduledSize: 53687091200
    r3:
      state: rejected
      scheduledSize: 0
    # r4 is pending - present in spec but not yet in status
  backingImages:
    b1:
      state: scheduled
      scheduledSize: 53687091200
    b2:
      state: scheduled
      scheduledSize: 53687091200
  storageScheduled: 214748364800
  conditions:
    - lastProbeTime: ""
      lastTransitionTime: "2006-01-02T15:04:05Z"
      message: Disk example-disk is ready for scheduling on node example-node
      reason: ""
      status: "True"
      type: Schedulable
"""
READY = (Condition("Ready", "True"), Condition("Schedulable", "True"))


def yes(size: int) -> Allocation:
    """Granted."""
    return Allocation(AllocationState.SCHEDULED, size)


def no(held: int = 0) -> Allocation:
    """Rejected; what was held before is kept."""
    return Allocation(AllocationState.REJECTED, held)


def node(available: int, *, name: str = "example-node", **disk: Any) -> Node:
    """The example's node with its one disk."""
    values: dict[str, Any] = {"uuid": UUID, "conditions": READY, **disk}
    return Node(name, disks=(Disk("example-disk", storage_available=available, **values),))


def read(body: object) -> DiskSchedule:
    """A DiskSchedule as the API server would send it."""
    found = convert.read_disk_schedule(json.dumps(body).encode())
    assert isinstance(found, DiskSchedule)
    return found


def step(body: dict[str, Any], known: Node | Fault | None, now: str = NOW) -> tuple[dict[str, Any], Reconciliation]:
    """The object after one reconcile, written as the controller writes it."""
    outcome = reconcile(read(body), known, now)
    if outcome.status is None:
        return body, outcome
    return convert.with_status(json.dumps(body).encode(), outcome.status), outcome


def without_limit(body: dict[str, Any]) -> dict[str, Any]:
    """A status without the one field the proposal's example does not have."""
    return {key: value for key, value in body["status"].items() if key != "storageAvailable"}


def example(*leave: str) -> dict[str, Any]:
    """The example without some of its replicas' requests."""
    body: dict[str, Any] = yaml.safe_load(EXAMPLE)
    for name in leave:
        del body["spec"]["replicas"][name]
    return body


def test_the_examples_spec_leads_to_the_examples_status() -> None:
    """r1, r2, b1, b2 scheduled, r3 rejected, 200Gi in total, the condition in the same words."""
    fresh = {**example("r4"), "status": {}}
    assert without_limit(step(fresh, node(200 * GI))[0]) == yaml.safe_load(EXAMPLE)["status"]


def test_the_examples_status_stays_as_it_is() -> None:
    """Nothing is written again, though the clock goes on."""
    settled, _ = step(example("r4"), node(200 * GI))
    assert without_limit(settled) == yaml.safe_load(EXAMPLE)["status"]
    assert reconcile(read(settled), node(200 * GI), "2026-01-01T00:00:00Z") == Reconciliation()


def test_r4_is_pending_until_it_is_decided_and_allocated_once_there_is_room() -> None:
    """Pending means no answer; then rejected for want of room, then scheduled, all else as before."""
    body = example()
    assert "r4" not in read(body).status.replicas
    full, _ = step(body, node(200 * GI))
    assert full["status"]["replicas"]["r4"] == {"state": "rejected", "scheduledSize": 0}
    roomy, _ = step(full, node(205 * GI))
    assert roomy["status"]["replicas"]["r4"] == {"state": "scheduled", "scheduledSize": 5368709120}
    assert roomy["status"]["storageScheduled"] == 220117073920
    assert roomy["status"]["replicas"]["r3"] == {"state": "rejected", "scheduledSize": 0}


@pytest.mark.parametrize(
    ("asked", "before", "available", "after"),
    [
        pytest.param({"a": 10}, {}, 10, {"a": yes(10)}, id="newcomer that just fits"),
        pytest.param({"a": 11}, {}, 10, {"a": no()}, id="newcomer too large"),
        pytest.param({"a": 10}, {"a": no()}, 10, {"a": yes(10)}, id="rejected before, room now"),
        pytest.param({"a": 10}, {"a": yes(5)}, 10, {"a": yes(10)}, id="growth that fits"),
        pytest.param({"a": 11}, {"a": yes(5)}, 10, {"a": no(5)}, id="rejected growth keeps its old size"),
        pytest.param({"a": 5}, {"a": no(5)}, 10, {"a": yes(5)}, id="rejected growth taken back"),
        pytest.param({"a": 3}, {"a": yes(5)}, 0, {"a": yes(3)}, id="shrinking needs no room"),
        pytest.param({}, {"a": yes(5)}, 10, {}, id="withdrawn"),
        pytest.param({"a": 0}, {"a": yes(5)}, 10, {}, id="asking for 0 is withdrawing"),
        pytest.param({"b": 5}, {"a": yes(10)}, 10, {"b": yes(5)}, id="released first"),
        pytest.param({"a": 5}, {"a": yes(5)}, 3, {"a": yes(5)}, id="held bytes are never taken back"),
        pytest.param({"a": 5, "b": 1}, {"a": yes(5)}, 5, {"a": yes(5), "b": no()}, id="full to the byte"),
        pytest.param({"a": 5, "b": 5}, {}, 5, {"a": yes(5), "b": no()}, id="newcomers by name"),
        pytest.param({"a": 5, "b": 10}, {"b": yes(5)}, 10, {"a": no(), "b": yes(10)}, id="who holds something first"),
        pytest.param({"a": 9, "b": 4}, {}, 8, {"a": no(), "b": yes(4)}, id="a large one does not stop a small one"),
        pytest.param({"a": None}, {"a": yes(5)}, 10, {"a": no(5)}, id="unreadable size keeps what is held"),
        pytest.param({"a": None}, {}, 10, {"a": no()}, id="unreadable size gets nothing"),
        pytest.param({"a": 8, "b": 1}, {"a": yes(5)}, None, {"a": yes(5)}, id="unknown limit leaves all undecided"),
    ],
)
def test_allocation(
    asked: dict[str, int | None], before: dict[str, Allocation], available: int | None, after: dict[str, Allocation]
) -> None:
    """One rule per row, the same for replicas and for backing images."""
    limit = Limit(available)
    replicas = allocate(DiskScheduleSpec(replicas=asked), DiskScheduleStatus(replicas=before), limit)
    images = allocate(DiskScheduleSpec(backing_images=asked), DiskScheduleStatus(backing_images=before), limit)
    assert replicas.replicas == images.backing_images == after
    assert replicas.storage_scheduled == images.storage_scheduled == sum(entry.size for entry in after.values())


def test_backing_images_are_served_before_replicas() -> None:
    """A replica may need its image on the same disk."""
    after = allocate(DiskScheduleSpec(replicas={"a": 5}, backing_images={"z": 5}), DiskScheduleStatus(), Limit(5))
    assert (after.replicas, after.backing_images) == ({"a": no()}, {"z": yes(5)})


def test_requirements_are_set_and_withdrawn() -> None:
    """0 removes the entry; what is said already is the same spec."""
    replica = RequestKind.REPLICA
    image = RequestKind.BACKING_IMAGE
    spec = set_requirement(set_requirement(DiskScheduleSpec("d", "n"), replica, "r", 5), image, "b", 7)
    assert (spec.replicas, spec.backing_images) == ({"r": 5}, {"b": 7})
    assert set_requirement(spec, replica, "r", 5) is spec
    assert set_requirement(spec, replica, "other", 0) is spec
    assert set_requirement(set_requirement(spec, image, "b", 0), replica, "r", 0) == DiskScheduleSpec("d", "n")
    assert set_requirement(DiskScheduleSpec(replicas={"r": None}), replica, "r", 0) == DiskScheduleSpec()
    with pytest.raises(ValueError, match="-1 bytes"):
        set_requirement(spec, replica, "r", -1)


@pytest.mark.parametrize(
    ("known", "reason", "message"),
    [
        (None, "NodeMissing", "there is no such Longhorn node"),
        (Node("example-node"), "DiskMissing", "the node's status lists no such disk"),
        (node(100 * GI, uuid="other"), "DiskReplaced", "has the UUID other, not aaaaaaaa"),
        (node(100 * GI, in_status=False), "DiskMissing", "lists no such disk"),
        (
            node(100 * GI, conditions=(Condition("Ready", "False", "NoDiskInfo", "cannot be read"), READY[1])),
            "NoDiskInfo",
            "cannot be read",
        ),
        (
            node(100 * GI, conditions=(READY[0], Condition("Schedulable", "False", "DiskPressure", "too full"))),
            "DiskPressure",
            "too full",
        ),
        (node(100 * GI, conditions=()), "DiskNotReady", "Ready Unknown"),
    ],
)
def test_a_disk_that_cannot_be_used_rejects_and_says_why(known: Node | None, reason: str, message: str) -> None:
    """Who asked may look elsewhere; what is held stays."""
    body = {**example("r3"), "status": {"replicas": {"r1": {"state": "scheduled", "scheduledSize": 53687091200}}}}
    after, _ = step(body, known)
    assert after["status"]["replicas"]["r1"] == {"state": "scheduled", "scheduledSize": 53687091200}
    assert after["status"]["replicas"]["r4"] == {"state": "rejected", "scheduledSize": 0}
    (said,) = after["status"]["conditions"]
    assert (said["type"], said["status"], said["reason"]) == ("Schedulable", "False", reason)
    assert message in said["message"]


def test_a_node_that_cannot_be_read_leaves_requests_pending() -> None:
    """Nothing is decided about the unknown; what is withdrawn is released nevertheless."""
    body = example("r1")
    after, _ = step(body, Fault("status.diskStatus", "is a text, not an object"))
    assert "r4" not in after["status"]["replicas"]
    assert "r1" not in after["status"]["replicas"]
    assert after["status"]["conditions"][0]["status"] == "Unknown"
    assert "status.diskStatus is a text" in after["status"]["conditions"][0]["message"]


def test_a_limit_that_fell_below_what_is_held_is_reported() -> None:
    """Data was written: nothing is taken back, nothing more is granted, and the time says since when."""
    after, _ = step(example("r4"), node(150 * GI), "2026-01-01T00:00:00Z")
    assert after["status"]["storageScheduled"] == 200 * GI
    (said,) = after["status"]["conditions"]
    assert (said["reason"], said["lastTransitionTime"]) == ("OverAllocated", "2026-01-01T00:00:00Z")
    assert "200Gi are scheduled, 150Gi are available" in said["message"]


def test_a_negative_limit_is_none_at_all() -> None:
    """The limit of before would hide, in the column and the metric, what the condition says."""
    before, _ = step(example("r4"), node(250 * GI))
    after, _ = step(before, node(-5 * GI))
    assert after["status"]["storageAvailable"] == 0
    (said,) = after["status"]["conditions"]
    assert said["message"].endswith("200Gi are scheduled, 0 are available")
    empty = {**example(), "spec": {"name": "example-disk", "nodeID": "example-node"}, "status": {}}
    assert condition(read(step(empty, node(-5))[0]).status.conditions, "Schedulable").status == "True"


def test_a_foreign_condition_and_foreign_fields_stay() -> None:
    """Only what is decided here is written."""
    body = example("r4")
    body["metadata"]["labels"] = {"mine": "yes"}
    body["status"]["conditions"].insert(0, {"type": "Mine", "status": "True", "note": "kept"})
    body["status"]["other"] = 1
    after, _ = step(body, node(10 * GI))
    assert after["metadata"] == body["metadata"]
    assert after["status"]["other"] == 1
    assert after["status"]["conditions"][0]["note"] == "kept"
    assert after["status"]["conditions"][1]["reason"] == "OverAllocated"


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("negative size", {"spec": {"replicas": {"r1": -5}}}, "spec.replicas.r1 is -5"),
    ("a quantity", {"spec": {"replicas": {"r1": "50Gi"}}}, 'spec.replicas.r1 is "50Gi"'),
    ("too large", {"spec": {"backingImages": {"b": 2**63}}}, "spec.backingImages.b is 9223372036854775808"),
    ("no map", {"spec": {"replicas": ["r1"]}}, "spec.replicas is a list"),
    ("no spec", {"spec": "nothing"}, "spec is a text"),
    ("no name", {"spec": {"name": 5}}, "spec.name is a number"),
    ("no status", {"status": [1]}, "status is a list"),
    ("unknown state", {"status": {"replicas": {"r": {"state": "maybe"}}}}, "status.replicas.r is"),
    (
        "negative held",
        {"status": {"replicas": {"r": {"state": "scheduled", "scheduledSize": -1}}}},
        "status.replicas.r",
    ),
    ("no entry", {"status": {"replicas": {"r": None}}}, "status.replicas.r is null"),
    ("no conditions", {"status": {"conditions": [{"type": 5}]}}, "status.conditions"),
]


@pytest.mark.parametrize(("bad", "told"), [pytest.param(bad, told, id=name) for name, bad, told in BAD])
def test_what_cannot_be_read_ends_in_a_condition(bad: dict[str, Any], told: str) -> None:
    """The object is named and the field; one good request beside it is granted as ever."""
    base: dict[str, Any] = {"name": "example-disk", "nodeID": "example-node", "backingImages": {"good": 5}}
    spec = bad.get("spec", {})
    body: dict[str, Any] = {
        "metadata": {"name": UUID},
        "spec": {**base, **spec, "backingImages": {**base["backingImages"], **spec.get("backingImages", {})}}
        if isinstance(spec, dict)
        else spec,
        "status": bad.get("status", {}),
    }
    after, _ = step(body, node(100 * GI))
    said = {entry["type"]: entry for entry in after["status"]["conditions"]}["RequestsValid"]
    assert (said["status"], said["reason"]) == ("False", "InvalidRequests")
    assert told in said["message"]
    if isinstance(spec, dict) and "name" not in spec:
        assert after["status"]["backingImages"]["good"] == {"state": "scheduled", "scheduledSize": 5}


def test_a_mended_object_loses_the_condition_and_settles() -> None:
    """A status edited by hand is written anew; the second look finds nothing to say, the third nothing to write."""
    body = example("r4")
    body["status"]["replicas"]["r1"] = {"state": "perhaps"}
    once, _ = step(body, node(200 * GI))
    twice, _ = step(once, node(200 * GI))
    assert without_limit(twice) == yaml.safe_load(EXAMPLE)["status"]
    assert step(twice, node(200 * GI))[1] == Reconciliation()


@pytest.mark.parametrize("value", [-1, "0", 2**63])
def test_a_sum_that_is_no_size_is_written_anew_though_nothing_is_held(value: object) -> None:
    """Read as 0, it would look right already."""
    body = example()
    body["spec"]["replicas"], body["spec"]["backingImages"] = {}, {}
    empty, _ = step(step(body, node(200 * GI))[0], node(200 * GI))
    assert step(empty, node(200 * GI))[1] == Reconciliation()
    empty["status"]["storageScheduled"] = value
    (fault,) = read(empty).faults
    assert (fault.field, fault.in_status) == ("status.storageScheduled", True)
    mended, _ = step(empty, node(200 * GI))
    assert mended["status"]["storageScheduled"] == 0


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"metadata": 5}', b"\xff", b"[" * 5000])
def test_what_is_no_object_at_all_is_a_fault(raw: bytes) -> None:
    """A value with a reason, never an exception."""
    assert isinstance(convert.read_disk_schedule(raw), Fault)
    assert isinstance(convert.backing_image_copies(raw), Fault)


def test_a_deleted_object_goes_when_nothing_is_held_and_keeps_foreign_finalizers() -> None:
    """Until then it grants nothing more."""
    body = example("r3")
    body["metadata"].update(deletionTimestamp=NOW, finalizers=["longhorn.io", "somebody.else/here"])
    held, outcome = step(body, node(500 * GI))
    assert held["status"]["replicas"]["r4"]["state"] == "rejected"
    assert held["status"]["replicas"]["r1"]["state"] == "scheduled"
    assert (held["status"]["conditions"][0]["reason"], outcome.remove_finalizer) == ("BeingDeleted", False)
    gone, outcome = step({**held, "spec": {"name": "example-disk", "nodeID": "example-node"}}, node(500 * GI))
    assert outcome.remove_finalizer
    assert convert.without_finalizer(gone)["metadata"]["finalizers"] == ["somebody.else/here"]
    assert not reconcile(read(convert.without_finalizer(gone)), node(500 * GI), NOW).remove_finalizer


def test_a_spec_is_written_with_all_that_others_wrote() -> None:
    """Foreign fields stay, and so does a size that cannot be read."""
    body = example()
    body["spec"].update(note="mine", replicas={"r1": "50Gi", "r2": 5})
    raw = json.dumps({**body, "metadata": {**body["metadata"], "managedFields": [1], "resourceVersion": "7"}}).encode()
    found = convert.read_disk_schedule(raw)
    assert isinstance(found, DiskSchedule)
    after = convert.with_spec(raw, set_requirement(found.spec, RequestKind.REPLICA, "r2", 0))
    assert after["spec"] == {**body["spec"], "replicas": {"r1": "50Gi"}}
    assert after["metadata"] == {**body["metadata"], "resourceVersion": "7"}


def test_one_disk_schedule_for_each_disk_of_a_nodes_status() -> None:
    """Created with finalizer, named by the UUID; a disk only in the spec, or without UUID, has none yet."""
    disks = (Disk("a", uuid="u1"), Disk("b", uuid="u2", in_status=False), Disk("c", uuid=""))
    assert sync_disks([Node("n", disks=disks)], {}).changes == (Create("u1", "a", "n"),)
    body = convert.new_disk_schedule("longhorn-system", "u1", "a", "n")
    made = read(body)
    assert (made.name, made.spec, made.finalizers) == ("u1", DiskScheduleSpec("a", "n"), ("longhorn.io",))
    assert sync_disks([Node("n", disks=disks)], {"u1": made}).changes == ()


def test_a_disk_schedule_whose_disk_is_gone_is_deleted_once_nothing_is_held() -> None:
    """An allocation is never lost with it, and no node that cannot be read may list the disk."""
    unused = DiskSchedule("u", DiskScheduleSpec("a", "n"), finalizers=("longhorn.io",))
    assert sync_disks([], {"u": unused}).changes == (Delete(unused),)
    assert sync_disks([], {"u": unused}, unreadable_nodes=["m"]).changes == ()
    for used in (
        replace(unused, spec=DiskScheduleSpec("a", "n", replicas={"r": 5})),
        replace(unused, status=DiskScheduleStatus(backing_images={"b": yes(5)})),
        replace(unused, faults=(Fault("spec", "is a text"),)),
        replace(unused, deleting=True),
    ):
        assert sync_disks([], {"u": used}).changes == ()


def test_a_moved_or_edited_disk_schedule_follows_its_disk() -> None:
    """The spec says where the disk is, and the finalizer is put back."""
    known = DiskSchedule("u", DiskScheduleSpec("old", "n"), finalizers=("longhorn.io",))
    assert sync_disks([Node("m", disks=(Disk("a", uuid="u"),))], {"u": known}).changes == (UpdateSpec(known, "a", "m"),)
    bare = replace(known, spec=DiskScheduleSpec("a", "m"), finalizers=())
    assert sync_disks([Node("m", disks=(Disk("a", uuid="u"),))], {"u": bare}).changes == (UpdateSpec(bare, "a", "m"),)
    assert convert.with_finalizer({"metadata": {"finalizers": ["x"]}})["metadata"]["finalizers"] == ["x", "longhorn.io"]


def test_one_uuid_on_two_nodes_stays_where_it_was_and_is_reported() -> None:
    """No flapping between the two, whatever their order."""
    nodes = [Node(name, disks=(Disk("a", uuid="u"),)) for name in ("x", "y")]
    known = DiskSchedule("u", DiskScheduleSpec("a", "y"), finalizers=("longhorn.io",))
    for order in (nodes, nodes[::-1]):
        assert sync_disks(order, {"u": known}).changes == ()
        assert sync_disks(order, {}).changes == (Create("u", "a", "x"),)
        assert "listed more than once" in sync_disks(order, {}).problems[0]


def test_a_uuid_that_cannot_be_a_name_is_a_problem_and_no_request() -> None:
    """Or the API server would refuse it again and again."""
    found = sync_disks([Node("n", disks=(Disk("a", uuid="No Name"), Disk("b", uuid="u")))], {})
    assert found.changes == (Create("u", "b", "n"),)
    assert "'No Name' cannot be an object's name" in found.problems[0]


def test_room_is_what_is_neither_held_nor_pending() -> None:
    """Pending counts in full, a rejected newcomer 0, a rejected growth what it holds, the withdrawn until it is released."""
    spec = DiskScheduleSpec(replicas={"new": 10, "grows": 30, "no": 500, "stays": 90})
    status = DiskScheduleStatus(replicas={"grows": yes(20), "no": no(), "stays": no(40), "leaves": yes(7)})
    schedule = DiskSchedule("u", spec, status)
    assert claimed_bytes(schedule) == 10 + 30 + 0 + 40 + 7
    assert would_grant(schedule, Limit(100), 13)
    assert not would_grant(schedule, Limit(100), 14)
    assert not would_grant(schedule, Limit(100, "DiskPressure"), 1)
    assert not would_grant(schedule, Limit(None), 1)
    assert not would_grant(replace(schedule, deleting=True), Limit(100), 1)


@pytest.mark.parametrize(
    ("listed", "late", "asked", "answers", "expected"),
    [
        pytest.param({"r": 10}, [], {"r": 10}, {"r": yes(10)}, DiskAccounting(0, 90), id="listed and scheduled"),
        pytest.param({}, ["r"], {"r": 10}, {"r": yes(10)}, DiskAccounting(10, 90), id="placed and scheduled"),
        pytest.param({"r": 10}, ["r"], {"r": 10}, {"r": yes(10)}, DiskAccounting(0, 90), id="in all three"),
        pytest.param({}, [], {"r": 10}, {}, DiskAccounting(10, 90), id="pending, its Replica not seen yet"),
        pytest.param({}, ["r"], {}, {}, DiskAccounting(10, 90), id="placed, not asked for yet"),
        pytest.param({"r": 10}, [], {}, {}, DiskAccounting(0, 90), id="listed, not asked for yet"),
        pytest.param({}, ["r"], {"r": 10}, {"r": no()}, DiskAccounting(0, 100), id="rejected and placed"),
        pytest.param({"r": 10}, [], {"r": 10}, {"r": no()}, DiskAccounting(0, 100), id="rejected and listed"),
        pytest.param({"r": 10}, [], {"r": 25}, {"r": yes(10)}, DiskAccounting(15, 75), id="growing"),
        pytest.param({"r": 10}, [], {"r": 25}, {"r": no(10)}, DiskAccounting(0, 90), id="growth rejected"),
        pytest.param({}, [], {}, {"r": yes(10)}, DiskAccounting(10, 90), id="withdrawn, not released yet"),
    ],
)
def test_the_extender_counts_a_replica_once(
    listed: dict[str, int],
    late: list[str],
    asked: dict[str, int | None],
    answers: dict[str, Allocation],
    expected: DiskAccounting,
) -> None:
    """By name, wherever it is seen, with the largest of the sizes."""
    disk = Disk("d", uuid="u", storage_available=100, scheduled_replicas=listed)
    schedule = DiskSchedule("u", DiskScheduleSpec(replicas=asked), DiskScheduleStatus(replicas=answers))
    assert account(disk, schedule, [Replica(name, "v", 10) for name in late]) == expected


def test_the_extender_counts_a_backing_image_once() -> None:
    """Longhorn's status has it in storageScheduled already; a copy that is only asked for is not."""
    disk = Disk("d", uuid="u", storage_available=100, scheduled_backing_images={"b": 10, "unknown": 0})
    schedule = DiskSchedule(
        "u", DiskScheduleSpec(backing_images={"b": 10, "c": 5}), DiskScheduleStatus(backing_images={"b": yes(10)})
    )
    assert account(disk, schedule, ()) == DiskAccounting(5, 85)


def test_a_mirror_says_what_is_there_and_reports_an_over_allocation() -> None:
    """Everything counts as scheduled, whatever the limit."""
    schedule = DiskSchedule(UUID, DiskScheduleSpec("example-disk", "example-node"))
    replicas = [Replica("r", "v", 70 * GI, "example-node", UUID), Replica("s", "w", 5 * GI, "other", "elsewhere")]
    images = [BackingImage("b", disks=(UUID,), real_size=40 * GI), BackingImage("c", disks=(UUID,))]
    seen = replace(schedule, spec=mirror_spec(schedule, replicas, images))
    status = mirror_status(seen, node(100 * GI), NOW)
    assert status is not None
    assert (status.replicas, status.backing_images) == ({"r": yes(70 * GI)}, {"b": yes(40 * GI)})
    assert status.storage_scheduled == 110 * GI
    assert condition(status.conditions, "Schedulable").reason == "OverAllocated"
    assert mirror_status(replace(seen, status=status), node(100 * GI), "later") is None


def test_the_limit_is_the_disks_storage_available() -> None:
    """Nothing else of the node counts: no percentage, no reserve."""
    schedule = DiskSchedule(UUID, DiskScheduleSpec("example-disk", "example-node"))
    assert limit_of(schedule, node(7, storage_reserved=5, storage_maximum=9)) == Limit(7)
