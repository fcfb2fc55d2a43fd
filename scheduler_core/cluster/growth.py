"""Growth of volumes that claims request, which counts on the disks of their replicas before Longhorn grows them.

Data flow: a claim that requests more than its PersistentVolume has → the size that Longhorn's CSI driver makes of the request → volumes
that grow → bytes by disk. Kubernetes admits such a request only where the StorageClass allows expansion. Longhorn grows all replicas or
none, and refuses if one disk lacks the space (`longhorn/volume_expansion.py`). The request then stays, and would block its disks without
end. So growth counts only while every disk has space for it, also together with the other growth that counts, by volume name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from scheduler_core.cluster.free_space import Replicas, effective_schedule
from scheduler_core.disk_schedule.allocation import claims
from scheduler_core.longhorn.provisioned_volume import DRIVER, csi_size
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import DiskSpace
from scheduler_core.longhorn.volume_expansion import can_grow
from scheduler_core.model import longhorn
from scheduler_core.model.snapshot import Snapshot


def requested_size(handle: str, persistent_volumes: Iterable[str], replicas: Replicas, snapshot: Snapshot) -> int:
    """Returns the size to which a Longhorn volume has to grow. In bytes, 0 if neither its claim nor the volume asks for
    more than the volume and its placed replicas have. `persistent_volumes` are the names of those with this handle. An
    expansion that Longhorn has admitted shows in the volume before it shows in its replicas.
    """
    volume = snapshot.volumes.get(handle)
    if volume is None or volume.deleting:
        return 0
    size = max((_request(name, snapshot) for name in persistent_volumes), default=0)
    size = max(size, volume.size)
    smallest = min((replica.size for replica in replicas if replica.node_id), default=size)
    return size if size > min(volume.size, smallest) else 0


def _request(persistent_volume: str, snapshot: Snapshot) -> int:
    """Returns what a PersistentVolume's claim requests, 0 if it needs no growth."""
    volume = snapshot.persistent_volumes.get(persistent_volume)
    if volume is None or volume.driver != DRIVER or volume.claim is None:
        return 0
    claim = snapshot.claims.get(volume.claim[:2])
    if (
        claim is None
        or claim.deleting
        or claim.spec.volume_name != volume.name
        or volume.claim[2] not in ("", claim.uid)
    ):
        return 0
    request = claim.spec.request or 0
    # The minimum of other file systems is smaller, and a volume has at least that of its own.
    # A PersistentVolume that was created by hand may be larger than its claim requests.
    return csi_size(request, "") if request > volume.capacity else 0


@dataclass(slots=True)
class Growth:
    """The growth that counts."""

    snapshot: Snapshot
    settings: Settings
    # Returns a disk by its UUID, and its space without growth; None if no node has it.
    space_of: Callable[[str], tuple[longhorn.Disk, DiskSpace] | None]
    # The volumes that grow, with their new size, by name.
    volumes: dict[str, longhorn.Volume] = field(default_factory=dict[str, longhorn.Volume])
    by_disk: Counter[str] = field(default_factory=Counter[str])  # bytes that they grow by, by disk UUID

    def add(self, name: str, size: int, replicas: Replicas) -> None:
        """Adds the growth of a volume to a size, if every disk has space for it."""
        increases = Counter[str]()
        for replica in replicas:
            if replica.node_id:
                increases[replica.disk_id] += self._increase(replica, size)
        if all(self._has_space(uuid, increase) for uuid, increase in increases.items()):
            volume = self.snapshot.volumes[name]
            self.volumes[name] = replace(volume, size=max(volume.size, size))
            self.by_disk += increases

    def _increase(self, replica: longhorn.Replica, size: int) -> int:
        """Bytes that a replica grows by and that do not count on its disk yet."""
        located = self.space_of(replica.disk_id)
        counted = replica.size
        if located is not None:
            disk, _ = located
            counted = max(counted, disk.scheduled_replicas.get(replica.name, 0))
            schedule = effective_schedule(disk, self.snapshot.disk_schedules)
            if schedule is not None:
                counted = max(counted, claims(schedule.spec.replicas, schedule.status.replicas).get(replica.name, 0))
        return max(0, size - counted)

    def _has_space(self, uuid: str, increase: int) -> bool:
        located = self.space_of(uuid)
        if located is None:
            return False
        disk, space = located
        has_schedule = effective_schedule(disk, self.snapshot.disk_schedules) is not None
        allowed = not increase or has_schedule or can_grow(disk, self.settings, increase)
        return allowed and (not increase or increase + self.by_disk[uuid] <= space.free)
