"""Which nodes' disks are spoken for by volumes that have no replica there yet: derived from the cluster, never recorded.

Data flow: a local Longhorn volume, or an unbound claim that will become one, over a view → its node (the first `Source` that
names one) → if no replica of it is kept there, it *demands* room there. A kept replica on that node ends the demand and counts
on its disk from then on; replicas elsewhere never do, so a volume that was drained away demands its pod's new node until its
local replica is there.

So pods that bypassed the extender count, pods deleted while their volumes attach, replicas Longhorn retries every 30 s, and
rebuilds after a drain. Nothing here can leak, time out, or be lost by a restart. A claim that has lost its PersistentVolume demands
nothing, nor one that cannot become a volume: Longhorn cannot place it either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from scheduler_core.cluster.view import View
from scheduler_core.errors import ResolutionError
from scheduler_core.model import kube, longhorn
from scheduler_core.volumes.local_replicas import kept_on
from scheduler_core.volumes.resolve import PodVolume, is_known, is_local, volume_to_come


class Source(IntEnum):
    """What ties a volume to a node; the first that says something counts."""

    POD = 1
    """A live pod's spec.nodeName."""
    SELECTED_NODE = 2
    """The selected node of a claim of the pod that is unbound, or was provisioned for this pod; whoever provisions it."""
    ATTACHMENT = 3
    """A VolumeAttachment, or the Longhorn volume's spec.nodeID."""
    HARD_NODE_AFFINITY = 4
    """A replica that is not placed may only go there."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Room that one volume will take on one node.

    Attributes:
        volume: what will take it
        node: where
        source: why there
        pod: the pod that runs or will run there, as ``namespace/name``; "" if none is left
        since: RFC 3339 time the claim was created, "" if it is gone
    """

    volume: PodVolume
    node: str
    source: Source
    pod: str = ""
    since: str = ""

    @property
    def order(self) -> tuple[str, str, str]:
        """Older demands first, ties by name; a volume whose claim is gone is older than any other."""
        return self.since, self.volume.claim, self.volume.name


class Ties(Protocol):
    """Look-ups from a Longhorn volume to what uses it."""

    def volumes_of(self, handle: str) -> Iterable[kube.PersistentVolume]:
        """The PersistentVolumes of a Longhorn volume, ordered by name."""

    def attachments_of(self, persistent_volume: str) -> Iterable[kube.VolumeAttachment]:
        """The VolumeAttachments of a PersistentVolume, ordered by name."""


def roaming_claim(claim: kube.Claim, view: View) -> PodVolume | None:
    """The volume an unbound claim of a placed pod will become, if its replicas may go to any node."""
    volume = _to_come(claim, view)
    return volume[0] if volume is not None and not volume[0].local else None


def roaming_volume(volume: longhorn.Volume, view: View) -> PodVolume | None:
    """A Longhorn volume that has no place yet, if its replicas may go to any node."""
    replicas = view.replicas_of(volume.name)
    if volume.deleting or is_local(volume) or any(replica.node_id for replica in replicas):
        return None
    return PodVolume(name=volume.name, claim="", volume=volume, bound=True, local=False, replicas=replicas)


def claim_demand(claim: kube.Claim, view: View) -> Demand | None:
    """What a claim without a Longhorn volume demands; that of others is asked about by `volume_demand`."""
    found = _to_come(claim, view)
    if found is None or not found[0].local:
        return None
    volume, (source, node, pod) = found
    return Demand(volume, node, source, pod, claim.created)


def volume_demand(volume: longhorn.Volume, view: View, ties: Ties) -> Demand | None:
    """What an existing Longhorn volume demands."""
    if volume.deleting or not is_local(volume):
        return None
    replicas = view.replicas_of(volume.name)
    claim = _claim_of(volume, view, ties)
    tied = _node_of(volume, claim, replicas, view, ties)
    if tied is None:
        return None
    source, node, pod = tied
    name = f"{claim.namespace}/{claim.name}" if claim else ""
    held = PodVolume(name=volume.name, claim=name, volume=volume, bound=True, local=True, replicas=replicas)
    if node in kept_on(held, view.cluster):
        return None
    return Demand(held, node, source, pod, claim.created if claim else "")


_Tied = tuple[Source, str, str]


def _to_come(claim: kube.Claim, view: View) -> tuple[PodVolume, _Tied] | None:
    """What a claim without a Longhorn volume will become, and which node a pod has for it; None before that is decided.

    A claim that is bound to something nobody has heard of yet is one, too: its volume must not vanish from one watch to the next.
    """
    persistent = claim.spec.volume_name or view.reserved_for(claim)
    if claim.deleting or claim.lost or (persistent and is_known(persistent, view)):
        return None
    tied = _by_pods(claim, view)
    if tied is None:
        return None
    try:
        volume = volume_to_come(claim, view)
    except ResolutionError:
        return None
    return None if volume is None else (volume, tied)


def _claim_of(volume: longhorn.Volume, view: View, ties: Ties) -> kube.Claim | None:
    for persistent in ties.volumes_of(volume.name):
        if persistent.claim is not None:
            claim = view.snapshot.claims.get(persistent.claim[:2])
            if claim is not None and persistent.claim[2] in ("", claim.uid):
                return claim
    return None


def _node_of(
    volume: longhorn.Volume, claim: kube.Claim | None, replicas: Iterable[longhorn.Replica], view: View, ties: Ties
) -> _Tied | None:
    tied = _by_pods(claim, view) if claim is not None else None
    if tied is not None:
        return tied
    for persistent in ties.volumes_of(volume.name):
        for attachment in ties.attachments_of(persistent.name):
            if attachment.node and not attachment.deleting:
                return Source.ATTACHMENT, attachment.node, ""
    if volume.node_id:
        return Source.ATTACHMENT, volume.node_id, ""
    for replica in replicas:
        if replica.hard_node_affinity and not replica.node_id and not replica.deleting:
            return Source.HARD_NODE_AFFINITY, replica.hard_node_affinity, ""
    return None


def _by_pods(claim: kube.Claim, view: View) -> _Tied | None:
    """The node of a live pod that mounts the claim, or the one selected for it."""
    live = [pod for pod in view.pods_of(claim.namespace, claim.name) if pod.live]
    for pod in live:
        if pod.node_name:
            return Source.POD, pod.node_name, pod.key
    for pod in live:
        node = view.selected_node(pod)
        if node:
            return Source.SELECTED_NODE, node, pod.key
    return None
