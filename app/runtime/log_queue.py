"""Writes log lines in a thread of its own, through a bounded queue. A log reader that stalls fills the queue and stops
the thread, never the event loop. Lines that find the queue full are dropped and counted.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections import deque
from typing import Final, TextIO

MAX_QUEUED_BYTES: Final = 4 * 1024**2
_MAX_WRITE: Final = 64 * 1024
# How long the end of the process waits for the last lines.
_CLOSE_SECONDS: Final = 2.0


class QueuedLogHandler(logging.Handler):
    """A log handler that hands formatted lines to a thread."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.dropped = 0  # lines that were not written
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._writing = False
        self._closed = False
        self._failure_reported = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues one line."""
        try:
            line = self.format(record).encode(errors="backslashreplace") + b"\n"
        except Exception:  # noqa: BLE001 # as logging: no line may end what logs it
            self.handleError(record)
            return
        with self._changed:
            if self._size + len(line) > MAX_QUEUED_BYTES:
                self.dropped += 1
                return
            self._lines.append(line)
            self._size += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Waits until every queued line is written, bounded."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._writing, timeout=_CLOSE_SECONDS)

    def close(self) -> None:
        """Ends the thread once every queued line is written. `logging` calls this at the end of the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        super().close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._closed)
                if not self._lines:
                    return
                batch = self._next_batch()
                self._writing = True
            problem = self._write(b"".join(batch))
            with self._changed:
                self._writing = False
                self.dropped += len(batch) if problem else 0
                self._changed.notify_all()
            if problem:
                self._report(problem)

    def _next_batch(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        while self._lines and size < _MAX_WRITE:
            line = self._lines.popleft()
            batch.append(line)
            size += len(line)
        self._size -= size
        return batch

    def _write(self, data: bytes) -> str:
        """Writes everything; returns the problem, or ""."""
        try:
            if self._descriptor is None:
                self._stream.write(data.decode())
                self._stream.flush()
                return ""
            # Not through the stream: its lock, held by a blocked thread, would block the end of the process.
            while data:
                data = data[os.write(self._descriptor, data) :]
        except (OSError, ValueError) as error:
            return str(error)
        return ""

    def _report(self, problem: str) -> None:
        if self._failure_reported:
            return
        self._failure_reported = True
        text = f"the log cannot be written, lines are dropped and counted: {problem}\n"
        try:
            os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, text.encode())
        except (OSError, ValueError):
            return


def _descriptor(stream: TextIO) -> int | None:
    """Returns the file descriptor of a stream; None for one that is only in memory."""
    try:
        return stream.fileno()
    except (io.UnsupportedOperation, ValueError):
        return None
