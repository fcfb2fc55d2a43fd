"""What is remembered of pods that were refused everywhere: bounded in number, and equal lists of nodes are held once.

A pod that is asked about again is set aside, not dropped: if it is refused again, its age and its pace go on.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from scheduler_core.extender.nudge import Pace
from scheduler_core.model.kube import Pod

MOST_REMEMBERED: Final = 5000


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Candidates:
    """The nodes a pod was refused on; there is one of equal ones, so that they are compared by identity."""

    names: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Refusal:
    """A pod that was refused.

    Attributes:
        pod: as kube-scheduler sent it
        candidates: where it was refused the last time
        since: when it was refused first
        last: when it was refused last
        pace: how often it may be nudged
        asked_by: when kube-scheduler should have asked about it after its last nudge; it is left alone until then
        nudged: how often it was
        seen: whether a view has had it
        pending: whether it is to be looked at though nothing may have changed
    """

    pod: Pod
    candidates: Candidates
    since: float
    last: float
    pace: Pace = field(default_factory=Pace)
    asked_by: float = -math.inf
    nudged: int = 0
    seen: bool = False
    pending: bool = False

    @property
    def ready_at(self) -> float:
        """When it may be nudged."""
        return max(self.pace.ready_at, self.asked_by)


class Refusals:
    """Refused pods by UID, and those that are being asked about again."""

    def __init__(self) -> None:
        self._refused: dict[str, Refusal] = {}
        self._aside: OrderedDict[str, Refusal] = OrderedDict()
        self._candidates: WeakValueDictionary[tuple[str, ...], Candidates] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._refused)

    def remember(self, pod: Pod, candidates: Sequence[str], now: float) -> Refusal | None:
        """The pod's refusal; None for a pod without UID, or if there are too many already: the oldest are kept."""
        known = self._refused.get(pod.uid)
        if not pod.uid or (known is None and len(self._refused) >= MOST_REMEMBERED):
            return None
        known = known or self._aside.pop(pod.uid, None)
        shared = self._shared(tuple(candidates))
        refusal = known or Refusal(pod, shared, now, now)
        refusal.pod, refusal.candidates, refusal.last, refusal.asked_by = pod, shared, now, -math.inf
        self._refused[pod.uid] = refusal
        return refusal

    def set_aside(self, uid: str) -> None:
        """The pod is being asked about; of those asked about the latest are kept."""
        refusal = self._refused.pop(uid, None)
        if refusal is not None:
            self._aside[uid] = refusal
            if len(self._aside) > MOST_REMEMBERED:
                self._aside.popitem(last=False)

    def forget(self, uid: str) -> None:
        """The pod will not be asked about again."""
        self._refused.pop(uid, None)

    def clear(self) -> None:
        """Forgets all."""
        self._refused.clear()
        self._aside.clear()

    def has(self, refusal: Refusal) -> bool:
        """Whether this refusal still stands."""
        return self._refused.get(refusal.pod.uid) is refusal

    def oldest_first(self) -> list[Refusal]:
        """All that stand, by their first refusal, ties by UID."""
        return sorted(self._refused.values(), key=lambda entry: (entry.since, entry.pod.uid))

    def _shared(self, names: tuple[str, ...]) -> Candidates:
        found = self._candidates.get(names)
        if found is None:
            found = self._candidates[names] = Candidates(names)
        return found
