"""The stages of `filter.py`: each decides some nodes for one set of a pod's volumes.

Data flow: a request → the functions of `_STAGES` in their order, each with what earlier ones decided → all other nodes by disk profile. `_refusals_of_pod` refuses all candidates, whatever `_constrained_nodes` decided. Every later stage decides
only nodes that are still undecided. At last the nodes remain for which the whole pod has a placement in the cluster (`evaluation/whole_pod.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import (
    FilterOptions,
)
from scheduler_core.evaluation.competitors import Competitors, Volumes
from scheduler_core.evaluation.many_nodes import (
    PodQuery,
    attribute_to_competitors,
    evaluate_alone,
    evaluate_nodes,
)
from scheduler_core.evaluation.profile import Refused, attach_refusal, reason_of
from scheduler_core.evaluation.replicas import replica_needs
from scheduler_core.evaluation.single_node import evaluate_node
from scheduler_core.evaluation.whole_pod import WholePod, nodes_without_placement
from scheduler_core.longhorn.placement import cluster_refusal
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.volume_validation import readiness_refusal
from scheduler_core.model.longhorn import STRICT_LOCAL
from scheduler_core.model.verdict import UNSAFE, Reason
from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.volumes.existing_replicas import home_nodes
from scheduler_core.volumes.requirements import Requirements, requirements
from scheduler_core.volumes.resolve import PodVolume, Resolution


class FilterRequest(PodQuery, frozen=True, kw_only=True):
    """What every stage of a request reads."""

    candidates: Sequence[str]
    options: FilterOptions
    excluded: frozenset[str]  # nodes that take no new volumes now
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
    which nodes are waited for, is not settled yet (`filter.py: _settle`).
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
    if request.contested is None:
        return evaluate_alone(request, names), competitors
    reasons, by_node = evaluate_nodes(request, request.contested, names)
    return reasons, {**by_node, **competitors}


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


def node_constraints(resolution: Resolution) -> list[tuple[frozenset[str], Reason]]:
    """Returns sets of nodes that the pod is limited to, each with the reason of all other nodes."""
    # An exclusive claim stays where another live pod uses it.
    limits = [(volume.in_use_on, Reason.CLAIM_IN_USE) for volume in resolution.volumes if volume.in_use_on]
    for volume in resolution.local:
        placed = frozenset(replica.node_id for replica in volume.replicas if replica.node_id)
        # A strict-local volume stays where its replica is.
        if volume.volume.data_locality == STRICT_LOCAL and placed:
            limits.append((placed, Reason.STRICT_LOCAL_ELSEWHERE))
    return limits


def _refusals_of_pod(request: FilterRequest, _decided: _Reasons) -> _Evaluated:
    unready = unready_volume(request.view, request.resolution)
    if unready is not None:
        return _Evaluated(dict.fromkeys(request.candidates, unready.reason))
    return _room_in_cluster(request)


def unready_volume(view: View, resolution: Resolution) -> Refused | None:
    """Returns why Longhorn attaches one of the existing volumes on no node now."""
    for volume in _in_order(volume for volume in resolution.volumes if volume.bound):
        refusal = readiness_refusal(volume.volume, volume.replicas, view.cluster)
        if refusal is not None:
            return reason_of(refusal)
    return None


def refusal_on_every_node(view: View, resolution: Resolution) -> Refused | None:
    """Returns why Longhorn refuses a local volume on every node, before it looks at any node. Any setting that cannot
    be read is such a reason: its default may be far from what was meant.
    """
    for name in sorted(view.settings.faults):
        return Refused(Reason.BAD_SETTING, str(view.settings.faults[name]))
    for volume in _in_order(resolution.local):
        refusal = cluster_refusal(view.cluster, ReplicaRequest.for_volume(volume.volume))
        if refusal is not None:
            return reason_of(refusal)
    return None


def _in_order(volumes: Iterable[PodVolume]) -> Sequence[PodVolume]:
    # Which of several reasons is returned must not depend on the claims' names.
    return requirements(volumes, ()).volumes


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
    attachable = {name for name in with_replica(request, decided) if attach_refusal(view, classes, name) is None}
    return home_nodes(request.resolution.local, attachable, view.cluster)


def _refusals_everywhere(request: FilterRequest, decided: _Reasons) -> _Evaluated:
    refused = refusal_on_every_node(request.view, request.resolution)
    if refused is None:
        return _NOTHING
    return _Evaluated({name: refused.reason for name in request.candidates if name not in decided})


def _excluded_nodes(request: FilterRequest, decided: _Reasons) -> _Evaluated:
    if not request.excluded or not request.required.sizes:
        return _NOTHING
    reserved = (name for name in request.candidates if name in request.excluded and name not in decided)
    return _Evaluated(dict.fromkeys(reserved, Reason.NODE_RESERVED))


def _nodes_with_replicas(request: FilterRequest, decided: _Reasons) -> _Evaluated:
    """Evaluates nodes with a replica that matters to space one by one."""
    names = with_replica(request, decided, request.optional.nodes_with_replica)
    competitors: Mapping[str, Competitors] = {}
    if request.contested is not None and names:
        competitors = request.contested.competitors(names)
    reasons: dict[str, Reason] = {}
    shares = request.budget.shares(len(names) + 1)
    for name, share in zip(names, shares, strict=False):
        reasons[name] = reason_of_node_with_replica(request, name, competitors.get(name), share)
    request.budget.take_back(shares)
    return _Evaluated(reasons, competitors)


def reason_of_node_with_replica(
    request: FilterRequest, name: str, competitors: Competitors | None, budget: Budget
) -> Reason:
    """Evaluates one node together with its competitors. A refusal that these alone cause says so."""
    volumes = competitors.volumes if competitors is not None else ()
    node = evaluate_node(request.view, request.resolution, name, volumes, request.optional.on(name))
    reason = node.reason(budget)
    if volumes and not reason.fits:
        alone = evaluate_node(request.view, request.resolution, name)
        if alone.reason(budget).fits:
            reason = attribute_to_competitors(reason)
    if reason is Reason.ROOM and request.examine_safety:
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


def with_replica(request: FilterRequest, decided: Collection[str], others: frozenset[str] = frozenset()) -> list[str]:
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
