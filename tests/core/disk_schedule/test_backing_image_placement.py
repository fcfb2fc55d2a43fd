"""Where backing images are needed, and where they may be copied to."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.disk_schedule.backing_image_placement import candidates, needed
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.disk_schedule import DiskSchedule, Spec
from scheduler_core.model.longhorn import BackingImage, Replica, Volume
from tests.builders import GI, NOW, disk, longhorn_node, snapshot


def cluster(settings: dict[str, str] | None = None, **nodes: dict[str, Any]) -> Cluster:
    """Nodes by name, with what their node or disk differs in."""
    made = [
        longhorn_node(name, {"disk-1": disk(**more.pop("disk", {}))}, **more) for name, more in sorted(nodes.items())
    ]
    return Cluster.of(snapshot(made), NOW, Settings.read(settings or {}))


def found(made: Cluster, image: BackingImage | None = None, held: dict[str, int] | None = None) -> list[str]:
    """The nodes of the candidates, in their order; `held` are bytes asked of a node's disk."""
    schedules = {
        f"{name}-disk-1": DiskSchedule(f"{name}-disk-1", Spec("disk-1", name, {"r": (held or {}).get(name, 0)}))
        for name in made.nodes
    }
    return [uuid.removesuffix("-disk-1") for uuid in candidates(made, schedules, image or BackingImage("i"))]


def test_the_disk_with_the_most_bytes_neither_held_nor_pending_comes_first() -> None:
    """Ties by name."""
    made = cluster(a={}, b={"disk": {"available": 90}}, c={})
    assert found(made) == ["a", "c", "b"]
    assert found(made, held={"a": 20 * GI}) == ["c", "b", "a"]


def test_a_node_that_has_a_copy_on_another_disk_comes_last() -> None:
    """And a disk that has one is none."""
    node = longhorn_node("a", {"disk-1": disk(100), "disk-2": disk(900)})
    made = Cluster.of(snapshot([node, longhorn_node("b", 100)]), NOW)
    schedules = {uuid: DiskSchedule(uuid) for uuid in ("a-disk-1", "a-disk-2", "b-disk-1")}
    image = BackingImage("i", disks=("a-disk-1",))
    assert candidates(made, schedules, image) == ("b-disk-1", "a-disk-2")


@pytest.mark.parametrize(
    "other",
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
def test_a_node_or_disk_that_longhorn_would_not_take_is_left_out(other: dict[str, Any]) -> None:
    """With tags: unless an empty selector may use them."""
    strict = {"allow-empty-node-selector-volume": "false", "allow-empty-disk-selector-volume": "false"}
    assert found(cluster(strict, a={}, b=other)) == ["a"]


def test_selectors_of_the_image_choose_nodes_and_disks() -> None:
    """All of them must match."""
    made = cluster(a={"tags": ["fast"]}, b={"tags": ["fast"], "disk": {"tags": ["ssd"]}}, c={"disk": {"tags": ["ssd"]}})
    assert found(made, BackingImage("i", node_selector=("fast",), disk_selector=("ssd",))) == ["b"]


def test_without_a_disk_schedule_or_with_an_unreadable_setting_there_is_no_candidate() -> None:
    """Nothing could be asked for, or Longhorn places nothing."""
    assert candidates(cluster(a={}), {}, BackingImage("i")) == ()
    assert found(cluster({"allow-empty-node-selector-volume": "perhaps"}, a={})) == []


def test_an_image_is_needed_where_replicas_of_its_volumes_are() -> None:
    """Not of other volumes, not of replicas without a place, that failed or that go."""
    volumes = [Volume("v", backing_image="i"), Volume("w", backing_image="other")]
    replicas = [
        Replica("v1", "v", disk_id="d1"),
        Replica("v2", "v"),
        Replica("v3", "v", disk_id="d3", deleting=True),
        Replica("v4", "v", disk_id="d4", failed_at="2026-01-01T00:00:00Z"),
        Replica("w1", "w", disk_id="d2"),
    ]
    assert needed(volumes, replicas, "i") == {"d1"}
