"""The policy in force, and the caches that its rules read.

    policy file → read again when it changes → all that its rules read is known → in force, and every pending pod is tried again
                                             → until then, and while the file cannot be used: the previous policy

The cluster is always watched. Longhorn's objects are watched while a policy reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

import structlog

from app.policy.in_force import PolicyFile, PolicyInForce
from app.scheduler.cache import SchedulerCache
from app.scheduler.longhorn_cache import LonghornCache
from scheduler_core.convert.binding import PendingPod
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.policy import Policy
from scheduler_core.generic.policy_filter import kinds_read
from scheduler_core.generic.rule_inputs import SERVICES
from scheduler_core.model.generic import PodKey

log = structlog.get_logger("rules")

LONGHORN: Final = "longhorn"
POLL_INTERVAL: Final = 1.0
# A problem may contain a number of seconds, and so differ every second.
LOG_INTERVAL: Final = 10.0


def kinds_required(policy: Policy) -> frozenset[str]:
    """Returns the kinds that a policy needs; nodes, services and pods always, and Longhorn's kinds as one."""
    kinds = SERVICES | kinds_read(policy)
    return kinds | {LONGHORN} if policy.reads_longhorn else kinds


class PolicyInputs:
    """The cluster, and Longhorn's cache while a policy needs it.

    Args:
        new_longhorn_cache: returns a new cache, which does not run yet; without it Longhorn's objects are never known
    """

    def __init__(self, cluster: SchedulerCache, new_longhorn_cache: Callable[[], LonghornCache] | None) -> None:
        self._cluster = cluster
        self._new_longhorn_cache = new_longhorn_cache
        self._longhorn: LonghornCache | None = None
        self._caught_up: LonghornCache | None = None
        self._changed = asyncio.Event()
        cluster.subscribe(self)

    def on_bound(self, pending: PendingPod, node: str) -> None:
        # A cache that is not listed yet catches up with this Binding once it is.
        if self._longhorn is not None and self._longhorn.cache.has_synced:
            self._longhorn.on_bound(pending, node)

    def on_gone(self, key: PodKey) -> None:
        if self._longhorn is not None:
            self._longhorn.on_gone(key)

    def want(self, kinds: frozenset[str]) -> None:
        """Provides these kinds from now on, and no others."""
        self._cluster.want(kinds - {LONGHORN})
        new_cache = self._new_longhorn_cache if LONGHORN in kinds else None
        if (new_cache is None) != (self._longhorn is None):
            self._longhorn = None if new_cache is None else new_cache()
            self._caught_up = None
            self._changed.set()

    def problem(self, kinds: frozenset[str]) -> str:
        """Returns why these kinds cannot be used now, "" if they can."""
        problem = self._cluster.problem(kinds - {LONGHORN})
        if problem or LONGHORN not in kinds:
            return problem
        if self._longhorn is None:
            return "Longhorn's objects are not watched"
        if self._longhorn.cache.problem:
            return self._longhorn.cache.problem
        return "" if self._caught_up is self._longhorn else "Longhorn's objects not caught up with yet"

    def state(self) -> GenericClusterState:
        return self._cluster.state

    @property
    def longhorn(self) -> LonghornCache | None:
        return self._longhorn

    async def run(self) -> None:
        """Watches the provided kinds until cancelled."""
        running: LonghornCache | None = None
        task: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._cluster.run())
            while True:
                self._changed.clear()
                if running is not self._longhorn:
                    if task is not None:
                        task.cancel()
                    running = self._longhorn
                    task = None if running is None else tasks.create_task(self._watch(running), name=LONGHORN)
                await self._changed.wait()

    async def _watch(self, longhorn: LonghornCache) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(longhorn.cache.run())
            await longhorn.cache.wait_for_sync()
            # Kinds are listed one by one, some long before the last; this process may have been elected in between.
            await longhorn.cache.catch_up()
            self._caught_up = longhorn

    async def catch_up(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._cluster.catch_up())
            if self._longhorn is not None and self._longhorn.cache.has_synced:
                tasks.create_task(self._longhorn.cache.catch_up())


class PolicySources:
    """Owner of the policy in force and of its inputs.

    Args:
        default: the policy without a file
    """

    def __init__(self, default: Policy, file: PolicyFile | None, inputs: PolicyInputs) -> None:
        self._file = file
        self._inputs = inputs
        self._in_force = PolicyInForce(file, inputs, default, kinds_required)

    @property
    def problem(self) -> str:
        return self._in_force.problem

    @property
    def pending(self) -> bool:
        """Whether a newer policy waits until everything it reads is known."""
        return bool(self._in_force.waiting_for)

    def current(self) -> tuple[Policy, LonghornCache | None]:
        """Returns the policy in force, and Longhorn's cache if it needs that. Callers check `problem` first."""
        policy = self._in_force.policy
        return policy, self._inputs.longhorn if policy.reads_longhorn else None

    async def catch_up(self) -> None:
        await self._inputs.catch_up()

    async def run(self, on_change: Callable[[], None]) -> None:
        """Watches until cancelled.

        Args:
            on_change: called when unschedulable pods may fit, because of a changed policy or Longhorn's objects
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._inputs.run())
            if self._file is not None:
                tasks.create_task(self._file.run())
            tasks.create_task(self._poll(on_change))

    async def _poll(self, on_change: Callable[[], None]) -> None:
        last_policy = self._in_force.policy
        last_version = 0
        pending_log = _PendingLog()
        while True:
            # Neither policy nor caches call back.
            await asyncio.sleep(POLL_INTERVAL)
            policy, longhorn = self.current()
            if policy is not last_policy:
                last_policy = policy
                log.info("policy in force", predicates=len(policy.predicates), priorities=len(policy.priorities))
                on_change()
            pending_log.update(self._in_force.waiting_for)
            if longhorn is not None and not self.problem and longhorn.version != last_version:
                last_version = longhorn.version
                on_change()


class _PendingLog:
    """Logs why a newer policy is not in force yet."""

    def __init__(self) -> None:
        self._problem = ""
        self._logged_at = -float("inf")

    def update(self, problem: str) -> None:
        """Logs a changed problem, at most every `LOG_INTERVAL` seconds; "" is none."""
        now = monotonic()
        if not problem:
            self._problem = ""
            self._logged_at = -float("inf")
        elif problem != self._problem and now >= self._logged_at + LOG_INTERVAL:
            self._problem = problem
            self._logged_at = now
            log.warning("policy not in force yet, the one before stays", problem=problem)
