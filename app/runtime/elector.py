"""The elector runs the election of `scheduler_core.leadership.election` against the API server, in its own thread.

The thread has its own event loop and its own connections, so that a busy main loop cannot lose the Lease. Other threads call
`leading()`, which compares a clock with the fence that the thread last wrote: whatever hangs, stops or dies, the fence closes.

The clock is CLOCK_BOOTTIME if the system has it. CLOCK_MONOTONIC stands still while a machine is suspended, and a leader
that wakes up would believe that its fence is still open. A virtual machine that is paused from outside may have no clock that
shows the pause; such a leader may answer until its first call after it wakes up, at most for the rest of its fence.

A follower reads the Lease five times a second (one GET of one object) instead of watching it. So there is no watch to reconnect or to
go silent, and a release is noticed within that time. A leader writes once every `retry_period`.
"""

import asyncio
import random
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import aiohttp
import structlog

from app.kube.client import ApiError, KubeClient, create_owned, one_line
from app.kube.resources import LEASES
from app.runtime import logs, wait_at_most
from scheduler_core.convert.leadership import lease, new_lease, update_lease
from scheduler_core.errors import CoreError
from scheduler_core.leadership import election

log = structlog.get_logger("leadership")

_MIN_CALL_TIMEOUT = 0.05
_CLOSE_TIMEOUT = 1.0
_CANCEL_TIMEOUT = 1.0
_CALL_ERRORS = (CoreError, TimeoutError, OSError, aiohttp.ClientError)


def boot_clock() -> float:
    """Returns the seconds since boot, including sleep if the system counts it."""
    clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Elector:
    """One candidate for a Lease. `leading`, `term`, `undisturbed`, `predecessor`, `transitions`, `holder`, `problem`,
    `alive` and `enable` may be used from any thread.

    Args:
        connect: opens a connection; called in the elector's thread, and again after every failed call to get fresh credentials
        identity: a name that people recognise, such as the pod's. A random part is added, because two processes must not share an
            identity, such as a hung container and its successor in the same pod
        namespace: the Lease's namespace
        lease: the Lease's name
        timing: see `ElectionTiming`
        clock: returns seconds that never stand still
        random: returns a number in [0, 1)
    """

    def __init__(  # noqa: PLR0913 # the Lease, the candidate, and the two sources of time and randomness
        self,
        connect: Callable[[], Awaitable[KubeClient]],
        identity: str,
        namespace: str,
        timing: election.ElectionTiming | None = None,
        *,
        lease: str = election.LEASE_NAME,
        clock: Callable[[], float] = boot_clock,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.identity = f"{identity}_{uuid.uuid4().hex[:8]}"
        self._connect = connect
        self._namespace = namespace
        self._lease = lease
        self._clock = clock
        self._random = random
        self._state = election.Candidate(self.identity, timing or election.ElectionTiming())
        # What other threads read: one immutable value with its problem, replaced in one assignment.
        self._published = (self._state, "")
        self._announced_term: int | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._enabled = True
        self._stop_at: float | None = None
        self._client: KubeClient | None = None
        self._raw_lease = b""
        self._trouble = logs.ProblemLog(
            log, "the Lease cannot be read or written", "the Lease can be read and written again"
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._main, name="elector", daemon=True)

    def leading(self) -> bool:
        """Whether this process may answer now. Callers check it before they decide, and again before they answer."""
        return self._enabled and self._stop_at is None and self._clock() < self._published[0].leading_until

    @property
    def term(self) -> int:
        """Grows whenever this process wins the lead; 0 before the first time."""
        return self._published[0].term

    @property
    def undisturbed(self) -> float:
        """Seconds since a previous leader may last have answered, infinite if the Lease was released."""
        return self._clock() - self._published[0].answered_until

    @property
    def predecessor(self) -> election.LeaseRecord | None:
        """The Lease as it was before this process took it last, None if it has never led."""
        return self._published[0].predecessor

    @property
    def transitions(self) -> int:
        record = self._published[0].observed_record
        return record.transitions if record is not None else 0

    @property
    def holder(self) -> str:
        return self._published[0].holder

    @property
    def problem(self) -> str:
        return self._published[1]

    @property
    def alive(self) -> bool:
        """Whether the thread runs. Once it has died, this process can never lead again and should end."""
        return self._thread.is_alive()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Registers a callback for each won or lost lead, before `start`. It runs in the elector's thread and must not
        block.
        """
        self._callbacks.append(callback)

    def start(self) -> None:
        self._thread.start()

    def enable(self, enabled: bool) -> None:  # noqa: FBT001 # reads well where it is used: enable(setting)
        """Sets whether to compete. A disabled elector stops leading at once, and then releases the Lease."""
        if enabled != self._enabled:
            self._enabled = enabled
            self._wake_up()

    def stop(self, *, release: bool, seconds: float) -> None:
        """Stops leading at once, and ends the thread. Blocks at most `seconds` and a little.

        Args:
            release: whether to release the Lease, so that a successor need not wait
            seconds: for how long the release is tried
        """
        self._stop_at = self._clock() + (seconds if release else 0.0)
        if not self._thread.is_alive():
            return
        self._wake_up()
        if release:
            self._thread.join(seconds)
        # The elector's thread writes both attributes; each is read once.
        loop = self._loop
        task = self._task
        if self._thread.is_alive() and loop is not None and task is not None:
            _call_in_loop(loop, task.cancel)
        self._thread.join(_CANCEL_TIMEOUT)
        if self._thread.is_alive():
            log.warning("the elector's thread does not end; it leads nothing and ends with the process")

    def _wake_up(self) -> None:
        loop = self._loop
        wake = self._wake
        if loop is not None and wake is not None:
            _call_in_loop(loop, wake.set)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except asyncio.CancelledError:
            pass
        except BaseException:
            log.exception("the elector died; this process does not lead any more")
            self._trouble.problem = "the elector died; see the log"
        finally:
            self._state = election.Candidate(self.identity, self._state.timing, term=self._state.term)
            self._publish()

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            while await self._take_step():
                pass
        finally:
            await self._disconnect()

    async def _take_step(self) -> bool:
        """Performs the next action; returns whether to go on."""
        stop_at = self._stop_at
        now = self._clock()
        self._state = election.step(self._state, election.ShouldCompete(self._enabled and stop_at is None, now))
        self._publish()
        action = election.plan(self._state, now, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
        if stop_at is not None and (now >= stop_at or action == election.Wait(election.NEVER)):
            return False
        if isinstance(action, election.Wait):
            until = self._limit(action.until, now)
            assert self._wake is not None  # noqa: S101 # set before the first step
            await wait_at_most(self._wake, None if until == election.NEVER else max(0.0, until - now))
            self._wake.clear()
        else:
            self._state = election.step(self._state, await self._perform(action, now))
            self._publish()
        return True

    def _limit(self, until: float, now: float) -> float:
        """Returns a time that passes neither the fence nor the end."""
        if self._state.leading(now):
            until = min(until, self._state.leading_until)
        return until if self._stop_at is None else min(until, self._stop_at)

    async def _perform(
        self, action: election.ReadLease | election.CreateLease | election.ReplaceLease, now: float
    ) -> election.Event:
        attempt = election.Attempt(action.record, now) if isinstance(action, election.ReplaceLease) else None
        # A call never passes the fence, so that a loss of the lead is reported when it happens and not when the call ends.
        until = self._limit(election.NEVER, now)
        try:
            async with asyncio.timeout(max(_MIN_CALL_TIMEOUT, min(self._state.timing.call_timeout, until - now))):
                event = await self._call(action, now)
        except ApiError as error:
            if error.not_found and isinstance(action, election.ReadLease):
                self._trouble.note("")
                return election.LeaseAbsent(self._clock())
            if error.conflict or (error.not_found and isinstance(action, election.ReplaceLease)):
                self._trouble.note("")
                return election.WriteConflicted(self._clock(), self._random())
            problem = str(error)
        except TimeoutError:
            problem = f"{LEASES.label} {self._namespace}/{self._lease}: no answer from the API server in time"
        except _CALL_ERRORS as error:
            problem = one_line(error)
        else:
            self._trouble.note("")
            return event
        self._trouble.note(problem)
        await self._disconnect()
        return election.CallFailed(self._clock(), self._random(), attempt)

    async def _call(
        self, action: election.ReadLease | election.CreateLease | election.ReplaceLease, sent: float
    ) -> election.Event:
        if self._client is None:
            self._client = await self._connect()
        client = self._client
        seconds = self._state.timing.call_timeout
        path = LEASES.path(self._namespace, self._lease)
        if isinstance(action, election.ReadLease):
            raw = await client.get(path, seconds=seconds)
        elif isinstance(action, election.CreateLease):
            body = new_lease(self._namespace, self._lease, action.record)
            raw = await create_owned(client, LEASES.path(self._namespace), self._namespace, body, seconds)
        else:
            raw = await client.replace(path, update_lease(self._raw_lease, action.record), seconds)
        observed = lease(raw)
        self._raw_lease = raw
        if isinstance(action, election.ReplaceLease):
            return election.LeaseReplaced(observed, sent, self._clock())
        return election.LeaseRead(observed, self._clock())

    async def _disconnect(self) -> None:
        client = self._client
        self._client = None
        if client is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await client.close()
        except _CALL_ERRORS as error:
            log.debug("a connection did not close", problem=str(error))

    def _publish(self) -> None:
        state = self._state
        self._published = (state, self._trouble.problem)
        term = state.term if state.leading(self._clock()) else None
        if term == self._announced_term:
            return
        self._announced_term = term
        log.info("elected" if term is not None else "not the leader any more", term=state.term, holder=state.holder)
        for callback in self._callbacks:
            try:
                callback()
            except Exception:
                # The elector must go on, whatever a callback does.
                log.exception("a listener of the election failed")


def _call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        log.debug("the elector has ended already")
