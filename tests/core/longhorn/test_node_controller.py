"""What the node controller writes into a node's status."""

from typing import Any

import pytest

from scheduler_core.longhorn.node_controller import ROUNDING, CollectedDisk, ManagerPod, sync_node, sync_node_remotely
from scheduler_core.model import kube, longhorn as lh
from tests.worlds.longhorn import GIB, cluster, disk, failed, node, replica

POD = ManagerPod()


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


def test_nothing_else_makes_a_node_unschedulable() -> None:
    assert reason(sync_n1(node(allow_scheduling=False), pods=()), "Schedulable") == "True"


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

    def test_two_disks_on_one_file_system_are_both_lost(self) -> None:
        """Their space would count twice."""
        both = {name: CollectedDisk(f"n1-{name}", GIB, GIB, fsid="same") for name in ("d1", "d2")}
        after = sync_n1(node("n1", disk("d1"), disk("d2")), collected=both)
        assert {reason(entry, "Ready") for entry in after.disks} == {"False DiskFilesystemChanged"}

    def test_a_disk_the_monitor_does_not_know_is_lost(self) -> None:
        assert reason(sync_n1(collected={}).disks[0], "Ready") == "False NoDiskInfo"

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

    def test_switches_do_not_change_conditions(self) -> None:
        after = self.sync(allow_scheduling=False, eviction_requested=True)
        assert reason(after, "Schedulable") == "True"


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
