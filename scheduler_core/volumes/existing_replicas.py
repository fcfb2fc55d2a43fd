"""Which nodes already hold a restarted pod's local volumes, where a volume needs no new space, and where a strict-local volume stays.

What one replica means on a ready node and a ready disk (Longhorn's scheduler-extender proposal, Filter step 3):

| replica                                        | makes the node a home                    | needs new space there |
|------------------------------------------------|------------------------------------------|-----------------------|
| healthy, active, not evicting, not deleting    | yes                                      | no                    |
| placed, never healthy (first attach, rebuild)  | only if no candidate has a healthy one   | no                    |
| failed, but reusable or salvageable            | only if the volume has no healthy one    | no                    |
| evicting, deleting, not reusable               | no                                       | yes                   |

A cordon, `allowScheduling: false` or a full disk does not end a home: nothing new is written there. If a volume has no healthy
replica, Longhorn salvages its data from a failed one. If it has one, a failed replica counts only where Longhorn would really
use it again (`longhorn/replenish.py`).
"""

from collections.abc import Collection, Iterable
from enum import Enum

from scheduler_core.longhorn import replenish, stages
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.model import longhorn
from scheduler_core.model.disk_schedule import AllocationState
from scheduler_core.volumes.resolve import PodVolume


class ReplicaUse(Enum):
    """How a pod that returns to a node can use a replica there, the best use first."""

    HEALTHY = "healthy"
    NEW = "new"
    FAILED = "failed"
    NONE = "none"


def is_healthy(replica: longhorn.Replica) -> bool:
    """Whether a replica holds the volume's data and is kept."""
    return bool(stages.stays(replica) and replica.healthy_at and not replica.failed_at)


def _use_of(volume: PodVolume, replica: longhorn.Replica, cluster: Cluster, *, salvage: bool) -> ReplicaUse:
    """Returns the use of one replica. `salvage`: the volume has no healthy replica."""
    node = cluster.nodes.get(replica.node_id)
    schedule = cluster.snapshot.disk_schedules.get(replica.disk_id)
    allocation = schedule.status.replicas.get(replica.name) if schedule is not None else None
    # A replica that the disk's DiskSchedule rejects goes to another disk.
    rejected = allocation is not None and allocation.state is AllocationState.REJECTED and allocation.size == 0
    if node is None or not node.ready or not stages.stays(replica) or rejected:
        return ReplicaUse.NONE
    if not any(disk.uuid == replica.disk_id and disk.ready for disk in node.disks):
        return ReplicaUse.NONE
    if not replica.failed_at:
        return ReplicaUse.HEALTHY if replica.healthy_at else ReplicaUse.NEW
    if salvage:
        usable = replica.potentially_reusable or replica.healthy_at != ""
    else:
        request = ReplicaRequest.for_volume(volume.volume)
        schedulable = stages.schedulable_refusal(cluster, request, node) is None
        usable = schedulable and replenish.is_reusable(cluster, volume.volume, replica, {node.name: node})
    return ReplicaUse.FAILED if usable else ReplicaUse.NONE


def replica_uses(volume: PodVolume, cluster: Cluster) -> dict[str, ReplicaUse]:
    """Returns the best use of the volume's replicas by node. Nodes without a replica are left out."""
    salvage = not any(is_healthy(replica) for replica in volume.replicas)
    order = list(ReplicaUse)
    best: dict[str, ReplicaUse] = {}
    for replica in volume.replicas:
        if replica.node_id:
            use = _use_of(volume, replica, cluster, salvage=salvage)
            best[replica.node_id] = min(best.get(replica.node_id, use), use, key=order.index)
    return best


def nodes_with_replica(volume: PodVolume, cluster: Cluster) -> frozenset[str]:
    """Names of the nodes that keep a replica of the volume, which therefore needs no new space there."""
    return frozenset(name for name, use in replica_uses(volume, cluster).items() if use is not ReplicaUse.NONE)


def strict_local_nodes(volume: PodVolume) -> frozenset[str]:
    """Returns the nodes that a strict-local volume stays on, because a replica has its place there; none means that it may go anywhere."""
    if volume.volume.data_locality != longhorn.STRICT_LOCAL:
        return frozenset()
    return frozenset(replica.node_id for replica in volume.replicas if replica.node_id)


def home_nodes(local: Iterable[PodVolume], candidates: Collection[str], cluster: Cluster) -> frozenset[str]:
    """Names of candidates that are every local volume's home. Volumes that need no local space have no home and are
    left out. Without a local volume there is no home.
    """
    common: frozenset[str] | None = None
    for volume in local:
        uses = {name: use for name, use in replica_uses(volume, cluster).items() if name in candidates}
        usable = {ReplicaUse.HEALTHY}
        if ReplicaUse.HEALTHY not in uses.values():
            salvage = not any(is_healthy(replica) for replica in volume.replicas)
            usable = {ReplicaUse.NEW, ReplicaUse.FAILED} if salvage else {ReplicaUse.NEW}
        homes = frozenset(name for name, use in uses.items() if use in usable)
        common = homes if common is None else common & homes
        # A pod may have thousands of volumes.
        if not common:
            break
    return common or frozenset()
