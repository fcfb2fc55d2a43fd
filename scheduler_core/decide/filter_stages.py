"""The stages of `filter.py`: each decides some nodes for one set of a pod's volumes.

Data flow: a request → the functions of `_STAGES` in their order, each with what earlier ones decided → all other nodes by disk profile → `finish`,
for what depends on the reasons of all nodes. `_refusals_of_pod` refuses all candidates, whatever `_constrained_nodes` decided. Every later stage decides
only nodes that are still undecided. At last the nodes remain for which the whole pod has a placement in the cluster (`evaluation/whole_pod.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import (
    Competing,
    Contenders,
    Decision,
    ExcludedNodes,
    FilterOptions,
    Packing,
    node_constraints,
    volumes_on_pod_node,
)
from scheduler_core.evaluation.competitors import Competitors, Volumes
from scheduler_core.evaluation.contention import ContentionQuery
from scheduler_core.evaluation.profile import attach_refusal, refusal_on_every_node, unready_volume
from scheduler_core.evaluation.replicas import replica_needs
from scheduler_core.evaluation.results import (
    NodeQuery,
    OptionalVolumes,
    attribute_to_competitors,
    evaluate_jointly,
    evaluate_nodes,
)
from scheduler_core.evaluation.single_node import evaluate_node
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.evaluation.whole_pod import WholePod, nodes_without_placement
from scheduler_core.model.verdict import UNSAFE, Reason
from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.values import replace
from scheduler_core.volumes.existing_replicas import home_nodes
from scheduler_core.volumes.requirements import Requirements, requirements
from scheduler_core.volumes.resolve import Resolution

# Reasons that may hold only because of what was offered to other pods.
_WORTH_WAITING: Final = UNSAFE | {Reason.SPOKEN_FOR}


class FilterRequest(Struct, frozen=True):
    """What every stage of a request reads."""

    state: ClusterState
    resolution: Resolution
    required: Requirements
    candidates: Sequence[str]
    options: FilterOptions
    contenders: Contenders
    budget: Budget
    competition: ContentionQuery | None  # what other pods have; None if no pod competes
    query: NodeQuery | None  # for nodes shared with competing pods; None if no pod competes or the pod needs no space
    optional: OptionalVolumes  # the pod's volumes without data locality, as they matter to the safety of nodes
    # The homes among all candidates of a pod whose volumes differ by node; None if they do not differ.
    homes: frozenset[str] | None = None

    @property
    def view(self) -> View:
        return self.state.view


class _Evaluated(NamedTuple):
    reasons: Mapping[str, Reason]
    competitors: Mapping[str, Competitors] = {}


_Reasons = Mapping[str, Reason]
_NOTHING: Final = _Evaluated({})


def evaluate_stages(request: FilterRequest) -> tuple[list[Reason], Mapping[str, Competitors]]:
    """Returns each candidate's reason, in order, and the competitors counted. Whether unsafe nodes are offered, and
    which nodes are waited for, is not settled yet (`finish`).
    """
    candidates = request.candidates
    decided: dict[str, Reason] = {}
    competitors: dict[str, Competitors] = {}
    for stage in _STAGES:
        evaluated = stage(request, decided)
        decided |= evaluated.reasons
        competitors |= evaluated.competitors
    # The common case, in which no stage decides a node, keeps lists as they are: candidates may be thousands.
    names = [name for name in candidates if name not in decided] if decided else candidates
    reasons, counted = _evaluate_others(request, names, competitors)
    if decided:
        decided |= zip(names, reasons, strict=True)
        reasons = [decided[name] for name in candidates]
    return _placeable(request, reasons), counted


def _evaluate_others(
    request: FilterRequest, names: Sequence[str], competitors: Mapping[str, Competitors]
) -> tuple[list[Reason], Mapping[str, Competitors]]:
    """Returns the reasons of the nodes that no stage decides, and all competitors counted."""
    if not names:
        # A pod that returns home needs no profiles, and must not replace what the caches hold for equal pods.
        return [], competitors
    if request.query is None or not isinstance(request.contenders, Competing):
        return _evaluate_alone(request, names), competitors
    reasons, by_node = evaluate_nodes(request.query, names, request.contenders.equivalence)
    return reasons, {**by_node, **competitors}


def _evaluate_alone(request: FilterRequest, names: Sequence[str]) -> list[Reason]:
    profiles = request.state.profiles
    examine_safety = request.options.examines_safety
    resolution = request.resolution
    reasons: dict[str, Reason] = {}
    for optional, members in request.optional.split(names):
        required = requirements(resolution.local, resolution.volumes, optional) if optional else request.required
        table = profiles.table(required.classes)
        nodes = table.of(members)
        results = profiles.evaluate(required, nodes, request.budget, examine_safety=examine_safety)
        reasons |= {name: results[profile] for name, profile in zip(members, nodes, strict=True)}
    return [reasons[name] for name in names]


def _placeable(request: FilterRequest, reasons: list[Reason]) -> list[Reason]:
    needs = replica_needs(request.resolution, request.view)
    if not needs:
        return reasons
    names = [name for name, reason in zip(request.candidates, reasons, strict=True) if reason.fits or reason in UNSAFE]
    pod = WholePod(request.state, request.resolution, needs)
    refused = nodes_without_placement(pod, names, request.budget)
    if not refused:
        return reasons
    return [refused.get(name, reason) for name, reason in zip(request.candidates, reasons, strict=True)]


def _constrained_nodes(request: FilterRequest, _decided: _Reasons) -> _Evaluated:
    reasons: dict[str, Reason] = {}
    for nodes, reason in node_constraints(request.resolution):
        for name in request.candidates:
            if name not in nodes:
                reasons.setdefault(name, reason)
    return _Evaluated(reasons)


def _refusals_of_pod(request: FilterRequest, _decided: _Reasons) -> _Evaluated:
    unready = unready_volume(request.view, request.resolution)
    if unready is not None:
        return _Evaluated(dict.fromkeys(request.candidates, unready.reason))
    return _room_in_cluster(request)


def _room_in_cluster(request: FilterRequest) -> _Evaluated:
    # Equal volumes are looked at once: a pod may have thousands.
    distinct = {
        required.key: required for required in (requirements([entry], ()) for entry in request.resolution.unplaced)
    }
    for required in distinct.values():
        if not _fits_somewhere(request, required):
            return _Evaluated(dict.fromkeys(request.candidates, Reason.NO_ROOM_IN_CLUSTER))
    return _NOTHING


def _fits_somewhere(request: FilterRequest, required: Requirements) -> bool:
    profiles = request.state.profiles
    table = profiles.table(required.classes)
    nodes = list(table.profiles.values())
    results = profiles.evaluate(required, nodes, request.budget, examine_safety=False)
    return any(results[profile].fits for profile in nodes)


def _homes(request: FilterRequest, decided: _Reasons) -> _Evaluated:
    # A home has a usable replica of every local volume, and all of them can be attached there.
    homes = home_names(request, decided) if request.homes is None else request.homes
    if not homes:
        return _NOTHING
    undecided = (name for name in request.candidates if name not in decided)
    return _Evaluated({name: Reason.HOME if name in homes else Reason.HOME_ELSEWHERE for name in undecided})


def home_names(request: FilterRequest, decided: Collection[str]) -> frozenset[str]:
    view = request.view
    classes = request.required.classes
    attachable = {name for name in _with_replica(request, decided) if attach_refusal(view, classes, name) is None}
    return home_nodes(request.resolution.local, attachable, view.cluster)


def _refusals_everywhere(request: FilterRequest, decided: _Reasons) -> _Evaluated:
    refused = refusal_on_every_node(request.view, request.resolution)
    if refused is None:
        return _NOTHING
    return _Evaluated({name: refused.reason for name in request.candidates if name not in decided})


def _excluded_nodes(request: FilterRequest, decided: _Reasons) -> _Evaluated:
    if not isinstance(request.contenders, ExcludedNodes) or not request.required.sizes:
        return _NOTHING
    excluded = request.contenders.names
    reserved = (name for name in request.candidates if name in excluded and name not in decided)
    return _Evaluated(dict.fromkeys(reserved, Reason.NODE_RESERVED))


def _nodes_with_replicas(request: FilterRequest, decided: _Reasons) -> _Evaluated:
    """Evaluates nodes with a replica that matters to space one by one."""
    names = _with_replica(request, decided, request.optional.nodes_with_replica)
    competitors: Mapping[str, Competitors] = {}
    if request.query is not None and names:
        competitors = request.query.contention.competitors(request.query.competition, names)
    reasons: dict[str, Reason] = {}
    shares = request.budget.shares(len(names) + 1)
    for name, share in zip(names, shares, strict=False):
        reasons[name] = _reason_of_node_with_replica(request, name, competitors.get(name), share)
    request.budget.take_back(shares)
    return _Evaluated(reasons, competitors)


def _reason_of_node_with_replica(
    request: FilterRequest, name: str, competitors: Competitors | None, budget: Budget
) -> Reason:
    volumes = competitors.volumes if competitors is not None else ()
    node = evaluate_node(request.view, request.resolution, name, volumes, request.optional.on(name))
    reason = node.reason(budget)
    if volumes and not reason.fits:
        alone = evaluate_node(request.view, request.resolution, name)
        if alone.reason(budget).fits:
            reason = attribute_to_competitors(reason)
    if reason is Reason.ROOM and request.options.examines_safety:
        if node.overbooking() is None:
            left_out = competitors.left_out if competitors is not None else ()
            return reason if _stale_safe_with(request, name, volumes, left_out) else Reason.STALE_UNSAFE
        safe = node.order_safety(budget).answer is PackingAnswer.YES
        return Reason.STALE_UNSAFE if safe else Reason.ORDER_UNSAFE
    return reason


def _stale_safe_with(request: FilterRequest, name: str, volumes: Volumes, left_out: Volumes) -> bool:
    if not left_out:
        return True
    node = evaluate_node(request.view, request.resolution, name, volumes + left_out, request.optional.on(name))
    return node.refused is None and node.overbooking() is None


def _with_replica(request: FilterRequest, decided: Collection[str], others: frozenset[str] = frozenset()) -> list[str]:
    """Returns undecided candidates with a local volume's replica, and the `others` that are undecided."""
    nodes = others.union(replica.node_id for volume in request.resolution.local for replica in volume.replicas)
    return [name for name in request.candidates if name in nodes and name not in decided] if nodes else []


_Stage = Callable[[FilterRequest, _Reasons], _Evaluated]
_STAGES: Final[tuple[_Stage, ...]] = (
    _constrained_nodes,
    _refusals_of_pod,
    _homes,
    _refusals_everywhere,
    _excluded_nodes,
    _nodes_with_replicas,
)


def accept(reasons: Sequence[Reason], accepted: frozenset[Reason]) -> list[Reason]:
    return [Reason.ROOM if reason in accepted else reason for reason in reasons]


def mark_waiting(
    request: FilterRequest, query: NodeQuery, reasons: list[Reason], competitors: Mapping[str, Competitors]
) -> list[Reason]:
    """Marks nodes WAITING where the pod would fit once the offered volumes went to other nodes, if no node fits."""
    if any(reason.fits for reason in reasons) or _WORTH_WAITING.isdisjoint(reasons):
        return reasons
    groups: dict[int, list[str]] = {}
    for name, reason in zip(request.candidates, reasons, strict=True):
        on_node = competitors.get(name) if reason in _WORTH_WAITING else None
        if on_node is not None and on_node.offered:
            groups.setdefault(on_node.demand_group, []).append(name)
    packing = request.options.packing
    # With these modes no unsafe node is offered, so there is nothing to wait for on one.
    examine_safety = packing in (Packing.ORDER_SAFE, Packing.STALE_SAFE)
    accepted = packing.acceptable_reasons(()) | {Reason.ROOM}
    waiting: set[str] = set()
    for names in groups.values():
        demanded = competitors[names[0]].demanded
        results = evaluate_jointly(query, names, demanded, examine_safety=examine_safety)
        waiting |= {name for name, reason in results.items() if reason in accepted}
    return [
        Reason.WAITING if name in waiting else reason for name, reason in zip(request.candidates, reasons, strict=True)
    ]


def mark_never_safe(request: FilterRequest, reasons: list[Reason]) -> list[Reason]:
    """Marks nodes that this packing refuses whatever other pods do: they are unsafe for the pod's volumes alone."""
    refused = UNSAFE - request.options.packing.acceptable_reasons(())
    if refused.isdisjoint(reasons):
        return reasons
    names = [name for name, reason in zip(request.candidates, reasons, strict=True) if reason in refused]
    table = request.state.profiles.table(request.required.classes)
    profiles = zip(names, table.of(names), strict=True)
    # Nothing is in flight on these nodes.
    settled = [name for name, profile in profiles if profile.free == profile.reported]
    apart = frozenset(_with_replica(request, (), request.optional.nodes_with_replica))
    others = [name for name in settled if name not in apart]
    alone = dict(zip(others, _evaluate_alone(request, others), strict=True))
    for name in settled:
        if name in apart:
            alone[name] = _reason_of_node_with_replica(request, name, None, request.budget)
    # What a search left open is not marked.
    if request.budget.gave_up and Reason.STALE_UNSAFE not in refused:
        return reasons
    never = {name for name, reason in alone.items() if reason in refused}
    return [
        Reason.NEVER_SAFE if name in never else reason for name, reason in zip(request.candidates, reasons, strict=True)
    ]


def finish(
    request: FilterRequest, reasons: list[Reason], competitors: Mapping[str, Competitors]
) -> tuple[list[Reason], Mapping[str, Reason]]:
    """Returns the reasons after what depends on all of them, and `Decision.unsafe`."""
    unsafe: dict[str, Reason] = {}
    if not UNSAFE.isdisjoint(reasons):
        accepted = request.options.packing.acceptable_reasons(reasons)
        pairs = zip(request.candidates, reasons, strict=True)
        unsafe = {name: reason for name, reason in pairs if reason in accepted}
        reasons = accept(reasons, accepted)
    if request.query is not None:
        reasons = mark_waiting(request, request.query, reasons, competitors)
    return mark_never_safe(request, reasons), unsafe


def add_profiles(request: FilterRequest, decision: Decision) -> Decision:
    """Returns the decision with what an offer is made from."""
    if request.budget.gave_up:
        decision = replace(decision, gave_up=request.budget.gave_up)
    competition = request.competition
    if competition is None or not (decision.takes_space or decision.prefers_space):
        return decision
    classes = request.required.classes
    competitors = decision.competitors
    if decision.prefers_space:
        resolution = request.resolution
        classes = requirements(volumes_on_pod_node(resolution), resolution.volumes).classes
        if isinstance(request.contenders, Competing) and not request.required.sizes:
            competitors = request.contenders.contention.competitors(competition, request.candidates)
    table = request.state.profiles.table(classes)
    return replace(decision, competitors=competitors, volume_classes=classes.requests, profiles=table.profiles)
