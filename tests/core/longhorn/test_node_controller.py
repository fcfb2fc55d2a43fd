"""What the node controller writes into a node's status."""

from typing import Any

import pytest

from scheduler_core.longhorn.node_controller import ROUNDING, CollectedDisk, ManagerPod, sync_node, sync_node_remotely
from scheduler_core.model import kube, longhorn as lh
from tests.worlds.longhorn import GIB, LONG_AGO, cluster, conditions, disk, failed, node, replica

POD = ManagerPod()
NOT_READY = kube.Condition("Ready", "False", last_transition_time=LONG_AGO)


def kube_node(*node_conditions: kube.Condition, **fields: Any) -> kube.Node:
    return kube.Node("n1", conditions=node_conditions, **fields)


def sync_n1(
    entry: lh.Node | None = None,
    *,
    pods: tuple[ManagerPod, ...] = (POD,),
    kubernetes: kube.Node | None = None,
    collected: dict[str, CollectedDisk] | None = None,
    **snapshot: Any,
) -> lh.Node:
    before = entry or node()
    view = cluster(before, kube_nodes={"n1": kubernetes or kube_node()}, **snapshot)
    return sync_node(view, before, pods, collected)


def reason(of: lh.Node | lh.Disk, kind: str) -> str:
    condition = kube.condition(of.conditions, kind)
    return f"{condition.status} {condition.reason}".strip()


@pytest.mark.parametrize(
    ("pods", "kubernetes", "expected"),
    [
        pytest.param((POD,), kube_node(), "True", id="ready"),
        pytest.param((), kube_node(), "False ManagerPodMissing", id="no manager"),
        pytest.param((ManagerPod(ready=False),), kube_node(), "False ManagerPodDown", id="manager not ready"),
        pytest.param((ManagerPod(phase="Pending"),), kube_node(), "False ManagerPodDown", id="manager not running"),
        pytest.param((POD,), kube_node(NOT_READY), "False KubernetesNodeNotReady", id="kubelet down"),
        pytest.param((), kube_node(NOT_READY), "False KubernetesNodeNotReady", id="Kubernetes wins over the pod"),
        pytest.param(
            (POD,), kube_node(kube.Condition("Ready", "Unknown")), "False KubernetesNodeNotReady", id="unknown"
        ),
        pytest.param(
            (POD,), kube_node(kube.Condition("DiskPressure", "True")), "False KubernetesNodePressure", id="pressure"
        ),
        pytest.param((POD,), kube_node(kube.Condition("PIDPressure", "False")), "True", id="no pressure"),
        pytest.param(
            (POD,),
            kube_node(NOT_READY, kube.Condition("MemoryPressure", "True")),
            "False KubernetesNodePressure",
            id="the last bad one is named",
        ),
    ],
)
def test_the_manager_pod_and_kubernetes_decide_whether_a_node_is_ready(
    pods: tuple[ManagerPod, ...], kubernetes: kube.Node, expected: str
) -> None:
    assert reason(sync_n1(pods=pods, kubernetes=kubernetes), "Ready") == expected


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        pytest.param("2025-12-31T23:59:46Z", "True", id="14 s"),
        pytest.param("2025-12-31T23:59:45Z", "False KubernetesNodeNotReady", id="15 s"),
        pytest.param("", "False KubernetesNodeNotReady", id="unknown since when"),
    ],
)
def test_a_short_outage_is_ignored(since: str, expected: str) -> None:
    """A Ready=False counts after 15 s."""
    outage = kube.Condition("Ready", "False", last_transition_time=since)
    assert reason(sync_n1(kubernetes=kube_node(outage)), "Ready") == expected


def test_a_node_without_kubernetes_node_is_not_ready() -> None:
    before = node()
    view = cluster(before, kube_nodes={"other": kube.Node("other")})
    assert reason(sync_node(view, before, [POD]), "Ready") == "False KubernetesNodeGone"


@pytest.mark.parametrize(("setting", "expected"), [("true", "False KubernetesNodeCordoned"), ("false", "True")])
def test_a_cordon_counts_if_the_setting_says_so(setting: str, expected: str) -> None:
    after = sync_n1(
        node(allow_scheduling=False),
        kubernetes=kube_node(unschedulable=True),
        settings={"disable-scheduling-on-cordoned-node": setting},
    )
    assert reason(after, "Schedulable") == expected


def test_nothing_else_makes_a_node_unschedulable() -> None:
    assert reason(sync_n1(node(allow_scheduling=False), pods=()), "Schedulable") == "True"


def test_zone_and_region_are_the_kubernetes_node_s_labels() -> None:
    labels = {"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r"}
    after = sync_n1(node(zone="stale"), kubernetes=kube_node(labels=labels))
    assert (after.zone, after.region) == ("a", "r")
    assert sync_n1(node(zone="stale")).zone == ""


class TestDisk:
    """Numbers and conditions of one disk."""

    def sync(
        self, *, measured: CollectedDisk | None = None, pods: tuple[ManagerPod, ...] = (POD,), **fields: Any
    ) -> lh.Disk:
        """Syncs the disk; with `measured` the monitor's numbers."""
        snapshot = {key: fields.pop(key) for key in ("replicas", "backing_images", "settings") if key in fields}
        collected = None if measured is None else {"d1": measured}
        return sync_n1(node("n1", disk(**fields)), pods=pods, collected=collected, **snapshot).disks[0]

    @pytest.mark.parametrize(
        ("available", "expected"),
        [
            pytest.param(ROUNDING - 1, 0, id="-1"),
            pytest.param(ROUNDING, ROUNDING, id="exact"),
            pytest.param(2 * ROUNDING - 1, ROUNDING, id="rounded down"),
        ],
    )
    def test_available_space_is_rounded_down(self, available: int, expected: int) -> None:
        assert self.sync(measured=CollectedDisk("n1-d1", 100 * GIB, available)).storage_available == expected

    def test_block_disks_are_not_rounded(self) -> None:
        after = self.sync(measured=CollectedDisk("n1-d1", 100 * GIB, 12345), spec_type="block")
        assert after.storage_available == 12345

    @pytest.mark.parametrize(
        ("measured", "expected"),
        [
            pytest.param(CollectedDisk("n1-d1", error_reason="NoDiskInfo"), "False NoDiskInfo", id="error"),
            pytest.param(CollectedDisk("changed", 5 * GIB, GIB), "False DiskFilesystemChanged", id="another disk"),
        ],
    )
    def test_a_lost_disk_has_no_space(self, measured: CollectedDisk, expected: str) -> None:
        after = self.sync(measured=measured, replicas=[replica("r", "n1/d1")])
        assert (after.storage_maximum, after.storage_available, after.storage_scheduled) == (0, 0, 0)
        assert (reason(after, "Ready"), reason(after, "Schedulable")) == (expected, "False DiskNotReady")

    def test_two_disks_on_one_file_system_are_both_lost(self) -> None:
        """Their space would count twice."""
        both = {name: CollectedDisk(f"n1-{name}", GIB, GIB, fsid="same") for name in ("d1", "d2")}
        after = sync_n1(node("n1", disk("d1"), disk("d2")), collected=both)
        assert {reason(entry, "Ready") for entry in after.disks} == {"False DiskFilesystemChanged"}

    def test_a_disk_the_monitor_does_not_know_is_lost(self) -> None:
        assert reason(sync_n1(collected={}).disks[0], "Ready") == "False NoDiskInfo"

    def test_a_new_disk_gets_its_uuid_from_the_monitor(self) -> None:
        after = sync_n1(lh.Node("n1", disks=(disk(),)), collected={"d1": CollectedDisk("fresh", GIB, GIB)})
        assert after.disks[0].uuid == "fresh"

    def test_every_replica_object_counts(self) -> None:
        replicas = [
            failed("a", "n1/d1"),
            replica("b", "n1/d1", deleting=True),
            replica("c", "n1/d1", active=False, volume="w"),
            replica("d", "n1/d1", eviction_requested=True),
            replica("e", "n1/d2"),
        ]
        after = self.sync(replicas=replicas)
        assert (sorted(after.scheduled_replicas), after.storage_scheduled) == (["a", "b", "c", "d"], 40 * GIB)

    def test_backing_images_count_with_their_real_size(self) -> None:
        images = {
            "bi": lh.BackingImage("bi", disks=("n1-d1",), real_size=3 * GIB),
            "soon": lh.BackingImage("soon", disks=("n1-d1",)),
            "far": lh.BackingImage("far", disks=("n2-d1",), real_size=GIB),
        }
        after = self.sync(backing_images=images)
        assert dict(after.scheduled_backing_images) == {"bi": 3 * GIB, "soon": 0}
        assert after.storage_scheduled == 3 * GIB

    @pytest.mark.parametrize(
        ("size", "expected"),
        [pytest.param(100 * GIB, "True", id="equal"), pytest.param(100 * GIB + 1, "False DiskPressure", id="+1")],
    )
    def test_an_overbooked_disk_is_not_schedulable(self, size: int, expected: str) -> None:
        assert reason(self.sync(replicas=[replica("r", "n1/d1", size=size)]), "Schedulable") == expected

    def test_switches_do_not_change_conditions(self) -> None:
        after = self.sync(allow_scheduling=False, eviction_requested=True)
        assert reason(after, "Schedulable") == "True"

    def test_the_disks_of_a_lost_node_are_lost(self) -> None:
        lost = self.sync(pods=())
        assert (reason(lost, "Ready"), reason(lost, "Schedulable")) == ("False NodeNotReady", "False DiskNotReady")
        alive = self.sync(pods=(), measured=CollectedDisk("n1-d1", 100 * GIB, 100 * GIB))
        assert reason(alive, "Ready") == "True"

    def test_a_disk_that_is_not_ready_has_nothing_scheduled(self) -> None:
        """So evictions stop on it too."""
        after = self.sync(conditions=conditions(Ready="False"), replicas=[replica("r", "n1/d1")], storage_scheduled=5)
        assert (after.storage_scheduled, dict(after.scheduled_replicas)) == (0, {})


def test_another_node_s_manager_leaves_what_is_scheduled() -> None:
    before = node("n1", disk(storage_scheduled=5, scheduled_replicas={"gone": 5}))
    after = sync_node_remotely(
        cluster(before, kube_nodes={"n1": kube_node()}, replicas=[replica("r", "n1/d1")]), before, ()
    )
    [lost] = after.disks
    assert reason(after, "Ready") == "False ManagerPodMissing"
    assert (reason(lost, "Ready"), reason(lost, "Schedulable")) == ("False NodeNotReady", "False NodeNotReady")
    assert (lost.storage_scheduled, dict(lost.scheduled_replicas)) == (5, {"gone": 5})
    assert (lost.storage_maximum, lost.storage_available) == (
        before.disks[0].storage_maximum,
        before.disks[0].storage_available,
    )
