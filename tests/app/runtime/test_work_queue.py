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
from tests.worlds.virtual_time import run

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


def test_a_key_is_never_in_work_twice_and_is_reconciled_again_if_it_changed_meanwhile() -> None:
    busy = 0
    max_busy = 0
    calls = 0

    async def handle(key: str) -> Requeue | None:
        nonlocal busy, max_busy, calls
        busy += 1
        calls += 1
        max_busy = max(max_busy, busy)
        await asyncio.sleep(1)
        busy -= 1
        return None

    async def then(queue: WorkQueue[str]) -> None:
        await asyncio.sleep(0.5)
        queue.add("a")
        queue.add("a")

    run_queue(handle, 10, workers=4, then=then)
    assert (max_busy, calls) == (1, 2)


def test_changed_keys_come_before_those_of_a_sweep() -> None:
    handled: list[str] = []

    async def handle(key: str) -> Requeue | None:
        handled.append(key)
        await asyncio.sleep(1)
        return None

    async def then(queue: WorkQueue[str]) -> None:
        queue.add_sweep(["s1", "s2", "s3", "s4"])
        await asyncio.sleep(1.5)
        queue.add("new")
        queue.add("s4")

    run_queue(handle, 20, workers=1, then=then)
    assert handled == ["a", "s1", "new", "s4", "s2", "s3"]


def test_different_keys_are_in_work_at_the_same_time_up_to_the_number_of_workers() -> None:
    busy = 0
    max_busy = 0

    async def handle(key: str) -> Requeue | None:
        nonlocal busy, max_busy
        busy += 1
        max_busy = max(max_busy, busy)
        await asyncio.sleep(1)
        busy -= 1
        return None

    async def then(queue: WorkQueue[str]) -> None:
        for key in "bcde":
            queue.add(key)

    observer = run_queue(handle, 10, workers=3, then=then)
    assert max_busy == 3
    assert max(observer.depths) == 5
    assert observer.depths[-1] == 0
    assert observer.durations == [1.0] * 5


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


def test_an_event_ends_a_back_off() -> None:
    times: list[float] = []

    async def handle(key: str) -> Requeue | None:
        times.append(asyncio.get_running_loop().time())
        return Requeue.WAITING if len(times) == 1 else None

    async def then(queue: WorkQueue[str]) -> None:
        await asyncio.sleep(0.1)
        queue.add("a")

    run_queue(handle, 100, then=then)
    assert times == pytest.approx([0.0, 0.1])


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


def call_times_of_subclass(
    seconds: float, then: Callable[[WorkQueue[str]], Awaitable[None]], *outcomes: Requeue
) -> dict[str, list[float]]:
    """When each key of a subclass's queue is reconciled, with these outcomes first."""
    call_times: dict[str, list[float]] = defaultdict(list)
    remaining = list(outcomes)

    async def handle(key: str) -> Requeue | None:
        call_times[key].append(asyncio.get_running_loop().time())
        return remaining.pop(0) if remaining else None

    async def run_for() -> None:
        queue = LastFirst("test", handle, RecordingObserver(), workers=1, random=lambda: 0.999999)
        await then(queue)
        running = asyncio.create_task(queue.run())
        await asyncio.sleep(1)
        queue.add("a")
        await asyncio.sleep(seconds)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(run_for())
    return call_times


def test_a_subclass_chooses_the_next_key() -> None:
    async def then(queue: WorkQueue[str]) -> None:
        for key in "bcd":
            queue.add(key)

    assert list(call_times_of_subclass(0.5, then)) == ["d", "c", "b", "a"]


def test_a_subclass_has_back_offs_of_its_own() -> None:
    async def then(queue: WorkQueue[str]) -> None:
        queue.add("b")

    assert call_times_of_subclass(30, then, Requeue.FAILED)["b"] == pytest.approx([0.0, 10.0])


def test_in_a_subclass_a_delay_may_outlive_an_event() -> None:
    async def then(queue: WorkQueue[str]) -> None:
        queue.add_later("a", 5)
        queue.add_later("a", 7)

    assert call_times_of_subclass(30, then)["a"] == pytest.approx([1.0, 5.0])


def test_an_event_ends_a_delay() -> None:
    """A subclass may decide otherwise."""
    times: list[float] = []

    async def handle(key: str) -> Requeue | None:
        times.append(asyncio.get_running_loop().time())
        return None

    async def then(queue: WorkQueue[str]) -> None:
        queue.add_later("a", 5)
        await asyncio.sleep(1)
        queue.add("a")

    run_queue(handle, 30, then=then)
    assert times == pytest.approx([0.0, 1.0])
