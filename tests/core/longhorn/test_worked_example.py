"""The example of Longhorn's own documentation: node A with Disk X (1 of 4 GB available) and Disk Y (2 of 8 GB)."""

from typing import Any

from scheduler_core.longhorn.placement import find_candidates
from scheduler_core.longhorn.refusal_rules import Rule
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import disk_space, minimal_available, scheduling_limit, space_refusal
from scheduler_core.model.longhorn import Disk
from tests.worlds.longhorn import cluster, disk, node, places, replica, volume

GB = 10**9
X: dict[str, Any] = {"storage_available": 1 * GB, "storage_maximum": 4 * GB}
Y: dict[str, Any] = {
    "storage_available": 2 * GB,
    "storage_maximum": 8 * GB,
    "storage_scheduled": 2 * GB,
    "storage_reserved": 1 * GB,
}
TEN_PERCENT = Settings(storage_minimal_available_percentage=10)
SMALL = volume(size=1 * GB)


def schedulable(entry: Disk, settings: Settings) -> Rule | None:
    return space_refusal(0, 0, disk_space(entry, settings))


def test_disk_x_has_too_little_available_space() -> None:
    assert minimal_available(disk("x", **X), Settings()) == 1 * GB
    assert schedulable(disk("x", **X), Settings()) is Rule.ACTUAL_SPACE


def test_disk_x_is_schedulable_without_a_minimum() -> None:
    assert schedulable(disk("x", **X), Settings(storage_minimal_available_percentage=0)) is None


def test_disk_y_has_enough_available_space() -> None:
    assert minimal_available(disk("y", **Y), TEN_PERCENT) == 800_000_000
    assert schedulable(disk("y", **Y), TEN_PERCENT) is None


def test_disk_y_is_below_its_provisioning_limit() -> None:
    assert scheduling_limit(disk("y", **Y), TEN_PERCENT) == 7 * GB


def stage_two(disk_soft: str, **y: Any) -> list[str]:
    """Stage 2: both disks pass the space checks and Disk X holds a replica of the volume already."""
    roomy = {**X, "storage_available": 4 * GB}
    node_a = node("a", disk("x", **roomy), disk("y", **{**Y, "storage_available": 8 * GB, **y}))
    settings = {"replica-disk-soft-anti-affinity": disk_soft, "replica-soft-anti-affinity": "true"}
    return places(
        find_candidates(
            cluster(node_a, settings=settings), ReplicaRequest.for_volume(SMALL), [replica("r", "a/x", size=GB)]
        )
    )


def test_hard_anti_affinity_only_leaves_disk_y() -> None:
    assert stage_two("false") == ["a/y"]


def test_hard_anti_affinity_fails_without_disk_y() -> None:
    assert stage_two("false", spec_type="block") == []


def test_soft_anti_affinity_prefers_disk_y() -> None:
    assert stage_two("true") == ["a/y"]


def test_soft_anti_affinity_falls_back_to_disk_x() -> None:
    assert stage_two("true", spec_type="block") == ["a/x"]
