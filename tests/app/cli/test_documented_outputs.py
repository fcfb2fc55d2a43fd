"""The outputs that the READMEs and the pages under docs/ show are what the commands print."""

import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.worlds.command_line import Run

ROOT = Path(__file__).parents[3]
PAGES = {
    "README.md": 1,
    "docs/planning.md": 4,
    "docs/what-if.md": 1,
    "docs/operations.md": 2,
    "docs/generic-scheduler.md": 2,
    "examples/goal-1-burst/README.md": 1,
    "examples/goal-2-multiple-claims/README.md": 1,
    "examples/goal-3-drain/README.md": 1,
    "examples/goal-3-restart/README.md": 1,
    "examples/mixed-cluster/README.md": 2,
    "examples/plugin/README.md": 1,
}
# Of a snapshot, or without a source of their own.
BLOCKS = {
    page: re.findall(
        r"```console\n\$ (?:\.venv/bin/)?longhorn-extender ([^\n]*--snapshot [^\n]*)\n(.*?)```",
        (ROOT / page).read_text(),
        re.DOTALL,
    )
    for page in PAGES
}
SHOWN = [
    pytest.param(*block, id=f"{page} {block[0].split()[0]}") for page, blocks in BLOCKS.items() for block in blocks
]


def test_every_page_has_outputs() -> None:
    assert {page: len(blocks) for page, blocks in BLOCKS.items()} == PAGES


@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_a_page_shows_what_the_command_prints(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str, shown: str
) -> None:
    """Where it shows "...", lines are left out."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("app.cli.options.now", lambda: datetime(2026, 11, 24, tzinfo=UTC))
    printed = [line.rstrip() for line in run(*shlex.split(command)).out.rstrip().splitlines()]
    wanted = [line.rstrip() for line in shown.rstrip().splitlines()]
    if "..." in wanted:
        wanted = [line for line in wanted if line not in ("", "...")]
        printed = [line for line in printed if line in wanted]
    assert printed == wanted
