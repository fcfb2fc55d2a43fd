"""The DiskSchedule controllers on a real API server, under their ServiceAccount: the proposal's example, its flows, bad objects."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from app.disk_schedule.lifecycle import LEASE
from app.kube.client import ApiError
from app.kube.resources import (
    DISK_SCHEDULES,
    LEASES,
    LONGHORN_BACKING_IMAGES,
    LONGHORN_NODES,
    LONGHORN_REPLICAS,
    LONGHORN_VOLUMES,
)
from devcluster import ClusterOptions, DevCluster, Process
from devcluster.stack import FAST_LEASE as FAST
from scheduler_core.convert.disk_schedule import MIRROR_LABEL
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
    calls_of_the_account,
    commands_that_remove,
    image,
    install,
    permissions_of,
    replica,
    typed,
)
from tests.e2e.disk_schedule_examples import BAD, EXAMPLE, UUID, example_node
from tests.e2e.disk_schedule_rounds import (
    DISKS,
    expansion_round,
    image_round,
    naive_rounds,
    pods_round,
    replica_round,
)
from tests.e2e.disk_schedule_witness import Witness
from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("disk-schedule"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DevCluster, Path]]:
    """A control plane with Longhorn's definitions and the controllers' manifests; no controller runs."""
    with DevCluster(tmp_path_factory.mktemp("disk-schedule"), ClusterOptions(audit=True)) as cluster:
        yield cluster, install(cluster)


@pytest.fixture
def longhorn(installed: tuple[DevCluster, Path], request: pytest.FixtureRequest) -> Iterator[Longhorn]:
    """A namespace of its own, with the Role of the manifests a test names."""
    made = Longhorn(*installed, manifests=getattr(request, "param", MANIFESTS))
    yield made
    made.stop()


def test_the_proposals_example_goes_in_and_its_status_comes_out(longhorn: Longhorn) -> None:
    """By kubectl apply; r4 is allocated once there is room, and the columns show it."""
    longhorn.create(example_node(200))
    longhorn.cluster.kubectl("-n", longhorn.namespace, "apply", "-f", "-", input=EXAMPLE)
    longhorn.start("one", *FAST)
    longhorn.until("r4 is answered", lambda: "r4" in longhorn.status(UUID).get("replicas", {}))
    status = longhorn.status(UUID)
    held = {"state": "scheduled", "scheduledSize": 53687091200}
    refused = {"state": "rejected", "scheduledSize": 0}
    assert status["replicas"] == {"r1": held, "r2": held, "r3": refused, "r4": refused}
    assert status["backingImages"] == {"b1": held, "b2": held}
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
    assert header.split() == ["NAME", "NODE", "DISK", "SCHEDULED", "AVAILABLE", "SCHEDULABLE", "AGE"]
    assert row.split()[:6] == [UUID, "example-node", "example-disk", str(205 * GI), str(205 * GI), "True"]


def test_the_definition_fills_in_what_is_missing_and_takes_two_answers_only(longhorn: Longhorn) -> None:
    """Whole objects, as a controller writes them: a spec without maps, conditions that are null, an answer that is none."""
    requests: Object = {"replicas": {}, "backingImages": {}}
    bare = {"apiVersion": builders.LONGHORN, "kind": "DiskSchedule", "metadata": {"name": "bare"}}
    raw = longhorn.cluster.api.create(DISK_SCHEDULES.path(longhorn.namespace), bare)
    assert raw["spec"] == {"name": "", "nodeID": "", **requests}
    raw = {**raw, "spec": {"name": "disk-1", "nodeID": "n"}}
    assert longhorn.replace(DISK_SCHEDULES, "bare", raw)["spec"] == {"name": "disk-1", "nodeID": "n", **requests}

    raw = longhorn.get(DISK_SCHEDULES, "bare")
    answers = {"replicas": {"r": {"state": "rejected"}}, "conditions": None}
    longhorn.replace(DISK_SCHEDULES, "bare", {**raw, "status": answers}, "status")
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


def test_a_volume_lives_from_its_replicas_places_to_their_release(longhorn: Longhorn) -> None:
    """DiskSchedules come with the disks; replicas are placed apart, grow together, and give everything back."""
    longhorn.add_nodes({"n1": 100, "n2": 100})
    longhorn.start("one", *FAST)
    longhorn.add_volumes(["v"], 30, replicas=2)
    longhorn.wait_allocated("v")
    places = {name: raw["spec"]["diskID"] for name, raw in longhorn.items(LONGHORN_REPLICAS).items()}
    assert sorted(places.values()) == ["n1-disk-1", "n2-disk-1"]
    for name, uuid in places.items():
        assert longhorn.status(uuid)["replicas"] == {name: {"state": "scheduled", "scheduledSize": 30 * GI}}

    longhorn.patch(LONGHORN_VOLUMES, "v", {"spec": {"size": str(80 * GI)}})
    longhorn.until("both replicas have grown", lambda: longhorn.sizes() == {80 * GI})
    longhorn.wait_allocated("v")
    longhorn.patch(LONGHORN_VOLUMES, "v", {"spec": {"size": str(101 * GI)}})
    longhorn.until("it cannot grow further", lambda: longhorn.reason("v") == "ExpansionRejected")
    longhorn.until("the old sizes are settled", lambda: {longhorn.asked(uuid) for uuid in places.values()} == {80 * GI})
    assert longhorn.sizes() == {80 * GI}
    message = longhorn.condition(LONGHORN_VOLUMES, "v", "DiskAllocation")["message"]
    assert message.startswith("the volume cannot grow to 101Gi: no room on disk disk-1 on node n")

    for name in places:
        longhorn.delete(LONGHORN_REPLICAS, name)
    longhorn.until("the replicas are gone", lambda: not longhorn.items(LONGHORN_REPLICAS))
    longhorn.until(
        "their room is free", lambda: all(not longhorn.status(uuid)["storageScheduled"] for uuid in places.values())
    )


def test_a_rejected_replica_goes_elsewhere_and_one_with_data_stays(longhorn: Longhorn) -> None:
    """The first has never run; what the second has on its disk cannot move for want of room."""
    longhorn.add_nodes({"n1": 50, "n2": 100})
    for name, healthy in (("new", False), ("old", True)):
        longhorn.create(replica(f"{name}-r", name, 60, "n1", healthy=healthy))
        longhorn.create(builders.volume(name, 60, locality="disabled"))
    longhorn.start("one", *FAST)
    longhorn.wait_allocated("new")
    assert longhorn.get(LONGHORN_REPLICAS, "new-r")["spec"]["diskID"] == "n2-disk-1"
    longhorn.until("the other is reported", lambda: longhorn.reason("old") == "AllocationRejected")
    assert longhorn.get(LONGHORN_REPLICAS, "old-r")["spec"]["diskID"] == "n1-disk-1"
    left = {"old-r": {"state": "rejected", "scheduledSize": 0}}
    longhorn.until("only the other asks there", lambda: longhorn.status("n1-disk-1")["replicas"] == left)
    longhorn.available("n1", 60)
    longhorn.wait_allocated("old")


def test_a_backing_image_lives_from_its_copies_to_its_release(longhorn: Longhorn) -> None:
    """Copies go to nodes without one first; a deleted image gives back what it held on every disk."""
    longhorn.add_nodes({"n1": 100, "n2": 50, "n3": 100})
    longhorn.start("one", *FAST)
    longhorn.create(image("i", 60, copies=2))
    held = {"i": {"state": "scheduled", "scheduledSize": 60 * GI}}
    wanted = ["n1-disk-1", "n3-disk-1"]
    longhorn.until(
        "two copies are granted", lambda: all(longhorn.status(uuid).get("backingImages") == held for uuid in wanted)
    )
    assert sorted(longhorn.get(LONGHORN_BACKING_IMAGES, "i")["spec"]["diskFileSpecMap"]) == wanted
    longhorn.delete(LONGHORN_BACKING_IMAGES, "i")
    longhorn.until("it is gone", lambda: not longhorn.exists(LONGHORN_BACKING_IMAGES, "i"))
    longhorn.until("its room is free", lambda: all(not longhorn.status(uuid)["storageScheduled"] for uuid in wanted))


def test_a_disk_schedule_goes_with_its_disk_once_nothing_is_held(longhorn: Longhorn) -> None:
    """Neither a node that is gone for a moment nor kubectl delete loses an allocation."""
    longhorn.add_nodes({"n1": 100, "n2": 100})
    longhorn.create(replica("r", "none", 10, "n1", healthy=True))
    longhorn.start("one", *FAST)
    longhorn.until("both exist", lambda: len(longhorn.items(DISK_SCHEDULES)) == 2)
    longhorn.patch(DISK_SCHEDULES, "n1-disk-1", {"spec": {"replicas": {"r": 10 * GI}}})
    longhorn.until("r is held", lambda: longhorn.status("n1-disk-1").get("storageScheduled") == 10 * GI)
    for node in ("n1", "n2"):
        longhorn.delete(LONGHORN_NODES, node)
    longhorn.until("the empty one is gone", lambda: not longhorn.exists(DISK_SCHEDULES, "n2-disk-1"))
    missing = longhorn.until(
        "the other says why it grants nothing",
        lambda: longhorn.schedulable("n1-disk-1").get("reason") == "NodeMissing",
    )
    assert missing
    longhorn.cluster.kubectl("-n", longhorn.namespace, "delete", "diskschedule", "n1-disk-1", "--wait=false")
    longhorn.until(
        "it says that it is being deleted", lambda: longhorn.schedulable("n1-disk-1")["reason"] == "BeingDeleted"
    )
    assert longhorn.status("n1-disk-1")["storageScheduled"] == 10 * GI
    longhorn.delete(LONGHORN_REPLICAS, "r")
    longhorn.until("it is gone, too", lambda: not longhorn.exists(DISK_SCHEDULES, "n1-disk-1"))


def test_a_disk_schedule_that_is_emptied_by_hand_makes_way_for_the_next(longhorn: Longhorn) -> None:
    """A copy and a replica that are there ask the one that is being deleted for nothing more, and the next one for all."""
    longhorn.add_nodes({"n1": 100})
    copy = image("i", 10, disks=["n1-disk-1"])
    copy["status"]["diskFileStatusMap"] = {"n1-disk-1": {"state": "ready"}}
    longhorn.create(copy, replica("r", "v", 20, "n1", healthy=True))
    longhorn.create(builders.volume("v", 20, locality="disabled"))
    longhorn.start("one", *FAST)

    def holding() -> str:
        """The DiskSchedule that holds both."""
        raw = longhorn.items(DISK_SCHEDULES).get("n1-disk-1", {"metadata": {"uid": ""}})
        held = (raw.get("status") or {}).get("storageScheduled") == 30 * GI
        return str(raw["metadata"]["uid"]) if held and "deletionTimestamp" not in raw["metadata"] else ""

    first = longhorn.until("both are held", holding)
    longhorn.cluster.kubectl("-n", longhorn.namespace, "delete", "diskschedule", "n1-disk-1", "--wait=false")
    longhorn.patch(DISK_SCHEDULES, "n1-disk-1", {"spec": {"backingImages": {"i": None}}})
    longhorn.until("the copy is released", lambda: longhorn.status("n1-disk-1")["storageScheduled"] == 20 * GI)
    longhorn.patch(DISK_SCHEDULES, "n1-disk-1", {"spec": {"replicas": {"r": None}}})
    longhorn.until("both are held in another one", lambda: holding() not in ("", first))


def test_bad_objects_end_in_a_condition_and_disturb_nobody(longhorn: Longhorn) -> None:
    """Unknown disk and node, a negative size, a foreign finalizer, a volume and a replica that cannot be read, edits by hand."""
    longhorn.add_nodes({"n1": 100})
    process = longhorn.start("one", *FAST)
    longhorn.until("the good disk is ready", lambda: longhorn.schedulable("n1-disk-1").get("status") == "True")
    cases = {
        "unknown-node": ("disk-1", "nowhere", 5, "NodeMissing"),
        "unknown-disk": ("disk-9", "n1", 5, "DiskMissing"),
        "other-uuid": ("disk-1", "n1", 5, "DiskReplaced"),
        "negative": ("disk-9", "n1", -5, "DiskMissing"),
    }
    text = "---".join(
        BAD.format(name=name, disk=disk, node=node, size=size) for name, (disk, node, size, _) in cases.items()
    )
    longhorn.cluster.kubectl("-n", longhorn.namespace, "apply", "-f", "-", input=text)
    for name, (_, _, _, reason) in cases.items():
        found = longhorn.until(f"{name} has a condition", partial(longhorn.schedulable, name))
        assert (found["status"], found["reason"]) == ("False", reason), found
    invalid = longhorn.condition(DISK_SCHEDULES, "negative", "RequestsValid")
    assert invalid["message"] == "spec.replicas.r is -5, not a size in bytes"

    # One after the other: a volume whose replica is not there yet has all it needs.
    longhorn.create(replica("odd-r", "odd", 5, "n1"))
    longhorn.create(builders.volume("odd", 5, locality="disabled"))
    longhorn.wait_allocated("odd")
    longhorn.patch(LONGHORN_REPLICAS, "odd-r", {"spec": {"volumeSize": str(2**70)}})
    longhorn.until("the volume says so", lambda: longhorn.reason("odd") == "Unreadable")
    assert (
        "replica odd-r cannot be read: spec.volumeSize"
        in longhorn.condition(LONGHORN_VOLUMES, "odd", "DiskAllocation")["message"]
    )

    longhorn.patch(DISK_SCHEDULES, "n1-disk-1", {"status": {"storageScheduled": 1, "conditions": None}}, "status")
    longhorn.until("an edit is undone", lambda: longhorn.status("n1-disk-1").get("conditions"))
    longhorn.add_volumes(["good"], 20)
    longhorn.wait_allocated("good")
    assert longhorn.status("n1-disk-1")["storageScheduled"] == (5 + 20) * GI, "what was granted is kept"

    longhorn.cluster.kubectl("-n", longhorn.namespace, "delete", "diskschedule", "negative", "--wait=false")
    longhorn.patch(DISK_SCHEDULES, "negative", {"spec": {"replicas": {"r": None}}})
    longhorn.until(
        "nothing keeps it any more",
        lambda: (
            longhorn.schedulable("negative")["reason"] == "BeingDeleted"
            and not longhorn.status("negative").get("replicas")
        ),
    )
    longhorn.delete(LONGHORN_REPLICAS, "odd-r")
    longhorn.until("the unreadable replica is gone", lambda: not longhorn.exists(LONGHORN_REPLICAS, "odd-r"))
    left = longhorn.get(DISK_SCHEDULES, "negative")["metadata"]["finalizers"]
    assert left == ["example.com/mine"], "somebody else's finalizer is not ours to take"
    assert process.running
    assert longhorn.ask(process, "/readyz")[0] == 200
    assert (
        longhorn.metric(
            process, 'longhorn_scheduler_extender_disk_schedule_retries_total{controller="disk-schedule",why="failed"}'
        )
        == 0
    )


def test_a_request_without_its_object_is_withdrawn_after_a_while(longhorn: Longhorn) -> None:
    """A replica and an image that never were; what is held for those that are stays."""
    longhorn.add_nodes({"n1": 100})
    longhorn.start("one", *FAST, "--release-orphans-after", "2")
    longhorn.until("the disk is ready", lambda: longhorn.schedulable("n1-disk-1").get("status") == "True")
    longhorn.add_volumes(["v"], 20)
    longhorn.wait_allocated("v")
    asked = {"spec": {"replicas": {"ghost": 10 * GI}, "backingImages": {"spirit": 10 * GI}}}
    # It sees every version: both are held for two seconds only.
    with Witness(longhorn.cluster.kubeconfig, longhorn.namespace) as witness:
        longhorn.patch(DISK_SCHEDULES, "n1-disk-1", asked)
        longhorn.until("both were granted, beside the one there is", lambda: witness.grants == 3)
        longhorn.until("both are given back", lambda: longhorn.status("n1-disk-1")["storageScheduled"] == 20 * GI)
    assert (witness.faults, witness.grants) == ([], 3)
    assert list(longhorn.status("n1-disk-1")["replicas"]) == ["v-r0"]


def test_beside_longhorn_manager_it_neither_starts_nor_goes_on(
    longhorn: Longhorn, installed: tuple[DevCluster, Path]
) -> None:
    """Exit code 2 and one line; one that runs already stops allocating, and goes on when the pods are gone."""
    cluster, account = installed
    longhorn.add_nodes({"n1": 100})
    process = longhorn.start("one", *FAST)
    longhorn.until("it works", lambda: longhorn.schedulable("n1-disk-1").get("status") == "True")
    longhorn.add_manager("longhorn-manager-x")
    longhorn.until("it says so", lambda: longhorn.ask(process, "/readyz")[0] == 503)
    assert "longhorn-manager runs here (pod longhorn-manager-x)" in longhorn.ask(process, "/readyz")[1]
    longhorn.until("it rests", lambda: longhorn.metric(process, WORKING) == 0)
    longhorn.add_volumes(["v"], 20)
    time.sleep(2)
    assert longhorn.get(LONGHORN_REPLICAS, "v-r0")["spec"]["diskID"] == ""

    program = Path(sys.executable).with_name("longhorn-extender")
    where = ["--kubeconfig", str(account), "--namespace", longhorn.namespace, "--port", "0"]
    argv = [str(program), "disk-schedule", *where]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr == (
        "longhorn-extender: longhorn-manager runs here (pod longhorn-manager-x) and allocates by itself; use --mirror to observe it\n"
    )
    cluster.kubectl("-n", longhorn.namespace, "delete", "pod", "longhorn-manager-x", "--force", "--grace-period=0")
    longhorn.wait_allocated("v")


@pytest.mark.parametrize("longhorn", [pytest.param(MIRROR, id="with its Role")], indirect=True)
def test_the_mirror_writes_down_what_longhorn_did_and_changes_nothing_else(longhorn: Longhorn) -> None:
    """Beside longhorn-manager: replicas and images appear as scheduled; more than is available is reported."""
    longhorn.delete(LEASES, LEASE)  # it makes its own
    longhorn.add_nodes({"n1": 100, "n2": 100})
    longhorn.add_manager("longhorn-manager-x")
    longhorn.create(replica("r1", "v", 70, "n1"), replica("r2", "v", 10), image("i", 20, disks=["n1-disk-1"]))
    longhorn.create(builders.volume("v", 70, locality="disabled"))
    before = longhorn.written()
    process = longhorn.start("one", *FAST, "--mirror")
    longhorn.until("all is there", lambda: longhorn.status("n1-disk-1").get("storageScheduled") == 90 * GI)
    held = {"r1": {"state": "scheduled", "scheduledSize": 70 * GI}}
    assert longhorn.status("n1-disk-1")["replicas"] == held
    # The extender must not hold Longhorn to a limit that Longhorn does not know.
    assert longhorn.get(DISK_SCHEDULES, "n1-disk-1")["metadata"]["labels"] == {MIRROR_LABEL: "true"}
    over = "longhorn_scheduler_extender_disk_over_allocations"
    assert longhorn.metric(process, over) == 0
    longhorn.create(replica("r3", "v", 20, "n1"))
    longhorn.until("it is reported", lambda: longhorn.schedulable("n1-disk-1")["reason"] == "OverAllocated")
    assert longhorn.schedulable("n1-disk-1")["message"] == (
        "Disk disk-1 is over-allocated on node n1: 110Gi are scheduled, 100Gi are available"
    )
    longhorn.until("it is counted", lambda: longhorn.metric(process, over) == 1)
    assert "a disk is over-allocated" in process.log.read_text()
    longhorn.patch(LONGHORN_REPLICAS, "r3", {"metadata": {"finalizers": None}})
    longhorn.delete(LONGHORN_REPLICAS, "r3")
    longhorn.until("it is over", lambda: longhorn.metric(process, over) == 0)
    assert longhorn.written() == before

    longhorn.delete(LONGHORN_NODES, "n2")
    longhorn.until("its DiskSchedule is gone", lambda: list(longhorn.items(DISK_SCHEDULES)) == ["n1-disk-1"])
    process.stop()
    granted, where = permissions_of(MIRROR), longhorn.namespace
    longhorn.until("the log has the watches", lambda: granted <= calls_of_the_account(longhorn.cluster, where)[0])
    assert calls_of_the_account(longhorn.cluster, where) == (granted, []), "its Role is what it uses"


def test_one_works_and_another_takes_over(longhorn: Longhorn) -> None:
    """A released Lease at once, a killed leader's when it has run out; both pods are ready all the time."""
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


def test_the_role_grants_exactly_the_verbs_that_are_used(installed: tuple[DevCluster, Path]) -> None:
    """In Longhorn's namespace, from the first Lease to the last finalizer; what the audit log has is what the Role says."""
    cluster, account = installed
    longhorn = Longhorn(cluster, account, LONGHORN)
    longhorn.create(NO_RESERVE)
    longhorn.add_nodes({"n1": 100, "n2": 100})
    one = longhorn.start("one", *FAST)
    longhorn.create(image("i", 10, copies=1))
    longhorn.add_volumes(["v"], 10)
    longhorn.wait_allocated("v")
    longhorn.until("the image is placed", lambda: longhorn.get(LONGHORN_BACKING_IMAGES, "i")["spec"]["diskFileSpecMap"])
    longhorn.delete(LONGHORN_REPLICAS, "v-r0")
    longhorn.delete(LONGHORN_BACKING_IMAGES, "i")
    longhorn.until(
        "both are gone", lambda: not longhorn.items(LONGHORN_REPLICAS) and not longhorn.items(LONGHORN_BACKING_IMAGES)
    )
    for node in ("n1", "n2"):
        longhorn.delete(LONGHORN_NODES, node)
    longhorn.until("the DiskSchedules are gone", lambda: not longhorn.items(DISK_SCHEDULES))
    one.stop()

    granted = permissions_of(MANIFESTS)
    # A watch is logged when the API server has noticed its end.
    longhorn.until("the log has the watches", lambda: granted <= calls_of_the_account(cluster)[0])
    assert calls_of_the_account(cluster) == (granted, [])
    assert cluster.api.get(LEASES.path(LONGHORN, "longhorn-disk-schedule"))["spec"]["holderIdentity"] == ""


def test_it_is_removed_as_the_documentation_says(tmp_path_factory: pytest.TempPathFactory) -> None:
    """While it works, what is taken away comes back; without it nothing holds the DiskSchedules, and Longhorn's objects stay."""
    with DevCluster(tmp_path_factory.mktemp("disk-schedule-removed")) as cluster:
        longhorn = Longhorn(cluster, install(cluster), LONGHORN)
        longhorn.create(NO_RESERVE)
        longhorn.add_nodes({"n1": 100, "n2": 100})
        one = longhorn.start("one", *FAST)
        longhorn.create(image("i", 10, disks=["n1-disk-1"]), replica("r", "v", 20, "n1", healthy=True))
        longhorn.create(builders.volume("v", 20, locality="disabled"))
        longhorn.wait_allocated("v")
        longhorn.until("both hold", lambda: longhorn.status("n1-disk-1").get("storageScheduled") == 30 * GI)
        longhorn.patch(DISK_SCHEDULES, "n1-disk-1", {"metadata": {"finalizers": None}})
        longhorn.until("it is back", lambda: "finalizers" in longhorn.get(DISK_SCHEDULES, "n1-disk-1")["metadata"])
        longhorn.patch(DISK_SCHEDULES, "n1-disk-1", {"spec": {"replicas": {"r": None}}})
        longhorn.until("it is asked again", lambda: longhorn.asked("n1-disk-1") == 20 * GI)

        before = longhorn.items(LONGHORN_REPLICAS)
        for command in commands_that_remove():
            typed(cluster, command)
            if " scale " in command:
                one.stop()  # it stands for the pods
        assert "NotFound" in cluster.kubectl("get", "crd", "diskschedules.longhorn.io", check=False)
        ours = ("deployments,serviceaccounts,roles,rolebindings", "--field-selector", f"metadata.name={ACCOUNT}")
        assert cluster.kubectl("-n", LONGHORN, "get", *ours, "-o", "name") == ""
        assert longhorn.items(LONGHORN_REPLICAS) == before


ROUNDS = 3


@pytest.mark.timeout(1200)  # dozens of processes are started, one after the other
@pytest.mark.parametrize(
    "play",
    [
        pytest.param(replica_round, id="replicas"),
        pytest.param(image_round, id="backing images"),
        pytest.param(expansion_round, id="expansions"),
    ],
)
def test_eight_competing_controllers_take_no_byte_twice(
    longhorn: Longhorn, play: Callable[[Longhorn, list[Process], int], str]
) -> None:
    """The proposal's test plan: more is wanted than there is, controllers are killed meanwhile; three rounds each."""
    longhorn.add_nodes(DISKS)
    crowd = longhorn.start_crowd()
    for number in range(ROUNDS):
        print(f"round {number}: {play(longhorn, crowd, number)}")


def test_without_disk_schedules_the_same_load_takes_bytes_twice(longhorn: Longhorn) -> None:
    """Eight writers who look at the nodes' status before each step, which is half a second late: that is the race."""
    longhorn.add_nodes(DISKS)
    over = naive_rounds(longhorn)
    print(f"Gi beyond what is available, by node: {over}")
    assert all(over.values())


def test_pods_get_their_volumes_through_disk_schedules(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The whole stack: kube-scheduler, the extender, simulated Longhorn, and controllers of which one is killed meanwhile."""
    folder = tmp_path_factory.mktemp("disk-schedule-stack")
    with Rig(folder, simulator={"disk_schedules": True}) as rig:
        rig.cluster.apply(MANIFESTS)
        longhorn = Longhorn(rig.cluster, rig.cluster.service_account_kubeconfig(LONGHORN, ACCOUNT), LONGHORN)
        first = longhorn.start("first", *FAST)
        longhorn.wait_working(first)
        longhorn.start("second", *FAST)
        longhorn.wait_ready()
        rig.add_nodes("db", {f"db-{number}": ["400Gi"] for number in range(1, 5)})
        pods_round(rig, longhorn, first)
        longhorn.stop()
