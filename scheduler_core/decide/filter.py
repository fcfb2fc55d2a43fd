"""`filter_nodes`: which nodes can hold all of a pod's Longhorn volumes.

Data flow of one request (Longhorn's scheduler-extender proposal, Filter steps 1 to 4), all from one immutable state:

    pod → resolve → nodes differ in its volumes?     → all of this for each possible match, a `_Part` each
                  → no Longhorn volumes?             → every node
                  → constrained to some nodes?       → the other nodes are refused (strict-local, a claim in use)
                  → no room anywhere for a volume that needs no local space? → no node
                  → homes of every local volume?     → only those
                  → refused before any node is looked at? → no node
                  → reserved for another pod?        → refused
                  → nodes with a replica of the pod: one by one (`evaluation/single_node.py`)
                  → all other nodes: by disk profile (`evaluation/many_nodes.py`)

The steps from the constrained nodes on are the stages of `filter_stages.py`.

`explain.py` runs this very decision and adds plans and numbers per node, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import (
    NO_CONTENDERS,
    Competing,
    Contenders,
    Decision,
    ExcludedNodes,
    FilterOptions,
    Packing,
    volumes_on_pod_node,
)
from scheduler_core.decide.filter_stages import (
    FilterRequest,
    evaluate_stages,
    home_names,
    node_constraints,
    reason_of_node_with_replica,
    with_replica,
)
from scheduler_core.errors import ResolutionError
from scheduler_core.evaluation.competitors import Competitors, Requester
from scheduler_core.evaluation.contention import ContentionQuery
from scheduler_core.evaluation.many_nodes import (
    NO_OPTIONAL_VOLUMES,
    Competition,
    evaluate_alone,
    evaluate_jointly,
    optional_volumes,
)
from scheduler_core.evaluation.profile import Profile
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.volume_validation import update_error
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import UNSAFE, Reason
from scheduler_core.packing.budget import Budget
from scheduler_core.values import replace
from scheduler_core.volumes.requirements import requirements
from scheduler_core.volumes.resolve import PodVolume, Resolution, exceeds_attach_limit
from scheduler_core.volumes.volume_binding import CandidateVolumes, NodeResolution, resolve_on_nodes

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
# Reasons that may hold only because of what was offered to other pods.
_WORTH_WAITING: Final = UNSAFE | {Reason.SPOKEN_FOR}


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
    volumes = resolve_candidates(pod, candidates, state.view, options, offered)
    resolution = volumes.resolution
    check_existing_volumes(resolution)
    if not resolution.volumes:
        return Decision(resolution, candidates, [Reason.NO_VOLUMES] * len(candidates))
    examine_safety = options.examines_safety
    budget = Budget(options.steps)
    competition = None
    if isinstance(contenders, Competing):
        requester = Requester.of(pod.uid, resolution.volumes, pod.priority)
        query = ContentionQuery(state, contenders.demand, contenders.ledger, requester, budget)
        competition = Competition(query, contenders.contention, contenders.equivalence)
    request = FilterRequest(
        state=state,
        resolution=resolution,
        required=requirements(resolution.local, resolution.volumes),
        optional=optional_volumes(state.view, resolution) if examine_safety else NO_OPTIONAL_VOLUMES,
        examine_safety=examine_safety,
        budget=budget,
        competition=competition,
        candidates=candidates,
        options=options,
        excluded=contenders.names if isinstance(contenders, ExcludedNodes) else frozenset(),
    )
    requests = [request] if len(volumes.parts) == 1 else _requests_by_match(request, volumes.parts)
    evaluated, unsafe = _settle([_evaluate_part(request) for request in requests], options.packing)
    if len(evaluated) > 1:
        return _combine(evaluated, candidates, resolution, unsafe)
    return _with_profiles(evaluated[0], unsafe)


def resolve_candidates(
    pod: Pod, names: Collection[str], view: View, options: FilterOptions, offered: Iterable[PodVolume] = ()
) -> CandidateVolumes:
    """Returns the pod's volumes on the candidates; `offered` are volumes that other pods may
    take.
    """
    taken = offered if options.match_volumes else None
    return resolve_on_nodes(pod, names, view, taken, require_best_effort=options.require_best_effort)


def check_existing_volumes(resolution: Resolution) -> None:
    for volume in resolution.volumes:
        error = update_error(volume.volume) if volume.bound else ""
        if error:
            raise ResolutionError(f"Longhorn volume {volume.name}: {error}")


def _requests_by_match(request: FilterRequest, parts: Sequence[NodeResolution]) -> Sequence[FilterRequest]:
    """Returns a request for each of the pod's possible volumes, with the nodes where it may have them."""
    # There may be as many parts as nodes.
    positions = {name: position for position, name in enumerate(request.candidates)}
    requests: list[FilterRequest] = []
    for resolution, nodes in ((part.resolution, part.nodes) for part in parts):
        examined = optional_volumes(request.view, resolution) if request.examine_safety else NO_OPTIONAL_VOLUMES
        names = request.candidates if nodes is None else sorted(nodes, key=positions.__getitem__)
        required = requirements(resolution.local, resolution.volumes)
        requests.append(replace(request, resolution=resolution, required=required, optional=examined, candidates=names))
    # The homes are those among all candidates.
    homes = _common_homes(requests)
    return [replace(entry, homes=homes) for entry in requests]


class _Part(NamedTuple):
    """The decision about one set of the pod's volumes."""

    request: FilterRequest
    reasons: Sequence[Reason]
    competitors: Mapping[str, Competitors]


def _evaluate_part(request: FilterRequest) -> _Part:
    if not request.resolution.volumes:
        return _Part(request, [Reason.NO_VOLUMES] * len(request.candidates), {})
    return _Part(request, *evaluate_stages(request))


def _settle(parts: Sequence[_Part], packing: Packing) -> tuple[Sequence[_Part], Mapping[str, Reason]]:
    """Returns the parts after what depends on the reasons of all nodes, and `Decision.unsafe`."""
    unsafe: dict[str, Reason] = {}
    if not all(UNSAFE.isdisjoint(part.reasons) for part in parts):
        names, reasons = _reasons_by_node(parts)
        accepted = packing.acceptable_reasons(reasons)
        unsafe = {name: reason for name, reason in zip(names, reasons, strict=True) if reason in accepted}
        parts = [
            part._replace(reasons=[Reason.ROOM if reason in accepted else reason for reason in part.reasons])
            for part in parts
        ]
    if len(parts) == 1 or not any(reason.fits for reason in _reasons_by_node(parts)[1]):
        parts = [part._replace(reasons=_mark_waiting(part)) for part in parts]
    return [part._replace(reasons=_mark_never_safe(part)) for part in parts], unsafe


def _reasons_by_node(parts: Sequence[_Part]) -> tuple[Sequence[str], Sequence[Reason]]:
    if len(parts) == 1:
        return parts[0].request.candidates, parts[0].reasons
    worst = _worst_by_node(parts)
    return list(worst), [reason for _, reason in worst.values()]


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


def _mark_waiting(part: _Part) -> Sequence[Reason]:
    """Marks nodes WAITING where the pod would fit once the offered volumes went to other nodes, if no node fits."""
    request, reasons, competitors = part
    if request.contested is None or any(reason.fits for reason in reasons) or _WORTH_WAITING.isdisjoint(reasons):
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
        results = evaluate_jointly(request, names, demanded, examine_safety=examine_safety)
        waiting |= {name for name, reason in results.items() if reason in accepted}
    return [
        Reason.WAITING if name in waiting else reason for name, reason in zip(request.candidates, reasons, strict=True)
    ]


def _mark_never_safe(part: _Part) -> Sequence[Reason]:
    """Marks nodes that this packing refuses whatever other pods do: they are unsafe for the pod's volumes alone."""
    request, reasons, _ = part
    refused = UNSAFE - request.options.packing.acceptable_reasons(())
    if refused.isdisjoint(reasons):
        return reasons
    names = [name for name, reason in zip(request.candidates, reasons, strict=True) if reason in refused]
    table = request.state.profiles.table(request.required.classes)
    profiles = zip(names, table.of(names), strict=True)
    # Nothing is in flight on these nodes.
    settled = [name for name, profile in profiles if profile.free == profile.reported]
    apart = frozenset(with_replica(request, (), request.optional.nodes_with_replica))
    others = [name for name in settled if name not in apart]
    alone = dict(zip(others, evaluate_alone(request, others), strict=True))
    for name in settled:
        if name in apart:
            alone[name] = reason_of_node_with_replica(request, name, None, request.budget)
    # What a search left open is not marked.
    if request.budget.gave_up and Reason.STALE_UNSAFE not in refused:
        return reasons
    never = {name for name, reason in alone.items() if reason in refused}
    return [
        Reason.NEVER_SAFE if name in never else reason for name, reason in zip(request.candidates, reasons, strict=True)
    ]


def _with_profiles(part: _Part, unsafe: Mapping[str, Reason]) -> Decision:
    """Returns the decision about a part with what an offer is made from."""
    request, reasons, counted = part
    decision = Decision(request.resolution, request.candidates, reasons, competitors=counted, unsafe=unsafe)
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
        if not request.required.sizes:
            competitors = competition.competitors(request.candidates)
    table = request.state.profiles.table(classes)
    return replace(decision, competitors=competitors, volume_classes=classes.requests, profiles=table.profiles)


def _common_homes(requests: Sequence[FilterRequest]) -> frozenset[str]:
    homes: set[str] = set()
    others: set[str] = set()
    for request in requests:
        decided = {
            name
            for nodes, _ in node_constraints(request.resolution)
            for name in request.candidates
            if name not in nodes
        }
        own = home_names(request, decided)
        homes |= own
        others.update(name for name in request.candidates if name not in own)
    return frozenset(homes - others)


# A node in several parts fits only if it fits in all of them: kube-scheduler chooses one, and nothing shows which.
def _worst_by_node(parts: Sequence[_Part]) -> dict[str, tuple[int, Reason]]:
    worst: dict[str, tuple[int, Reason]] = {}
    uncertain: set[str] = set()
    for index, (request, reasons, _) in enumerate(parts):
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
    parts: Sequence[_Part], candidates: Sequence[str], resolution: Resolution, unsafe: Mapping[str, Reason]
) -> Decision:
    worst = _worst_by_node(parts)
    resolutions: dict[str, Resolution] = {}
    competitors: dict[str, Competitors] = {}
    profiles: dict[str, Profile] = {}
    classes: dict[ReplicaRequest, None] = {}
    for index, part in enumerate(parts):
        decision = _with_profiles(part, {})
        classes |= dict.fromkeys(decision.volume_classes)
        for name in decision.candidates:
            if worst[name][0] == index:
                resolutions[name] = decision.resolution
                on_node = decision.competitors.get(name)
                profile = decision.profiles.get(name)
                if on_node is not None:
                    competitors[name] = on_node
                if profile is not None:
                    profiles[name] = profile
    return Decision(
        resolution=resolution,
        candidates=candidates,
        reasons=[worst[name][1] for name in candidates],
        gave_up=parts[0].request.budget.gave_up,
        competitors=competitors,
        unsafe=unsafe,
        volume_classes=tuple(classes),
        profiles=profiles,
        resolutions=resolutions,
    )
