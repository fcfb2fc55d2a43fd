"""Pods that were refused on every node, bounded in number. Equal lists of candidates are stored once. A pod that a new
request names is set aside, not dropped: if it is refused again, its age and its back-off continue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from scheduler_core.caches import LruMap
from scheduler_core.decide.nudge import NudgeBackoff
from scheduler_core.model.kube import Pod

MAX_REMEMBERED: Final = 5000


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Candidates:
    """The nodes a pod was refused on; equal lists are one object, so they are compared by identity."""

    names: tuple[str, ...]


@dataclass(slots=True, eq=False)
class RefusedPod:
    """A pod that was refused."""

    pod: Pod  # as kube-scheduler sent it
    candidates: Candidates  # where it was refused the last time
    since: float  # when it was refused first
    last: float
    selected_node: str = ""  # the node that its claims had selected when it was refused the last time, "" for none
    backoff: NudgeBackoff = field(default_factory=NudgeBackoff)  # when it may be nudged again
    # When kube-scheduler should have retried it after its last nudge; before that it gets no other nudge.
    retry_by: float = -math.inf
    nudges: int = 0  # number of its nudges
    seen: bool = False  # whether a view has had it
    pending: bool = False  # whether it is to be reviewed even if nothing changes

    @property
    def ready_at(self) -> float:
        return max(self.backoff.ready_at, self.retry_by)


class RefusedPods:
    """Refused pods by UID, and refused pods that a request names at present."""

    def __init__(self) -> None:
        self._refused: dict[str, RefusedPod] = {}
        self._aside: LruMap[str, RefusedPod] = LruMap(MAX_REMEMBERED)
        self._candidates: WeakValueDictionary[tuple[str, ...], Candidates] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._refused)

    def remember(self, pod: Pod, candidates: Sequence[str], now: float, selected_node: str = "") -> RefusedPod | None:
        """Records a refusal and returns it, None for a pod without UID, or if there are `MAX_REMEMBERED` older ones."""
        earlier = self._refused.get(pod.uid)
        if not pod.uid or (earlier is None and len(self._refused) >= MAX_REMEMBERED):
            return None
        shared = self._intern(tuple(candidates))
        refusal = earlier or self._aside.pop(pod.uid) or RefusedPod(pod, shared, now, now)
        refusal.pod = pod
        refusal.candidates = shared
        refusal.last = now
        refusal.selected_node = selected_node
        refusal.retry_by = -math.inf
        self._refused[pod.uid] = refusal
        return refusal

    def set_aside(self, uid: str) -> None:
        """A request names the pod; the `MAX_REMEMBERED` latest such pods are kept."""
        refusal = self._refused.pop(uid, None)
        if refusal is not None:
            self._aside.put(uid, refusal)

    def forget(self, uid: str) -> None:
        """Drops a pod that no request will name again."""
        self._refused.pop(uid, None)

    def clear(self) -> None:
        self._refused.clear()
        self._aside.clear()

    def is_current(self, refusal: RefusedPod) -> bool:
        return self._refused.get(refusal.pod.uid) is refusal

    @property
    def first_refusal(self) -> float | None:
        """When the pod that waits longest was refused first, None without one."""
        # A copy, because another thread may add a pod meanwhile.
        return min((refusal.since for refusal in list(self._refused.values())), default=None)

    def oldest_first(self) -> list[RefusedPod]:
        """Returns the refused pods by their first refusal, ties by UID."""
        return sorted(self._refused.values(), key=lambda refusal: (refusal.since, refusal.pod.uid))

    def _intern(self, names: tuple[str, ...]) -> Candidates:
        candidates = self._candidates.get(names)
        if candidates is None:
            candidates = Candidates(names)
            self._candidates[names] = candidates
        return candidates
