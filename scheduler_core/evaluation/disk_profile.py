"""Disk profiles: what a node's disks offer to classes of volumes. Nodes with equal profiles are evaluated once.

Data flow, for nodes that hold no replica of the pod's volumes (nearly all nodes):

1. `profile_node` asks Longhorn's own rules (`longhorn/`) which disks of a node are open to each class of volumes;
2. the open disks' free bytes, largest first, become a `Profile`; equal profiles of one table are one object;
3. a `ProfileTable` holds the profile of every node for one `VolumeClasses`; `fit.py` packs each profile once per set of sizes.

A profile holds neither a name nor a volume's size, so a result for a profile holds for every node that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler_core.cluster.view import View
from scheduler_core.evaluation.node_rules import attach_refusal, new_replica_refusal
from scheduler_core.evaluation.reasons import Refused, reason_of, reason_of_disks
from scheduler_core.giving_way import give_way
from scheduler_core.longhorn.disk_stage import disk_refusal
from scheduler_core.longhorn.node_stage import node_refusal
from scheduler_core.longhorn.refusal_rules import Rule
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.space import space_detail, space_refusal
from scheduler_core.model import longhorn
from scheduler_core.model.verdict import Reason
from scheduler_core.volumes.requirements import VolumeClasses


@dataclass(frozen=True, slots=True)
class OpenDisk:
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
    refusal = node_refusal(view.cluster, request, node)
    if refusal is not None:
        return reason_of(refusal)
    refusals = [disk_refusal(view.cluster, request, node, disk) for disk in node.disks]
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
    """The profile of every Longhorn node for one `VolumeClasses`."""

    __slots__ = ("_interned", "_not_longhorn", "classes", "profiles")

    def __init__(self, classes: VolumeClasses) -> None:
        self.classes = classes
        self.profiles: dict[str, Profile] = {}
        self._interned: dict[object, Profile] = {}
        self._not_longhorn = Profile(Reason.NOT_A_LONGHORN_NODE)

    def fill(self, view: View) -> Mapping[str, Profile]:
        """Profiles every Longhorn node."""
        for name in view.cluster.nodes:
            give_way()
            self.profiles[name] = self._intern(profile_node(view, self.classes, name))
        return self.profiles

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
