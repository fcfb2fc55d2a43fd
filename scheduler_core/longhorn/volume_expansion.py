"""Whether a volume may grow (scheduler/replica_scheduler.go:CheckReplicasSizeExpansion)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.refusal_rules import ScheduleError
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import disk_space, minimal_available, scheduling_limit, space_refusal
from scheduler_core.model.longhorn import Disk, Replica, Volume


@dataclass(frozen=True, slots=True)
class ExpansionResult:
    """Whether a volume may grow."""

    reason: ScheduleError | None = None  # why it may not, or None
    disk: str = ""  # the UUID of the disk that cannot hold it, or ""

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
        elif not can_grow(disk, cluster.settings, (new_size - volume.size) * count):
            refused.add(ExpansionResult(ScheduleError.INSUFFICIENT_STORAGE, uuid))
    return frozenset(refused or {ALLOWED})


def can_grow(disk: Disk, settings: Settings, increase: int) -> bool:
    """Whether a disk's replicas can grow by `increase` bytes, physically and by the scheduling space."""
    return (
        _has_physical_space(disk, settings, increase) and space_refusal(increase, 0, disk_space(disk, settings)) is None
    )


def _has_physical_space(disk: Disk, settings: Settings, increase: int) -> bool:
    """Whether a disk could hold the whole increase, written (ValidateDiskAvailableForExpansion)."""
    # The reserve counts as free here.
    if increase <= 0:
        return True
    if not disk_space(disk, settings).open:
        return False
    used = disk.storage_maximum - disk.storage_available - disk.storage_reserved + increase
    unused = disk.storage_maximum - used
    return unused >= minimal_available(disk, settings) and used <= scheduling_limit(disk, settings)
