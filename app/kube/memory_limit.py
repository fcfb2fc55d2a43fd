"""The memory that this process may use: the limit of its container.

Kubernetes sets the limit of a container in its control group: `memory.max` (cgroup v2) or `memory.limit_in_bytes` (v1). A limit of an
ancestor counts too. A container sees its own group at the root of the mount, or at the path that /proc/self/cgroup names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# What a process outside of a container may use, as the manifests allow it.
DEFAULT_LIMIT: Final = 1024**3
_V2: Final = "memory.max"
_V1: Final = "memory.limit_in_bytes"
_MOUNT: Final = Path("sys/fs/cgroup")


def memory_limit(root: Path = Path("/")) -> int:
    """Returns the memory that this process may use, in bytes. It is the lowest limit of its control groups, without one
    `DEFAULT_LIMIT`, and never more than the machine has.

    Args:
        root: where /proc and /sys are
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [limit for limit in map(_read_limit, _limit_files(root)) if limit is not None and limit < machine]
    return min(limits) if limits else min(DEFAULT_LIMIT, machine)


def _limit_files(root: Path) -> list[Path]:
    mount = root / _MOUNT
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files: list[Path] = []
    for line in lines:
        _, _, group = line.partition(":")
        controllers, _, path = group.partition(":")
        # Version 2 names no controllers.
        if not controllers.strip(","):
            files += _with_ancestors(mount, path, _V2) + _with_ancestors(mount / "unified", path, _V2)
        elif "memory" in controllers.split(","):
            files += _with_ancestors(mount / "memory", path, _V1)
    return files


def _with_ancestors(mount: Path, path: str, file: str) -> list[Path]:
    names = [name for name in path.split("/") if name not in {"", ".."}]
    return [mount.joinpath(*names[:depth], file) for depth in range(len(names), -1, -1)]


def _read_limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def resident_memory() -> int:
    """Returns the memory that this process uses, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
