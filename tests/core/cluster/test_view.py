"""What a view derives: the free space of disks, and how many pods kube-scheduler has yet to ask about."""

from typing import Any

import pytest

from scheduler_core.cluster.update import build_view, empty_snapshot, update
from tests import builders as make
from tests.builders import GI, NOW, Object, disk, longhorn_node, replica, snapshot
from tests.worlds.changes import changes_of, empty_state

SIZE = 100


@pytest.mark.parametrize(
    ("listed", "replicas", "free"),
    [
        pytest.param({}, [replica("r", "vol", "n", size=30)], 70, id="placed, not listed yet"),
        pytest.param({"r": 30}, [replica("r", "vol", "n", size=30)], 70, id="listed: counts once"),
        pytest.param({"r": 30}, [], 70, id="deleted, still listed"),
        pytest.param({}, [], 100, id="deleted"),
        pytest.param({}, [replica("r", "vol", size=30)], 100, id="not placed"),
        pytest.param({}, [replica("r", "vol", "n", size=30, healthy=False)], 70, id="never healthy"),
        pytest.param({}, [replica("r", "vol", "n", size=30, failed=True)], 70, id="failed"),
        pytest.param({"r": 30}, [replica("r", "vol", "n", size=50)], 50, id="growing: the difference"),
        pytest.param({"r": 50}, [replica("r", "vol", "n", size=30)], 50, id="listed as larger than it is"),
        pytest.param(
            {"r": 50, "s": 10}, [replica("r", "vol", "n", size=50), replica("t", "vol2", "n", size=5)], 35, id="several"
        ),
    ],
)
def test_free_space_subtracts_replicas_that_the_status_does_not_list(
    listed: dict[str, float], replicas: list[Object], free: int
) -> None:
    node = longhorn_node("n", {"disk-1": disk(SIZE, listed=listed)})
    whole = build_view(snapshot(node, replicas), NOW, 0)
    assert whole.free_space("n")["disk-1"].free == free * GI
    empty = build_view(empty_snapshot(), NOW, 0)
    changes = changes_of(*replicas, node)
    assert update(empty, changes, NOW).view.free_space("n")["disk-1"].free == free * GI


REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}


def pod(status: dict[str, Any] | None = None, **properties: Any) -> Object:
    raw = make.pod("data", **properties)
    raw["status"] |= status or {}
    return raw


PODS = [
    pytest.param(pod(), 1, id="new"),
    pytest.param(make.pod(), 0, id="without claims"),
    pytest.param(pod(node="a"), 0, id="bound"),
    pytest.param(pod({"nominatedNodeName": "a"}), 0, id="nominated"),
    pytest.param(pod({"conditions": [REFUSED]}), 0, id="refused"),
    pytest.param(pod(phase="Succeeded"), 0, id="finished"),
    pytest.param(pod(deleting=True), 0, id="being deleted"),
]


@pytest.mark.parametrize(("raw", "expected"), PODS)
def test_a_pod_counts_until_it_is_decided_or_refused(raw: Object, expected: int) -> None:
    assert make.view(make.claim("data"), raw).indexes.pods_to_schedule == expected
    state = empty_state()
    for previous in ([], [pod()]):
        before = state.update(changes_of(previous), NOW)
        assert before.update(changes_of([raw]), NOW).view.indexes.pods_to_schedule == expected


def test_a_pod_counts_until_a_node_is_selected_for_its_claim() -> None:
    selected = make.claim("data")
    selected["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    failed = make.claim("data")
    bound = make.claim("data", bound=True)
    bound["metadata"]["annotations"] = selected["metadata"]["annotations"]
    state = empty_state().update(changes_of(pod(), make.claim("data")), NOW)
    for claim, expected in ((selected, 0), (failed, 1), (selected, 0), (bound, 1), (selected, 0)):
        state = state.update(changes_of(claim), NOW)
        assert state.view.indexes.pods_to_schedule == expected
        assert make.view(claim, pod()).indexes.pods_to_schedule == expected
    assert state.update(changes_of(pod(), failed, deleted=True), NOW).view.indexes.pods_to_schedule == 0


def test_a_deleted_pod_no_longer_counts() -> None:
    changes = changes_of([pod()])
    state = empty_state().update(changes, NOW)
    assert state.update(dict.fromkeys(changes), NOW).view.indexes.pods_to_schedule == 0
