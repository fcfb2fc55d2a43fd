"""Checks the command line's options before anything is started. Examples are the sizes of disks, and the names of files."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from devcluster.errors import ConfigError
from scheduler_core.errors import CoreError, QuantityError
from scheduler_core.model.quantity import parse_bytes
from simulator.config import load


def disks(text: str) -> list[str]:
    """The sizes of a node's disks in a text such as ``400Gi,100Gi``. An empty text means a Longhorn node without disks."""
    sizes = [part.strip() for part in text.split(",")] if text.strip() else []
    for size in sizes:
        try:
            positive = parse_bytes(size) > 0
        except QuantityError as error:
            raise ConfigError(f"--disks: {error}") from error
        if not positive:
            raise ConfigError(f"--disks: a disk cannot have {size}; write sizes such as 400Gi,100Gi")
    return sizes


def directory(path: Path | None, default: Path) -> Path:
    if path is not None and path.exists() and not path.is_dir():
        raise ConfigError(f"--directory: {path} is no folder")
    return path or default


def scheduler_config(path: Path | None, default: Path, *, registered: bool) -> Path | None:
    """The KubeSchedulerConfiguration to use: the given or the default one. None if the extender is not registered."""
    if not registered:
        if path is not None:
            raise ConfigError("--scheduler-config registers an extender and --without-extender does not: leave one out")
        return None
    if path is not None and not path.is_file():
        raise ConfigError(f"--scheduler-config: there is no file {path}; kube-scheduler-config/ has some")
    return path or default


def simulator_config(path: Path | None) -> Mapping[str, object]:
    """The simulator's configuration; without a file, the defaults."""
    try:
        config = load(path)
    except CoreError as error:
        raise ConfigError(f"--simulator-config: {error}") from error
    return dict(msgspec.to_builtins(config))
