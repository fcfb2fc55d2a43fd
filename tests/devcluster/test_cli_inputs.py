"""Options are read, or refused in one line before anything is started."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from devcluster import cli_inputs
from devcluster.errors import ConfigError


@pytest.mark.parametrize(("text", "sizes"), [("400Gi", ["400Gi"]), ("1Ti, 100G", ["1Ti", "100G"]), ("", []), (" ", [])])
def test_disk_sizes_are_read(text: str, sizes: list[str]) -> None:
    """An empty list means a Longhorn node without disks."""
    assert cli_inputs.disks(text) == sizes


@pytest.mark.parametrize("text", ["40x", "0", "-1Gi", "100Gi,", "100Gi 50Gi"])
def test_a_wrong_disk_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--disks: "):
        cli_inputs.disks(text)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert all(size.strip() == size for size in cli_inputs.disks(text))


def test_the_scheduler_uses_the_default_file_unless_another_is_named(tmp_path: Path) -> None:
    default = tmp_path / "default.yaml"
    other = tmp_path / "other.yaml"
    other.touch()
    assert cli_inputs.scheduler_config(None, default, registered=True) == default
    assert cli_inputs.scheduler_config(other, default, registered=True) == other
    assert cli_inputs.scheduler_config(None, default, registered=False) is None


@pytest.mark.parametrize(("registered", "text"), [(True, "there is no file"), (False, "leave one out")])
def test_an_impossible_scheduler_configuration_is_refused(tmp_path: Path, registered: bool, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        cli_inputs.scheduler_config(tmp_path / "none.yaml", tmp_path, registered=registered)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert cli_inputs.directory(tmp_path / "new", tmp_path) == tmp_path / "new"
    assert cli_inputs.directory(None, tmp_path) == tmp_path
    with pytest.raises(ConfigError, match="is no folder"):
        cli_inputs.directory(tmp_path / "file", tmp_path)


def test_the_simulators_configuration_is_checked_before_the_start(tmp_path: Path) -> None:
    file = tmp_path / "simulator.yaml"
    file.write_text("seed: 7")
    assert cli_inputs.simulator_config(file)["seed"] == 7
    assert cli_inputs.simulator_config(None)["seed"] == 1
    file.write_text("seeds: 7")
    with pytest.raises(ConfigError, match=r"--simulator-config: .*simulator\.yaml.*seeds"):
        cli_inputs.simulator_config(file)
