"""DiskSchedules: allocation, conditions, and which objects exist."""

import json
from typing import Any

import pytest
import yaml

from scheduler_core.convert import disk_schedule as convert
from scheduler_core.disk_schedule.allocation import Limit
from scheduler_core.disk_schedule.occupancy import NO_OCCUPANTS
from scheduler_core.disk_schedule.reconcile import (
    Create,
    Delete,
    NodeLookup,
    Reconciliation,
    UpdateSpec,
    limit_of,
    mirror_spec,
    mirror_status,
    new_schedule,
    reconcile,
    sync_disks,
)
from scheduler_core.disk_schedule.writes import set_requirement
from scheduler_core.model.disk_schedule import DiskSchedule, DiskScheduleSpec, DiskScheduleStatus, Fault, RequestKind
from scheduler_core.model.kube import Condition, condition
from scheduler_core.model.longhorn import BackingImage, Disk, Node, Replica
from scheduler_core.structs import replace
from tests.e2e.disk_schedule_examples import EXAMPLE as SPEC, UUID
from tests.worlds.disk_schedules import READY, grant

GI = 1024**3
NOW = "2006-01-02T15:04:05Z"
EXAMPLE = f"""{SPEC}status:
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


def node(available: int, *, name: str = "example-node", **disk: Any) -> Node:
    values: dict[str, Any] = {"uuid": UUID, "conditions": READY, **disk}
    return Node(name, disks=(Disk("example-disk", storage_available=available, **values),))


def read(body: object) -> DiskSchedule:
    schedule = convert.read_disk_schedule(json.dumps(body).encode())
    assert isinstance(schedule, DiskSchedule)
    return schedule


def step(
    body: dict[str, Any], observed_node: Node | Fault | None, now: str = NOW
) -> tuple[dict[str, Any], Reconciliation]:
    outcome = reconcile(read(body), observed_node, now)
    if outcome.status is None:
        return body, outcome
    return convert.with_status(json.dumps(body).encode(), outcome.status), outcome


def status_without_limit(body: dict[str, Any]) -> dict[str, Any]:
    """The status without storageAvailable and storageSummary, which the proposal's example does not have."""
    return {key: value for key, value in body["status"].items() if key not in {"storageAvailable", "storageSummary"}}


def example(*omitted: str) -> dict[str, Any]:
    """The proposal's example without some of its replicas' requests."""
    body: dict[str, Any] = yaml.safe_load(EXAMPLE)
    for name in omitted:
        del body["spec"]["replicas"][name]
    return body


def test_the_example_s_spec_leads_to_the_example_s_status() -> None:
    fresh = {**example("r4"), "status": {}}
    after, _ = step(fresh, node(200 * GI + GI // 2))
    assert status_without_limit(after) == yaml.safe_load(EXAMPLE)["status"]
    assert after["status"]["storageSummary"] == {"scheduled": "200Gi", "available": "200.5Gi"}


def test_a_requirement_is_set_and_withdrawn() -> None:
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
    ("observed_node", "reason", "message"),
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
def test_an_unusable_disk_rejects_requests_and_reports_the_reason(
    observed_node: Node | None, reason: str, message: str
) -> None:
    body = {**example("r3"), "status": {"replicas": {"r1": {"state": "scheduled", "scheduledSize": 53687091200}}}}
    after, _ = step(body, observed_node)
    assert after["status"]["replicas"]["r1"] == {"state": "scheduled", "scheduledSize": 53687091200}
    assert after["status"]["replicas"]["r4"] == {"state": "rejected", "scheduledSize": 0}
    (reported,) = after["status"]["conditions"]
    assert (reported["type"], reported["status"], reported["reason"]) == ("Schedulable", "False", reason)
    assert message in reported["message"]


def test_a_node_that_cannot_be_read_leaves_requests_pending() -> None:
    body = example("r1")
    after, _ = step(body, Fault("status.diskStatus", "is a text, not an object"))
    assert "r4" not in after["status"]["replicas"]
    assert "r1" not in after["status"]["replicas"]
    assert after["status"]["conditions"][0]["status"] == "Unknown"
    assert "status.diskStatus is a text" in after["status"]["conditions"][0]["message"]


def test_a_limit_below_the_bytes_held_is_reported() -> None:
    after, _ = step(example("r4"), node(150 * GI), "2026-01-01T00:00:00Z")
    assert after["status"]["storageScheduled"] == 200 * GI
    (reported,) = after["status"]["conditions"]
    assert (reported["reason"], reported["lastTransitionTime"]) == ("OverAllocated", "2026-01-01T00:00:00Z")
    assert "200Gi are scheduled, 150Gi are available" in reported["message"]


def test_a_negative_limit_is_shown_as_it_is() -> None:
    before, _ = step(example("r4"), node(250 * GI))
    after, _ = step(before, node(-5 * GI))
    assert after["status"]["storageAvailable"] == -5 * GI
    assert read(after).status.storage_available == -5 * GI
    (reported,) = after["status"]["conditions"]
    assert reported["message"].endswith("200Gi are scheduled, -5Gi are available")
    empty = {**example(), "spec": {"name": "example-disk", "nodeID": "example-node"}, "status": {}}
    assert condition(read(step(empty, node(-5))[0]).status.conditions, "Schedulable").status == "True"


@pytest.mark.parametrize(
    ("available", "deferrable"),
    [
        pytest.param(250 * GI - 1, True, id="a byte"),
        pytest.param(248 * GI, True, id="less than a hundredth"),
        pytest.param(247 * GI, False, id="more than a hundredth"),
        pytest.param(199 * GI, False, id="below what is held: OverAllocated"),
    ],
)
def test_a_small_change_of_the_free_space_need_not_be_written_at_once(available: int, *, deferrable: bool) -> None:
    before, _ = step(example("r4"), node(250 * GI))
    outcome = reconcile(read(before), node(available), NOW)
    assert outcome.status is not None
    assert (outcome.deferrable, outcome.status.storage_available) == (deferrable, available)


def test_a_small_change_that_lets_a_request_fit_is_written_at_once() -> None:
    waiting, _ = step(example(), node(205 * GI - 1))
    assert not reconcile(read(waiting), node(205 * GI), NOW).deferrable
    over, _ = step(example("r4"), node(190 * GI))
    assert reconcile(read(over), node(190 * GI - 1), NOW).deferrable


def test_conditions_and_fields_of_other_controllers_stay() -> None:
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


@pytest.mark.parametrize(("bad", "problem"), [pytest.param(bad, problem, id=name) for name, bad, problem in BAD])
def test_an_unreadable_field_is_reported_in_a_condition(bad: dict[str, Any], problem: str) -> None:
    valid_spec: dict[str, Any] = {"name": "example-disk", "nodeID": "example-node", "backingImages": {"good": 5}}
    spec = bad.get("spec", {})
    body: dict[str, Any] = {
        "metadata": {"name": UUID},
        "spec": {
            **valid_spec,
            **spec,
            "backingImages": {**valid_spec["backingImages"], **spec.get("backingImages", {})},
        }
        if isinstance(spec, dict)
        else spec,
        "status": bad.get("status", {}),
    }
    after, _ = step(body, node(100 * GI))
    reported = {entry["type"]: entry for entry in after["status"]["conditions"]}["RequestsValid"]
    assert (reported["status"], reported["reason"]) == ("False", "InvalidRequests")
    assert problem in reported["message"]
    if isinstance(spec, dict) and "name" not in spec:
        assert after["status"]["backingImages"]["good"] == {"state": "scheduled", "scheduledSize": 5}


def test_a_corrected_object_loses_the_condition() -> None:
    body = example("r4")
    body["status"]["replicas"]["r1"] = {"state": "perhaps"}
    once, _ = step(body, node(200 * GI))
    twice, _ = step(once, node(200 * GI))
    assert status_without_limit(twice) == yaml.safe_load(EXAMPLE)["status"]
    assert step(twice, node(200 * GI))[1] == Reconciliation()


@pytest.mark.parametrize("value", [-1, "0", 2**63])
def test_an_unreadable_sum_is_replaced_even_if_nothing_is_held(value: object) -> None:
    """Read as 0, it would look right already."""
    body = example()
    body["spec"]["replicas"] = {}
    body["spec"]["backingImages"] = {}
    empty, _ = step(step(body, node(200 * GI))[0], node(200 * GI))
    assert step(empty, node(200 * GI))[1] == Reconciliation()
    empty["status"]["storageScheduled"] = value
    (fault,) = read(empty).faults
    assert (fault.field, fault.in_status) == ("status.storageScheduled", True)
    corrected, _ = step(empty, node(200 * GI))
    assert corrected["status"]["storageScheduled"] == 0


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"metadata": 5}', b"\xff", b"[" * 5000])
def test_an_unreadable_object_is_a_fault(raw: bytes) -> None:
    assert isinstance(convert.read_disk_schedule(raw), Fault)
    assert isinstance(convert.backing_image_copies(raw), Fault)


def test_a_deleted_object_loses_its_finalizer_once_nothing_is_held() -> None:
    body = example("r3")
    body["metadata"].update(deletionTimestamp=NOW, finalizers=["longhorn.io", "example.com/other"])
    after, outcome = step(body, None)
    assert after["status"]["replicas"]["r4"]["state"] == "rejected"
    assert after["status"]["replicas"]["r1"]["state"] == "scheduled"
    assert (after["status"]["conditions"][0]["reason"], outcome.remove_finalizer) == ("NodeMissing", False)
    empty, outcome = step({**after, "spec": {"name": "example-disk", "nodeID": "example-node"}}, None)
    assert outcome.remove_finalizer
    assert convert.set_finalizer(empty, present=False)["metadata"]["finalizers"] == ["example.com/other"]
    assert not reconcile(read(convert.set_finalizer(empty, present=False)), None, NOW).remove_finalizer


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "NodeMissing"),
        (node(100 * GI, in_status=False), "DiskMissing"),
        (node(100 * GI, uuid="other"), "DiskReplaced"),
        (Fault("spec.disks", "is a text"), "BeingDeleted"),
        (node(100 * GI), "BeingDeleted"),
    ],
    ids=["node gone", "disk gone", "disk replaced", "not known", "there"],
)
def test_a_deleted_object_says_that_its_disk_is_gone(found: NodeLookup, reason: str) -> None:
    """Its replicas hold their bytes, and their volumes would look fine for ever."""
    body = example("r3")
    body["metadata"]["deletionTimestamp"] = NOW
    limit = limit_of(read(body), found)
    assert (limit.reason, limit.grants(0, 1)) == (reason, False)
    assert limit.message.endswith("its DiskSchedule is being deleted")


def test_a_deleted_object_whose_disk_is_there_leaves_its_requests_to_its_successor() -> None:
    """A rejection would send new replicas to other disks for nothing."""
    body = example("r3")
    body["metadata"]["deletionTimestamp"] = NOW
    after, _ = step(body, node(500 * GI))
    assert "r4" not in after["status"]["replicas"]
    assert after["status"]["conditions"][0]["reason"] == "BeingDeleted"


def test_a_written_spec_keeps_unknown_fields() -> None:
    body = example()
    body["spec"].update(note="mine", replicas={"r1": "50Gi", "r2": 5})
    raw = json.dumps({**body, "metadata": {**body["metadata"], "managedFields": [1], "resourceVersion": "7"}}).encode()
    schedule = convert.read_disk_schedule(raw)
    assert isinstance(schedule, DiskSchedule)
    after = convert.with_spec(raw, set_requirement(schedule.spec, RequestKind.REPLICA, "r2", 0))
    assert after["spec"] == {**body["spec"], "replicas": {"r1": "50Gi"}}
    assert after["metadata"] == {**body["metadata"], "resourceVersion": "7"}


def test_each_disk_of_a_node_s_status_gets_one_disk_schedule() -> None:
    disks = (Disk("a", uuid="u1"), Disk("b", uuid="u2", in_status=False), Disk("c", uuid=""))
    assert sync_disks([Node("n", disks=disks)], {}).changes == (Create("u1", "a", "n"),)
    body = convert.new_disk_schedule("longhorn-system", new_schedule(Create("u1", "a", "n"), NO_OCCUPANTS))
    created = read(body)
    assert (created.name, created.spec, created.finalizers) == ("u1", DiskScheduleSpec("a", "n"), ("longhorn.io",))
    assert sync_disks([Node("n", disks=disks)], {"u1": created}).changes == ()


def test_the_disk_schedule_of_a_removed_disk_is_deleted_once_nothing_is_held() -> None:
    """Not while an unreadable node might list the disk."""
    unused = DiskSchedule("u", DiskScheduleSpec("a", "n"), finalizers=("longhorn.io",))
    assert sync_disks([], {"u": unused}).changes == (Delete(unused),)
    assert sync_disks([], {"u": unused}, unreadable_nodes=["m"]).changes == ()
    for used in (
        replace(unused, spec=DiskScheduleSpec("a", "n", replicas={"r": 5})),
        replace(unused, status=DiskScheduleStatus(backing_images={"b": grant(5)})),
        replace(unused, faults=(Fault("spec", "is a text"),)),
        replace(unused, deleting=True),
    ):
        assert sync_disks([], {"u": used}).changes == ()


def test_a_moved_or_edited_disk_schedule_follows_its_disk() -> None:
    schedule = DiskSchedule("u", DiskScheduleSpec("old", "n"), finalizers=("longhorn.io",))
    assert sync_disks([Node("m", disks=(Disk("a", uuid="u"),))], {"u": schedule}).changes == (
        UpdateSpec(schedule, "a", "m"),
    )
    bare = replace(schedule, spec=DiskScheduleSpec("a", "m"), finalizers=())
    assert sync_disks([Node("m", disks=(Disk("a", uuid="u"),))], {"u": bare}).changes == (UpdateSpec(bare, "a", "m"),)
    assert convert.set_finalizer({"metadata": {"finalizers": ["x"]}}, present=True)["metadata"]["finalizers"] == [
        "x",
        "longhorn.io",
    ]


def test_a_uuid_on_two_nodes_keeps_its_node_and_is_reported() -> None:
    nodes = [Node(name, disks=(Disk("a", uuid="u"),)) for name in ("x", "y")]
    schedule = DiskSchedule("u", DiskScheduleSpec("a", "y"), finalizers=("longhorn.io",))
    for order in (nodes, nodes[::-1]):
        assert sync_disks(order, {"u": schedule}).changes == ()
        assert sync_disks(order, {}).changes == (Create("u", "a", "x"),)
        assert "listed more than once" in sync_disks(order, {}).problems[0]


def test_a_uuid_that_cannot_be_a_name_is_reported_and_not_created() -> None:
    """The API server would refuse the object again and again."""
    synced = sync_disks([Node("n", disks=(Disk("a", uuid="No Name"), Disk("b", uuid="u")))], {})
    assert synced.changes == (Create("u", "b", "n"),)
    assert "'No Name' cannot be an object's name" in synced.problems[0]


def test_a_mirror_lists_what_is_on_the_disk_and_reports_an_over_allocation() -> None:
    schedule = DiskSchedule(UUID, DiskScheduleSpec("example-disk", "example-node"))
    replicas = [Replica("r", "v", 70 * GI, "example-node", UUID), Replica("s", "w", 5 * GI, "other", "elsewhere")]
    images = [BackingImage("b", disks=(UUID,), real_size=40 * GI), BackingImage("c", disks=(UUID,))]
    mirror = replace(schedule, spec=mirror_spec(schedule, replicas, images))
    status = mirror_status(mirror, node(100 * GI), NOW)
    assert status is not None
    assert (status.replicas, status.backing_images) == ({"r": grant(70 * GI)}, {"b": grant(40 * GI)})
    assert status.storage_scheduled == 110 * GI
    assert condition(status.conditions, "Schedulable").reason == "OverAllocated"
    assert mirror_status(replace(mirror, status=status), node(100 * GI), "later") is None


def test_the_limit_is_the_disk_s_storage_available() -> None:
    schedule = DiskSchedule(UUID, DiskScheduleSpec("example-disk", "example-node"))
    assert limit_of(schedule, node(7, storage_reserved=5, storage_maximum=9)) == Limit(7)
