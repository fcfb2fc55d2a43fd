"""Fixtures of the HTTP and CLI tests."""

from tests.worlds.command_line import process_state, run

__all__ = ["process_state", "run"]
