"""Volumes that Longhorn attaches for no workload now, whatever the node (types.IsVolumeReady), and those that may not
grow (scheduler/replica_scheduler.go:CheckReplicasSizeExpansion).

Left out are the two rules about volumes that are not detached yet or have replicas without a place: such a volume becomes ready by
itself, and whether its replicas find a place is decided with the whole pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.node_status import is_down
from scheduler_core.longhorn.refusal_rules import Refusal, Rule, ScheduleError
from scheduler_core.longhorn.replica_request import is_data_from_volume
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import (
    disk_space,
    minimal_available,
    minimal_available_text,
    scheduling_limit,
    scheduling_limit_text,
    space_detail,
    space_refusal,
)
from scheduler_core.model.longhorn import Disk, Replica, Volume
from scheduler_core.model.quantity import format_bytes

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
    node = cluster.nodes.get(replica.node_id)
    if node is None or not node.ready or is_down(cluster, node.name):
        return False
    return any(disk.uuid == replica.disk_id and disk.ready for disk in node.disks)


@dataclass(frozen=True, slots=True)
class ExpansionResult:
    """Whether a volume may grow."""

    reason: ScheduleError | None = None  # why it may not, or None
    disk: str = ""  # the UUID of the disk that cannot hold it, or ""
    detail: str = field(default="", compare=False)  # the numbers behind the reason, as a sentence

    @property
    def allowed(self) -> bool:
        return self.reason is None


ALLOWED = ExpansionResult()


def check_expansion(
    cluster: Cluster, volume: Volume, replicas: Iterable[Replica], new_size: int
) -> frozenset[ExpansionResult]:
    """Every answer Longhorn may give for a new size. `new_size` is in bytes. Longhorn reports the first disk that
    fails, in random order.
    """
    disks = {
        disk.uuid: disk for node in cluster.nodes.values() for disk in node.disks if disk.in_spec and disk.in_status
    }
    replicas_by_disk = Counter(replica.disk_id for replica in replicas if replica.node_id)
    refused: set[ExpansionResult] = set()
    for uuid, count in sorted(replicas_by_disk.items()):
        disk = disks.get(uuid)
        if disk is None:
            refused.add(ExpansionResult(ScheduleError.DISK_NOT_FOUND, uuid))
        elif detail := _growth_refusal(disk, cluster.settings, (new_size - volume.size) * count):
            refused.add(ExpansionResult(ScheduleError.INSUFFICIENT_STORAGE, uuid, detail))
    return frozenset(refused or {ALLOWED})


def can_grow(disk: Disk, settings: Settings, increase: int) -> bool:
    return not _growth_refusal(disk, settings, increase)


def _growth_refusal(disk: Disk, settings: Settings, increase: int) -> str:
    space = disk_space(disk, settings)
    physical = _physical_refusal(disk, settings, increase) if increase > 0 and space.open else ""
    rule = space_refusal(increase, 0, space)
    if physical or rule is None:
        return physical
    return space_detail(rule, disk, settings, space, Volume(name="", size=increase))


def _physical_refusal(disk: Disk, settings: Settings, increase: int) -> str:
    """Why a disk could not hold the whole increase, written (ValidateDiskAvailableForExpansion), "" if it could."""
    # The reserve counts as free here.
    used = disk.storage_maximum - disk.storage_available - disk.storage_reserved + increase
    unused = disk.storage_maximum - used
    if unused < minimal_available(disk, settings):
        least = minimal_available_text(disk, settings)
        return f"disk {disk.name}: {format_bytes(unused)} free once the growth is written must be at least {least}"
    if used > scheduling_limit(disk, settings):
        most = scheduling_limit_text(disk, settings)
        return f"disk {disk.name}: {format_bytes(used)} used once the growth is written must be at most {most}"
    return ""
