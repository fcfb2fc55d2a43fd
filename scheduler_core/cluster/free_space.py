"""Bytes that each disk of a node can still take, beyond what Longhorn's status says, and the growth that claims request.

Longhorn's node controller adds up every replica of a disk, whatever its state, but its status lags behind. So replicas that are placed
and not listed yet are subtracted here. Where a disk has a DiskSchedule, what is granted or pending there counts too, and its limit holds.

Growth counts on the disks of a volume's replicas before Longhorn grows them. Data flow: a claim that requests more than its
PersistentVolume has → the size that Longhorn's CSI driver makes of the request → volumes that grow → bytes by disk. Kubernetes admits such
a request only where the StorageClass allows expansion. Longhorn grows all replicas or none, and refuses if one disk lacks the space
(`longhorn/volume_validation.py`). The request then stays, and would block its disks without end. So growth counts only while every disk has
space for it, also together with the other growth that counts, by volume name.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from scheduler_core.disk_schedule import allocation, reconcile
from scheduler_core.disk_schedule.disk_space import account
from scheduler_core.longhorn import csi_driver, volume_validation
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import DiskSpace, disk_space, scheduling_limit
from scheduler_core.model import longhorn
from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.structs import replace

Replicas = tuple[longhorn.Replica, ...]
# If one of these fields cannot be read, the bytes held or pending on the disk are unknown.
_ACCOUNTED_FIELDS = frozenset({"spec.replicas", "spec.backingImages", "status.replicas", "status.backingImages"})
_NO_GROWTH: Mapping[str, int] = MappingProxyType({})


class FreeSpace(dict[str, DiskSpace]):
    """The space left on a node's disks, by name."""

    __slots__ = ("free",)

    def __init__(self, disks: Mapping[str, DiskSpace]) -> None:
        super().__init__(disks)
        self.free = sum(max(0, disk.free) for disk in disks.values())  # bytes that all disks can still take in sum


def free_space_of(
    node: longhorn.Node,
    settings: Settings,
    unlisted: Mapping[str, Replicas],
    schedules: Mapping[str, DiskSchedule],
    growth: Mapping[str, int] = _NO_GROWTH,
) -> FreeSpace:
    """Returns the space left on a node's disks. `unlisted` has `unlisted_replicas` by disk UUID, `growth` the bytes
    that claims request in addition.
    """
    disks: dict[str, DiskSpace] = {}
    for disk in node.disks:
        replicas = unlisted.get(disk.uuid) or ()
        schedule = effective_schedule(disk, schedules)
        space = (
            disk_space(disk, settings, unlisted_bytes(disk, replicas))
            if schedule is None
            else _disk_schedule_space(node, disk, settings, replicas, schedule)
        )
        increase = growth.get(disk.uuid)
        if increase:
            grants = None if space.grants is None else space.grants - increase
            uncounted = space.uncounted + increase
            space = replace(space, free=space.free - increase, grants=grants, uncounted=uncounted)
        disks[disk.name] = space
    return FreeSpace(disks)


def effective_schedule(disk: longhorn.Disk, schedules: Mapping[str, DiskSchedule]) -> DiskSchedule | None:
    # A DiskSchedule that only mirrors what Longhorn allocates by itself does not count.
    schedule = schedules.get(disk.uuid) if schedules and disk.uuid else None
    return None if schedule is None or schedule.mirrored else schedule


def _disk_schedule_space(
    node: longhorn.Node, disk: longhorn.Disk, settings: Settings, replicas: Replicas, schedule: DiskSchedule
) -> DiskSpace:
    accounting = account(disk, schedule, replicas)
    free = accounting.free
    if schedule.owned_by_longhorn:
        # longhorn-manager grants up to its over-provisioning limit, not up to the available bytes (GetDiskOverProvisionLimit).
        free += scheduling_limit(disk, settings) - disk.storage_available
    limit = reconcile.limit_of(schedule, node if schedule.spec.node == node.name else None)
    # No bytes are free where its controller would refuse every request.
    refuses = limit.reason != "" or any(fault.field in _ACCOUNTED_FIELDS for fault in schedule.faults)
    grants = min(free, 0) if refuses else free
    return disk_space(disk, settings, accounting.uncounted, grants)


def unlisted_bytes(disk: longhorn.Disk, replicas: Replicas) -> int:
    """Bytes of the replicas beyond what the status lists."""
    # A replica that is listed with its size before it grew counts with the difference.
    return sum(replica.size - disk.scheduled_replicas.get(replica.name, 0) for replica in replicas)


def unlisted_replicas(disk: longhorn.Disk, replicas: Replicas) -> Replicas:
    """Returns the replicas that the disk's status does not list yet, or lists with their size before they grew."""
    if not disk.uuid:
        return ()
    listed = disk.scheduled_replicas
    return tuple(each for each in replicas if each.node_id and each.size > listed.get(each.name, -1))


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
    if volume is None or volume.driver != csi_driver.DRIVER or volume.claim is None:
        return 0
    claim = snapshot.claims.get(volume.claim[:2])
    if claim is None or claim.deleting or claim.spec.volume_name != volume.name:
        return 0
    if volume.claim[2] not in ("", claim.uid):
        return 0
    request = claim.spec.request or 0
    # The minimum of other file systems is smaller, and a volume has at least that of its own.
    # A PersistentVolume that was created by hand may be larger than its claim requests.
    return csi_driver.csi_size(request, "") if request > volume.capacity else 0


def count_growth(
    sizes: Mapping[str, int], cluster: Cluster, unlisted: Mapping[str, Replicas], node_of_disk: Mapping[str, str]
) -> tuple[dict[str, longhorn.Volume], Counter[str]]:
    """Returns the growth that counts: the volumes with their new size, by name, and the bytes that they grow by, by disk UUID. `sizes`
    has `requested_size` by Longhorn volume, `unlisted` has `unlisted_replicas` by disk UUID.
    """
    schedules = cluster.snapshot.disk_schedules
    replicas_by_volume = {
        name: [replica for replica in cluster.replicas_by_volume.get(name) or () if replica.node_id]
        for name in sorted(sizes)
    }
    names = {node_of_disk.get(replica.disk_id) or "" for members in replicas_by_volume.values() for replica in members}
    # By disk UUID, the disk, its DiskSchedule, and its free bytes without growth.
    disks: dict[str, tuple[longhorn.Disk, DiskSchedule | None, int]] = {}
    for node in filter(None, map(cluster.nodes.get, names)):
        space = free_space_of(node, cluster.settings, unlisted, schedules)
        for disk in node.disks:
            if node_of_disk.get(disk.uuid) == node.name:
                disks[disk.uuid] = (disk, effective_schedule(disk, schedules), space[disk.name].free)
    volumes: dict[str, longhorn.Volume] = {}
    by_disk = Counter[str]()

    def has_space(uuid: str, increase: int) -> bool:
        if uuid not in disks:
            return False
        disk, schedule, free = disks[uuid]
        allowed = schedule is not None or not volume_validation.growth_refusal(disk, cluster.settings, increase)
        return not increase or (allowed and increase + by_disk[uuid] <= free)

    for name, replicas in replicas_by_volume.items():
        increases = Counter[str]()
        for replica in replicas:
            counted = replica.size
            if replica.disk_id in disks:
                disk, schedule, _ = disks[replica.disk_id]
                counted = max(counted, disk.scheduled_replicas.get(replica.name, 0))
                if schedule is not None:
                    held = allocation.claims(schedule.spec.replicas, schedule.status.replicas)
                    counted = max(counted, held.get(replica.name, 0))
            increases[replica.disk_id] += max(0, sizes[name] - counted)
        if all(has_space(uuid, increase) for uuid, increase in increases.items()):
            volume = cluster.snapshot.volumes[name]
            volumes[name] = replace(volume, size=max(volume.size, sizes[name]))
            by_disk += increases
    return volumes, by_disk
