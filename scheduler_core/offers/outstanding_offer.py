"""One outstanding offer, when it ends, and what an observation of its pod means for it; the events that a caller reports to `step`
(`ledger.py`).
"""

import math
from enum import Enum
from typing import Any

from scheduler_core.structs import Struct, replace


class ObservedPod(Struct, frozen=True):
    """A pod as a watch or a request of kube-scheduler shows it."""

    uid: str
    namespace: str = ""
    name: str = ""
    version: int = 0  # grows with each change of the pod (its resourceVersion); 0 if unknown
    node_name: str = ""  # `spec.nodeName`
    nominated_node: str = ""  # `status.nominatedNodeName`
    # "" unless the condition PodScheduled is False; then a text that differs whenever the condition does. Its last
    # transition alone does not: kube-scheduler keeps it while only the message changes.
    unschedulable: str = ""
    ended: bool = False  # finished or being deleted


class Offered(Struct, frozen=True):
    """These nodes are returned for a pod, which replaces its earlier offer. No offer is made without nodes and unplaced
    volumes, nor for a pod that is bound or has ended, nor for a pod without a UID to follow it by.
    """

    pod: ObservedPod  # its newest copy: of the request's and the watched one the one with the higher version
    nodes: frozenset[str]
    volumes: tuple[Any, ...] = ()  # `PodVolume`s, which the ledger does not look into
    selected_node: str = ""  # the node its claims have selected, "" for none
    unplaced_volumes: tuple[Any, ...] = ()  # see `Offer`; a pod that has nothing else to place needs no nodes here
    priority: int | None = None  # for a hold the priority of the pod, else None


class NodeSelected(Struct, frozen=True):
    """A claim of the pod has a `volume.kubernetes.io/selected-node` annotation, which must not be older than the pod."""

    uid: str
    node: str


class PodGone(Struct, frozen=True):
    """The pod with this UID no longer exists. A different pod may have its name."""

    uid: str


class Withdrawn(Struct, frozen=True):
    """The caller hung up before it received the offer with this number."""

    uid: str
    number: int


class Tick(Struct, frozen=True):
    """Only time has passed."""


class LeadershipLost(Struct, frozen=True):
    """This process leads no longer: all offers are dropped, the next leader takes over."""


# In a burst kube-scheduler shows decisions late (the last of 200 pods after 3.2 s, at its default client limits). An offer that ended before
# would give its room away twice.
OFFER_LIFETIME = 60.0
# The condition may be that of an earlier attempt, written late; the decision of this one is then still on its way.
UNSCHEDULABLE_GRACE_PERIOD = 1.0
# Victims may take long to end. But preemption's nomination may lead nowhere and never ages out, so a hold ends by itself.
HOLD_LIFETIME = 600.0
NEVER = math.inf


class OutcomeKind(Enum):
    """How an offer ended or changed; all kinds but the last end it. The value is a metric's label."""

    DECIDED = "decided"
    GONE = "gone"
    UNSCHEDULABLE = "unschedulable"
    EXPIRED = "expired"
    REPLACED = "replaced"
    WITHDRAWN = "withdrawn"
    DROPPED = "dropped"
    NARROWED = "narrowed"


class Offer(Offered, frozen=True, kw_only=True):
    """Nodes returned for a pod whose placement has not been observed yet. It counts on each of them for its `volumes`, and on every node
    of the cluster for its `unplaced_volumes`, because they may go anywhere. The ledger never looks inside them.
    """

    made_at: float  # when, in the caller's seconds
    number: int  # which of the ledger's offers it is, for withdrawing exactly this one
    version: int  # the newest version of the pod that is accounted for; 0 if unknown
    # When the pod was first seen to be declared unschedulable after the offer, or the nomination that narrowed it to be
    # withdrawn; None if neither was.
    unschedulable_since: float | None = None
    narrowed_at: float | None = None  # when a nomination said which node it will be, None if none did

    @property
    def narrowed(self) -> bool:
        return self.narrowed_at is not None

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def ends_at(self) -> float:
        """When the offer ends by itself: at this time it no longer counts."""
        if self.unschedulable_since is None:
            return self._lifetime_ends_at
        return min(self._lifetime_ends_at, self.unschedulable_since + UNSCHEDULABLE_GRACE_PERIOD)

    @property
    def end_kind(self) -> OutcomeKind:
        return OutcomeKind.EXPIRED if self.ends_at == self._lifetime_ends_at else OutcomeKind.UNSCHEDULABLE

    @property
    def _lifetime_ends_at(self) -> float:
        if self.narrowed_at is None:
            # A failed attempt that leaves the condition as it was writes nothing: no event would end the offer.
            return self.made_at + OFFER_LIFETIME
        return self.narrowed_at + HOLD_LIFETIME if self.stands_for_preemption else NEVER

    @property
    def stands_for_preemption(self) -> bool:
        """Whether the offer stands because of preemption's nomination, which may lead nowhere."""
        nominated_before = self.pod.unschedulable != "" and self.pod.nominated_node in self.nodes
        return self.priority is not None or nominated_before

    def fails_with(self, pod: ObservedPod) -> bool:
        """Whether an observation shows that the attempt failed for which the offer was made."""
        declared_unschedulable = pod.unschedulable not in ("", self.pod.unschedulable)
        stands = pod.nominated_node in self.nodes
        if self.priority is None:
            return declared_unschedulable or (self.narrowed and not stands)
        # Preemption writes its nomination together with the condition.
        return not stands and (declared_unschedulable or self.narrowed)

    def is_choice_of(self, pod: ObservedPod) -> bool:
        """Whether an observed nomination names the offered node that was chosen."""
        if pod.nominated_node not in self.nodes:
            return False
        if self.priority is not None:
            return True
        return pod.nominated_node != self.pod.nominated_node and pod.unschedulable in ("", self.pod.unschedulable)

    def counts_against(self, priority: int) -> bool:
        return self.priority is None or priority <= self.priority

    def later(self, seconds: float) -> "Offer":
        """Returns the offer with its times on another clock, which shows so many more seconds."""
        return replace(
            self,
            made_at=self.made_at + seconds,
            unschedulable_since=None if self.unschedulable_since is None else self.unschedulable_since + seconds,
            narrowed_at=None if self.narrowed_at is None else self.narrowed_at + seconds,
        )


class RecordedOffer(Struct, frozen=True):
    """An offer as the previous leader recorded it (`offers/handover_record.py`)."""

    # Its clock is 0 when it is read. It has no volumes, and a digest instead of the pod's `unschedulable`; whatever restores
    # the offer replaces both.
    offered: Offer
    everywhere: bool = False  # whether it counts for every node, as the record has no names of a wide offer's nodes


class OffersRestored(Struct, frozen=True):
    """A new leader restores the previous leader's offers, whose clock is 0 now. They go on as if the leader had not changed. If the
    ledger has offers already, the event changes nothing. `offers_made`: how many offers were ever made.
    """

    offers: tuple[Offer, ...]
    offers_made: int = 0


Event = Offered | OffersRestored | ObservedPod | NodeSelected | PodGone | Withdrawn | Tick | LeadershipLost


class Outcome(Struct, frozen=True):
    """The end or the narrowing of an offer."""

    offer: Offer  # as it was before
    kind: OutcomeKind
    at: float  # when; for an end by time when it was due, not when that was noticed
    node: str = ""  # the node decided for or narrowed to, else ""; one that was decided for need not have been offered
