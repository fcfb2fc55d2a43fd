"""The one thread that runs the core's decisions, so that the event loop is free meanwhile.

Data flow: the loop takes one `ClusterState`, the ledger and the names of the nodes → a job that reads nothing else → the thread runs the
most urgent job → its result goes back to the loop, which alone commits it to the ledger, under the lock of the offers.

What is shared, and its one owner:

- `ClusterState`, view, demand and ledger are immutable values with persistent maps. The loop makes the next ones meanwhile; a job keeps
  those that it was made with.
- The caches of results (disk profiles, contention, equivalence, placements, plans) belong to the thread. The loop makes the next
  `ProfileCache` of a state, which only hands the same maps on, and never looks into one.
- Reservations, allowances, refusals, monitors, metrics and logs belong to the loop: what a job needs of them is read before it is submitted.

A job runs to its end. Wherever it gives way (`scheduler_core/packing/budget.py`), every more urgent job that waits is run first, in the middle
of it. So jobs of different urgency that share a cache must give way only where it is whole; explanations have their own caches of
competitors.
"""

import asyncio
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from enum import IntEnum
from heapq import heappop, heappush
from time import perf_counter
from typing import Any, Generic, TypeAlias, TypeVar

from scheduler_core.packing.budget import giving_way

# A job that rests does so after each such time of work.
_WORK_SECONDS = 0.001
# A job that rests does not begin again for so long after a decision, because in a burst the next one is about to come.
QUIET_SECONDS = 1.0
# After so long it rests, but waits for quiet no more: a page would show nothing new as long as a burst lasts.
DEADLINE_SECONDS = 60.0
# The loop waits at most so long for the interpreter, each time that a socket or a timer wakes it; Python's default is five times as much.
_SWITCH_SECONDS = 0.001
_Result = TypeVar("_Result")


class Urgency(IntEnum):
    """What waits for a job; less is more urgent.

    REVIEW: the API server, for less than a second. DECISION: kube-scheduler. EXPLANATION: a person. BACKGROUND: nothing yet. IDLE: nothing.
    """

    REVIEW = 0
    DECISION = 1
    EXPLANATION = 2
    BACKGROUND = 3
    IDLE = 4


class _AbandonedError(BaseException):
    """Nothing waits for the job any more."""


class OnCallersThread:
    """Runs everything at once, where it is called; otherwise as `DecisionThread`."""

    async def run(self, work: Callable[[], _Result], urgency: Urgency = Urgency.DECISION, rest: float = 0.0) -> _Result:
        """Runs the work."""
        del urgency, rest
        return work()

    def expecting(self) -> AbstractContextManager[None]:
        """Does nothing."""
        return nullcontext()


class _Job(Generic[_Result]):
    """Some work, and the future on the loop that waits for it."""

    def __init__(self, work: Callable[[], _Result], urgency: Urgency, rest: float, deadline: float) -> None:
        self.urgency = urgency
        self.rest = rest
        self.deadline = deadline
        self.began = 0.0  # when it began to work after its latest rest, or after what went first; 0 before it does
        self._work = work
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[_Result] = self._loop.create_future()

    def run(self, act: Callable[[], None]) -> None:
        """Runs the work; calls `act` wherever it gives way."""
        try:
            with giving_way(act):
                act()
                result = self._work()
        except _AbandonedError:
            return
        except BaseException as error:  # noqa: BLE001 # the caller raises it
            self._settle(self.future.set_exception, error)
        else:
            self._settle(self.future.set_result, result)

    def _settle(self, settle: Callable[[Any], None], result: object) -> None:
        def end() -> None:
            if not self.future.done():
                settle(result)

        # The loop may have ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(end)


class DecisionThread:
    """Owner of the thread and of the jobs that wait for it.

    Args:
        deadline: for how many seconds at most a job that rests waits for a second without a decision
    """

    def __init__(self, deadline: float = DEADLINE_SECONDS) -> None:
        self._deadline = deadline
        self._waiting: list[tuple[Urgency, int, _Job[Any]]] = []
        self._submitted = 0
        self._expected = 0
        self._held = False  # whether a job waits for the end of `expecting`
        # Of the four above.
        self._changed = threading.Condition()
        self._latest_decision = -math.inf
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], _Result], urgency: Urgency = Urgency.DECISION, rest: float = 0.0) -> _Result:
        """Runs the work in the thread, and returns its result. It reads nothing that the event loop changes. If the caller is
        cancelled, it ends where it next gives way.

        `rest`: seconds of rest for each second of work
        """
        if self._thread is None:
            sys.setswitchinterval(_SWITCH_SECONDS)
            # A daemon does not keep the process from ending.
            self._thread = threading.Thread(target=self._run_jobs, name="decisions", daemon=True)
            self._thread.start()
        job = _Job(work, urgency, rest, perf_counter() + self._deadline)
        with self._changed:
            self._submitted += 1
            heappush(self._waiting, (urgency, self._submitted, job))
            self._changed.notify()
        return await job.future

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Holds less urgent jobs while a decision is prepared on the loop, which would wait for the interpreter each time it wakes."""
        self._expected += 1
        try:
            yield
        finally:
            with self._changed:
                self._expected -= 1
                # Otherwise the thread would wake up for nothing before each decision.
                if self._held:
                    self._changed.notify()

    def _run_jobs(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                job = heappop(self._waiting)[2]
            self._run(job)

    def _is_ready(self, urgency: Urgency) -> bool:
        return bool(self._waiting) and self._waiting[0][0] < urgency

    def _run(self, job: _Job[Any]) -> None:
        job.run(lambda: self._give_way(job))
        if job.urgency <= Urgency.DECISION:
            self._latest_decision = perf_counter()

    def _give_way(self, job: _Job[Any]) -> None:
        """Runs what is more urgent, and rests if that is due."""
        rests_until = 0.0
        if job.rest:
            now = perf_counter()
            seconds = now - job.began if job.began else 0.0
            if not job.began or seconds >= _WORK_SECONDS:
                rests_until = now + job.rest * seconds
        # Reading these without the lock may miss what is just submitted; the next time is soon.
        while self._waiting or self._expected or rests_until:
            with self._changed:
                ready = self._is_ready(job.urgency)
                self._held = not ready and self._expected > 0 and job.urgency > Urgency.DECISION
                if self._held:
                    self._changed.wait()
                    self._held = False
                    continue
                if not ready and rests_until:
                    until = max(rests_until, min(self._latest_decision + QUIET_SECONDS, job.deadline))
                    if (left := until - perf_counter()) > 0:
                        self._changed.wait(left)
                        continue
                if not ready:
                    break
                more_urgent = heappop(self._waiting)[2]
            self._run(more_urgent)
            job.began = perf_counter()
        if rests_until:
            job.began = perf_counter()
        if job.future.cancelled():
            raise _AbandonedError


# Where the core's decisions run.
DecisionRunner: TypeAlias = DecisionThread | OnCallersThread


# Too short for a caller to notice.
TURN_SECONDS = 0.005


class Turns:
    """Ends a turn of the event loop when it has taken long enough."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._ends_at = clock() + TURN_SECONDS

    async def end_if_due(self) -> None:
        if self._clock() >= self._ends_at:
            await asyncio.sleep(0)
            self._ends_at = self._clock() + TURN_SECONDS
