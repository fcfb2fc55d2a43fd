"""Disk profiles: what a node's disks offer to some kinds of volumes, so that equal nodes are decided once.

Data flow, for nodes that hold no replica of the pod's volumes (nearly all of them):

1. `look` asks Longhorn's own rules (`scheduler_core.longhorn`) which disks of a node are open to each kind of volume;
2. the open disks' free bytes, largest first, become a `Profile`; equal ones of one table are one object;
3. a `Table` keeps the profile of every node for one `Kinds`; together.py packs each profile once per set of sizes.

A profile holds no name and no size of a volume, so what was decided about it holds for whichever node has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_core.cluster.view import View
from scheduler_core.cooperative import Steps
from scheduler_core.evaluation.reasons import Blocked, blocked_by, blocked_by_disks
from scheduler_core.longhorn.disk_stage import disk_refusal, space_fault
from scheduler_core.longhorn.node_stage import engine_refusal, node_refusal
from scheduler_core.longhorn.replica_request import Ask
from scheduler_core.longhorn.rules import Rule
from scheduler_core.longhorn.space import space_detail, space_refusal
from scheduler_core.model import longhorn
from scheduler_core.model.verdict import Reason
from scheduler_core.volumes.requirements import Kinds

_LOOKS_PER_PAUSE: Final = 128


@dataclass(frozen=True, slots=True)
class OpenDisk:
    """A disk open to at least one kind, in bytes as `longhorn.space.Room` has them.

    Attributes:
        kinds: bit mask of `Kinds.asks` the disk is open to
        headroom: only where `Kinds.rewrites`; otherwise 0, because being open already says that there is some
        copies: (backing image, real size in bytes) of the images a volume would first have to bring here
    """

    uuid: str
    free: int
    headroom: int
    kinds: int
    copies: tuple[tuple[str, int], ...] = ()


class Profile:
    """The open disks of a node without their names, or the reason why none matters."""

    __slots__ = ("copies", "copying", "free", "headroom", "kinds", "reason")

    def __init__(self, reason: Reason | None, disks: tuple[OpenDisk, ...] = ()) -> None:
        self.reason = reason
        self.free = tuple(disk.free for disk in disks)
        self.headroom = tuple(disk.headroom for disk in disks)
        self.kinds = tuple(disk.kinds for disk in disks)
        self.copies = tuple(disk.copies for disk in disks)
        self.copying = any(self.copies)

    @property
    def key(self) -> tuple[object, ...]:
        """What tells profiles of one table apart, and orders them."""
        return self.free, self.headroom, self.kinds, self.copies


def attach_blocked(view: View, kinds: Kinds, name: str) -> Blocked | None:
    """Why Longhorn cannot attach the volumes to a node: it needs a ready Longhorn node with their engines, no disk."""
    node = view.snapshot.longhorn_nodes.get(name)
    if node is None:
        return Blocked(Reason.NOT_A_LONGHORN_NODE, f"there is no nodes.longhorn.io {name}")
    if node.deleting or not node.ready:
        return Blocked(Reason.NODE_NOT_READY, f"Longhorn node {name} is not ready")
    for ask in kinds.attach:
        refusal = engine_refusal(view.cluster, ask, node)
        if refusal is not None:
            return blocked_by(refusal)
    return None


def look(view: View, kinds: Kinds, name: str) -> Blocked | tuple[OpenDisk, ...]:
    """The disks of a node that are open to the kinds, largest free first; or why the node is out whatever the sizes.

    A node whose eviction is requested is out (the scheduler-extender proposal, Filter step 4); Longhorn's scheduler leaves
    that to a webhook.
    """
    blocked = attach_blocked(view, kinds, name)
    if blocked is not None:
        return blocked
    if not kinds.asks:
        return ()
    fault = space_fault(view.cluster)
    if fault is not None:
        return blocked_by(fault)
    node = view.snapshot.longhorn_nodes[name]
    if node.eviction_requested:
        return Blocked(Reason.NODE_EVICTING, f"eviction of Longhorn node {name} is requested")
    masks = [0] * len(node.disks)
    for bit, ask in enumerate(kinds.asks):
        opened = _open_to(view, ask, node)
        if isinstance(opened, Blocked):
            return opened
        for index in opened:
            masks[index] |= 1 << bit
    return _open_disks(view, kinds, node, masks)


def _open_to(view: View, ask: Ask, node: longhorn.Node) -> Blocked | list[int]:
    refusal = node_refusal(view.cluster, ask, node)
    if refusal is not None:
        return blocked_by(refusal)
    refusals = [disk_refusal(view.cluster, ask, node, disk) for disk in node.disks]
    opened = [index for index, found in enumerate(refusals) if found is None]
    return opened or blocked_by_disks(node.name, (found for found in refusals if found is not None))


def _open_disks(view: View, kinds: Kinds, node: longhorn.Node, masks: list[int]) -> Blocked | tuple[OpenDisk, ...]:
    found: list[OpenDisk] = []
    covered = 0
    low = []
    rooms = view.rooms(node.name)
    for disk, mask in zip(node.disks, masks, strict=True):
        if not mask:
            continue
        room = rooms[disk.name]
        rule = space_refusal(0, 0, room)
        if rule is None or rule is Rule.SCHEDULING_SPACE:
            covered |= mask
            headroom = room.headroom if kinds.rewrites else 0
            found.append(OpenDisk(disk.uuid, room.free, headroom, mask, _copies(view, kinds, disk.uuid)))
        else:
            low.append(space_detail(rule, disk, view.settings, room, longhorn.Volume(name="")))
    if covered != (1 << len(kinds.asks)) - 1:
        return Blocked(Reason.LOW_AVAILABLE, "; ".join(low))
    found.sort(key=lambda disk: (-disk.free, -disk.headroom, disk.kinds, disk.copies, disk.uuid))
    return tuple(found)


def _copies(view: View, kinds: Kinds, uuid: str) -> tuple[tuple[str, int], ...]:
    names = {ask.volume.backing_image for ask in kinds.asks if ask.volume.backing_image}
    images = [view.snapshot.backing_images[name] for name in sorted(names)]
    return tuple((image.name, image.real_size) for image in images if uuid not in image.disks)


class Table:
    """The profile of every Longhorn node for one `Kinds`."""

    __slots__ = ("_elsewhere", "_interned", "kinds", "profiles")

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self.profiles: dict[str, Profile] = {}
        self._interned: dict[object, Profile] = {}
        self._elsewhere = Profile(Reason.NOT_A_LONGHORN_NODE)

    def fill(self, view: View) -> Steps[Mapping[str, Profile]]:
        """Looks at every Longhorn node, pausing every few."""
        for count, name in enumerate(view.cluster.nodes, start=1):
            self.profiles[name] = self._profile(look(view, self.kinds, name))
            if count % self._often == 0:
                yield
        return self.profiles

    def after(self, view: View, touched: Iterable[str]) -> Steps[Table]:
        """The table of a later view, in which only the `touched` nodes may have another profile.

        Equal profiles stay one object, so what is known of them holds for both tables.
        """
        later = Table(self.kinds)
        later._interned, later._elsewhere = self._interned, self._elsewhere  # its own kind
        later.profiles = dict(self.profiles)
        for count, name in enumerate(touched, start=1):
            if count % self._often == 0:
                yield
            if name in view.cluster.nodes:
                later.profiles[name] = later._profile(look(view, self.kinds, name))
            else:
                later.profiles.pop(name, None)
        return later

    @property
    def met(self) -> int:
        """How many different profiles this table and those before it have met."""
        return len(self._interned)

    @property
    def _often(self) -> int:
        return max(1, _LOOKS_PER_PAUSE // (1 + len(self.kinds.asks)))

    def of(self, names: Sequence[str]) -> list[Profile]:
        """The profiles of some nodes; a name without a Longhorn node has one too."""
        known, elsewhere = self.profiles.get, self._elsewhere
        return [known(name, elsewhere) for name in names]

    def _profile(self, found: Blocked | tuple[OpenDisk, ...]) -> Profile:
        if isinstance(found, Blocked):
            return self._interned.setdefault(found.reason, Profile(found.reason))
        profile = Profile(None, found)
        return self._interned.setdefault(profile.key, profile)
