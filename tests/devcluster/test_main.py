"""The command line `python -m devcluster`, without starting anything."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "command", [["devcluster"], ["devcluster", "up"], ["devcluster", "build"], ["devcluster.forwarder"]]
)
def test_every_command_has_help(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *command, "--help"], capture_output=True, text=True, check=True)
    assert "--help" in done.stdout


def test_a_wrong_option_ends_with_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "devcluster", "up", "--nodes", "-1"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
