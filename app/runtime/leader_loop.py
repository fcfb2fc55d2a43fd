"""One loop that leads or follows: it competes for a Lease, and runs a program while this process leads.

    program can work → compete for the Lease → elected → catch up with everything that happened before → adopt → start
    Lease lost, or the program must stop → stop
    drain (SIGTERM) → no more competing → settle, bounded → stop → release the Lease, so that a successor starts at once, unless
    the program could not hand over

The methods of a `Program` are called one after the other, in one task.
"""

import asyncio
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import structlog

from app.runtime import wait_at_most
from app.runtime.elector import Elector

CATCH_UP_TIMEOUT = 15.0
DRAIN_TIMEOUT = 10.0
RELEASE_TIMEOUT = 5.0
_CRASH_TIMEOUT = 1.0
# The elector wakes the loop when the lead is won or lost; everything else the loop notices this late at most.
_STEP_INTERVAL = 0.25


class NoElection:
    """An election that this process has always won, for a program that needs no Lease."""

    term = 1
    problem = ""
    alive = True
    holder = ""

    def leading(self) -> bool:
        return True

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Does nothing: the lead never changes."""

    def start(self) -> None:
        """Does nothing."""

    def enable(self, enabled: bool) -> None:  # noqa: FBT001 # as Elector
        """Does nothing."""

    def stop(self, *, release: bool, seconds: float) -> None:
        """Does nothing."""


Election: TypeAlias = Elector | NoElection


class Program:
    """The work of a process while it leads, and the owner of the decision whether it runs. Subclasses define `run_tasks`,
    `competes`, `start` and `stop`; every other method may stay as it is.

    Args:
        log: the program's logger
    """

    # Whether to release the Lease after an error. A program whose last decisions may not be visible in the cluster yet lets the
    # Lease run out instead: that gives them time to become visible before a successor decides.
    release_after_crash: ClassVar[bool] = False

    def __init__(self, election: Election, log: structlog.stdlib.BoundLogger) -> None:
        self._election = election
        self._log = log
        self.term: int | None = None  # in which the program runs
        self._wake = asyncio.Event()
        self._steering: asyncio.Task[None] | None = None

    async def run_tasks(self) -> None:
        """Runs caches and other tasks until cancelled, leading or not."""
        raise NotImplementedError

    @property
    def competes(self) -> bool:
        """Whether this process should hold the Lease."""
        raise NotImplementedError

    @property
    def can_start(self) -> bool:
        """Whether the program can start once this process leads."""
        return True

    @property
    def must_stop(self) -> bool:
        """Whether the program must stop although this process leads."""
        return False

    async def before_step(self) -> None:
        """Called at the beginning of every step."""

    async def after_step(self) -> None:
        """Called at the end of every step."""

    async def catch_up(self) -> None:
        """Returns once the program knows everything that happened before this call."""

    async def adopt(self) -> None:
        """Restores what the previous leader left; the lead may be lost meanwhile."""

    def start(self, term: int) -> None:
        """Starts the program: this process leads in this term."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Stops the program: this process does not lead any more, or hands over."""
        raise NotImplementedError

    def log_lead_lost(self, term: int) -> None:
        """Logs that another process may lead now."""

    def begin_drain(self) -> None:
        """Called first when the process is to end: no new work is accepted."""

    async def settle(self) -> bool:
        """Returns once accepted work is finished, whether a successor may start at once; if not, the Lease runs out."""
        return True

    def log_unsettled(self) -> None:
        """Logs that accepted work was not finished within `DRAIN_TIMEOUT`."""

    async def hand_over(self) -> None:
        """Called when the Lease is released or left to run out; what follows its first pause may come after that."""

    @property
    def leading(self) -> bool:
        return self.term is not None and self._election.leading()

    async def run(self) -> None:
        """Competes, and runs the program while this process leads, until cancelled. Raises an ExceptionGroup if a task
        has failed, or the elector has ended.
        """
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._wake.set)

        self._election.subscribe(wake)
        self._election.enable(False)  # noqa: FBT003 # what the name says
        self._election.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.run_tasks(), name="program")
                self._steering = tasks.create_task(self._steer(), name="leader loop")
        finally:
            await asyncio.to_thread(self._election.stop, release=self.release_after_crash, seconds=_CRASH_TIMEOUT)

    async def drain(self) -> None:
        """Finishes accepted work, bounded, and hands over. When this returns, the Lease is free, or runs out by itself
        if the program says so.
        """
        self.begin_drain()
        # The loop would go on competing, and the program must not start again.
        if self._steering is not None:
            self._steering.cancel()
            await asyncio.wait({self._steering})
        release = True
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT):
                release = await self.settle()
        except TimeoutError:
            self.log_unsettled()
        self.term = None
        await self.stop()
        # At once: the successor can begin while this process is still being removed from the Services.
        await asyncio.gather(
            self.hand_over(), asyncio.to_thread(self._election.stop, release=release, seconds=RELEASE_TIMEOUT)
        )

    async def _steer(self) -> None:
        election = self._election
        while True:
            if not election.alive:
                raise RuntimeError("the elector has ended, so this process can never lead again")
            await self.before_step()
            election.enable(self.competes)
            term = election.term if election.leading() and not self.must_stop else None
            if self.term is not None and term != self.term:
                if not self._leads_in(self.term):
                    self.log_lead_lost(self.term)
                self.term = None
                await self.stop()
            if term is not None and self.term is None and self.can_start:
                await self._take_over(term)
            await self.after_step()
            await wait_at_most(self._wake, _STEP_INTERVAL)
            self._wake.clear()

    async def _take_over(self, term: int) -> None:
        try:
            async with asyncio.timeout(CATCH_UP_TIMEOUT):
                await self.catch_up()
        except TimeoutError:
            self._log.warning("elected, but the API server does not tell what happened before; trying again")
            return
        if not self._leads_in(term):
            return
        await self.adopt()
        if not self._leads_in(term):
            await self.stop()
            return
        self.term = term
        self.start(term)

    def _leads_in(self, term: int) -> bool:
        return self._election.leading() and self._election.term == term
