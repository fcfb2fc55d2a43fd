"""What counts on a node whose own Longhorn manager is gone, and when that is back.

Other managers mark the node and its disks as not ready, and leave `storageScheduled` and `scheduledReplica` as they were. So the
status may list replicas that no longer exist, and lack others.
"""

import pytest

from scheduler_core.cluster.update import build_view, empty_snapshot, update
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.contention import Contention
from scheduler_core.monitor.demand_monitor import STUCK_AFTER, PlacementReport
from scheduler_core.offers.ledger import Ledger
from scheduler_core.volumes.decided_pods import unlisted_volumes
from scheduler_core.volumes.demand_index import DemandIndex
from scheduler_core.volumes.outstanding_demand import DemandSource
from tests import builders as make
from tests.builders import GI, NOW, Object
from tests.worlds.changes import changes_of

# Of 100 Gi: "gone" was deleted since the manager is gone, and "fresh" was placed.
STALE = {"gone": 40.0, "kept": 10.0}
REPLICAS = [make.replica("kept", "vol-x", "a", size=10), make.replica("fresh", "vol-y", "a", size=20)]
FREE = 100 - 40 - 10 - 20


def node_a(*, ready: bool, disk_ready: bool, listed: dict[str, float] | None = None) -> Object:
    """Node a with one disk of 100 Gi; its status lists what it listed when the manager went, unless `listed` is given."""
    disk = make.disk(100, listed=STALE if listed is None else listed, ready=disk_ready)
    if not disk_ready:
        disk["status"]["conditions"] = [
            make.condition(kind, False, "NodeNotReady") for kind in ("Ready", "Schedulable")
        ]
    return make.longhorn_node("a", {"disk-1": disk}, ready=ready)


GONE = node_a(ready=False, disk_ready=False)
BACK = node_a(ready=True, disk_ready=False)
"""Any manager writes the node's condition; its own manager has not written the disks yet."""
STALE_BUT_READY = node_a(ready=True, disk_ready=True)
"""Longhorn writes a disk's condition and its sum together, so this is not expected."""
REFRESHED = node_a(ready=True, disk_ready=True, listed={"kept": 10, "fresh": 20})


def reason(node: Object, size: float) -> str:
    explanation = make.explained(
        make.pod("new"), node, REPLICAS, make.storage_class(), make.claim("new", size), nodes=["a"]
    )
    return make.reasons(explanation)["a"]


@pytest.mark.parametrize(
    ("node", "expected"), [pytest.param(GONE, "NODE_NOT_READY", id="gone"), pytest.param(BACK, "NO_DISK", id="back")]
)
def test_nothing_is_offered_until_the_manager_has_written_the_disks(node: Object, expected: str) -> None:
    assert reason(node, 1) == expected


@pytest.mark.parametrize(
    ("node", "free"),
    [pytest.param(STALE_BUT_READY, FREE, id="stale"), pytest.param(REFRESHED, FREE + 40, id="refreshed")],
)
def test_a_deleted_replica_counts_for_as_long_as_the_status_lists_it(node: Object, free: int) -> None:
    assert (reason(node, free), reason(node, free + 1)) == ("ROOM", "INSUFFICIENT_STORAGE")


def test_free_space_follows_the_status_from_change_to_change() -> None:
    gone = make.replica("gone", "vol-z", "a", size=40)
    view = update(build_view(empty_snapshot(), NOW, 0), changes_of(GONE, REPLICAS, gone), NOW).view
    view = update(view, changes_of(gone, deleted=True), NOW).view
    for node, free in ((GONE, FREE), (BACK, FREE), (STALE_BUT_READY, FREE), (REFRESHED, FREE + 40), (GONE, FREE)):
        view = update(view, changes_of(node), NOW).view
        assert view.free_space("a")["disk-1"].free == free * GI
        assert build_view(view.snapshot, NOW, 0).free_space("a") == view.free_space("a")


def test_a_listed_replica_that_no_longer_exists_places_no_volume() -> None:
    view = make.view(GONE, make.storage_class(), make.bound("z"), make.pod("z", node="a"))
    assert unlisted_volumes(make.as_pod(make.pod("z")), "a", view) == ("vol-z",)


def test_a_pod_is_not_sent_back_to_a_node_without_manager() -> None:
    objects = [make.storage_class(), *make.bound("x", 10), *REPLICAS, make.longhorn_node("b", 10)]
    assert make.reasons(make.explained(make.pod("x"), GONE, objects)) == {"a": "NODE_NOT_READY", "b": "ROOM"}
    assert make.reasons(make.explained(make.pod("x"), REFRESHED, objects))["a"] == "HOME"


def test_growth_does_not_count_on_space_that_the_stale_status_takes() -> None:
    claim = make.claim("x", 10 + FREE + 1, bound=True)
    volume = [make.persistent_volume("x", uid="uid-x"), make.volume("vol-x", 10)]
    volume[0]["spec"]["capacity"] = {"storage": "10Gi"}
    assert not make.view(GONE, REPLICAS, claim, volume).indexes.growth
    assert make.view(REFRESHED, REPLICAS, claim, volume).indexes.growth


class TestDemand:
    """A pod that is bound to the node, and its volume."""

    POD = make.pod("x", node="a", phase="Running")
    VOLUME = (make.claim("x", 10, bound=True), make.persistent_volume("x", uid="uid-x"), make.volume("vol-x", 10))

    def sources(self, node: Object, replica: Object) -> list[DemandSource]:
        view = make.view(node, make.storage_class(), self.POD, self.VOLUME, replica)
        return [demand.source for demand in DemandIndex.of(view).all]

    @pytest.mark.parametrize("node", [GONE, BACK, REFRESHED], ids=["gone", "back", "refreshed"])
    def test_a_replica_on_the_node_ends_it(self, node: Object) -> None:
        assert self.sources(node, REPLICAS[0]) == []

    @pytest.mark.parametrize(
        "replica",
        [
            pytest.param(make.replica("kept", "vol-x", "a", size=10, failed=True), id="failed"),
            pytest.param(make.replica("kept", "vol-x", "a", size=10, deleting=True), id="deleting"),
            pytest.param(make.replica("kept", "vol-x", "b", size=10), id="on another node"),
            pytest.param(make.replica("kept", "vol-x", size=10), id="not placed"),
        ],
    )
    def test_other_replicas_do_not(self, replica: Object) -> None:
        assert self.sources(GONE, replica) == [DemandSource.POD]

    @pytest.mark.parametrize("node", [GONE, BACK], ids=["gone", "back"])
    def test_a_running_pod_is_neither_stuck_nor_hopeless(self, node: Object) -> None:
        state = ClusterState.of(make.view(node, make.storage_class(), self.POD, self.VOLUME, REPLICAS[0]))
        report = PlacementReport()
        for now in (0.0, STUCK_AFTER):
            report = report.update(state, Contention(), Ledger(), now)
        assert (report.stuck, report.hopeless) == ((), ())
