"""Fixtures of the simulator's tests."""

from __future__ import annotations

import pytest

from tests.worlds.command_line import process_logging

__all__ = ["anyio_backend", "process_logging"]


@pytest.fixture
def anyio_backend() -> str:
    """The simulator is written for asyncio."""
    return "asyncio"
