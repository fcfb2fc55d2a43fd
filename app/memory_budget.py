"""The memory that this process may use, and what requests may take of it: no request uses up the process's memory. What the API
server's answers may take of it says `app/kube/answer_memory.py`.

Kubernetes sets the limit of a container in its control group: `memory.max` (cgroup v2) or `memory.limit_in_bytes` (v1). A limit of an
ancestor counts too. A container sees its own group at the root of the mount, or at the path that /proc/self/cgroup names.

There is one budget for all requests: what arrives and what is made of it is charged before it is kept. A request holds a lease, which ends
when its answer is sent. A request that needs more than is left takes it from a body that does not arrive any more, then from the caller
that holds the most; otherwise it is refused, and the caller tries again.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

# What a process outside of a container may use, as the manifests allow it.
DEFAULT_LIMIT = 1024**3
# Of each hierarchy of control groups: the controller that /proc/self/cgroup names, the folder of its mount, and the file of a limit.
_HIERARCHIES = (
    ("", "", "memory.max"),  # version 2 names no controllers
    ("", "unified", "memory.max"),
    ("memory", "memory", "memory.limit_in_bytes"),
)


def memory_limit(root: Path = Path("/")) -> int:
    """Returns the memory that this process may use, in bytes. It is the lowest limit of its control groups, without one
    `DEFAULT_LIMIT`, and never more than the machine has.

    Args:
        root: where /proc and /sys are
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [limit for limit in map(_read_limit, _limit_files(root)) if limit is not None and limit < machine]
    return min(limits) if limits else min(DEFAULT_LIMIT, machine)


def _limit_files(root: Path) -> list[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files: list[Path] = []
    for line in lines:
        _, _, group = line.partition(":")
        controllers, _, path = group.partition(":")
        names = [name for name in path.split("/") if name not in {"", ".."}]
        for controller, folder, file in _HIERARCHIES:
            if controller in controllers.split(","):
                mount = root / "sys/fs/cgroup" / folder
                files += [mount.joinpath(*names[:depth], file) for depth in range(len(names) + 1)]
    return files


def _read_limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


# A body must keep coming: this much in each period, or all of it.
PERIOD_SECONDS = 5.0
BYTES_PER_PERIOD = 1024**2
# A body that is silent for so long gives way to other requests.
SILENT_SECONDS = 1.0
# Turns of the event loop after which a body that gave way is free: its time-out fires, its task ends.
_TURNS_TO_UNWIND = 4


class BudgetExceededError(Exception):
    """The request needs more memory than is left."""

    def __init__(self, needed: int, total: int) -> None:
        self.permanent = needed > total  # whether it needs more than all requests together may have
        limit = f"all requests together may have {total}, see serve --memory-limit"
        rest = limit if self.permanent else "other requests hold what is left"
        super().__init__(f"the request needs {needed} bytes of memory; {rest}")


class SlowBodyError(Exception):
    """The body came too slowly, or stopped."""


class Lease:
    """The memory that one request holds."""

    def __init__(self, budget: "MemoryBudget", owner: str) -> None:
        self._budget = budget
        self.owner = owner  # the caller's address
        self.held = 0  # in bytes
        self._timeout: asyncio.Timeout | None = None
        self._evicted = False
        self.silent_since = 0.0  # when the last byte of its body arrived, by the event loop's clock
        self._period_bytes = 0

    def charge(self, size: int) -> None:
        """Takes memory from the budget. Raises a BudgetExceededError if there is not enough, and no other request gives
        way.
        """
        self._budget.take(self, size)
        self.held += size

    async def charge_arrived(self, size: int) -> None:
        """Takes memory for bytes that arrived; returns once what gave way for them is free. Raises a
        BudgetExceededError as `charge` does.
        """
        refusals = self._budget.refusals
        self.charge(size)
        if self._budget.refusals > refusals:
            for _ in range(_TURNS_TO_UNWIND):
                await asyncio.sleep(0)

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[None]:
        """While a body is received: ends the block if it comes too slowly, or gives way.

        Raises:
            BudgetExceededError: it gave way to other requests
            SlowBodyError: it came too slowly
        """
        loop = asyncio.get_running_loop()
        self.silent_since = loop.time()
        self._period_bytes = 0
        try:
            async with asyncio.timeout(PERIOD_SECONDS) as self._timeout:
                yield
        except TimeoutError as error:
            if self._evicted:
                raise BudgetExceededError(self.held, self._budget.total) from error
            text = f"the body comes too slowly: less than {BYTES_PER_PERIOD} bytes in {PERIOD_SECONDS:g} s"
            raise SlowBodyError(text) from error
        finally:
            self._timeout = None

    def progress(self, size: int) -> None:
        """Notes that so many bytes of the body have arrived."""
        self.silent_since = asyncio.get_running_loop().time()
        self._period_bytes += size
        if self._period_bytes >= BYTES_PER_PERIOD and self._timeout is not None and not self._evicted:
            self._period_bytes = 0
            self._timeout.reschedule(self.silent_since + PERIOD_SECONDS)

    @property
    def evictable(self) -> bool:
        return self._timeout is not None and not self._evicted and self.held > 0

    def evict(self) -> None:
        self._evicted = True
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())
        self.release()

    def release(self) -> None:
        self._budget.used -= self.held
        self.held = 0


class MemoryBudget:
    """The memory that all requests together may hold."""

    def __init__(self, total: int) -> None:
        self.total = total  # in bytes
        self.used = 0  # in bytes
        self.refusals = 0  # requests that were refused or gave way
        self._leases: set[Lease] = set()

    @contextmanager
    def lease(self, owner: str) -> Iterator[Lease]:
        """The lease of one request, for the duration of the block."""
        lease = Lease(self, owner)
        self._leases.add(lease)
        try:
            yield lease
        finally:
            self._leases.discard(lease)
            lease.release()

    def take(self, lease: Lease, size: int) -> None:
        """Takes memory for a lease. Raises a BudgetExceededError if there is not enough, and no other request gives
        way.
        """
        while self.used + size > self.total:
            victim = self._victim(lease, size) if lease.held + size <= self.total else None
            self.refusals += 1
            if victim is None:
                raise BudgetExceededError(lease.held + size, self.total)
            victim.evict()
        self.used += size

    def _victim(self, lease: Lease, size: int) -> Lease | None:
        """Returns the request that gives way: a silent one, else the largest one of the caller that holds the most."""
        others = [other for other in self._leases if other is not lease and other.evictable]
        if not others:
            return None
        silent = min(others, key=lambda other: (other.silent_since, other.owner))
        if asyncio.get_running_loop().time() - silent.silent_since >= SILENT_SECONDS:
            return silent
        held: dict[str, int] = {}
        for other in self._leases:
            held[other.owner] = held.get(other.owner, 0) + other.held
        largest = max(others, key=lambda other: (held[other.owner], other.held))
        return largest if held[largest.owner] > held[lease.owner] + size else None
