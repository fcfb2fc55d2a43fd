"""One row per waiting pod: each node's reason, and the closest node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from scheduler_core.cluster.view import View
from scheduler_core.errors import ResolutionError
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import Contenders, Decision, FilterOptions
from scheduler_core.extender.explain import explain_part
from scheduler_core.extender.filter import filter_nodes
from scheduler_core.extender.status.candidate_order import LACKING_SPACE, reason_order, sort_candidates
from scheduler_core.model.kube import Pod
from scheduler_core.model.listing import natural_key
from scheduler_core.model.verdict import Reason, Verdict
from scheduler_core.volumes.resolve import NO_DRIVER, lacks_driver

# Explaining a node takes longer than deciding about it, so only these are compared byte by byte.
_COMPARED_NODES: Final = 5


@dataclass(frozen=True, slots=True)
class NearestNode:
    """The node that comes closest to taking a pod."""

    node: str
    reason: Reason
    missing: int  # the least bytes that one disk would have to have more; 0 if space is not all that it lacks
    detail: str  # the numbers, as a sentence


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A pod without a node."""

    pod: Pod
    size: int = 0  # bytes of its Longhorn volumes in sum
    nodes: int = 0  # how many nodes there are
    fitting: int = 0  # how many of them fit now
    # Why the others do not, with the number of nodes, most frequent first.
    reasons: Mapping[str, int] = field(default_factory=dict[str, int])
    closest: NearestNode | None = None  # None if some node fits, or if there are no nodes
    error: str = ""  # why nothing can be decided about the pod; "" if it can


def pods_on_node(view: View, node: str) -> list[Pod]:
    """Returns the live pods with claims on a node, sorted by name; with "" those without a node."""
    pods = (pod for pod in view.snapshot.pods.values() if pod.node_name == node and pod.live and pod.volumes)
    return sorted(pods, key=lambda pod: natural_key(pod.key))


def waiting_pods(view: View) -> tuple[Pod, ...]:
    """Returns the live, unscheduled pods with claims, the oldest first."""
    pods = pods_on_node(view, "")
    return tuple(sorted(pods, key=lambda pod: pod.created or "~"))


def candidate_nodes(view: View) -> list[str]:
    """Returns the names of the nodes that pods may run on, sorted; a snapshot without Kubernetes nodes has Longhorn's."""
    return sorted(view.snapshot.nodes or view.snapshot.longhorn_nodes)


def waiting_row(
    pod: Pod,
    state: ClusterState,
    options: FilterOptions,
    contenders: Contenders,
    refused: Mapping[str, str],
) -> WaitingRow:
    """Returns the row of a pod, by the decision of `/filter`; `refused`: nodes that kube-scheduler refuses by itself,
    with its reasons.
    """
    nodes = candidate_nodes(state.view)
    names = [name for name in nodes if name not in refused]
    try:
        decision = filter_nodes(pod, names, state, options, contenders)
        closest = None if decision.fits else _closest_node(pod, decision, state, options)
    except ResolutionError as error:
        return WaitingRow(pod, nodes=len(nodes), error=str(error))
    snapshot = state.view.snapshot
    fitting = [
        name for name in decision.fitting_nodes if not decision.resolution.volumes or not lacks_driver(snapshot, name)
    ]
    reasons = Counter(reason.text for reason in decision.reasons if not reason.fits)
    reasons.update([NO_DRIVER] * (len(decision.fitting_nodes) - len(fitting)))
    reasons.update(refused[name] for name in nodes if name in refused)
    return WaitingRow(
        pod,
        size=sum(volume.volume.size for volume in decision.resolution.volumes),
        nodes=len(nodes),
        fitting=len(fitting),
        reasons=dict(sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0]))),
        closest=closest,
    )


def _closest_node(pod: Pod, decision: Decision, state: ClusterState, options: FilterOptions) -> NearestNode | None:
    """Returns the node that lacks the fewest bytes or, where all lack something else, the one that passed most rules."""
    reasons = dict(zip(decision.candidates, decision.reasons, strict=True))
    order = sort_candidates(state.view, decision)
    # Only the nodes with most free bytes on one disk are compared byte by byte.
    lacking = [name for name in order[:_COMPARED_NODES] if reasons[name] in LACKING_SPACE]
    if not order:
        return None
    lacks_nothing = reasons[order[0]] is Reason.NEVER_SAFE
    names = order[:1] if lacks_nothing or not lacking else lacking
    explanation = explain_part(pod, decision, names, state, options)
    verdicts = zip(names, explanation.verdicts, strict=True)
    name, verdict = min(verdicts, key=lambda entry: _distance(*entry))
    return NearestNode(name, verdict.reason, verdict.missing, verdict.detail)


def _distance(name: str, verdict: Verdict) -> tuple[bool, int, int, str]:
    """Sorts nodes, the closest first, those whose missing bytes are known before others."""
    return verdict.missing == 0, verdict.missing, -reason_order(verdict.reason), name
