"""A cluster's folder belongs to one cluster, and other files are safe."""

import os
from pathlib import Path

import pytest

from devcluster.directories import Directories
from devcluster.errors import ConfigError


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with pytest.raises(ConfigError, match="holds other files"):
        Directories(tmp_path).occupy()
    assert (tmp_path / "logs").exists()


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    """Two clusters would overwrite each other."""
    lock = Directories(tmp_path).occupy()
    with pytest.raises(ConfigError, match="another cluster runs"):
        Directories(tmp_path).occupy()
    os.close(lock)


def test_only_its_owner_can_read_the_folder_and_a_former_clusters_files_are_removed(tmp_path: Path) -> None:
    directories = Directories(tmp_path / "new")
    os.close(directories.occupy())
    assert directories.directory.stat().st_mode & 0o777 == 0o700
    (directories.etcd / "state").write_text("old")
    os.close(directories.occupy())
    assert list(directories.etcd.iterdir()) == []
