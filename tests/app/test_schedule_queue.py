"""The queue of the stand-alone scheduler: who is tried when."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from app.scheduler.queue import LONGEST, SHORTEST, Queue
from scheduler_core.convert.binding import Applicant
from scheduler_core.generic.model import Pod
from scheduler_core.model import kube

KEY = ("shop", "web")


def pod(name: str = "web", uid: str = "1", **fields: object) -> Applicant:
    """A pod that wants a node."""
    return replace(Applicant(Pod("shop", name, uid=uid), waits=True), **fields)  # type: ignore[arg-type]


def drained(queue: Queue, now: float) -> list[str]:
    """The names of all pods that are due."""
    found = []
    while (entry := queue.pop(now)) is not None:
        found.append(entry.pod.name)
    return found


def failing_times(queue: Queue, attempts: int) -> list[float]:
    """When a pod is tried, if every attempt fails at once."""
    times, now = [], 0.0
    for _ in range(attempts):
        assert queue.pop(now) is not None
        times.append(now)
        queue.failed(KEY, now)
        due = queue.next_at()
        assert due is not None
        now = due
    return times


def test_priority_goes_first_then_age_then_name() -> None:
    """Whatever order they came in."""
    queue = Queue()
    for entry in (
        pod("young", created="2026-01-02T00:00:00Z"),
        pod("b", created="2026-01-01T00:00:00Z"),
        pod("a", created="2026-01-01T00:00:00Z"),
        pod("urgent", created="2026-01-03T00:00:00Z", priority=7),
    ):
        queue.put(entry, 0)
    assert drained(queue, 0) == ["urgent", "a", "b", "young"]


def test_the_back_off_doubles_from_a_second_to_a_minute() -> None:
    """Per pod."""
    queue = Queue()
    queue.put(pod(), 0)
    times = failing_times(queue, 9)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == [SHORTEST, 2, 4, 8, 16, 32, LONGEST, LONGEST]


def test_a_change_that_may_help_ends_the_back_off() -> None:
    """At once, if the last attempt is a second ago."""
    queue = Queue()
    queue.put(pod(), 0)
    last = failing_times(queue, 5)[-1]
    queue.hurry(last + 5)
    assert drained(queue, last + 5) == ["web"]


def test_nobody_is_tried_twice_within_a_second() -> None:
    """However much changes."""
    queue = Queue()
    queue.put(pod(), 0)
    last = failing_times(queue, 5)[-1]
    queue.hurry(last + 0.1)
    queue.hurry(last + 0.2)
    assert drained(queue, last + 0.9) == []
    assert drained(queue, last + SHORTEST) == ["web"]


def test_a_change_during_an_attempt_is_not_missed() -> None:
    """The attempt may have begun before it."""
    queue = Queue()
    queue.put(pod(), 0)
    last = failing_times(queue, 5)[-1] + 16
    assert queue.pop(last) is not None
    queue.hurry(last)
    queue.failed(KEY, last)
    assert queue.next_at() == last + SHORTEST


def test_a_pod_that_is_tried_is_not_tried_again_meanwhile() -> None:
    """Nor is one that has changed."""
    queue = Queue()
    queue.put(pod(), 0)
    assert drained(queue, 0) == ["web"]
    queue.put(pod(priority=3), 0)
    assert drained(queue, 100) == []
    assert not queue.wanted(pod())
    assert queue.wanted(pod(priority=3))


def test_an_unchanged_pod_keeps_its_back_off() -> None:
    """A watch repeats itself."""
    queue = Queue()
    queue.put(pod(), 0)
    failing_times(queue, 3)
    due = queue.next_at()
    queue.put(pod(), 3.5)
    assert queue.next_at() == due


def test_a_pod_that_was_only_told_why_it_waits_keeps_its_back_off() -> None:
    """Its condition is written after an attempt, and must not cause the next one; nor end one that goes on."""

    def version(number: int, condition: str = "", priority: int = 0) -> Applicant:
        mounts = kube.Pod("shop", "web", "1", version=number, unschedulable=condition)
        return pod(mounts=mounts, priority=priority)

    queue = Queue()
    queue.put(version(1), 0)
    failing_times(queue, 3)
    due = queue.next_at()
    assert due is not None
    queue.put(version(2, "since then Unschedulable: why"), 3.5)
    assert queue.next_at() == due
    assert queue.pop(due) == version(2, "since then Unschedulable: why")
    queue.put(version(3, "since then Unschedulable: why else"), due)
    assert queue.wanted(version(2))
    queue.put(version(4, priority=1), due)
    assert not queue.wanted(version(2))


def test_another_pod_of_the_same_name_is_tried_at_once() -> None:
    """What its predecessor went through is not its own."""
    queue = Queue()
    queue.put(pod(), 0)
    failing_times(queue, 5)
    queue.put(pod(uid="2"), 16)
    assert drained(queue, 16) == ["web"]
    assert not queue.wanted(pod())


def test_a_discarded_pod_comes_no_more() -> None:
    """Not even if its attempt fails afterwards."""
    queue = Queue()
    queue.put(pod(), 0)
    assert queue.pop(0) is not None
    queue.discard(KEY)
    queue.failed(KEY, 0)
    assert (len(queue), queue.next_at(), drained(queue, 1000)) == (0, None, [])
