"""Where backing images are needed, and where they may be copied to."""

from typing import Any

import pytest

from scheduler_core.disk_schedule.backing_images import candidate_disks, disks_that_need_image
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.disk_schedule import DiskSchedule, DiskScheduleSpec
from scheduler_core.model.longhorn import BackingImage, Replica, Volume
from tests.builders import GI, NOW, disk, longhorn_node, snapshot
from tests.worlds.disk_schedules import disk_spaces


def cluster(settings: dict[str, str] | None = None, **nodes: dict[str, Any]) -> Cluster:
    """Longhorn nodes by name, with the arguments of their node and disk."""
    objects = [
        longhorn_node(name, {"disk-1": disk(**fields.pop("disk", {}))}, **fields)
        for name, fields in sorted(nodes.items())
    ]
    return Cluster.of(snapshot(objects), NOW, Settings.read(settings or {}))


def candidate_nodes(
    nodes: Cluster, image: BackingImage | None = None, requested: dict[str, int] | None = None
) -> list[str]:
    """The nodes of the candidate disks, in order; `requested` are bytes requested of a node's disk."""
    schedules = {
        f"{name}-disk-1": DiskSchedule(
            f"{name}-disk-1", DiskScheduleSpec("disk-1", name, {"r": (requested or {}).get(name, 0)})
        )
        for name in nodes.nodes
    }
    space = disk_spaces(schedules, nodes.nodes, {})
    return [uuid.removesuffix("-disk-1") for uuid in candidate_disks(nodes, space, image or BackingImage("i"))]


def test_the_disk_with_the_most_free_bytes_comes_first() -> None:
    nodes = cluster(a={}, b={"disk": {"available": 90}}, c={})
    assert candidate_nodes(nodes) == ["a", "c", "b"]
    assert candidate_nodes(nodes, requested={"a": 20 * GI}) == ["c", "b", "a"]


def test_a_node_that_has_a_copy_on_another_disk_comes_last() -> None:
    node = longhorn_node("a", {"disk-1": disk(100), "disk-2": disk(900)})
    nodes = Cluster.of(snapshot([node, longhorn_node("b", 100)]), NOW)
    places = (("a", "disk-1"), ("a", "disk-2"), ("b", "disk-1"))
    schedules = {
        f"{name}-{each}": DiskSchedule(f"{name}-{each}", DiskScheduleSpec(each, name)) for name, each in places
    }
    image = BackingImage("i", disks=("a-disk-1",))
    assert candidate_disks(nodes, disk_spaces(schedules, nodes.nodes, {}), image) == ("b-disk-1", "a-disk-2")


@pytest.mark.parametrize(
    "unusable",
    [
        {"ready": False},
        {"schedulable": False},
        {"allow": False},
        {"disk": {"ready": False}},
        {"disk": {"allow": False}},
        {"disk": {"evict": True}},
        {"disk": {"kind": "block"}},
        {"disk": {"tags": ["slow"]}},
        {"tags": ["edge"]},
    ],
    ids=str,
)
def test_a_node_or_disk_that_longhorn_would_not_use_is_left_out(unusable: dict[str, Any]) -> None:
    strict = {"allow-empty-node-selector-volume": "false", "allow-empty-disk-selector-volume": "false"}
    assert candidate_nodes(cluster(strict, a={}, b=unusable)) == ["a"]


def test_selectors_of_the_image_choose_nodes_and_disks() -> None:
    nodes = cluster(
        a={"tags": ["fast"]}, b={"tags": ["fast"], "disk": {"tags": ["ssd"]}}, c={"disk": {"tags": ["ssd"]}}
    )
    assert candidate_nodes(nodes, BackingImage("i", node_selector=("fast",), disk_selector=("ssd",))) == ["b"]


def test_without_a_disk_schedule_or_with_an_unreadable_setting_there_is_no_candidate() -> None:
    assert candidate_disks(cluster(a={}), {}, BackingImage("i")) == ()
    assert candidate_nodes(cluster({"allow-empty-node-selector-volume": "perhaps"}, a={})) == []


def test_an_image_is_needed_where_replicas_of_its_volumes_are() -> None:
    volumes = [Volume("v", backing_image="i"), Volume("w", backing_image="other")]
    replicas = [
        Replica("v1", "v", disk_id="d1"),
        Replica("v2", "v"),
        Replica("v3", "v", disk_id="d3", deleting=True),
        Replica("v4", "v", disk_id="d4", failed_at="2026-01-01T00:00:00Z"),
        Replica("w1", "w", disk_id="d2"),
    ]
    assert disks_that_need_image(volumes, replicas, "i") == {"d1"}
