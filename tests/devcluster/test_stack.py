"""This machine's address for endpoints, and what the commands say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from devcluster import programs


def test_the_address_given_in_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """For machines whose only route is none."""
    monkeypatch.setenv("DEVCLUSTER_ADDRESS", "10.254.0.1")
    assert programs.primary_address() == "10.254.0.1"


@pytest.mark.parametrize(
    "command", [["devcluster"], ["devcluster", "up"], ["devcluster", "build"], ["devcluster.forwarder"]]
)
def test_every_command_has_help(command: list[str]) -> None:
    """On standard output."""
    done = subprocess.run([sys.executable, "-m", *command, "--help"], capture_output=True, text=True, check=True)
    assert "--help" in done.stdout


def test_a_wrong_option_ends_with_one_line() -> None:
    """And the code for bad input."""
    done = subprocess.run(
        [sys.executable, "-m", "devcluster", "up", "--nodes", "-1"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
