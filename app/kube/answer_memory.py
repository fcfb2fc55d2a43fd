"""The memory that the API server's answers may take: no answer, and no list, uses up the process's memory."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from app.memory_budget import memory_limit
from scheduler_core.model.quantity import format_bytes

if TYPE_CHECKING:
    import aiohttp

# Of the process's memory: all bodies that are being received together, and one event of each of some fifteen watches.
_BODIES = 4
_EVENT = 64
# An object has at most a few megabytes, unless etcd is configured otherwise.
_MIN_EVENT = 8 * 1024**2


def resident_memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


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

    async def read(self, response: "aiohttp.ClientResponse") -> bytes:
        """Returns the body of a response. Raises an AnswerTooLargeError if all bodies together have more than a quarter
        of the process's memory.
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
        """Returns if there is memory for another page of a list. Raises an AnswerTooLargeError if there is none."""
        if self._resident() > self._process:
            raise AnswerTooLargeError(
                f"the list has no end, or too many objects for this process: {objects} so far, and it may use "
                f"{format_bytes(self._process)} of memory"
            )
