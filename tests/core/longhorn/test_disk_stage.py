"""The disk rules, one by one and in order."""

from typing import Any

import pytest

from scheduler_core.longhorn.refusal_rules import Rule
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.stages import disk_and_space_refusal, disk_refusal
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import GIB, cluster, conditions, disk, node, replica, volume

TIB16 = 16 * 1024**4


def rule_against(
    fields: dict[str, Any] | None = None, volume_fields: dict[str, Any] | None = None, **snapshot: Any
) -> Rule | None:
    """The rule that refuses a disk with `fields` to a volume with `volume_fields`."""
    entry = node("n1", disk(**fields or {}))
    refusal = disk_refusal(
        cluster(entry, **snapshot), ReplicaRequest.for_volume(volume(**volume_fields or {})), entry.disks[0]
    )
    return None if refusal is None else refusal.rule


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        pytest.param({}, None, id="open"),
        pytest.param({"in_status": False}, Rule.DISK_NOT_IN_STATUS, id="no status yet"),
        pytest.param({"in_spec": False}, Rule.DISK_NOT_IN_SPEC, id="removed from the spec"),
        pytest.param({"allow_scheduling": False}, Rule.DISK_SCHEDULING_DISABLED, id="scheduling disabled"),
        pytest.param({"eviction_requested": True}, Rule.DISK_EVICTION_REQUESTED, id="evicting"),
        pytest.param(
            {"eviction_requested": True, "allow_scheduling": False},
            Rule.DISK_EVICTION_REQUESTED,
            id="evicting, and therefore without scheduling",
        ),
        pytest.param({"conditions": conditions(Schedulable="False")}, Rule.DISK_NOT_SCHEDULABLE, id="not schedulable"),
        pytest.param({"conditions": ()}, Rule.DISK_NOT_SCHEDULABLE, id="no conditions"),
        pytest.param({"conditions": conditions(Ready="False")}, None, id="Ready is not looked at"),
        pytest.param(
            {"allow_scheduling": False, "spec_type": "block"}, Rule.DISK_SCHEDULING_DISABLED, id="state before type"
        ),
    ],
)
def test_the_state_of_the_disk_is_checked_first(fields: dict[str, Any], rule: Rule | None) -> None:
    assert rule_against(fields) is rule


@pytest.mark.parametrize(
    ("engine", "kind", "rule"),
    [
        pytest.param("v1", "filesystem", None, id="v1 on a file system"),
        pytest.param("v1", "block", Rule.DISK_TYPE, id="v1 on a block disk"),
        pytest.param("v2", "block", None, id="v2 on a block disk"),
        pytest.param("v2", "filesystem", Rule.DISK_TYPE, id="v2 on a file system"),
        pytest.param("v1", "", Rule.DISK_TYPE, id="no type fits nothing"),
        pytest.param("v3", "filesystem", None, id="anything else counts as v1"),
    ],
)
def test_the_disk_type_must_be_the_data_engine_s(engine: str, kind: str, rule: Rule | None) -> None:
    other_type = "block" if kind == "filesystem" else "filesystem"
    assert rule_against({"spec_type": kind, "status_type": other_type}, {"data_engine": engine}) is rule


@pytest.mark.parametrize(
    ("filesystem", "size", "rule"),
    [
        pytest.param("ext4", TIB16 - 1, None, id="ext4 -1"),
        pytest.param("ext4", TIB16, Rule.FILESYSTEM_LIMIT, id="ext4 at 16 TiB"),
        pytest.param("extfoo", TIB16 + 1, Rule.FILESYSTEM_LIMIT, id="anything that starts with ext"),
        pytest.param("Ext4", TIB16, None, id="case"),
        pytest.param("xfs", 2**63 - 2, None, id="xfs -1"),
        pytest.param("xfs", 2**63 - 1, Rule.FILESYSTEM_LIMIT, id="xfs at its limit"),
        pytest.param("", TIB16, None, id="unknown"),
    ],
)
def test_a_replica_must_be_below_the_file_system_s_limit(filesystem: str, size: int, rule: Rule | None) -> None:
    assert rule_against({"filesystem_type": filesystem}, {"size": size}) is rule


def test_v2_replicas_have_no_size_limit() -> None:
    volume_fields = {"data_engine": "v2", "size": TIB16}
    assert rule_against({"spec_type": "block", "filesystem_type": "ext4"}, volume_fields) is None


@pytest.mark.parametrize(
    ("tags", "selector", "allow_empty", "rule"),
    [
        pytest.param(("ssd", "nvme"), ("ssd",), "true", None, id="subset"),
        pytest.param(("ssd",), ("hdd",), "true", Rule.DISK_TAGS, id="another tag"),
        pytest.param(("ssd",), (), "false", Rule.DISK_TAGS, id="no selector, not allowed"),
        pytest.param((), (), "false", None, id="untagged disks always fit"),
    ],
)
def test_every_disk_selector_must_equal_a_tag(
    tags: tuple[str, ...], selector: tuple[str, ...], allow_empty: str, rule: Rule | None
) -> None:
    settings = {"allow-empty-disk-selector-volume": allow_empty}
    assert rule_against({"tags": tags}, {"disk_selector": selector}, settings=settings) is rule


def test_the_backing_image_s_disk_selector_must_match_too() -> None:
    images = {"bi": lh.BackingImage("bi", disk_selector=("ssd",))}
    assert rule_against({}, {"backing_image": "bi"}, backing_images=images) is Rule.BACKING_IMAGE_DISK_TAGS
    assert rule_against({"tags": ("ssd",)}, {"backing_image": "bi"}, backing_images=images) is None


def test_a_volume_of_an_unknown_backing_image_fits_no_disk() -> None:
    assert rule_against({}, {"backing_image": "gone"}) is Rule.BACKING_IMAGE_MISSING


def test_a_linked_clone_must_be_on_its_source_s_disk() -> None:
    volume_fields = {"clone_mode": "linked-clone", "data_source": "snap://src/s1", "data_engine": "v2"}
    fields = {"spec_type": "block"}
    assert rule_against(fields, volume_fields, replicas=[replica("s", "n1/d1", volume="src")]) is None
    assert rule_against(fields, volume_fields, replicas=[replica("s", "n1/d2", volume="src")]) is Rule.LINKED_CLONE_DISK


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        pytest.param({}, None, id="fits"),
        pytest.param({"storage_scheduled": 90 * GIB + 1}, Rule.SCHEDULING_SPACE, id="no scheduling space"),
        pytest.param({"storage_scheduled": 90 * GIB + 1, "tags": ("x",)}, Rule.DISK_TAGS, id="tags before space"),
    ],
)
def test_space_is_checked_last(fields: dict[str, Any], rule: Rule | None) -> None:
    """Only disks that fit otherwise are checked."""
    entry = node("n1", disk(**fields))
    view = cluster(entry, settings={"allow-empty-disk-selector-volume": "false"})
    refusal = disk_and_space_refusal(view, ReplicaRequest.for_volume(volume()), entry.disks[0])
    assert (None if refusal is None else refusal.rule) is rule


def test_a_percentage_that_does_not_parse_refuses_every_disk() -> None:
    entry = node()
    view = cluster(entry, settings={"storage-over-provisioning-percentage": "much"})
    refusal = disk_and_space_refusal(view, ReplicaRequest.for_volume(volume()), entry.disks[0])
    assert refusal is not None
    assert refusal.rule is Rule.SETTING_FAULT


@pytest.mark.parametrize(
    ("fields", "volume_fields", "settings", "detail"),
    [
        pytest.param(
            {"eviction_requested": True, "allow_scheduling": False},
            {},
            {},
            "disk d1 is being evicted (evictionRequested true)",
            id="evicting",
        ),
        pytest.param(
            {},
            {"size": 20 * 1024 * GIB},
            {},
            "disk d1: ext4 cannot hold a file of 20Ti, only of less than 16Ti",
            id="too large",
        ),
        pytest.param(
            {}, {"disk_selector": ("",)}, {}, "disk d1 has tags [], the volume selects ['']", id="empty selector"
        ),
        pytest.param(
            {"tags": ("ssd", "not fast")},
            {"disk_selector": ("fast", " ssd")},
            {},
            "disk d1 has tags ['not fast', ssd], the volume selects [' ssd', fast]",
            id="blanks",
        ),
        pytest.param(
            {"tags": ("ssd",)},
            {},
            {"allow-empty-disk-selector-volume": "false"},
            "disk d1 has tags [ssd], the volume selects [], and allow-empty-disk-selector-volume is false",
            id="no selector",
        ),
    ],
)
def test_the_detail_of_a_refusal_names_what_decides(
    fields: dict[str, Any], volume_fields: dict[str, Any], settings: dict[str, str], detail: str
) -> None:
    entry = node("n1", disk(**fields))
    request = ReplicaRequest.for_volume(volume(**volume_fields))
    refusal = disk_refusal(cluster(entry, settings=settings), request, entry.disks[0])
    assert refusal is not None
    assert refusal.detail == detail


def test_the_detail_of_a_refusal_has_the_numbers() -> None:
    entry = node("n1", disk(storage_scheduled=95 * GIB))
    refusal = disk_and_space_refusal(cluster(entry), ReplicaRequest.for_volume(volume()), entry.disks[0])
    assert refusal is not None
    assert refusal.detail == ("disk d1: 10Gi + 95Gi scheduled must be at most 100Gi (100 % of 100Gi - 0 reserved)")
