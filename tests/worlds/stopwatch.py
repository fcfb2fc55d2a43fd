"""Measures time without that in which other programs had the processors, so that a bound holds on a busy machine, too."""

import os
import time
from contextlib import suppress
from pathlib import Path


class Stopwatch:
    """Stands still while a thread of this process, or of other processes that a test waits for, waits for a processor (Linux)."""

    def __init__(self, *pids: int) -> None:
        self._pids = (os.getpid(), *pids)
        self._started = time.monotonic()
        self._waited_before = self._waited()

    @property
    def seconds(self) -> float:
        """The time since the start, at most that of a clock."""
        return time.monotonic() - self._started - max(0.0, self._waited() - self._waited_before)

    def _waited(self) -> float:
        nanoseconds = 0
        for thread in (path for pid in self._pids for path in Path(f"/proc/{pid}/task").glob("*")):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                nanoseconds += int((thread / "schedstat").read_text().split()[1])
        return nanoseconds / 1e9
