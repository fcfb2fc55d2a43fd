"""`filter_nodes`: which nodes can hold all of a pod's Longhorn volumes.

Data flow of one request (Longhorn's scheduler-extender proposal, Filter steps 1 to 4), all from one immutable state:

    pod → resolve → nodes differ in its volumes?     → all of this for each possible match, see `_decide_by_match`
                  → no Longhorn volumes?             → every node
                  → constrained to some nodes?       → the other nodes are refused (strict-local, a claim in use)
                  → no room anywhere for a volume that needs no local space? → no node
                  → homes of every local volume?     → only those
                  → refused before any node is looked at? → no node
                  → reserved for another pod?        → refused
                  → nodes with a replica of the pod: one by one (`evaluation/single_node.py`)
                  → all other nodes: by disk profile (`evaluation/results.py`)

The steps from the constrained nodes on are the stages of `filter_stages.py`.

`explain.py` runs this very decision and adds plans and numbers per node, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from scheduler_core.decide import filter_stages
from scheduler_core.decide.decision import (
    NO_CONTENDERS,
    Competing,
    Contenders,
    Decision,
    FilterOptions,
    check_existing_volumes,
    node_constraints,
    resolve_candidates,
)
from scheduler_core.evaluation.competitors import NO_REQUESTER, Competitors, Requester
from scheduler_core.evaluation.contention import ContentionQuery
from scheduler_core.evaluation.profile import Profile
from scheduler_core.evaluation.results import NO_OPTIONAL_VOLUMES, NodeQuery, optional_volumes
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import UNSAFE, Reason
from scheduler_core.packing.budget import Budget
from scheduler_core.values import replace
from scheduler_core.volumes.requirements import requirements
from scheduler_core.volumes.resolve import PodVolume, Resolution, exceeds_attach_limit
from scheduler_core.volumes.volume_binding import NodeResolution, merge_resolutions

# The worst reason counts on a node with several possible volumes. Refusals that may pass are less severe than all
# others. The others have the order of `Reason`: the order of the matches depends on the claims' names.
_PASSING: Final = (
    Reason.NO_VOLUMES,
    Reason.HOME,
    Reason.ATTACHABLE,
    Reason.ROOM,
    Reason.STALE_UNSAFE,
    Reason.ORDER_UNSAFE,
    Reason.WAITING,
    Reason.SPOKEN_FOR,
    Reason.NEVER_SAFE,
)
_REFUSED: Final = len(_PASSING)
_SEVERITY: Final = {
    reason: severity
    for severity, reason in enumerate((*_PASSING, *(reason for reason in reversed(Reason) if reason not in _PASSING)))
}


class _Question(Struct, frozen=True):
    requester: Requester  # the pod with all volumes that it may have
    state: ClusterState
    options: FilterOptions
    contenders: Contenders
    budget: Budget

    def request(self, resolution: Resolution, candidates: Sequence[str]) -> filter_stages.FilterRequest:
        required = requirements(resolution.local, resolution.volumes)
        examine_safety = self.options.examines_safety
        optional = optional_volumes(self.state.view, resolution) if examine_safety else NO_OPTIONAL_VOLUMES
        contenders = self.contenders
        competition = None
        query = None
        if isinstance(contenders, Competing):
            competition = ContentionQuery(self.state, contenders.demand, contenders.ledger, self.requester, self.budget)
            if required.sizes:
                query = NodeQuery(competition, contenders.contention, resolution, required, examine_safety, optional)
        return filter_stages.FilterRequest(
            state=self.state,
            resolution=resolution,
            required=required,
            candidates=candidates,
            options=self.options,
            contenders=contenders,
            budget=self.budget,
            competition=competition,
            query=query,
            optional=optional,
        )


def filter_nodes(
    pod: Pod,
    candidates: Sequence[str],
    state: ClusterState,
    options: FilterOptions,
    contenders: Contenders = NO_CONTENDERS,
) -> Decision:
    """Decides which candidates can hold the pod's Longhorn volumes; every candidate gets a reason."""
    if exceeds_attach_limit(pod):
        return Decision(Resolution(), candidates, [Reason.TOO_MANY_VOLUMES] * len(candidates))
    offered = _volumes_offered_to_others(pod, contenders)
    parts = resolve_candidates(pod, candidates, state.view, options, offered)
    resolution = merge_resolutions(parts)
    check_existing_volumes(resolution)
    if not resolution.volumes:
        return Decision(resolution, candidates, [Reason.NO_VOLUMES] * len(candidates))
    competing = isinstance(contenders, Competing)
    requester = Requester.of(pod.uid, resolution.volumes, pod.priority) if competing else NO_REQUESTER
    question = _Question(requester, state, options, contenders, Budget(options.steps))
    if len(parts) > 1:
        return _decide_by_match(question, candidates, parts, resolution)
    request = question.request(resolution, candidates)
    reasons, competitors = filter_stages.evaluate_stages(request)
    reasons, unsafe = filter_stages.finish(request, reasons, competitors)
    decision = Decision(resolution, candidates, reasons, competitors=competitors, unsafe=unsafe)
    return filter_stages.add_profiles(request, decision)


def _volumes_offered_to_others(pod: Pod, contenders: Contenders) -> Iterable[PodVolume]:
    offers: Iterable[Any] = contenders.ledger.offers.values() if isinstance(contenders, Competing) else ()
    # Most pods have no claim that an existing volume may match, so that the offers are not even looked at.
    return (
        volume
        for offer in offers
        if offer.uid != pod.uid
        for volume in offer.volumes
        if volume.nodes is None or not offer.nodes.isdisjoint(volume.nodes)
    )


def _decide_by_match(
    question: _Question, candidates: Sequence[str], parts: Sequence[NodeResolution], resolution: Resolution
) -> Decision:
    """Decides about a pod whose volumes depend on the node, or on chance, each part like a pod of its own on its nodes."""
    # There may be as many parts as nodes.
    positions = {name: position for position, name in enumerate(candidates)}
    requests = [
        question.request(
            part.resolution,
            candidates if part.nodes is None else sorted(part.nodes, key=positions.__getitem__),
        )
        for part in parts
    ]
    # The homes are those among all candidates.
    homes = _common_homes(requests)
    evaluated: list[tuple[filter_stages.FilterRequest, list[Reason], Mapping[str, Competitors]]] = []
    for request in requests:
        if request.resolution.volumes:
            reasons, competitors = filter_stages.evaluate_stages(replace(request, homes=homes))
        else:
            reasons = [Reason.NO_VOLUMES] * len(request.candidates)
            competitors = {}
        evaluated.append((request, reasons, competitors))
    # A node in several parts fits only if it fits in all of them: kube-scheduler chooses one, and nothing shows which.
    worst = _worst_by_node(evaluated)
    accepted = question.options.packing.acceptable_reasons([reason for _, reason in worst.values()])
    unsafe = {name: reason for name, (_, reason) in worst.items() if reason in accepted}
    evaluated = [(request, filter_stages.accept(reasons, accepted), counted) for request, reasons, counted in evaluated]
    if not any(reason.fits for _, reason in _worst_by_node(evaluated).values()):
        for index, (request, reasons, counted) in enumerate(evaluated):
            if request.query is not None:
                marked = filter_stages.mark_waiting(request, request.query, reasons, counted)
                evaluated[index] = (request, marked, counted)
    for index, (request, reasons, counted) in enumerate(evaluated):
        evaluated[index] = (request, filter_stages.mark_never_safe(request, reasons), counted)
    return replace(_combine(evaluated, candidates, resolution), unsafe=unsafe)


def _common_homes(requests: Sequence[filter_stages.FilterRequest]) -> frozenset[str]:
    homes: set[str] = set()
    others: set[str] = set()
    for request in requests:
        decided = {
            name
            for nodes, _ in node_constraints(request.resolution)
            for name in request.candidates
            if name not in nodes
        }
        own = filter_stages.home_names(request, decided)
        homes |= own
        others.update(name for name in request.candidates if name not in own)
    return frozenset(homes - others)


def _worst_by_node(
    evaluated: Sequence[tuple[filter_stages.FilterRequest, list[Reason], Mapping[str, Competitors]]],
) -> dict[str, tuple[int, Reason]]:
    worst: dict[str, tuple[int, Reason]] = {}
    uncertain: set[str] = set()
    for index, (request, reasons, _) in enumerate(evaluated):
        for name, reason in zip(request.candidates, reasons, strict=True):
            earlier = worst.get(name)
            if earlier is None:
                worst[name] = (index, reason)
                continue
            if max(_SEVERITY[reason], _SEVERITY[earlier[1]]) >= _REFUSED and (_packs(reason) or _packs(earlier[1])):
                # The node is refused for good in one part and has a packing in another.
                uncertain.add(name)
            if _SEVERITY[reason] > _SEVERITY[earlier[1]]:
                worst[name] = (index, reason)
    return worst | {name: (worst[name][0], Reason.UNCERTAIN_VOLUME) for name in uncertain}


def _packs(reason: Reason) -> bool:
    return reason.fits or reason in UNSAFE or reason is Reason.NEVER_SAFE


def _combine(
    evaluated: Sequence[tuple[filter_stages.FilterRequest, list[Reason], Mapping[str, Competitors]]],
    candidates: Sequence[str],
    resolution: Resolution,
) -> Decision:
    worst = _worst_by_node(evaluated)
    resolutions: dict[str, Resolution] = {}
    competitors: dict[str, Competitors] = {}
    profiles: dict[str, Profile] = {}
    classes: dict[ReplicaRequest, None] = {}
    for index, (request, reasons, counted) in enumerate(evaluated):
        part = Decision(request.resolution, request.candidates, reasons, competitors=counted)
        part = filter_stages.add_profiles(request, part)
        classes |= dict.fromkeys(part.volume_classes)
        for name in request.candidates:
            if worst[name][0] == index:
                resolutions[name] = request.resolution
                on_node = part.competitors.get(name)
                profile = part.profiles.get(name)
                if on_node is not None:
                    competitors[name] = on_node
                if profile is not None:
                    profiles[name] = profile
    return Decision(
        resolution=resolution,
        candidates=candidates,
        reasons=[worst[name][1] for name in candidates],
        gave_up=evaluated[0][0].budget.gave_up,
        competitors=competitors,
        volume_classes=tuple(classes),
        profiles=profiles,
        resolutions=resolutions,
    )
