"""The outputs that docs/planning.md shows are what the commands print."""

import re
import shlex
from pathlib import Path

import pytest

from tests.worlds.command_line import Run

ROOT = Path(__file__).parents[3]
SHOWN = re.findall(
    r"```console\n\$ \.venv/bin/longhorn-extender ([^\n]*)\n(.*?)```",
    (ROOT / "docs/planning.md").read_text(),
    re.DOTALL,
)


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command.split()[0] for command, _ in SHOWN])
def test_the_page_shows_what_the_command_prints(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str, output: str
) -> None:
    monkeypatch.chdir(ROOT)
    assert run(*shlex.split(command)).out.rstrip() == output.rstrip()
