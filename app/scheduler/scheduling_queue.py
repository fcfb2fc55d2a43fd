"""Who is tried when: pods that want a node, by priority; those that found none come again after a back-off.

Among pods of one priority, those never tried, by age, and those tried before, longest ago first, take turns: neither many that fit nowhere
nor many new ones keep anybody from being tried.

Time is passed in, in seconds of any clock that never goes back. A back-off doubles from `SHORTEST` to `LONGEST`. Something that has changed
and may help, `hurry`, makes it no longer than `LONGEST_AFTER_CHANGE`: in a busy cluster something always changes, and whoever fits nowhere must not
be tried all the time for that. A change during an attempt counts as one after it: the attempt may have begun before it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.convert.binding import Applicant
from scheduler_core.model.generic import PodKey

SHORTEST: Final = 1.0
LONGEST_AFTER_CHANGE: Final = 10.0
LONGEST: Final = 60.0
_NEVER: Final = -float("inf")
# Beyond this many attempts the back-off is the longest anyway, and the power of two stays small.
_MOST_DOUBLINGS: Final = 16
_MOST_LEFT_OVER: Final = 100

_Turn = tuple[int, float, str, PodKey]
_Ready = list[tuple[_Turn, int]]


@dataclass(slots=True)
class _Item:
    """One pod; `stamp` tells which of its entries in the heaps counts, `due` is None while it is being tried."""

    applicant: Applicant
    stamp: int
    due: float | None
    tries: int = 0
    tried_at: float = _NEVER
    again: bool = False

    @property
    def turn(self) -> _Turn:
        """Its place among those that are due: by priority, then who was tried longest ago, then as before the first try."""
        priority, age, key = self.applicant.turn
        return priority, self.tried_at, age, key

    def back_off(self, longest: float) -> float:
        """How long it waits after the latest of its tries."""
        return min(longest, SHORTEST * 2.0 ** min(max(0, self.tries - 1), _MOST_DOUBLINGS))


class Queue:
    """The pods that want a node."""

    def __init__(self) -> None:
        self._items: dict[PodKey, _Item] = {}
        self._fresh: _Ready = []
        self._tried: _Ready = []
        self._tried_next = False
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
            if (item := self._counts(key, stamp)) is not None:
                self._due(item)
        fresh, tried = self._first(self._fresh), self._first(self._tried)
        item = fresh or tried
        if fresh is not None and tried is not None:
            ahead = tried.applicant.priority - fresh.applicant.priority
            item = tried if ahead > 0 or (ahead == 0 and self._tried_next) else fresh
        if item is None:
            return None
        self._tried_next = item is fresh
        item.stamp, item.due = 0, None
        return item.applicant

    def wanted(self, applicant: Applicant) -> bool:
        """Whether this very pod still wants a node, as it was when it was popped."""
        item = self._items.get(applicant.pod.key)
        return item is not None and _alike(item.applicant, applicant)

    def failed(self, key: PodKey, now: float) -> None:
        """A pod found no node, or was not bound: it comes again."""
        item = self._items.get(key)
        if item is None or item.due is not None:
            return
        item.tries += 1
        item.tried_at = now
        item.due = now + item.back_off(LONGEST_AFTER_CHANGE if item.again else LONGEST)
        item.again = False
        self._placed(item, now)

    def hurry(self, now: float, besides: PodKey | None = None) -> None:
        """Something has changed that may help every pod, or all besides one: none waits longer than after a change."""
        for key, item in self._items.items():
            if key != besides:
                self._hurried(item, now)

    def next_at(self) -> float | None:
        """When the next pod is due; None if nobody waits."""
        while self._later:
            due, stamp, key = self._later[0]
            if self._counts(key, stamp) is not None:
                return due
            heapq.heappop(self._later)
        return None

    def _hurried(self, item: _Item, now: float) -> None:
        if item.due is None:
            item.again = True
            return
        due = max(now, item.tried_at + item.back_off(LONGEST_AFTER_CHANGE))
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
            self._due(item)
        return item

    def _due(self, item: _Item) -> None:
        ready = self._tried if item.tries else self._fresh
        # Who does not lead takes nothing off, and pods come and go.
        if len(ready) > 2 * len(self._items) + _MOST_LEFT_OVER:
            ready[:] = [entry for entry in ready if self._counts(entry[0][-1], entry[1]) is not None]
            heapq.heapify(ready)
        heapq.heappush(ready, (item.turn, item.stamp))

    def _first(self, ready: _Ready) -> _Item | None:
        """The first that still is due; entries before it, which count no more, are dropped."""
        while ready:
            (*_, key), stamp = ready[0]
            if (item := self._counts(key, stamp)) is not None:
                return item
            heapq.heappop(ready)
        return None

    def _counts(self, key: PodKey, stamp: int) -> _Item | None:
        """The item of an entry; None if the entry counts no more."""
        item = self._items.get(key)
        return item if item is not None and item.stamp == stamp else None


def _alike(one: Applicant, other: Applicant) -> bool:
    """Whether nothing differs that an attempt depends on: what it leaves on the pod, its condition, must not cause the next one."""
    return one == other or _asked(one) == _asked(other)


def _asked(found: Applicant) -> Applicant:
    return found if found.mounts is None else replace(found, mounts=replace(found.mounts, version=0, unschedulable=""))
