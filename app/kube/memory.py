"""The memory that this process may use, and what the API server's answers may take of it: nothing that it sends without
end uses up the process's memory.

Kubernetes sets the limit of a container in its control group: `memory.max` (cgroup v2) or `memory.limit_in_bytes` (v1). A limit of an
ancestor counts too. A container sees its own group at the root of the mount, or at the path that /proc/self/cgroup names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scheduler_core.model.quantity import format_bytes

if TYPE_CHECKING:
    import aiohttp

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


# Of the process's memory: all bodies that are being received together, and one event of each of some fifteen watches.
_BODIES: Final = 4
_EVENT: Final = 64
# An object has at most a few megabytes, unless etcd is configured otherwise.
_MIN_EVENT: Final = 8 * 1024**2


class AnswerTooLargeError(Exception):
    """An answer takes more memory than there is for it."""


class AnswerMemory:
    """The memory for the answers to one client.

    Args:
        process: what this process may use in all, in bytes; None: the limit of its container
        resident: what it uses, in bytes
    """

    def __init__(self, process: int | None = None, resident: Callable[[], int] = resident_memory) -> None:
        self._process = memory_limit() if process is None else process
        self._resident = resident
        self.event = max(_MIN_EVENT, self._process // _EVENT)  # the most bytes of one event of a watch
        self._received = 0

    async def read(self, response: aiohttp.ClientResponse) -> bytes:
        """Returns the body of a response.

        Raises:
            AnswerTooLargeError: all bodies together have more than a quarter of the process's memory
        """
        body = bytearray()
        try:
            async for chunk in response.content.iter_any():
                body += chunk
                self._received += len(chunk)
                if self._received > self._process // _BODIES:
                    raise AnswerTooLargeError(
                        f"the answer has no end, or too many bytes for this process: it received {format_bytes(len(body))}, and may "
                        f"use {format_bytes(self._process)} of memory"
                    )
        finally:
            self._received -= len(body)
            if not response.content.at_eof():
                response.close()
        return bytes(body)

    def check(self, objects: int) -> None:
        """Returns if there is memory for another page of a list.

        Raises:
            AnswerTooLargeError: there is none
        """
        if self._resident() > self._process:
            raise AnswerTooLargeError(
                f"the list has no end, or too many objects for this process: {objects} so far, and it may use "
                f"{format_bytes(self._process)} of memory"
            )
