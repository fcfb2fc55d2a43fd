"""Longhorn's status that shows a placement later than it happens.

A `Replica` object has its node and disk at once. `storageScheduled` and `scheduledReplica` of the node's status follow when its
longhorn-manager syncs the node (`node_controller.go`). Until then Longhorn counts only the replicas of the same volume in addition, so
that several volumes may be placed on the same free bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler_core.model import longhorn
from scheduler_core.predict.predicted_cluster import (
    ChangesByObject,
    PredictedCluster,
    with_disk,
    with_schedulable_condition,
)


@dataclass(frozen=True, slots=True)
class StatusChange:
    """What a node's status does not show yet: the difference of two versions of the status."""

    before: longhorn.Node
    after: longhorn.Node

    @property
    def frees_space(self) -> bool:
        """Whether some disk has fewer bytes promised or written afterwards."""
        earlier = {disk.name: disk for disk in self.before.disks}
        return any(
            disk.storage_scheduled < earlier[disk.name].storage_scheduled
            or disk.storage_available > earlier[disk.name].storage_available
            for disk in self.after.disks
            if disk.name in earlier
        )


def hide_changes(
    before: PredictedCluster, after: PredictedCluster
) -> tuple[PredictedCluster, tuple[StatusChange, ...]]:
    """Returns the later cluster with every Longhorn node's earlier status, and what that leaves out."""
    earlier = before.snapshot.longhorn_nodes
    changes = tuple(
        StatusChange(earlier[name], node)
        for name, node in after.snapshot.longhorn_nodes.items()
        if name in earlier and earlier[name] is not node
    )
    statuses: ChangesByObject = {("longhorn_nodes", change.before.name): change.before for change in changes}
    return after.update(statuses), changes


def show_change(cluster: PredictedCluster, change: StatusChange) -> PredictedCluster:
    """Returns the cluster whose status shows the change, too; what the status shows already stays."""
    node = cluster.snapshot.longhorn_nodes.get(change.before.name)
    if node is None:
        return cluster
    earlier = {disk.name: disk for disk in change.before.disks}
    later = {disk.name: disk for disk in change.after.disks}
    for disk in node.disks:
        if disk.name in earlier and disk.name in later and earlier[disk.name] != later[disk.name]:
            shown = _add_difference(disk, earlier[disk.name], later[disk.name])
            node = with_disk(node, with_schedulable_condition(cluster, shown))
    return cluster.update({("longhorn_nodes", node.name): node})


def _add_difference(disk: longhorn.Disk, before: longhorn.Disk, after: longhorn.Disk) -> longhorn.Disk:
    kept = {
        name: size
        for name, size in disk.scheduled_replicas.items()
        if name in after.scheduled_replicas or name not in before.scheduled_replicas
    }
    added = {
        name: size for name, size in after.scheduled_replicas.items() if before.scheduled_replicas.get(name) != size
    }
    scheduled = disk.storage_scheduled + after.storage_scheduled - before.storage_scheduled
    available = disk.storage_available + after.storage_available - before.storage_available
    return replace(
        disk,
        scheduled_replicas=kept | added,
        storage_scheduled=max(0, scheduled),
        storage_available=min(disk.storage_maximum, max(0, available)),
    )
