"""Fixtures of the simulator's tests."""

from tests.worlds.command_line import process_state

__all__ = ["process_state"]
