"""Evaluates one node without its disk profile: what the pod's volumes still need there, and which disks each may use.

This is the way for nodes that hold a replica of the pod's volumes, where anti-affinity and kept replicas make each volume a special
case, and for `explain`, which shows disks by name. For every other node it gives the result of the node's profile.

What a node lacks: how many more bytes a disk needs so that all required volumes fit, and which of Longhorn's rules close the others.

More bytes on a disk never hurt, and they only help when the disk can take another set of volumes. So what a disk should have is a sum of
sizes of volumes (and of backing images that it would have to copy), and the smallest such sum that helps is found by bisection. Each probe is
the decision about the node with that disk enlarged. Its search is limited in steps. A probe without an answer counts as if it might help,
which keeps the result a proven lower bound.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache, partial
from math import gcd

from scheduler_core.cluster.view import View
from scheduler_core.evaluation import fit
from scheduler_core.evaluation.competing_volumes import Volumes, volumes_key
from scheduler_core.evaluation.disk_profiles import CLOSENESS, Refused, new_replica_refusal, profile_node
from scheduler_core.evaluation.fit import OpenDisk, Profile
from scheduler_core.longhorn import anti_affinity, placement, refusal_rules
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.space import space_detail, space_refusal
from scheduler_core.longhorn.stages import disk_and_space_refusal, disk_refusal, node_refusal
from scheduler_core.model import longhorn, quantity, verdict
from scheduler_core.packing import items, order_safe
from scheduler_core.packing.budget import Budget, give_way
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes.existing_replicas import nodes_with_replica
from scheduler_core.volumes.resolve import PodVolume, Resolution
from scheduler_core.volumes.volume_requirements import OptionalVolume, Requirements, requirements


class NodeEvaluation(Struct, frozen=True):
    """A node with what a pod's volumes need there."""

    required: Requirements  # the local volumes without a kept replica on this node, and those of competitors
    refused: Refused | None = None  # why the node does not fit whatever the sizes, or None
    disks: tuple[OpenDisk, ...] = ()  # the open disks, in the order of the profile
    # For some volumes, then optional ones, by index, the bit mask of disks that anti-affinity leaves them.
    allowed: fit.AllowedDisks = {}
    competing_claims: frozenset[str] = frozenset()  # the claims of competitors, which plans leave out

    @property
    def profile(self) -> Profile:
        return Profile(self.refused.reason if self.refused else None, self.disks)

    @property
    def masks(self) -> fit.Masks:
        """The disks that each required volume may use, sizes aside, as bit masks."""
        return fit.allowed_masks(self.required, self.profile, self.allowed)

    def reason(self, budget: Budget) -> verdict.Reason:
        if self.refused is None and not self.required.sizes:
            return verdict.Reason.ROOM
        return fit.fit(self.required, self.profile, budget, self.allowed)

    def order_safety(self, budget: Budget) -> order_safe.Safety:
        """Returns whether every placement order succeeds here; only meaningful where the volumes fit."""
        return fit.order_safety(self.required, self.profile, budget, self.allowed)

    def overbooking(self) -> order_safe.Overbooking | None:
        return fit.overbooking(self.required, self.profile, self.allowed)

    def plan(self, budget: Budget) -> dict[str, str] | None:
        """Returns a disk UUID for each of the pod's volumes, by name, or None without a plan."""
        disks = fit.plan(self.required, self.profile, budget, self.allowed)
        if disks is None:
            return None
        pairs = zip(self.required.volumes, disks, strict=True)
        return dict(
            sorted(
                (volume.name, self.disks[disk].uuid)
                for volume, disk in pairs
                if volume.claim not in self.competing_claims
            )
        )


def evaluate_node(
    view: View, resolution: Resolution, name: str, competitors: Volumes = (), optional: tuple[OptionalVolume, ...] = ()
) -> NodeEvaluation:
    """Evaluates one node for the pod's volumes, packed with those of competitors."""
    # `optional` volumes may be in their way.
    unplaced = [volume for volume in resolution.local if name not in nodes_with_replica(volume, view.cluster)]
    required = requirements((*unplaced, *competitors) if unplaced else (), resolution.volumes, optional)
    evaluation = evaluate_requirements(view, required, name)
    return replace(evaluation, competing_claims=frozenset(volume.claim for volume in competitors))


def evaluate_requirements(view: View, required: Requirements, name: str) -> NodeEvaluation:
    """Evaluates one node for volumes that have no kept replica there."""
    disks = profile_node(view, required.classes, name)
    if isinstance(disks, Refused):
        return NodeEvaluation(required, disks)
    allowed: dict[int, int] = {}
    for index, volume in enumerate(required.volumes):
        if any(replica.node_id == name for replica in volume.replicas):
            mask = _disks_anti_affinity_allows(view, volume, name, disks)
            if isinstance(mask, Refused):
                return NodeEvaluation(required, mask)
            # With soft anti-affinity Longhorn uses the other disks when these are full.
            if not anti_affinity.SoftAntiAffinity.of(volume.volume, view.settings).disk:
                allowed[index] = mask
    for index, entry in enumerate(required.optional, start=len(required.volumes)):
        if not entry.used_disks.isdisjoint(disk.uuid for disk in disks):
            allowed[index] = sum(1 << bit for bit, disk in enumerate(disks) if disk.uuid not in entry.used_disks)
    return NodeEvaluation(required, None, disks, allowed)


def _disks_anti_affinity_allows(view: View, volume: PodVolume, name: str, disks: tuple[OpenDisk, ...]) -> int | Refused:
    """Returns the disks that Longhorn tries first on a node with replicas of the volume, as a bit mask."""
    cluster = view.cluster
    node = cluster.nodes[name]
    # With hardNodeAffinity, as Longhorn places a local replica, replicas on other nodes use neither node nor zone.
    request = ReplicaRequest.for_volume(volume.volume, hard_node_affinity=name)
    split = partial(placement.split_disks, cluster, request, replicas=volume.replicas)
    candidates = placement.disk_candidates(cluster, request, {name: node}, split, volume.replicas)
    uuids = {candidate.disk.uuid for candidate in candidates.disks}
    if not uuids and any(
        disk_and_space_refusal(cluster, request, disk, view.uncounted_bytes(name, disk)) is None for disk in node.disks
    ):
        detail = f"replicas of volume {volume.name} on node {name} leave no disk to another"
        return Refused(verdict.Reason.ANTI_AFFINITY, detail)
    return sum(1 << index for index, disk in enumerate(disks) if not uuids or disk.uuid in uuids)


# About 10 ms, so that a probe is a short turn of the event loop.
_STEPS_PER_PROBE = 10_000
# What a probe costs that needs no search.
_FIXED_STEPS_PER_PROBE = 10
# Of so many bytes no disk is, and a range of more numbers has no length in CPython.
_LARGEST_DISK = 2**62


class MissingSpace(Struct, frozen=True):
    """The bytes that one disk lacks for all required volumes."""

    size: int  # bytes that the disk would have to have more left to schedule; 0 if no amount on a single disk is enough
    exact: bool  # whether `size` is the least that helps; otherwise the least is `size` or more


def missing_space(evaluation: NodeEvaluation, budget: Budget) -> MissingSpace:
    """Returns the least bytes that one of the node's open disks lacks.

    "Least" means: if exactly one open disk, whichever is best, had that many bytes more left to schedule (Longhorn's over-provisioning rule), a
    packing of all required volumes would exist, those of competitors included; with fewer bytes on any one disk there is none. Other rules
    stay as they are: a disk that a volume may not use does not help it. The node does not fit as it is, which the caller has proven.
    """
    required = evaluation.required
    masks = evaluation.masks
    lower: int | None = None
    upper: int | None = None
    for index, disk in enumerate(evaluation.disks):
        volumes = [size for size, mask in zip(required.sizes, masks, strict=True) if mask >> index & 1]
        images = [size for image, size in disk.copies if image in required.images]
        bounds = _bounds_of_disk(evaluation, index, _useful_capacities((*volumes, *images)), upper, budget)
        if bounds is not None:
            fewest, enough = bounds
            lower = fewest if lower is None else min(lower, fewest)
            upper = upper if enough is None else enough
    if upper is not None and (lower is None or upper <= lower):
        return MissingSpace(upper, exact=True)
    return MissingSpace(0, exact=True) if lower is None else MissingSpace(lower, exact=False)


# Most disks are open to the same volumes.
@lru_cache(maxsize=16)
def _useful_capacities(sizes: tuple[int, ...]) -> Sequence[int]:
    """Returns what a disk may be filled with, ascending: all sums of the sizes."""
    # Too many sums: every sum is a multiple of the common divisor.
    unit = gcd(*sizes) or 1
    return items.reachable_sums(sizes) or range(0, min(sum(sizes), _LARGEST_DISK) + unit, unit)


def _bounds_of_disk(
    evaluation: NodeEvaluation, disk: int, capacities: Sequence[int], limit: int | None, budget: Budget
) -> tuple[int, int | None] | None:
    """Returns the bytes below which no amount on one disk helps, and those that a probe proved to help, None without
    such a proof; None in place of both if no amount below `limit` helps.
    """
    # Without a limit, None is the proof that no amount at all helps.
    free = evaluation.disks[disk].free
    low = bisect_right(capacities, free) - 1
    high = (len(capacities) if limit is None else bisect_left(capacities, free + limit)) - 1
    if high <= low:
        return None
    middle = high
    upper: int | None = None
    while True:
        give_way()
        reason = verdict.Reason.UNDECIDED
        if budget.spend(_FIXED_STEPS_PER_PROBE):
            larger = replace(evaluation.disks[disk], free=capacities[middle])
            enlarged = replace(evaluation, disks=(*evaluation.disks[:disk], larger, *evaluation.disks[disk + 1 :]))
            portion = budget.portion(_STEPS_PER_PROBE)
            reason = enlarged.reason(portion)
            budget.take_back([portion])
        if reason.fits:
            upper = capacities[middle] - free
        if reason.fits or reason is verdict.Reason.UNDECIDED:
            high = middle
        elif middle == high:
            return None
        else:
            low = middle
        if high - low <= 1:
            # What the disk has now does not help.
            return max(1, capacities[high] - free), upper
        middle = (low + high) // 2


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
            names = quantity.join_first(sorted(volume.name for volume in volumes), ", ")
            return disks.detail if len(by_class) == 1 else f"{disks.detail} (for {names})"
    return ""


def closed_disks(view: View, volumes: Sequence[PodVolume], name: str) -> str:
    """Returns which disks of a node are closed to the volumes, and why. Space for the size of a volume is left aside.
    The volumes are named where a disk is closed to some of them only.
    """
    node = view.snapshot.longhorn_nodes[name]
    alike: dict[object, list[PodVolume]] = {}
    for volume in volumes:
        alike.setdefault(volumes_key((volume,)), []).append(volume)
    names_by_detail: dict[str, list[str]] = {}
    for disk in node.disks:
        for members in alike.values():
            example = members[0].volume
            refusal = disk_refusal(view.cluster, ReplicaRequest.for_volume(example), disk)
            detail = refusal.detail if refusal is not None else ""
            if refusal is None:
                space = view.free_space(name)[disk.name]
                rule = space_refusal(0, example.actual_size, space)
                if rule is not None and rule is not refusal_rules.Rule.SCHEDULING_SPACE:
                    detail = space_detail(rule, disk, view.settings, space, example)
            if detail:
                names_by_detail.setdefault(detail, []).extend(volume.name for volume in members)
    parts = [
        detail if len(names) == len(volumes) else f"{detail} (for {quantity.join_first(sorted(names), ', ')})"
        for detail, names in names_by_detail.items()
    ]
    return quantity.join_first(parts, "; ")


# How many rules refuse before it, negative; the bytes that it lacks, 0 where another rule refuses it; its names, which only break ties;
# why it is refused.
_RefusedPlace = tuple[int, int, tuple[str, str], str]


def nearest_disk(view: View, volume: PodVolume) -> str:
    """Returns the disk that came closest to taking a volume, and its rule. It passed the most of Longhorn's rules, and
    lacks the fewest bytes. "" if some disk takes the volume.
    """
    places: list[_RefusedPlace] = []
    for node in view.cluster.nodes.values():
        of_node = new_replica_refusal(view, node.name)
        refusal = node_refusal(view.cluster, ReplicaRequest.for_volume(volume.volume), node)
        if of_node is not None:
            places.append((-CLOSENESS[refusal_rules.Rule.NODE_SCHEDULING_DISABLED], 0, (node.name, ""), of_node.detail))
        elif refusal is not None:
            places.append((-CLOSENESS[refusal.rule], 0, (node.name, ""), refusal.detail))
        else:
            for disk in node.disks:
                place = _refused_disk(view, volume, node, disk)
                if place is None:
                    return ""
                places.append(place)
    return min(places)[-1] if places else "the cluster has no Longhorn disk"


def _refused_disk(view: View, volume: PodVolume, node: longhorn.Node, disk: longhorn.Disk) -> _RefusedPlace | None:
    place = (node.name, disk.name)
    refusal = disk_refusal(view.cluster, ReplicaRequest.for_volume(volume.volume), disk)
    if refusal is not None:
        return -CLOSENESS[refusal.rule], 0, place, f"on node {node.name}, {refusal.detail}"
    image = view.snapshot.backing_images.get(volume.volume.backing_image)
    copied = image.real_size if image is not None and disk.uuid not in image.disks else 0
    needing = replace(volume.volume, size=volume.volume.size + copied)
    space = view.free_space(node.name)[disk.name]
    rule = space_refusal(needing.size, needing.actual_size, space)
    if rule is None:
        return None
    detail = f"on node {node.name}, {space_detail(rule, disk, view.settings, space, needing)}"
    missing = needing.actual_size - space.headroom + 1 if rule is refusal_rules.Rule.ACTUAL_SPACE else 0
    if rule is refusal_rules.Rule.SCHEDULING_SPACE:
        missing = needing.size - space.free
        if copied:
            detail += f", with {quantity.format_bytes(copied)} for a copy of backing image {needing.backing_image}"
    return -CLOSENESS[rule], missing, place, detail
