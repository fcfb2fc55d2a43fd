"""Who is tried when: pods that want a node, by priority and age; those that found none come again after a back-off.

Time is passed in, in seconds of any clock that never goes back. A back-off doubles from `SHORTEST` to `LONGEST`; `hurry` cuts it short when
something has changed that may help, but no pod is tried more often than once in `SHORTEST`. A change during an attempt counts as
one after it: the attempt may have begun before it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.convert.binding import Applicant
from scheduler_core.generic.model import PodKey

SHORTEST: Final = 1.0
LONGEST: Final = 60.0
_NEVER: Final = -float("inf")
# Beyond this many attempts the back-off is the longest anyway, and the power of two stays small.
_MOST_DOUBLINGS: Final = 16


@dataclass(slots=True)
class _Item:
    """One pod; `stamp` tells which of its entries in the heaps counts, `due` is None while it is being tried."""

    applicant: Applicant
    stamp: int
    due: float | None
    tries: int = 0
    tried_at: float = _NEVER
    again: bool = False


class Queue:
    """The pods that want a node."""

    def __init__(self) -> None:
        self._items: dict[PodKey, _Item] = {}
        self._ready: list[tuple[tuple[int, str, PodKey], int]] = []
        self._later: list[tuple[float, int, PodKey]] = []
        self._stamps = 0

    def __len__(self) -> int:
        """How many want a node, those being tried included."""
        return len(self._items)

    def put(self, applicant: Applicant, now: float) -> None:
        """A pod wants a node, or has changed while it does; a new one, or another of the same name, is tried at once."""
        key = applicant.pod.key
        item = self._items.get(key)
        if item is None or item.applicant.pod.uid != applicant.pod.uid:
            self._items[key] = self._placed(_Item(applicant, 0, now), now)
            return
        changed = not _alike(item.applicant, applicant)
        item.applicant = applicant
        if changed:
            self._hurried(item, now)

    def discard(self, key: PodKey) -> None:
        """A pod wants no node any more."""
        self._items.pop(key, None)

    def pop(self, now: float) -> Applicant | None:
        """The next pod to be tried, None if there is none now; `failed` or `discard` tells what came of it."""
        while self._later and self._later[0][0] <= now:
            _, stamp, key = heapq.heappop(self._later)
            item = self._items.get(key)
            if item is not None and item.stamp == stamp:
                heapq.heappush(self._ready, (item.applicant.turn, stamp))
        while self._ready:
            (_, _, key), stamp = heapq.heappop(self._ready)
            item = self._items.get(key)
            if item is not None and item.stamp == stamp:
                item.due = None
                return item.applicant
        return None

    def wanted(self, applicant: Applicant) -> bool:
        """Whether this very pod still wants a node, as it was when it was popped."""
        item = self._items.get(applicant.pod.key)
        return item is not None and _alike(item.applicant, applicant)

    def failed(self, key: PodKey, now: float) -> None:
        """A pod found no node, or was not bound: it comes again."""
        item = self._items.get(key)
        if item is None or item.due is not None:
            return
        pause = SHORTEST if item.again else min(LONGEST, SHORTEST * 2 ** min(item.tries, _MOST_DOUBLINGS))
        item.tries += 1
        item.tried_at = now
        item.again = False
        item.due = now + pause
        self._placed(item, now)

    def hurry(self, now: float, besides: PodKey | None = None) -> None:
        """Something has changed that may help every pod, or all besides one."""
        for key, item in self._items.items():
            if key != besides:
                self._hurried(item, now)

    def next_at(self) -> float | None:
        """When the next pod is due; None if nobody waits."""
        while self._later:
            due, stamp, key = self._later[0]
            item = self._items.get(key)
            if item is not None and item.stamp == stamp:
                return due
            heapq.heappop(self._later)
        return None

    def _hurried(self, item: _Item, now: float) -> None:
        if item.due is None:
            item.again = True
            return
        due = max(now, item.tried_at + SHORTEST)
        if due < item.due:
            item.due = due
            self._placed(item, now)

    def _placed(self, item: _Item, now: float) -> _Item:
        """Enters an item where it belongs; earlier entries of it count no more."""
        self._stamps += 1
        item.stamp = self._stamps
        if item.due is not None and item.due > now:
            heapq.heappush(self._later, (item.due, item.stamp, item.applicant.pod.key))
        else:
            heapq.heappush(self._ready, (item.applicant.turn, item.stamp))
        return item


def _alike(one: Applicant, other: Applicant) -> bool:
    """Whether nothing differs that an attempt depends on: what it leaves on the pod, its condition, must not cause the next one."""
    return one == other or _asked(one) == _asked(other)


def _asked(found: Applicant) -> Applicant:
    return found if found.mounts is None else replace(found, mounts=replace(found.mounts, version=0, unschedulable=""))
