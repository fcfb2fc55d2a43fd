"""The rows and numbers of the status page. This is which node is worst, which pods wait, and which node is closest."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.model.verdict import Reason
from scheduler_core.monitor.capacity_report import CapacityReport
from scheduler_core.monitor.node_rows import NodeCondition, NodeRow, SpaceTotal, group_by_zone, page_of, select_rows
from scheduler_core.monitor.report import StatusReport, WaitingRow, status_report, waiting_pods, waiting_row
from tests import builders as make
from tests.builders import GI, Object


def report(*objects: Object | list[Object]) -> StatusReport:
    return status_report(make.state(*objects))


def row(*objects: Object | list[Object], options: FilterOptions | None = None, **refused: str) -> WaitingRow:
    state = make.state(*objects)
    (pod, *_) = waiting_pods(state.view)
    return waiting_row(pod, state, options or FilterOptions(), make.competing(state), refused)


@pytest.mark.parametrize(
    ("disks", "node", "condition"),
    [
        pytest.param({"d": make.disk()}, {}, NodeCondition.OPEN, id="open"),
        pytest.param(
            {"d": make.disk(), "e": make.disk(allow=False)}, {}, NodeCondition.PARTLY_CLOSED, id="one disk closed"
        ),
        pytest.param({"d": make.disk(allow=False)}, {}, NodeCondition.CLOSED, id="every disk closed"),
        pytest.param({"d": make.disk()}, {"schedulable": False}, NodeCondition.CLOSED, id="cordoned"),
        pytest.param({"d": make.disk(scheduled=100)}, {}, NodeCondition.CLOSED, id="scheduled in full"),
        pytest.param(
            {"d": make.disk(), "e": make.disk(scheduled=101)}, {}, NodeCondition.OVER_LIMIT, id="over the limit"
        ),
        pytest.param({"d": make.disk(scheduled=101)}, {"ready": False}, NodeCondition.NOT_READY, id="not ready"),
        pytest.param({}, {}, NodeCondition.NO_DISKS, id="no disks"),
    ],
)
def test_a_node_has_a_condition(disks: dict[str, Object], node: dict[str, Any], condition: NodeCondition) -> None:
    (only,) = report(make.longhorn_node("n1", disks, **node)).rows
    assert only.condition is condition


def test_the_worst_nodes_come_first() -> None:
    nodes = [
        make.longhorn_node("empty-b"),
        make.longhorn_node("empty-a"),
        make.longhorn_node("fuller", {"d": make.disk(scheduled=90)}),
        make.longhorn_node("closed", allow=False),
        make.longhorn_node("down", ready=False),
    ]
    assert [entry.name for entry in report(nodes).rows] == ["down", "closed", "fuller", "empty-a", "empty-b"]


def test_closed_disks_have_no_free_space() -> None:
    disks = {"open": make.disk(100, scheduled=30, reserved=10, available=80), "shut": make.disk(500, allow=False)}
    (only,) = report(make.longhorn_node("n1", disks)).rows
    assert only.space == SpaceTotal(
        maximum=600 * GI,
        reserved=10 * GI,
        scheduled=30 * GI,
        promised=0,
        free=60 * GI,
        largest_free=60 * GI,
        written=20 * GI,
        limit=590 * GI,
    )
    assert only.closed == "1 of 2 disks closed: disk shut has allowScheduling false"


def test_demand_of_bound_pods_is_on_their_node() -> None:
    waiting = [make.storage_class(), make.claim("a", 30), make.pod("a", node="n1")]
    (only,) = report(make.longhorn_node("n1"), waiting).rows
    assert (only.demand, only.space.scheduled) == (30 * GI, 0)


@given(
    sizes=st.lists(st.integers(min_value=1, max_value=500), min_size=1, max_size=6),
    percentage=st.integers(min_value=50, max_value=300),
)
def test_the_report_has_the_numbers_of_the_metrics(sizes: list[int], percentage: int) -> None:
    nodes = [make.longhorn_node(f"n{index}", float(size)) for index, size in enumerate(sizes)]
    objects = [*nodes, make.storage_class(), make.setting("storage-over-provisioning-percentage", str(percentage))]
    state = make.state(objects)
    result = status_report(state)
    metrics = CapacityReport.of(state)
    assert sorted(usage for entry in result.rows for usage in entry.disks) == sorted(metrics.disks)
    assert result.largest_volumes == metrics.largest_volumes
    assert result.largest_volume == max(metrics.largest_volumes.values())
    assert result.space == SpaceTotal.of(metrics.disks)
    assert result.disks == len(sizes)
    assert result.count(NodeCondition.OPEN) == len(sizes)


def zone_rows() -> tuple[NodeRow, ...]:
    """Five nodes in two zones and in none."""
    return report(
        [
            make.longhorn_node("a-1", zone="east", tags=["Fast"]),
            make.longhorn_node("a-2", zone="east", allow=False),
            make.longhorn_node("b-1", zone="WEST"),
            make.longhorn_node("c-1"),
            make.longhorn_node("b-2", {"nvme": make.disk(scheduled=50)}, zone="WEST"),
        ]
    ).rows


@pytest.mark.parametrize(
    ("text", "zone", "names"),
    [
        ("", None, ["a-2", "b-2", "a-1", "b-1", "c-1"]),
        ("b-", None, ["b-2", "b-1"]),
        ("west", None, ["b-2", "b-1"]),
        ("fast", None, ["a-1"]),
        ("NVME", None, ["b-2"]),
        ("closed", None, ["a-2"]),
        ("allowScheduling false", None, ["a-2"]),
        ("east fast", None, ["a-1"]),
        ("east nvme", None, []),
        ("", "east", ["a-2", "a-1"]),
        ("", "", ["c-1"]),
        ("1", "WEST", ["b-1"]),
    ],
)
def test_rows_are_selected_by_words_and_zone(text: str, zone: str | None, names: list[str]) -> None:
    assert [entry.name for entry in select_rows(zone_rows(), text, zone)] == names


def test_zones_come_by_name_and_nodes_without_one_last() -> None:
    zones = group_by_zone(zone_rows())
    assert [(entry.zone, [each.name for each in entry.rows]) for entry in zones] == [
        ("WEST", ["b-2", "b-1"]),
        ("east", ["a-2", "a-1"]),
        ("", ["c-1"]),
    ]
    assert (zones[0].space.maximum, zones[0].space.free, zones[0].space.largest_free) == (200 * GI, 150 * GI, 100 * GI)


@given(total=st.integers(min_value=0, max_value=120), number=st.integers(-3, 200), size=st.integers(1, 60))
def test_pages_are_parts_of_the_rows(total: int, number: int, size: int) -> None:
    rows = list(range(total))
    page = page_of(rows, number, size)
    assert [each for current in range(1, page.pages + 1) for each in page_of(rows, current, size).rows] == rows
    assert 1 <= page.number <= page.pages
    assert page.number == max(1, min(number, page.pages))
    assert list(page.rows) == (rows[page.first - 1 : page.last] if rows else [])
    assert (page.total, page.first == 0) == (total, not rows)


def test_pods_without_a_node_wait_the_oldest_first() -> None:
    old = make.pod("a", name="old")
    old["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    new = make.pod("a", name="a-new")
    new["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    others = [make.pod("a", name="bound", node="n1"), make.pod("a", name="done", phase="Failed"), make.pod(name="none")]
    view = make.view(new, old, others)
    assert [pod.name for pod in waiting_pods(view)] == ["old", "a-new"]


def test_a_row_counts_reasons_and_fitting_nodes() -> None:
    nodes = [make.longhorn_node(name) for name in ("n1", "n2", "n3")]
    small = make.longhorn_node("n4", 10)
    result = row(nodes, small, make.storage_class(), make.claim("a", 30), make.pod("a"), n3="tainted")
    assert (result.nodes, result.fitting, result.size) == (4, 2, 30 * GI)
    assert result.reasons == {"insufficient Longhorn storage": 1, "tainted": 1}
    assert result.closest is None


@pytest.mark.parametrize(
    ("frees", "closest", "missing"),
    [
        pytest.param([10, 20, 15], "n1", 10, id="the most free bytes"),
        pytest.param([10, 20, 20], "n1", 10, id="the first of equal ones"),
        pytest.param([5, 6, 7, 8, 9, 10, 29], "n6", 1, id="one of many"),
    ],
)
def test_the_closest_node_lacks_the_fewest_bytes(frees: list[int], closest: str, missing: int) -> None:
    nodes = [make.longhorn_node(f"n{index}", float(free)) for index, free in enumerate(frees)]
    result = row(nodes, make.storage_class(), make.claim("a", 30), make.pod("a"))
    assert result.closest is not None
    assert (result.closest.node, result.closest.missing) == (closest, missing * GI)
    assert result.closest.reason is Reason.INSUFFICIENT_STORAGE


def test_the_closest_node_lacks_space_rather_than_something_else() -> None:
    nodes = [make.longhorn_node("large", 500), make.longhorn_node("small", {"d": make.disk(10, tags=["fast"])})]
    result = row(nodes, make.storage_class(diskSelector="fast"), make.claim("a", 30), make.pod("a"))
    assert result.closest is not None
    assert (result.closest.node, result.closest.missing) == ("small", 20 * GI)


def test_the_closest_node_is_one_that_another_packing_mode_would_offer() -> None:
    nodes = [make.longhorn_node("two", {"a": make.disk(100), "b": make.disk(100)}), make.longhorn_node("small", 119)]
    objects = [make.storage_class(), make.claim("a", 60), make.claim("b", 60), make.pod("a", "b")]
    result = row(nodes, objects, options=FilterOptions(packing=Packing.STALE_SAFE))
    assert result.closest is not None
    assert (result.closest.node, result.closest.reason) == ("two", Reason.NEVER_SAFE)
    assert "40Gi more space: 20Gi on disk a, 20Gi on disk b" in result.closest.detail


def test_without_a_node_that_lacks_space_alone_the_one_that_passed_most_rules_is_closest() -> None:
    nodes = [make.longhorn_node("down", ready=False), make.longhorn_node("untagged")]
    result = row(nodes, make.storage_class(diskSelector="fast"), make.claim("a", 30), make.pod("a"))
    assert result.closest is not None
    assert (result.closest.node, result.closest.missing) == ("untagged", 0)
    assert result.closest.reason is Reason.DISK_TAGS


def test_without_nodes_there_is_no_closest_one() -> None:
    """A cluster may be empty, and kube-scheduler may refuse every node."""
    assert row(make.storage_class(), make.claim("a", 30), make.pod("a")).closest is None
    nodes = [make.longhorn_node("n1", 10)]
    result = row(nodes, make.storage_class(), make.claim("a", 30), make.pod("a"), n1="tainted")
    assert (result.closest, result.reasons) == (None, {"tainted": 1})


def test_a_pod_that_cannot_be_decided_about_has_an_error() -> None:
    result = row(make.longhorn_node("n1"), make.pod("absent"))
    assert "absent" in result.error
    assert (result.fitting, result.closest) == (0, None)
