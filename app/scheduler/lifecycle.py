"""Leads or follows: a `GenericScheduler` works only in the process that holds the Lease, and only with all of the cluster in sight.

caches filled → compete for the Lease → elected → catch up with everything that happened before → schedule
Lease lost, caches stale → decide no more, bind no more
SIGTERM → decide no more → what is being bound is bound, Events are written, both bounded → release the Lease
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from app.runtime.elector import Elector
from app.scheduler.metrics import SchedulerMetrics
from app.scheduler.scheduler import GenericScheduler

log = structlog.get_logger("service")

LEASE: Final = "longhorn-generic-scheduler"
CATCH_UP_SECONDS: Final = 15.0
DRAIN_SECONDS: Final = 10.0
RELEASE_SECONDS: Final = 5.0
_CRASH_SECONDS: Final = 1.0
_STEP_SECONDS: Final = 0.25


class SchedulerService:
    """Owner of the decision whether this process schedules."""

    def __init__(self, scheduler: GenericScheduler, elector: Elector, metrics: SchedulerMetrics) -> None:
        self._scheduler = scheduler
        self._elector = elector
        self._term: int | None = None  # the term this process schedules in
        self._wake = asyncio.Event()
        self._steering: asyncio.Task[None] | None = None
        self._trouble = ""
        metrics.gauge("leading", "Whether this process schedules", lambda: float(self.leading))

    @property
    def leading(self) -> bool:
        """Whether this process schedules."""
        return self._term is not None and self._elector.leading()

    @property
    def problem(self) -> str:
        """Why the cluster is not known well enough to schedule; "" if it is."""
        return self._scheduler.problem

    async def run(self) -> None:
        """Competes, and schedules while it leads, until cancelled."""
        loop, elector = asyncio.get_running_loop(), self._elector

        def wake() -> None:
            loop.call_soon_threadsafe(self._wake.set)

        elector.changed(wake)
        elector.enable(False)  # noqa: FBT003 # what the name says
        elector.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._scheduler.run())
                self._steering = tasks.create_task(self._steer())
        finally:
            await asyncio.to_thread(elector.stop, release=True, seconds=_CRASH_SECONDS)

    async def drain(self) -> None:
        """Ends in order; the Lease is free when this returns."""
        self._scheduler.deactivate()
        if self._steering is not None:
            self._steering.cancel()
            await asyncio.wait({self._steering})
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._scheduler.settled()
        except TimeoutError:
            log.warning("a pod is still being bound, or an event written; handing over without it")
        await asyncio.to_thread(self._elector.stop, release=True, seconds=RELEASE_SECONDS)

    async def _steer(self) -> None:
        while True:
            await self._step()
            try:
                async with asyncio.timeout(_STEP_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    async def _step(self) -> None:
        elector, problem = self._elector, self.problem
        if not elector.alive:
            raise RuntimeError("the elector has ended, so this process can never lead again")
        self._tell(problem or elector.problem)
        elector.enable(not problem)
        term = elector.term if elector.leading() else None
        if self._term is not None and term != self._term:
            log.warning("no longer the leader", term=self._term)
            self._term = None
            self._scheduler.deactivate()
        if term is not None and self._term is None:
            await self._take_over(term)

    async def _take_over(self, term: int) -> None:
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await self._scheduler.catch_up()
        except TimeoutError:
            log.warning("elected, but the API server does not tell what happened before; trying again")
            return
        if self._elector.leading() and self._elector.term == term:
            self._term = term
            self._scheduler.activate()
            log.info("scheduling", term=term)

    def _tell(self, problem: str) -> None:
        if problem == self._trouble:
            return
        self._trouble = problem
        if problem:
            log.warning("trouble", problem=problem)
        else:
            log.info("trouble is over")
