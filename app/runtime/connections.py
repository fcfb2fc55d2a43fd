"""The HTTP connections of this process, limited in number and time.

Each may stay in one phase for a limited time. There is always room for kube-scheduler and probes: at the limit a new
connection replaces an old one. The old one belongs to the caller with the most connections, and has been silent for
longest; one whose request is being answered goes last.

A timer looks at every connection once a second, which costs less than a timer for each.
Refusals and hang-ups, whose number callers choose, have a log of their own, with few lines.
"""

import asyncio
import ipaddress
import resource
from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import prometheus_client
import structlog

from app.runtime.probes import PREFIX, LabelledCounter
from scheduler_core.structs import Struct

log = structlog.get_logger("server")

MAX_CONNECTIONS = 512
# For the API server's watches, files and libraries.
RESERVED_FILES = 128
# However few files a process may open, kube-scheduler and probes must reach it.
_MIN_CONNECTIONS = 16
_CHECK_SECONDS = 1.0
_FILES_CHECK_SECONDS = 5.0
_OPEN_FILES = Path("/proc/self/fd")
# One process of an IPv6 network has as many addresses as it wants.
_IPV6_PREFIX = 64


class Connection(Protocol):
    """One HTTP connection."""

    owner: str

    @property
    def answering(self) -> bool:
        """Whether a request has arrived as a whole and is being answered."""

    def expiry(self, now: float) -> str:
        """Returns why the connection must end now, or ""."""

    def abort(self) -> None:
        """Ends the connection without sending what is left."""


def owner_of(address: str) -> str:
    """Returns the caller that an address counts for: the IPv4 address itself, or the /64 network of an IPv6 address."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, _IPV6_PREFIX), strict=False))


class ServerMetrics:
    """What the server refused or ended."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self.ended = LabelledCounter(
            f"{PREFIX}_connections_ended",
            "Connections that the server ended, by reason: limit (others needed the room), headers (too large or too slow), "
            "malformed, idle, body (what the answer did not wait for), answer (not read), handshake (TLS failed or was slow)",
            "reason",
            ("limit", "headers", "malformed", "idle", "body", "answer", "handshake"),
            registry,
        )
        self.exhausted_files = prometheus_client.Counter(
            f"{PREFIX}_file_descriptors_exhausted",
            "How often this process was about to run out of file descriptors, or did",
            registry=registry,
        )


class Connections:
    """All connections of this process's servers."""

    def __init__(self, metrics: ServerMetrics, limit: int = MAX_CONNECTIONS) -> None:
        self.metrics = metrics
        self._max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.limit = max(_MIN_CONNECTIONS, min(limit, self._max_files - RESERVED_FILES))  # how many there may be
        # The one that has been silent for longest comes first.
        self._connections: OrderedDict[Connection, None] = OrderedDict()
        self._by_owner: Counter[str] = Counter()
        self._short_of_files = False

    def add(self, connection: Connection) -> None:
        """Adds a new connection, and ends another one if there are too many."""
        self._connections[connection] = None
        self._by_owner[connection.owner] += 1
        if len(self._connections) > self.limit:
            self._end(self._victim(connection), "limit")

    def remove(self, connection: Connection) -> None:
        """Forgets a connection; one that is not there is ignored."""
        if connection in self._connections:
            del self._connections[connection]
            self._by_owner[connection.owner] -= 1
            if not self._by_owner[connection.owner]:
                del self._by_owner[connection.owner]

    def touch(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.move_to_end(connection)

    def _end(self, connection: Connection, reason: str) -> None:
        self.metrics.ended.count(reason)
        self.remove(connection)
        connection.abort()

    def _victim(self, newcomer: Connection) -> Connection:
        owner = max(self._by_owner, key=self._by_owner.__getitem__)
        own = (each for each in self._connections if each.owner == owner and each is not newcomer)
        first = next(own, newcomer)
        return next((each for each in chain((first,), own) if not each.answering), first)

    async def watch(self) -> None:
        """Ends connections whose time is up, until cancelled."""
        clock = asyncio.get_running_loop().time
        next_files_check = clock()
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            now = clock()
            for connection in list(self._connections):
                if reason := connection.expiry(now):
                    self._end(connection, reason)
            if now >= next_files_check:
                next_files_check = now + _FILES_CHECK_SECONDS
                self._check_files()

    def _check_files(self) -> None:
        problem = ""
        try:
            open_files = sum(1 for _ in _OPEN_FILES.iterdir())
            if open_files > self._max_files - RESERVED_FILES // 4:
                problem = f"{open_files} of {self._max_files} are open"
        except OSError as error:
            # Listing needs a file descriptor.
            problem = str(error)
        if problem and not self._short_of_files:
            self.metrics.exhausted_files.inc()
            log.error("file descriptors are running out", problem=problem)
        self._short_of_files = bool(problem)


# Log lines that callers cause: at most one per event, caller and period.
LOG_PERIOD_SECONDS = 1.0
# Callers beyond these count as one.
MAX_CALLERS = 256
_OTHERS = "others"


class _Period(Struct):
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
        loop.call_later(LOG_PERIOD_SECONDS, self._end, event, client)

    def _end(self, event: str, client: str) -> None:
        period = self._periods.pop((event, client))
        if period.count:
            period.log(event, client=client, count=period.count, **period.fields)
            self._begin(period.log, event, client, period.fields)
