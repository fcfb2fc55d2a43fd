"""Disk profiles: what a node's disks offer to classes of volumes. Nodes with equal profiles are evaluated once.

Data flow, for nodes that hold no replica of the pod's volumes (nearly all nodes):

1. `profile_node` asks Longhorn's own rules (`longhorn/`) about the node as a whole, and which of its disks are open to each class of
   volumes; a rule that closes them becomes one of the few reasons that kube-scheduler and its users see;
2. the open disks' free bytes, largest first, become a `Profile`; equal profiles of one table are one object;
3. a `ProfileTable` holds the profile of every node for one `VolumeClasses`; `fit.py` packs each profile once per set of sizes.

A profile holds neither a name nor a volume's size, so a result for a profile holds for every node that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from scheduler_core.cluster.view import View
from scheduler_core.longhorn import stages
from scheduler_core.longhorn.refusal_rules import Refusal, Rule
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.space import space_detail, space_refusal
from scheduler_core.model import longhorn
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import give_way
from scheduler_core.volumes.requirements import VolumeClasses

REASONS: Final = {
    Rule.SETTING_FAULT: Reason.BAD_SETTING,
    Rule.BACKING_IMAGE_MISSING: Reason.NO_BACKING_IMAGE,
    Rule.LINKED_CLONE_SOURCE_MISSING: Reason.LINKED_CLONE,
    Rule.DEGRADED_SINCE_FAULT: Reason.BAD_VOLUME,
    Rule.VOLUME_DELETING: Reason.VOLUME_DELETING,
    Rule.VOLUME_FAULTED: Reason.VOLUME_FAULTED,
    Rule.VOLUME_STANDBY: Reason.VOLUME_STANDBY,
    Rule.VOLUME_RESTORING: Reason.VOLUME_RESTORING,
    Rule.VOLUME_CLONING: Reason.VOLUME_CLONING,
    Rule.NODE_DELETING: Reason.NODE_NOT_READY,
    Rule.NODE_NOT_READY: Reason.NODE_NOT_READY,
    Rule.NODE_NOT_READY_YET: Reason.NODE_NOT_READY_YET,
    Rule.NODE_NOT_SCHEDULABLE: Reason.NODE_CORDONED,
    Rule.NODE_SCHEDULING_DISABLED: Reason.NODE_SCHEDULING_DISABLED,
    Rule.V2_DISABLED: Reason.ENGINE_NOT_READY,
    Rule.LINKED_CLONE: Reason.LINKED_CLONE,
    Rule.HARD_NODE_AFFINITY: Reason.STRICT_LOCAL_ELSEWHERE,
    Rule.TOPOLOGY: Reason.TOPOLOGY,
    Rule.INSTANCE_MANAGER: Reason.ENGINE_NOT_READY,
    Rule.ENGINE_IMAGE: Reason.ENGINE_NOT_READY,
    Rule.NODE_TAGS: Reason.NODE_TAGS,
    Rule.BACKING_IMAGE_NODE_TAGS: Reason.NODE_TAGS,
    Rule.NODE_ANTI_AFFINITY: Reason.ANTI_AFFINITY,
    Rule.ZONE_ANTI_AFFINITY: Reason.ANTI_AFFINITY,
    Rule.DISK_NOT_IN_STATUS: Reason.NO_DISK,
    Rule.DISK_NOT_IN_SPEC: Reason.NO_DISK,
    Rule.DISK_SCHEDULING_DISABLED: Reason.NO_DISK,
    Rule.DISK_EVICTION_REQUESTED: Reason.NO_DISK,
    Rule.DISK_NOT_SCHEDULABLE: Reason.NO_DISK,
    Rule.DISK_PRESSURE: Reason.DISK_PRESSURE,
    Rule.LINKED_CLONE_DISK: Reason.LINKED_CLONE,
    Rule.DISK_TYPE: Reason.DISK_TYPE,
    Rule.FILESYSTEM_LIMIT: Reason.VOLUME_TOO_LARGE,
    Rule.DISK_TAGS: Reason.DISK_TAGS,
    Rule.BACKING_IMAGE_DISK_TAGS: Reason.DISK_TAGS,
    Rule.STORAGE_MAXIMUM: Reason.LOW_AVAILABLE,
    Rule.STORAGE_AVAILABLE: Reason.LOW_AVAILABLE,
    Rule.ACTUAL_SPACE: Reason.LOW_AVAILABLE,
    Rule.SCHEDULING_SPACE: Reason.INSUFFICIENT_STORAGE,
    Rule.DISK_ANTI_AFFINITY: Reason.ANTI_AFFINITY,
}
# Longhorn checks a disk in the order in which Rule lists its rules, so the disk refused by the last rule came closest.
_ORDER: Final = {rule: position for position, rule in enumerate(Rule)}


class Refused(Struct, frozen=True):
    """Why a node does not fit; `detail` is a sentence for people, with names and numbers."""

    reason: Reason
    detail: str


def closeness(rule: Rule) -> int:
    """Returns how far a node or disk came that a rule refuses: it passed the rules before."""
    return _ORDER[rule]


def reason_of(refusal: Refusal) -> Refused:
    return Refused(REASONS[refusal.rule], refusal.detail)


def reason_of_disks(node: str, refusals: Iterable[Refusal]) -> Refused:
    """Returns the reason of the disk that came closest, with the details of all disks as a sentence."""
    refusals = list(refusals)
    if not refusals:
        return Refused(Reason.NO_DISK, f"Longhorn node {node} has no disks")
    closest = max(refusals, key=lambda refusal: closeness(refusal.rule))
    return Refused(REASONS[closest.rule], "; ".join(refusal.detail for refusal in refusals))


def attach_refusal(view: View, classes: VolumeClasses, name: str) -> Refused | None:
    """Returns why a node cannot attach the volumes: it needs a ready Longhorn node with their engines, but no disk."""
    node = view.snapshot.longhorn_nodes.get(name)
    if node is None:
        return Refused(Reason.NOT_A_LONGHORN_NODE, f"there is no nodes.longhorn.io {name}")
    if node.deleting:
        return Refused(Reason.NODE_NOT_READY, f"Longhorn node {name} is being deleted")
    if not node.ready:
        return reason_of(stages.condition_refusal(node, "Ready"))
    for engine in classes.engines:
        refusal = stages.engine_refusal(view.cluster, engine, node)
        if refusal is not None:
            return reason_of(refusal)
    return None


def new_replica_refusal(view: View, name: str) -> Refused | None:
    """Returns why a Longhorn node takes no new replica, whatever its size and class. A node whose eviction is requested
    is refused.
    """
    setting = stages.space_setting_refusal(view.cluster)
    if setting is not None:
        return reason_of(setting)
    if view.snapshot.longhorn_nodes[name].eviction_requested:
        return Refused(Reason.NODE_EVICTING, f"eviction of Longhorn node {name} is requested")
    return None


class OpenDisk(Struct, frozen=True):
    """A disk that is open to at least one class. Sizes are bytes, as in `longhorn.space.DiskSpace`."""

    uuid: str
    free: int
    # Only if the volumes bring data (`VolumeClasses.rewrites`); otherwise 0, because an open disk has some.
    headroom: int
    classes: int  # bit mask of the `VolumeClasses.requests`, then `VolumeClasses.optional`, that the disk is open to
    # (backing image, real size) of the images that a volume would first have to copy here.
    copies: tuple[tuple[str, int], ...] = ()
    uncounted: int = 0  # bytes that are no longer free, though Longhorn's status does not show it yet


class Profile:
    """The open disks of a node, without their names. A profile without disks has the reason why no disk matters.
    `reported` are the free bytes of the disks as Longhorn takes them from its status.
    """

    __slots__ = ("classes", "copies", "copying", "free", "headroom", "reason", "reported")

    def __init__(self, reason: Reason | None, disks: tuple[OpenDisk, ...] = ()) -> None:
        self.reason = reason
        self.free = tuple(disk.free for disk in disks)
        self.reported = tuple(disk.free + disk.uncounted for disk in disks)
        self.headroom = tuple(disk.headroom for disk in disks)
        self.classes = tuple(disk.classes for disk in disks)
        self.copies = tuple(disk.copies for disk in disks)
        self.copying = any(self.copies)

    @property
    def key(self) -> tuple[object, ...]:
        return self.free, self.headroom, self.classes, self.copies, self.reported


def profile_node(view: View, classes: VolumeClasses, name: str) -> Refused | tuple[OpenDisk, ...]:
    """Returns a node's disks that are open to the classes, the one with most free bytes first, or the reason if the
    node does not fit whatever the sizes.
    """
    refused = attach_refusal(view, classes, name)
    if refused is not None:
        return refused
    if not classes.requests:
        return ()
    refused = new_replica_refusal(view, name)
    if refused is not None:
        return refused
    node = view.snapshot.longhorn_nodes[name]
    masks = [0] * len(node.disks)
    for bit, request in enumerate(classes.requests):
        indexes = _open_to(view, request, node)
        if isinstance(indexes, Refused):
            return indexes
        for index in indexes:
            masks[index] |= 1 << bit
    for bit, request in enumerate(classes.optional, start=len(classes.requests)):
        indexes = _open_to(view, request, node)
        for index in () if isinstance(indexes, Refused) else indexes:
            masks[index] |= 1 << bit
    return _open_disks(view, classes, node, masks)


def _open_to(view: View, request: ReplicaRequest, node: longhorn.Node) -> Refused | list[int]:
    refusal = stages.node_refusal(view.cluster, request, node)
    if refusal is not None:
        return reason_of(refusal)
    refusals = [stages.disk_refusal(view.cluster, request, disk) for disk in node.disks]
    indexes = [index for index, refusal in enumerate(refusals) if refusal is None]
    return indexes or reason_of_disks(node.name, (refusal for refusal in refusals if refusal is not None))


def _open_disks(
    view: View, classes: VolumeClasses, node: longhorn.Node, masks: list[int]
) -> Refused | tuple[OpenDisk, ...]:
    disks: list[OpenDisk] = []
    covered = 0
    low_disks = []
    every_request = (1 << len(classes.requests)) - 1
    free_space = view.free_space(node.name)
    for disk, mask in zip(node.disks, masks, strict=True):
        if not mask & every_request:
            continue
        space = free_space[disk.name]
        rule = space_refusal(0, 0, space)
        if rule is None or rule is Rule.SCHEDULING_SPACE:
            covered |= mask
            headroom = space.headroom if classes.rewrites else 0
            images = _missing_images(view, classes, disk.uuid)
            disks.append(OpenDisk(disk.uuid, space.free, headroom, mask, images, space.uncounted))
        else:
            low_disks.append(space_detail(rule, disk, view.settings, space, longhorn.Volume(name="")))
    if covered & every_request != every_request:
        return Refused(Reason.LOW_AVAILABLE, "; ".join(low_disks))
    disks.sort(key=lambda disk: (-disk.free, -disk.headroom, disk.classes, disk.copies, disk.uncounted, disk.uuid))
    return tuple(disks)


def _missing_images(view: View, classes: VolumeClasses, uuid: str) -> tuple[tuple[str, int], ...]:
    requests = classes.requests + classes.optional
    names = {request.volume.backing_image for request in requests if request.volume.backing_image}
    images = [view.snapshot.backing_images[name] for name in sorted(names)]
    return tuple((image.name, image.real_size) for image in images if uuid not in image.disks)


class ProfileTable:
    """The profile of every Longhorn node for one `VolumeClasses`; a new table has none."""

    __slots__ = ("_interned", "_not_longhorn", "classes", "profiles")

    def __init__(self, classes: VolumeClasses) -> None:
        self.classes = classes
        self.profiles: dict[str, Profile] = {}
        self._interned: dict[object, Profile] = {}
        self._not_longhorn = Profile(Reason.NOT_A_LONGHORN_NODE)

    def update(self, view: View, changed_nodes: Iterable[str]) -> ProfileTable:
        """Returns the table of a later view. Only the changed nodes may have another profile. Equal profiles stay one
        object, so their results hold for both tables.
        """
        table = ProfileTable(self.classes)
        table._interned = self._interned
        table._not_longhorn = self._not_longhorn
        table.profiles = dict(self.profiles)
        for name in changed_nodes:
            give_way()
            if name in view.cluster.nodes:
                table.profiles[name] = table._intern(profile_node(view, self.classes, name))
            else:
                table.profiles.pop(name, None)
        return table

    @property
    def profiles_seen(self) -> int:
        """Number of different profiles that were ever in the table, or in one that it was updated from."""
        return len(self._interned)

    def of(self, names: Sequence[str]) -> list[Profile]:
        """Returns the profiles of some nodes. A name without a Longhorn node has one too."""
        get = self.profiles.get
        default = self._not_longhorn
        return [get(name, default) for name in names]

    def _intern(self, disks: Refused | tuple[OpenDisk, ...]) -> Profile:
        if isinstance(disks, Refused):
            return self._interned.setdefault(disks.reason, Profile(disks.reason))
        profile = Profile(None, disks)
        return self._interned.setdefault(profile.key, profile)
