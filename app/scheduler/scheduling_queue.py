"""Which pod is tried next.

Pods that need a node wait in the queue, by priority. Pods that no node fits are tried again after a back-off. Among pods of equal priority,
new pods, by age, and retried pods, the least recently tried first, take turns. So neither many unschedulable pods nor many new ones keep a
pod from being tried.

Time is passed in, in seconds of any clock that never goes back. A back-off doubles from `MIN_BACKOFF` to `MAX_BACKOFF`. After a
change that may help (`shorten_backoffs`) it doubles to `MAX_BACKOFF_AFTER_CHANGE`. It does not end at once: something always
changes in a busy cluster, and an unschedulable pod must not be tried all the time because of that. A change during an attempt counts
as one after it, because the attempt may have begun before the change.
"""

from __future__ import annotations

import heapq
from typing import Final

from msgspec import Struct

from scheduler_core.backoff import Backoff
from scheduler_core.convert.generic import PendingPod
from scheduler_core.model.generic import PodKey
from scheduler_core.values import replace

MIN_BACKOFF: Final = 1.0
# As kube-scheduler's back-off (podMaxBackoffSeconds).
MAX_BACKOFF_AFTER_CHANGE: Final = 10.0
MAX_BACKOFF: Final = 60.0
_BACKOFF: Final = Backoff(MIN_BACKOFF, MAX_BACKOFF)
_BACKOFF_AFTER_CHANGE: Final = Backoff(MIN_BACKOFF, MAX_BACKOFF_AFTER_CHANGE)
_NEVER: Final = -float("inf")
_MAX_OUTDATED_ENTRIES: Final = 100

_SortKey = tuple[int, float, str, PodKey]
_ActiveQueue = list[tuple[_SortKey, int]]


class _QueuedPod(Struct):
    """A pod that needs a node."""

    pending: PendingPod
    stamp: int  # identifies the valid entry of the heaps among all entries of the pod
    due: float | None  # when it is to be tried; None during an attempt
    attempts: int = 0  # how many attempts have failed
    last_attempt: float = _NEVER  # when the latest of them failed
    changed: bool = False  # whether something that may help has changed during the attempt

    @property
    def sort_key(self) -> _SortKey:
        priority, age, key = self.pending.queue_key
        return priority, self.last_attempt, age, key

    def delay(self, backoff: Backoff) -> float:
        return backoff.delay(max(0, self.attempts - 1))


class SchedulingQueue:
    """The pods that need a node."""

    def __init__(self) -> None:
        self.pods: dict[PodKey, _QueuedPod] = {}
        self._active_new: _ActiveQueue = []
        self._active_retried: _ActiveQueue = []
        self._retried_next = False
        self._backoff_queue: list[tuple[float, int, PodKey]] = []
        self._stamp = 0

    def __len__(self) -> int:
        """The number of pods that need a node, those being tried included."""
        return len(self.pods)

    def put(self, pending: PendingPod, now: float) -> None:
        """Adds or updates a pod. A new pod is tried at once, even if there was one of its name."""
        key = pending.pod.namespaced_name
        queued = self.pods.get(key)
        if queued is None or queued.pending.pod.uid != pending.pod.uid:
            queued = _QueuedPod(pending, 0, now)
            self._enqueue(queued, now)
            self.pods[key] = queued
            return
        changed = not _schedules_alike(queued.pending, pending)
        queued.pending = pending
        if changed:
            self._shorten_backoff(queued, now)

    def discard(self, key: PodKey) -> None:
        self.pods.pop(key, None)

    def pop(self, now: float) -> PendingPod | None:
        """Returns the next pod to try, None if no pod is due. `back_off` or `discard` ends the attempt."""
        while self._backoff_queue and self._backoff_queue[0][0] <= now:
            _, stamp, key = heapq.heappop(self._backoff_queue)
            if (queued := self._valid(key, stamp)) is not None:
                self._activate(queued)
        new = self._first(self._active_new)
        retried = self._first(self._active_retried)
        queued = new or retried
        if new is not None and retried is not None:
            lead = retried.pending.pod.priority - new.pending.pod.priority
            queued = retried if lead > 0 or (lead == 0 and self._retried_next) else new
        if queued is None:
            return None
        self._retried_next = queued is new
        queued.stamp = 0
        queued.due = None
        return queued.pending

    def is_unchanged(self, pending: PendingPod) -> bool:
        """Whether a popped pod still needs a node and has not changed in what an attempt depends on."""
        queued = self.pods.get(pending.pod.namespaced_name)
        return queued is not None and _schedules_alike(queued.pending, pending)

    def back_off(self, key: PodKey, now: float) -> None:
        """Ends a failed attempt; the pod is tried again after a back-off."""
        queued = self.pods.get(key)
        if queued is None or queued.due is not None:
            return
        queued.attempts += 1
        queued.last_attempt = now
        queued.due = now + queued.delay(_BACKOFF_AFTER_CHANGE if queued.changed else _BACKOFF)
        queued.changed = False
        self._enqueue(queued, now)

    def shorten_backoffs(self, now: float, except_for: PodKey | None = None) -> None:
        """Shortens all back-offs but one after a change that may help."""
        for key, queued in self.pods.items():
            if key != except_for:
                self._shorten_backoff(queued, now)

    def next_due(self) -> float | None:
        """Returns when the next back-off ends, None if there is none."""
        while self._backoff_queue:
            due, stamp, key = self._backoff_queue[0]
            if self._valid(key, stamp) is not None:
                return due
            heapq.heappop(self._backoff_queue)
        return None

    def _shorten_backoff(self, queued: _QueuedPod, now: float) -> None:
        if queued.due is None:
            queued.changed = True
            return
        due = max(now, queued.last_attempt + queued.delay(_BACKOFF_AFTER_CHANGE))
        if due < queued.due:
            queued.due = due
            self._enqueue(queued, now)

    def _enqueue(self, queued: _QueuedPod, now: float) -> None:
        # Its earlier entries become outdated.
        self._stamp += 1
        queued.stamp = self._stamp
        if queued.due is not None and queued.due > now:
            heapq.heappush(self._backoff_queue, (queued.due, queued.stamp, queued.pending.pod.namespaced_name))
        else:
            self._activate(queued)

    def _activate(self, queued: _QueuedPod) -> None:
        active = self._active_retried if queued.attempts else self._active_new
        # A process that does not lead pops nothing, while pods come and go.
        if len(active) > 2 * len(self.pods) + _MAX_OUTDATED_ENTRIES:
            active[:] = [entry for entry in active if self._valid(entry[0][-1], entry[1]) is not None]
            heapq.heapify(active)
        heapq.heappush(active, (queued.sort_key, queued.stamp))

    def _first(self, active: _ActiveQueue) -> _QueuedPod | None:
        while active:
            (*_, key), stamp = active[0]
            if (queued := self._valid(key, stamp)) is not None:
                return queued
            heapq.heappop(active)
        return None

    def _valid(self, key: PodKey, stamp: int) -> _QueuedPod | None:
        queued = self.pods.get(key)
        return queued if queued is not None and queued.stamp == stamp else None


def _schedules_alike(first: PendingPod, second: PendingPod) -> bool:
    """Whether nothing differs that an attempt depends on."""
    # The condition that an attempt leaves on its pod must not cause the next attempt.
    return first == second or _without_condition(first) == _without_condition(second)


def _without_condition(pending: PendingPod) -> PendingPod:
    return replace(pending, pod=replace(pending.pod, version=0, unschedulable=""))
