"""Where a backing image is needed, and where else it may be copied to. Pure; the rules are Longhorn's for a further copy.

Source: longhorn-manager datastore, GetReadyNodeDiskForBackingImage: nodes that are ready and schedulable, disks that are ready, open and
not evicted, tags of both, the disk's type. Longhorn takes any of them; here the best comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from scheduler_core.disk_schedule.allocation import claimed
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.tags import selectors_match
from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.model.longhorn import BLOCK, FILESYSTEM, V2, BackingImage, Disk, Node, Replica, Volume

_ALLOW_EMPTY = ("allow-empty-node-selector-volume", "allow-empty-disk-selector-volume")


def needed(volumes: Iterable[Volume], replicas: Iterable[Replica], image: str) -> frozenset[str]:
    """The UUIDs of the disks with a replica that is made from an image."""
    made = {volume.name for volume in volumes if volume.backing_image == image}
    return frozenset(
        replica.disk_id
        for replica in replicas
        if replica.volume in made and replica.disk_id and not replica.deleting and not replica.failed_at
    )


def candidates(cluster: Cluster, schedules: Mapping[str, DiskSchedule], image: BackingImage) -> tuple[str, ...]:
    """The UUIDs of the disks that may take a further copy, best first.

    Nodes without a copy come before others, then disks with the most bytes neither held nor pending, ties by node and disk name. None
    while a setting about tags cannot be read, because Longhorn then places none.
    """
    if cluster.settings.fault(_ALLOW_EMPTY) is not None:
        return ()
    nodes = {disk.uuid: node.name for node in cluster.nodes.values() for disk in node.disks if disk.uuid}
    taken = {nodes[uuid] for uuid in image.disks if uuid in nodes}
    found = sorted(
        (
            node.name in taken,
            claimed(schedules[disk.uuid]) - disk.storage_available,
            node.name,
            disk.name,
            disk.uuid,
        )
        for node, disk in _open(cluster, image)
        if disk.uuid in schedules
    )
    return tuple(uuid for *_, uuid in found)


def _open(cluster: Cluster, image: BackingImage) -> Iterator[tuple[Node, Disk]]:
    settings = cluster.settings
    kind = BLOCK if image.data_engine == V2 else FILESYSTEM
    for node in cluster.nodes.values():
        if not (node.ready and node.schedulable and node.allow_scheduling) or node.deleting:
            continue
        if not selectors_match(node.tags, image.node_selector, settings.allow_empty_node_selector_volume):
            continue
        for disk in node.disks:
            usable = disk.in_spec and disk.in_status and disk.ready and disk.allow_scheduling
            if not usable or disk.eviction_requested or disk.spec_type != kind or disk.uuid in image.disks:
                continue
            if selectors_match(disk.tags, image.disk_selector, settings.allow_empty_disk_selector_volume):
                yield node, disk
