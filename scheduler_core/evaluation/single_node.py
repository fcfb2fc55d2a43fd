"""Evaluates one node without its disk profile: what the pod's volumes still need there, and which disks each may use.

This is the way for nodes that hold a replica of the pod's volumes, where anti-affinity and kept replicas make each volume a special
case, and for `explain`, which shows disks by name. For every other node it gives the result of the node's profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scheduler_core.cluster.view import View
from scheduler_core.evaluation import fit
from scheduler_core.evaluation.competitors import Volumes
from scheduler_core.evaluation.profile import OpenDisk, Profile, Refused, profile_node
from scheduler_core.longhorn.anti_affinity import SoftAntiAffinity
from scheduler_core.longhorn.placement import disk_candidates, prefilter_disks
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.stages import disk_and_space_refusal
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import Budget
from scheduler_core.packing.order_safe import Safety
from scheduler_core.packing.stale_safe import Overbooking
from scheduler_core.volumes.existing_replicas import nodes_with_replica
from scheduler_core.volumes.requirements import OptionalVolume, Requirements, requirements
from scheduler_core.volumes.resolve import PodVolume, Resolution


@dataclass(frozen=True, slots=True)
class NodeEvaluation:
    """A node with what a pod's volumes need there."""

    required: Requirements  # the local volumes without a kept replica on this node, and those of competitors
    refused: Refused | None = None  # why the node does not fit whatever the sizes, or None
    disks: tuple[OpenDisk, ...] = ()  # the open disks, in the order of the profile
    # For some volumes, then optional ones, by index, the bit mask of disks that anti-affinity leaves them.
    allowed: fit.AllowedDisks = field(default_factory=dict[int, int])
    competing_claims: frozenset[str] = frozenset()  # the claims of competitors, which plans leave out

    @property
    def profile(self) -> Profile:
        return Profile(self.refused.reason if self.refused else None, self.disks)

    def reason(self, budget: Budget) -> Reason:
        if self.refused is None and not self.required.sizes:
            return Reason.ROOM
        return fit.fit(self.required, self.profile, budget, self.allowed)

    def order_safety(self, budget: Budget) -> Safety:
        """Returns whether every placement order succeeds here; only meaningful where the volumes fit."""
        return fit.order_safety(self.required, self.profile, budget, self.allowed)

    def overbooking(self) -> Overbooking | None:
        """Returns a disk that outdated status may lead Longhorn to overbook; None if a node that fits is stale-safe."""
        return fit.overbooking(self.required, self.profile, self.allowed)

    def missing_for_stale_safety(self) -> Sequence[int]:
        """Returns the least bytes that each open disk lacks for stale safety; empty if these are unknown."""
        return fit.missing_bytes(self.required, self.profile, self.allowed)

    def plan(self, budget: Budget) -> dict[str, str] | None:
        """Returns a disk UUID for each of the pod's volumes, by name, or None without a plan."""
        disks = fit.plan(self.required, self.profile, budget, self.allowed)
        if disks is None:
            return None
        pairs = zip(self.required.volumes, disks, strict=True)
        return dict(
            sorted(
                (volume.name, self.disks[disk].uuid)
                for volume, disk in pairs
                if volume.claim not in self.competing_claims
            )
        )


def evaluate_node(
    view: View,
    resolution: Resolution,
    name: str,
    competitors: Volumes = (),
    optional: tuple[OptionalVolume, ...] = (),
) -> NodeEvaluation:
    """Evaluates one node for the pod's volumes, packed with those of competitors."""
    # `optional` volumes may be in their way.
    unplaced = [volume for volume in resolution.local if name not in nodes_with_replica(volume, view.cluster)]
    required = requirements((*unplaced, *competitors) if unplaced else (), resolution.volumes, optional)
    evaluation = evaluate_requirements(view, required, name)
    return replace(evaluation, competing_claims=frozenset(volume.claim for volume in competitors))


def evaluate_requirements(view: View, required: Requirements, name: str) -> NodeEvaluation:
    """Evaluates one node for volumes that have no kept replica there."""
    disks = profile_node(view, required.classes, name)
    if isinstance(disks, Refused):
        return NodeEvaluation(required, disks)
    allowed: dict[int, int] = {}
    for index, volume in enumerate(required.volumes):
        if any(replica.node_id == name for replica in volume.replicas):
            mask = _disks_anti_affinity_allows(view, volume, name, disks)
            if isinstance(mask, Refused):
                return NodeEvaluation(required, mask)
            # With soft anti-affinity Longhorn uses the other disks when these are full.
            if not SoftAntiAffinity.of(volume.volume, view.settings).disk:
                allowed[index] = mask
    for index, entry in enumerate(required.optional, start=len(required.volumes)):
        if not entry.used_disks.isdisjoint(disk.uuid for disk in disks):
            allowed[index] = sum(1 << bit for bit, disk in enumerate(disks) if disk.uuid not in entry.used_disks)
    return NodeEvaluation(required, None, disks, allowed)


def _disks_anti_affinity_allows(view: View, volume: PodVolume, name: str, disks: tuple[OpenDisk, ...]) -> int | Refused:
    """Returns the disks that Longhorn tries first on a node with replicas of the volume, as a bit mask."""
    cluster = view.cluster
    node = cluster.nodes[name]
    # With hardNodeAffinity, as Longhorn places a local replica, replicas on other nodes use neither node nor zone.
    request = ReplicaRequest.for_volume(volume.volume, hard_node_affinity=name)
    disks_by_node = {name: prefilter_disks(cluster, request, node)}
    candidates = disk_candidates(cluster, request, {name: node}, disks_by_node, volume.replicas)
    uuids = {candidate.disk.uuid for candidate in candidates.disks}
    if not uuids and any(
        disk_and_space_refusal(cluster, request, node, disk, view.uncounted_bytes(name, disk)) is None
        for disk in node.disks
    ):
        detail = f"replicas of volume {volume.name} on node {name} leave no disk to another"
        return Refused(Reason.ANTI_AFFINITY, detail)
    return sum(1 << index for index, disk in enumerate(disks) if not uuids or disk.uuid in uuids)
