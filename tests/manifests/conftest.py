"""Fixtures of the tests of manifests."""

from tests.worlds.command_line import process_state, run

__all__ = ["process_state", "run"]
