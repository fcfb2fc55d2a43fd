"""Fixtures of the tests of manifests."""

from __future__ import annotations

from tests.worlds.command_line import process_state, run

__all__ = ["process_state", "run"]
