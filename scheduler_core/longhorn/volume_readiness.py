"""Volumes that Longhorn attaches for no workload now, whatever the node (types.IsVolumeReady).

Left out are the two rules about volumes that are not detached yet or have replicas without a place: such a volume becomes ready by
itself, and whether its replicas find a place is decided with the whole pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.refusal_rules import Refusal, Rule
from scheduler_core.longhorn.replica_request import is_data_from_volume
from scheduler_core.model.longhorn import Replica, Volume

FAULTED: Final = "faulted"
CLONED: Final = "completed"
COPIED: Final = frozenset({"copy-completed-awaiting-healthy", CLONED})
"""States of a clone that has all data. In the first, Longhorn rebuilds its other replicas once it is attached."""


def readiness_refusal(volume: Volume, replicas: Iterable[Replica], cluster: Cluster) -> Refusal | None:
    """The first rule by which an existing volume cannot be attached, or None. `replicas` are all of this volume. A
    faulted volume is refused only without a replica to salvage: with one, Longhorn salvages it and the volume becomes
    ready.
    """
    if volume.deleting:
        return Refusal(Rule.VOLUME_DELETING, f"volume {volume.name} is being deleted")
    if volume.robustness == FAULTED and not any(is_salvageable(replica, cluster) for replica in replicas):
        return Refusal(Rule.VOLUME_FAULTED, f"volume {volume.name} is faulted and has no replica to salvage")
    if volume.restore_required and volume.standby:
        detail = f"volume {volume.name} is on standby: it restores each new backup, and only its activation ends that"
        return Refusal(Rule.VOLUME_STANDBY, detail)
    if volume.restore_required:
        return Refusal(Rule.VOLUME_RESTORING, f"volume {volume.name} is still being restored from its backup")
    if awaits_copy(volume):
        return Refusal(Rule.VOLUME_CLONING, f"volume {volume.name} is still being cloned from {volume.data_source}")
    return None


def awaits_copy(volume: Volume) -> bool:
    """Whether a volume is a clone that does not have its data yet (isCloneTargetCopyInProgress)."""
    return is_data_from_volume(volume.data_source) and volume.clone_state not in COPIED


def is_salvageable(replica: Replica, cluster: Cluster) -> bool:
    """Whether Longhorn can bring up a faulted volume from a replica (ReconcileVolumeState, auto-salvage)."""
    # It has data, on a ready disk of a ready node.
    node = cluster.nodes.get(replica.node_id)
    if node is None or not node.ready or replica.deleting or not replica.healthy_at:
        return False
    return any(disk.uuid == replica.disk_id and disk.ready for disk in node.disks)
