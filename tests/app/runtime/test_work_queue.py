"""The keyed work queue, in virtual time."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from app.kube.client import ApiError
from app.runtime.work_queue import BACKOFFS, Requeue, WorkQueue, jitter
from scheduler_core.backoff import Backoff
from scheduler_core.errors import CoreError
from tests.worlds.timeline import play, rows
from tests.worlds.virtual_time import run, virtual_loop

Handle = Callable[[str], Awaitable[Requeue | None]]
CONFLICT = ApiError("PUT /x", 409, "Conflict", "another writer was faster")


class RecordingObserver:
    """Records what a queue reports."""

    def __init__(self) -> None:
        self.depths: list[int] = []
        self.retries: list[Requeue] = []
        self.durations: list[float] = []

    def depth(self, _controller: str, keys: int) -> None:
        self.depths.append(keys)

    def note_retry(self, _controller: str, why: Requeue) -> None:
        self.retries.append(why)

    def note_reconciliation(self, _controller: str, seconds: float) -> None:
        self.durations.append(seconds)


def run_queue(
    handle: Handle, seconds: float, *, workers: int = 2, then: Callable[[WorkQueue[str]], Awaitable[None]] | None = None
) -> RecordingObserver:
    """Runs a queue for some seconds; `then` adds keys meanwhile."""
    observer = RecordingObserver()

    async def run_for() -> None:
        queue = WorkQueue("test", handle, observer, workers=workers, random=lambda: 0.999999)
        queue.add("a")
        running = asyncio.create_task(queue.run())
        if then is not None:
            await then(queue)
        await asyncio.sleep(seconds)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with capture_logs():  # failures are logged with their tracebacks
        run(run_for())
    return observer


def call_times(outcome: Callable[[], Requeue | None], seconds: float) -> list[float]:
    """When a key is reconciled whose every call ends with this outcome."""
    times: list[float] = []

    async def handle(key: str) -> Requeue | None:
        times.append(asyncio.get_running_loop().time())
        return outcome()

    run_queue(handle, seconds)
    return times


def raising(error: Exception) -> Callable[[], Requeue | None]:
    """An outcome that is an error."""

    def outcome() -> Requeue | None:
        raise error

    return outcome


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (lambda: Requeue.WAITING, Requeue.WAITING),
        (raising(CONFLICT), Requeue.CONFLICT),
        (raising(ApiError("PUT /x", 404, "NotFound", "gone")), Requeue.CONFLICT),
        (raising(ApiError("PUT /x", 0, "", "no answer")), Requeue.FAILED),
        (raising(ApiError("PUT /x", 403, "Forbidden", "no")), Requeue.FAILED),
        (raising(CoreError("a bad object")), Requeue.FAILED),
        (raising(ZeroDivisionError()), Requeue.FAILED),
    ],
)
def test_each_outcome_has_a_back_off_that_doubles_up_to_a_bound(
    outcome: Callable[[], Requeue | None], why: Requeue
) -> None:
    times = call_times(outcome, 1000)
    pauses = [after - before for before, after in pairwise(times)]
    backoff = BACKOFFS[why]
    expected = [min(backoff.longest, backoff.shortest * 2**attempt) for attempt in range(len(pauses))]
    assert pauses == pytest.approx(expected, rel=1e-3)
    assert pauses[-1] == pytest.approx(backoff.longest, rel=1e-3)


def test_one_success_resets_the_back_off() -> None:
    outcomes = [Requeue.CONFLICT, Requeue.CONFLICT, Requeue.CONFLICT, None, Requeue.CONFLICT, None]
    times: list[float] = []

    async def handle(key: str) -> Requeue | None:
        times.append(asyncio.get_running_loop().time())
        return outcomes.pop(0)

    async def then(queue: WorkQueue[str]) -> None:
        await asyncio.sleep(5)
        queue.add("a")

    observer = run_queue(handle, 5, then=then)
    shortest = BACKOFFS[Requeue.CONFLICT].shortest
    assert times[3] - times[2] == pytest.approx(4 * shortest, rel=1e-3)
    assert times[5] - times[4] == pytest.approx(shortest, rel=1e-3)
    assert observer.retries == [Requeue.CONFLICT] * 4


def test_a_key_that_always_fails_does_not_delay_others() -> None:
    calls: dict[str, int] = defaultdict(int)

    async def handle(key: str) -> Requeue | None:
        calls[key] += 1
        if key == "a":
            raise ZeroDivisionError
        return None

    async def then(queue: WorkQueue[str]) -> None:
        for number in range(20):
            queue.add(f"b{number}")
            await asyncio.sleep(0.1)

    run_queue(handle, 1, workers=1, then=then)
    assert all(calls[f"b{number}"] == 1 for number in range(20))
    assert calls["a"] > 1


def test_a_stopped_queue_leaves_no_timers_and_no_keys() -> None:
    async def handle(key: str) -> Requeue | None:
        return Requeue.WAITING

    async def run_for() -> None:
        queue = WorkQueue("test", handle, RecordingObserver(), workers=1, random=lambda: 0.0)
        running = asyncio.create_task(queue.run())
        queue.add("a")
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(100)
        assert len(queue) == 0

    run(run_for())


def test_a_delay_is_spread_over_its_upper_half() -> None:
    delays = [Backoff(1.0, 8.0).delay(attempt) for attempt in range(5)]
    assert [jitter(delay, 0.0) for delay in delays] == [0.5, 1.0, 2.0, 4.0, 4.0]
    assert [jitter(delay, 1.0) for delay in delays] == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert jitter(Backoff(1.0, 8.0).delay(10_000), 0.5) == 6.0


class LastFirst(WorkQueue[str]):
    """A queue with every part that a subclass may change."""

    backoffs = dict.fromkeys(Requeue, Backoff(10.0, 10.0))
    events_end_delays = False

    def choose(self, due: Collection[str]) -> str:
        return list(due)[-1]


class World:
    """A queue whose keys take some seconds each. The first call ends with the outcome."""

    def __init__(self, kind: str = "plain", *, workers: int = 1, seconds: float = 0.0, outcome: str = "") -> None:
        create = LastFirst if kind == "last-first" else WorkQueue
        self.observer = RecordingObserver()
        self.queue = create("test", self._handle, self.observer, workers=workers, random=lambda: 0.999999)
        self.max_busy = 0
        self._seconds = seconds
        self._outcomes = [Requeue[outcome]] if outcome else []
        self._calls: list[tuple[str, float]] = []
        self._busy = 0
        self._clock = virtual_loop().time

    async def _handle(self, key: str) -> Requeue | None:
        self._calls.append((key, self._clock()))
        self._busy += 1
        self.max_busy = max(self.max_busy, self._busy)
        await asyncio.sleep(self._seconds)
        self._busy -= 1
        return self._outcomes.pop() if self._outcomes else None

    def add(self, *keys: str) -> None:
        for key in keys:
            self.queue.add(key)

    def sweep(self, *keys: str) -> None:
        self.queue.add_sweep(keys)

    def run(self) -> None:
        self._running = asyncio.create_task(self.queue.run())

    def handled(self) -> list[str]:
        return [key for key, _ in self._calls]

    def times(self, key: str = "a") -> list[float]:
        return [at for called, at in self._calls if called == key]

    def depths(self) -> list[int]:
        """The greatest number of keys, and the last one."""
        return [max(self.observer.depths), self.observer.depths[-1]]

    async def end(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


TIMELINES = {
    "a key is never in work twice and is reconciled again if it changed meanwhile": """
        0 world workers=4 seconds=1; add a; run
        0.5 add a a
        10 max_busy -> 1; handled -> a a
    """,
    "changed keys come before those of a sweep": """
        0 world seconds=1; add a; sweep s1 s2 s3 s4; run
        1.5 add new s4
        20 handled -> a s1 new s4 s2 s3
    """,
    "different keys are in work at the same time up to the number of workers": """
        0 world workers=3 seconds=1; add a b c d e; run
        10 max_busy -> 3; depths -> 5 0; observer.durations -> 1 1 1 1 1
    """,
    "an event ends a back-off": """
        0 world outcome=WAITING; add a; run
        0.1 add a
        100 times -> 0 0.1
    """,
    "an event ends a delay": """
        # A subclass may decide otherwise.
        0 add a; queue.add_later a 5; run
        1 add a
        30 times -> 0 1
    """,
    "a subclass chooses the next key": """
        0 world last-first; add b c d; run
        1 add a
        1.5 handled -> d c b a
    """,
    "a subclass has back-offs of its own": """
        0 world last-first outcome=FAILED; add b; run
        30 times b -> 0 10
    """,
    "in a subclass a delay may outlive an event": """
        0 world last-first; queue.add_later a 5; queue.add_later a 7; run
        1 add a
        30 times -> 1 5
    """,
}


@pytest.mark.parametrize("timeline", rows(TIMELINES))
def test_keys_are_reconciled_in_turn(timeline: str) -> None:
    play(World, timeline)
