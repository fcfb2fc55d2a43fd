"""Whether a volume may grow (scheduler/replica_scheduler.go:CheckReplicasSizeExpansion)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.refusal_rules import ScheduleError
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
    """Why a disk's replicas cannot grow by `increase` bytes, physically or by the scheduling space, "" if they can."""
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
