"""Failed replicas: which of them are reused, and how long a new one waits."""

from typing import Any

import pytest

from scheduler_core.longhorn.replenish import replica_to_reuse, wait_before_new_replica
from scheduler_core.model import kube
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import GIB, cluster, conditions, disk, failed, node, replica, volume

PRESSURE = (kube.Condition("Ready", "True"), kube.Condition("Schedulable", "False", "DiskPressure"))
V2_DISK = disk(spec_type="block")


def reusable(
    *replicas: lh.Replica, entry: lh.Node | None = None, affinity: str = "", volume_fields: Any = None, **snapshot: Any
) -> set[str]:
    view = cluster(entry or node(), **snapshot)
    return set(replica_to_reuse(view, volume(**volume_fields or {}), replicas, affinity))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, {"r"}, id="reusable"),
        pytest.param({"failed_at": ""}, set(), id="not failed"),
        pytest.param({"active": False}, set(), id="inactive"),
        pytest.param({"rebuild_retry_count": 4}, {"r"}, id="four retries"),
        pytest.param({"rebuild_retry_count": 5}, set(), id="five retries"),
        pytest.param({"eviction_requested": True}, set(), id="evicting"),
        pytest.param({"node_id": "n9"}, set(), id="on an unknown node"),
        pytest.param({"disk_id": "n1-d9"}, set(), id="on an unknown disk"),
    ],
)
def test_a_failed_replica_must_be_reusable_itself(fields: dict[str, Any], expected: set[str]) -> None:
    assert reusable(failed("r", "n1/d1", **fields)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"conditions": conditions(Ready="False")}, set(), id="not ready"),
        pytest.param({"conditions": conditions(Schedulable="False")}, set(), id="not schedulable"),
        pytest.param({"conditions": PRESSURE, "storage_scheduled": 500 * GIB}, {"r"}, id="only overbooked"),
        pytest.param({"conditions": PRESSURE, "storage_available": 25 * GIB}, set(), id="full"),
        pytest.param({"conditions": PRESSURE, "storage_available": 25 * GIB + 1}, {"r"}, id="full, but one byte"),
        pytest.param({"storage_available": 0}, {"r"}, id="the space of a schedulable disk does not matter"),
        pytest.param({"allow_scheduling": False}, set(), id="closed"),
        pytest.param({"eviction_requested": True}, set(), id="evicting"),
        pytest.param({"in_spec": False}, set(), id="removed"),
    ],
)
def test_the_disk_must_be_usable(fields: dict[str, Any], expected: set[str]) -> None:
    assert reusable(failed("r", "n1/d1"), entry=node("n1", disk(**fields))) == expected


def test_the_disk_must_still_match_the_volume_s_selector() -> None:
    """Otherwise the replica is not reused."""
    assert reusable(failed("r", "n1/d1"), volume_fields={"disk_selector": ("ssd",)}) == set()


def test_the_node_must_be_schedulable() -> None:
    assert reusable(failed("r", "n1/d1"), entry=node(conditions=conditions(Schedulable="False"))) == set()


def test_the_instance_manager_must_run_and_not_be_deleted() -> None:
    for state, deleting, expected in (("running", False, {"r"}), ("running", True, set()), ("error", False, set())):
        managers = {"im": lh.InstanceManager("im", "n1", "v1", "image", state, deleting)}
        assert reusable(failed("r", "n1/d1"), instance_managers=managers) == expected


def test_only_a_replica_on_the_requested_node_is_reused() -> None:
    assert reusable(failed("r", "n1/d1"), affinity="n1") == {"r"}
    assert reusable(failed("r", "n1/d1"), affinity="n2") == set()


def test_the_replica_that_failed_last_is_reused() -> None:
    earlier = failed("a", "n1/d1", failed_at="2025-12-01T00:00:00Z")
    later = failed("b", "n1/d1", failed_at="2025-12-02T00:00:00Z")
    tie = failed("c", "n1/d1", failed_at="2025-12-02T01:00:00+01:00")
    assert reusable(earlier, later) == {"b"}
    assert reusable(earlier, later, tie) == {"b", "c"}


def test_anti_affinity_holds_for_reused_replicas() -> None:
    assert reusable(failed("r", "n1/d1"), replica("s", "n1/d1")) == set()


@pytest.mark.parametrize(
    ("enabled", "expected"),
    [
        pytest.param('{"v1":"true","v2":"true"}', {"r"}, id="on"),
        pytest.param('{"v1":"true","v2":"false"}', set(), id="off"),
        pytest.param("perhaps", set(), id="unreadable counts as off"),
    ],
)
def test_v2_replicas_are_reused_only_with_fast_rebuilding(enabled: str, expected: set[str]) -> None:
    entry = failed("r", "n1/d1", data_engine="v2")
    settings = {"fast-replica-rebuild-enabled": enabled}
    assert (
        reusable(entry, entry=node("n1", V2_DISK), volume_fields={"data_engine": "v2"}, settings=settings) == expected
    )


class TestWait:
    """The time that a new replica waits for a failed one."""

    def wait(self, *replicas: lh.Replica, affinity: str = "", settings: Any = None, **volume_fields: Any) -> float:
        """The wait in seconds, for a volume that has been degraded for a minute."""
        fields = {"robustness": "degraded", "last_degraded_at": "2025-12-31T23:59:00Z", **volume_fields}
        view = cluster(node(), settings=settings)
        return wait_before_new_replica(view, volume(**fields), replicas, affinity).total_seconds()

    def test_the_wait_is_the_remaining_time_and_a_second(self) -> None:
        """600 s less the minute that has passed, and a second against clock skew."""
        assert self.wait(failed("r", "n1/d1")) == 541

    def test_there_is_no_wait_once_it_is_over(self) -> None:
        assert self.wait(failed("r", "n1/d1"), last_degraded_at="2025-12-31T23:50:00Z") == 0

    @pytest.mark.parametrize(
        ("entry", "affinity", "volume_fields"),
        [
            pytest.param(failed("r", "n1/d1"), "", {"robustness": "healthy"}, id="healthy"),
            pytest.param(failed("r", "n1/d1"), "n1", {}, id="hard node affinity"),
            pytest.param(failed("r", "n1/d1", rebuild_retry_count=5), "", {}, id="not reusable"),
            pytest.param(replica("r", "n1/d1"), "", {}, id="not failed"),
            pytest.param(failed("r", "n1/d1"), "", {"last_degraded_at": "?"}, id="unreadable time"),
        ],
    )
    def test_there_is_no_wait_if_no_failed_replica_can_return(
        self, entry: lh.Replica, affinity: str, volume_fields: dict[str, Any]
    ) -> None:
        assert self.wait(entry, affinity=affinity, **volume_fields) == 0

    def test_an_unreadable_wait_is_none(self) -> None:
        assert self.wait(failed("r", "n1/d1"), settings={"replica-replenishment-wait-interval": "soon"}) == 0

    def test_v2_without_fast_rebuilding_has_no_wait(self) -> None:
        """The failed replica could not be reused."""
        settings = {"fast-replica-rebuild-enabled": "false"}
        assert self.wait(failed("r", "n1/d1"), settings=settings, data_engine="v2") == 0
