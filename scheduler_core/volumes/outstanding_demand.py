"""Derives from the cluster the demand of one volume: the space that it will take on a node where it has no replica yet.

Data flow: a local Longhorn volume, or an unbound claim that will become one, over a view → its node (the first `DemandSource` that
names one) → if no replica is kept on that node, the volume *demands* space there. A kept replica on that node ends the demand and
counts on its disk from then on. Replicas on other nodes never end it: a volume that was drained away demands its pod's new
node until its local replica is there. A replica counts on its disk while its node is not ready, too: Longhorn places no other replica
there meanwhile.

So demand covers pods that bypassed the extender, pods deleted while their volumes attach, replicas that Longhorn retries every 30 s,
and rebuilds after a drain. Nothing here can leak, time out, or be lost by a restart. A claim that lost its PersistentVolume, or that
cannot become a volume, demands nothing: Longhorn cannot place it either.

A volume without a placed replica that needs no local space may get one on any node. Data flow: what is unplaced now, by volume or claim
(`derive`) → volumes that are newly placed or newly unplaced since the last view → `UnplacedVolumes`. A volume
counts for `UNPLACED_LIFETIME`, because one that finds no place would otherwise block others without end. No object records since when a
volume is unplaced, so a new leader counts from when it first sees the volume. A claim and the volume that is provisioned for it are one; the
volume continues from when the claim began. Cost: O(changes) plus one copy of the list; no change costs nothing.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from rpds import HashTrieMap, HashTrieSet

from scheduler_core import errors
from scheduler_core.cluster.view import View
from scheduler_core.longhorn import csi_driver, node_controller, stages, volume_validation
from scheduler_core.model import kube, longhorn
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes import existing_replicas, resolve, volume_requirements

Subject = str | tuple[str, str]
"""A Longhorn volume by its name, or an unbound claim by namespace and name."""


class DemandSource(IntEnum):
    """What ties a volume to a node. If several sources name a node, the one with the lowest value counts."""

    POD = 1
    """spec.nodeName of a live pod."""
    SELECTED_NODE = 2
    """The selected node of a claim of the pod that is unbound, or was provisioned for this pod, by any driver."""
    NOMINATION = 3
    """status.nominatedNodeName of a pod without PodScheduled=False, for as long as it stands."""
    ATTACHMENT = 4
    """A VolumeAttachment, or the Longhorn volume's spec.nodeID."""
    HARD_NODE_AFFINITY = 5
    """The only node where an unplaced replica may go."""


class Demand(Struct, frozen=True):
    """Space that one volume will take on one node."""

    volume: resolve.PodVolume
    node: str
    source: DemandSource
    pod: str = ""  # the pod that runs or will run there, as ``namespace/name``; "" without a pod
    since: str = ""  # RFC 3339 time the claim was created, "" without a claim

    @property
    def order(self) -> tuple[object, ...]:
        """Older demand first, a volume without a claim before all; of the same age the larger first, names last."""
        return self.since, *volume_requirements.order_without_names(self.volume), self.volume.name


class _NodeTie(NamedTuple):
    source: DemandSource
    node: str
    pod: str = ""


def derive(subject: Subject, view: View) -> Demand | resolve.PodVolume | None:
    """Returns the demand of a Longhorn volume or of a claim without one; the volume itself if any node may still hold
    it, because no replica is placed and its pod's node needs no space for it; None if it takes no more space.
    """
    if isinstance(subject, str):
        volume = view.volume(subject)
        if volume is None or volume.deleting:
            return None
        if resolve.is_local(volume):
            return _volume_demand(volume, view)
        replicas = view.replicas_of(subject)
        # Longhorn places the shards of a sharded volume before its claim is bound, and the claim counts until then.
        if volume.has_shards or any(replica.node_id for replica in replicas):
            return None
        return resolve.PodVolume(name=subject, claim="", volume=volume, bound=True, local=False, replicas=replicas)
    claim = view.snapshot.claims.get(subject)
    return None if claim is None else _claim_demand(claim, view)


def _volume_demand(volume: longhorn.Volume, view: View) -> Demand | None:
    replicas = view.replicas_of(volume.name)
    claim = _claim_of(volume, view)
    tie = _node_of(volume, claim, replicas, view)
    if tie is None:
        return None
    pod_volume = resolve.PodVolume(
        name=volume.name,
        claim=f"{claim.namespace}/{claim.name}" if claim else "",
        volume=volume,
        bound=True,
        local=True,
        replicas=replicas,
    )
    if tie.node in existing_replicas.nodes_with_replica(pod_volume, view.cluster) or _is_on_unready_node(
        replicas, tie.node, view
    ):
        return None
    return Demand(pod_volume, tie.node, tie.source, tie.pod, claim.created if claim else "")


def _is_on_unready_node(replicas: Iterable[longhorn.Replica], name: str, view: View) -> bool:
    node = view.cluster.nodes.get(name)
    if node is None:
        return False
    # Another manager may mark the node as ready before its own writes the disks.
    disks = {disk.uuid for disk in node.disks if node_controller.awaits_own_manager(disk)}
    kept = (
        replica for replica in replicas if replica.node_id == name and stages.stays(replica) and not replica.failed_at
    )
    return any(not node.ready or replica.disk_id in disks for replica in kept)


def _claim_demand(claim: kube.Claim, view: View) -> Demand | resolve.PodVolume | None:
    bound_to = view.snapshot.persistent_volumes.get(claim.spec.volume_name or view.pre_bound_volume(claim))
    # A claim that is bound to a volume no watch has delivered yet counts: its demand must not vanish between two watches.
    in_view = bound_to is not None and (
        bound_to.driver != csi_driver.DRIVER or bound_to.handle in view.snapshot.volumes
    )
    if claim.deleting or claim.lost or in_view:
        return None
    tie = _node_of_pods(claim, view)
    if tie is None:
        return None
    try:
        volume = resolve.future_volume(claim, view, resolve.domain_of_node(tie.node, view))
    except errors.ResolutionError:
        return None
    if volume is not None and volume.local:
        return Demand(volume, tie.node, tie.source, tie.pod, claim.created)
    # A nomination does not suffice: such a volume counts for a limited time, which begins with its provisioning. The pod's offer counts it
    # until then.
    return None if tie.source is DemandSource.NOMINATION else volume


def _claim_of(volume: longhorn.Volume, view: View) -> kube.Claim | None:
    for persistent_volume in view.persistent_volumes_of(volume.name):
        if persistent_volume.claim is not None:
            claim = view.snapshot.claims.get(persistent_volume.claim[:2])
            if claim is not None and persistent_volume.claim[2] in ("", claim.uid):
                return claim
    return None


def _node_of(
    volume: longhorn.Volume, claim: kube.Claim | None, replicas: Iterable[longhorn.Replica], view: View
) -> _NodeTie | None:
    # Longhorn chooses the node for the data of a strict-local volume, and keeps the replica there, whichever node the pod is on
    # (docs/placement-policy.md).
    awaits_data = volume.restore_required or volume_validation.awaits_copy(volume)
    if volume.data_locality == longhorn.STRICT_LOCAL and volume.node_id and awaits_data:
        return _NodeTie(DemandSource.ATTACHMENT, volume.node_id)
    tie = _node_of_pods(claim, view) if claim is not None else None
    if tie is not None:
        return tie
    for persistent_volume in view.persistent_volumes_of(volume.name):
        for attachment in view.indexes.attachments.get(persistent_volume.name) or ():
            if attachment.node and not attachment.deleting:
                return _NodeTie(DemandSource.ATTACHMENT, attachment.node)
    if volume.node_id:
        return _NodeTie(DemandSource.ATTACHMENT, volume.node_id)
    for replica in replicas:
        if replica.hard_node_affinity and not replica.node_id and not replica.deleting:
            return _NodeTie(DemandSource.HARD_NODE_AFFINITY, replica.hard_node_affinity)
    return None


def _node_of_pods(claim: kube.Claim, view: View) -> _NodeTie | None:
    """Returns the node of a live pod that mounts the claim, otherwise one selected or nominated for such a pod."""
    # In a large burst kube-scheduler writes a nomination minutes before the rest. A nomination together with
    # PodScheduled=False comes from preemption.
    live = [pod for pod in view.pods_of(claim.namespace, claim.name) if pod.live]
    for pod in live:
        if pod.node_name:
            return _NodeTie(DemandSource.POD, pod.node_name, pod.key)
    # Each fact is looked for in all pods before a weaker one: where a pod runs counts more than where another would go.
    for pod in live:
        node = view.selected_node(pod)
        if node:
            return _NodeTie(DemandSource.SELECTED_NODE, node, pod.key)
    for pod in live:
        if pod.nominated_node and not pod.unschedulable:
            return _NodeTie(DemandSource.NOMINATION, pod.nominated_node, pod.key)
    return None


UNPLACED_LIFETIME = timedelta(seconds=30)


class UnplacedVolume(Struct, frozen=True):
    """An unplaced volume and when it was first seen."""

    volume: resolve.PodVolume
    since: datetime
    key: str  # identifies the volume, as `evaluation.competitors.identity` does
    becomes: str = ""  # for a claim, the Longhorn volume that will be provisioned for it


_AGE = attrgetter("since", "key")


def _largest_first(entry: UnplacedVolume) -> tuple[int, str]:
    return -entry.volume.volume.size, entry.key


@dataclass(frozen=True, slots=True)
class UnplacedVolumes:
    """The unplaced volumes of one view."""

    # The volumes that count, first seen first; depends on when earlier views were taken.
    counted: tuple[UnplacedVolume, ...] = field(default=(), compare=False)
    by_size: tuple[UnplacedVolume, ...] = field(default=(), compare=False)  # the same volumes, largest first
    # The same volumes by key.
    by_key: "HashTrieMap[str, UnplacedVolume]" = field(default_factory=HashTrieMap, compare=False)
    replicas: int = field(default=0, compare=False)  # number of replicas that they have in sum
    # Every unplaced volume, however long it has been unplaced.
    all: "HashTrieSet[Subject]" = field(default_factory=HashTrieSet)
    _claims_by_future_volume: "HashTrieMap[str, str]" = field(default_factory=HashTrieMap, compare=False)

    def update(self, changed: Mapping[Subject, resolve.PodVolume | None], view: View) -> "UnplacedVolumes":
        """Returns the unplaced volumes of a later view. `changed` are those that may have changed, None if placed or gone."""
        now = view.cluster.now
        unplaced = self.all
        expired = takewhile(lambda entry: now - entry.since >= UNPLACED_LIFETIME, self.counted)
        changes: dict[str, UnplacedVolume | None] = {entry.key: None for entry in expired}
        # Volumes come first: a volume continues its claim, which may end in the same view.
        for subject in sorted(changed, key=lambda subject: not isinstance(subject, str)):
            key = subject if isinstance(subject, str) else claim_identity("/".join(subject))
            volume = changed[subject]
            entry = changes[key] if key in changes else self.by_key.get(key)
            if volume is None:
                if entry is not None:
                    changes[key] = None
                if subject in unplaced:
                    unplaced = unplaced.discard(subject)
            elif entry is not None:
                if entry.volume != volume:
                    changes[key] = replace(entry, volume=volume)
            elif subject not in unplaced:
                becomes = "" if isinstance(subject, str) else resolve.future_volume_name(view.snapshot.claims[subject])
                if becomes not in unplaced:
                    claim = self.by_key.get(self._claims_by_future_volume.get(key) or "")
                    since = now
                    if claim is not None and claim.key not in changes:
                        changes[claim.key] = None
                        since = claim.since
                    changes[key] = UnplacedVolume(volume, since, key, becomes)
                unplaced = unplaced.insert(subject)
        return self if not changes and unplaced is self.all else self._with_changes(changes, unplaced)

    def _with_changes(
        self, changes: Mapping[str, UnplacedVolume | None], unplaced: "HashTrieSet[Subject]"
    ) -> "UnplacedVolumes":
        counted = list(self.counted)
        by_size = list(self.by_size)
        by_key = self.by_key
        replicas = self.replicas
        claims = self._claims_by_future_volume
        for key, entry in changes.items():
            old = by_key.get(key)
            if old is not None:
                del counted[bisect_left(counted, _AGE(old), key=_AGE)]
                del by_size[bisect_left(by_size, _largest_first(old), key=_largest_first)]
                replicas -= replica_count(old.volume)
                by_key = by_key.remove(key)
                claims = claims.discard(old.becomes)
            if entry is not None:
                insort(counted, entry, key=_AGE)
                insort(by_size, entry, key=_largest_first)
                replicas += replica_count(entry.volume)
                by_key = by_key.insert(key, entry)
                claims = claims.insert(entry.becomes, key) if entry.becomes else claims
        return UnplacedVolumes(tuple(counted), tuple(by_size), by_key, replicas, unplaced, claims)


def replica_count(volume: resolve.PodVolume) -> int:
    return 0 if volume.volume.has_shards else max(1, volume.volume.number_of_replicas)


def claim_identity(claim: str) -> str:
    """Returns the identity of a claim without a volume. The claim is given as ``namespace/name``."""
    return f"{claim} (claim)"
