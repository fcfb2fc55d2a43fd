"""The elector: runs the election of `scheduler_core.leadership.election` against the API server, in a thread of its own.

The thread has its own event loop and its own connections, so that a busy main loop cannot lose the Lease. What everybody
else asks, `leading()`, compares a clock with the fence the thread last wrote: whatever hangs, stops or dies, the fence closes.

The clock is CLOCK_BOOTTIME where there is one: CLOCK_MONOTONIC stands still while a machine is suspended, and a leader
that wakes up would believe that its fence is still open. A virtual machine that is paused from outside may have no clock that
tells; such a leader may answer until its first call after it wakes up, at most for the rest of its fence.

A follower reads the Lease every half second (one GET of one object) instead of watching it: nothing to reconnect,
nothing that goes silent, and a release is noticed within that time. A leader writes once every `retry_period`.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import aiohttp
import structlog

from app.kube.client import ApiError, KubeClient
from app.kube.resources import LEASES
from scheduler_core.convert.coordination import changed_lease, lease, new_lease
from scheduler_core.errors import CoreError
from scheduler_core.leadership import election
from scheduler_core.leadership.election import (
    LEASE_NAME,
    Attempt,
    CallFailed,
    Candidate,
    Conflicted,
    Create,
    ElectionTiming,
    Event,
    LeaseAbsent,
    LeaseRead,
    LeaseRecord,
    Read,
    Replace,
    Replaced,
    Wait,
    Wanted,
)

log = structlog.get_logger("leadership")

_SHORTEST_CALL: Final = 0.05
_CLOSE_SECONDS: Final = 1.0
_CANCEL_SECONDS: Final = 1.0
_FAILURES: Final = (CoreError, TimeoutError, OSError, aiohttp.ClientError)


def boot_clock() -> float:
    """Seconds since boot, those asleep included where the system counts them."""
    clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass(frozen=True, slots=True)
class _Standing:
    """What other threads read: one immutable value, exchanged in one assignment."""

    leading_until: float = -float("inf")
    term: int = 0
    answered_until: float = -float("inf")
    holder: str = ""
    problem: str = ""


class Elector:
    """One candidate. `leading`, `term`, `holder`, `problem`, `alive` and `enable` may be used from any thread.

    Args:
        connect: opens a connection; called in the elector's thread, again after every failed call (fresh credentials)
        identity: who this is, for people: the pod's name. A random part is added, because an identity must not be shared by two
            processes, such as a hung container and its successor in the same pod
        namespace: where the Lease is
        lease: its name
        timing: see `ElectionTiming`
        clock: seconds that never stand still; `random`: a number in [0, 1)
    """

    def __init__(  # noqa: PLR0913 # who, where, how, and the two sources of time and chance
        self,
        connect: Callable[[], Awaitable[KubeClient]],
        identity: str,
        namespace: str,
        timing: ElectionTiming | None = None,
        *,
        lease: str = LEASE_NAME,
        clock: Callable[[], float] = boot_clock,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.identity = f"{identity}_{uuid.uuid4().hex[:8]}"
        self._connect = connect
        self._namespace = namespace
        self._lease = lease
        self._clock = clock
        self._random = random
        self._state = Candidate(self.identity, timing or ElectionTiming())
        self._standing = _Standing()
        self._announced: int | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._wanted = True
        self._stop_at: float | None = None
        self._client: KubeClient | None = None
        self._raw = b""
        self._problem = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._main, name="elector", daemon=True)

    def leading(self) -> bool:
        """Whether this process may answer now. Ask before working out an answer, and again before giving it."""
        return self._wanted and self._stop_at is None and self._clock() < self._standing.leading_until

    @property
    def term(self) -> int:
        """Grows with each taking of the lead; 0 before the first."""
        return self._standing.term

    @property
    def undisturbed(self) -> float:
        """How many seconds ago somebody else may have answered last; infinite if the Lease was released."""
        return self._clock() - self._standing.answered_until

    @property
    def holder(self) -> str:
        """Who holds the Lease as last seen, "" for nobody."""
        return self._standing.holder

    @property
    def problem(self) -> str:
        """The last trouble as one line, "" if the last call went well."""
        return self._standing.problem

    @property
    def alive(self) -> bool:
        """Whether the thread runs. A thread that died leads nothing any more: the process should end."""
        return self._thread.is_alive()

    def changed(self, callback: Callable[[], None]) -> None:
        """Registers who is told of each gain and loss, in the elector's thread; before `start`. It must not block."""
        self._callbacks.append(callback)

    def start(self) -> None:
        """Begins to compete."""
        self._thread.start()

    def enable(self, enabled: bool) -> None:  # noqa: FBT001 # reads well where it is used: enable(setting)
        """Whether to compete. Disabled, it does not lead from this moment on, and releases the Lease."""
        if enabled != self._wanted:
            self._wanted = enabled
            self._rouse()

    def stop(self, *, release: bool, seconds: float) -> None:
        """Ends the thread; it does not lead from this moment on. Blocks at most `seconds` and a little.

        Args:
            release: whether to give up the Lease, so that a successor need not wait; tried for `seconds`
            seconds: for how long
        """
        self._stop_at = self._clock() + (seconds if release else 0.0)
        if not self._thread.is_alive():
            return
        self._rouse()
        if release:
            self._thread.join(seconds)
        loop, task = self._loop, self._task
        if self._thread.is_alive() and loop is not None and task is not None:
            _tell(loop, task.cancel)
        self._thread.join(_CANCEL_SECONDS)
        if self._thread.is_alive():
            log.warning("the elector's thread does not end; it leads nothing and ends with the process")

    def _rouse(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            _tell(loop, wake.set)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except asyncio.CancelledError:
            pass
        except BaseException:
            log.exception("the elector died; this process does not lead any more")
            self._problem = "the elector died; see the log"
        finally:
            self._state = election.Candidate(self.identity, self._state.timing, term=self._state.term)
            self._publish()

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            while await self._turn():
                pass
        finally:
            await self._disconnect()

    async def _turn(self) -> bool:
        """One action; False at the end."""
        stop_at = self._stop_at
        now = self._clock()
        self._state = election.step(self._state, Wanted(self._wanted and stop_at is None, now))
        self._publish()
        action = election.plan(self._state, now, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
        if stop_at is not None and (now >= stop_at or action == Wait(election.NEVER)):
            return False
        if isinstance(action, Wait):
            await self._sleep(action.until, now)
        else:
            self._state = election.step(self._state, await self._answer(action, now))
            self._publish()
        return True

    async def _sleep(self, until: float, now: float) -> None:
        if self._state.leading(now):
            until = min(until, self._state.leading_until)
        if self._stop_at is not None:
            until = min(until, self._stop_at)
        assert self._wake is not None  # noqa: S101 # set before the first turn
        try:
            async with asyncio.timeout(None if until == election.NEVER else max(0.0, until - now)):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _answer(self, action: Read | Create | Replace, now: float) -> Event:
        attempt = Attempt(action.record, now) if isinstance(action, Replace) else None
        try:
            async with asyncio.timeout(self._patience(now)):
                event = await self._call(action, now)
        except ApiError as error:
            if error.not_found and isinstance(action, Read):
                self._well()
                return LeaseAbsent(self._clock())
            if error.conflict or (error.not_found and isinstance(action, Replace)):
                self._well()
                return Conflicted(self._clock(), self._random())
            problem = str(error)
        except TimeoutError:
            problem = f"{LEASES.label} {self._namespace}/{self._lease}: no answer from the API server in time"
        except _FAILURES as error:
            problem = " ".join(str(error).split()) or type(error).__name__
        else:
            self._well()
            return event
        self._ill(problem)
        await self._disconnect()
        return CallFailed(self._clock(), self._random(), attempt)

    def _patience(self, now: float) -> float:
        """Seconds for one call: never past the fence, so that a loss is told when it happens, not when the call ends."""
        seconds = self._state.timing.call_timeout
        if self._state.leading(now):
            seconds = min(seconds, self._state.leading_until - now)
        if self._stop_at is not None:
            seconds = min(seconds, self._stop_at - now)
        return max(seconds, _SHORTEST_CALL)

    async def _call(self, action: Read | Create | Replace, sent: float) -> Event:
        if self._client is None:
            self._client = await self._connect()
        client, seconds = self._client, self._state.timing.call_timeout
        match action:
            case Read():
                raw = await client.get(LEASES.path(self._namespace, self._lease), seconds=seconds)
                return LeaseRead(self._kept(raw), self._clock())
            case Create(record):
                body = new_lease(self._namespace, self._lease, record)
                raw = await client.create(LEASES.path(self._namespace), body, seconds)
                return LeaseRead(self._kept(raw), self._clock())
            case Replace(record):
                body = changed_lease(self._raw, record)
                raw = await client.replace(LEASES.path(self._namespace, self._lease), body, seconds)
                return Replaced(self._kept(raw), sent, self._clock())

    def _kept(self, raw: bytes) -> LeaseRecord:
        record = lease(raw)
        self._raw = raw
        return record

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await client.close()
        except _FAILURES as error:
            log.debug("a connection did not close", problem=str(error))

    def _well(self) -> None:
        if self._problem:
            log.info("the Lease can be read and written again")
        self._problem = ""

    def _ill(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("the Lease cannot be read or written", problem=problem)
        self._problem = problem

    def _publish(self) -> None:
        """Lets other threads see the state, and tells of a gain or loss."""
        state = self._state
        self._standing = _Standing(state.leading_until, state.term, state.answered_until, state.holder, self._problem)
        term = state.term if state.leading(self._clock()) else None
        if term == self._announced:
            return
        self._announced = term
        log.info("elected" if term is not None else "not the leader any more", term=state.term, holder=state.holder)
        for callback in self._callbacks:
            try:
                callback()
            except Exception:  # whatever a listener does, the elector must go on
                log.exception("a listener of the election failed")


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        log.debug("the elector has ended already")
