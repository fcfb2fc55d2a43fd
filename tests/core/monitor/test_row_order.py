"""Nodes and disks in the order of `top`. What is misplaced in a state without a history is tested, too."""

import pytest

from scheduler_core.monitor.node_rows import NodeRow, RowOrder, node_rows, sort_disks, sort_nodes
from scheduler_core.monitor.report import placement_problems
from tests import builders as make
from tests.builders import Object

DISKS = {
    "a": make.disk(100, scheduled=10, reserved=30, available=90),
    "b": make.disk(200, scheduled=20, reserved=20, available=120),
    "c": make.disk(300, scheduled=250, reserved=10, available=299),
    "d": make.disk(50, scheduled=0, reserved=0, available=50, allow=False),
    "e": make.disk(100, scheduled=101, reserved=0, available=100),
}


def rows(*objects: Object | list[Object]) -> tuple[NodeRow, ...]:
    return node_rows(make.state(*objects))[::-1]


def one_disk_each() -> tuple[NodeRow, ...]:
    return rows([make.longhorn_node(name, {name: disk}, zone="z") for name, disk in DISKS.items()])


ORDERS = {
    RowOrder.WORST: "edcab",
    RowOrder.NAME: "abcde",
    RowOrder.WRITTEN: "bacde",
    RowOrder.SCHEDULED: "cebad",
    RowOrder.RESERVED: "abcde",
    RowOrder.PROMISED: "abcde",
}


@pytest.mark.parametrize(("order", "names"), [*ORDERS.items(), (RowOrder.FREE, "decab")])
def test_nodes_come_in_the_order_of_a_number(order: RowOrder, names: str) -> None:
    assert "".join(row.name for row in sort_nodes(one_disk_each(), order)) == names


@pytest.mark.parametrize(("order", "names"), [*ORDERS.items(), (RowOrder.FREE, "ecdab")])
def test_disks_come_in_the_order_of_a_number(order: RowOrder, names: str) -> None:
    disks = sort_disks(reversed(one_disk_each()), order)
    assert "".join(disk.usage.disk for disk in disks) == names
    assert {disk.zone for disk in disks} == {"z"}


def test_promised_bytes_are_an_order_of_their_own() -> None:
    nodes = [make.longhorn_node("a"), make.longhorn_node("b")]
    placed = [make.volume("v", 10), make.replica("r", "v", "b", size=10)]
    assert [row.name for row in sort_nodes(rows(nodes, placed), RowOrder.PROMISED)] == ["b", "a"]


def test_disks_of_one_node_are_ordered_by_name_at_last() -> None:
    (row,) = rows(make.longhorn_node("n", {name: make.disk(10) for name in "cab"}))
    for order in RowOrder:
        assert [disk.usage.disk for disk in sort_disks([row], order)] == ["a", "b", "c"]


def test_a_bound_pod_without_its_volume_is_reported_at_once() -> None:
    claim = [make.storage_class(), make.claim("x", 10), make.pod("x", name="p", node="a")]
    report = placement_problems(make.state(make.longhorn_node("a"), claim))
    assert [(entry.pod, entry.node) for entry in report.stuck] == [("default/p", "a")]
    assert report.misplaced == ()


@pytest.mark.parametrize(("node", "misplaced"), [("a", []), ("b", ["vol-x"])])
def test_a_new_volume_on_another_node_is_misplaced(node: str, misplaced: list[str]) -> None:
    volume = [
        make.claim("x", 10, bound=True),
        make.persistent_volume("x", uid="uid-x"),
        make.volume("vol-x", 10),
        make.replica("r", "vol-x", node, size=10, healthy=False),
    ]
    nodes = [make.longhorn_node(name) for name in "ab"]
    state = make.state(nodes, make.storage_class(), volume, make.pod("x", name="p", node="a"))
    assert [entry.volume for entry in placement_problems(state).misplaced] == misplaced
