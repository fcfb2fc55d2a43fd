"""The address of this machine in endpoints."""

import pytest

from devcluster import programs


def test_the_address_in_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It helps machines without a route to another network."""
    monkeypatch.setenv("DEVCLUSTER_ADDRESS", "10.254.0.1")
    assert programs.primary_address() == "10.254.0.1"
