"""Fixtures of the simulator's tests."""

import pytest

from tests.worlds.command_line import process_state

__all__ = ["anyio_backend", "process_state"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
