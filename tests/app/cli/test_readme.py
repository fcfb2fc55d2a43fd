"""What the README shows is what a newcomer sees."""

import re
import shlex
from pathlib import Path

import pytest

from tests.worlds.command_line import Run

ROOT = Path(__file__).parents[3]


def test_the_first_result_is_as_in_the_readme(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    blocks = re.findall(
        r"```console\n\$ \.venv/bin/longhorn-extender (.*?)\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    command, shown = blocks[0]
    printed = [line.rstrip() for line in run(*shlex.split(command)).out.splitlines()]
    wanted = [line for line in shown.splitlines() if line and line != "..."]
    assert [line for line in printed if line in wanted] == wanted
