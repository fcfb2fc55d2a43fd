"""The scheduling queue of the stand-alone scheduler: the order of pods, and when each is tried."""

from itertools import pairwise

import pytest

from app.scheduler.scheduling_queue import SchedulingQueue
from scheduler_core.convert.generic import PendingPod
from scheduler_core.model.kube import Pod
from tests.worlds.timeline import play, rows
from tests.worlds.virtual_time import virtual_loop


def pod(name: str = "web", uid: object = "1", **fields: object) -> PendingPod:
    created = str(fields.pop("created", ""))
    return PendingPod(Pod("shop", name, str(uid), **fields), created=created)  # type: ignore[arg-type]


class World:
    """A queue whose clock begins at 0."""

    def __init__(self) -> None:
        self.queue = SchedulingQueue()
        self._now = virtual_loop().time
        self._began = self._now()

    @property
    def now(self) -> float:
        return round(self._now() - self._began, 3)

    def put(self, name: str = "web", uid: int = 1, **fields: object) -> None:
        self.queue.put(pod(name, uid, **fields), self.now)

    def due(self) -> list[str]:
        """Pops all due pods; returns their names in order."""
        names = []
        while (pending := self.queue.pop(self.now)) is not None:
            names.append(pending.pod.name)
        return names

    def fail(self, *names: str) -> None:
        for name in names or ("web",):
            self.queue.back_off(("shop", name), self.now)

    def change(self) -> None:
        self.queue.shorten_backoffs(self.now)

    def discard(self) -> None:
        self.queue.discard(("shop", "web"))

    def unchanged(self, uid: int = 1, **fields: object) -> bool:
        return self.queue.is_unchanged(pod("web", uid, **fields))

    @property
    def next(self) -> float | None:
        return self.queue.next_due()

    def pauses(self, attempts: int, changes: str = "no") -> list[float]:
        """Tries a pod whenever it is due, and fails at once; returns the pauses. With `changes` something that may help changes
        right after each attempt.
        """
        times = [self.now]
        for _ in range(attempts):
            assert self.queue.pop(times[-1]) is not None
            self.queue.back_off(("shop", "web"), times[-1])
            if changes == "yes":
                self.queue.shorten_backoffs(times[-1])
            times.append(self.queue.next_due() or 0)
        return [later - earlier for earlier, later in pairwise(times)]

    async def end(self) -> None:
        pass


TIMELINES = {
    "pods are ordered by priority, then age, then name": """
        0 put young created=2026-01-02; put b created=2026-01-01; put a created=2026-01-01
        0 put urgent created=2026-01-03 priority=7; due -> urgent a b young
    """,
    "the back-off doubles from a second to a minute": """
        0 put; pauses 8 -> 1 2 4 8 16 32 60 60
    """,
    "a change that may help shortens the back-off": """
        0 put; pauses 8 changes=yes -> 1 2 4 8 10 10 10 10
    """,
    "a change that may help ends a long back-off": """
        0 put; pauses 6 -> 1 2 4 8 16 32
        46 change; due -> web
    """,
    "no pod is tried twice within a second": """
        0 put; due -> web; fail
        0.1 change
        0.2 change
        0.9 due -> none
        1 due -> web
    """,
    "the least recently tried pod goes first": """
        0 put a created=2026-01-03; put b created=2026-01-02; put c created=2026-01-01; due -> c b a; fail a
        0.1 fail c
        0.2 fail b
        5 due -> a c b
    """,
    # New and retried pods take turns only among equal priorities, as in kube-scheduler.
    "priority goes before fairness": """
        0 put tried priority=1; put stuck priority=2; due -> stuck tried; fail stuck tried
        1 put urgent priority=3; put fresh-1 priority=1; put fresh-2 priority=1; due -> urgent stuck fresh-1 tried fresh-2
    """,
    # The attempt may have begun before the change.
    "a change during an attempt shortens the back-off": """
        0 put; pauses 5 -> 1 2 4 8 16
        31 due -> web; change; fail; next -> 41
    """,
    "a pod is not tried again during its attempt": """
        0 put; due -> web; put priority=3
        100 due -> none; unchanged -> no; unchanged priority=3 -> yes
    """,
    "an unchanged pod keeps its back-off": """
        0 put; pauses 3 -> 1 2 4
        3.5 put; next -> 7
    """,
    "a changed condition keeps the back-off, and does not change the pod": """
        0 put version=1; pauses 3 -> 1 2 4
        3.5 put version=2 unschedulable=why; next -> 7
        7 due -> web; put version=3 unschedulable=else; unchanged version=2 -> yes
        7 put version=4 priority=1; unchanged version=2 -> no
    """,
    "a later pod of the same name is tried at once": """
        0 put; pauses 5 -> 1 2 4 8 16
        16 put uid=2; due -> web; unchanged -> no
    """,
    "a discarded pod is not tried again": """
        0 put; due -> web; discard; fail; next -> none; queue.__len__ -> 0
        1000 due -> none
    """,
}


@pytest.mark.parametrize("timeline", rows(TIMELINES))
def test_a_pod_is_tried(timeline: str) -> None:
    play(World, timeline)


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
