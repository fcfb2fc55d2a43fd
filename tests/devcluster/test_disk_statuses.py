"""The disks in a Longhorn node's status, which a new node does not have."""

from typing import Any

import pytest

from devcluster.stack import disk_statuses


@pytest.mark.parametrize(
    ("node", "disks"),
    [
        pytest.param({}, {}, id="no status"),
        pytest.param({"status": None}, {}, id="null status"),
        pytest.param({"status": {}}, {}, id="no disks"),
        pytest.param({"status": {"diskStatus": None}}, {}, id="null disks"),
        pytest.param({"status": {"diskStatus": {"a": {"x": 1}}}}, {"a": {"x": 1}}, id="disks"),
    ],
)
def test_node_without_measured_disks_has_none(node: dict[str, Any], disks: dict[str, Any]) -> None:
    assert disk_statuses(node) == disks
