"""A decision as the classic scheduler's Longhorn rules read it (`generic/cycle_state.py`): facts about each node.

Data flow: the decision of `filter_nodes`, with order safety and stale safety examined → the replicas that are kept → for nodes that fit a plan, made
once for all nodes whose profile and competitors are equal → what the plan leaves free on each open disk.

The plan puts each volume, largest first, on the disk with most free space. Where that fails, it is the plan of the packing search.

`PlanCache` keeps the facts about each node for requirements that were met before, so that equal pods cost a look-up per node.
Correctness does not depend on it.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

from scheduler_core import caches
from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import NO_CONTENDERS, Contenders, Decision, FilterOptions
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.evaluation import cluster_state, competing_volumes, disk_profiles, fit, single_node
from scheduler_core.generic.cycle_state import DiskFacts, LonghornFacts, NodeFacts
from scheduler_core.longhorn.space import scheduling_limit
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import Budget, give_way
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes import existing_replicas, resolve
from scheduler_core.volumes.volume_requirements import Requirements, requirements

# Number of cached nodes over all requirements; half a kilobyte each.
MAX_CACHED_NODES = 50_000

Disks = tuple[DiskFacts, ...]

_Circumstances = tuple[int | None, Reason | None, int]
"""What the facts about a node that fits depend on, apart from the node itself and its disks.

`Competitors.group` (None without competitors), the reason why it is not stale-safe (None where it is), and `NodeFacts.replica_bytes`.
"""


class PlanCache:
    """Caches the facts about nodes that fit, by requirements and node. All requests to one cache must come with the
    same `Contention`, because its numbers of equal competitors are part of the entries.
    """

    def __init__(self) -> None:
        self.facts: caches.NodeResults[tuple[_Circumstances, NodeFacts]] = caches.NodeResults(MAX_CACHED_NODES)

    def longhorn_facts(
        self,
        pod: Pod,
        names: Sequence[str],
        state: cluster_state.ClusterState,
        options: FilterOptions,
        contenders: Contenders = NO_CONTENDERS,
    ) -> LonghornFacts:
        """Returns the facts about the pod's volumes by node, with other pods taken into account. The reasons are those
        of `filter_nodes` with the same options for these very nodes. Where a plan exists but was not found within the
        budget, the disks are as they are without it.
        """
        # Order safety and stale safety are examined whatever the options.
        examined = replace(options, rank_safety=True)
        decision = filter_nodes(pod, names, state, examined, contenders)
        volumes = decision.resolution.volumes
        replica_bytes, total_bytes = _replica_bytes(volumes, state.view)
        planner = _Planner(state, decision, decision.resolution, self, Budget(options.steps), replica_bytes)
        facts: dict[str, NodeFacts] = {}
        fitting: Sequence[str] = names
        # In a large cluster mostly all nodes fit.
        if decision.reasons.count(Reason.ROOM) < len(names):
            fitting = [name for name, reason in zip(names, decision.reasons, strict=True) if reason is Reason.ROOM]
        # By identity, because nodes with equal volumes share them.
        groups: dict[int, tuple[resolve.Resolution, list[str]]] = {}
        for name in fitting if decision.resolutions else ():
            resolution = decision.resolution_on(name)
            groups.setdefault(id(resolution), (resolution, []))[1].append(name)
        for resolution, members in groups.values() or [(decision.resolution, fitting)]:
            _add_fitting_nodes(replace(planner, resolution=resolution), members, facts)
        # Equal facts are one object: thousands of nodes share a handful of them.
        interned: dict[tuple[Reason, int], NodeFacts] = {}
        for name, reason in zip(names, decision.reasons, strict=True) if len(fitting) < len(names) else ():
            if reason is Reason.ROOM:
                continue
            size = replica_bytes.get(name, 0)
            shared = interned.get((reason, size))
            if shared is None:
                shared = NodeFacts(reason, reason.fits, size, stale_safe=reason.fits)
                interned[reason, size] = shared
            facts[name] = shared
        return LonghornFacts(facts, total_bytes)


class _Planner(Struct, frozen=True):
    state: cluster_state.ClusterState
    decision: Decision
    resolution: resolve.Resolution
    cache: PlanCache
    budget: Budget
    replica_bytes: Mapping[str, int]  # as in `NodeFacts`, by node

    @property
    def view(self) -> View:
        return self.state.view


def _replica_bytes(volumes: Sequence[resolve.PodVolume], view: View) -> tuple[dict[str, int], int]:
    """Returns the bytes that `NodeFacts.replica_bytes` counts by node, and the most that a node can have."""
    bytes_by_node: dict[str, int] = {}
    totals: dict[str, int] = {}
    for volume in volumes:
        size = volume.volume.size
        written = volume.volume.actual_size
        uses = existing_replicas.replica_uses(volume, view.cluster)
        kept = {
            name: use
            for name, use in uses.items()
            if use is not existing_replicas.ReplicaUse.NONE and (volume.nodes is None or name in volume.nodes)
        }
        if kept:
            key = volume.claim if volume.persistent_volume or volume.nodes is not None else volume.name
            # Of several volumes that a claim may become, the largest counts for the most.
            totals[key] = max(totals.get(key, 0), size + written)
        for name, use in kept.items():
            on_node = size + written if use is existing_replicas.ReplicaUse.HEALTHY else size
            bytes_by_node[name] = bytes_by_node.get(name, 0) + on_node
    # Without any data every node has the same share: nothing.
    return bytes_by_node, sum(totals.values()) or sum(volume.volume.size for volume in volumes)


def _add_fitting_nodes(planner: _Planner, names: Sequence[str], facts: dict[str, NodeFacts]) -> None:
    decision = planner.decision
    resolution = planner.resolution
    required = requirements(resolution.local, resolution.volumes)
    with_replica = {replica.node_id for volume in resolution.local for replica in volume.replicas}
    missing: dict[str, _Circumstances] = {}
    if with_replica:
        for name in with_replica.intersection(names):
            competitors = decision.competitors.get(name)
            # Anti-affinity and kept replicas make such a node a special case.
            node = single_node.evaluate_node(planner.view, resolution, name, competitors.volumes if competitors else ())
            disks: Disks = ()
            if node.required.sizes:
                free = _free_after_plan(node.required, node.profile, planner.budget, node.allowed)
                disks = _disk_facts(planner.view, name, node.disks, free)
            facts[name] = _facts(planner, name, disks)
        names = [name for name in names if name not in with_replica]
    version = (planner.state.profiles.changelog,)
    cached = planner.cache.facts.at(required.key, version)
    for name, circumstances, entry in zip(names, _circumstances(planner, names), map(cached.get, names), strict=False):
        if entry is not None and entry[0] == circumstances:
            facts[name] = entry[1]
        else:
            missing[name] = circumstances
    if not missing:
        return
    for name, disks in _free_disks(planner, missing).items():
        facts[name] = _facts(planner, name, disks)
    # Another request may have more budget for what was not found here.
    if not planner.budget.gave_up:
        cached |= {name: (circumstances, facts[name]) for name, circumstances in missing.items()}
        planner.cache.facts.store(required.key, cached, version)


def _circumstances(planner: _Planner, names: Sequence[str]) -> Iterable[_Circumstances]:
    decision = planner.decision
    if not (decision.competitors or decision.unsafe or planner.replica_bytes):
        return repeat((None, None, 0))
    groups: Iterable[int | None] = repeat(None)
    if decision.competitors:
        groups = [on_node.group if on_node else None for on_node in map(decision.competitors.get, names)]
    sizes = [planner.replica_bytes.get(name, 0) for name in names] if planner.replica_bytes else repeat(0)
    return zip(groups, map(decision.unsafe.get, names), sizes, strict=False)


def _facts(planner: _Planner, name: str, disks: Disks) -> NodeFacts:
    unsafe = planner.decision.unsafe.get(name)
    order_safe = unsafe is not Reason.ORDER_UNSAFE
    size = planner.replica_bytes.get(name, 0)
    return NodeFacts(Reason.ROOM, order_safe, size, disks, stale_safe=unsafe is None)


def _free_disks(planner: _Planner, missing: Mapping[str, _Circumstances]) -> dict[str, Disks]:
    """Returns what plans leave free on the open disks of fitting nodes without replicas of the pod, () where nothing new
    is placed. Nodes with equal competitors and equal profiles share one plan.
    """
    resolution = planner.resolution
    groups: dict[int | None, list[str]] = {}
    for name, (group, _, _) in missing.items():
        groups.setdefault(group, []).append(name)
    disks: dict[str, Disks] = {}
    for members in groups.values():
        competitors: competing_volumes.Competitors | None = planner.decision.competitors.get(members[0])
        volumes = competitors.volumes if competitors else ()
        required = requirements((*resolution.local, *volumes), resolution.volumes)
        profiles = planner.state.profiles.table(required.classes).of(members)
        free: dict[fit.Profile, tuple[int, ...]] = {}
        distinct = dict.fromkeys(profiles)
        shares = planner.budget.shares(len(distinct))
        for profile, share in zip(distinct, shares, strict=True):
            give_way()
            free[profile] = _free_after_plan(required, profile, share)
        planner.budget.take_back(shares)
        for name, profile in zip(members, profiles, strict=True):
            open_disks = disk_profiles.profile_node(planner.view, required.classes, name)
            disks[name] = ()
            if not isinstance(open_disks, disk_profiles.Refused):
                disks[name] = _disk_facts(planner.view, name, open_disks, free[profile])
    return disks


def _free_after_plan(
    required: Requirements, profile: fit.Profile, budget: Budget, allowed: fit.AllowedDisks | None = None
) -> tuple[int, ...]:
    """Returns the free bytes of the disks after the plan, or as they are without a plan within the budget."""
    free = list(profile.free)
    if required.uniform and not allowed:
        for size in required.sizes:
            most = max(free)
            if size > most:
                break
            free[free.index(most)] = most - size
        else:
            return tuple(free)
    free = list(profile.free)
    copied: set[tuple[int, str]] = set()
    for index, disk in enumerate(fit.plan(required, profile, budget, allowed) or ()):
        free[disk] -= required.sizes[index]
        if profile.copying and required.images[index]:
            copied.add((disk, required.images[index]))
    for disk, image in copied:
        free[disk] -= dict(profile.copies[disk]).get(image, 0)
    return tuple(free)


def _disk_facts(view: View, name: str, disks: Iterable[fit.OpenDisk], free: Iterable[int]) -> Disks:
    limits = {disk.uuid: scheduling_limit(disk, view.settings) for disk in view.cluster.nodes[name].disks}
    return tuple(DiskFacts(limits[disk.uuid], size) for disk, size in zip(disks, free, strict=True))
