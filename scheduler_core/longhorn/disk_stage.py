"""Second stage: which disks of a node may take a replica (scheduler/replica_scheduler.go)."""

from __future__ import annotations

from typing import Final

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.refusal_rules import (
    Refusal,
    Rule,
    missing_backing_image,
    selector_refusal,
    setting_refusal,
)
from scheduler_core.longhorn.replica_request import ReplicaRequest, is_v2, sources
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import disk_space, pressure_detail, space_detail, space_refusal
from scheduler_core.model.kube import condition
from scheduler_core.model.longhorn import BLOCK, FILESYSTEM, Disk, Node
from scheduler_core.model.quantity import format_bytes

DISK_PRESSURE: Final = "DiskPressure"
EXT_LIMIT: Final = 16 * 1024**4
XFS_LIMIT: Final = 2**63 - 1
_TAG_SETTING: Final = ("allow-empty-disk-selector-volume",)
_SPACE_SETTINGS: Final = ("storage-over-provisioning-percentage", "storage-minimal-available-percentage")


def disk_refusal(cluster: Cluster, request: ReplicaRequest, _node: Node, disk: Disk) -> Refusal | None:
    """The first rule that refuses a disk, or None. Space and anti-affinity are not checked."""
    return prefilter_refusal(cluster, request, disk) or eligibility_refusal(cluster, request, disk)


def disk_and_space_refusal(
    cluster: Cluster, request: ReplicaRequest, node: Node, disk: Disk, uncounted: int = 0
) -> Refusal | None:
    """The first rule that refuses a disk, space included, or None; anti-affinity is not checked."""
    # `uncounted` bytes are promised on the disk but not in its storageScheduled yet.
    return disk_refusal(cluster, request, node, disk) or space_stage_refusal(cluster, request, disk, uncounted)


def space_setting_refusal(cluster: Cluster) -> Refusal | None:
    return setting_refusal(cluster.settings, _SPACE_SETTINGS)


def prefilter_refusal(cluster: Cluster, request: ReplicaRequest, disk: Disk) -> Refusal | None:
    """Why FindDiskCandidates silently skips a disk, or None. Longhorn never reads the disk's Ready condition here."""
    if not disk.in_status:
        return Refusal(Rule.DISK_NOT_IN_STATUS, f"disk {disk.name} has no status yet")
    # A replica on it would have spec.diskID "", which is a replica without a place.
    if not disk.uuid:
        return Refusal(Rule.DISK_NOT_IN_STATUS, f"disk {disk.name} has no UUID yet")
    if not disk.in_spec:
        return Refusal(Rule.DISK_NOT_IN_SPEC, f"disk {disk.name} was removed from the node's spec")
    # Longhorn checks the two in one condition, and accepts a requested eviction only together with allowScheduling false.
    if disk.eviction_requested:
        return Refusal(Rule.DISK_EVICTION_REQUESTED, f"disk {disk.name} is being evicted (evictionRequested true)")
    if not disk.allow_scheduling:
        return Refusal(Rule.DISK_SCHEDULING_DISABLED, f"disk {disk.name} has allowScheduling false")
    if not disk.schedulable:
        return _not_schedulable(disk, cluster.settings)
    if request.linked_clone and disk.uuid not in sources(cluster, request).disks:
        return Refusal(Rule.LINKED_CLONE_DISK, f"disk {disk.name} has no healthy replica of the cloned volume")
    return None


def _not_schedulable(disk: Disk, settings: Settings) -> Refusal:
    entry = condition(disk.conditions, "Schedulable")
    text = f"disk {disk.name} has condition Schedulable={entry.status}" + (entry.reason and f" ({entry.reason})")
    if entry.reason == DISK_PRESSURE:
        return Refusal(Rule.DISK_PRESSURE, f"{text}: {pressure_detail(disk, settings)}")
    return Refusal(Rule.DISK_NOT_SCHEDULABLE, text)


def eligibility_refusal(cluster: Cluster, request: ReplicaRequest, disk: Disk) -> Refusal | None:
    """Why filterNodeDisksForReplica (IsDiskEligibleForVolume) refuses a disk. Space is checked later, by
    `space_stage_refusal`.
    """
    return (
        setting_refusal(cluster.settings, _TAG_SETTING)
        or type_refusal(request, disk)
        or size_refusal(request, disk)
        or tag_refusal(cluster, request, disk)
    )


def type_refusal(request: ReplicaRequest, disk: Disk) -> Refusal | None:
    """Why the type of a disk, as its spec says, does not suit the volume."""
    # v2 volumes need block disks, all others file systems.
    required_type = BLOCK if is_v2(request.volume.data_engine) else FILESYSTEM
    if disk.spec_type == required_type:
        return None
    return Refusal(Rule.DISK_TYPE, f"disk {disk.name} is of type {disk.spec_type!r}, the volume needs {required_type}")


def size_refusal(request: ReplicaRequest, disk: Disk) -> Refusal | None:
    """Why the volume is too large for a file system (datastore: IsSupportedVolumeSize). v2 has no limit."""
    limit = file_size_limit(disk.filesystem_type)
    if is_v2(request.volume.data_engine) or limit is None or request.volume.size < limit:
        return None
    size = format_bytes(request.volume.size)
    text = f"{disk.filesystem_type} cannot hold a file of {size}, only of less than {format_bytes(limit)}"
    return Refusal(Rule.FILESYSTEM_LIMIT, f"disk {disk.name}: {text}")


def file_size_limit(filesystem: str) -> int | None:
    """The size in bytes that no file reaches, None if it is unknown (datastore: IsSupportedVolumeSize)."""
    if filesystem.startswith("ext"):
        return EXT_LIMIT
    return XFS_LIMIT if filesystem == "xfs" else None


def tag_refusal(cluster: Cluster, request: ReplicaRequest, disk: Disk) -> Refusal | None:
    """Why the tags of a disk keep the volume off. The volume's disk selector decides first, then the backing image's."""
    volume = request.volume
    allow_empty = cluster.settings.allow_empty_disk_selector_volume
    refusal = selector_refusal(disk, volume.disk_selector, "the volume", Rule.DISK_TAGS, allow_empty=allow_empty)
    if refusal is not None or not volume.backing_image:
        return refusal
    image = cluster.backing_image(volume.backing_image)
    if image is None:
        return missing_backing_image(volume.backing_image)
    owner = f"backing image {image.name}"
    return selector_refusal(disk, image.disk_selector, owner, Rule.BACKING_IMAGE_DISK_TAGS, allow_empty=allow_empty)


def space_stage_refusal(cluster: Cluster, request: ReplicaRequest, disk: Disk, uncounted: int = 0) -> Refusal | None:
    """Why IsSchedulableToDisk refuses a disk. A percentage that does not parse refuses it, too."""
    refusal = space_setting_refusal(cluster)
    if refusal is not None:
        return refusal
    rule = space_stage_rule(cluster, request, disk, uncounted)
    if rule is None:
        return None
    space = disk_space(disk, cluster.settings, uncounted)
    return Refusal(rule, space_detail(rule, disk, cluster.settings, space, request.volume))


def space_stage_rule(cluster: Cluster, request: ReplicaRequest, disk: Disk, uncounted: int = 0) -> Rule | None:
    """The rule by which `space_stage_refusal` refuses a disk, without the numbers. A placement looks at every disk, and
    computing the numbers takes longer.
    """
    refusal = space_setting_refusal(cluster)
    if refusal is not None:
        return refusal.rule
    space = disk_space(disk, cluster.settings, uncounted)
    return space_refusal(request.volume.size, request.volume.actual_size, space)
