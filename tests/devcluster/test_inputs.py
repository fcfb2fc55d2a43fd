"""What is typed is understood, or refused in one line before anything is started."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devcluster import cli_inputs, prometheus
from devcluster.errors import ConfigError


@pytest.mark.parametrize(("text", "sizes"), [("400Gi", ["400Gi"]), ("1Ti, 100G", ["1Ti", "100G"]), ("", []), (" ", [])])
def test_sizes_of_disks_are_read(text: str, sizes: list[str]) -> None:
    """None of them means a Longhorn node without disks."""
    assert cli_inputs.disks(text) == sizes


@pytest.mark.parametrize("text", ["40x", "0", "-1Gi", "100Gi,", "100Gi 50Gi"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """By the option's name."""
    with pytest.raises(ConfigError, match="--disks: "):
        cli_inputs.disks(text)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing else is raised."""
    with contextlib.suppress(ConfigError):
        assert all(size.strip() == size for size in cli_inputs.disks(text))


def test_the_scheduler_is_given_the_default_file_unless_told_otherwise(tmp_path: Path) -> None:
    """Without an extender it is given none."""
    default, other = tmp_path / "default.yaml", tmp_path / "other.yaml"
    other.touch()
    assert cli_inputs.scheduler_config(None, default, registered=True) == default
    assert cli_inputs.scheduler_config(other, default, registered=True) == other
    assert cli_inputs.scheduler_config(None, default, registered=False) is None


@pytest.mark.parametrize(("registered", "text"), [(True, "there is no file"), (False, "leave one out")])
def test_a_scheduler_configuration_that_makes_no_sense_is_refused(tmp_path: Path, registered: bool, text: str) -> None:
    """It does not exist, or contradicts another option."""
    with pytest.raises(ConfigError, match=text):
        cli_inputs.scheduler_config(tmp_path / "none.yaml", tmp_path, registered=registered)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """One that does not exist is fine."""
    (tmp_path / "file").touch()
    assert cli_inputs.directory(tmp_path / "new", tmp_path) == tmp_path / "new"
    assert cli_inputs.directory(None, tmp_path) == tmp_path
    with pytest.raises(ConfigError, match="is no folder"):
        cli_inputs.directory(tmp_path / "file", tmp_path)


def test_the_simulators_configuration_is_checked_before_it_is_started(tmp_path: Path) -> None:
    """By the simulator's own rules; what is left out has its default."""
    file = tmp_path / "simulator.yaml"
    file.write_text("seed: 7")
    assert cli_inputs.simulator_config(file)["seed"] == 7
    assert cli_inputs.simulator_config(None)["seed"] == 1
    file.write_text("seeds: 7")
    with pytest.raises(ConfigError, match=r"--simulator-config: .*simulator\.yaml.*seeds"):
        cli_inputs.simulator_config(file)


def test_prometheus_is_found_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is not wanted; wanted and not installed is an error."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert prometheus.find(None) is None
    with pytest.raises(ConfigError, match="--prometheus"):
        prometheus.find(True)
    program = tmp_path / "prometheus"
    program.touch(mode=0o755)
    assert prometheus.find(None) == prometheus.find(True) == program
    assert prometheus.find(False) is None
