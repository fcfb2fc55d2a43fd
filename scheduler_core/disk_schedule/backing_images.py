"""Decides where copies of a backing image are wanted, which requests they need, and where copies may be made.

The rules are Longhorn's for a further copy. Source: longhorn-manager datastore, GetReadyNodeDiskForBackingImage: nodes that are ready
and schedulable, disks that are ready, open and not evicted, tags of both, the disk's type. Longhorn takes any of them; here the best
comes first.
"""

from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from itertools import islice

from scheduler_core.disk_schedule import occupancy, reconcile
from scheduler_core.disk_schedule.disk_space import DiskSpace
from scheduler_core.disk_schedule.writes import ChangeCopies, RemoveFinalizer, SetRequirement, Write
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.refusal_rules import selectors_match
from scheduler_core.model.disk_schedule import AllocationState, BackingImageCopies, DiskSchedule, RequestKind
from scheduler_core.model.longhorn import BLOCK, FILESYSTEM, V2, BackingImage, Disk, Node, Replica, Volume
from scheduler_core.model.quantity import format_bytes, format_count, join_first
from scheduler_core.structs import Struct


class ImageSnapshot(Struct, frozen=True):
    """Input of a decision about a backing image."""

    image: BackingImageCopies
    schedules: Mapping[str, DiskSchedule]  # all DiskSchedules, by disk UUID
    # The Longhorn nodes, by name; one that cannot be read may list any disk.
    nodes: Mapping[str, reconcile.NodeLookup] = {}
    # UUIDs of disks with replicas that use the image: a copy must be there, so it is requested until granted.
    needed_disks: frozenset[str] = frozenset()
    # UUIDs of disks that Longhorn's rules (tags, eviction, readiness) allow for further copies, best first.
    candidates: Sequence[str] = ()
    # What a newcomer can get on each disk, by UUID.
    space: Mapping[str, DiskSpace] = {}


class ImageDecision(Struct, frozen=True):
    """What to do about a backing image."""

    writes: tuple[Write, ...] = ()  # in order; the first that fails ends them
    ready: frozenset[str] = frozenset()  # UUIDs of the disks that the image may be copied to
    requeue: bool = False  # no watch may bring the change that helps: reconcile again after a back-off
    shortage: str = ""  # which copies have no room, and what the disks have left, as a sentence; "" if all have


def decide_image(snapshot: ImageSnapshot) -> ImageDecision:
    """Decides what to write for a backing image. The disks are the union of spec and status: a copy that is on a disk
    occupies it, wanted or not. A copy that was rejected before it began is removed, unless a replica needs it there,
    and tried on another disk; its request is withdrawn by the next decision, for which it is not on the disk any more.
    A DiskSchedule that is being deleted gets no larger requests; the one that follows it does.
    """
    image = snapshot.image
    if image.deleting:
        withdrawals = _withdrawals(snapshot, snapshot.schedules.keys())
        return ImageDecision((*withdrawals, RemoveFinalizer(RequestKind.BACKING_IMAGE, image.name)))
    # An answer to a withdrawn request looks like a grant: a copy could begin on it before the image requests again.
    needed_disks = {
        uuid for uuid in snapshot.needed_disks if uuid in image.wanted_disks or not _has_old_answer(snapshot, uuid)
    }
    disks = image.wanted_disks | image.copy_states.keys() | needed_disks
    strays = _withdrawals(snapshot, snapshot.schedules.keys() - disks)
    added = tuple(sorted(needed_disks - image.wanted_disks))
    if image.size <= 0:
        # Nothing can be requested without a size: one copy is made without, because only that reveals the size.
        first_copy = tuple(snapshot.candidates[:1]) if not disks else ()
        writes = (*strays, *_copy_changes(image, added or first_copy))
        return ImageDecision(writes, frozenset(sorted(disks)[:1]), requeue=True)
    refused = frozenset(uuid for uuid in image.wanted_disks - snapshot.needed_disks if _refuses_copy(snapshot, uuid))
    missing_copies = max(1, image.min_copies) - len(disks - refused)
    willing_disks = (
        uuid
        for uuid in snapshot.candidates
        if uuid not in disks
        and uuid in snapshot.space
        and snapshot.space[uuid].grants(image.size)
        and not _has_old_answer(snapshot, uuid)
    )
    new_disks = tuple(islice(willing_disks, max(0, missing_copies)))
    requested_disks = sorted({*(disks - refused), *new_disks})
    requests = tuple(
        SetRequirement(uuid, RequestKind.BACKING_IMAGE, image.name, image.size)
        for uuid in requested_disks
        if _needs_request(snapshot, uuid)
    )
    return ImageDecision(
        writes=(*strays, *_copy_changes(image, (*added, *new_disks), tuple(sorted(refused))), *requests),
        ready=frozenset(uuid for uuid in disks - refused if _holds_space(snapshot, uuid)),
        requeue=len(new_disks) < missing_copies or any(_needs_requeue(snapshot, uuid) for uuid in requested_disks),
        shortage=_shortage(snapshot, missing_copies - len(new_disks)),
    )


def _shortage(snapshot: ImageSnapshot, copies: int) -> str:
    """Returns for which copies there is no room, as a sentence; "" if every copy has room."""
    refused = [
        uuid for uuid in sorted(snapshot.needed_disks & snapshot.schedules.keys()) if _rejects_request(snapshot, uuid)
    ]
    if copies <= 0 and not refused:
        return ""
    ranked = sorted(snapshot.space.items(), key=lambda entry: (bool(entry[1].problem), -entry[1].free, entry[0]))
    disks = join_first([str(space) for _, space in ranked], "; ") or "there is no disk"
    wanted = format_count(copies, "more copy", "more copies") if copies > 0 else "a copy that replicas need"
    return f"no room for {wanted} of {format_bytes(snapshot.image.size)}: {disks}"


def _copy_changes(
    image: BackingImageCopies, added: tuple[str, ...], removed: tuple[str, ...] = ()
) -> tuple[Write, ...]:
    return (ChangeCopies(image.name, added, removed),) if added or removed else ()


def _withdrawals(snapshot: ImageSnapshot, disks: AbstractSet[str]) -> tuple[Write, ...]:
    name = snapshot.image.name
    return tuple(
        SetRequirement(uuid, RequestKind.BACKING_IMAGE, name, 0)
        for uuid in sorted(disks)
        if uuid in snapshot.schedules and name in snapshot.schedules[uuid].spec.backing_images
    )


def _refuses_copy(snapshot: ImageSnapshot, uuid: str) -> bool:
    if snapshot.image.copy_states.get(uuid, "") not in occupancy.NOT_STARTED:
        return False
    if uuid in snapshot.schedules:
        return snapshot.schedules[uuid].deleting or _rejects_request(snapshot, uuid)
    # If a node's status lists the disk, or may list it, node sync will create its DiskSchedule, or the cache does not show it yet.
    nodes = [node for node in snapshot.nodes.values() if node is not None]
    disks = {disk.uuid for node in nodes if isinstance(node, Node) for disk in node.disks if disk.in_status}
    return uuid not in disks and all(isinstance(node, Node) for node in nodes)


def _needs_request(snapshot: ImageSnapshot, uuid: str) -> bool:
    schedule = snapshot.schedules.get(uuid)
    size = snapshot.image.size
    requested = schedule.spec.backing_images.get(snapshot.image.name) if schedule else size
    # A DiskSchedule that is being deleted gets no new or larger request: it is to become empty.
    return schedule is not None and requested != size and not (schedule.deleting and (requested or 0) < size)


def _needs_requeue(snapshot: ImageSnapshot, uuid: str) -> bool:
    # That is space on its disk, a DiskSchedule that does not exist yet, or the successor of one that is being deleted.
    schedule = snapshot.schedules.get(uuid)
    if schedule is None:
        return True
    return _rejects_request(snapshot, uuid) or (schedule.deleting and not _holds_space(snapshot, uuid))


def _rejects_request(snapshot: ImageSnapshot, uuid: str) -> bool:
    schedule = snapshot.schedules[uuid]
    name = snapshot.image.name
    allocation = schedule.status.backing_images.get(name)
    rejected = allocation is not None and allocation.state is AllocationState.REJECTED
    return rejected and name in schedule.spec.backing_images


def _holds_space(snapshot: ImageSnapshot, uuid: str) -> bool:
    schedule = snapshot.schedules.get(uuid)
    allocation = schedule.status.backing_images.get(snapshot.image.name) if schedule else None
    return allocation is not None and allocation.size >= snapshot.image.size


def _has_old_answer(snapshot: ImageSnapshot, uuid: str) -> bool:
    """Whether a disk that the image has left has yet to release its answer."""
    schedule = snapshot.schedules.get(uuid)
    return schedule is not None and snapshot.image.name in schedule.status.backing_images


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
    """Returns the UUIDs of disks for a further copy, best first. Nodes without a copy come before others, then disks
    with the most bytes left, ties by node and disk name. There are no candidates while a setting about tags cannot be
    read, because Longhorn then places no copies.
    """
    if cluster.settings.first_fault(_ALLOW_EMPTY) is not None:
        return ()
    node_of_disk = {disk.uuid: node.name for node in cluster.nodes.values() for disk in node.disks if disk.uuid}
    nodes_with_copy = {node_of_disk[uuid] for uuid in image.disks if uuid in node_of_disk}
    ranked = sorted(
        (node.name in nodes_with_copy, -space[disk.uuid].free, node.name, disk.name, disk.uuid)
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
