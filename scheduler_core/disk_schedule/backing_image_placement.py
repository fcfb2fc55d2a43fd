"""Finds the disks that need a backing image, and those where a further copy may be made.

Pure; the rules are Longhorn's for a further copy. Source: longhorn-manager datastore, GetReadyNodeDiskForBackingImage: nodes
that are ready and schedulable, disks that are ready, open and not evicted, tags of both, the disk's type. Longhorn takes any
of them; here the best comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler_core.disk_schedule.disk_space import DiskSpace
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.tags import selectors_match
from scheduler_core.model.longhorn import BLOCK, FILESYSTEM, V2, BackingImage, Disk, Node, Replica, Volume

_ALLOW_EMPTY = ("allow-empty-node-selector-volume", "allow-empty-disk-selector-volume")


def disks_that_need_image(volumes: Iterable[Volume], replicas: Iterable[Replica], image: str) -> frozenset[str]:
    """Returns the UUIDs of disks with replicas made from an image."""
    volumes_of_image = {volume.name for volume in volumes if volume.backing_image == image}
    return frozenset(
        replica.disk_id
        for replica in replicas
        if replica.volume in volumes_of_image and replica.disk_id and not replica.deleting and not replica.failed_at
    )


def candidate_disks(cluster: Cluster, space: Mapping[str, DiskSpace], image: BackingImage) -> tuple[str, ...]:
    """Returns the UUIDs of disks for a further copy, best first.

    Nodes without a copy come before others, then disks with the most bytes left, ties by node and disk name. There are
    no candidates while a setting about tags cannot be read, because Longhorn then places no copies.
    """
    if cluster.settings.first_fault(_ALLOW_EMPTY) is not None:
        return ()
    node_of_disk = {disk.uuid: node.name for node in cluster.nodes.values() for disk in node.disks if disk.uuid}
    nodes_with_copy = {node_of_disk[uuid] for uuid in image.disks if uuid in node_of_disk}
    ranked = sorted(
        (
            node.name in nodes_with_copy,
            -space[disk.uuid].free,
            node.name,
            disk.name,
            disk.uuid,
        )
        for node, disk in _eligible_disks(cluster, image)
        if disk.uuid in space
    )
    return tuple(uuid for *_, uuid in ranked)


def _eligible_disks(cluster: Cluster, image: BackingImage) -> list[tuple[Node, Disk]]:
    settings = cluster.settings
    disk_type = BLOCK if image.data_engine == V2 else FILESYSTEM
    disks: list[tuple[Node, Disk]] = []
    for node in cluster.nodes.values():
        if not (node.ready and node.schedulable and node.allow_scheduling) or node.deleting:
            continue
        if not selectors_match(node.tags, image.node_selector, settings.allow_empty_node_selector_volume):
            continue
        for disk in node.disks:
            usable = disk.in_spec and disk.in_status and disk.ready and disk.allow_scheduling
            if not usable or disk.eviction_requested or disk.spec_type != disk_type or disk.uuid in image.disks:
                continue
            if selectors_match(disk.tags, image.disk_selector, settings.allow_empty_disk_selector_volume):
                disks.append((node, disk))
    return disks
