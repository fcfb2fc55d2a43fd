"""Named situations: a drain, a stuck pod, slow provisioning, pods without the resource."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.kube.resources import CLAIMS, LONGHORN_NODES
from devcluster.build import SCHEDULER
from devcluster.programs import NAMESPACE
from tests.builders import GI
from tests.control_plane import ControlPlane
from tests.e2e import plan, preemption
from tests.e2e.journal import events
from tests.e2e.objects import SELECTED_NODE, Volume, Workload, name_of, runs, selected_node, statefulset
from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# kube-scheduler's back-off after many refusals; it begins with a second.
MAX_BACK_OFF = 10.0


@pytest.fixture(scope="module")
def rig(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One cluster; every scenario has nodes of its own."""
    with Rig(tmp_path_factory.mktemp("scenarios"), control_plane) as started:
        yield started


def test_drained_pods_go_where_they_fit_and_their_volumes_follow(rig: Rig) -> None:
    """Node B has room for four of five pods, C for one. Their healthy replicas stay on A until they are rebuilt."""
    rig.add_nodes("move", {"move-a": ["500Gi"]})
    rig.create(statefulset("move", group="move", replicas=5))
    rig.until("all pods run on A", lambda: rig.ready("move", 5), 120)
    rig.add_nodes("move", {"move-b": ["400Gi"], "move-c": ["199Gi"]})
    try:
        plan.drain(rig, "move-a", "move")
        rig.until("all pods run", lambda: rig.ready("move", 5), 120)
        assert Counter(rig.nodes_of("move").values()) == {"move-b": 4, "move-c": 1}
        rig.until("every volume has a local replica", lambda: not rig.misplaced_pods("move"), 60)
        assert rig.overbooked_disks() == []
    finally:
        rig.remove("move")


def test_a_pod_that_fits_nowhere_does_not_block_the_disks_of_its_node(rig: Rig) -> None:
    """Its volume is larger than any disk, so its demand is hopeless. The pod was bound without kube-scheduler."""
    rig.add_nodes("stuck", {"stuck-1": ["400Gi", "400Gi"]})
    with stuck_pod(rig) as name:
        rig.until("it is stuck", lambda: name in {entry["pod"] for entry in rig.status()["waiting"]})
        rig.create(statefulset("others", group="stuck", replicas=8))
        try:
            rig.until("all others run", lambda: rig.ready("others", 8), 120)
            assert set(rig.nodes_of("others").values()) == {"stuck-1"}
            assert rig.misplaced_pods("others") == []
            assert [pod["status"]["phase"] for pod in rig.pods("stuck")] == ["Pending"]
        finally:
            rig.remove("others")


@contextmanager
def stuck_pod(rig: Rig) -> Iterator[str]:
    """A pod bound to a node without a disk for its 500Gi. Its claim is provisioned for that node all the same."""
    pod = Workload(app="stuck", group="stuck", volumes=[Volume("500Gi")], asks=False, node="stuck-1")
    rig.post(pod.loose())
    for claim in rig.claims("stuck"):
        path = CLAIMS.path("default", name_of(claim))
        rig.cluster.api.patch(path, {"metadata": {"annotations": {SELECTED_NODE: "stuck-1"}}})
    try:
        yield "default/stuck-0"
    finally:
        rig.cluster.kubectl("delete", "pod,pvc", "-l", "app=stuck", "--wait=true", "--timeout=60s")


def test_pods_without_the_resource_count_for_those_with_it(rig: Rig) -> None:
    """Three such pods leave room for one more on their node."""
    rig.add_nodes("silent", {"silent-1": ["400Gi"], "silent-2": ["400Gi"]})
    misplacements_before = rig.misplacements()
    fits_before = rig.count_fits()
    try:
        rig.create(Workload(app="silent", group="silent", asks=False, only="silent-1").statefulset(3))
        rig.until("kube-scheduler has decided about all three", lambda: len(selected_nodes(rig, "silent")) == 3)
        assert rig.count_fits() == fits_before
        rig.create(statefulset("asking", group="silent", replicas=5))
        rig.until("all pods run", lambda: rig.ready("asking", 5) and rig.ready("silent", 3), 120)
        assert Counter(rig.nodes_of("asking").values()) == {"silent-1": 1, "silent-2": 4}
        assert rig.misplaced_pods("asking") + rig.misplaced_pods("silent") == []
        assert rig.misplacements() == misplacements_before
        assert rig.overbooked_disks() == []
    finally:
        rig.remove("asking", "silent")


def selected_nodes(rig: Rig, app: str) -> list[str]:
    return [node for node in map(selected_node, rig.claims(app)) if node]


@pytest.mark.smoke
def test_a_refused_pod_is_bound_soon_after_space_is_freed(rig: Rig) -> None:
    """Without CSIStorageCapacity only a nudge wakes kube-scheduler. It does not watch Longhorn's objects."""
    rig.use_simulator({"storage_capacity": False, "capacity_period": "none"})
    rig.add_nodes("freed", {"freed-1": ["100Gi"]})
    try:
        rig.create(statefulset("first", group="freed", replicas=1))
        rig.until("the first pod runs", lambda: rig.ready("first", 1))
        rig.create(statefulset("second", group="freed", replicas=1))
        [pod] = rig.until("the second one is refused", lambda: rig.refused_pods("second"))
        # The first pod's end wakes kube-scheduler, too. A retry just when the space is free would make a nudge unnecessary.
        rig.cluster.processes[SCHEDULER].pause()
        try:
            rig.cluster.kubectl("delete", "statefulset,pod,pvc", "-l", "app=first", "--wait=false")
            rig.until("the space is free", lambda: not rig.replicas_on("freed-1"))
            freed = time.monotonic()
            rig.until("the second pod is nudged", lambda: pod["metadata"]["uid"] in nudged_uids(rig))
        finally:
            rig.cluster.processes[SCHEDULER].resume()
        rig.until("the second pod is bound", lambda: rig.nodes_of("second")["second-0"], MAX_BACK_OFF + 15)
        print(f"bound {time.monotonic() - freed:.1f} s after the space was free")
        rig.until("it runs", lambda: rig.ready("second", 1))
        assert rig.misplaced_pods("second") == []
    finally:
        rig.remove("second", "first")
        rig.use_simulator({})


def nudged_uids(rig: Rig) -> set[str]:
    return {entry["uid"] for entry in events(rig.cluster.logs, rig.candidates, "nudged")}


def test_pods_asked_about_after_a_disk_is_switched_off_are_not_misplaced(rig: Rig) -> None:
    """Three volumes that were decided for that disk take their space on the two other nodes, wherever Longhorn places
    them. At least half of the six later pods find space; the others wait.
    """
    rig.use_simulator({"provision_seconds": [3, 4]})
    rig.add_nodes("lost", {f"lost-{number}": ["300Gi"] for number in range(1, 4)})
    try:
        rig.create(Workload(app="early", group="lost", only="lost-1").statefulset(3))
        rig.until("kube-scheduler has decided about all three", lambda: len(selected_nodes(rig, "early")) == 3)
        switch_disks_off(rig, "lost-1")
        rig.create(statefulset("late", group="lost", replicas=6))
        rig.until("the earlier pods run", lambda: rig.ready("early", 3), 120)
        # Longhorn may have placed the earlier volumes on another test's node, which leaves space for more.
        rig.until("three later pods run", lambda: len(running_pods(rig, "late")) >= 3, 60)
        rig.until("all run that have a node", lambda: running_pods(rig, "late") == sorted(placed_pods(rig, "late")), 60)
        assert rig.misplaced_pods("early") == ["early-0", "early-1", "early-2"]
        assert (rig.misplaced_pods("late"), rig.overbooked_disks()) == ([], [])
    finally:
        # These have replicas that wait for the disk, and the space counts as free once no replica waits.
        rig.remove("early", "late")
        rig.use_simulator({})


def test_growth_counts_from_the_moment_when_a_claim_requests_it(rig: Rig) -> None:
    """It takes nearly all that is free on its node, so that three pods that come at the same time go to the other node."""
    rig.add_nodes("grow", {"grow-1": ["300Gi"], "grow-2": ["300Gi"]})
    try:
        rig.create(Workload(app="growing", group="grow", only="grow-1").statefulset(1))
        rig.until("it runs", lambda: rig.ready("growing", 1))
        # Longhorn is late: it grows the volume only after the other pods are decided.
        rig.use_simulator({"expand_seconds": [3600, 3600]})
        try:
            request = {"spec": {"resources": {"requests": {"storage": "290Gi"}}}}
            rig.cluster.api.patch(CLAIMS.path("default", "data-0-growing-0"), request)
            rig.create(statefulset("others", group="grow", replicas=3))
            rig.until("the other pods are decided", lambda: len(selected_nodes(rig, "others")) == 3)
            assert set(selected_nodes(rig, "others")) == {"grow-2"}
        finally:
            rig.use_simulator({})
        rig.until("the other pods run", lambda: rig.ready("others", 3))
        rig.until("the volume has grown", lambda: replica_sizes(rig, "grow-1") == [290 * GI])
        assert (rig.misplaced_pods("others"), rig.overbooked_disks()) == ([], [])
    finally:
        rig.remove("growing", "others")


def replica_sizes(rig: Rig, node: str) -> list[int]:
    """The sizes of the replicas on a node, in bytes."""
    return [int(replica["spec"]["volumeSize"]) for replica in rig.replicas_on(node)]


def placed_pods(rig: Rig, app: str) -> list[str]:
    return [name for name, node in rig.nodes_of(app).items() if node]


def switch_disks_off(rig: Rig, node: str) -> None:
    path = LONGHORN_NODES.path(NAMESPACE, node)
    disks = rig.cluster.api.get(path)["spec"]["disks"]
    rig.cluster.api.patch(path, {"spec": {"disks": {name: {"allowScheduling": False} for name in disks}}})


def running_pods(rig: Rig, app: str) -> list[str]:
    return sorted(name_of(pod) for pod in rig.pods(app) if runs(pod))


@pytest.mark.smoke
def test_victims_die_only_where_longhorn_has_room_and_the_room_is_held(rig: Rig) -> None:
    """A pod of low priority does not get the room while the victim of a preemption ends."""
    assert preemption.run(rig).problems == []


def test_provisioning_slower_than_both_time_outs_misplaces_nothing(rig: Rig) -> None:
    """Decisions count until the volumes exist, which takes 12 to 14 seconds."""
    rig.use_simulator({"provision_seconds": [12, 14]})
    try:
        plan.goal_1_nodes(rig)
        result = plan.goal_1(rig, asks=True)
        assert (result.per_node, result.wrong) == (plan.EVEN, {})
    finally:
        rig.use_simulator({})
