"""Fixtures of the HTTP and CLI tests."""

import pytest

from tests.worlds.command_line import process_state, run

__all__ = ["anyio_backend", "process_state", "run"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
