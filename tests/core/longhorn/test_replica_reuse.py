"""Failed replicas: which of them are reused, and how long a new one waits."""

from typing import Any

import pytest

from scheduler_core.longhorn.replenish import replica_to_reuse, wait_before_new_replica
from scheduler_core.model import kube, longhorn as lh
from tests.worlds.longhorn import GIB, cluster, conditions, disk, failed, node, replica, volume

PRESSURE = (kube.Condition("Ready", "True"), kube.Condition("Schedulable", "False", "DiskPressure"))


def reusable(
    *replicas: lh.Replica, entry: lh.Node | None = None, affinity: str = "", volume_fields: Any = None, **snapshot: Any
) -> set[str]:
    view = cluster(entry or node(), **snapshot)
    return set(replica_to_reuse(view, volume(**volume_fields or {}), replicas, affinity))


def running_manager(state: str = "running", *, deleting: bool = False) -> dict[str, Any]:
    return {"instance_managers": {"im": lh.InstanceManager("im", "n1", "v1", "image", state, deleting)}}


def fast_v2(enabled: str) -> dict[str, Any]:
    """A v2 volume, with this value of the setting for fast rebuilding."""
    return {
        "entry": node("n1", disk(spec_type="block")),
        "volume_fields": {"data_engine": "v2"},
        "settings": {"fast-replica-rebuild-enabled": enabled},
    }


def on_disk(**fields: Any) -> dict[str, Any]:
    return {"entry": node("n1", disk(**fields))}


# Fields of the failed replica, what else differs, and whether it is reused.
REUSE: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "reusable": ({}, {}, True),
    "not failed": ({"failed_at": ""}, {}, False),
    "inactive": ({"active": False}, {}, False),
    "four retries": ({"rebuild_retry_count": 4}, {}, True),
    "five retries": ({"rebuild_retry_count": 5}, {}, False),
    "evicting": ({"eviction_requested": True}, {}, False),
    "on an unknown node": ({"node_id": "n9"}, {}, False),
    "on an unknown disk": ({"disk_id": "n1-d9"}, {}, False),
    "disk not ready": ({}, on_disk(conditions=conditions(Ready="False")), False),
    "disk not schedulable": ({}, on_disk(conditions=conditions(Schedulable="False")), False),
    "disk only overbooked": ({}, on_disk(conditions=PRESSURE, storage_scheduled=500 * GIB), True),
    "disk full": ({}, on_disk(conditions=PRESSURE, storage_available=25 * GIB), False),
    "disk full, but one byte": ({}, on_disk(conditions=PRESSURE, storage_available=25 * GIB + 1), True),
    "the space of a schedulable disk does not matter": ({}, on_disk(storage_available=0), True),
    "disk closed": ({}, on_disk(allow_scheduling=False), False),
    "disk evicting": ({}, on_disk(eviction_requested=True), False),
    "disk removed": ({}, on_disk(in_spec=False), False),
    "disk without the volume's tag": ({}, {"volume_fields": {"disk_selector": ("ssd",)}}, False),
    "node not schedulable": ({}, {"entry": node(conditions=conditions(Schedulable="False"))}, False),
    "manager runs": ({}, running_manager(), True),
    "manager is deleted": ({}, running_manager(deleting=True), False),
    "manager has an error": ({}, running_manager("error"), False),
    "on the requested node": ({}, {"affinity": "n1"}, True),
    "not on the requested node": ({}, {"affinity": "n2"}, False),
    "v2 with fast rebuilding": ({"data_engine": "v2"}, fast_v2('{"v1":"true","v2":"true"}'), True),
    "v2 without fast rebuilding": ({"data_engine": "v2"}, fast_v2('{"v1":"true","v2":"false"}'), False),
    "v2, unreadable setting counts as off": ({"data_engine": "v2"}, fast_v2("perhaps"), False),
}


@pytest.mark.parametrize(("fields", "more", "reused"), REUSE.values(), ids=REUSE.keys())
def test_a_failed_replica_is_reused_where_it_can_run(
    fields: dict[str, Any], more: dict[str, Any], reused: bool
) -> None:
    assert reusable(failed("r", "n1/d1", **fields), **more) == ({"r"} if reused else set())


def test_the_replica_that_failed_last_is_reused() -> None:
    earlier = failed("a", "n1/d1", failed_at="2025-12-01T00:00:00Z")
    later = failed("b", "n1/d1", failed_at="2025-12-02T00:00:00Z")
    tie = failed("c", "n1/d1", failed_at="2025-12-02T01:00:00+01:00")
    assert reusable(earlier, later) == {"b"}
    assert reusable(earlier, later, tie) == {"b", "c"}


def test_anti_affinity_holds_for_reused_replicas() -> None:
    assert reusable(failed("r", "n1/d1"), replica("s", "n1/d1")) == set()


def wait(*replicas: lh.Replica, affinity: str = "", settings: Any = None, **volume_fields: Any) -> float:
    """The seconds that a new replica of a volume waits that has been degraded for a minute."""
    fields = {"robustness": "degraded", "last_degraded_at": "2025-12-31T23:59:00Z", **volume_fields}
    return wait_before_new_replica(
        cluster(node(), settings=settings), volume(**fields), replicas, affinity
    ).total_seconds()


FAILED = failed("r", "n1/d1")


@pytest.mark.parametrize(
    ("entry", "more", "seconds"),
    [
        # 600 s less the minute that has passed, and a second against clock skew.
        pytest.param(FAILED, {}, 541, id="the remaining time"),
        pytest.param(FAILED, {"last_degraded_at": "2025-12-31T23:50:00Z"}, 0, id="over"),
        pytest.param(FAILED, {"robustness": "healthy"}, 0, id="healthy"),
        pytest.param(FAILED, {"affinity": "n1"}, 0, id="hard node affinity"),
        pytest.param(failed("r", "n1/d1", rebuild_retry_count=5), {}, 0, id="not reusable"),
        pytest.param(replica("r", "n1/d1"), {}, 0, id="not failed"),
        pytest.param(FAILED, {"last_degraded_at": "?"}, 0, id="unreadable time"),
        pytest.param(FAILED, {"settings": {"replica-replenishment-wait-interval": "soon"}}, 0, id="unreadable wait"),
        # The failed replica could not be reused.
        pytest.param(
            FAILED,
            {"settings": {"fast-replica-rebuild-enabled": "false"}, "data_engine": "v2"},
            0,
            id="v2 without fast rebuilding",
        ),
    ],
)
def test_a_new_replica_waits_while_a_failed_one_may_return(
    entry: lh.Replica, more: dict[str, Any], seconds: float
) -> None:
    assert wait(entry, **more) == seconds
