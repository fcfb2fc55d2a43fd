"""Sentences for people about the disks that do not take a pod's volumes, by Longhorn's rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scheduler_core.cluster.view import View
from scheduler_core.evaluation.disk_profile import profile_node
from scheduler_core.evaluation.node_rules import new_replica_refusal
from scheduler_core.evaluation.reasons import Refused, closeness
from scheduler_core.longhorn.disk_stage import disk_refusal
from scheduler_core.longhorn.node_stage import node_refusal
from scheduler_core.longhorn.refusal_rules import Rule
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.space import space_detail, space_refusal
from scheduler_core.model.listing import join_first
from scheduler_core.model.longhorn import Disk, Node
from scheduler_core.model.quantity import format_bytes
from scheduler_core.volumes.requirements import Requirements, volume_class
from scheduler_core.volumes.resolve import PodVolume


@dataclass(frozen=True, slots=True)
class _RefusedPlace:
    """A node or disk that does not take a volume."""

    closeness: int  # how many rules it passed
    missing: int  # the bytes that it lacks; 0 where another rule refuses it
    place: tuple[str, str]  # names, which only break ties
    detail: str

    @property
    def distance(self) -> tuple[object, ...]:
        return -self.closeness, self.missing, self.place


def refusal_detail(view: View, required: Requirements, name: str) -> str:
    """Returns why a node takes none of the volumes, with their exact sizes. A class only says which limit of a file
    system a volume exceeds. The volumes are named where the node takes some of them. "" if the node has open disks for
    every class.
    """
    by_class: dict[int, list[PodVolume]] = {}
    for index, volume in zip(required.class_indexes, required.volumes, strict=True):
        by_class.setdefault(index, []).append(volume)
    for _, volumes in sorted(by_class.items()):
        request = ReplicaRequest.for_volume(volumes[0].volume)
        disks = profile_node(view, replace(required.classes, requests=(request,)), name)
        if isinstance(disks, Refused):
            names = join_first(sorted(volume.name for volume in volumes), ", ")
            return disks.detail if len(by_class) == 1 else f"{disks.detail} (for {names})"
    return ""


def closed_disks(view: View, volumes: Sequence[PodVolume], name: str) -> str:
    """Returns which disks of a node are closed to the volumes, and why. Space for the size of a volume is left aside.
    The volumes are named where a disk is closed to some of them only.
    """
    node = view.snapshot.longhorn_nodes[name]
    alike: dict[object, list[PodVolume]] = {}
    for volume in volumes:
        key = volume_class(volume.volume), volume.volume.size, volume.volume.actual_size
        alike.setdefault(key, []).append(volume)
    names_by_detail: dict[str, list[str]] = {}
    for disk in node.disks:
        for members in alike.values():
            detail = _closing_detail(view, members[0], node, disk)
            if detail:
                names_by_detail.setdefault(detail, []).extend(volume.name for volume in members)
    parts = [
        detail if len(names) == len(volumes) else f"{detail} (for {join_first(sorted(names), ', ')})"
        for detail, names in names_by_detail.items()
    ]
    return join_first(parts, "; ")


def _closing_detail(view: View, volume: PodVolume, node: Node, disk: Disk) -> str:
    refusal = disk_refusal(view.cluster, ReplicaRequest.for_volume(volume.volume), node, disk)
    if refusal is not None:
        return refusal.detail
    space = view.free_space(node.name)[disk.name]
    rule = space_refusal(0, volume.volume.actual_size, space)
    if rule is None or rule is Rule.SCHEDULING_SPACE:
        return ""
    return space_detail(rule, disk, view.settings, space, volume.volume)


def nearest_disk(view: View, volume: PodVolume) -> str:
    """Returns the disk that came closest to taking a volume, and its rule. It passed the most of Longhorn's rules, and
    lacks the fewest bytes. "" if some disk takes the volume.
    """
    nearest: _RefusedPlace | None = None
    for node in view.cluster.nodes.values():
        for place in _refused_places(view, volume, node):
            if place is None:
                return ""
            if nearest is None or place.distance < nearest.distance:
                nearest = place
    return nearest.detail if nearest is not None else "the cluster has no Longhorn disk"


def _refused_places(view: View, volume: PodVolume, node: Node) -> Iterator[_RefusedPlace | None]:
    """Yields the disks of a node that refuse a volume, or the node; None for a disk that takes the volume."""
    evicting = new_replica_refusal(view, node.name)
    if evicting is not None:
        yield _RefusedPlace(closeness(Rule.NODE_SCHEDULING_DISABLED), 0, (node.name, ""), evicting.detail)
        return
    refusal = node_refusal(view.cluster, ReplicaRequest.for_volume(volume.volume), node)
    if refusal is not None:
        yield _RefusedPlace(closeness(refusal.rule), 0, (node.name, ""), refusal.detail)
        return
    for disk in node.disks:
        yield _refused_disk(view, volume, node, disk)


def _refused_disk(view: View, volume: PodVolume, node: Node, disk: Disk) -> _RefusedPlace | None:
    place = (node.name, disk.name)
    refusal = disk_refusal(view.cluster, ReplicaRequest.for_volume(volume.volume), node, disk)
    if refusal is not None:
        return _RefusedPlace(closeness(refusal.rule), 0, place, f"on node {node.name}, {refusal.detail}")
    copied = _copied_bytes(view, volume, disk)
    needing = replace(volume.volume, size=volume.volume.size + copied)
    space = view.free_space(node.name)[disk.name]
    rule = space_refusal(needing.size, needing.actual_size, space)
    if rule is None:
        return None
    missing = 0
    if rule is Rule.SCHEDULING_SPACE:
        missing = needing.size - space.free
    elif rule is Rule.ACTUAL_SPACE:
        missing = needing.actual_size - space.headroom + 1
    detail = f"on node {node.name}, {space_detail(rule, disk, view.settings, space, needing)}"
    if copied and rule is Rule.SCHEDULING_SPACE:
        detail += f", with {format_bytes(copied)} for a copy of backing image {needing.backing_image}"
    return _RefusedPlace(closeness(rule), missing, place, detail)


def _copied_bytes(view: View, volume: PodVolume, disk: Disk) -> int:
    """Returns the size of the volume's backing image if the disk lacks it."""
    image = view.snapshot.backing_images.get(volume.volume.backing_image)
    return image.real_size if image is not None and disk.uuid not in image.disks else 0
