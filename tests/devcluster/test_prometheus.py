"""Prometheus is found where it is installed, and scrapes every candidate."""

from pathlib import Path

import pytest

from devcluster import prometheus
from devcluster.errors import ConfigError


def test_an_installed_prometheus_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert prometheus.find(None) is None
    with pytest.raises(ConfigError, match="--prometheus"):
        prometheus.find(True)
    program = tmp_path / "prometheus"
    program.touch(mode=0o755)
    assert prometheus.find(None) == prometheus.find(True) == program
    assert prometheus.find(False) is None
