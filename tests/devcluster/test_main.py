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


@pytest.mark.parametrize("words", [["up", "--nodes", "-1"], ["build", "--kubernetes-version", "newest"]])
def test_bad_input_ends_with_one_line(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "devcluster", *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
