"""`make audit` never calls packages sound that the index knows nothing about."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SUMMARY: Callable[[list[dict[str, Any]]], tuple[list[str], int]] = runpy.run_path(
    str(Path(__file__).parents[2] / ".ci/audit.py")
)["summary"]
SOUND = {"name": "rich", "version": "15.0", "vulns": []}
SKIPPED = {"name": "typer", "skip_reason": "Dependency not found on PyPI and could not be audited: typer (0.29)"}
BROKEN = {"name": "jinja2", "version": "2.0", "vulns": [{"id": "CVE-2024-1", "fix_versions": ["2.1", "3.0"]}]}


@pytest.mark.parametrize(
    ("dependencies", "lines", "vulnerabilities"),
    [
        pytest.param([SOUND], ["1 packages were audited: no known vulnerabilities"], 0, id="sound"),
        pytest.param(
            [SKIPPED, SKIPPED],
            ["nothing was audited: the package index has no data about any of 2 packages"],
            0,
            id="no-data",
        ),
        pytest.param(
            [SOUND, SKIPPED],
            ["1 packages were audited: no known vulnerabilities", "not audited, the package index has no data: typer"],
            0,
            id="some-data",
        ),
        pytest.param(
            [SOUND, BROKEN],
            ["jinja2 2.0: CVE-2024-1, fixed in 2.1, 3.0", "2 packages were audited: 1 known vulnerabilities"],
            1,
            id="vulnerable",
        ),
    ],
)
def test_the_summary_of_an_audit(dependencies: list[dict[str, Any]], lines: list[str], vulnerabilities: int) -> None:
    assert SUMMARY(dependencies) == (lines, vulnerabilities)
