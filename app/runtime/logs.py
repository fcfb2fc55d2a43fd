"""Structured logs on standard output: one JSON object per line, or readable lines on a terminal. A command that prints
a result has its log on standard error instead.

Every field is bounded, because callers choose what some of them say.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, Literal

import structlog

from app.runtime.log_queue import QueuedLogHandler
from app.runtime.printable import printable

LogFormat = Literal["auto", "json", "console"]

# The local variables of a failed request contain its pod, whose environment may hold secrets: neither format prints them.
_TRACEBACKS: Final = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)
MAX_TEXT: Final = 1024
MAX_TRACEBACK: Final = 16 * 1024
MAX_ITEMS: Final = 64
_MAX_DEPTH: Final = 8


def configure(log_format: LogFormat = "auto", level: str = "INFO") -> None:
    """Configures the logs of this process, including uvicorn's."""
    console = log_format == "console" or (log_format == "auto" and sys.stdout.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[structlog.typing.Processor] = (
        [
            structlog.processors.format_exc_info,
            limit_fields,
            escape_fields,
            structlog.dev.ConsoleRenderer(
                colors=sys.stdout.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ]
        if console
        else [_TRACEBACKS, limit_fields, structlog.processors.JSONRenderer()]
    )
    handler = QueuedLogHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def configure_for_results() -> None:
    """Configures the logs of a command that prints its result on standard output: warnings and errors are readable
    lines on standard error.
    """
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            limit_fields,
            escape_fields,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        # `configure` may follow.
        cache_logger_on_first_use=False,
    )


def dropped_lines() -> int:
    return sum(handler.dropped for handler in logging.getLogger().handlers if isinstance(handler, QueuedLogHandler))


def flush() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()


def limit_fields(_logger: object, _name: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {
        _limit_text(key, MAX_TEXT): _limit_value(value, _limit_of(key))
        for key, value in list(fields.items())[:MAX_ITEMS]
    }


def escape_fields(_logger: object, _name: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escapes texts for a terminal; JSON has escapes of its own, as have the lists and maps of readable lines."""
    return {
        printable(key): printable(value, "\n" if key == "exception" else "") if isinstance(value, str) else value
        for key, value in fields.items()
    }


def _limit_of(key: str) -> int:
    return MAX_TRACEBACK if key == "exception" else MAX_TEXT


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
