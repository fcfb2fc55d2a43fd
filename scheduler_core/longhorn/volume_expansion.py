"""Whether a volume may grow (scheduler/replica_scheduler.go:CheckReplicasSizeExpansion)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.rules import ScheduleError
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import minimal_available, room, scheduling_limit, space_refusal
from scheduler_core.model.longhorn import Disk, Replica, Volume


@dataclass(frozen=True, slots=True)
class Expansion:
    """Whether a volume may grow; `reason` and the UUID of the disk that cannot hold it otherwise."""

    reason: ScheduleError | None = None
    disk: str = ""

    @property
    def allowed(self) -> bool:
        """Whether the volume may grow."""
        return self.reason is None


ALLOWED = Expansion()


def expansions(cluster: Cluster, volume: Volume, replicas: Iterable[Replica], new_size: int) -> frozenset[Expansion]:
    """Every answer Longhorn may give for a new size in bytes: it reports the first disk that fails, in random order."""
    disks = {
        disk.uuid: disk for node in cluster.nodes.values() for disk in node.disks if disk.in_spec and disk.in_status
    }
    held = Counter(replica.disk_id for replica in replicas if replica.node_id)
    refused: set[Expansion] = set()
    for uuid, count in sorted(held.items()):
        disk = disks.get(uuid)
        if disk is None:
            refused.add(Expansion(ScheduleError.DISK_NOT_FOUND, uuid))
        elif not can_grow(disk, cluster.settings, (new_size - volume.size) * count):
            refused.add(Expansion(ScheduleError.INSUFFICIENT_STORAGE, uuid))
    return frozenset(refused or {ALLOWED})


def can_grow(disk: Disk, settings: Settings, increase: int) -> bool:
    """Whether a disk can hold `increase` bytes more of replicas it has: physically, and by the scheduling space."""
    return _physically(disk, settings, increase) and space_refusal(increase, 0, room(disk, settings)) is None


def _physically(disk: Disk, settings: Settings, increase: int) -> bool:
    """ValidateDiskAvailableForExpansion: as if all of the increase were written. The reserve counts as free here."""
    if increase <= 0:
        return True
    if not room(disk, settings).open:
        return False
    used = disk.storage_maximum - disk.storage_available - disk.storage_reserved + increase
    left = disk.storage_maximum - used
    return left >= minimal_available(disk, settings) and used <= scheduling_limit(disk, settings)
