"""Whether a volume may grow: the physical check, the scheduling check, several replicas on one disk."""

from typing import Any

import pytest

from scheduler_core.longhorn.refusal_rules import ScheduleError
from scheduler_core.longhorn.volume_validation import ExpansionResult, check_expansion
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import GIB, LONG_AGO, cluster, disk, node, replica, volume

REFUSED = ExpansionResult(ScheduleError.INSUFFICIENT_STORAGE, "n1-d1")


def expand(
    increase: int, *replicas: lh.Replica, settings: dict[str, str] | None = None, **fields: Any
) -> set[ExpansionResult]:
    """The possible results for a volume on disk n1/d1 that grows by so many bytes."""
    view = cluster(node("n1", disk(**fields)), settings=settings)
    entry = volume()
    return set(check_expansion(view, entry, replicas or [replica("r", "n1/d1")], entry.size + increase))


@pytest.mark.parametrize(
    ("increase", "allowed"),
    [
        pytest.param(75 * GIB - 1, True, id="-1"),
        pytest.param(75 * GIB, True, id="equal passes"),
        pytest.param(75 * GIB + 1, False, id="+1"),
    ],
)
def test_the_minimum_must_be_left_when_the_volume_is_full(increase: int, allowed: bool) -> None:
    assert (expand(increase) == {ExpansionResult()}) is allowed


@pytest.mark.parametrize(
    ("increase", "allowed"), [pytest.param(30 * GIB, True, id="equal"), pytest.param(30 * GIB + 1, False, id="+1")]
)
def test_scheduled_space_may_reach_the_limit(increase: int, allowed: bool) -> None:
    assert (expand(increase, storage_scheduled=70 * GIB) == {ExpansionResult()}) is allowed


def test_written_bytes_may_reach_the_over_provisioning_limit() -> None:
    settings = {"storage-over-provisioning-percentage": "50"}
    assert expand(50 * GIB, settings=settings) == {ExpansionResult()}
    assert expand(50 * GIB + 1, settings=settings) == {REFUSED}


def test_the_reserve_counts_as_free_in_the_physical_check() -> None:
    settings = {"storage-minimal-available-percentage": "10", "storage-over-provisioning-percentage": "200"}
    assert expand(20 * GIB, settings=settings, storage_available=15 * GIB, storage_reserved=30 * GIB) == {
        ExpansionResult()
    }


def test_each_replica_on_a_disk_grows() -> None:
    pair = [replica("r", "n1/d1"), replica("s", "n1/d1", failed_at=LONG_AGO)]
    assert expand(37 * GIB, *pair) == {ExpansionResult()}
    assert expand(38 * GIB, *pair) == {REFUSED}


def test_one_of_the_disks_that_fail_is_reported() -> None:
    view = cluster(node("n1"), node("n2"))
    results = check_expansion(view, volume(), [replica("r", "n1/d1"), replica("s", "n2/d1")], 500 * GIB)
    assert {(result.allowed, result.disk) for result in results} == {(False, "n1-d1"), (False, "n2-d1")}


@pytest.mark.parametrize("fields", [{"storage_maximum": 0}, {"storage_available": 0}])
def test_a_volume_on_a_disk_without_space_does_not_grow(fields: dict[str, Any]) -> None:
    assert expand(1, **fields) == {REFUSED}


def test_a_volume_with_a_replica_on_a_missing_disk_does_not_grow() -> None:
    assert expand(1, replica("r", "n1/d9")) == {ExpansionResult(ScheduleError.DISK_NOT_FOUND, "n1-d9")}


def test_unplaced_replicas_do_not_matter() -> None:
    assert expand(500 * GIB, replica("r")) == {ExpansionResult()}


def test_an_increase_of_zero_skips_the_physical_check() -> None:
    assert expand(0, storage_available=26 * GIB) == {ExpansionResult()}
