"""When a refused pod may be nudged, which pods are equivalent, and what nudged pods will take.

kube-scheduler sees no change of Longhorn's objects, so a refused pod waits for up to five minutes. A *nudge* makes
kube-scheduler retry it at once. Pure values, times in seconds on the caller's clock:

- `NudgeBackoff` and `NUDGE_LIMIT` limit nudges of one pod and of all pods: kube-scheduler itself backs off from 1 to 10 s,
  and every nudge is a write to the API server.
- `equivalence_key` is equal for pods with the same answer, so that a thousand equal pods are evaluated once.
- `PendingNudges` are what nudged pods will take, as offers in a copy of the ledger. So only as many pods are nudged as fit together.
- `previously_refused_pods` are what a new leader finds of the previous leader's refusals.
"""

import math
from collections.abc import Hashable

from scheduler_core.backoff import Backoff, TokenBucket
from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import Decision
from scheduler_core.decide.offered_nodes import choose_one_node, make_offer
from scheduler_core.evaluation.replicas_to_place import replica_needs
from scheduler_core.model import kube, verdict
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import Offered
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes.decided_pods import decided_node
from scheduler_core.volumes.free_volume_matching import may_match
from scheduler_core.volumes.resolve import Resolution
from scheduler_core.volumes.volume_requirements import requirements

BACKOFF = Backoff(1.0, 60.0)
# Every nudge is a write to the API server.
NUDGES_PER_SECOND = 20.0
BURST = 100
NUDGE_LIMIT = TokenBucket(NUDGES_PER_SECOND, BURST)
# kube-scheduler retries a nudged pod within milliseconds, unless its own back-off or other pods are in the way.
PENDING_NUDGE_LIFETIME = 3.0


class NudgeBackoff(Struct, frozen=True):
    """When one pod may be nudged again: 1 s after its first nudge, 2 s after the next, up to 60 s. A pod that was not
    nudged for twice the longest back-off starts again, because what kept refusing it is over.
    """

    attempts: int = 0  # nudges in a row
    last: float = -math.inf  # when the last nudge was sent

    @property
    def ready_at(self) -> float:
        return self.last + BACKOFF.delay(self.attempts - 1) if self.attempts else -math.inf

    def after(self, now: float) -> "NudgeBackoff":
        return NudgeBackoff(1 if now - self.last >= 2 * BACKOFF.longest else self.attempts + 1, now)


class WaitingPod(Struct, frozen=True):
    """A refused pod: `seconds` have passed since its first refusal, and it was nudged `nudges` times."""

    pod: kube.Pod
    seconds: float
    nudges: int


def equivalence_key(pod: kube.Pod, resolution: Resolution, view: View) -> Hashable | None:
    """Returns a key that pods with the same answer on every set of nodes share, None for a pod without one. Only pods
    that nothing in the cluster distinguishes have one. The caller must know whether the pod has an offer or a pending
    nudge of its own.
    """
    # All volumes are still to be created and no node is selected, so there is no replica to return to.
    if any(volume.bound or volume.in_use_on for volume in resolution.volumes) or view.selected_node(pod):
        return None
    if may_match(pod, view):
        return None
    # No other pod mounts the claims, so no competitor is the pod's own.
    if any(other.uid != pod.uid for volume in pod.volumes for other in view.pods_of(pod.namespace, volume.claim)):
        return None
    local = requirements(resolution.local, resolution.volumes)
    replicas = tuple(need.key for need in replica_needs(resolution, view))
    return local.key, requirements(resolution.remote, ()).key, replicas, pod.priority


def previously_refused_pods(view: View) -> list[kube.Pod]:
    """Returns waiting pods that an extender refused on some node, by the message of condition PodScheduled."""
    texts = [reason.text for reason in verdict.Reason if not reason.fits]
    # The condition remains until a pod is bound, so a decided node is mostly newer. After a failed binding it is
    # older, which nothing in the cluster shows.
    return [
        pod
        for pod in view.snapshot.pods.values()
        if pod.live and any(text in pod.unschedulable for text in texts) and not decided_node(pod, view)
    ]


class PendingNudges:
    """What recently nudged pods will take. Each counts as an offer of one node for `PENDING_NUDGE_LIFETIME`."""

    def __init__(self) -> None:
        self._pending: dict[str, tuple[Offered, float]] = {}
        self._cached: tuple[Ledger, Ledger] | None = None
        self.ended = 0  # how many have ended; grows whenever space may be free again for other pods

    def __contains__(self, uid: str) -> bool:
        return uid in self._pending

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, pod: kube.Pod, decision: Decision, view: View, now: float) -> None:
        """Counts a fitting pod as an offer of the node with most free space."""
        self.end(pod.uid)
        offered, _ = make_offer(pod, decision, view, Ledger())
        offered = replace(offered, nodes=choose_one_node(decision, view) if offered.nodes else offered.nodes)
        self._pending[pod.uid] = (offered, now)
        if self._cached is not None:
            ledger, with_nudges = self._cached
            self._cached = (ledger, _with_offer(with_nudges, offered, now))

    def end(self, uid: str) -> None:
        if self._pending.pop(uid, None) is not None:
            self._cached = None
            self.ended += 1

    def expire(self, now: float) -> None:
        for uid, (_, at) in list(self._pending.items()):
            if now < at + PENDING_NUDGE_LIFETIME:
                break
            self.end(uid)

    def clear(self) -> None:
        self._pending.clear()
        self._cached = None
        self.ended += 1

    def add_to(self, ledger: Ledger) -> Ledger:
        """Returns the ledger with the pending nudges as its youngest offers; a pod's own offer replaces its nudge."""
        # A ledger after a tick has the very same offers.
        if self._cached is not None and self._cached[0].offers is ledger.offers:
            return self._cached[1]
        with_nudges = ledger
        for uid, (offered, at) in self._pending.items():
            if ledger.offer_of(uid) is None:
                with_nudges = _with_offer(with_nudges, offered, at)
        self._cached = (ledger, with_nudges)
        return with_nudges


def _with_offer(ledger: Ledger, offered: Offered, now: float) -> Ledger:
    after, _ = step(ledger, offered, now)
    return after
