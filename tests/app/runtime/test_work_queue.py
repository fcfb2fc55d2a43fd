"""The keyed work queue, in virtual time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from app.kube.client import ApiError
from app.runtime.work_queue import PACES, Again, Pace, WorkQueue
from scheduler_core.errors import CoreError
from tests.worlds.virtual_time import run

Handle = Callable[[str], Awaitable[Again | None]]
CONFLICT = ApiError("PUT /x", 409, "Conflict", "somebody was faster")


class Counted:
    """What a queue tells its watcher."""

    def __init__(self) -> None:
        self.depths: list[int] = []
        self.retries: list[Again] = []
        self.durations: list[float] = []

    def depth(self, _controller: str, keys: int) -> None:
        """So many keys are due or in work."""
        self.depths.append(keys)

    def retried(self, _controller: str, why: Again) -> None:
        """One more look is due."""
        self.retries.append(why)

    def reconciled(self, _controller: str, seconds: float) -> None:
        """One look is over."""
        self.durations.append(seconds)


def worked(
    handle: Handle, seconds: float, *, workers: int = 2, then: Callable[[WorkQueue], Awaitable[None]] | None = None
) -> Counted:
    """Runs a queue for some seconds; `then` adds keys meanwhile."""
    counted = Counted()

    async def play() -> None:
        queue = WorkQueue("test", handle, counted, workers=workers, random=lambda: 0.999999)
        queue.add("a")
        running = asyncio.create_task(queue.run())
        if then is not None:
            await then(queue)
        await asyncio.sleep(seconds)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with capture_logs():  # failures are told, with their tracebacks
        run(play())
    return counted


def moments(outcome: Callable[[], Again | None], seconds: float) -> list[float]:
    """When a key is looked at whose every look ends alike."""
    found: list[float] = []

    async def handle(key: str) -> Again | None:
        found.append(asyncio.get_running_loop().time())
        return outcome()

    worked(handle, seconds)
    return found


def raising(error: Exception) -> Callable[[], Again | None]:
    """An outcome that is an error."""

    def outcome() -> Again | None:
        raise error

    return outcome


def test_a_key_is_never_in_work_twice_and_is_looked_at_again_if_it_changed_meanwhile() -> None:
    """However many workers there are: two changes during one look make one more look."""
    busy, most, looks = 0, 0, 0

    async def handle(key: str) -> Again | None:
        nonlocal busy, most, looks
        busy, looks = busy + 1, looks + 1
        most = max(most, busy)
        await asyncio.sleep(1)
        busy -= 1
        return None

    async def then(queue: WorkQueue) -> None:
        await asyncio.sleep(0.5)
        queue.add("a")
        queue.add("a")

    worked(handle, 10, workers=4, then=then)
    assert (most, looks) == (1, 2)


def test_different_keys_are_in_work_at_the_same_time_up_to_the_number_of_workers() -> None:
    """Five keys, three workers."""
    busy, most = 0, 0

    async def handle(key: str) -> Again | None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(1)
        busy -= 1
        return None

    async def then(queue: WorkQueue) -> None:
        for key in "bcde":
            queue.add(key)

    counted = worked(handle, 10, workers=3, then=then)
    assert most == 3
    assert max(counted.depths) == 5
    assert counted.depths[-1] == 0
    assert counted.durations == [1.0] * 5


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (lambda: Again.WAITING, Again.WAITING),
        (raising(CONFLICT), Again.CONFLICT),
        (raising(ApiError("PUT /x", 404, "NotFound", "gone")), Again.CONFLICT),
        (raising(ApiError("PUT /x", 0, "", "no answer")), Again.FAILED),
        (raising(ApiError("PUT /x", 403, "Forbidden", "no")), Again.FAILED),
        (raising(CoreError("a bad object")), Again.FAILED),
        (raising(ZeroDivisionError()), Again.FAILED),
    ],
)
def test_each_outcome_has_its_pace_which_doubles_up_to_a_bound(outcome: Callable[[], Again | None], why: Again) -> None:
    """And no outcome, whatever it is, ends the queue."""
    found = moments(outcome, 1000)
    pauses = [after - before for before, after in pairwise(found)]
    pace = PACES[why]
    expected = [min(pace.longest, pace.shortest * 2**attempt) for attempt in range(len(pauses))]
    assert pauses == pytest.approx(expected, rel=1e-3)
    assert pauses[-1] == pytest.approx(pace.longest, rel=1e-3)


def test_one_quiet_look_resets_the_pace() -> None:
    """Three conflicts, a quiet look, and the next conflict waits shortly again."""
    outcomes = [Again.CONFLICT, Again.CONFLICT, Again.CONFLICT, None, Again.CONFLICT, None]
    found: list[float] = []

    async def handle(key: str) -> Again | None:
        found.append(asyncio.get_running_loop().time())
        return outcomes.pop(0)

    async def then(queue: WorkQueue) -> None:
        await asyncio.sleep(5)
        queue.add("a")

    counted = worked(handle, 5, then=then)
    shortest = PACES[Again.CONFLICT].shortest
    assert found[3] - found[2] == pytest.approx(4 * shortest, rel=1e-3)
    assert found[5] - found[4] == pytest.approx(shortest, rel=1e-3)
    assert counted.retries == [Again.CONFLICT] * 4


def test_an_event_ends_a_pause() -> None:
    """A key that waits is looked at as soon as something happens to it, once."""
    found: list[float] = []

    async def handle(key: str) -> Again | None:
        found.append(asyncio.get_running_loop().time())
        return Again.WAITING if len(found) == 1 else None

    async def then(queue: WorkQueue) -> None:
        await asyncio.sleep(0.1)
        queue.add("a")

    worked(handle, 100, then=then)
    assert found == pytest.approx([0.0, 0.1])


def test_a_key_that_always_fails_does_not_keep_the_others_waiting() -> None:
    """With one worker."""
    looks: dict[str, int] = defaultdict(int)

    async def handle(key: str) -> Again | None:
        looks[key] += 1
        if key == "a":
            raise ZeroDivisionError
        return None

    async def then(queue: WorkQueue) -> None:
        for number in range(20):
            queue.add(f"b{number}")
            await asyncio.sleep(0.1)

    worked(handle, 1, workers=1, then=then)
    assert all(looks[f"b{number}"] == 1 for number in range(20))
    assert looks["a"] > 1


def test_work_that_is_ended_leaves_no_timers_and_no_keys() -> None:
    """Who begins again looks at everything, so nothing old may come back."""

    async def handle(key: str) -> Again | None:
        return Again.WAITING

    async def play() -> None:
        queue = WorkQueue("test", handle, Counted(), workers=1, random=lambda: 0.0)
        running = asyncio.create_task(queue.run())
        queue.add("a")
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(100)
        assert len(queue) == 0

    run(play())


def test_a_pause_is_spread_over_its_upper_half() -> None:
    """So that those who met do not meet again."""
    pace = Pace(1.0, 8.0)
    assert [pace.seconds(attempt, 0.0) for attempt in range(5)] == [0.5, 1.0, 2.0, 4.0, 4.0]
    assert [pace.seconds(attempt, 1.0) for attempt in range(5)] == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert pace.seconds(10_000, 0.5) == 6.0
