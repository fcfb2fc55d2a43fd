"""One node, looked at on its own: what the pod's volumes still need there, and which disks each may use.

The way for nodes that hold a replica of the pod's volumes, where anti-affinity and kept replicas make each volume's case
different; and for `explain`, which wants disks by name. For every other node it finds what the node's profile says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_core.cluster.view import View
from scheduler_core.evaluation.disk_profile import OpenDisk, Profile, look
from scheduler_core.evaluation.fit import plan_for, reason_for, safety_for
from scheduler_core.evaluation.reasons import Blocked, blocked_by
from scheduler_core.longhorn.anti_affinity import SoftAntiAffinity
from scheduler_core.longhorn.disk_stage import disk_and_space_refusal
from scheduler_core.longhorn.placement import cluster_refusal, disk_candidates, prefiltered
from scheduler_core.longhorn.replica_request import Ask
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import Budget
from scheduler_core.packing.order_safe import Safety
from scheduler_core.volumes.local_replicas import kept_on
from scheduler_core.volumes.requirements import Needs, needs
from scheduler_core.volumes.resolve import PodVolume, Resolution


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A node as a pod's volumes find it.

    Attributes:
        needs: the local volumes without a kept replica on this node
        blocked: why the node is out whatever the sizes, or None
        disks: the open disks, in the order of the profile
        only: for some needs, by index, the bit mask of disks that anti-affinity leaves them
        beside: the claims of the needs that are of other pods; plans leave them out
    """

    needs: Needs
    blocked: Blocked | None = None
    disks: tuple[OpenDisk, ...] = ()
    only: Mapping[int, int] = field(default_factory=dict[int, int])
    beside: frozenset[str] = frozenset()

    @property
    def profile(self) -> Profile:
        """What packing reads."""
        return Profile(self.blocked.reason if self.blocked else None, self.disks)

    def reason(self, budget: Budget) -> Reason:
        """Whether all needs have room here together."""
        if self.blocked is None and not self.needs.sizes:
            return Reason.ROOM
        return reason_for(self.needs, self.profile, budget, self.only)

    def safety(self, budget: Budget) -> Safety:
        """Whether every order of placing the needs succeeds here; only meaningful where they have room."""
        return safety_for(self.needs, self.profile, budget, self.only)

    def plan(self, budget: Budget) -> dict[str, str] | None:
        """A disk UUID for each volume that needs space here, by volume name; None if none was found."""
        found = plan_for(self.needs, self.profile, budget, self.only)
        if found is None:
            return None
        pairs = zip(self.needs.volumes, found, strict=True)
        own = [(volume.name, self.disks[disk].uuid) for volume, disk in pairs if volume.claim not in self.beside]
        return dict(sorted(own))


def stop(view: View, resolution: Resolution) -> Blocked | None:
    """What stops Longhorn before it looks at any node for one of the local volumes; then no node can take it.

    A setting that cannot be read is such a thing, whichever it is: its default may be far from what was meant.
    """
    for name in sorted(view.settings.faults):
        return Blocked(Reason.BAD_SETTING, str(view.settings.faults[name]))
    for volume in resolution.local:
        refusal = cluster_refusal(view.cluster, Ask.fresh(volume.volume))
        if refusal is not None:
            return blocked_by(refusal)
    return None


def local_node(view: View, resolution: Resolution, name: str, beside: tuple[PodVolume, ...] = ()) -> LocalNode:
    """What the pod's volumes, and those of others that will be there `beside` them, find on one node."""
    open_volumes = [volume for volume in resolution.local if name not in kept_on(volume, view.cluster)]
    wanted = needs((*open_volumes, *beside) if open_volumes else (), resolution.volumes)
    found = look(view, wanted.kinds, name)
    if isinstance(found, Blocked):
        return LocalNode(wanted, found)
    only: dict[int, int] = {}
    for index, volume in enumerate(wanted.volumes):
        if any(replica.node_id == name for replica in volume.replicas):
            mask = _beside_replicas(view, volume, name, found)
            if isinstance(mask, Blocked):
                return LocalNode(wanted, mask)
            # With soft anti-affinity Longhorn turns to the other disks when these are full.
            if not SoftAntiAffinity.of(volume.volume, view.settings).disk:
                only[index] = mask
    return LocalNode(wanted, None, found, only, frozenset(volume.claim for volume in beside))


def _beside_replicas(view: View, volume: PodVolume, name: str, disks: tuple[OpenDisk, ...]) -> int | Blocked:
    """The disks Longhorn tries first for a local replica on a node that has replicas of the volume already.

    Longhorn places the local replica with hardNodeAffinity, so replicas on other nodes use neither node nor zone.
    """
    cluster = view.cluster
    node = cluster.nodes[name]
    ask = Ask.fresh(volume.volume, hard_node_affinity=name)
    found = disk_candidates(cluster, ask, {name: node}, {name: prefiltered(cluster, ask, node)}, volume.replicas)
    uuids = {candidate.disk.uuid for candidate in found.disks}
    if not uuids and any(
        disk_and_space_refusal(cluster, ask, node, disk, view.uncounted_on(name, disk)) is None for disk in node.disks
    ):
        return Blocked(
            Reason.ANTI_AFFINITY, f"replicas of volume {volume.name} on node {name} leave no disk to another"
        )
    return sum(1 << index for index, disk in enumerate(disks) if not uuids or disk.uuid in uuids)
