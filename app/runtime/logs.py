"""Structured logs on standard output: one JSON object per line, or readable lines on a terminal. A command that prints
a result has its log on standard error instead.

Every field is bounded, because callers choose what some of them say.

A line is written at once into a pipe that has room for it. Where writing might block, lines are written by a thread of their
own, through a bounded queue, and never by the event loop. Lines that find the queue full are dropped and counted.
"""

import io
import logging
import os
import select
import stat
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Any, TextIO

import structlog

from app import escaping, settings

# The local variables of a failed request contain its pod, whose environment may hold secrets: neither format prints them.
_TRACEBACKS = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
MAX_TEXT = 1024
MAX_TRACEBACK = 16 * 1024
MAX_ITEMS = 64
_MAX_DEPTH = 8


def configure(log_format: settings.LogFormat = "auto", level: str = "INFO") -> None:
    """Configures the logs of this process, including uvicorn's."""
    console = log_format == "console" or (log_format == "auto" and sys.stdout.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    json_lines: list[structlog.typing.Processor] = [_TRACEBACKS, limit_fields, structlog.processors.JSONRenderer()]
    renderer = _readable_lines(sys.stdout) if console else json_lines
    handler = QueuedLogHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer]
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def configure_for_results() -> None:
    """Configures the logs of a command that prints its result on standard output: warnings and errors are readable
    lines on standard error.
    """
    structlog.configure(
        processors=[structlog.processors.add_log_level, *_readable_lines(sys.stderr)],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        # `configure` may follow.
        cache_logger_on_first_use=False,
    )


def _readable_lines(stream: TextIO) -> list[structlog.typing.Processor]:
    renderer = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
    return [structlog.processors.format_exc_info, limit_fields, escape_fields, renderer]


class ProblemLog:
    """Logs a problem once for as long as it lasts, and then that it is over."""

    def __init__(self, log: structlog.stdlib.BoundLogger, begin: str, end: str) -> None:
        self.problem = ""  # the latest one
        self._log = log
        self._begin = begin
        self._end = end

    def note(self, problem: str) -> None:
        """Notes the problem that there is now, "" for none."""
        if problem and problem != self.problem:
            self._log.warning(self._begin, problem=problem)
        elif problem != self.problem:
            self._log.info(self._end)
        self.problem = problem


def dropped_lines() -> int:
    return sum(handler.dropped for handler in logging.getLogger().handlers if isinstance(handler, QueuedLogHandler))


def flush() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()


def limit_fields(_logger: object, _name: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {
        _limit_text(key, MAX_TEXT): _limit_value(value, MAX_TRACEBACK if key == "exception" else MAX_TEXT)
        for key, value in list(fields.items())[:MAX_ITEMS]
    }


def escape_fields(_logger: object, _name: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escapes texts for a terminal; JSON has escapes of its own, as have the lists and maps of readable lines."""
    return {
        escaping.escape_invisible(key): escaping.escape_invisible(value, "\n" if key == "exception" else "")
        if isinstance(value, str)
        else value
        for key, value in fields.items()
    }


def _limit_value(value: Any, limit: int, depth: int = 0) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _limit_text(value, limit)
    if isinstance(value, dict | list | tuple) and depth < _MAX_DEPTH:
        if isinstance(value, dict):
            items = list(value.items())[:MAX_ITEMS]
            return {_limit_text(str(key), limit): _limit_value(item, limit, depth + 1) for key, item in items}
        return [_limit_value(item, limit, depth + 1) for item in value[:MAX_ITEMS]]
    return _limit_text(str(value), limit)


def _limit_text(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


# A reader of the log that stands still costs this much memory, and then lines, but never a decision.
MAX_QUEUED_BYTES = 4 * 1024**2
_MAX_WRITE = 64 * 1024
# How long the end of the process waits for the last lines.
_CLOSE_SECONDS = 2.0


class QueuedLogHandler(logging.Handler):
    """A log handler that hands formatted lines to a thread if writing them might block."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.dropped = 0  # lines that were not written
        self._stream = stream
        self._descriptor: int | None = None
        # A stream in memory has none.
        with suppress(io.UnsupportedOperation, ValueError):
            self._descriptor = stream.fileno()
        self._poll = select.poll()
        # Only of a pipe a poll says how much can be written.
        self._is_pipe = self._descriptor is not None and stat.S_ISFIFO(os.fstat(self._descriptor).st_mode)
        if self._is_pipe:
            self._poll.register(stream, select.POLLOUT)
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
            # To wake the thread costs more than to write, and was a twentieth of the CPU time in a burst of pods.
            if not self._lines and not self._writing and self._takes(line):
                problem = self._write(line)
                self.dropped += 1 if problem else 0
            elif self._size + len(line) > MAX_QUEUED_BYTES:
                self.dropped += 1
                return
            else:
                problem = ""
                self._lines.append(line)
                self._size += len(line)
                self._changed.notify_all()
        if problem:
            self._report(problem)

    def _takes(self, line: bytes) -> bool:
        """Whether writing a line cannot block: a pipe that polls as writable has room for `PIPE_BUF` bytes."""
        if not self._is_pipe or len(line) > select.PIPE_BUF:
            return False
        return [event for _, event in self._poll.poll(0)] == [select.POLLOUT]

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
                batch: list[bytes] = []
                size = 0
                while self._lines and size < _MAX_WRITE:
                    batch.append(self._lines.popleft())
                    size += len(batch[-1])
                self._size -= size
                self._writing = True
            problem = self._write(b"".join(batch))
            with self._changed:
                self._writing = False
                self.dropped += len(batch) if problem else 0
                self._changed.notify_all()
            if problem:
                self._report(problem)

    def _write(self, data: bytes) -> str:
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
        with suppress(OSError, ValueError):
            os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, text.encode())
