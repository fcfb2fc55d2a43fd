"""Failed replicas: which is used again, and how long a new one waits."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.longhorn.replica_reuse import replica_to_reuse, wait_before_new_replica
from scheduler_core.model import kube
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import GIB, cluster, conditions, disk, failed, node, replica, volume

PRESSURE = (kube.Condition("Ready", "True"), kube.Condition("Schedulable", "False", "DiskPressure"))
V2_DISK = disk(spec_type="block")


def reusable(
    *replicas: lh.Replica, entry: lh.Node | None = None, affinity: str = "", asked: Any = None, **snapshot: Any
) -> set[str]:
    """Names of the failed replicas that may be used again."""
    view = cluster(entry or node(), **snapshot)
    return set(replica_to_reuse(view, volume(**asked or {}), replicas, affinity))


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
def test_replica(fields: dict[str, Any], expected: set[str]) -> None:
    """What the replica itself must be."""
    assert reusable(failed("r", "n1/d1", **fields)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"conditions": conditions(Ready="False")}, set(), id="not ready"),
        pytest.param({"conditions": conditions(Schedulable="False")}, set(), id="not schedulable"),
        pytest.param({"conditions": PRESSURE, "storage_scheduled": 500 * GIB}, {"r"}, id="only overbooked"),
        pytest.param({"conditions": PRESSURE, "storage_available": 25 * GIB}, set(), id="full"),
        pytest.param({"conditions": PRESSURE, "storage_available": 25 * GIB + 1}, {"r"}, id="full, but one byte"),
        pytest.param({"storage_available": 0}, {"r"}, id="space is not asked of a schedulable disk"),
        pytest.param({"allow_scheduling": False}, set(), id="closed"),
        pytest.param({"eviction_requested": True}, set(), id="evicting"),
        pytest.param({"in_spec": False}, set(), id="removed"),
    ],
)
def test_disk(fields: dict[str, Any], expected: set[str]) -> None:
    """What its disk must be."""
    assert reusable(failed("r", "n1/d1"), entry=node("n1", disk(**fields))) == expected


def test_disk_tags() -> None:
    """The disk must still fit the volume's selector."""
    assert reusable(failed("r", "n1/d1"), asked={"disk_selector": ("ssd",)}) == set()


def test_the_node_must_be_schedulable() -> None:
    """A cordoned node brings nothing back."""
    assert reusable(failed("r", "n1/d1"), entry=node(conditions=conditions(Schedulable="False"))) == set()


def test_the_instance_manager_must_run_and_stay() -> None:
    """A terminating one is not enough here."""
    for state, deleting, expected in (("running", False, {"r"}), ("running", True, set()), ("error", False, set())):
        managers = {"im": lh.InstanceManager("im", "n1", "v1", "image", state, deleting)}
        assert reusable(failed("r", "n1/d1"), instance_managers=managers) == expected


def test_hard_node_affinity() -> None:
    """Only replicas on the node that is asked for."""
    assert reusable(failed("r", "n1/d1"), affinity="n1") == {"r"}
    assert reusable(failed("r", "n1/d1"), affinity="n2") == set()


def test_the_latest_failure_wins() -> None:
    """It has the least to catch up; equals tie."""
    early, late = (
        failed("a", "n1/d1", failed_at="2025-12-01T00:00:00Z"),
        failed("b", "n1/d1", failed_at="2025-12-02T00:00:00Z"),
    )
    tie = failed("c", "n1/d1", failed_at="2025-12-02T01:00:00+01:00")
    assert reusable(early, late) == {"b"}
    assert reusable(early, late, tie) == {"b", "c"}


def test_anti_affinity_still_holds() -> None:
    """A healthy replica on the same node keeps the failed one out."""
    assert reusable(failed("r", "n1/d1"), replica("s", "n1/d1")) == set()


@pytest.mark.parametrize(
    ("enabled", "expected"),
    [
        pytest.param('{"v1":"true","v2":"true"}', {"r"}, id="on"),
        pytest.param('{"v1":"true","v2":"false"}', set(), id="off"),
        pytest.param("perhaps", set(), id="unreadable counts as off"),
    ],
)
def test_v2_needs_fast_rebuilding(enabled: str, expected: set[str]) -> None:
    """v2 replicas can only be used again with fast rebuilding."""
    entry = failed("r", "n1/d1", data_engine="v2")
    settings = {"fast-replica-rebuild-enabled": enabled}
    assert reusable(entry, entry=node("n1", V2_DISK), asked={"data_engine": "v2"}, settings=settings) == expected


class TestWait:
    """How long a new replica is put off for a failed one."""

    def wait(self, *replicas: lh.Replica, affinity: str = "", settings: Any = None, **asked: Any) -> float:
        """Seconds, for a volume that has been degraded for one minute."""
        fields = {"robustness": "degraded", "last_degraded_at": "2025-12-31T23:59:00Z", **asked}
        view = cluster(node(), settings=settings)
        return wait_before_new_replica(view, volume(**fields), replicas, affinity).total_seconds()

    def test_what_is_left_and_a_second(self) -> None:
        """600 s less the minute that went by, and one second against clock skew."""
        assert self.wait(failed("r", "n1/d1")) == 541

    def test_no_wait_once_it_ran_out(self) -> None:
        """At equality too."""
        assert self.wait(failed("r", "n1/d1"), last_degraded_at="2025-12-31T23:50:00Z") == 0

    @pytest.mark.parametrize(
        ("entry", "affinity", "asked"),
        [
            pytest.param(failed("r", "n1/d1"), "", {"robustness": "healthy"}, id="healthy"),
            pytest.param(failed("r", "n1/d1"), "n1", {}, id="wanted on a node"),
            pytest.param(failed("r", "n1/d1", rebuild_retry_count=5), "", {}, id="nothing to wait for"),
            pytest.param(replica("r", "n1/d1"), "", {}, id="nothing failed"),
            pytest.param(failed("r", "n1/d1"), "", {"last_degraded_at": "?"}, id="unreadable time"),
        ],
    )
    def test_at_once(self, entry: lh.Replica, affinity: str, asked: dict[str, Any]) -> None:
        """Nothing to wait for."""
        assert self.wait(entry, affinity=affinity, **asked) == 0

    def test_no_wait_that_cannot_be_read(self) -> None:
        """A bad setting does not keep the replica from being made."""
        assert self.wait(failed("r", "n1/d1"), settings={"replica-replenishment-wait-interval": "soon"}) == 0

    def test_no_wait_for_v2_without_fast_rebuilding(self) -> None:
        """The failed replica could not be used anyway."""
        settings = {"fast-replica-rebuild-enabled": "false"}
        assert self.wait(failed("r", "n1/d1"), settings=settings, data_engine="v2") == 0
