"""The queue of the stand-alone scheduler: who is tried when."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from app.scheduler.scheduling_queue import MAX_BACKOFF, MAX_BACKOFF_AFTER_CHANGE, MIN_BACKOFF, SchedulingQueue
from scheduler_core.convert.binding import PendingPod
from scheduler_core.model import kube
from scheduler_core.model.generic import Pod

KEY = ("shop", "web")


def pod(name: str = "web", uid: str = "1", **fields: object) -> PendingPod:
    """A pod that wants a node."""
    return replace(PendingPod(Pod("shop", name, uid=uid), needs_node=True), **fields)  # type: ignore[arg-type]


def drained(queue: SchedulingQueue, now: float) -> list[str]:
    """The names of all pods that are due."""
    found = []
    while (entry := queue.pop(now)) is not None:
        found.append(entry.pod.name)
    return found


def failing_times(queue: SchedulingQueue, attempts: int, *, changes: bool = False) -> list[float]:
    """When a pod is tried, if every attempt fails at once; and something changes right after each."""
    times, now = [], 0.0
    for _ in range(attempts):
        assert queue.pop(now) is not None
        times.append(now)
        queue.back_off(KEY, now)
        if changes:
            queue.shorten_backoffs(now)
        due = queue.next_due()
        assert due is not None
        now = due
    return times


def test_priority_goes_first_then_age_then_name() -> None:
    """Whatever order they came in."""
    queue = SchedulingQueue()
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
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    times = failing_times(queue, 9)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == [MIN_BACKOFF, 2, 4, 8, 16, 32, MAX_BACKOFF, MAX_BACKOFF]


def test_a_change_that_may_help_shortens_the_back_off() -> None:
    """It doubles all the same, to ten seconds instead of sixty."""
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    times = failing_times(queue, 9, changes=True)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == [MIN_BACKOFF, 2, 4, 8, *[MAX_BACKOFF_AFTER_CHANGE] * 4]


def test_a_change_that_may_help_ends_a_back_off_that_has_lasted() -> None:
    """At once, if that is longer ago than the back-off after a change."""
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    last = failing_times(queue, 6)[-1]
    queue.shorten_backoffs(last + 15)
    assert drained(queue, last + 15) == ["web"]


def test_nobody_is_tried_twice_within_a_second() -> None:
    """However much changes."""
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    last = failing_times(queue, 1)[-1]
    queue.shorten_backoffs(last + 0.1)
    queue.shorten_backoffs(last + 0.2)
    assert drained(queue, last + 0.9) == []
    assert drained(queue, last + MIN_BACKOFF) == ["web"]


@pytest.mark.parametrize(("stuck", "seconds"), [(15, 0.06), (20, 0.06), (12, 0.1), (500, 0.1)])
def test_a_young_pod_is_tried_among_many_old_ones_that_fit_nowhere(stuck: int, seconds: float) -> None:
    """Something changes twice a second. It waits for the attempt that goes on, and for one more."""
    queue, now, changed = SchedulingQueue(), 0.0, 0.0
    for number in range(stuck):
        queue.put(pod(f"stuck-{number}", created="2026-01-01T00:00:00Z"), now)
    came = None
    while now < 600:
        if now - changed >= 0.5:
            queue.shorten_backoffs(now)
            changed = now
        if came is None and now >= 300:
            queue.put(pod("young", created="2026-01-02T00:00:00Z"), now)
            came = now
        found = queue.pop(now)
        if found is not None and found.pod.name == "young":
            assert came is not None
            assert now - came <= seconds + 0.01
            return
        now += 0.01 if found is None else seconds
        if found is not None:
            queue.back_off(found.pod.key, now)
    raise AssertionError("it was never tried")


def test_an_old_pod_is_tried_among_ever_new_ones() -> None:
    """As many new ones as can be tried, all the time: every other attempt is for those that were tried before."""
    queue, now = SchedulingQueue(), 0.0
    queue.put(pod("old", created="2026-01-01T00:00:00Z"), now)
    tried = []
    for number in range(200):
        queue.put(pod(f"new-{number}", created="2026-01-02T00:00:00Z"), now)
        found = queue.pop(now)
        assert found is not None
        now += 0.125
        if found.pod.name == "old":
            tried.append(now)
            queue.back_off(found.pod.key, now)
        else:
            queue.discard(found.pod.key)
    assert [later - earlier for earlier, later in pairwise(tried)] == [1.125, 2.125, 4.125, 8.125]


def test_who_was_tried_longest_ago_goes_first() -> None:
    """Whatever their ages; nobody is tried twice before all that are due were tried."""
    queue = SchedulingQueue()
    for name, created in (("a", "2026-01-03"), ("b", "2026-01-02"), ("c", "2026-01-01")):
        queue.put(pod(name, created=created), 0)
        (only,) = drained(queue, 0)
        queue.back_off(("shop", only), {"a": 0.0, "b": 0.2, "c": 0.1}[name])
    assert drained(queue, 5) == ["a", "c", "b"]


def test_priority_goes_before_fairness() -> None:
    """As kube-scheduler has it: who was tried and who was not take turns only among equals."""
    queue = SchedulingQueue()
    for name, priority in (("tried", 1), ("stuck", 2)):
        queue.put(pod(name, priority=priority), 0)
    for name in drained(queue, 0):
        queue.back_off(("shop", name), 0)
    for name, priority in (("urgent", 3), ("fresh-1", 1), ("fresh-2", 1)):
        queue.put(pod(name, priority=priority), 1)
    assert drained(queue, 1) == ["urgent", "stuck", "fresh-1", "tried", "fresh-2"]


def test_a_change_during_an_attempt_is_not_missed() -> None:
    """The attempt may have begun before it."""
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    last = failing_times(queue, 5)[-1] + 16
    assert queue.pop(last) is not None
    queue.shorten_backoffs(last)
    queue.back_off(KEY, last)
    assert queue.next_due() == last + MAX_BACKOFF_AFTER_CHANGE


def test_a_pod_that_is_tried_is_not_tried_again_meanwhile() -> None:
    """Nor is one that has changed."""
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    assert drained(queue, 0) == ["web"]
    queue.put(pod(priority=3), 0)
    assert drained(queue, 100) == []
    assert not queue.is_unchanged(pod())
    assert queue.is_unchanged(pod(priority=3))


def test_an_unchanged_pod_keeps_its_back_off() -> None:
    """A watch repeats itself."""
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    failing_times(queue, 3)
    due = queue.next_due()
    queue.put(pod(), 3.5)
    assert queue.next_due() == due


def test_a_pod_that_was_only_told_why_it_waits_keeps_its_back_off() -> None:
    """Its condition is written after an attempt, and must not cause the next one; nor end one that goes on."""

    def version(number: int, condition: str = "", priority: int = 0) -> PendingPod:
        mounts = kube.Pod("shop", "web", "1", version=number, unschedulable=condition)
        return pod(kube_pod=mounts, priority=priority)

    queue = SchedulingQueue()
    queue.put(version(1), 0)
    failing_times(queue, 3)
    due = queue.next_due()
    assert due is not None
    queue.put(version(2, "since then Unschedulable: why"), 3.5)
    assert queue.next_due() == due
    assert queue.pop(due) == version(2, "since then Unschedulable: why")
    queue.put(version(3, "since then Unschedulable: why else"), due)
    assert queue.is_unchanged(version(2))
    queue.put(version(4, priority=1), due)
    assert not queue.is_unchanged(version(2))


def test_another_pod_of_the_same_name_is_tried_at_once() -> None:
    """What its predecessor went through is not its own."""
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    failing_times(queue, 5)
    queue.put(pod(uid="2"), 16)
    assert drained(queue, 16) == ["web"]
    assert not queue.is_unchanged(pod())


def test_a_discarded_pod_comes_no_more() -> None:
    """Not even if its attempt fails afterwards."""
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    assert queue.pop(0) is not None
    queue.discard(KEY)
    queue.back_off(KEY, 0)
    assert (len(queue), queue.next_due(), drained(queue, 1000)) == (0, None, [])


def test_who_tries_nobody_keeps_no_pod_that_is_gone() -> None:
    """A follower sees pods come and go for months."""
    queue = SchedulingQueue()
    queue.put(pod("stays"), 0)
    for number in range(10_000):
        queue.put(pod(f"web-{number}"), number)
        queue.discard(("shop", f"web-{number}"))
    assert (len(queue), len(queue._active_new) < 200) == (1, True)
    assert drained(queue, 10_000) == ["stays"]
