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
                  → all other nodes: by disk profile (`evaluation/contention.py`)
                  → the whole pod has a placement?   → the nodes with one (`evaluation/placement_across_nodes.py`)
                  → the packing mode, and which nodes are waited for

`explain.py` runs this very decision and adds plans and numbers per node, so the two cannot differ.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from scheduler_core import errors
from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import (
    NO_CONTENDERS,
    Competing,
    Contenders,
    Decision,
    FilterOptions,
    Packing,
    combine_decisions,
    volumes_on_pod_node,
    worst_by_node,
)
from scheduler_core.evaluation import contention, placement_across_nodes, replicas_to_place, single_node
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.competing_volumes import Competitors, Requester
from scheduler_core.evaluation.disk_profiles import attach_refusal, refusal_on_every_node, unready_volume
from scheduler_core.longhorn.volume_validation import update_error
from scheduler_core.model import kube
from scheduler_core.model.verdict import UNSAFE, Reason
from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.structs import replace
from scheduler_core.volumes.existing_replicas import home_nodes, strict_local_nodes
from scheduler_core.volumes.free_volume_matching import CandidateVolumes, NodeResolution, resolve_on_nodes
from scheduler_core.volumes.resolve import PodVolume, Resolution, exceeds_attach_limit
from scheduler_core.volumes.volume_requirements import requirements

# Reasons that may hold only because of what was offered to other pods.
_WORTH_WAITING = UNSAFE | {Reason.SPOKEN_FOR}


class FilterRequest(contention.PodQuery, frozen=True, kw_only=True):
    """What every stage of a request reads."""

    candidates: Sequence[str]
    options: FilterOptions
    excluded: frozenset[str]  # nodes that take no new volumes now
    # The homes among all candidates of a pod whose volumes differ by node; None if they do not differ.
    homes: frozenset[str] | None = None

    @property
    def view(self) -> View:
        return self.state.view


def filter_nodes(
    pod: kube.Pod,
    candidates: Sequence[str],
    state: ClusterState,
    options: FilterOptions,
    contenders: Contenders = NO_CONTENDERS,
) -> Decision:
    """Decides which candidates can hold the pod's Longhorn volumes; every candidate gets a reason."""
    if exceeds_attach_limit(pod):
        return Decision(Resolution(), candidates, [Reason.TOO_MANY_VOLUMES] * len(candidates))
    offered = _volumes_offered_to_others(pod, contenders)
    volumes = candidate_volumes(pod, candidates, state.view, options, offered)
    resolution = volumes.resolution
    check_existing_volumes(resolution)
    if not resolution.volumes:
        return Decision(resolution, candidates, [Reason.NO_VOLUMES] * len(candidates))
    examine_safety = options.examines_safety
    budget = Budget(options.steps)
    competition = None
    if isinstance(contenders, Competing):
        requester = Requester.of(pod.uid, resolution.volumes, pod.priority)
        competition = contention.Competition(
            state,
            contenders.demand,
            contenders.ledger,
            requester,
            budget,
            contenders.contention,
            contenders.equivalence,
        )
    of_parts = volumes.parts if len(volumes.parts) > 1 else (NodeResolution(resolution, None),)
    # There may be as many parts as nodes.
    positions = {name: position for position, name in enumerate(candidates)} if len(of_parts) > 1 else {}
    requests = [
        FilterRequest(
            state=state,
            resolution=part.resolution,
            required=requirements(part.resolution.local, part.resolution.volumes),
            optional=replicas_to_place.optional_volumes(state.view, part.resolution)
            if examine_safety
            else replicas_to_place.NO_OPTIONAL_VOLUMES,
            examine_safety=examine_safety,
            budget=budget,
            competition=competition,
            candidates=candidates if part.nodes is None else sorted(part.nodes, key=positions.__getitem__),
            options=options,
            excluded=frozenset() if isinstance(contenders, Competing) else contenders,
        )
        for part in of_parts
    ]
    if len(requests) > 1:
        homes = _common_homes(requests)
        requests = [replace(request, homes=homes) for request in requests]
    parts, unsafe = _settle([_evaluate_part(request) for request in requests], options.packing)
    if len(parts) == 1:
        return _with_profiles(parts[0], unsafe)
    combined = combine_decisions([_with_profiles(part, {}) for part in parts], candidates)
    return replace(combined, resolution=resolution, unsafe=unsafe, gave_up=budget.gave_up)


def candidate_volumes(
    pod: kube.Pod, names: Collection[str], view: View, options: FilterOptions, offered: Iterable[PodVolume] = ()
) -> CandidateVolumes:
    """Returns the pod's volumes on the candidates; `offered` are volumes that other pods may take."""
    taken = offered if options.match_volumes else None
    return resolve_on_nodes(pod, names, view, taken, require_best_effort=options.require_best_effort)


def check_existing_volumes(resolution: Resolution) -> None:
    for volume in resolution.volumes:
        error = update_error(volume.volume) if volume.bound else ""
        if error:
            raise errors.ResolutionError(f"Longhorn volume {volume.name}: {error}")


def _common_homes(requests: Sequence[FilterRequest]) -> frozenset[str]:
    """Returns the homes among the candidates of all requests."""
    homes: set[str] = set()
    others: set[str] = set()
    for request in requests:
        own = _home_names(request, _constrained_nodes(request))
        homes |= own
        others.update(name for name in request.candidates if name not in own)
    return frozenset(homes - others)


class _Part(NamedTuple):
    """The decision about one set of the pod's volumes."""

    request: FilterRequest
    reasons: Sequence[Reason]
    competitors: Mapping[str, Competitors]


def _evaluate_part(request: FilterRequest) -> _Part:
    """Returns each candidate's reason, and the competitors counted. Whether unsafe nodes are offered, and which nodes
    are waited for, is not settled yet (`_settle`).
    """
    candidates = request.candidates
    if not request.resolution.volumes:
        return _Part(request, [Reason.NO_VOLUMES] * len(candidates), {})
    decided = _decide_without_disks(request)
    with_replicas, competitors = _nodes_with_replicas(request, decided)
    decided |= with_replicas
    # The common case, in which no stage decides a node, keeps lists as they are: candidates may be thousands.
    names = [name for name in candidates if name not in decided] if decided else candidates
    competition = request.contested
    if not names:
        # A pod that returns home needs no profiles, and must not replace what the caches hold for equal pods.
        reasons: list[Reason] = []
    elif competition is None:
        alone = contention.evaluate_together(request, names, examine_safety=request.examine_safety)
        reasons = [alone[name] for name in names]
    else:
        reasons, counted = contention.evaluate_nodes(request, competition, names)
        competitors = {**counted, **competitors}
    if decided:
        decided |= zip(names, reasons, strict=True)
        reasons = [decided[name] for name in candidates]
    placeable = [name for name, reason in zip(candidates, reasons, strict=True) if reason.fits or reason in UNSAFE]
    refused = placement_across_nodes.nodes_without_placement(
        request.state, request.resolution, placeable, request.budget
    )
    if refused:
        reasons = [refused.get(name, reason) for name, reason in zip(candidates, reasons, strict=True)]
    return _Part(request, reasons, competitors)


def _decide_without_disks(request: FilterRequest) -> dict[str, Reason]:
    """Returns the candidates that are decided before disks are compared."""
    refused = _refusal_of_pod(request)
    if refused is not None:
        return dict.fromkeys(request.candidates, refused)
    decided = _constrained_nodes(request)
    undecided = [name for name in request.candidates if name not in decided] if decided else request.candidates
    homes = _home_names(request, decided) if request.homes is None else request.homes
    if homes:
        return decided | {name: Reason.HOME if name in homes else Reason.HOME_ELSEWHERE for name in undecided}
    everywhere = refusal_on_every_node(request.view, request.resolution)
    if everywhere is not None:
        return decided | dict.fromkeys(undecided, everywhere.reason)
    if request.excluded and request.required.sizes:
        reserved = (name for name in undecided if name in request.excluded)
        return decided | dict.fromkeys(reserved, Reason.NODE_RESERVED)
    return decided


def _constrained_nodes(request: FilterRequest) -> dict[str, Reason]:
    # An exclusive claim stays where another live pod uses it.
    volumes = request.resolution.volumes
    limits = [(volume.in_use_on, Reason.CLAIM_IN_USE) for volume in volumes if volume.in_use_on]
    nodes_of_replicas = map(strict_local_nodes, request.resolution.local)
    limits += [(nodes, Reason.STRICT_LOCAL_ELSEWHERE) for nodes in nodes_of_replicas if nodes]
    # The first reason of a node counts.
    return {name: reason for nodes, reason in reversed(limits) for name in request.candidates if name not in nodes}


def _refusal_of_pod(request: FilterRequest) -> Reason | None:
    unready = unready_volume(request.view, request.resolution)
    if unready is not None:
        return unready.reason
    # Equal volumes are looked at once: a pod may have thousands.
    unplaced = (requirements([volume], ()) for volume in request.resolution.unplaced)
    profiles = request.state.profiles
    for required in {required.key: required for required in unplaced}.values():
        nodes = list(profiles.table(required.classes).profiles.values())
        results = profiles.evaluate(required, nodes, request.budget, examine_safety=False)
        if not any(results[profile].fits for profile in nodes):
            return Reason.NO_ROOM_IN_CLUSTER
    return None


def _home_names(request: FilterRequest, decided: Collection[str]) -> frozenset[str]:
    # A home has a usable replica of every local volume, and all of them can be attached there.
    view = request.view
    classes = request.required.classes
    attachable = {name for name in _with_replica(request, decided) if attach_refusal(view, classes, name) is None}
    return home_nodes(request.resolution.local, attachable, view.cluster) if attachable else frozenset()


def _nodes_with_replicas(
    request: FilterRequest, decided: Collection[str]
) -> tuple[dict[str, Reason], Mapping[str, Competitors]]:
    """Evaluates nodes with a replica that matters to space one by one."""
    names = _with_replica(request, decided, request.optional.nodes_with_replica)
    competitors: Mapping[str, Competitors] = {}
    if request.contested is not None and names:
        competitors = request.contested.contention.competitors(request.contested, names)
    reasons: dict[str, Reason] = {}
    shares = request.budget.shares(len(names) + 1)
    for name, share in zip(names, shares, strict=False):
        reasons[name] = _reason_of_node_with_replica(request, name, competitors.get(name), share)
    request.budget.take_back(shares)
    return reasons, competitors


def _reason_of_node_with_replica(
    request: FilterRequest, name: str, competitors: Competitors | None, budget: Budget
) -> Reason:
    """Evaluates one node together with its competitors. A refusal that these alone cause says so."""
    volumes = competitors.volumes if competitors is not None else ()
    node = single_node.evaluate_node(request.view, request.resolution, name, volumes, request.optional.on(name))
    reason = node.reason(budget)
    if volumes and not reason.fits:
        alone = single_node.evaluate_node(request.view, request.resolution, name)
        if alone.reason(budget).fits:
            reason = contention.attribute_to_competitors(reason)
    if reason is Reason.ROOM and request.examine_safety:
        if node.overbooking() is None:
            if competitors is None or not competitors.left_out:
                return reason
            counted = volumes + competitors.left_out
            node = single_node.evaluate_node(request.view, request.resolution, name, counted, request.optional.on(name))
            return reason if node.refused is None and node.overbooking() is None else Reason.STALE_UNSAFE
        safe = node.order_safety(budget).answer is PackingAnswer.YES
        return Reason.STALE_UNSAFE if safe else Reason.ORDER_UNSAFE
    return reason


def _with_replica(request: FilterRequest, decided: Collection[str], others: frozenset[str] = frozenset()) -> list[str]:
    """Returns undecided candidates with a local volume's replica, and the `others` that are undecided."""
    nodes = others.union(replica.node_id for volume in request.resolution.local for replica in volume.replicas)
    return [name for name in request.candidates if name in nodes and name not in decided] if nodes else []


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
    worst = worst_by_node([(part.request.candidates, part.reasons) for part in parts])
    return list(worst), [reason for _, reason in worst.values()]


def _volumes_offered_to_others(pod: kube.Pod, contenders: Contenders) -> Iterable[PodVolume]:
    offers = contenders.ledger.offers.values() if isinstance(contenders, Competing) else ()
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
        results = contention.evaluate_together(request, names, demanded, examine_safety=examine_safety)
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
    apart = frozenset(_with_replica(request, (), request.optional.nodes_with_replica))
    others = [name for name in settled if name not in apart]
    alone = contention.evaluate_together(request, others, examine_safety=request.examine_safety)
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
            competitors = competition.contention.competitors(competition, request.candidates)
    table = request.state.profiles.table(classes)
    return replace(decision, competitors=competitors, volume_classes=classes.requests, profiles=table.profiles)
