"""The controllers of one process: when they work, and what an administrator is told.

    everything listed, no longhorn-manager beside, elected → look at everything, then at what changes
    lead lost, a watch silent for too long, longhorn-manager appears → stop at once
    SIGTERM → stop, release the Lease

Two processes that reconcile at once do no harm, because every write is against the version that was read. The Lease keeps them
from doing everything twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from app.disk_schedule.backing_image_controller import ImageController
from app.disk_schedule.controller import Context, Controller
from app.disk_schedule.disk_controller import Allocator, Mirror
from app.disk_schedule.manager_detection import Managers
from app.disk_schedule.metrics import ControllerMetrics
from app.disk_schedule.node_controller import NodeSync
from app.disk_schedule.replica_controller import ReplicaController
from app.disk_schedule.volume_controller import VolumeController
from app.disk_schedule.watches import Watches
from app.disk_schedule.writer import Carrier
from app.kube.client import KubeClient
from app.kube.reflector import Timing
from app.runtime.elector import Elector

log = structlog.get_logger("controllers")

LEASE: Final = "longhorn-disk-schedule"
ORPHAN_SECONDS: Final = 300.0
_LOOK_SECONDS: Final = 0.2
_RELEASE_SECONDS: Final = 5.0
_ALLOCATING: Final = (NodeSync, Allocator, VolumeController, ReplicaController, ImageController)
_OBSERVING: Final = (NodeSync, Mirror)


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """What an administrator may choose.

    Attributes:
        mirror: write down what Longhorn allocates by itself, and decide nothing
        stale_after: seconds without a word from the API server about some kind after which nothing is decided
        orphans_after: see `Context`
    """

    namespace: str
    mirror: bool
    stale_after: float
    orphans_after: float = ORPHAN_SECONDS


class DiskSchedules:
    """Owner of the decision whether this process reconciles.

    Args:
        elector: None: no Lease is asked for; other processes may reconcile at the same time
        random: a number in [0, 1)
    """

    def __init__(  # noqa: PLR0913 # who, where, how, and the sources of time and chance
        self,
        client: KubeClient,
        options: ControllerOptions,
        elector: Elector | None,
        metrics: ControllerMetrics,
        *,
        timing: Timing,
        now: Callable[[], datetime],
        random: Callable[[], float],
    ) -> None:
        self._elector = elector
        self._metrics = metrics
        self._ending = False
        self._told = ""
        self._working: asyncio.Task[None] | None = None
        self.watches = Watches(client, options.namespace, timing, now, options.stale_after)
        self._managers = None if options.mirror else Managers(client, options.namespace, timing, options.stale_after)
        context = Context(
            options.namespace,
            self.watches,
            Carrier(client, options.namespace, self.watches.schedules, lambda: not self.refusal),
            metrics,
            options.orphans_after,
            timing.clock,
            now,
            random,
        )
        self.controllers: Sequence[Controller] = [
            make(context) for make in (_OBSERVING if options.mirror else _ALLOCATING)
        ]
        metrics.expect(controller.name for controller in self.controllers)
        metrics.watch(self.watches, timing.clock)

    @property
    def problem(self) -> str:
        """Why nothing can be decided here, whoever leads, in one sentence; "" if it can."""
        return self.watches.problem or (self._managers.problem if self._managers else "")

    @property
    def refusal(self) -> str:
        """Why this process must not write now; "" if it may."""
        if self._ending:
            return "it is being stopped"
        if self._elector is not None and not self._elector.leading():
            return f"{self._elector.holder or 'nobody'} holds the Lease {LEASE}"
        return self.problem

    async def run(self) -> None:
        """Watches, competes and reconciles until cancelled.

        Raises:
            RuntimeError: the elector's thread has ended
        """
        if self._elector is not None:
            self._elector.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.watches.run(), name="watches")
                if self._managers is not None:
                    tasks.create_task(self._managers.run(), name="longhorn-manager")
                tasks.create_task(self._steer(), name="steer")
        finally:
            if self._elector is not None:
                self._elector.stop(release=False, seconds=0)

    async def _steer(self) -> None:
        """Begins and ends work as it is allowed. Every write asks again, so this may be a little late."""
        while True:
            if self._elector is not None and not self._elector.alive and not self._ending:
                raise RuntimeError("the elector has ended")
            refusal = self.refusal
            if self._working is not None and self._working.done():
                self._working.result()  # it never ends by itself: its error ends this process
            if refusal and self._working is not None:
                await self._rest()
            elif not refusal and self._working is None:
                self._working = asyncio.create_task(self._work(), name="controllers")
            if refusal != self._told:
                log.info("does not reconcile" if refusal else "reconciles", because=refusal)
            self._told = refusal
            self._metrics.working(now=self._working is not None)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for controller in self.controllers:
                tasks.create_task(controller.run(), name=controller.name)

    async def _rest(self) -> None:
        working, self._working = self._working, None
        if working is not None:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def drain(self) -> None:
        """Ends work and gives up the Lease, so that a successor need not wait."""
        self._ending = True
        await self._rest()
        if self._elector is not None:
            elector = self._elector
            await asyncio.to_thread(elector.stop, release=True, seconds=_RELEASE_SECONDS)
