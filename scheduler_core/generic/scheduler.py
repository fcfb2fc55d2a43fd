"""Decides where one pod goes: filter, prioritise, select.

Long computations pause (`scheduler_core/cooperative.py`). The order of the nodes changes nothing but the order of the
result. Source: Kubernetes 1.1, plugin/pkg/scheduler/generic_scheduler.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduler_core.cooperative import Cooperative
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.current_predicates import UNSCHEDULABLE
from scheduler_core.generic.cycle_state import CycleState, UndecidableError
from scheduler_core.generic.longhorn_facts import NO_FACTS, LonghornFacts
from scheduler_core.generic.node_info import NodeInfo
from scheduler_core.generic.policy import Policy
from scheduler_core.generic.predicates import Check
from scheduler_core.generic.priorities import MAX_SCORE
from scheduler_core.generic.rule_registry import PREDICATES, PRIORITIES
from scheduler_core.model.generic import Pod

SelectHost = Callable[[Sequence[str]], str]

NO_NODES: Final = "no nodes available to schedule pods"
NODE_NOT_FOUND: Final = "node does not exist"
CORDONED: Final = UNSCHEDULABLE
NOT_READY: Final = "node is not ready"
_CORDON_RULE: Final = "CheckNodeUnschedulable"
# A node that is not ready has a taint that says so.
_TAINT_RULE: Final = "PodToleratesNodeTaints"
# 256 nodes take well below a millisecond, and a pause costs next to nothing in comparison.
_NODES_PER_SLICE: Final = 256


@dataclass(frozen=True, slots=True)
class PredicateFailure:
    """Why a predicate does not let the pod on a node.

    Attributes:
        predicate: its name in the policy
        text: its reason
    """

    predicate: str
    text: str


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Nodes after the predicates: unavailable, failed or feasible.

    Attributes:
        unavailable: nodes that no predicate checked, and why
        failures: available nodes that fail, with every predicate that fails there, in the policy's order
        feasible: the remaining nodes, in the order requested
        error: why nothing can be decided, "" otherwise
    """

    unavailable: Mapping[str, str]
    failures: Mapping[str, tuple[PredicateFailure, ...]]
    feasible: tuple[NodeInfo, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores of the feasible nodes, in the order requested.

    Attributes:
        scores: by the priority's name in the policy, then by node
        totals: weighted sums, by node
    """

    scores: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """The node selected for a pod, and how it was selected.

    Attributes:
        unavailable, failures, error: as in `FilterResult`
        feasible: the names of the nodes that fit
        best: the nodes with the highest total, in order of their names
        node: the selected one, "" if none fits
    """

    pod: Pod
    unavailable: Mapping[str, str]
    failures: Mapping[str, tuple[PredicateFailure, ...]]
    feasible: tuple[str, ...]
    ranking: Ranking
    best: tuple[str, ...] = ()
    node: str = ""
    error: str = ""

    def count_by_reason(self) -> dict[str, int]:
        """Number of nodes per reason, most frequent first.

        For an event about a pod that fits nowhere.
        """
        counts = Counter(self.unavailable.values())
        for failures in self.failures.values():
            counts.update({failure.text for failure in failures})
        return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def schedule(  # noqa: PLR0913, PLR0917 # the inputs of a decision
    pod: Pod,
    nodes: Sequence[str] | None,
    cluster: GenericClusterState,
    policy: Policy,
    select_host: SelectHost,
    longhorn_facts: LonghornFacts = NO_FACTS,
) -> Cooperative[ScheduleResult]:
    """Selects a node for the pod.

    The candidates are `nodes`, or all nodes. `select_host` picks one of the best nodes' names, which it gets in order, as
    `random.Random(seed).choice` does. `longhorn_facts` are required if the policy has Longhorn's rules; without facts no
    node fits these.
    """
    filtered = yield from find_nodes_that_fit(pod, nodes, cluster, policy, longhorn_facts)
    ranking = yield from prioritize(pod, filtered.feasible, cluster, policy, longhorn_facts)
    max_total = max(ranking.totals.values(), default=0)
    best = tuple(sorted(name for name, total in ranking.totals.items() if total == max_total))
    return ScheduleResult(
        pod=pod,
        unavailable=filtered.unavailable,
        failures=filtered.failures,
        feasible=tuple(node_info.node.name for node_info in filtered.feasible),
        ranking=ranking,
        best=best,
        node=select_host(best) if best else "",
        error=filtered.error,
    )


def find_nodes_that_fit(
    pod: Pod,
    nodes: Sequence[str] | None,
    cluster: GenericClusterState,
    policy: Policy,
    longhorn_facts: LonghornFacts = NO_FACTS,
) -> Cooperative[FilterResult]:
    """Filters the available nodes by the policy's predicates.

    The candidates are `nodes`, or all nodes.
    """
    cycle_state = CycleState(pod, cluster, longhorn_facts)
    available, unavailable = _split_by_availability(cluster.node_names if nodes is None else nodes, cluster, policy)
    if not available:
        return FilterResult(unavailable, {}, (), NO_NODES)
    checks, undecidable = _bind_predicates(cycle_state, policy)
    failures: dict[str, tuple[PredicateFailure, ...]] = {}
    feasible: list[NodeInfo] = []
    # Many nodes fail alike: they share one value.
    failures_by_texts: dict[tuple[str, ...], tuple[PredicateFailure, ...]] = {}
    for start in range(0, len(available), _NODES_PER_SLICE):
        for node_info in available[start : start + _NODES_PER_SLICE]:
            texts = tuple([check(node_info) for check in checks.values()])
            if not undecidable and not any(texts):
                feasible.append(node_info)
                continue
            if texts not in failures_by_texts:
                text_by_predicate = dict(zip(checks, texts, strict=True)) | undecidable
                failures_by_texts[texts] = _failures(policy, text_by_predicate)
            failures[node_info.node.name] = failures_by_texts[texts]
        yield
    error = next(iter(undecidable.values()), "")
    return FilterResult(unavailable, failures, tuple(feasible), error)


def _split_by_availability(
    names: Sequence[str], cluster: GenericClusterState, policy: Policy
) -> tuple[list[NodeInfo], dict[str, str]]:
    """The available nodes, and why each other node is not.

    Available: ready and not cordoned. Where the policy has the rules by which kube-scheduler decides that today (taints, and
    tolerance of a cordon), these decide it.
    """
    rules = {entry.rule for entry in policy.predicates}
    reads_cordon = _CORDON_RULE in rules
    reads_taints = _TAINT_RULE in rules
    available: list[NodeInfo] = []
    unavailable: dict[str, str] = {}
    for name in names:
        node_info = cluster.nodes.get(name)
        if node_info is None:
            unavailable[name] = NODE_NOT_FOUND
        elif node_info.node.unschedulable and not reads_cordon:
            unavailable[name] = CORDONED
        elif not node_info.node.ready and not reads_taints:
            unavailable[name] = NOT_READY
        else:
            available.append(node_info)
    return available, unavailable


def _bind_predicates(cycle_state: CycleState, policy: Policy) -> tuple[dict[str, Check], dict[str, str]]:
    """The policy's predicates as checks of a node.

    The second result has the reasons of the undecidable predicates, by name. An undecidable predicate fails on every node.
    """
    checks: dict[str, Check] = {}
    undecidable: dict[str, str] = {}
    for entry in policy.predicates:
        try:
            checks[entry.name] = PREDICATES[entry.rule](cycle_state, entry.argument)
        except UndecidableError as error:
            undecidable[entry.name] = str(error)
    return checks, undecidable


def _failures(policy: Policy, text_by_predicate: Mapping[str, str]) -> tuple[PredicateFailure, ...]:
    return tuple(
        PredicateFailure(entry.name, text_by_predicate[entry.name])
        for entry in policy.predicates
        if text_by_predicate[entry.name]
    )


def prioritize(
    pod: Pod,
    nodes: Sequence[NodeInfo],
    cluster: GenericClusterState,
    policy: Policy,
    longhorn_facts: LonghornFacts = NO_FACTS,
) -> Cooperative[Ranking]:
    """Scores nodes by every priority of the policy.

    Without priorities each total is 1.
    """
    cycle_state = CycleState(pod, cluster, longhorn_facts)
    names = [node_info.node.name for node_info in nodes]
    if not policy.priorities or not nodes:
        return Ranking(totals=dict.fromkeys(names, 1))
    scores: dict[str, dict[str, int]] = {}
    totals = [0] * len(nodes)
    for entry in policy.priorities:
        node_scores = PRIORITIES[entry.rule](cycle_state, entry.argument, nodes)
        scores[entry.name] = dict(zip(names, node_scores, strict=True))
        totals = [total + entry.weight * score for total, score in zip(totals, node_scores, strict=True)]
        yield
    return Ranking(scores, dict(zip(names, totals, strict=True)))


def prioritize_names(
    pod: Pod,
    names: Sequence[str],
    cluster: GenericClusterState,
    policy: Policy,
    longhorn_facts: LonghornFacts = NO_FACTS,
) -> Cooperative[dict[str, int]]:
    """Scores nodes for the extender's /prioritize.

    A score is the weighted mean, from 0 to 10, cut off to a whole number. All nodes in `names` count as feasible, because
    kube-scheduler has filtered them; a node that does not exist scores 0.
    """
    node_infos = [node_info for name in names if (node_info := cluster.nodes.get(name)) is not None]
    ranking = yield from prioritize(pod, node_infos, cluster, policy, longhorn_facts)
    weights = sum(entry.weight for entry in policy.priorities) or 1
    return {name: min(MAX_SCORE, ranking.totals.get(name, 0) // weights) for name in names}
