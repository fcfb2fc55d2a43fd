"""Prometheus is found where it is installed, and scrapes every candidate."""

from pathlib import Path

import pytest
import yaml

from devcluster import prometheus
from devcluster.errors import ConfigError


def test_every_candidate_is_scraped_under_its_name() -> None:
    config = yaml.safe_load(prometheus.configuration("job", {"a": "h:1", "b": "h:2"}))
    assert set(config) == {"global", "scrape_configs"}
    assert [(it["targets"], it["labels"]) for it in config["scrape_configs"][0]["static_configs"]] == [
        (["h:1"], {"instance": "a"}),
        (["h:2"], {"instance": "b"}),
    ]


def test_an_installed_prometheus_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert prometheus.find(None) is None
    with pytest.raises(ConfigError, match="--prometheus"):
        prometheus.find(True)
    program = tmp_path / "prometheus"
    program.touch(mode=0o755)
    assert prometheus.find(None) == prometheus.find(True) == program
    assert prometheus.find(False) is None
