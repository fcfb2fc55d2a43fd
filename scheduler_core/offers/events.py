"""Events of the ledger of offers: what a caller reports to `step` (`offers/ledger.py`)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObservedPod:
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


@dataclass(frozen=True, slots=True)
class Offered:
    """These nodes are returned for a pod, which replaces its earlier offer. No offer is made without nodes and unplaced
    volumes, nor for a pod that is bound or has ended, nor for a pod without a UID to follow it by.
    """

    pod: ObservedPod  # its newest copy: of the request's and the watched one the one with the higher version
    nodes: frozenset[str]
    volumes: tuple[Hashable, ...] = ()
    selected_node: str = ""  # the node its claims have selected, "" for none
    unplaced_volumes: tuple[Hashable, ...] = ()  # see `Offer`; a pod that has nothing else to place needs no nodes here
    priority: int | None = None  # for a hold the priority of the pod, else None


@dataclass(frozen=True, slots=True)
class RecordedOffer:
    """An offer as the previous leader recorded it (`offers/handover_record.py`)."""

    # What was offered. A record has no volumes, and a digest instead of the pod's `unschedulable`; whatever restores
    # the offer replaces both.
    offered: Offered
    age: float  # seconds since it was made
    everywhere: bool = False  # whether it counts for every node, as the record has no names of a wide offer's nodes
    number: int = 0  # which of the leader's offers it is
    version: int = 0  # the newest version of the pod that is accounted for; 0 if unknown
    narrowed_age: float | None = None  # seconds since a nomination said which node it will be, None if none did
    unschedulable_age: float | None = None  # seconds since `Offer.unschedulable_since`, None if that is None


@dataclass(frozen=True, slots=True)
class OffersRestored:
    """A new leader restores the previous leader's offers. They go on as if the leader had not changed. If the ledger
    has offers already, the event changes nothing. `offers_made`: how many offers were ever made.
    """

    offers: tuple[RecordedOffer, ...]
    offers_made: int = 0


@dataclass(frozen=True, slots=True)
class NodeSelected:
    """A claim of the pod has a `volume.kubernetes.io/selected-node` annotation, which must not be older than the pod."""

    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class PodGone:
    """The pod with this UID no longer exists. A different pod may have its name."""

    uid: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The caller hung up before it received the offer with this number."""

    uid: str
    number: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Only time has passed."""


@dataclass(frozen=True, slots=True)
class LeadershipLost:
    """This process leads no longer: all offers are dropped, the next leader takes over."""


Event = Offered | OffersRestored | ObservedPod | NodeSelected | PodGone | Withdrawn | Tick | LeadershipLost
