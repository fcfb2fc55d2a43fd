"""Events of the ledger of offers: what a caller reports to `step` (`offers/ledger.py`)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod as a watch or a request of kube-scheduler shows it.

    Attributes:
        version: grows with each change of the pod (its resourceVersion); 0 if unknown
        node_name: `spec.nodeName`
        nominated_node: `status.nominatedNodeName`
        unschedulable: "" unless the condition PodScheduled is False; then a text that differs whenever the condition
            does. Its last transition alone does not: kube-scheduler keeps it while only the message changes
        ended: finished or being deleted
    """

    uid: str
    namespace: str = ""
    name: str = ""
    version: int = 0
    node_name: str = ""
    nominated_node: str = ""
    unschedulable: str = ""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Offered:
    """These nodes are returned for a pod, which replaces its earlier offer.

    No offer is made without nodes and unplaced volumes, nor for a pod that is bound or has ended, nor for a pod
    without a UID to follow it by.

    Attributes:
        pod: its newest copy: of the request's and the watched one the one with the higher version
        selected_node: the node its claims have selected, "" for none
        unplaced_volumes: see `Offer`; a pod that has nothing else to place needs no nodes here
        priority: for a hold the priority of the pod, else None
    """

    pod: ObservedPod
    nodes: frozenset[str]
    volumes: tuple[Hashable, ...] = ()
    selected_node: str = ""
    unplaced_volumes: tuple[Hashable, ...] = ()
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class NodeSelected:
    """A claim of the pod has a `volume.kubernetes.io/selected-node` annotation.

    The annotation must not be older than the pod.
    """

    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class PodGone:
    """The pod with this UID no longer exists.

    A different pod may have its name.
    """

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


Event = Offered | ObservedPod | NodeSelected | PodGone | Withdrawn | Tick | LeadershipLost
