"""DiskSchedules that longhorn-manager's own controller answers: the same kind, another contract."""

import json

import pytest

from scheduler_core.convert.disk_schedule import read_disk_schedule
from scheduler_core.convert.redact import redact
from scheduler_core.convert.snapshot_kinds import KINDS
from scheduler_core.model.disk_schedule import DiskSchedule
from tests import builders as make
from tests.builders import GI, Object
from tests.worlds.disk_schedules import Answers, Sizes, disk_schedule, owned_by_longhorn

KIND = KINDS["longhorn.io", "DiskSchedule"]


def free(schedule: Object, *, percent: int = 100, available: float = 100, reserved: float = 0) -> float:
    """The free Gi of the only disk, which has 100 Gi."""
    node = make.longhorn_node("n", {"disk-1": make.disk(100, available=available)})
    node["spec"]["disks"]["disk-1"]["storageReserved"] = int(reserved * GI)
    view = make.view(node, make.setting("storage-over-provisioning-percentage", str(percent)), schedule)
    return view.free_space("n")["disk-1"].free / GI


@pytest.mark.parametrize(
    ("requests", "answers", "used"),
    [
        pytest.param({"r": 30}, {}, 30, id="no answer yet"),
        pytest.param({"r": 30}, {"r": ("unknown", 0)}, 30, id="unknown counts as requested"),
        pytest.param({"r": 30}, {"r": ("", 0)}, 30, id="an empty state counts as requested"),
        pytest.param({"r": 0}, {"r": ("", 0)}, 0, id="a request for nothing"),
        pytest.param({"r": 30}, {"r": ("scheduled", 30)}, 30, id="scheduled"),
        pytest.param({"r": 30}, {"r": ("rejected", 0)}, 0, id="rejected"),
        pytest.param({"r": 50}, {"r": ("rejected", 30)}, 30, id="growth rejected"),
        pytest.param({"r": 50}, {"r": ("scheduled", 30)}, 50, id="growth requested"),
        pytest.param({}, {"r": ("scheduled", 30)}, 30, id="withdrawn, not released yet"),
    ],
)
@pytest.mark.parametrize("longhorn", [True, False], ids=["longhorn's", "ours"])
def test_requests_and_answers_of_both_forms_count_alike(
    longhorn: bool, requests: Sizes, answers: Answers, used: float
) -> None:
    schedule = disk_schedule(replicas=requests, answers=answers, images={"b": 2}, image_answers={"b": ("scheduled", 2)})
    assert free(owned_by_longhorn(schedule) if longhorn else schedule) == 98 - used


@pytest.mark.parametrize(
    ("percent", "available", "reserved", "longhorns", "ours"),
    [
        pytest.param(200, 40, 0, 200, 40, id="over-provisioned"),
        pytest.param(100, 40, 0, 100, 40, id="data is written"),
        pytest.param(100, 100, 30, 70, 70, id="reserved"),
        pytest.param(200, 100, 30, 140, 100, id="reserved and over-provisioned"),
        pytest.param(50, 80, 0, 50, 50, id="under-provisioned"),
    ],
)
def test_longhorns_limit_is_its_over_provisioning_rule(
    percent: int, available: float, reserved: float, longhorns: float, ours: float
) -> None:
    assert (
        free(owned_by_longhorn(disk_schedule()), percent=percent, available=available, reserved=reserved) == longhorns
    )
    assert free(disk_schedule(), percent=percent, available=available, reserved=reserved) == ours


@pytest.mark.parametrize(
    ("owner", "ready", "expected"),
    [(True, True, True), (True, False, True), (False, True, True), (False, False, False)],
)
def test_its_owner_or_its_condition_shows_that_longhorn_answers_it(owner: bool, ready: bool, expected: bool) -> None:
    raw = json.dumps(owned_by_longhorn(disk_schedule(replicas={"r": 3}), owner=owner, ready=ready)).encode()
    redacted = json.dumps(redact(KIND, make.LONGHORN, raw)).encode()
    for schedule in (read_disk_schedule(raw), KIND.decode(raw)[1], KIND.decode(redacted)[1]):
        assert isinstance(schedule, DiskSchedule)
        assert schedule.owned_by_longhorn is expected


def test_a_mirror_that_longhorn_took_over_is_no_mirror_any_more() -> None:
    schedule = disk_schedule(replicas={"r": 60}, answers={"r": ("scheduled", 60)})
    schedule["metadata"]["labels"] = {"longhorn.io/disk-schedule-mirror": "true"}
    assert (free(schedule), free(owned_by_longhorn(schedule))) == (100, 40)
