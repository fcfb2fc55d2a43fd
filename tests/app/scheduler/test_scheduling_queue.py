"""The scheduling queue of the stand-alone scheduler: the order of pods, and when each is tried."""

from itertools import pairwise

import pytest

from app.scheduler.scheduling_queue import MAX_BACKOFF, MAX_BACKOFF_AFTER_CHANGE, MIN_BACKOFF, SchedulingQueue
from scheduler_core.convert.generic import PendingPod
from scheduler_core.model.kube import Pod

KEY = ("shop", "web")


def pod(name: str = "web", uid: str = "1", **fields: object) -> PendingPod:
    created = str(fields.pop("created", ""))
    return PendingPod(Pod("shop", name, uid, **fields), created=created)  # type: ignore[arg-type]


def pop_due(queue: SchedulingQueue, now: float) -> list[str]:
    """Pops all due pods; returns their names in order."""
    names = []
    while (pending := queue.pop(now)) is not None:
        names.append(pending.pod.name)
    return names


def fail_attempts(queue: SchedulingQueue, attempts: int, *, changes: bool = False) -> list[float]:
    """Tries a pod whenever it is due, and fails at once; returns the times of the attempts.

    With `changes` something that may help changes right after each attempt.
    """
    times = []
    now = 0.0
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


def test_pods_are_ordered_by_priority_then_age_then_name() -> None:
    queue = SchedulingQueue()
    for pending in (
        pod("young", created="2026-01-02T00:00:00Z"),
        pod("b", created="2026-01-01T00:00:00Z"),
        pod("a", created="2026-01-01T00:00:00Z"),
        pod("urgent", created="2026-01-03T00:00:00Z", priority=7),
    ):
        queue.put(pending, 0)
    assert pop_due(queue, 0) == ["urgent", "a", "b", "young"]


def test_the_back_off_doubles_from_a_second_to_a_minute() -> None:
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    times = fail_attempts(queue, 9)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == [MIN_BACKOFF, 2, 4, 8, 16, 32, MAX_BACKOFF, MAX_BACKOFF]


def test_a_change_that_may_help_shortens_the_back_off() -> None:
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    times = fail_attempts(queue, 9, changes=True)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == [MIN_BACKOFF, 2, 4, 8, *[MAX_BACKOFF_AFTER_CHANGE] * 4]


def test_a_change_that_may_help_ends_a_long_back_off() -> None:
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    last = fail_attempts(queue, 6)[-1]
    queue.shorten_backoffs(last + 15)
    assert pop_due(queue, last + 15) == ["web"]


def test_no_pod_is_tried_twice_within_a_second() -> None:
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    last = fail_attempts(queue, 1)[-1]
    queue.shorten_backoffs(last + 0.1)
    queue.shorten_backoffs(last + 0.2)
    assert pop_due(queue, last + 0.9) == []
    assert pop_due(queue, last + MIN_BACKOFF) == ["web"]


@pytest.mark.parametrize(("stuck", "seconds"), [(15, 0.06), (20, 0.06), (12, 0.1), (500, 0.1)])
def test_many_unschedulable_pods_do_not_delay_a_new_pod(stuck: int, seconds: float) -> None:
    queue = SchedulingQueue()
    now = 0.0
    changed_at = 0.0
    for number in range(stuck):
        queue.put(pod(f"stuck-{number}", created="2026-01-01T00:00:00Z"), now)
    added_at = None
    while now < 600:
        if now - changed_at >= 0.5:
            queue.shorten_backoffs(now)
            changed_at = now
        if added_at is None and now >= 300:
            queue.put(pod("young", created="2026-01-02T00:00:00Z"), now)
            added_at = now
        pending = queue.pop(now)
        if pending is not None and pending.pod.name == "young":
            assert added_at is not None
            assert now - added_at <= seconds + 0.01
            return
        now += 0.01 if pending is None else seconds
        if pending is not None:
            queue.back_off(pending.pod.namespaced_name, now)
    raise AssertionError("it was never tried")


def test_many_new_pods_do_not_starve_a_retried_pod() -> None:
    queue = SchedulingQueue()
    now = 0.0
    queue.put(pod("old", created="2026-01-01T00:00:00Z"), now)
    attempts = []
    for number in range(200):
        queue.put(pod(f"new-{number}", created="2026-01-02T00:00:00Z"), now)
        pending = queue.pop(now)
        assert pending is not None
        now += 0.125
        if pending.pod.name == "old":
            attempts.append(now)
            queue.back_off(pending.pod.namespaced_name, now)
        else:
            queue.discard(pending.pod.namespaced_name)
    assert [later - earlier for earlier, later in pairwise(attempts)] == [1.125, 2.125, 4.125, 8.125]


def test_the_least_recently_tried_pod_goes_first() -> None:
    queue = SchedulingQueue()
    for name, created in (("a", "2026-01-03"), ("b", "2026-01-02"), ("c", "2026-01-01")):
        queue.put(pod(name, created=created), 0)
        (only,) = pop_due(queue, 0)
        queue.back_off(("shop", only), {"a": 0.0, "b": 0.2, "c": 0.1}[name])
    assert pop_due(queue, 5) == ["a", "c", "b"]


def test_priority_goes_before_fairness() -> None:
    """New and retried pods take turns only among equal priorities, as in kube-scheduler."""
    queue = SchedulingQueue()
    for name, priority in (("tried", 1), ("stuck", 2)):
        queue.put(pod(name, priority=priority), 0)
    for name in pop_due(queue, 0):
        queue.back_off(("shop", name), 0)
    for name, priority in (("urgent", 3), ("fresh-1", 1), ("fresh-2", 1)):
        queue.put(pod(name, priority=priority), 1)
    assert pop_due(queue, 1) == ["urgent", "stuck", "fresh-1", "tried", "fresh-2"]


def test_a_change_during_an_attempt_shortens_the_back_off() -> None:
    """The attempt may have begun before the change."""
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    last = fail_attempts(queue, 5)[-1] + 16
    assert queue.pop(last) is not None
    queue.shorten_backoffs(last)
    queue.back_off(KEY, last)
    assert queue.next_due() == last + MAX_BACKOFF_AFTER_CHANGE


def test_a_pod_is_not_tried_again_during_its_attempt() -> None:
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    assert pop_due(queue, 0) == ["web"]
    queue.put(pod(priority=3), 0)
    assert pop_due(queue, 100) == []
    assert not queue.is_unchanged(pod())
    assert queue.is_unchanged(pod(priority=3))


def test_an_unchanged_pod_keeps_its_back_off() -> None:
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    fail_attempts(queue, 3)
    due = queue.next_due()
    queue.put(pod(), 3.5)
    assert queue.next_due() == due


def test_a_changed_condition_keeps_the_back_off() -> None:
    def version(number: int, condition: str = "", priority: int = 0) -> PendingPod:
        return pod(version=number, unschedulable=condition, priority=priority)

    queue = SchedulingQueue()
    queue.put(version(1), 0)
    fail_attempts(queue, 3)
    due = queue.next_due()
    assert due is not None
    queue.put(version(2, "since then Unschedulable: why"), 3.5)
    assert queue.next_due() == due
    assert queue.pop(due) == version(2, "since then Unschedulable: why")
    queue.put(version(3, "since then Unschedulable: why else"), due)
    assert queue.is_unchanged(version(2))
    queue.put(version(4, priority=1), due)
    assert not queue.is_unchanged(version(2))


def test_a_later_pod_of_the_same_name_is_tried_at_once() -> None:
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    fail_attempts(queue, 5)
    queue.put(pod(uid="2"), 16)
    assert pop_due(queue, 16) == ["web"]
    assert not queue.is_unchanged(pod())


def test_a_discarded_pod_is_not_tried_again() -> None:
    queue = SchedulingQueue()
    queue.put(pod(), 0)
    assert queue.pop(0) is not None
    queue.discard(KEY)
    queue.back_off(KEY, 0)
    assert (len(queue), queue.next_due(), pop_due(queue, 1000)) == (0, None, [])
