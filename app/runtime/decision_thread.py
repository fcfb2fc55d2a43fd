"""The one thread that runs the core's decisions, so that the event loop is free meanwhile.

Data flow: the loop takes one `ClusterState`, the ledger and the names of the nodes → a job that reads nothing else → the thread runs the
most urgent job → its result goes back to the loop, which alone commits it to the ledger, under the lock of the offers.

What is shared, and its one owner:

- `ClusterState`, view, demand and ledger are immutable values with persistent maps. The loop makes the next ones meanwhile; a job keeps
  those that it was made with.
- The caches of results (disk profiles, contention, equivalence, placements, plans) belong to the thread. The loop makes the next
  `ProfileCache` of a state, which only hands the same maps on, and never looks into one.
- Reservations, allowances, refusals, monitors, metrics and logs belong to the loop: what a job needs of them is read before it is submitted.

A job is a computation in steps. Between two steps it gives way to every more urgent job, and to an equally urgent one once it has run for
`TURN_SECONDS`. So a decision waits at most for one step of anything else.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Final, Generic, TypeVar

from scheduler_core.cooperative import Cooperative

TURN_SECONDS: Final = 0.005
# The loop waits at most so long for the interpreter, each time that a socket or a timer wakes it; Python's default is five times as much.
_SWITCH_SECONDS: Final = 0.001
_Result = TypeVar("_Result")


class Urgency(IntEnum):
    """What waits for a job; less is more urgent."""

    DECISION = 0
    EXPLANATION = 1
    BACKGROUND = 2


class _Job(Generic[_Result]):
    """A computation, and the future on the loop that waits for it."""

    def __init__(self, computation: Cooperative[_Result], urgency: Urgency) -> None:
        self.urgency = urgency
        self._computation = computation
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[_Result] = self._loop.create_future()

    def step(self) -> bool:
        """Takes one step; returns whether there are more."""
        if self.future.cancelled():
            self._computation.close()
            return False
        try:
            next(self._computation)
        except StopIteration as done:
            self._end(self.future.set_result, done.value)
            return False
        except BaseException as error:  # noqa: BLE001 # the caller raises it
            self._end(self.future.set_exception, error)
            return False
        return True

    def _end(self, settle: Any, result: object) -> None:
        def end() -> None:
            if not self.future.done():
                settle(result)

        # The loop may have ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(end)


class DecisionThread:
    """Owner of the thread and of the jobs that wait for it."""

    def __init__(self) -> None:
        self._waiting: tuple[deque[_Job[Any]], ...] = tuple(deque() for _ in Urgency)
        # One for each job that waits: adding to and taking from a deque are single steps of the interpreter.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # Guards the counts of decisions that are expected, and of the jobs that are held meanwhile.
        self._lock = threading.Lock()
        self._expected = 0
        self._held = 0

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Holds less urgent jobs while a decision is prepared on the loop, which would wait for the interpreter each time it wakes."""
        self._expected += 1
        try:
            yield
        finally:
            with self._lock:
                self._expected -= 1
                held = self._held if not self._expected else 0
                self._held -= held
            for _ in range(held):
                self._wake.put(None)

    def _holds(self) -> bool:
        """Whether the most urgent job is held; it is waked again once no decision is expected."""
        with self._lock:
            if not self._expected or self._waiting[0]:
                return False
            self._held += 1
            return True

    async def run(self, computation: Cooperative[_Result], urgency: Urgency = Urgency.DECISION) -> _Result:
        """Runs a computation to its end and returns its result. If the caller is cancelled, so is the computation, before its next step."""
        if self._thread is None:
            sys.setswitchinterval(_SWITCH_SECONDS)
            # A daemon does not keep the process from ending.
            self._thread = threading.Thread(target=self._work, name="decisions", daemon=True)
            self._thread.start()
        job = _Job(computation, urgency)
        self._submit(job)
        return await job.future

    def _submit(self, job: _Job[Any]) -> None:
        self._waiting[job.urgency].append(job)
        self._wake.put(None)

    def _work(self) -> None:
        while True:
            self._wake.get()
            if self._holds():
                continue
            job = next(jobs.popleft() for jobs in self._waiting if jobs)
            if self._take_turn(job):
                self._submit(job)

    def _take_turn(self, job: _Job[Any]) -> bool:
        """Runs a job until it gives way; returns whether there is more of it."""
        ends_at = perf_counter() + TURN_SECONDS
        more_urgent = self._waiting[: job.urgency]
        equal = self._waiting[job.urgency]
        while job.step():
            if any(more_urgent) or (job.urgency and self._expected) or (equal and perf_counter() >= ends_at):
                return True
        return False
