"""What decisions go by: the policy in force, and what its rules read.

    policy file → read again when it changes → what it reads is known → in force, and every pod that waits is tried again
                                             → until then, and where it cannot be used: the policy before it

The cluster is always watched. Longhorn's objects are watched from when a policy reads them until none does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

import structlog

from app.policy.file import PolicyFile
from app.policy.in_force import PolicyInForce
from app.scheduler.cache import Cluster
from app.scheduler.longhorn_cache import LiveLonghorn
from scheduler_core.convert.binding import Applicant
from scheduler_core.generic.cluster_state import State
from scheduler_core.generic.extender_policy import SERVICES
from scheduler_core.generic.policy import Policy
from scheduler_core.model.generic import PodKey

log = structlog.get_logger("rules")

LONGHORN: Final = "longhorn"
LOOK_SECONDS: Final = 1.0
# What a policy waits for may be told in seconds, which are others every second.
TELL_SECONDS: Final = 10.0


def reads(policy: Policy) -> frozenset[str]:
    """Which kinds a policy needs: those of the cluster, without which nothing is ever decided, and perhaps Longhorn's as a whole."""
    return SERVICES | {LONGHORN} if policy.reads_longhorn else SERVICES


class Sources:
    """The cluster, and Longhorn's caches while they are wanted.

    `make` makes new ones, which nobody runs yet; without it nothing is ever known of Longhorn.
    """

    def __init__(self, cluster: Cluster, make: Callable[[], LiveLonghorn] | None) -> None:
        self._cluster = cluster
        self._make = make
        self._longhorn: LiveLonghorn | None = None
        self._ready: LiveLonghorn | None = None
        self._changed = asyncio.Event()
        cluster.tell(self)

    def landed(self, found: Applicant, node: str) -> None:
        """Called by the cluster. Before its kinds are listed Longhorn's caches need not be told: they catch up with that."""
        if self._longhorn is not None and self._longhorn.cache.filled:
            self._longhorn.landed(found, node)

    def left(self, key: PodKey) -> None:
        """Called by the cluster."""
        if self._longhorn is not None:
            self._longhorn.left(key)

    def want(self, kinds: frozenset[str]) -> None:
        """These kinds are needed from now on, and no others."""
        make = self._make if LONGHORN in kinds else None
        if (make is None) != (self._longhorn is None):
            self._longhorn, self._ready = None if make is None else make(), None
            self._changed.set()

    def problem(self, kinds: frozenset[str]) -> str:
        """Why these kinds are not known well enough; "" if they are."""
        problem = self._cluster.problem
        if problem or LONGHORN not in kinds:
            return problem
        if self._longhorn is None:
            return "Longhorn's objects are not watched"
        if self._longhorn.cache.problem:
            return self._longhorn.cache.problem
        return "" if self._ready is self._longhorn else "Longhorn's objects not caught up with yet"

    def state(self) -> State:
        """The cluster now."""
        return self._cluster.state

    @property
    def longhorn(self) -> LiveLonghorn | None:
        """Longhorn's caches, if they are wanted."""
        return self._longhorn

    async def run(self) -> None:
        """Watches what is wanted until cancelled."""
        watched: LiveLonghorn | None = None
        watching: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._cluster.run())
            while True:
                self._changed.clear()
                if watched is not self._longhorn:
                    if watching is not None:
                        watching.cancel()
                    watched = self._longhorn
                    watching = None if watched is None else tasks.create_task(self._watch(watched), name=LONGHORN)
                await self._changed.wait()

    async def _watch(self, longhorn: LiveLonghorn) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(longhorn.cache.run())
            await longhorn.cache.synced()
            # Kinds are listed one by one, some long before the last; this process may have begun to lead in between.
            await longhorn.cache.catch_up()
            self._ready = longhorn

    async def catch_up(self) -> None:
        """Returns once everything that has happened before this call is known, of what has been listed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._cluster.catch_up())
            if self._longhorn is not None and self._longhorn.cache.filled:
                tasks.create_task(self._longhorn.cache.catch_up())


class Rules:
    """Owner of the policy in force, and of its sources."""

    def __init__(self, default: Policy, file: PolicyFile | None, sources: Sources) -> None:
        self._file = file
        self._sources = sources
        self._in_force = PolicyInForce(file, sources, default, reads)

    @property
    def problem(self) -> str:
        """Why nothing can be decided now; "" if it can."""
        return self._in_force.problem

    @property
    def pending(self) -> bool:
        """Whether a newer policy waits until what it reads is known."""
        return bool(self._in_force.waiting_for)

    def now(self) -> tuple[Policy, LiveLonghorn | None]:
        """The policy in force, and Longhorn's caches if it reads them; `problem` was asked before."""
        policy = self._in_force.policy
        return policy, self._sources.longhorn if policy.reads_longhorn else None

    async def catch_up(self) -> None:
        """Returns once everything that has happened before this call is known."""
        await self._sources.catch_up()

    async def run(self, helped: Callable[[], None]) -> None:
        """Watches until cancelled; `helped` is called when a pod that was refused may fit."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sources.run())
            if self._file is not None:
                tasks.create_task(self._file.run())
            tasks.create_task(self._look(helped))

    async def _look(self, helped: Callable[[], None]) -> None:
        """Neither a policy that comes into force nor Longhorn's caches tell anybody."""
        known, version, told = self._in_force.policy, 0, _Told()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            policy, longhorn = self.now()
            if policy is not known:
                known = policy
                log.info("policy in force", predicates=len(policy.predicates), priorities=len(policy.priorities))
                helped()
            told.tell(self._in_force.waiting_for)
            if longhorn is not None and not self.problem and longhorn.version != version:
                version = longhorn.version
                helped()


class _Told:
    """What was logged last of a policy that is not in force yet."""

    def __init__(self) -> None:
        self._problem = ""
        self._at = -float("inf")

    def tell(self, problem: str) -> None:
        """Logs a problem that is another one, but not too often."""
        now = monotonic()
        if not problem:
            self._problem, self._at = "", -float("inf")
        elif problem != self._problem and now >= self._at + TELL_SECONDS:
            self._problem, self._at = problem, now
            log.warning("policy not in force yet, the one before stays", problem=problem)
