"""What callers cause fills no log: one line per event, caller and second, with a count."""

import asyncio

import pytest
import structlog
from structlog.testing import capture_logs

from app.runtime import connections
from app.runtime.connections import MAX_CALLERS, CallerLog

PERIOD = 0.05


@pytest.fixture(autouse=True)
def short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOG_PERIOD_SECONDS", PERIOD)


async def test_the_first_line_is_written_at_once_and_the_others_are_counted() -> None:
    log = CallerLog(structlog.get_logger("test"))
    with capture_logs() as logs:
        for number in range(10_000):
            log.warning("refused request", client="10.0.0.1", error=f"after {number} bytes")
        assert [(line["error"], line.get("count")) for line in logs] == [("after 0 bytes", None)]
        await asyncio.sleep(4 * PERIOD)
        log.warning("refused request", client="10.0.0.1", error="again")
    assert [(line["error"], line.get("count")) for line in logs] == [
        ("after 0 bytes", None),
        ("after 9999 bytes", 9_999),
        ("again", None),
    ]
    assert {(line["client"], line["log_level"]) for line in logs} == {("10.0.0.1", "warning")}


async def test_callers_and_events_are_counted_apart() -> None:
    log = CallerLog(structlog.get_logger("test"))
    with capture_logs() as logs:
        for client in ("a", "b", "a"):
            log.warning("refused request", client=client)
            log.info("caller has gone", client=client)
    assert [(line["event"], line["client"]) for line in logs] == [
        ("refused request", "a"),
        ("caller has gone", "a"),
        ("refused request", "b"),
        ("caller has gone", "b"),
    ]


async def test_many_callers_count_as_one() -> None:
    log = CallerLog(structlog.get_logger("test"))
    with capture_logs() as logs:
        for number in range(10 * MAX_CALLERS):
            log.warning("refused request", client=f"10.0.{number // 256}.{number % 256}")
    assert len(logs) == MAX_CALLERS + 1
