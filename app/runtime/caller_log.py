"""Log lines that callers cause, at most one per event, caller and second, with how often it happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

PERIOD_SECONDS: Final = 1.0
# Callers beyond these count as one.
MAX_CALLERS: Final = 256
_OTHERS: Final = "others"


@dataclass(slots=True)
class _Period:
    """The lines of one event and caller that were not written yet."""

    log: Callable[..., None]
    loop: asyncio.AbstractEventLoop
    fields: dict[str, Any]  # of the last one
    count: int = 0


class CallerLog:
    """A log for refusals and hang-ups, whose number callers choose. The first line of a second is written at once, and
    the others as one line at its end, with `count`.
    """

    def __init__(self, log: structlog.stdlib.BoundLogger) -> None:
        self._log = log
        self._periods: dict[tuple[str, str], _Period] = {}

    def warning(self, event: str, *, client: str, **fields: Any) -> None:
        self._write(self._log.warning, event, client, fields)

    def info(self, event: str, *, client: str, **fields: Any) -> None:
        self._write(self._log.info, event, client, fields)

    def _write(self, log: Callable[..., None], event: str, client: str, fields: dict[str, Any]) -> None:
        if (event, client) not in self._periods and len(self._periods) >= MAX_CALLERS:
            client = _OTHERS
        period = self._periods.get((event, client))
        # A period whose event loop has ended would never end.
        if period is not None and period.loop is asyncio.get_running_loop():
            period.count += 1
            period.fields = fields
            return
        log(event, client=client, **fields)
        self._begin(log, event, client, fields)

    def _begin(self, log: Callable[..., None], event: str, client: str, fields: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        self._periods[event, client] = _Period(log, loop, fields)
        loop.call_later(PERIOD_SECONDS, self._end, event, client)

    def _end(self, event: str, client: str) -> None:
        period = self._periods.pop((event, client))
        if period.count:
            period.log(event, client=client, count=period.count, **period.fields)
            self._begin(period.log, event, client, period.fields)
