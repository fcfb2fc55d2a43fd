"""A replica counts on its disk from the moment it has one, once, until it is gone: before Longhorn's status lists it and after."""

from __future__ import annotations

import pytest

from scheduler_core.cluster.update import advance, empty_snapshot, rebuilt
from scheduler_core.convert.snapshot_kinds import KINDS, group_of
from tests.builders import GI, NOW, Object, disk, longhorn_node, replica, snapshot

SIZE = 100


@pytest.mark.parametrize(
    ("listed", "replicas", "free"),
    [
        pytest.param({}, [replica("r", "vol", "n", size=30)], 70, id="placed, not listed yet"),
        pytest.param({"r": 30}, [replica("r", "vol", "n", size=30)], 70, id="listed: not twice"),
        pytest.param({"r": 30}, [], 70, id="gone, still listed"),
        pytest.param({}, [], 100, id="gone"),
        pytest.param({}, [replica("r", "vol", size=30)], 100, id="no place yet"),
        pytest.param({}, [replica("r", "vol", "n", size=30, healthy=False)], 70, id="never healthy"),
        pytest.param({}, [replica("r", "vol", "n", size=30, failed=True)], 70, id="failed"),
        pytest.param({"r": 30}, [replica("r", "vol", "n", size=50)], 50, id="growing: the difference"),
        pytest.param({"r": 50}, [replica("r", "vol", "n", size=30)], 50, id="listed as larger than it is"),
        pytest.param(
            {"r": 50, "s": 10}, [replica("r", "vol", "n", size=50), replica("t", "vol2", "n", size=5)], 35, id="some"
        ),
    ],
)
def test_what_a_disk_can_still_take(listed: dict[str, float], replicas: list[Object], free: int) -> None:
    """Longhorn's own sum, and what it has not added yet; the same whether it was there at the start or came later."""
    node = longhorn_node("n", {"disk-1": disk(SIZE, listed=listed)})
    whole = rebuilt(snapshot(node, replicas), NOW, 0)
    assert whole.rooms("n")["disk-1"].free == free * GI
    empty = rebuilt(empty_snapshot(), NOW, 0)
    changes = {}
    for raw in [*replicas, node]:
        kind = KINDS[group_of(raw["apiVersion"]), raw["kind"]]
        key, value = kind.read(raw)
        changes[kind.field, key] = value
    assert advance(empty, changes, NOW).view.rooms("n")["disk-1"].free == free * GI
