"""Whose definition of DiskSchedules is installed."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_core.convert.disk_schedule import longhorns_definition
from scheduler_core.errors import ObjectError

ROOT = Path(__file__).parents[3]
OURS = yaml.safe_load((ROOT / "manifests/crd/diskschedules.yaml").read_text())
LONGHORNS = yaml.safe_load((ROOT / "tests/e2e/longhorns_diskschedules.yaml").read_text())


def with_second_version(definition: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(definition)
    changed["spec"]["versions"].append({"name": "v1beta3", "served": True, "storage": False, "schema": schema})
    return changed


@pytest.mark.parametrize(
    ("definition", "longhorns"),
    [
        pytest.param(OURS, False, id="this project's"),
        pytest.param(LONGHORNS, True, id="longhorn-manager's"),
        pytest.param(with_second_version(OURS, {}), False, id="this project's, and a version without a schema"),
        pytest.param(with_second_version(LONGHORNS, {"openAPIV3Schema": {"type": "object"}}), True, id="no properties"),
        pytest.param({"metadata": {"name": "diskschedules.longhorn.io"}, "spec": {}}, True, id="no version"),
    ],
)
def test_only_this_projects_definition_has_the_available_storage(definition: dict[str, Any], longhorns: bool) -> None:
    assert longhorns_definition(json.dumps(definition).encode()) == ("diskschedules.longhorn.io", longhorns)


def test_what_is_no_definition_is_an_error() -> None:
    with pytest.raises(ObjectError, match="CustomResourceDefinition"):
        longhorns_definition(b'{"spec": 3}')
