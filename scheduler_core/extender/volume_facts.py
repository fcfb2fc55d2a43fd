"""What a pod's Longhorn volumes find on each node, as the classic scheduler's Longhorn rules read it (`generic.longhorn_facts`).

Data flow: /filter's own decision (`verbs.filter_nodes`), with order safety told apart → the replicas that are kept → for nodes with
room a plan, made once for all nodes whose profile and company are alike → what the plan leaves free on each open disk.

The plan puts each volume, the largest first, on the disk with most room left; where that does not work out, it is the packing's.

`Plans` keeps the disks of each node for needs that were met before, so that equal pods cost a look-up per node. Nothing in it is
needed for a right answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.cluster.view import Rooms, View
from scheduler_core.cooperative import Steps
from scheduler_core.evaluation.contention import Beside, Volumes
from scheduler_core.evaluation.disk_profile import Profile, look
from scheduler_core.evaluation.fit import plan_for
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.evaluation.reasons import Blocked
from scheduler_core.evaluation.single_node import local_node
from scheduler_core.extender.filter import NOBODY, Decision, Options, Others, Packing, filter_nodes
from scheduler_core.generic.volume_facts import DiskFacts, LonghornFacts, NodeFacts
from scheduler_core.longhorn.space import scheduling_limit
from scheduler_core.model.kube import Pod
from scheduler_core.model.longhorn import Node
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import Budget
from scheduler_core.volumes.local_replicas import kept_on
from scheduler_core.volumes.requirements import Needs, needs
from scheduler_core.volumes.resolve import PodVolume

# Of all kept nodes together; half a kilobyte each.
MOST_KEPT: Final = 50_000
_PER_PAUSE: Final = 64

Disks = tuple[DiskFacts, ...]
_Free = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    """The disks of a node after a plan; they hold as long as node, rooms, profile and company are the same.

    `company` is the group of what others will take there (`joint.Beside`), None for nothing.
    """

    node: Node
    rooms: Rooms
    profile: Profile
    company: int | None
    disks: Disks


@dataclass(frozen=True, slots=True)
class _Sorted:
    """The disks of a node with most room first: their free bytes and limits; no limits where equal room does not tell which is which."""

    node: Node
    rooms: Rooms
    free: _Free
    limits: Sequence[int]

    @classmethod
    def of(cls, node: Node, view: View) -> _Sorted:
        """By the view's settings, which stay the same while rooms do."""
        rooms = view.indexes.rooms[node.name]
        disks = sorted(node.disks, key=lambda disk: -rooms[disk.name].free)
        free = tuple(rooms[disk.name].free for disk in disks)
        limits = [scheduling_limit(disk, view.settings) for disk in disks]
        return cls(node, rooms, free, limits if len(set(free)) == len(free) or len(set(limits)) == 1 else ())


class Plans:
    """What nodes were left with, by needs and node; forgets the needs that were not met for longest.

    One for each `joint.Joint`, which numbers the groups.
    """

    def __init__(self) -> None:
        self.sorted: dict[str, _Sorted] = {}
        self._kept: OrderedDict[object, dict[str, _Kept]] = OrderedDict()

    def of(self, wanted: Needs) -> dict[str, _Kept]:
        """By node, for equal needs; the caller adds what it finds out."""
        key = wanted.key
        found = self._kept.setdefault(key, {})
        self._kept.move_to_end(key)
        return found

    def shrink(self) -> None:
        """Forgets until what is left is small enough."""
        if len(self.sorted) > MOST_KEPT:
            self.sorted.clear()
        left = sum(map(len, self._kept.values()))
        while left > MOST_KEPT and len(self._kept) > 1:
            left -= len(self._kept.popitem(last=False)[1])


def facts_for(  # noqa: PLR0913, PLR0917 # as filter_nodes
    pod: Pod,
    names: Sequence[str],
    memory: Memory,
    options: Options,
    others: Others = NOBODY,
    plans: Plans | None = None,
) -> Steps[LonghornFacts]:
    """What the pod's volumes find on each of some nodes, beside what others have.

    The reasons are those of `filter_nodes` by the same options for these very nodes. Order safety is examined whatever the options.
    Where a plan is known to exist and was not found within the budget, the disks are told as they are before it.

    Raises:
        ResolutionError: an object the pod names does not exist or contradicts it
    """
    examined = replace(options, packing=Packing.ORDER_SAFE)
    decision = yield from filter_nodes(pod, names, memory, examined, others)
    volumes = decision.resolution.volumes
    kept = _kept_bytes(volumes, memory.view)
    reasons = dict(zip(names, decision.reasons, strict=True))
    offered = set(_offered(decision.reasons, options.packing))
    disks = yield from _disks(
        decision, [name for name in names if reasons[name] in offered], memory, options, plans or Plans()
    )
    found: dict[str, NodeFacts] = {}
    alike: dict[tuple[Reason, int], NodeFacts] = {}
    for name, reason in reasons.items():
        share = kept.get(name, 0)
        if name in disks:
            fits = Reason.ROOM if reason is Reason.ORDER_UNSAFE else reason
            found[name] = NodeFacts(fits, reason is not Reason.ORDER_UNSAFE, share, disks[name])
            continue
        facts = alike.get((reason, share))
        if facts is None:
            facts = alike[reason, share] = NodeFacts(reason, reason.fits, share)
        found[name] = facts
    return LonghornFacts(found, sum(volume.volume.size for volume in volumes))


def _offered(reasons: Iterable[Reason], packing: Packing) -> Iterable[Reason]:
    """The reasons of nodes that get new volumes: where some order fails only if that is offered (`verbs.Packing`)."""
    yield Reason.ROOM
    if packing is Packing.EXACT or (packing is Packing.AUTO and Reason.ROOM not in reasons):
        yield Reason.ORDER_UNSAFE


def _kept_bytes(volumes: Iterable[PodVolume], view: View) -> dict[str, int]:
    """By node, the sizes of the volumes that keep a replica there."""
    kept: dict[str, int] = {}
    for volume in volumes:
        for name in kept_on(volume, view.cluster):
            kept[name] = kept.get(name, 0) + volume.volume.size
    return kept


def _disks(
    decision: Decision, names: Sequence[str], memory: Memory, options: Options, plans: Plans
) -> Steps[dict[str, Disks]]:
    """What the open disks of nodes with room are left with; () where the pod places nothing new."""
    resolution, view = decision.resolution, memory.view
    wanted = needs(resolution.local, resolution.volumes)
    touched = {replica.node_id for volume in resolution.local for replica in volume.replicas}
    budget, kept = Budget(options.steps), plans.of(wanted)
    table = yield from memory.table(wanted.kinds)
    found: dict[str, Disks] = {}
    groups: dict[int | None, list[str]] = {}
    fresh: dict[str, tuple[Node, Rooms, Profile, int | None]] = {}
    for name, profile in zip(names, table.of(names), strict=True):
        beside: Beside | None = decision.besides.get(name)
        if name in touched:
            found[name] = _one(decision, name, beside.volumes if beside else (), view, budget)
            continue
        known, node, rooms = kept.get(name), view.cluster.nodes[name], view.indexes.rooms[name]
        company = beside.group if beside else None
        if known and (known.node, known.rooms, known.profile, known.company) == (node, rooms, profile, company):
            found[name] = known.disks
        else:
            fresh[name] = node, rooms, profile, company
            groups.setdefault(company, []).append(name)
    for members in groups.values():
        company_of = decision.besides.get(members[0])
        joint = needs((*resolution.local, *company_of.volumes), resolution.volumes) if company_of else wanted
        found |= yield from _alike(joint, members, memory, budget, plans)
    if not budget.gave_up:  # another request may have more to spend
        kept |= {name: _Kept(*entry, found[name]) for name, entry in fresh.items()}
        plans.shrink()
    return found


def _one(decision: Decision, name: str, beside: Volumes, view: View, budget: Budget) -> Disks:
    """A node that holds a replica of the pod already: anti-affinity and kept replicas make it a case of its own."""
    node = local_node(view, decision.resolution, name, beside)
    if not node.needs.sizes:
        return ()
    limits = _limits(view, name)
    left = _left(node.needs, node.profile, budget, node.only)
    return tuple(DiskFacts(limits[disk.uuid], free) for disk, free in zip(node.disks, left, strict=True))


def _alike(
    wanted: Needs, names: Sequence[str], memory: Memory, budget: Budget, plans: Plans
) -> Steps[dict[str, Disks]]:
    """Nodes that hold nothing of the pod, and where others will take the same: one plan for each profile."""
    table = yield from memory.table(wanted.kinds)
    profiles = table.of(names)
    lefts: dict[Profile, _Free] = {}
    different = dict.fromkeys(profiles)
    shares = budget.shares(len(different))
    for count, (profile, share) in enumerate(zip(different, shares, strict=True), start=1):
        lefts[profile] = _left(wanted, profile, share)
        if count % _PER_PAUSE == 0:
            yield
    budget.take_back(shares)
    found: dict[str, Disks] = {}
    for count, (name, profile) in enumerate(zip(names, profiles, strict=True), start=1):
        limits = _limits_in_order(wanted, profile, name, memory.view, plans)
        found[name] = tuple([DiskFacts(*disk) for disk in zip(limits, lefts[profile], strict=True)])
        if count % _PER_PAUSE == 0:
            yield
    return found


def _limits(view: View, name: str) -> Mapping[str, int]:
    """By UUID, what may be promised in all on each disk of a node."""
    node = view.cluster.nodes[name]
    return {disk.uuid: scheduling_limit(disk, view.settings) for disk in node.disks}


def _limits_in_order(wanted: Needs, profile: Profile, name: str, view: View, plans: Plans) -> Sequence[int]:
    """The limits of a node's open disks, in the order of its profile, which has no names.

    Mostly all disks are open and no two have equally much free, so that the free bytes tell which is which; otherwise Longhorn's
    rules are asked again.
    """
    node = view.cluster.nodes[name]
    known = plans.sorted.get(name)
    if known is None or known.node is not node or known.rooms is not view.indexes.rooms[name]:
        known = plans.sorted[name] = _Sorted.of(node, view)
    if known.limits and known.free == profile.free:
        return known.limits
    opened = look(view, wanted.kinds, name)
    limits = _limits(view, name)
    return [] if isinstance(opened, Blocked) else [limits[disk.uuid] for disk in opened]


def _left(wanted: Needs, profile: Profile, budget: Budget, only: Mapping[int, int] | None = None) -> _Free:
    """What is free on the disks once the needs are placed; as they are where no plan was found within the budget."""
    free = list(profile.free)
    if wanted.uniform and not only:
        for size in wanted.sizes:
            most = max(free)
            if size > most:
                break
            free[free.index(most)] = most - size
        else:
            return tuple(free)
    return _as_packed(wanted, profile, plan_for(wanted, profile, budget, only) or ())


def _as_packed(wanted: Needs, profile: Profile, plan: Sequence[int]) -> _Free:
    """What a plan leaves; a backing image that a disk lacks is copied there once."""
    free = list(profile.free)
    copied: set[tuple[int, str]] = set()
    for need, disk in enumerate(plan):
        free[disk] -= wanted.sizes[need]
        if profile.copying and wanted.images[need]:
            copied.add((disk, wanted.images[need]))
    for disk, image in copied:
        free[disk] -= dict(profile.copies[disk]).get(image, 0)
    return tuple(free)
