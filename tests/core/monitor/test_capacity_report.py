"""The space of disks and StorageClasses, compared with what the extender answers."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from scheduler_core.cluster.view import View
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.longhorn.csi_driver import MIN_SIZE, SIZE_STEP
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import scheduling_limit
from scheduler_core.model.verdict import Reason
from scheduler_core.monitor.capacity_report import CapacityReport, DiskUsage
from tests import builders as make
from tests.builders import GI, Object

TI = 1024


def report(*objects: Object | list[Object]) -> CapacityReport:
    return CapacityReport.of(make.state(*objects))


def usage(**fields: Any) -> DiskUsage:
    (disk,) = report(make.longhorn_node("n1", {"d1": make.disk(**fields)})).disks
    return disk


def fits(size: int, *objects: Object | list[Object]) -> bool:
    """Whether the extender finds a node for a pod with one new volume of `size` bytes."""
    return bool(make.fitting(make.explained(make.pod("a"), *objects, make.claim("a", str(size)))))


def test_a_disk_has_longhorns_numbers() -> None:
    assert usage(size=100, reserved=10, scheduled=30, available=60) == DiskUsage(
        node="n1",
        disk="d1",
        maximum=100 * GI,
        reserved=10 * GI,
        scheduled=30 * GI,
        promised=0,
        free=60 * GI,
        written=40 * GI,
        closed_by=None,
    )


def test_a_placed_replica_that_the_status_lacks_is_promised() -> None:
    node = make.longhorn_node("n1", {"d1": make.disk(100, scheduled=20)})
    state = make.state(node, make.volume("v", 30), make.replica("r", "v", "n1", size=30, disk="d1"))
    (disk,) = CapacityReport.of(state).disks
    limit = scheduling_limit(state.view.cluster.nodes["n1"].disks[0], state.view.settings)
    assert (disk.promised, disk.free) == (30 * GI, limit - 20 * GI - 30 * GI)


@pytest.mark.parametrize(
    ("node", "disk", "reason"),
    [
        pytest.param({}, {}, None, id="open"),
        pytest.param({}, {"tags": ["fast"]}, None, id="tags are a volume's matter"),
        pytest.param({"tags": ["fast"]}, {}, None, id="tags of the node are, too"),
        pytest.param({"ready": False}, {}, Reason.NODE_NOT_READY, id="node not ready"),
        pytest.param({"schedulable": False}, {}, Reason.NODE_CORDONED, id="cordoned"),
        pytest.param({"allow": False}, {}, Reason.NODE_SCHEDULING_DISABLED, id="node switched off"),
        pytest.param({"evict": True, "allow": False}, {}, Reason.NODE_EVICTING, id="node evicted"),
        pytest.param({}, {"allow": False}, Reason.NO_DISK, id="disk switched off"),
        pytest.param({}, {"pressure": True}, Reason.DISK_PRESSURE, id="disk pressure"),
        pytest.param({}, {"available": 20}, Reason.LOW_AVAILABLE, id="too little available"),
        pytest.param({}, {"scheduled": 100}, Reason.INSUFFICIENT_STORAGE, id="scheduled in full"),
        pytest.param({}, {"kind": "tape"}, Reason.DISK_TYPE, id="no data engine uses it"),
    ],
)
def test_a_closed_disk_has_the_reason(node: dict[str, Any], disk: dict[str, Any], reason: Reason | None) -> None:
    (only,) = report(make.longhorn_node("n1", {"d1": make.disk(**disk)}, **node)).disks
    assert (only.closed_by.reason if only.closed_by else None) == reason


def test_demand_without_a_replica_counts_on_its_node() -> None:
    nodes = [make.longhorn_node("n1"), make.longhorn_node("n2")]
    waiting = [make.storage_class(), make.claim("a", 30), make.pod("a", node="n2")]
    assert report(nodes, waiting).demand == {"n1": 0, "n2": 30 * GI}


@given(
    frees=st.lists(st.integers(min_value=0, max_value=200), min_size=1, max_size=4),
    tagged=st.sets(st.integers(min_value=0, max_value=3)),
    down=st.sets(st.integers(min_value=0, max_value=3), max_size=2),
    locality=st.sampled_from(["disabled", "best-effort", "strict-local"]),
)
def test_the_largest_volume_is_the_largest_that_the_extender_finds_a_node_for(
    frees: list[int], tagged: set[int], down: set[int], locality: str
) -> None:
    nodes = [
        make.longhorn_node(
            f"n{index}",
            {"d": make.disk(200, scheduled=200 - free + index / 3, tags=["fast"] if index in tagged else [])},
            ready=index not in down,
        )
        for index, free in enumerate(frees)
    ]
    cluster = [*nodes, make.storage_class(diskSelector="fast", dataLocality=locality)]
    largest = report(cluster).largest_volumes["longhorn"]
    assert largest == 0 or fits(largest, cluster)
    assert not fits(max(largest + SIZE_STEP, MIN_SIZE), cluster)


@pytest.mark.parametrize(("filesystem", "largest"), [("ext4", 16 * TI * GI - SIZE_STEP), ("xfs", 20 * TI * GI)])
def test_no_volume_is_larger_than_a_file_may_be(filesystem: str, largest: int) -> None:
    cluster = [make.longhorn_node("n1", {"d": make.disk(20 * TI, filesystem=filesystem)}), make.storage_class()]
    assert report(cluster).largest_volumes["longhorn"] == largest
    assert fits(largest, cluster)
    assert not fits(largest + SIZE_STEP, cluster)


@pytest.mark.parametrize(
    ("objects", "largest"),
    [
        pytest.param([make.storage_class(numberOfReplicas="many")], 0, id="not readable"),
        pytest.param([make.storage_class(backingImage="absent")], 0, id="backing image missing"),
        pytest.param([make.storage_class(provisioner="other")], None, id="not Longhorn's"),
    ],
)
def test_a_class_that_cannot_be_provisioned_has_no_largest_volume(objects: list[Object], largest: int | None) -> None:
    assert report(make.longhorn_node("n1"), objects).largest_volumes.get("longhorn") == largest


def test_with_an_unreadable_setting_nothing_fits() -> None:
    """Its default may be far from what was meant."""
    snapshot = make.snapshot(make.longhorn_node("n1"), make.storage_class())
    settings = Settings.read({"storage-over-provisioning-percentage": "x"})
    state = ClusterState.of(View.of(snapshot, make.NOW, settings=settings))
    assert CapacityReport.of(state).largest_volumes == {"longhorn": 0}
