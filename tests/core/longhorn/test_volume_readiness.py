"""Which existing volumes Longhorn attaches for no workload now."""

from datetime import timedelta

import pytest

from tests import builders as make
from tests.builders import Object, explained, reasons

NODES = [make.longhorn_node("a"), make.longhorn_node("b")]
HEALTHY = make.replica("r1", "vol-x", "a", size=10)
FAILED = make.replica("r1", "vol-x", "a", size=10, failed=True)


def pod_with_volume(
    *replicas: Object, deleting: bool = False, status: Object | None = None, **spec: str
) -> list[Object]:
    """A bound volume with a status."""
    *claim, volume = make.bound("x", 10, **spec)
    volume["status"] |= status or {}
    if deleting:
        volume["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return [*claim, volume, *replicas]


FAULTED = {"robustness": "faulted"}
UNREADY = {
    "deleting": (pod_with_volume(HEALTHY, deleting=True), "VOLUME_DELETING"),
    "faulted without replicas": (pod_with_volume(status=FAULTED), "VOLUME_FAULTED"),
    "faulted, its data on a lost node": (
        pod_with_volume(make.replica("r1", "vol-x", "gone", failed=True), status=FAULTED),
        "VOLUME_FAULTED",
    ),
    "faulted, its replica never had data": (
        pod_with_volume(make.replica("r1", "vol-x", "a", healthy=False, failed=True), status=FAULTED),
        "VOLUME_FAULTED",
    ),
    "restoring": (pod_with_volume(HEALTHY, status={"restoreRequired": True}), "VOLUME_RESTORING"),
    "on standby": (pod_with_volume(HEALTHY, status={"restoreRequired": True, "isStandby": True}), "VOLUME_STANDBY"),
    "clone that has not begun": (pod_with_volume(HEALTHY, dataSource="vol://y"), "VOLUME_CLONING"),
    "clone that copies": (
        pod_with_volume(HEALTHY, dataSource="snap://y/s", status={"cloneStatus": {"state": "initiated"}}),
        "VOLUME_CLONING",
    ),
}


@pytest.mark.parametrize(("objects", "reason"), UNREADY.values(), ids=UNREADY.keys())
@pytest.mark.parametrize("locality", ["best-effort", "disabled"])
def test_a_volume_that_is_not_ready_is_refused_on_every_node(objects: list[Object], reason: str, locality: str) -> None:
    objects[2]["spec"]["dataLocality"] = locality
    explanation = explained(make.pod("x"), NODES, objects)
    assert reasons(explanation) == {"a": reason, "b": reason}
    assert all("volume vol-x is" in verdict.detail for verdict in explanation.verdicts)


READY = {
    "faulted with a replica to salvage": pod_with_volume(FAILED, status=FAULTED),
    "clone that is complete": pod_with_volume(
        HEALTHY, dataSource="vol://y", status={"cloneStatus": {"state": "completed"}}
    ),
    "clone with all data": pod_with_volume(
        HEALTHY, dataSource="snap://y/s", status={"cloneStatus": {"state": "copy-completed-awaiting-healthy"}}
    ),
    "restored": pod_with_volume(HEALTHY, status={"restoreRequired": False}),
    "still detaching": pod_with_volume(HEALTHY, status={"state": "detaching"}),
}


@pytest.mark.parametrize("objects", READY.values(), ids=READY.keys())
def test_a_volume_that_is_or_becomes_ready_is_decided_as_usual(objects: list[Object]) -> None:
    assert reasons(explained(make.pod("x"), NODES, objects)) == {"a": "HOME", "b": "HOME_ELSEWHERE"}


def ready_since(seconds: int, status: str) -> list[Object]:
    """The condition Ready of a Kubernetes node, which changed some seconds ago."""
    since = (make.NOW - timedelta(seconds=seconds)).isoformat()
    return [{"type": "Ready", "status": status, "lastTransitionTime": since}]


@pytest.mark.parametrize(
    ("conditions", "refused"),
    [
        pytest.param(None, True, id="deleted"),
        pytest.param(ready_since(1, "Unknown"), True, id="unknown"),
        pytest.param(ready_since(15, "False"), True, id="not ready"),
        pytest.param(ready_since(14, "False"), False, id="not ready for a moment"),
        pytest.param(ready_since(60, "True"), False, id="ready"),
        pytest.param([], False, id="without the condition"),
    ],
)
@pytest.mark.parametrize("robustness", ["healthy", "unknown", "faulted"])
def test_data_on_a_lost_kubernetes_node_is_out_of_reach(
    conditions: list[Object] | None, refused: bool, robustness: str
) -> None:
    lost = [] if conditions is None else [{**make.kube_node("a"), "status": {"conditions": conditions}}]
    objects = [*pod_with_volume(HEALTHY, status={"robustness": robustness}), *lost, make.kube_node("b")]
    answer = reasons(explained(make.pod("x"), NODES, objects))
    assert (answer["b"] == "VOLUME_FAULTED") is refused


@pytest.mark.parametrize("other", [make.replica("r2", "vol-x", "b"), make.replica("r2", "vol-x", "b", failed=True)])
def test_data_that_is_left_elsewhere_is_used(other: Object) -> None:
    """Longhorn salvages a failed replica where the last healthy one is lost."""
    objects = [*pod_with_volume(HEALTHY, other), make.kube_node("b")]
    assert reasons(explained(make.pod("x"), NODES, objects))["b"] != "VOLUME_FAULTED"


def test_a_replica_without_data_is_not_missed() -> None:
    objects = [*pod_with_volume(make.replica("r1", "vol-x", "a", healthy=False)), make.kube_node("b")]
    assert reasons(explained(make.pod("x"), NODES, objects))["b"] != "VOLUME_FAULTED"


@pytest.mark.parametrize(("reason", "refused"), [("KubernetesNodeNotReady", True), ("ManagerPodMissing", False)])
def test_a_detached_volume_is_faulted_once_it_is_attached(reason: str, refused: bool) -> None:
    node = make.longhorn_node("a")
    node["status"]["conditions"][0] = make.condition("Ready", status=False, reason=reason)
    objects = pod_with_volume(HEALTHY, status={"robustness": "unknown", "state": "detached"})
    answer = reasons(explained(make.pod("x"), [node, make.longhorn_node("b")], objects))
    assert (answer["b"] == "VOLUME_FAULTED") is refused
