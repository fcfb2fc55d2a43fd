"""The second stage: which disks of a node may take a replica (scheduler/replica_scheduler.go)."""

from __future__ import annotations

from typing import Final

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.linked_clone import sources
from scheduler_core.longhorn.replica_request import Ask, is_v2
from scheduler_core.longhorn.rules import Refusal, Rule
from scheduler_core.longhorn.space import room, space_detail, space_refusal
from scheduler_core.longhorn.tags import listed, selectors_match
from scheduler_core.model.kube import condition
from scheduler_core.model.longhorn import BLOCK, FILESYSTEM, Disk, Node
from scheduler_core.model.quantity import format_bytes

DISK_PRESSURE: Final = "DiskPressure"
EXT_LIMIT: Final = 16 * 1024**4
XFS_LIMIT: Final = 2**63 - 1
_TAG_SETTING: Final = ("allow-empty-disk-selector-volume",)
_SPACE_SETTINGS: Final = ("storage-over-provisioning-percentage", "storage-minimal-available-percentage")


def disk_refusal(cluster: Cluster, ask: Ask, _node: Node, disk: Disk) -> Refusal | None:
    """The first rule that refuses a disk, space and anti-affinity apart, or None."""
    return prefilter_refusal(cluster, ask, disk) or eligibility_refusal(cluster, ask, disk)


def disk_and_space_refusal(cluster: Cluster, ask: Ask, node: Node, disk: Disk, uncounted: int = 0) -> Refusal | None:
    """The first rule that refuses a disk, anti-affinity apart; `uncounted` bytes are promised but not reported yet."""
    return disk_refusal(cluster, ask, node, disk) or space_stage_refusal(cluster, ask, disk, uncounted)


def space_fault(cluster: Cluster) -> Refusal | None:
    """A space setting that does not parse: Longhorn then refuses every disk."""
    return _setting_refusal(cluster, _SPACE_SETTINGS)


def prefilter_refusal(cluster: Cluster, ask: Ask, disk: Disk) -> Refusal | None:
    """Why FindDiskCandidates does not even consider a disk, silently. Its Ready condition is never looked at."""
    if not disk.in_status:
        return Refusal(Rule.DISK_NOT_IN_STATUS, f"disk {disk.name} has no status yet")
    if not disk.in_spec:
        return Refusal(Rule.DISK_NOT_IN_SPEC, f"disk {disk.name} was removed from the node's spec")
    if not disk.allow_scheduling:
        return Refusal(Rule.DISK_SCHEDULING_DISABLED, f"disk {disk.name} has allowScheduling false")
    if disk.eviction_requested:
        return Refusal(Rule.DISK_EVICTION_REQUESTED, f"disk {disk.name} has evictionRequested true")
    if not disk.schedulable:
        return _not_schedulable(disk)
    if ask.linked_clone and disk.uuid not in sources(cluster, ask).disks:
        return Refusal(Rule.LINKED_CLONE_DISK, f"disk {disk.name} has no healthy replica of the cloned volume")
    return None


def _not_schedulable(disk: Disk) -> Refusal:
    """The disk's Schedulable condition is not True; Longhorn sets it for pressure by the space rules with size 0."""
    found = condition(disk.conditions, "Schedulable")
    pressure = found.reason == DISK_PRESSURE
    because = "; ".join(filter(None, (found.reason, found.message if pressure else "")))
    text = f"disk {disk.name} has condition Schedulable={found.status}" + (because and f" ({because})")
    return Refusal(Rule.DISK_PRESSURE if pressure else Rule.DISK_NOT_SCHEDULABLE, text)


def eligibility_refusal(cluster: Cluster, ask: Ask, disk: Disk) -> Refusal | None:
    """Why filterNodeDisksForReplica (IsDiskEligibleForVolume) refuses a disk, space apart."""
    return (
        _setting_refusal(cluster, _TAG_SETTING)
        or type_refusal(ask, disk)
        or size_refusal(ask, disk)
        or tag_refusal(cluster, ask, disk)
    )


def _setting_refusal(cluster: Cluster, names: tuple[str, ...]) -> Refusal | None:
    fault = cluster.settings.fault(names)
    return None if fault is None else Refusal(Rule.SETTING_FAULT, str(fault))


def type_refusal(ask: Ask, disk: Disk) -> Refusal | None:
    """v2 volumes need block disks, all others file systems; the type in the spec decides."""
    wanted = BLOCK if is_v2(ask.volume.data_engine) else FILESYSTEM
    if disk.spec_type == wanted:
        return None
    return Refusal(Rule.DISK_TYPE, f"disk {disk.name} is of type {disk.spec_type!r}, the volume needs {wanted}")


def size_refusal(ask: Ask, disk: Disk) -> Refusal | None:
    """What a file system can hold at most (datastore: IsSupportedVolumeSize); v2 has no limit."""
    limit = _file_size_limit(disk.filesystem_type)
    if is_v2(ask.volume.data_engine) or limit is None or ask.volume.size < limit:
        return None
    size = format_bytes(ask.volume.size)
    return Refusal(Rule.FILESYSTEM_LIMIT, f"disk {disk.name}: {disk.filesystem_type} cannot hold a file of {size}")


def _file_size_limit(filesystem: str) -> int | None:
    if filesystem.startswith("ext"):
        return EXT_LIMIT
    return XFS_LIMIT if filesystem == "xfs" else None


def tag_refusal(cluster: Cluster, ask: Ask, disk: Disk) -> Refusal | None:
    """The volume's disk selector, then the backing image's."""
    allow_empty = cluster.settings.allow_empty_disk_selector_volume
    if not selectors_match(disk.tags, ask.volume.disk_selector, allow_empty):
        wanted = listed(ask.volume.disk_selector)
        return Refusal(Rule.DISK_TAGS, f"disk {disk.name} has tags {listed(disk.tags)}, the volume selects {wanted}")
    if not ask.volume.backing_image:
        return None
    image = cluster.backing_image(ask.volume.backing_image)
    if image is None:
        return Refusal(Rule.BACKING_IMAGE_MISSING, f"backing image {ask.volume.backing_image} does not exist")
    if not selectors_match(disk.tags, image.disk_selector, allow_empty):
        wanted = listed(image.disk_selector)
        return Refusal(
            Rule.BACKING_IMAGE_DISK_TAGS,
            f"disk {disk.name} has tags {listed(disk.tags)}, backing image {image.name} selects {wanted}",
        )
    return None


def space_stage_refusal(cluster: Cluster, ask: Ask, disk: Disk, uncounted: int = 0) -> Refusal | None:
    """Why IsSchedulableToDisk refuses a disk; a percentage that does not parse refuses it too."""
    fault = space_fault(cluster)
    if fault is not None:
        return fault
    found = room(disk, cluster.settings, uncounted)
    rule = space_refusal(ask.volume.size, ask.volume.actual_size, found)
    if rule is None:
        return None
    return Refusal(rule, space_detail(rule, disk, cluster.settings, found, ask.volume))
