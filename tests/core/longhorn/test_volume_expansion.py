"""Whether a volume may grow: the physical check, the scheduling check, several replicas on one disk."""

from typing import Any

from scheduler_core.longhorn.refusal_rules import ScheduleError
from scheduler_core.longhorn.volume_validation import ExpansionResult, check_expansion
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import GIB, cluster, disk, node, replica, volume

REFUSED = ExpansionResult(ScheduleError.INSUFFICIENT_STORAGE, "n1-d1")


def expand(
    increase: int, *replicas: lh.Replica, settings: dict[str, str] | None = None, **fields: Any
) -> set[ExpansionResult]:
    """The possible results for a volume on disk n1/d1 that grows by so many bytes."""
    view = cluster(node("n1", disk(**fields)), settings=settings)
    entry = volume()
    return set(check_expansion(view, entry, replicas or [replica("r", "n1/d1")], entry.size + increase))


def test_written_bytes_may_reach_the_over_provisioning_limit() -> None:
    settings = {"storage-over-provisioning-percentage": "50"}
    assert expand(50 * GIB, settings=settings) == {ExpansionResult()}
    assert expand(50 * GIB + 1, settings=settings) == {REFUSED}


def test_a_volume_with_a_replica_on_a_missing_disk_does_not_grow() -> None:
    assert expand(1, replica("r", "n1/d9")) == {ExpansionResult(ScheduleError.DISK_NOT_FOUND, "n1-d9")}
