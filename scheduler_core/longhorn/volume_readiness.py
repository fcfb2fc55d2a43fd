"""Volumes that Longhorn attaches for no workload now, whatever the node (types.IsVolumeReady).

Left out are the two rules about volumes that are not detached yet or have replicas without a place: such a volume becomes ready by
itself, and whether its replicas find a place is decided with the whole pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.node_status import is_down
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
    with_data = [each for each in replicas if each.healthy_at and each.node_id and not each.deleting]
    if volume.robustness == FAULTED and not any(_is_salvageable(replica, cluster) for replica in with_data):
        return Refusal(Rule.VOLUME_FAULTED, f"volume {volume.name} is faulted and has no replica to salvage")
    # Longhorn says so only when it attaches the volume: a pod would have its node by then, and wait there.
    if with_data and all(is_down(cluster, replica.node_id) for replica in with_data):
        nodes = ", ".join(sorted({replica.node_id for replica in with_data}))
        detail = f"volume {volume.name} is faulted once it is attached: its data is only on nodes that are gone or not ready ({nodes})"
        return Refusal(Rule.VOLUME_FAULTED, detail)
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


def _is_salvageable(replica: Replica, cluster: Cluster) -> bool:
    """Whether Longhorn can bring up a faulted volume from a replica with data (ReconcileVolumeState, auto-salvage)."""
    node = cluster.nodes.get(replica.node_id)
    if node is None or not node.ready or is_down(cluster, node.name):
        return False
    return any(disk.uuid == replica.disk_id and disk.ready for disk in node.disks)
