"""What disks hold and take, and the largest volume per StorageClass, by the numbers that decisions read: a diagram of
them shows what kube-scheduler is answered.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from scheduler_core import errors
from scheduler_core.cluster.view import View
from scheduler_core.evaluation import cluster_state, disk_profiles
from scheduler_core.longhorn import csi_driver, placement
from scheduler_core.longhorn.refusal_rules import Rule
from scheduler_core.longhorn.replica_request import ReplicaRequest, is_v2
from scheduler_core.longhorn.space import DiskSpace, space_detail, space_refusal
from scheduler_core.longhorn.stages import candidate_refusal, file_size_limit, prefilter_refusal, schedulable_refusal
from scheduler_core.model import kube, longhorn, verdict
from scheduler_core.structs import Struct
from scheduler_core.volumes.volume_requirements import VolumeClasses, volume_class

_REQUEST_BY_DISK_TYPE = {
    longhorn.FILESYSTEM: ReplicaRequest.for_volume(longhorn.Volume(name="", data_engine=longhorn.V1)),
    longhorn.BLOCK: ReplicaRequest.for_volume(longhorn.Volume(name="", data_engine=longhorn.V2)),
}


class DiskUsage(NamedTuple):
    """The space of one disk, in bytes."""

    node: str
    disk: str
    maximum: int  # size of the disk (storageMaximum)
    reserved: int  # what Longhorn leaves to others (storageReserved)
    scheduled: int  # sizes of the replicas and images in Longhorn's status (storageScheduled)
    promised: int  # sizes that are not in that status yet: placed replicas, and growth that claims request
    free: int  # what replicas may still take by the rules; negative while the limit is exceeded
    written: int  # what files take, those of other programs included (storageMaximum - storageAvailable)
    closed_by: disk_profiles.Refused | None  # why the disk takes no new replica of any size, None if it does


class CapacityReport(Struct, frozen=True):
    """The space of a cluster at one time."""

    disks: tuple[DiskUsage, ...]  # by node and name; none if they were left out
    demand: Mapping[str, int]  # by node, bytes of volumes that will take space there and have no replica there yet
    # By Longhorn's StorageClasses, bytes of the largest new volume of which some node can take a replica now; 0 if
    # nothing fits. Demand, offers and further replicas are not counted.
    largest_volumes: Mapping[str, int]

    @classmethod
    def of(cls, state: cluster_state.ClusterState, *, with_disks: bool = True) -> "CapacityReport":
        """Reports a state. The cost grows with disks, and with nodes times different StorageClasses."""
        view = state.view
        nodes = sorted(view.cluster.nodes)
        reported = nodes if with_disks else []
        by_node = state.demand.by_node
        return cls(
            disks=tuple(usage for name in reported for usage in disk_usages(view, view.cluster.nodes[name])),
            demand={name: sum(demand.volume.volume.size for demand in by_node.get(name) or ()) for name in nodes},
            largest_volumes=largest_volumes(view),
        )


def disk_usages(view: View, node: longhorn.Node) -> tuple[DiskUsage, ...]:
    """Returns the space of a node's disks, by name."""
    free_space = view.free_space(node.name)
    of_node: dict[str, disk_profiles.Refused | None] = {}
    usages: list[DiskUsage] = []
    for disk in node.disks:
        request = _REQUEST_BY_DISK_TYPE.get(disk.spec_type)
        space = free_space[disk.name]
        refused: disk_profiles.Refused | None = disk_profiles.Refused(
            verdict.Reason.DISK_TYPE, f"disk {disk.name} has type {disk.spec_type!r}"
        )
        if request is not None:
            if disk.spec_type not in of_node:
                of_node[disk.spec_type] = _node_refusal(view, request, node)
            refused = of_node[disk.spec_type] or _disk_refusal(view, request, disk, space)
        usage = DiskUsage(
            node=node.name,
            disk=disk.name,
            maximum=disk.storage_maximum,
            reserved=disk.storage_reserved,
            scheduled=disk.storage_scheduled,
            promised=space.uncounted,
            free=space.free,
            written=disk.storage_maximum - disk.storage_available,
            closed_by=refused,
        )
        usages.append(usage)
    return tuple(usages)


def _node_refusal(view: View, request: ReplicaRequest, node: longhorn.Node) -> disk_profiles.Refused | None:
    """Returns why a node takes no new replica of a data engine, whatever its tags."""
    refused = disk_profiles.new_replica_refusal(view, node.name)
    if refused is not None:
        return refused
    refusal = schedulable_refusal(view.cluster, request, node) or candidate_refusal(view.cluster, request, node)
    return disk_profiles.reason_of(refusal) if refusal is not None else None


def _disk_refusal(
    view: View, request: ReplicaRequest, disk: longhorn.Disk, space: DiskSpace
) -> disk_profiles.Refused | None:
    refusal = prefilter_refusal(view.cluster, request, disk)
    if refusal is not None:
        return disk_profiles.reason_of(refusal)
    rule = space_refusal(1, 0, space)
    if rule is None:
        return None
    full = f"disk {disk.name} has no space left to schedule"
    detail = full if rule is Rule.SCHEDULING_SPACE else space_detail(rule, disk, view.settings, space, request.volume)
    return disk_profiles.Refused(disk_profiles.REASONS[rule], detail)


class _Needs(NamedTuple):
    """What the new volumes of a StorageClass need."""

    classes: VolumeClasses | None  # what they require of a node, None if Longhorn refuses them on every node
    smallest: int  # bytes of the smallest one


def _storage_class_needs(view: View) -> dict[str, _Needs]:
    return {
        name: _Needs(_classes_of(view, entry), _smallest_volume(view, entry))
        for name, entry in sorted(view.snapshot.storage_classes.items())
        if entry.provisioner == csi_driver.DRIVER
    }


def _smallest_volume(view: View, storage_class: kube.StorageClass) -> int:
    image = view.snapshot.backing_images.get(storage_class.parameters.get("backingImage", ""))
    return csi_driver.csi_size(
        image.virtual_size if image is not None else 0, csi_driver.file_system(storage_class.parameters)
    )


def largest_volumes(view: View) -> dict[str, int]:
    """Returns `CapacityReport.largest_volumes`; equal classes are computed once."""
    needs = _storage_class_needs(view)
    most_free = (
        (max((space.free for space in view.free_space(name).values()), default=0), name) for name in view.cluster.nodes
    )
    by_free_space = sorted(most_free, reverse=True)
    largest = dict.fromkeys(_classes(needs), 0)
    for classes in largest:
        for free, name in by_free_space:
            # No disk takes more than it has free, so that no later node takes more either.
            if free <= largest[classes]:
                break
            largest[classes] = max(largest[classes], _largest_on_node(view, classes, view.cluster.nodes[name]))
    return _by_storage_class(needs, largest)


def _by_storage_class(needs: Mapping[str, _Needs], largest: Mapping[VolumeClasses, int]) -> dict[str, int]:
    return {
        name: largest[classes] if classes is not None and largest[classes] >= smallest else 0
        for name, (classes, smallest) in needs.items()
    }


def _classes(needs: Mapping[str, _Needs]) -> Iterable[VolumeClasses]:
    return dict.fromkeys(classes for classes, _ in needs.values() if classes is not None)


def _classes_of(view: View, storage_class: kube.StorageClass) -> VolumeClasses | None:
    """Returns what a new volume of a StorageClass requires of a node, None if Longhorn refuses it on every node."""
    try:
        claim = kube.ClaimSpec(request=_smallest_volume(view, storage_class))
        known = csi_driver.Provisioning(view.settings, view.snapshot.backing_images, view.snapshot.backups)
        volume = csi_driver.volume_for_claim("", claim, storage_class.parameters, known, subject="")
    except errors.ResolutionError:
        return None
    request = volume_class(volume)
    if view.settings.faults or placement.cluster_refusal(view.cluster, request) is not None:
        return None
    return VolumeClasses((request,))


def _largest_on_node(view: View, classes: VolumeClasses, node: longhorn.Node) -> int:
    disks = disk_profiles.profile_node(view, classes, node.name)
    if isinstance(disks, disk_profiles.Refused):
        return 0
    limited = not is_v2(classes.requests[0].volume.data_engine)
    limits = {disk.uuid: file_size_limit(disk.filesystem_type) if limited else None for disk in node.disks}
    largest = 0
    for disk in disks:
        free = disk.free - sum(size for _, size in disk.copies)
        limit = limits[disk.uuid]
        largest = max(largest, free if limit is None else min(free, limit - 1))
    return largest // csi_driver.SIZE_STEP * csi_driver.SIZE_STEP


class LargestVolumes:
    """The largest new volume of each StorageClass, in clusters that differ from a first one in few nodes."""

    def __init__(self, view: View) -> None:
        self._needs = _storage_class_needs(view)
        self._nodes = view.cluster.nodes
        self._by_size = {
            classes: sorted(
                ((_largest_on_node(view, classes, node), node.name) for node in self._nodes.values()), reverse=True
            )
            for classes in _classes(self._needs)
        }

    def after(self, view: View, changed_nodes: Collection[str] = ()) -> dict[str, int]:
        """Returns the bytes by StorageClass in a changed cluster, which may differ from the first one in some nodes."""
        # A move replaces the nodes of both disks, so that the others are the same objects.
        nodes = (view.cluster.nodes[name] for name in changed_nodes)
        changed = {node.name: node for node in nodes if node is not self._nodes[node.name]}
        largest: dict[VolumeClasses, int] = {}
        for classes, sizes in self._by_size.items():
            unchanged = next((size for size, name in sizes if name not in changed), 0)
            largest[classes] = max(unchanged, *(_largest_on_node(view, classes, node) for node in changed.values()), 0)
        return _by_storage_class(self._needs, largest)
