"""One outstanding offer, when it ends, and what an observation of its pod means for it. See `ledger.py`."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from scheduler_core.offers.events import ObservedPod

OFFER_LIFETIME: Final = 60.0
UNSCHEDULABLE_GRACE_PERIOD: Final = 1.0
HOLD_LIFETIME: Final = 600.0
NEVER: Final = math.inf


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


@dataclass(frozen=True, slots=True)
class Offer:
    """Nodes returned for a pod whose placement has not been observed yet."""

    pod: ObservedPod  # the pod as known when the offer was made
    nodes: frozenset[str]  # it counts on each of them
    volumes: tuple[Hashable, ...]  # what it counts for on each of them; the ledger never looks inside
    selected_node: str  # the node that the pod's claims had selected when the offer was made, "" for none
    made_at: float  # when, in the caller's seconds
    number: int  # which of the ledger's offers it is, for withdrawing exactly this one
    version: int  # the newest version of the pod that is accounted for; 0 if unknown
    # When the pod was first seen to be declared unschedulable after the offer, or the nomination that narrowed it to be
    # withdrawn; None if neither was.
    unschedulable_since: float | None = None
    narrowed_at: float | None = None  # when a nomination said which node it will be, None if none did
    # What it counts for on every node of the cluster, because they may go anywhere.
    unplaced_volumes: tuple[Hashable, ...] = ()
    priority: int | None = None  # for a hold the priority of the pod, else None

    @property
    def narrowed(self) -> bool:
        """Whether a nomination said which node it will be."""
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end or the narrowing of an offer."""

    offer: Offer  # as it was before
    kind: OutcomeKind
    at: float  # when; for an end by time when it was due, not when that was noticed
    node: str = ""  # the node decided for or narrowed to, else ""; one that was decided for need not have been offered
