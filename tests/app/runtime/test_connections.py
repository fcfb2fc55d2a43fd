"""Which connection gives way to a new one, whom an address counts for, and how often what a caller causes is logged."""

import asyncio
from dataclasses import dataclass, field

import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from app.runtime import connections as module
from app.runtime.connections import MAX_CALLERS, CallerLog, Connections, ServerMetrics, owner_of

LIMIT = 16
PERIOD = 0.05


@dataclass(eq=False)
class _Connection:
    """A connection that only notes whether it was ended."""

    owner: str
    answering: bool = False
    ended: list[bool] = field(default_factory=list)

    def expiry(self, now: float) -> str:
        return "" if now >= 0 else "idle"

    def abort(self) -> None:
        self.ended.append(True)


def _full(*owners: str) -> tuple[Connections, list[_Connection]]:
    connections = Connections(ServerMetrics(CollectorRegistry()), LIMIT)
    entries = [_Connection(owners[number % len(owners)]) for number in range(LIMIT)]
    for entry in entries:
        connections.add(entry)
    return connections, entries


def test_the_one_that_has_been_silent_for_longest_gives_way() -> None:
    connections, entries = _full("a")
    connections.touch(entries[0])
    connections.add(_Connection("a"))
    assert [entry.ended for entry in entries] == [[], [True], *[[]] * (LIMIT - 2)]


def test_a_caller_with_few_connections_loses_none() -> None:
    connections, entries = _full("b")
    entries[0].owner = "b"
    other = _Connection("a")
    connections.add(other)
    for _ in range(LIMIT):
        connections.add(_Connection("b"))
    assert not other.ended
    assert all(entry.ended for entry in entries)


def test_a_request_that_is_being_answered_goes_last() -> None:
    connections, entries = _full("a")
    entries[0].answering = True
    connections.add(_Connection("a"))
    assert not entries[0].ended
    assert entries[1].ended


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1:2", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_address_counts_for_its_caller(address: str, owner: str) -> None:
    assert owner_of(address) == owner


@pytest.fixture(autouse=True)
def short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_PERIOD_SECONDS", PERIOD)


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
