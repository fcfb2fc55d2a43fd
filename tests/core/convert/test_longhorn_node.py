"""A Longhorn node as the API server returns it."""

from typing import Any

import pytest

from scheduler_core.convert.snapshot_kinds import KINDS
from scheduler_core.model import longhorn


@pytest.mark.parametrize(
    "status", [None, {}, {"diskStatus": None}, {"diskStatus": {}}], ids=["null", "empty", "null disks", "no disks"]
)
def test_disk_of_a_new_node_is_in_the_spec_only(status: Any) -> None:
    body = {"metadata": {"name": "n"}, "spec": {"disks": {"d": {"path": "/d"}}}, "status": status}
    node = KINDS["longhorn.io", "Node"].read(body)[1]
    assert isinstance(node, longhorn.Node)
    [disk] = node.disks
    assert (disk.in_spec, disk.in_status, disk.uuid, disk.storage_maximum) == (True, False, "", 0)
