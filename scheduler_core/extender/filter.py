"""`filter_nodes`: which nodes can hold all of a pod's Longhorn volumes.

Data flow of one request (Longhorn's scheduler-extender proposal, Filter steps 1 to 4), all from one immutable state:

    pod → resolve → no Longhorn volumes?             → every node
                  → constrained to some nodes?       → the other nodes are refused (strict-local, a claim in use)
                  → no room anywhere for a volume that needs no local space? → no node
                  → homes of every local volume?     → only those
                  → refused before any node is looked at? → no node
                  → reserved for another pod?        → refused
                  → nodes with a replica of the pod: one by one (`evaluation/single_node.py`)
                  → all other nodes: by disk profile (`evaluation/equivalence_cache.py`)

The steps from the constrained nodes to the nodes with a replica are the functions of `_STAGES`, in this order. `_room_in_cluster` refuses
all candidates, whatever `_constrained_nodes` decided. Every later stage decides only nodes that are still undecided.

`explain.py` runs this very decision and adds plans and numbers per node, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from scheduler_core.cluster.view import View
from scheduler_core.cooperative import Cooperative, without_pauses
from scheduler_core.evaluation.competitors import Competitors, Requester, Volumes
from scheduler_core.evaluation.contention import ContentionQuery
from scheduler_core.evaluation.equivalence_cache import NodeQuery, attribute_to_competitors, evaluate_jointly
from scheduler_core.evaluation.node_rules import attach_refusal, refusal_on_every_node
from scheduler_core.evaluation.single_node import evaluate_node
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import (
    NO_CONTENDERS,
    Competing,
    Contenders,
    Decision,
    ExcludedNodes,
    FilterOptions,
    Packing,
    node_constraints,
    volumes_on_pod_node,
)
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.volumes.existing_replicas import home_nodes
from scheduler_core.volumes.requirements import Requirements, requirements
from scheduler_core.volumes.resolve import PodVolume, Resolution, resolve

# Reasons that may hold only because of what was offered to other pods.
_WORTH_WAITING: Final = frozenset({Reason.SPOKEN_FOR, Reason.ORDER_UNSAFE})


@dataclass(frozen=True, slots=True)
class _Request:
    """What every stage of a request reads.

    Attributes:
        query: for nodes shared with competing pods; None if no pod competes or the pod needs no space
    """

    state: ClusterState
    resolution: Resolution
    required: Requirements
    candidates: Sequence[str]
    options: FilterOptions
    contenders: Contenders
    budget: Budget
    query: NodeQuery | None

    @property
    def view(self) -> View:
        return self.state.view


class _Evaluated(NamedTuple):
    """The reasons that one stage decides, by node.

    `competitors` are the competitors that the stage counted, by node.
    """

    reasons: Mapping[str, Reason]
    competitors: Mapping[str, Competitors] = {}


_Reasons = Mapping[str, Reason]
_NOTHING: Final = _Evaluated({})


def filter_nodes(
    pod: Pod,
    candidates: Sequence[str],
    state: ClusterState,
    options: FilterOptions,
    contenders: Contenders = NO_CONTENDERS,
) -> Cooperative[Decision]:
    """Decides which candidates can hold the pod's Longhorn volumes.

    Every candidate gets a reason.

    Raises:
        ResolutionError: an object the pod names does not exist or contradicts it
    """
    resolution = resolve(pod, state.view, require_best_effort=options.require_best_effort)
    if not resolution.volumes:
        return Decision(resolution, candidates, [Reason.NO_VOLUMES] * len(candidates))
    required = requirements(resolution.local, resolution.volumes)
    budget = Budget(options.steps)
    competition = None
    query = None
    if isinstance(contenders, Competing):
        requester = Requester.of(pod.uid, resolution.volumes, pod.priority)
        competition = ContentionQuery(state, contenders.demand, contenders.ledger, requester, budget)
        if required.sizes:
            query = NodeQuery(competition, contenders.contention, resolution, required, options.examines_order)
    request = _Request(state, resolution, required, candidates, options, contenders, budget, query)
    reasons, competitors = yield from _evaluate(request)
    decision = Decision(resolution, candidates, reasons, budget.gave_up, competitors)
    if competition is None or not (decision.takes_space or decision.prefers_space):
        return decision
    classes = required.classes
    if decision.prefers_space:
        classes = requirements(volumes_on_pod_node(resolution), resolution.volumes).classes
        if isinstance(contenders, Competing) and not required.sizes:
            competitors = yield from contenders.contention.competitors(competition, candidates)
    table = yield from state.profiles.table(classes)
    # An offer is made from these.
    return replace(decision, competitors=competitors, volume_classes=classes.requests, profiles=table.profiles)


def _evaluate(request: _Request) -> Cooperative[tuple[list[Reason], Mapping[str, Competitors]]]:
    """Returns each candidate's reason, in order, and the competitors counted."""
    candidates = request.candidates
    decided: dict[str, Reason] = {}
    competitors: dict[str, Competitors] = {}
    for stage in _STAGES:
        evaluated = yield from stage(request, decided)
        decided |= evaluated.reasons
        competitors |= evaluated.competitors
    # The common case, in which no stage decides a node, keeps lists as they are: candidates may be thousands.
    names = [name for name in candidates if name not in decided] if decided else candidates
    reasons, counted = yield from _evaluate_undecided(request, names, competitors)
    if decided:
        decided |= zip(names, reasons, strict=True)
        reasons = [decided[name] for name in candidates]
    if request.options.packing is Packing.AUTO:
        reasons = _allow_order_unsafe(reasons)
    if request.query is not None:
        reasons = yield from _mark_waiting(request, request.query, reasons, counted)
    return reasons, counted


def _evaluate_undecided(
    request: _Request, names: Sequence[str], competitors: Mapping[str, Competitors]
) -> Cooperative[tuple[list[Reason], Mapping[str, Competitors]]]:
    """Returns the reasons of nodes that no stage decides, and all competitors counted."""
    if not names:
        # A pod that returns home needs no profiles, and must not replace what the caches hold for equal pods.
        return [], competitors
    if request.query is None or not isinstance(request.contenders, Competing):
        return (yield from _evaluate_alone(request, names)), competitors
    reasons, by_node = yield from request.contenders.equivalence.evaluate(request.query, names)
    return reasons, by_node.with_nodes(competitors)


def _evaluate_alone(request: _Request, names: Sequence[str]) -> Cooperative[list[Reason]]:
    """Returns the reasons of nodes without competing pods."""
    profiles = request.state.profiles
    table = yield from profiles.table(request.required.classes)
    nodes = table.of(names)
    examine_order = request.options.examines_order
    results = yield from profiles.evaluate(request.required, nodes, request.budget, examine_order=examine_order)
    return [results[profile] for profile in nodes]


@without_pauses
def _constrained_nodes(request: _Request, _decided: _Reasons) -> _Evaluated:
    """Refuses nodes that the pod's volumes exclude."""
    reasons: dict[str, Reason] = {}
    for nodes, reason in node_constraints(request.resolution):
        for name in request.candidates:
            if name not in nodes:
                reasons.setdefault(name, reason)
    return _Evaluated(reasons)


def _room_in_cluster(request: _Request, _decided: _Reasons) -> Cooperative[_Evaluated]:
    """Refuses every node if an unplaced volume fits no disk.

    The volume needs no local space, so any disk of the cluster would do.
    """
    for volume in request.resolution.unplaced:
        if not (yield from _fits_somewhere(request, volume)):
            return _Evaluated(dict.fromkeys(request.candidates, Reason.NO_ROOM_IN_CLUSTER))
    return _NOTHING


def _fits_somewhere(request: _Request, volume: PodVolume) -> Cooperative[bool]:
    required = requirements([volume], ())
    profiles = request.state.profiles
    table = yield from profiles.table(required.classes)
    nodes = list(table.profiles.values())
    results = yield from profiles.evaluate(required, nodes, request.budget, examine_order=False)
    return any(results[profile].fits for profile in nodes)


@without_pauses
def _homes(request: _Request, decided: _Reasons) -> _Evaluated:
    """Refuses all nodes but the homes, if there are any.

    A home has a usable replica of every local volume, and all of them can be attached there.
    """
    view = request.view
    classes = request.required.classes
    attachable = {name for name in _with_replica(request, decided) if attach_refusal(view, classes, name) is None}
    homes = home_nodes(request.resolution.local, attachable, view.cluster)
    if not homes:
        return _NOTHING
    undecided = (name for name in request.candidates if name not in decided)
    return _Evaluated({name: Reason.HOME if name in homes else Reason.HOME_ELSEWHERE for name in undecided})


@without_pauses
def _refused_everywhere(request: _Request, decided: _Reasons) -> _Evaluated:
    """Refuses undecided nodes if Longhorn refuses a volume whatever the node."""
    refused = refusal_on_every_node(request.view, request.resolution)
    if refused is None:
        return _NOTHING
    return _Evaluated({name: refused.reason for name in request.candidates if name not in decided})


@without_pauses
def _excluded_nodes(request: _Request, decided: _Reasons) -> _Evaluated:
    """Refuses nodes that are reserved for other pods."""
    if not isinstance(request.contenders, ExcludedNodes) or not request.required.sizes:
        return _NOTHING
    excluded = request.contenders.names
    reserved = (name for name in request.candidates if name in excluded and name not in decided)
    return _Evaluated(dict.fromkeys(reserved, Reason.NODE_RESERVED))


def _nodes_with_replicas(request: _Request, decided: _Reasons) -> Cooperative[_Evaluated]:
    """Evaluates nodes with a local volume's replica one by one."""
    names = _with_replica(request, decided)
    competitors: Mapping[str, Competitors] = {}
    if request.query is not None and names:
        competitors = yield from request.query.contention.competitors(request.query.competition, names)
    reasons: dict[str, Reason] = {}
    shares = request.budget.shares(len(names) + 1)
    for name, share in zip(names, shares, strict=False):
        volumes = competitors[name].volumes if name in competitors else ()
        reasons[name] = _reason_of_node_with_replica(request, name, volumes, share)
        yield
    request.budget.take_back(shares)
    return _Evaluated(reasons, competitors)


def _reason_of_node_with_replica(request: _Request, name: str, volumes: Volumes, budget: Budget) -> Reason:
    node = evaluate_node(request.view, request.resolution, name, volumes)
    reason = node.reason(budget)
    if volumes and not reason.fits:
        alone = evaluate_node(request.view, request.resolution, name)
        if alone.reason(budget).fits:
            reason = attribute_to_competitors(reason)
    if reason is Reason.ROOM and request.options.examines_order:
        safe = node.order_safety(budget).answer is PackingAnswer.YES
        return Reason.ROOM if safe else Reason.ORDER_UNSAFE
    return reason


def _with_replica(request: _Request, decided: _Reasons) -> list[str]:
    """Returns undecided candidates with a local volume's replica."""
    nodes = {replica.node_id for volume in request.resolution.local for replica in volume.replicas}
    return [name for name in request.candidates if name in nodes and name not in decided] if nodes else []


_Stage = Callable[[_Request, _Reasons], Cooperative[_Evaluated]]
_STAGES: Final[tuple[_Stage, ...]] = (
    _constrained_nodes,
    _room_in_cluster,
    _homes,
    _refused_everywhere,
    _excluded_nodes,
    _nodes_with_replicas,
)


def _allow_order_unsafe(reasons: list[Reason]) -> list[Reason]:
    """Offers order-unsafe nodes if there are no others.

    The caller applies this only with packing AUTO.
    """
    if Reason.ORDER_UNSAFE not in reasons or Reason.ROOM in reasons:
        return reasons
    return [Reason.ROOM if reason is Reason.ORDER_UNSAFE else reason for reason in reasons]


def _mark_waiting(
    request: _Request, query: NodeQuery, reasons: list[Reason], competitors: Mapping[str, Competitors]
) -> Cooperative[list[Reason]]:
    """Marks nodes that only offers refuse, if no node fits.

    A node is marked WAITING if the pod would fit there once the offered volumes went to other nodes. With packing ORDER_SAFE the node must
    then be order-safe, too, because no other node is offered.
    """
    if any(reason.fits for reason in reasons) or _WORTH_WAITING.isdisjoint(reasons):
        return reasons
    groups: dict[int, list[str]] = {}
    for name, reason in zip(request.candidates, reasons, strict=True):
        on_node = competitors.get(name) if reason in _WORTH_WAITING else None
        if on_node is not None and on_node.offered:
            groups.setdefault(on_node.demand_group, []).append(name)
    examine_order = request.options.packing is Packing.ORDER_SAFE
    waiting: set[str] = set()
    for names in groups.values():
        demanded = competitors[names[0]].demanded
        results = yield from evaluate_jointly(query, names, demanded, examine_order=examine_order)
        waiting |= {name for name, reason in results.items() if reason.fits}
    return [
        Reason.WAITING if name in waiting else reason for name, reason in zip(request.candidates, reasons, strict=True)
    ]
