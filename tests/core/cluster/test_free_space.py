"""A replica counts once on its disk, from its placement until its deletion, whether Longhorn's status lists it or not."""

import pytest

from scheduler_core.cluster.update import build_view, empty_snapshot, update
from tests.builders import GI, NOW, Object, disk, longhorn_node, replica, snapshot
from tests.worlds.changes import changes_of

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
