"""FindDiskCandidates and ScheduleReplica: reasons, what counts as used, preconditions, and data locality."""

from typing import Any

import pytest

from scheduler_core.longhorn.placement import find_candidates, schedule_replica
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.stages import DISABLE_V2_LABEL
from scheduler_core.model import kube
from scheduler_core.model import longhorn as lh
from scheduler_core.values import replace
from tests.worlds.longhorn import GIB, LONG_AGO, cluster, conditions, disk, node, places, replica, volume

CLOSED = conditions(Schedulable="False")


def reasons(
    *nodes: lh.Node, affinity: str = "", settings: dict[str, str] | None = None, **volume_fields: Any
) -> set[str]:
    entry = volume(**volume_fields)
    result = find_candidates(cluster(*nodes, settings=settings), ReplicaRequest.for_volume(entry, affinity), ())
    assert not result.disks
    return {str(reason) for reason in result.reasons}


@pytest.mark.parametrize(
    ("nodes", "volume_fields", "expected"),
    [
        pytest.param([], {}, {"nodes are unavailable"}, id="no node"),
        pytest.param([node(conditions=CLOSED)], {}, {"nodes are unavailable"}, id="all cordoned"),
        pytest.param([node()], {"affinity": "n2"}, {"hard affinity cannot be satisfied"}, id="hard affinity"),
        pytest.param([], {"affinity": "n2"}, {"hard affinity cannot be satisfied"}, id="hard affinity, no node"),
        pytest.param(
            [node()],
            {"topology_requirement": (lh.TopologyTerm("z9"),)},
            {"topology requirement cannot be satisfied"},
            id="topology",
        ),
        pytest.param([node("n1", disk(conditions=CLOSED))], {}, {"disks are unavailable"}, id="no disk survives"),
        pytest.param([node("n1", disk(spec_type="block"))], {}, {"disks are unavailable"}, id="wrong type"),
        pytest.param([node()], {"disk_selector": ("ssd",)}, {"tags not fulfilled"}, id="disk tags"),
        pytest.param([node()], {"size": 101 * GIB}, {"insufficient storage"}, id="space"),
        pytest.param([node()], {"size": 16 * 1024**4}, {"incompatible volume size"}, id="file system"),
        pytest.param([node()], {"node_selector": ("ssd",)}, set(), id="node tags are silent"),
        pytest.param([node()], {"backing_image": "gone"}, {"longhorn client operation failed"}, id="backing image"),
        pytest.param(
            [node("n1", disk("d1", spec_type="block"), disk("d2", storage_scheduled=100 * GIB))],
            {},
            {"disks are unavailable", "insufficient storage"},
            id="every disk has its reason",
        ),
    ],
)
def test_a_volume_that_fits_on_no_node_has_these_reasons(
    nodes: list[lh.Node], volume_fields: dict[str, Any], expected: set[str]
) -> None:
    assert reasons(*nodes, **volume_fields) == expected


def test_there_are_no_reasons_if_there_is_a_candidate() -> None:
    view = cluster(node("n1"), node("n2", disk(spec_type="block")))
    assert find_candidates(view, ReplicaRequest.for_volume(volume()), ()).reasons == frozenset()


@pytest.mark.parametrize(
    "name",
    [
        "replica-soft-anti-affinity",
        "replica-zone-soft-anti-affinity",
        "replica-disk-soft-anti-affinity",
        "allow-empty-node-selector-volume",
        "allow-empty-disk-selector-volume",
        "replica-auto-balance-disk-pressure-percentage",
        "storage-minimal-available-percentage",
    ],
)
def test_an_unreadable_setting_stops_the_scheduler(name: str) -> None:
    assert reasons(node(), settings={name: " true"}) == {"longhorn client operation failed"}


def test_settings_the_scheduler_does_not_read_do_not_matter() -> None:
    view = cluster(node(), settings={"default-replica-count": "many"})
    assert places(find_candidates(view, ReplicaRequest.for_volume(volume()), ())) == ["n1/d1"]


def test_an_unreadable_wait_stops_only_degraded_volumes() -> None:
    settings = {"replica-replenishment-wait-interval": "soon"}
    assert places(find_candidates(cluster(node(), settings=settings), ReplicaRequest.for_volume(volume()), ())) == [
        "n1/d1"
    ]
    degraded: dict[str, Any] = {"robustness": "degraded", "last_degraded_at": LONG_AGO}
    assert reasons(node(), settings=settings, **degraded) == {"longhorn client operation failed"}


def test_a_linked_clone_without_source_has_a_reason_of_its_own() -> None:
    volume_fields: dict[str, Any] = {"clone_mode": "linked-clone", "data_source": "vol://src", "data_engine": "v2"}
    assert reasons(node(), **volume_fields) == {"linked clone replica cannot be satisfied"}


class TestSchedule:
    """ScheduleReplica: its preconditions and its results."""

    def test_a_placed_replica_is_not_placed_again(self) -> None:
        """Longhorn's webhook would refuse it too."""
        result = schedule_replica(cluster(node()), volume(), replica("r", "n1/d1"), [])
        assert result.reasons == {"replica already scheduled"}

    def test_a_replica_that_failed_before_it_was_healthy_is_not_placed(self) -> None:
        result = schedule_replica(cluster(node()), volume(), replica("r", failed_at=LONG_AGO), [])
        assert result.reasons == {"unused failed replica is not supported"}

    def test_a_replica_that_failed_after_it_was_healthy_is_placed(self) -> None:
        entry = replica("r", failed_at=LONG_AGO, healthy_at=LONG_AGO)
        assert places(schedule_replica(cluster(node()), volume(), entry, [entry])) == ["n1/d1"]

    def test_the_emptiest_node_is_chosen(self) -> None:
        view = cluster(node("n1", disk(storage_scheduled=20 * GIB)), node("n2"))
        assert places(schedule_replica(view, volume(), replica("r"), [])) == ["n2/d1"]

    def test_without_a_candidate_the_result_has_reasons(self) -> None:
        result = schedule_replica(cluster(), volume(), replica("r"), [])
        assert not result.choices
        assert result.reasons == {"nodes are unavailable"}


class TestBestEffortLocality:
    """With best-effort data locality the attached node is preferred, inside the winning tier."""

    LOCAL = volume(data_locality="best-effort", node_id="n1", current_node_id="n2")
    NODES = (node("n1", disk(storage_scheduled=50 * GIB), zone="a"), node("n2", zone="b"))

    def choose(self, *replicas: lh.Replica, entry: lh.Volume = LOCAL, nodes: tuple[lh.Node, ...] = NODES) -> list[str]:
        return places(schedule_replica(cluster(*nodes), entry, replica("new"), replicas))

    def test_the_attached_node_is_preferred(self) -> None:
        assert self.choose() == ["n1/d1"]

    def test_a_volume_without_best_effort_is_balanced(self) -> None:
        assert self.choose(entry=replace(self.LOCAL, data_locality="disabled")) == ["n2/d1"]

    def test_a_detached_volume_is_balanced(self) -> None:
        assert self.choose(entry=replace(self.LOCAL, node_id="")) == ["n2/d1"]

    @pytest.mark.parametrize("fields", [{}, {"eviction_requested": True}, {"healthy_at": ""}])
    def test_any_replica_on_the_attached_node_ends_the_preference(self, fields: dict[str, Any]) -> None:
        entry = replace(self.LOCAL, replica_soft_anti_affinity="enabled")
        nodes = (node("n1", disk("d1"), disk("d2", storage_scheduled=50 * GIB)), node("n2", disk("d1"), disk("d2")))
        assert self.choose(replica("r", "n1/d1", **fields), replica("s", "n2/d1"), entry=entry, nodes=nodes) == [
            "n2/d2"
        ]

    def test_a_deleting_replica_on_the_attached_node_ends_the_preference(self) -> None:
        nodes = (node("n1", disk("d1"), disk("d2", storage_scheduled=50 * GIB)), node("n2"))
        assert self.choose(replica("r", "n1/d1", deleting=True), nodes=nodes) == ["n2/d1"]

    def test_a_failed_replica_on_the_attached_node_keeps_the_preference(self) -> None:
        entry = replica("r", "n1/d1", failed_at=LONG_AGO, rebuild_retry_count=5)
        assert self.choose(entry) == ["n1/d1"]

    def test_the_preference_never_reaches_into_a_worse_tier(self) -> None:
        nodes = (node("n1", zone="a"), node("n2", zone="b"), node("n3", zone="a"))
        assert self.choose(replica("r", "n3/d1"), nodes=nodes) == ["n2/d1"]

    def test_a_replica_goes_elsewhere_if_the_attached_node_is_full(self) -> None:
        nodes = (node("n1", disk(storage_scheduled=100 * GIB)), node("n2"))
        assert self.choose(nodes=nodes) == ["n2/d1"]


def test_a_label_of_the_kubernetes_node_counts_after_the_node_is_known() -> None:
    entry = ReplicaRequest.for_volume(volume(data_engine="v2"))
    before = cluster(node("n1", disk(spec_type="block", status_type="block")))
    assert places(find_candidates(before, entry, ())) == ["n1/d1"]
    labeled = replace(before, kube_nodes={"n1": kube.Node("n1", {DISABLE_V2_LABEL: "true"})})
    assert places(find_candidates(labeled, entry, ())) == []


def test_a_changed_setting_counts_after_the_nodes_are_known() -> None:
    entry = ReplicaRequest.for_volume(volume(size=60 * GIB))
    before = cluster(node("n1"))
    assert places(find_candidates(before, entry, ())) == ["n1/d1"]
    fewer = replace(before, settings=replace(before.settings, storage_over_provisioning_percentage=10))
    assert places(find_candidates(fewer, entry, ())) == []


def test_a_replica_that_no_status_lists_takes_space_on_a_known_node() -> None:
    settings = {"replica-soft-anti-affinity": "true", "replica-disk-soft-anti-affinity": "true"}
    entry = ReplicaRequest.for_volume(volume(size=60 * GIB))
    view = cluster(node("n1"), settings=settings)
    assert places(find_candidates(view, entry, ())) == ["n1/d1"]
    assert places(find_candidates(view, entry, (replica("r", "n1/d1", size=60 * GIB),))) == []
