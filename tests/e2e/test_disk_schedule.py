"""The DiskSchedule controllers on a real API server, under their ServiceAccount."""

import time
from functools import partial
from pathlib import Path

import pytest

from app.disk_schedule.lifecycle import LEASE
from app.kube.client import ApiError
from app.kube.resources import (
    DISK_SCHEDULES,
    EVENTS,
    LEASES,
    LONGHORN_BACKING_IMAGES,
    LONGHORN_NODES,
    LONGHORN_REPLICAS,
    LONGHORN_VOLUMES,
)
from devcluster.dev_cluster import DevCluster
from devcluster.stack import FAST_LEASE as FAST
from scheduler_core.convert.disk_schedule import KEEP_LABEL, MIRROR_LABEL
from tests import builders
from tests.builders import GI, Object
from tests.e2e.disk_schedule import (
    ACCOUNT,
    LONGHORN,
    MANIFESTS,
    MIRROR,
    NO_RESERVE,
    WORKING,
    Longhorn,
    controller_calls,
    granted,
    image,
    install,
    removal_commands,
    replica,
    run_command,
)
from tests.e2e.disk_schedule_examples import BAD, EXAMPLE, UUID, example_node
from tests.e2e.disk_schedule_monitor import DiskScheduleMonitor
from tests.e2e.disk_schedule_rounds import DISKS, disk_states, expansion_round, image_round, replica_round

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.mark.smoke
def test_the_proposals_example_gets_its_status(longhorn: Longhorn) -> None:
    """A replica is granted once there is room, as kubectl shows. No Replica exists; with the documented label the
    requests stay nevertheless.
    """
    longhorn.create(example_node(200))
    kept = EXAMPLE.replace("metadata:\n", f'metadata:\n  labels: {{{KEEP_LABEL}: "true"}}\n')
    longhorn.cluster.kubectl("-n", longhorn.namespace, "apply", "-f", "-", input=kept)
    longhorn.start("one", *FAST, "--release-orphans-after", "1")
    longhorn.until("r4 is decided", lambda: "r4" in longhorn.status(UUID).get("replicas", {}))
    status = longhorn.status(UUID)
    granted = {"state": "scheduled", "scheduledSize": 53687091200}
    rejected = {"state": "rejected", "scheduledSize": 0}
    assert status["replicas"] == {"r1": granted, "r2": granted, "r3": rejected, "r4": rejected}
    assert status["backingImages"] == {"b1": granted, "b2": granted}
    assert status["storageScheduled"] == 214748364800
    [condition] = status["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Schedulable", "True", "")
    assert condition["message"] == "Disk example-disk is ready for scheduling on node example-node"

    path = {"status": {"diskStatus": {"example-disk": {"storageAvailable": 205 * GI}}}}
    longhorn.patch(LONGHORN_NODES, "example-node", path, "status")
    longhorn.until("r4 is allocated", lambda: longhorn.status(UUID)["replicas"]["r4"]["state"] == "scheduled")
    status = longhorn.status(UUID)
    assert status["replicas"]["r4"] == {"state": "scheduled", "scheduledSize": 5368709120}
    assert status["storageScheduled"] == 205 * GI
    header, row = longhorn.cluster.kubectl("-n", longhorn.namespace, "get", "diskschedules").strip().splitlines()
    assert header.split() == ["NAME", "NODE", "DISK", "SCHEDULED", "AVAILABLE", "SCHEDULABLE", "REASON", "AGE"]
    assert row.split()[:6] == [UUID, "example-node", "example-disk", "205Gi", "205Gi", "True"]


def test_the_definition_has_defaults_and_allows_two_states_only(longhorn: Longhorn) -> None:
    """The writes are whole objects, as a controller writes them. They lack maps, have conditions that are null, or have an unknown state."""
    requests: Object = {"replicas": {}, "backingImages": {}}
    bare = {"apiVersion": builders.LONGHORN, "kind": "DiskSchedule", "metadata": {"name": "bare"}}
    raw = longhorn.cluster.api.create(DISK_SCHEDULES.path(longhorn.namespace), bare)
    assert raw["spec"] == {"name": "", "nodeID": "", **requests}
    raw = {**raw, "spec": {"name": "disk-1", "nodeID": "n"}}
    assert longhorn.replace(DISK_SCHEDULES, "bare", raw)["spec"] == {"name": "disk-1", "nodeID": "n", **requests}

    raw = longhorn.get(DISK_SCHEDULES, "bare")
    incomplete = {"replicas": {"r": {"state": "rejected"}}, "conditions": None}
    longhorn.replace(DISK_SCHEDULES, "bare", {**raw, "status": incomplete}, "status")
    raw = longhorn.get(DISK_SCHEDULES, "bare")
    assert raw["status"] == {
        "replicas": {"r": {"state": "rejected", "scheduledSize": 0}},
        "backingImages": {},
        "storageScheduled": 0,
        "conditions": None,
    }
    for field in ("replicas", "backingImages"):
        odd = {**raw, "status": {field: {"r": {"state": "maybe"}}}}
        with pytest.raises(ApiError, match=rf'status\.{field}\.r\.state: Unsupported value: "maybe"') as refused:
            longhorn.replace(DISK_SCHEDULES, "bare", odd, "status")
        assert refused.value.status == 422


@pytest.mark.smoke
def test_a_volumes_replicas_are_placed_expanded_and_released(longhorn: Longhorn) -> None:
    longhorn.add_nodes({"n1": 100, "n2": 100})
    longhorn.start("one", *FAST)
    longhorn.add_volumes(["v"], 30, replicas=2)
    longhorn.wait_allocated("v")
    disks = {name: raw["spec"]["diskID"] for name, raw in longhorn.items(LONGHORN_REPLICAS).items()}
    assert sorted(disks.values()) == ["n1-disk-1", "n2-disk-1"]
    for name, uuid in disks.items():
        assert longhorn.status(uuid)["replicas"] == {name: {"state": "scheduled", "scheduledSize": 30 * GI}}

    longhorn.patch(LONGHORN_VOLUMES, "v", {"spec": {"size": str(80 * GI)}})
    longhorn.until("both replicas have grown", lambda: longhorn.sizes() == {80 * GI})
    longhorn.wait_allocated("v")
    longhorn.patch(LONGHORN_VOLUMES, "v", {"spec": {"size": str(101 * GI)}})
    longhorn.until("it cannot grow further", lambda: longhorn.reason("v") == "ExpansionRejected")
    longhorn.until(
        "the old sizes are requested", lambda: {longhorn.requested_bytes(uuid) for uuid in disks.values()} == {80 * GI}
    )
    assert longhorn.sizes() == {80 * GI}
    message = longhorn.allocation("v")["message"]
    assert message.startswith("the volume cannot grow to 101Gi: no room on disk disk-1 on node n")

    for name in disks:
        longhorn.delete(LONGHORN_REPLICAS, name)
    longhorn.until("the replicas are gone", lambda: not longhorn.items(LONGHORN_REPLICAS))
    longhorn.until(
        "their room is free", lambda: all(not longhorn.status(uuid)["storageScheduled"] for uuid in disks.values())
    )


def test_a_disk_schedule_that_is_deleted_by_hand_gets_a_successor(longhorn: Longhorn) -> None:
    """Its copy and its replica keep their requests and grants."""
    longhorn.add_nodes({"n1": 100})
    copy = image("i", 10, disks=["n1-disk-1"])
    copy["status"]["diskFileStatusMap"] = {"n1-disk-1": {"state": "ready"}}
    longhorn.create(copy, replica("r", "v", 20, "n1", healthy=True))
    longhorn.create(builders.volume("v", 20, locality="disabled"))
    longhorn.start("one", *FAST)

    def uid_if_all_granted() -> str:
        """The UID of the DiskSchedule if it grants both, otherwise ""."""
        raw = longhorn.items(DISK_SCHEDULES).get("n1-disk-1", {"metadata": {"uid": ""}})
        granted = (raw.get("status") or {}).get("storageScheduled") == 30 * GI
        return str(raw["metadata"]["uid"]) if granted and "deletionTimestamp" not in raw["metadata"] else ""

    first = longhorn.until("both are granted", uid_if_all_granted)
    longhorn.cluster.kubectl("-n", longhorn.namespace, "delete", "diskschedule", "n1-disk-1", "--wait=false")
    longhorn.until("a successor grants both", lambda: uid_if_all_granted() not in ("", first))
    assert longhorn.status("n1-disk-1")["storageScheduled"] == 30 * GI


@pytest.mark.smoke
def test_bad_objects_get_a_condition_and_disturb_no_other_object(longhorn: Longhorn) -> None:
    """The controllers keep running, and good objects are allocated. The objects have unknown disks or nodes, a negative
    size, a foreign finalizer, unreadable fields, or are edited by hand.
    """
    longhorn.add_nodes({"n1": 100})
    process = longhorn.start("one", *FAST)
    longhorn.until("the good disk is ready", lambda: longhorn.schedulable("n1-disk-1").get("status") == "True")
    cases = {
        "unknown-node": ("disk-1", "nowhere", 5, "NodeMissing"),
        "unknown-disk": ("disk-9", "n1", 5, "DiskMissing"),
        "other-uuid": ("disk-1", "n1", 5, "DiskReplaced"),
        "foreign": ("disk-9", "n1", 5, "DiskMissing"),
    }
    negative = BAD.format(name="negative", disk="disk-9", node="n1", size=-5)
    refused = longhorn.cluster.kubectl("-n", longhorn.namespace, "apply", "-f", "-", input=negative, check=False)
    assert "spec.replicas.r in body should be greater than or equal to 0" in refused
    text = "---".join(
        BAD.format(name=name, disk=disk, node=node, size=size) for name, (disk, node, size, _) in cases.items()
    )
    longhorn.cluster.kubectl("-n", longhorn.namespace, "apply", "-f", "-", input=text)
    for name, (_, _, _, reason) in cases.items():
        condition = longhorn.until(f"{name} has a condition", partial(longhorn.schedulable, name))
        assert (condition["status"], condition["reason"]) == ("False", reason), condition

    # The replica comes first: a volume without replicas is allocated at once.
    longhorn.create(replica("odd-r", "odd", 5, "n1"))
    longhorn.create(builders.volume("odd", 5, locality="disabled"))
    longhorn.wait_allocated("odd")
    longhorn.patch(LONGHORN_REPLICAS, "odd-r", {"spec": {"volumeSize": str(2**70)}})
    longhorn.until("the volume says so", lambda: longhorn.reason("odd") == "Unreadable")
    assert "replica odd-r cannot be read: spec.volumeSize" in longhorn.allocation("odd")["message"]

    longhorn.patch(DISK_SCHEDULES, "n1-disk-1", {"status": {"storageScheduled": 1, "conditions": None}}, "status")
    longhorn.until("an edit is undone", lambda: longhorn.status("n1-disk-1").get("conditions"))
    longhorn.add_volumes(["good"], 20)
    longhorn.wait_allocated("good")
    assert longhorn.status("n1-disk-1")["storageScheduled"] == (5 + 20) * GI, "earlier grants stay"

    longhorn.cluster.kubectl("-n", longhorn.namespace, "delete", "diskschedule", "foreign", "--wait=false")
    longhorn.patch(DISK_SCHEDULES, "foreign", {"spec": {"replicas": {"r": None}}})
    longhorn.until(
        "it grants nothing any more",
        lambda: (
            "is being deleted" in longhorn.schedulable("foreign")["message"]
            and not longhorn.status("foreign").get("replicas")
        ),
    )
    longhorn.delete(LONGHORN_REPLICAS, "odd-r")
    longhorn.until("the unreadable replica is gone", lambda: not longhorn.exists(LONGHORN_REPLICAS, "odd-r"))
    assert longhorn.schedulable("foreign")["reason"] == "DiskMissing"
    finalizers = longhorn.get(DISK_SCHEDULES, "foreign")["metadata"]["finalizers"]
    assert finalizers == ["example.com/mine"], "the controllers must not remove a foreign finalizer"
    assert process.running
    assert longhorn.get_path(process, "/readyz")[0] == 200
    retries = 'longhorn_scheduler_extender_disk_schedule_retries_total{controller="disk-schedule",why="failed"}'
    assert longhorn.metric(process, retries) == 0


def test_a_request_without_its_object_is_withdrawn_after_a_while(longhorn: Longhorn) -> None:
    """The requests are for a replica and an image that never existed. What is granted to existing objects stays."""
    longhorn.add_nodes({"n1": 100})
    longhorn.start("one", *FAST, "--release-orphans-after", "2")
    longhorn.until("the disk is ready", lambda: longhorn.schedulable("n1-disk-1").get("status") == "True")
    longhorn.add_volumes(["v"], 20)
    longhorn.wait_allocated("v")
    requests = {"spec": {"replicas": {"ghost": 10 * GI}, "backingImages": {"spirit": 10 * GI}}}
    # Both are granted for two seconds only; the monitor receives every version.
    with DiskScheduleMonitor(longhorn.cluster.kubeconfig, longhorn.namespace) as monitor:
        longhorn.patch(DISK_SCHEDULES, "n1-disk-1", requests)
        longhorn.until("both are granted, in addition to the existing one", lambda: monitor.grants == 3)
        longhorn.until("both are released", lambda: longhorn.status("n1-disk-1")["storageScheduled"] == 20 * GI)
    assert monitor.grants == 3
    assert list(longhorn.status("n1-disk-1")["replicas"]) == ["v-r0"]


def test_the_controllers_do_not_allocate_while_longhorn_manager_runs(longhorn: Longhorn) -> None:
    """A new process exits with code 2; a running one pauses meanwhile."""
    longhorn.add_nodes({"n1": 100})
    process = longhorn.start("one", *FAST)
    longhorn.until("it works", lambda: longhorn.schedulable("n1-disk-1").get("status") == "True")
    longhorn.add_manager("longhorn-manager-x")
    longhorn.until("it says so", lambda: longhorn.get_path(process, "/readyz")[0] == 503)
    assert "longhorn-manager runs here (pod longhorn-manager-x)" in longhorn.get_path(process, "/readyz")[1]
    longhorn.until("it pauses", lambda: longhorn.metric(process, WORKING) == 0)
    longhorn.add_volumes(["v"], 20)
    time.sleep(2)
    assert longhorn.get(LONGHORN_REPLICAS, "v-r0")["spec"]["diskID"] == ""

    assert longhorn.refusal_to_start() == (
        2,
        "longhorn-extender: longhorn-manager runs here (pod longhorn-manager-x) and allocates by itself; use --mirror to observe it\n",
    )
    longhorn.cluster.kubectl(
        "-n", longhorn.namespace, "delete", "pod", "longhorn-manager-x", "--force", "--grace-period=0"
    )
    longhorn.wait_allocated("v")


@pytest.mark.parametrize("longhorn", [pytest.param(MIRROR, id="with its Role")], indirect=True)
def test_the_mirror_records_what_longhorn_allocated_and_changes_nothing_else(longhorn: Longhorn) -> None:
    """It runs with longhorn-manager, and reports over-allocated disks."""
    longhorn.delete(LEASES, LEASE)  # the mirror creates its own
    longhorn.add_nodes({"n1": 100, "n2": 100})
    longhorn.add_manager("longhorn-manager-x")
    longhorn.create(replica("r1", "v", 70, "n1"), replica("r2", "v", 10), image("i", 20, disks=["n1-disk-1"]))
    longhorn.create(builders.volume("v", 70, locality="disabled"))
    before = longhorn.dump_longhorn()
    process = longhorn.start("one", *FAST, "--mirror")
    longhorn.until("everything is recorded", lambda: longhorn.status("n1-disk-1").get("storageScheduled") == 90 * GI)
    recorded = {"r1": {"state": "scheduled", "scheduledSize": 70 * GI}}
    assert longhorn.status("n1-disk-1")["replicas"] == recorded
    # The label keeps the extender from applying a limit that Longhorn does not apply.
    assert longhorn.get(DISK_SCHEDULES, "n1-disk-1")["metadata"]["labels"] == {MIRROR_LABEL: "true"}
    over_allocations = "longhorn_scheduler_extender_disk_over_allocations"
    assert longhorn.metric(process, over_allocations) == 0
    longhorn.create(replica("r3", "v", 20, "n1"))
    longhorn.until("it is reported", lambda: longhorn.schedulable("n1-disk-1")["reason"] == "OverAllocated")
    assert longhorn.schedulable("n1-disk-1")["message"] == (
        "Disk disk-1 is over-allocated on node n1: 110Gi are scheduled, 100Gi are available"
    )
    longhorn.until("it is counted", lambda: longhorn.metric(process, over_allocations) == 1)
    assert "a disk is over-allocated" in process.log.read_text()
    longhorn.patch(LONGHORN_REPLICAS, "r3", {"metadata": {"finalizers": None}})
    longhorn.delete(LONGHORN_REPLICAS, "r3")
    longhorn.until("it has ended", lambda: longhorn.metric(process, over_allocations) == 0)
    assert longhorn.dump_longhorn() == before

    longhorn.delete(LONGHORN_NODES, "n2")
    longhorn.until("its DiskSchedule is gone", lambda: list(longhorn.items(DISK_SCHEDULES)) == ["n1-disk-1"])
    process.stop()
    calls = granted(MIRROR)
    namespace = longhorn.namespace
    longhorn.until("the log has the watches", lambda: calls <= controller_calls(longhorn.cluster, namespace)[0])
    assert controller_calls(longhorn.cluster, namespace) == (calls, []), "it uses its whole Role"


@pytest.mark.smoke
def test_one_process_works_and_another_takes_over(longhorn: Longhorn) -> None:
    """A released Lease is taken at once, a killed leader's when expired. Both processes are ready all the time."""
    longhorn.add_nodes({"n1": 1000})
    first = longhorn.start("first", *FAST)
    longhorn.wait_working(first)
    second = longhorn.start("second", *FAST)
    longhorn.wait_ready()
    assert longhorn.metric(second, WORKING) == 0
    first.stop()
    assert first.returncode == 0
    longhorn.add_volumes(["v1"], 10)
    longhorn.wait_allocated("v1")
    assert longhorn.metric(second, WORKING) == 1
    third = longhorn.start("third", *FAST)
    longhorn.wait_ready()
    second.kill()
    longhorn.add_volumes(["v2"], 10)
    longhorn.wait_allocated("v2")
    assert longhorn.metric(third, WORKING) == 1


def test_the_role_grants_exactly_the_verbs_that_are_used(installation: tuple[DevCluster, Path]) -> None:
    """The audit log of a whole life has exactly these calls."""
    cluster, account = installation
    longhorn = Longhorn(cluster, account, LONGHORN)
    longhorn.create(NO_RESERVE)
    longhorn.add_nodes({"n1": 100, "n2": 100})
    one = longhorn.start("one", *FAST)
    longhorn.create(image("i", 10, copies=1))
    longhorn.add_volumes(["v"], 10)
    longhorn.wait_allocated("v")
    longhorn.until("the image is placed", lambda: longhorn.get(LONGHORN_BACKING_IMAGES, "i")["spec"]["diskFileSpecMap"])
    longhorn.patch(LONGHORN_VOLUMES, "v", {"spec": {"size": str(20 * GI)}})
    longhorn.until("the replica has grown", lambda: longhorn.sizes() == {20 * GI})
    longhorn.until(
        "an Event is counted",
        lambda: any(each["reason"] == "Granted" and each["count"] > 1 for each in longhorn.items(EVENTS).values()),
    )
    # A replica that holds bytes and has not run leaves a disk that is gone, once the DiskSchedule says so.
    home = longhorn.get(LONGHORN_REPLICAS, "v-r0")["spec"]
    gone = {"status": {"diskStatus": {"disk-1": {"diskUUID": "another"}}}}
    longhorn.patch(LONGHORN_NODES, home["nodeID"], gone, "status")
    longhorn.until(
        "the replica has moved",
        lambda: longhorn.get(LONGHORN_REPLICAS, "v-r0")["spec"]["diskID"] not in ("", home["diskID"]),
    )
    longhorn.delete(LONGHORN_REPLICAS, "v-r0")
    longhorn.delete(LONGHORN_BACKING_IMAGES, "i")
    longhorn.until(
        "both are gone", lambda: not longhorn.items(LONGHORN_REPLICAS) and not longhorn.items(LONGHORN_BACKING_IMAGES)
    )
    for node in ("n1", "n2"):
        longhorn.delete(LONGHORN_NODES, node)
    longhorn.until("the DiskSchedules are gone", lambda: not longhorn.items(DISK_SCHEDULES))
    one.stop()

    calls = granted(MANIFESTS)
    # A watch is logged when the API server has noticed its end.
    longhorn.until("the log has the watches", lambda: calls <= controller_calls(cluster)[0])
    assert controller_calls(cluster) == (calls, [])
    assert cluster.api.get(LEASES.path(LONGHORN, "longhorn-disk-schedule"))["spec"]["holderIdentity"] == ""


def test_the_controllers_are_removed_by_the_documented_commands(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Until then they restore what is deleted; Longhorn's objects stay."""
    with DevCluster(tmp_path_factory.mktemp("disk-schedule-removed")) as cluster:
        longhorn = Longhorn(cluster, install(cluster), LONGHORN)
        longhorn.create(NO_RESERVE)
        longhorn.add_nodes({"n1": 100, "n2": 100})
        one = longhorn.start("one", *FAST)
        longhorn.create(image("i", 10, disks=["n1-disk-1"]), replica("r", "v", 20, "n1", healthy=True))
        longhorn.create(builders.volume("v", 20, locality="disabled"))
        longhorn.wait_allocated("v")
        longhorn.until("both are granted", lambda: longhorn.status("n1-disk-1").get("storageScheduled") == 30 * GI)
        longhorn.patch(DISK_SCHEDULES, "n1-disk-1", {"metadata": {"finalizers": None}})
        longhorn.until("it is back", lambda: "finalizers" in longhorn.get(DISK_SCHEDULES, "n1-disk-1")["metadata"])
        longhorn.patch(DISK_SCHEDULES, "n1-disk-1", {"spec": {"replicas": {"r": None}}})
        longhorn.until("it is requested again", lambda: longhorn.requested_bytes("n1-disk-1") == 20 * GI)

        before = longhorn.items(LONGHORN_REPLICAS)
        for command in removal_commands():
            run_command(cluster, command)
            if " scale " in command:
                one.stop()  # the process stands in for the pods
        assert "NotFound" in cluster.kubectl("get", "crd", "diskschedules.longhorn.io", check=False)
        own_objects = ("deployments,serviceaccounts,roles,rolebindings", "--field-selector", f"metadata.name={ACCOUNT}")
        assert cluster.kubectl("-n", LONGHORN, "get", *own_objects, "-o", "name") == ""
        assert longhorn.items(LONGHORN_REPLICAS) == before


@pytest.mark.timeout(1200)  # dozens of processes are started, one after the other
def test_eight_competing_controllers_grant_no_byte_twice(longhorn: Longhorn) -> None:
    """The requests for replicas, copies of backing images and expansions exceed the space, and controllers are killed meanwhile."""
    longhorn.add_nodes(DISKS)
    crowd = longhorn.start_crowd()
    for run_round in (replica_round, image_round, expansion_round):
        for number in range(2):
            print(f"{run_round.__name__} {number}: {run_round(longhorn, crowd, number)}")
            assert [uuid for uuid, disk in disk_states(longhorn).items() if disk.granted] == [], (
                "a round leaves nothing behind"
            )
