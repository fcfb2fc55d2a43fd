"""Fixtures of the simulator's tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The simulator is written for asyncio."""
    return "asyncio"
