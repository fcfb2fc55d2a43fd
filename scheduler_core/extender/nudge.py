"""The rules of nudging: when a refused pod may be nudged, which pods are alike, and what a nudge promises.

kube-scheduler hears of no change of Longhorn's objects, so a pod it was told to refuse stays where it is for up to five minutes. A
*nudge* makes it ask again at once. Pure values, times in seconds on the caller's clock:

- `Pace` and `Rate` say when the next nudge may be sent, of one pod and in all: kube-scheduler backs off from 1 to 10 s itself,
  and every nudge is a write to the API server.
- `likeness` says which pods have the same answer, so that a thousand equal pods are one question.
- `Promises` are what nudged pods will take, as offers in a copy of the ledger, so that only as many are nudged as fit together.
- `refused_before` is what a new leader finds of its predecessor's refusals.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final

from scheduler_core.cluster.view import View
from scheduler_core.extender.filter import Decision
from scheduler_core.extender.offer import offer_of
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import Reason
from scheduler_core.offers.ledger import Ledger, Offered, step
from scheduler_core.volumes.requirements import needs
from scheduler_core.volumes.resolve import Resolution

FIRST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 60.0
PER_SECOND: Final = 20.0
BURST: Final = 100
# kube-scheduler asks about a nudged pod within milliseconds, unless its own back-off or other pods are in the way.
PROMISE_LIFE: Final = 3.0
_DOUBLINGS: Final = 10


@dataclass(frozen=True, slots=True)
class Pace:
    """How often one pod may be nudged: 1 s after its last nudge, 2 s after the next, up to 60 s.

    A pod that was not nudged for twice the longest wait begins anew: what kept refusing it is over.

    Attributes:
        attempts: nudges in a row
        last: when the last one was sent
    """

    attempts: int = 0
    last: float = -math.inf

    @property
    def ready_at(self) -> float:
        """When the next nudge may be sent."""
        return self.last + min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(self.attempts - 1, _DOUBLINGS))

    def after(self, now: float) -> Pace:
        """The pace after a nudge."""
        return Pace(1 if now - self.last >= 2 * LONGEST_WAIT else self.attempts + 1, now)


@dataclass(frozen=True, slots=True)
class Rate:
    """How many nudges may be sent in all: at most `BURST` + `PER_SECOND` * t in any t seconds (a token bucket).

    Attributes:
        full_at: when the bucket will be full again
    """

    full_at: float = -math.inf

    @property
    def ready_at(self) -> float:
        """When the next nudge may be sent."""
        return self.full_at - (BURST - 1) / PER_SECOND

    def after(self, now: float) -> Rate:
        """The rate after a nudge, which must not be before `ready_at`."""
        return Rate(max(self.full_at, now) + 1 / PER_SECOND)


def likeness(pod: Pod, resolution: Resolution, view: View) -> Hashable | None:
    """Equal for pods about which every set of nodes is answered alike; None for a pod that may be unlike all others.

    Alike are only pods that nothing in the cluster tells apart: all their volumes are still to be created, by equal claims, and
    nobody else mounts them; no node is selected for them. So there is no replica to return to, and nothing that is counted
    against others is the pod's own. Whether the pod has an offer or a promise of its own the caller has to know.
    """
    if any(volume.bound or volume.in_use_on for volume in resolution.volumes) or view.selected_node(pod):
        return None
    if any(other.uid != pod.uid for volume in pod.volumes for other in view.pods_of(pod.namespace, volume.claim)):
        return None
    local = needs(resolution.local, resolution.volumes)
    return local.key, needs(resolution.remote, ()).key


def refused_before(view: View) -> Iterator[Pod]:
    """The waiting pods whose condition says that an extender like this one refused them, on some node at least."""
    texts = [reason.text for reason in Reason if not reason.fits]
    for pod in view.snapshot.pods.values():
        if pod.live and not pod.node_name and any(text in pod.unschedulable for text in texts):
            yield pod


class Promises:
    """What pods nudged lately will take: each counts as an offer of one node, until it ends or is `PROMISE_LIFE` old.

    Attributes:
        ended: how many promises have ended; grows whenever room may have become free for other pods
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[Offered, float]] = {}
        self._last: tuple[Ledger, Ledger] | None = None
        self.ended = 0

    def __contains__(self, uid: str) -> bool:
        return uid in self._held

    def __len__(self) -> int:
        return len(self._held)

    def promise(self, pod: Pod, decision: Decision, view: View, now: float) -> None:
        """Counts a pod that fits as an offer of that of its nodes which has most room, as far as it takes any."""
        self.end(pod.uid)
        # Beside as many others as there are nodes, one node is offered.
        offered, _ = offer_of(pod, decision, view, len(decision.candidates))
        self._held[pod.uid] = offered, now
        if self._last is not None:
            before, after = self._last
            self._last = before, _with(after, offered, now)

    def end(self, uid: str) -> None:
        """The pod is being asked about, or is gone."""
        if self._held.pop(uid, None) is not None:
            self._last = None
            self.ended += 1

    def lapse(self, now: float) -> None:
        """Ends what is too old."""
        for uid, (_, at) in list(self._held.items()):
            if now < at + PROMISE_LIFE:
                break
            self.end(uid)

    def clear(self) -> None:
        """Ends all."""
        self._held.clear()
        self._last = None
        self.ended += 1

    def beside(self, ledger: Ledger) -> Ledger:
        """A ledger with the promises as its youngest offers; a pod's own offer is newer than what it was promised."""
        # A ledger that was only told the time has the very same offers.
        if self._last is not None and self._last[0].offers is ledger.offers:
            return self._last[1]
        after = ledger
        for uid, (offered, at) in self._held.items():
            if ledger.of(uid) is None:
                after = _with(after, offered, at)
        self._last = ledger, after
        return after


def _with(ledger: Ledger, offered: Offered, now: float) -> Ledger:
    return step(ledger, offered, now)[0]
