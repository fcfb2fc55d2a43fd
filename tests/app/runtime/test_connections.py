"""Which connection gives way to a new one, and whom an address counts for."""

from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from app.runtime.connections import Connections, ServerMetrics, owner_of

LIMIT = 16


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
